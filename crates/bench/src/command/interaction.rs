//! `rowmill-bench interaction` measures pairwise dot products and their gradients.

use std::process::ExitCode;

use device::Cpu;
use device::ops::gemm::panels;
use device::ops::interaction::{self, Shape};
use schema::random::CounterRng;
use schema::{Op, Pass, TriangleOrder};
use serde::Serialize;

use super::limit::{LimitBench, MeasuredLimits};
use super::turns::{self, CallMedians, Schedule};
use crate::args::BenchInteraction;
use bench::sample::Quality;
use bench::sample::{STOPPING, conclude};
use setup::Session;
use setup::error::Error;
use setup::interrupt;
use setup::render;

/// Size of the array for the stream limit in bytes. The limits of random access do not bound this
/// operation.
const ROWS_BYTES: u64 = 512 << 20;
const ROW_BYTES: usize = 256;

/// Medians over the accepted samples of one run.
#[derive(Debug, Serialize)]
struct InteractionReport {
    features: usize,
    dim: usize,
    batch_size: usize,
    threads: usize,
    forward_ms: f64,
    forward_gflop_per_s: f64,
    forward_gb_per_s: f64,
    forward_pct_of_roofline: f64,
    backward_ms: f64,
    backward_gflop_per_s: f64,
    backward_gb_per_s: f64,
    backward_pct_of_roofline: f64,
    #[serde(flatten)]
    limits: MeasuredLimits,
    #[serde(flatten)]
    quality: Quality,
    interrupted: bool,
}

/// Runs `rowmill-bench interaction` and prints its result.
pub fn run(args: &BenchInteraction, session: &Session) -> Result<ExitCode, Error> {
    let stop = interrupt::stop_flag(STOPPING);
    let cpu = Cpu::new(session.threads);
    let mut vectors = Vectors::new(args);
    let mut limits = LimitBench::new(&cpu.pool, ROWS_BYTES, ROW_BYTES);
    let schedule = Schedule { cases: 2, calls: args.calls, sampling: args.sampling };
    let turns =
        turns::measure_in_turns(&cpu, &mut limits, &schedule, session, &stop, &mut |cpu, case| {
            if case == 0 { vectors.forward(cpu) } else { vectors.backward(cpu) }
        })?;
    let (forward, backward, limits) = (turns.case(0), turns.case(1), turns.limits());
    let roofline = |figures: &CallMedians<'_>| {
        figures.pct_of_roofline(limits.fma_peak_gflop_per_s, limits.stream_limit_gb_per_s)
    };
    let report = InteractionReport {
        features: args.features,
        dim: args.dim,
        batch_size: args.batch_size,
        threads: cpu.pool.threads(),
        forward_ms: forward.ms(),
        forward_gflop_per_s: forward.gflop_per_s(),
        forward_gb_per_s: forward.gb_per_s(),
        forward_pct_of_roofline: roofline(&forward),
        backward_ms: backward.ms(),
        backward_gflop_per_s: backward.gflop_per_s(),
        backward_gb_per_s: backward.gb_per_s(),
        backward_pct_of_roofline: roofline(&backward),
        limits,
        quality: turns.quality(),
        interrupted: turns.interrupted,
    };
    conclude(session, &report.quality, report.interrupted, &report, table)
}

/// A batch of vectors, their products, and the gradients of both.
struct Vectors {
    shape: Shape,
    dense: Vec<f32>,
    pooled: Vec<f32>,
    out: Vec<f32>,
    d_dense: Vec<f32>,
    d_pooled: Vec<f32>,
}

impl Vectors {
    fn new(args: &BenchInteraction) -> Self {
        let (b, features, dim) = (args.batch_size, args.features, args.dim);
        let order = TriangleOrder::Lower;
        let shape = Shape { b, features, dense: true, dim, order, itself: false };
        let draw = |stream: u64, count: usize| -> Vec<f32> {
            let rng = CounterRng::new(stream, 0);
            (0..count as u64).map(|counter| rng.unit(counter) as f32 - 0.5).collect()
        };
        let (dense_len, pooled_len) = (panels::len(b, dim), b * shape.pooled_width());
        Self {
            shape,
            dense: draw(1, dense_len),
            pooled: draw(2, pooled_len),
            out: vec![0.0; panels::len(b, shape.width())],
            d_dense: vec![0.0; dense_len],
            d_pooled: vec![0.0; pooled_len],
        }
    }

    fn op(&self, pass: Pass) -> Op {
        let Shape { b, dim, .. } = self.shape;
        Op::Interaction { batch_size: b, vectors: self.shape.vectors(), dim, pass }
    }

    fn forward(&mut self, cpu: &Cpu) -> Result<Op, Error> {
        let Self { shape, dense, pooled, out, .. } = self;
        interaction::forward(cpu, interaction::Forward { shape: *shape, dense, pooled, out })?;
        Ok(self.op(Pass::Forward))
    }

    /// Computes the gradients of the interaction's inputs. The output of the forward pass serves as
    /// its own gradient, because its values do not affect the time.
    fn backward(&mut self, cpu: &Cpu) -> Result<Op, Error> {
        let Self { shape, dense, pooled, out, d_dense, d_pooled } = self;
        let shape = *shape;
        let arguments =
            interaction::Backward { shape, dense, pooled, d_out: out, d_dense, d_pooled };
        interaction::backward(cpu, arguments)?;
        Ok(self.op(Pass::Backward))
    }
}

fn table(report: &InteractionReport) -> String {
    let pass = |ms: f64, gflop: f64, gb: f64, share: f64| {
        format!("{ms:.3} ms, {gflop:.1} GFLOP/s, {gb:.1} GB/s, {share:.1} % of the roofline")
    };
    let mut facts = vec![
        (
            "vectors",
            format!(
                "{} and 1 of {}, B = {}, {}",
                report.features,
                report.dim,
                report.batch_size,
                render::counted(report.threads as u64, "thread")
            ),
        ),
        (
            "forward",
            pass(
                report.forward_ms,
                report.forward_gflop_per_s,
                report.forward_gb_per_s,
                report.forward_pct_of_roofline,
            ),
        ),
        (
            "backward",
            pass(
                report.backward_ms,
                report.backward_gflop_per_s,
                report.backward_gb_per_s,
                report.backward_pct_of_roofline,
            ),
        ),
        ("limits here", report.limits.text()),
    ];
    facts.extend(report.quality.rows());
    render::facts(&facts)
}
