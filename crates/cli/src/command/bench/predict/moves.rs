//! The pricing of a sharding-plan search: a whole step, and again after a table has moved.

use std::hint::black_box;
use std::time::Instant;

use predict::kernel::Error as KernelError;
use predict::lower::own;
use predict::step::{Conditions, Models, StepPricer};
use schema::{FeatureStats, Rank, ShardingPlan, Topology};
use serde::Serialize;

use super::timed;
use crate::args::BenchPredict;
use crate::command::bench::sample::median;
use crate::error::Error;
use crate::render;
use crate::resolve::{Session, config};

/// Of 1,000 tables.
const CONFIG: &str = "dlrm-1000-tables";
/// 128 ranks.
const HARDWARE: &str = "16xh100x8";
/// Moves between two looks at the clock.
const MOVES: usize = 200;

/// Medians.
#[derive(Debug, Serialize)]
struct MovesReport {
    tables: usize,
    ranks: usize,
    whole_ms: f64,
    move_us: f64,
    /// Whole steps over moves.
    ratio: f64,
}

/// Runs the command without traces.
pub fn run(args: &BenchPredict, session: &Session) -> Result<(), Error> {
    let job = config::job(CONFIG, &[])?.config;
    let topology = Topology::parse(HARDWARE).map_err(KernelError::from)?;
    let models = Models::shipped()?;
    let ranks = topology.ranks() as u32;
    let plan = ShardingPlan::table_wise(&job.model.tables, ranks);
    let features = FeatureStats::uniform(&job.model, 1);
    let workload = own::Workload { config: &job, plan: &plan, features: &features };
    let conditions = Conditions { topology: &topology, models: &models, launch_ns: 0.0 };
    let mut pricer = StepPricer::new(workload, conditions)?;
    let (mut whole, mut moved) = (Vec::new(), Vec::new());
    let tiles = plan.tiles().len();
    for turn in 0..args.repeats as usize {
        black_box(timed(&mut whole, || predict::step::price(workload, conditions))?);
        let begin = Instant::now();
        for at in 0..MOVES {
            let number = turn * MOVES + at;
            let to = Rank((number * 37 % ranks as usize) as u32);
            black_box(pricer.move_tile(number * 101 % tiles, to));
        }
        moved.push(begin.elapsed().as_secs_f64() / MOVES as f64);
    }
    let (whole, moved) = (median(whole), median(moved));
    let report = MovesReport {
        tables: job.model.tables.len(),
        ranks: ranks as usize,
        whole_ms: 1e3 * whole,
        move_us: 1e6 * moved,
        ratio: whole / moved,
    };
    session.console.report(&report, table)
}

fn table(report: &MovesReport) -> String {
    let of = render::counted(report.tables as u64, "table");
    render::facts(&[
        ("whole step", format!("{:.2} ms, {of} on {} ranks", report.whole_ms, report.ranks)),
        ("move of a table", format!("{:.1} µs, {:.0} times as fast", report.move_us, report.ratio)),
    ])
}
