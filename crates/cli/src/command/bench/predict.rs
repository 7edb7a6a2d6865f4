//! `rowmill bench predict`: what a prediction takes beside reading the traces it rests on.
//!
//! On one thread; every kind takes turns, so that a noisy neighbour meets them all alike.

mod moves;

use std::hint::black_box;
use std::time::Instant;

use analyze::graph;
use predict::calibration::price::{Method, Prices};
use predict::edit::{self, Edit};
use predict::prediction::{self, Draws};
use predict::simulate;
use serde::Serialize;
use trace::open::{self, Request};

use super::sample::median;
use crate::args::BenchPredict;
use crate::command::predict::{Steps, calibrated, job, recordings, scopes};
use crate::error::Error;
use crate::render;
use crate::resolve::Session;

/// Draws of the measurement.
const DRAWS: u32 = 1_000;

/// Medians.
#[derive(Debug, Serialize)]
struct Report {
    ranks: usize,
    nodes: usize,
    read_ms: f64,
    calibrate_ms: f64,
    simulate_ms: f64,
    relax_ms: f64,
    /// One kernel changes, and what follows from it.
    edit_us: f64,
    /// The program is copied and changed, and simulated from the start.
    edit_anew_ms: f64,
    draws_ms: f64,
    /// Of reading.
    calibrate_ratio: f64,
    simulate_ratio: f64,
    relax_ratio: f64,
}

/// Seconds of each kind.
#[derive(Default)]
struct Taken {
    read: Vec<f64>,
    calibrate: Vec<f64>,
    simulate: Vec<f64>,
    relax: Vec<f64>,
    edit: Vec<f64>,
    edit_anew: Vec<f64>,
    draws: Vec<f64>,
}

/// Runs the command.
pub fn run(args: &BenchPredict, session: &Session) -> Result<(), Error> {
    if args.paths.is_empty() {
        return moves::run(args, session);
    }
    let mut taken = Taken::default();
    let mut size = (0, 0);
    for _ in 0..args.repeats {
        size = turn(args, session, &mut taken)?;
    }
    let (read, simulated) = (median(taken.read), median(taken.simulate));
    let (calibrated, relaxed) = (median(taken.calibrate), median(taken.relax));
    let report = Report {
        ranks: size.0,
        nodes: size.1,
        read_ms: 1e3 * read,
        calibrate_ms: 1e3 * calibrated,
        simulate_ms: 1e3 * simulated,
        relax_ms: 1e3 * relaxed,
        edit_us: 1e6 * median(taken.edit),
        edit_anew_ms: 1e3 * median(taken.edit_anew),
        draws_ms: 1e3 * median(taken.draws),
        calibrate_ratio: calibrated / read,
        simulate_ratio: simulated / read,
        relax_ratio: relaxed / read,
    };
    session.console.report(&report, table)
}

/// One measurement of everything; ranks and nodes.
fn turn(
    args: &BenchPredict,
    session: &Session,
    taken: &mut Taken,
) -> Result<(usize, usize), Error> {
    let request = Request { paths: args.paths.clone(), threads: 1 };
    black_box(timed(&mut taken.read, || open::read(&request))?);
    let traces = recordings(&args.paths, session)?;
    let scopes = scopes(&traces);
    let steps = Steps::of(&scopes)?;
    let (job, known) = timed(&mut taken.calibrate, || {
        let job = job(&scopes, session);
        let known = calibrated(&job, &steps, traces.len());
        (job, known)
    });
    let known = known?;
    let step = job.step(&steps.one(0))?;
    let setting = step.recorded.setting(&step.program);
    let prices = Prices::new(&known, Method::Full);
    let costs = prices.price(&step.program, &setting);
    let simulation = timed(&mut taken.simulate, || simulate::run(&step.program, &costs))?;
    let mut times = simulation.times.clone();
    timed(&mut taken.relax, || graph::relax_into(&simulation.graph, &mut times));
    // The kernel that takes longest, half as long.
    let rank = simulation_rank(&step.program);
    let works = 0..step.program.ranks[rank].works.len() as u32;
    let weight = |work: &u32| simulation.graph.node(simulation.work_node(rank, *work)).weight;
    if let Some(work) = works.max_by_key(weight) {
        let (mut changed, node) = (simulation.clone(), simulation.work_node(rank, work));
        timed(&mut taken.edit, || {
            changed.graph.set_node_weight(node, weight(&work) / 2);
            graph::relax_changed(&changed.graph, &mut changed.times, &[node]);
        });
        let kernels = step.program.text(step.program.ranks[rank].works[work as usize].name);
        let edit = Edit::Scale { kernels: kernels.to_owned(), factor: 0.5 };
        timed(&mut taken.edit_anew, || {
            let edited = edit::apply(&step.program, &[edit])?;
            simulate::run(&edited, &prices.price(&edited, &setting))
        })?;
    }
    let draws = |count| prediction::of(&step, &known, Draws { count, seed: 0 });
    timed(&mut taken.draws, || draws(DRAWS))?;
    Ok((traces.len(), simulation.graph.len()))
}

/// The rank with the most device work.
fn simulation_rank(program: &predict::program::Program) -> usize {
    let works = |rank: &usize| program.ranks[*rank].works.len();
    (0..program.ranks.len()).max_by_key(works).unwrap_or_default()
}

fn timed<T>(seconds: &mut Vec<f64>, run: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let value = run();
    seconds.push(begin.elapsed().as_secs_f64());
    value
}

fn table(report: &Report) -> String {
    let beside = |ms: f64, ratio: f64| format!("{ms:.2} ms, {ratio:.2} of reading");
    render::facts(&[
        (
            "read",
            format!("{:.2} ms, {}", report.read_ms, render::counted(report.ranks as u64, "rank")),
        ),
        ("calibrate", beside(report.calibrate_ms, report.calibrate_ratio)),
        ("simulate", beside(report.simulate_ms, report.simulate_ratio)),
        ("relax", beside(report.relax_ms, report.relax_ratio)),
        (
            "an edit",
            format!("{:.1} µs; from the start {:.2} ms", report.edit_us, report.edit_anew_ms),
        ),
        ("1,000 draws", format!("{:.0} ms", report.draws_ms)),
        ("nodes", render::count(report.nodes as u64)),
    ])
}
