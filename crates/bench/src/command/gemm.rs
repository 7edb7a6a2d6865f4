//! `rowmill-bench gemm` compares the three matrix products of linear layers with multiply-adds in
//! registers.

mod layer;

use std::process::ExitCode;

use device::Cpu;
use schema::{GemmProduct, Precision};
use serde::Serialize;

use super::limit::{LimitBench, MeasuredLimits};
use super::operation::percent;
use super::turns::{self, Schedule, Turns};
use crate::args::{BenchGemm, GemmShape};
use bench::sample::Quality;
use bench::sample::{STOPPING, conclude};
use layer::Layer;
use setup::Session;
use setup::error::Error;
use setup::interrupt;
use setup::render;

const PRODUCTS: [GemmProduct; 3] =
    [GemmProduct::Forward, GemmProduct::BackwardInput, GemmProduct::BackwardWeight];
/// Size of the array for the memory limits in bytes. These limits do not bound products, so a small
/// array suffices.
const ROWS_BYTES: u64 = 64 << 20;
const ROW_BYTES: usize = 256;

/// Medians over the accepted samples of one run.
#[derive(Debug, Serialize)]
struct GemmReport {
    threads: usize,
    precision: Precision,
    shapes: Vec<LayerRow>,
    #[serde(flatten)]
    limits: MeasuredLimits,
    #[serde(flatten)]
    quality: Quality,
    interrupted: bool,
}

/// Rates of one layer: the product `Y[M, N] = X[M, K] Wᵀ` and both of its gradients.
#[derive(Debug, Serialize)]
struct LayerRow {
    m: usize,
    k: usize,
    n: usize,
    forward_gflop_per_s: f64,
    forward_pct_of_peak: f64,
    backward_input_gflop_per_s: f64,
    backward_input_pct_of_peak: f64,
    backward_weight_gflop_per_s: f64,
    backward_weight_pct_of_peak: f64,
}

/// Runs `rowmill-bench gemm` and prints its result.
pub fn run(args: &BenchGemm, session: &Session) -> Result<ExitCode, Error> {
    let stop = interrupt::stop_flag(STOPPING);
    let cpu = Cpu::new(session.threads);
    let layers = args.shape.iter().map(|shape| Layer::new(&cpu, shape, args.precision));
    let mut layers: Vec<Layer> = layers.collect::<Result<_, _>>()?;
    let mut limits = LimitBench::new(&cpu.pool, ROWS_BYTES, ROW_BYTES);
    let cases = PRODUCTS.len() * layers.len();
    let schedule = Schedule { cases, calls: args.calls, sampling: args.sampling };
    let turns =
        turns::measure_in_turns(&cpu, &mut limits, &schedule, session, &stop, &mut |cpu, case| {
            layers[case / PRODUCTS.len()].multiply(cpu, PRODUCTS[case % PRODUCTS.len()])
        })?;
    let limits = turns.limits();
    let peak = limits.peak_gflop_per_s(args.precision);
    let report = GemmReport {
        threads: cpu.pool.threads(),
        precision: args.precision,
        shapes: (0..).zip(&args.shape).map(|(at, shape)| row(&turns, peak, at, shape)).collect(),
        limits,
        quality: turns.quality(),
        interrupted: turns.interrupted,
    };
    conclude(session, &report.quality, report.interrupted, &report, table)
}

fn row(turns: &Turns<'_>, peak: f64, at: usize, shape: &GemmShape) -> LayerRow {
    let rate = |product: usize| turns.case(at * PRODUCTS.len() + product).gflop_per_s();
    let share = |rate: f64| percent(rate, peak);
    let [forward, input, weight] = [0, 1, 2].map(rate);
    LayerRow {
        m: shape.m,
        k: shape.k,
        n: shape.n,
        forward_gflop_per_s: forward,
        forward_pct_of_peak: share(forward),
        backward_input_gflop_per_s: input,
        backward_input_pct_of_peak: share(input),
        backward_weight_gflop_per_s: weight,
        backward_weight_pct_of_peak: share(weight),
    }
}

fn table(report: &GemmReport) -> String {
    let header = ["M", "K", "N", "Y = X Wᵀ", "%", "dX = dY W", "%", "dW = dYᵀ X", "%"];
    let row = |row: &LayerRow| {
        let mut cells = vec![row.m.to_string(), row.k.to_string(), row.n.to_string()];
        for (rate, share) in [
            (row.forward_gflop_per_s, row.forward_pct_of_peak),
            (row.backward_input_gflop_per_s, row.backward_input_pct_of_peak),
            (row.backward_weight_gflop_per_s, row.backward_weight_pct_of_peak),
        ] {
            cells.extend([format!("{rate:.1}"), format!("{share:.1}")]);
        }
        cells
    };
    let rows: Vec<_> = report.shapes.iter().map(row).collect();
    let mut facts = vec![
        (
            "GFLOP/s and % of the peak",
            format!("{} on {}", report.precision, render::counted(report.threads as u64, "thread")),
        ),
        ("limits here", report.limits.text()),
    ];
    facts.extend(report.quality.rows());
    format!("{}\n\n{}", render::facts(&facts), render::grid(&header, &rows))
}
