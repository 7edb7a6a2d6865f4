//! `rowmill-bench predict` measures the time of predictions relative to the time of reading the
//! traces on which they are based.
//!
//! Everything runs on one thread. The kinds of measurement take turns, so that disturbances by
//! other programs affect all of them equally.

mod moves;

use std::hint::black_box;
use std::time::Instant;

use analyze::graph;
use predict::calibration::price::Prices;
use predict::edit::{self, Edit};
use predict::prediction::{self, Draws};
use predict::{finding_savings, simulate};
use serde::Serialize;
use trace::open::{self, ReadRequest};

use crate::args::BenchPredict;
use bench::sample::{median, timed};
use setup::Session;
use setup::error::Error;
use setup::findings::{is_inside, with_savings};
use setup::recorded_steps::{Steps, calibrate_steps, open_recordings, prepare_job, whole_scopes};
use setup::render;

/// Number of random draws whose time is measured.
const DRAWS: u32 = 1_000;

/// Median times, with the limits that they must not exceed.
#[derive(Debug, Serialize)]
struct PredictReport {
    ranks: usize,
    nodes: usize,
    /// Number of findings with a saving. Only some of these findings have a counterpart in a
    /// program.
    findings: usize,
    findings_repriced: usize,
    read_ms: f64,
    calibrate_ms: f64,
    /// Time to build a program from a step of the traces, price it and simulate it.
    build_ms: f64,
    /// Time of the simulation alone, which builds and solves the dependency graph.
    simulate_ms: f64,
    relax_ms: f64,
    /// Time to change one kernel and recompute only the times that it affects.
    edit_us: f64,
    /// Time to copy the program, change it, and simulate it from the start.
    edit_anew_ms: f64,
    draws_ms: f64,
    /// Time to price all findings once, without detecting them.
    reprice_ms: f64,
    /// The limits with the measured times.
    bars: Vec<Bar>,
}

/// A limit for one kind of measurement, with the measured value.
#[derive(Debug, Serialize)]
struct Bar {
    what: &'static str,
    took: f64,
    at_most: f64,
    /// Unit of `took` and `at_most`. The unit `reading` is the time to read the traces.
    unit: &'static str,
    is_met: bool,
}

/// Numbers of ranks, nodes and findings of the predicted program.
#[derive(Clone, Copy, Default)]
struct Size {
    ranks: usize,
    nodes: usize,
    findings: usize,
    repriced: usize,
}

/// Measured seconds of each kind, one entry per turn.
#[derive(Default)]
struct PredictTimes {
    read: Vec<f64>,
    calibrate: Vec<f64>,
    build: Vec<f64>,
    simulate: Vec<f64>,
    relax: Vec<f64>,
    edit: Vec<f64>,
    edit_anew: Vec<f64>,
    draws: Vec<f64>,
    reprice: Vec<f64>,
}

/// Runs `rowmill-bench predict` and prints its result.
pub fn run(args: &BenchPredict, session: &Session) -> Result<(), Error> {
    if args.paths.is_empty() {
        return moves::run(args, session);
    }
    let mut times = PredictTimes::default();
    let mut size = Size::default();
    for _ in 0..args.repeats {
        size = turn(args, session, &mut times)?;
    }
    session.console.report(&report(times, size), table)
}

fn report(taken: PredictTimes, size: Size) -> PredictReport {
    let ms = |seconds: Vec<f64>| 1e3 * median(seconds);
    let mut report = PredictReport {
        ranks: size.ranks,
        nodes: size.nodes,
        findings: size.findings,
        findings_repriced: size.repriced,
        read_ms: ms(taken.read),
        calibrate_ms: ms(taken.calibrate),
        build_ms: ms(taken.build),
        simulate_ms: ms(taken.simulate),
        relax_ms: ms(taken.relax),
        edit_us: 1e6 * median(taken.edit),
        edit_anew_ms: ms(taken.edit_anew),
        draws_ms: ms(taken.draws),
        reprice_ms: ms(taken.reprice),
        bars: Vec::new(),
    };
    let bar =
        |what, took: f64, at_most, unit| Bar { what, took, at_most, unit, is_met: took <= at_most };
    let beside = |ms: f64| ms / report.read_ms;
    report.bars = vec![
        bar("calibrate", beside(report.calibrate_ms), 3.0, "reading"),
        bar("build and relax", beside(report.build_ms), 1.0, "reading"),
        bar("relax", beside(report.relax_ms), 0.1, "reading"),
        bar("an edit", report.edit_us, 100.0, "µs"),
        bar("1,000 draws", report.draws_ms, 1_000.0, "ms"),
        bar("findings repriced", report.reprice_ms, 100.0, "ms"),
    ];
    report
}

