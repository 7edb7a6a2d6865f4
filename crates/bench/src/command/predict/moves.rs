//! Measures pricing during a search over sharding plans: of a whole step, of a step after one table
//! has moved, and of single kernels.

use std::hint::black_box;
use std::time::Instant;

use kernel_model::{Element, Error as KernelError, Kind, Work, shipped};
use predict::step::{Conditions, Models, StepPricer};
use schema::random::CounterRng;
use schema::topology::hardware;
use schema::{FeatureStats, Rank, ShardingPlan, TableId, Topology};
use serde::Serialize;

use crate::args::BenchPredict;
use bench::sample::{median, timed};
use setup::error::Error;
use setup::render;
use setup::{Session, config};

/// A built-in configuration with 1,000 embedding tables.
const CONFIG: &str = "dlrm-1000-tables";
/// Topology of sixteen hosts with eight H100 each, which have 128 ranks.
const HARDWARE: &str = "16xh100x8";
/// Number of moves in each time measurement.
const MOVES: usize = 200;

/// A measured device, whose trees are the largest. The prices of this device therefore take the
/// most time.
const MEASURED: &str = "v100";
/// Number of kernels of each kind in each time measurement. No two of these kernels are equal.
const WORKS: u64 = 500;
/// Largest time in microseconds that the price of one kernel may take.
const PRICE_US_MOST: f64 = 30.0;

/// Median times of pricing a whole step and of moving one table.
#[derive(Debug, Serialize)]
struct MovesReport {
    tables: usize,
    ranks: usize,
    whole_ms: f64,
    move_us: f64,
    /// Time of a whole step divided by the time of a move.
    ratio: f64,
    /// Time per price, for each kind of kernel.
    prices: Vec<KernelPriceRow>,
    /// Largest allowed time per price, which holds for every kind of kernel.
    price_us_most: f64,
}

/// Time per price for one kind of kernel.
#[derive(Debug, Serialize)]
struct KernelPriceRow {
    kind: &'static str,
    price_us: f64,
}

/// Runs the measurements that need no traces and prints their results.
pub fn run(args: &BenchPredict, session: &Session) -> Result<(), Error> {
    let job = config::job(CONFIG, &[])?.config;
    let topology = Topology::parse(HARDWARE).map_err(KernelError::from)?;
    let models = Models::shipped()?;
    let ranks = topology.ranks() as u32;
    let plan = ShardingPlan::table_wise(&job.model.tables, ranks);
    let features = FeatureStats::uniform(&job.model, 1);
    let workload = predict::workload::Workload { config: &job, plan: &plan, features: &features };
    let conditions = Conditions::new(&topology, &models);
    let mut pricer = StepPricer::new(workload, conditions)?;
    let (mut whole, mut moved) = (Vec::new(), Vec::new());
    let tiles = plan.tiles().len();
    for turn in 0..args.repeats as usize {
        black_box(timed(&mut whole, || predict::step::price(workload, conditions))?);
        let begin = Instant::now();
        for at in 0..MOVES {
            // The factors 37 and 101 spread consecutive moves over ranks and tiles without a random
            // generator.
            let number = turn * MOVES + at;
            let to = Rank((number * 37 % ranks as usize) as u32);
            // Each table is one tile.
            let table = TableId((number * 101 % tiles) as u32);
            black_box(pricer.move_tile(table, 0, to));
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
        prices: prices(args)?,
        price_us_most: PRICE_US_MOST,
    };
    session.console.report(&report, table)
}

/// Measures the time per price. Each kernel differs from the others, so cached prices do not help.
fn prices(args: &BenchPredict) -> Result<Vec<KernelPriceRow>, Error> {
    let device = hardware(MEASURED).map_err(KernelError::from)?;
    let mut rows = Vec::new();
    for kind in Kind::ALL {
        let model = shipped::model(kind)?;
        let works = (0..WORKS).map(|number| work(kind, CounterRng::new(1, number)));
        let works: Vec<Work> = works.collect::<Result<_, _>>()?;
        let mut seconds = Vec::new();
        for _ in 0..args.repeats {
            timed(&mut seconds, || {
                for work in &works {
                    // `black_box` keeps the compiler from removing prices whose value is unused.
                    black_box(model.price(work, device));
                }
            });
        }
        rows.push(KernelPriceRow {
            kind: kind.name(),
            price_us: 1e6 * median(seconds) / WORKS as f64,
        });
    }
    Ok(rows)
}

/// Creates a kernel with random sizes that are typical of models.
fn work(kind: Kind, random: CounterRng) -> Result<Work, KernelError> {
    let size = |at: u64, most: u64| 1 + random.below(at, most);
    match kind {
        Kind::Linear => Work::new(kind, &[size(0, 8192), size(1, 4096), size(2, 4096)]),
        Kind::Bmm => Work::new(kind, &[size(0, 256), size(1, 1024), size(2, 1024), size(3, 1024)]),
        Kind::Conv => {
            let (batch, input, output) = (size(0, 64), size(1, 512), size(2, 512));
            Work::new(kind, &[batch, input, output, 3, 2 + size(3, 200), 1, 1])
        }
        Kind::LayerNorm | Kind::Softmax => Work::new(kind, &[size(0, 16_384), size(1, 4096)]),
        Kind::ElementWise => {
            let element = Element::ALL[random.below(1, Element::ALL.len() as u64) as usize];
            Work::element_wise(element, size(0, 1 << 26))
        }
    }
}

fn table(report: &MovesReport) -> String {
    let of = render::counted(report.tables as u64, "table");
    let price = |row: &KernelPriceRow| format!("{} {:.1} µs", row.kind, row.price_us);
    let kinds: Vec<String> = report.prices.iter().map(price).collect();
    let is_met = report.prices.iter().all(|row| row.price_us <= PRICE_US_MOST);
    let verdict = if is_met { "met" } else { "MISSED" };
    render::facts(&[
        ("whole step", format!("{:.2} ms, {of} on {} ranks", report.whole_ms, report.ranks)),
        ("move of a table", format!("{:.1} µs, {:.0} times as fast", report.move_us, report.ratio)),
        (
            "price of a kernel",
            format!("{}; at most {PRICE_US_MOST} µs: {verdict}", kinds.join(", ")),
        ),
    ])
}