/// Takes one measurement of every kind.
fn turn(args: &BenchPredict, session: &Session, taken: &mut PredictTimes) -> Result<Size, Error> {
    let request = ReadRequest { paths: args.paths.clone(), threads: 1 };
    black_box(timed(&mut taken.read, || open::read(&request))?);
    let traces = open_recordings(&args.paths, session)?;
    let scopes = whole_scopes(&traces);
    let steps = Steps::find(&scopes)?;
    let (job, calibration) = timed(&mut taken.calibrate, || {
        let job = prepare_job(&scopes, session);
        let calibration = calibrate_steps(&job, &steps, traces.len());
        (job, calibration)
    });
    let calibration = calibration?;
    let begin = Instant::now();
    let step = job.step(&steps.spans_of_step(0))?;
    let setting = step.recorded.setting(&step.program);
    let prices = Prices::new(&calibration);
    let costs = prices.price(&step.program, &setting);
    let simulation = timed(&mut taken.simulate, || simulate::run(&step.program, &costs))?;
    taken.build.push(begin.elapsed().as_secs_f64());
    let mut times = simulation.times.clone();
    timed(&mut taken.relax, || graph::relax_into(&simulation.graph, &mut times));
    // The edit halves the duration of the longest kernel.
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
    let draws = |count| prediction::predict_step(&step, &calibration, Draws::new(count, 0));
    timed(&mut taken.draws, || draws(DRAWS))?;
    let mut findings = with_savings(&scopes)?;
    let spans = steps.spans_of_step(0);
    let repriced = timed(&mut taken.reprice, || {
        finding_savings::reprice_findings(
            &step,
            &simulation,
            is_inside(&scopes, &spans),
            &mut findings,
        )
    });
    let (ranks, nodes, findings) = (traces.len(), simulation.graph.len(), findings.len());
    Ok(Size { ranks, nodes, findings, repriced })
}

/// Returns the position of the rank with the most device work.
fn simulation_rank(program: &predict::program::Program) -> usize {
    let works = |rank: &usize| program.ranks[*rank].works.len();
    (0..program.ranks.len()).max_by_key(works).unwrap_or_default()
}

fn table(report: &PredictReport) -> String {
    let verdict = |what: &str| {
        let bar = report.bars.iter().find(|bar| bar.what == what);
        bar.map_or(String::new(), |bar| {
            let verdict = if bar.is_met { "met" } else { "MISSED" };
            match bar.unit {
                "reading" => {
                    format!("{:.3} of reading (at most {}: {verdict})", bar.took, bar.at_most)
                }
                unit => format!("at most {} {unit}: {verdict}", bar.at_most),
            }
        })
    };
    let ranks = render::counted(report.ranks as u64, "rank");
    render::facts(&[
        ("read", format!("{:.2} ms, {ranks}", report.read_ms)),
        ("calibrate", format!("{:.2} ms, {}", report.calibrate_ms, verdict("calibrate"))),
        (
            "build and relax",
            format!(
                "{:.2} ms, {}; the graph alone {:.2} ms",
                report.build_ms,
                verdict("build and relax"),
                report.simulate_ms
            ),
        ),
        ("relax", format!("{:.3} ms, {}", report.relax_ms, verdict("relax"))),
        (
            "an edit",
            format!(
                "{:.1} µs, {}; from the start {:.2} ms",
                report.edit_us,
                verdict("an edit"),
                report.edit_anew_ms
            ),
        ),
        ("1,000 draws", format!("{:.0} ms, {}", report.draws_ms, verdict("1,000 draws"))),
        (
            "findings repriced",
            format!(
                "{:.2} ms, {}; {} of {} have a price",
                report.reprice_ms,
                verdict("findings repriced"),
                report.findings_repriced,
                report.findings
            ),
        ),
        ("nodes", render::count(report.nodes as u64)),
    ])
}
