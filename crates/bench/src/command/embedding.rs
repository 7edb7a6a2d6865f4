//! `rowmill-bench embedding` compares pooled lookups and fused row updates with plain random
//! access.

use std::process::ExitCode;

use device::Cpu;
use schema::{DataType, IdLaw, IndexDistribution, Optimizer};
use serde::Serialize;

use super::limit::{LimitBench, MeasuredLimits};
use super::operation::{per_second, percent};
use super::turns::{self, Schedule, Turns};
use crate::args::BenchEmbedding;
use bench::batches::{self, Made};
use bench::sample::{Quality, median};
use bench::sample::{STOPPING, conclude};
use bench::tables::{self, BenchTables};
use kernel_model::cpu::EqualTables;
use setup::Session;
use setup::error::Error;
use setup::interrupt;
use setup::render;
use setup::synthetic::Laws;

/// Number of calls over which the median overhead per table is taken.
const OVERHEAD_CALLS: usize = 51;
/// Largest number of rows of a table when only the overhead is measured.
const OVERHEAD_ROWS: u64 = 1000;

/// Medians over the accepted samples of one run.
#[derive(Debug, Serialize)]
struct EmbeddingReport {
    tables: usize,
    rows: u64,
    dim: usize,
    pooling: usize,
    batch_size: usize,
    threads: usize,
    data_type: DataType,
    optimizer: Optimizer,
    distribution: IdLaw,
    forward_ms: f64,
    forward_gb_per_s: f64,
    forward_rows_per_s: f64,
    forward_pct_of_gather_limit: f64,
    backward_ms: f64,
    backward_gb_per_s: f64,
    backward_rows_per_s: f64,
    backward_pct_of_read_modify_write_limit: f64,
    per_table_overhead_ns: f64,
    per_table_overhead_backward_ns: f64,
    #[serde(flatten)]
    limits: MeasuredLimits,
    #[serde(flatten)]
    quality: Quality,
    interrupted: bool,
}

/// Runs `rowmill-bench embedding` and prints its result.
pub fn run(args: &BenchEmbedding, session: &Session) -> Result<ExitCode, Error> {
    let law = Laws::default().distribution(&args.distribution)?;
    let shape = shape(args, law);
    tables::check_memory(&shape)?;
    let stop = interrupt::stop_flag(STOPPING);
    session.console.say(format_args!(
        "building {} with batches",
        render::counted(args.tables as u64, "table")
    ));
    let cpu = Cpu::new(session.threads);
    let batches = batches::make(&cpu.pool, &made(args, law));
    let mut tables = BenchTables::new(&cpu, &shape);
    let mut limits = LimitBench::new(&cpu.pool, tables.bytes(), tables.row_bytes());
    let schedule = Schedule { cases: 2, calls: args.calls, sampling: args.sampling };
    let mut called = 0;
    let turns =
        turns::measure_in_turns(&cpu, &mut limits, &schedule, session, &stop, &mut |cpu, case| {
            // Forward and backward calls alternate. The backward pass updates the rows that the
            // preceding forward pass looked up.
            let jagged = &batches[called / 2 % batches.len()].sparse;
            called += 1;
            if case == 0 { tables.forward(cpu, jagged) } else { tables.backward(cpu, jagged) }
        })?;
    // The overhead is measured on separate tables, so the large ones are freed first.
    drop(tables);
    let overhead = overhead(&cpu, args)?;
    let report = report(&turns, args, &cpu, overhead);
    conclude(session, &report.quality, report.interrupted, &report, table)
}

fn shape(args: &BenchEmbedding, ids: IndexDistribution) -> EqualTables {
    EqualTables {
        count: args.tables,
        rows: args.rows,
        dim: args.dim,
        pooling: args.pooling,
        batch_size: args.batch_size,
        data_type: args.data_type,
        optimizer: args.optimizer,
        ids,
    }
}

fn made(args: &BenchEmbedding, law: IndexDistribution) -> Made {
    Made {
        rows: vec![args.rows; args.tables],
        lengths: vec![args.pooling; args.tables],
        dense_features: 0,
        batch_size: args.batch_size,
        distributions: vec![law; args.tables],
    }
}

/// Measures the overhead per table of a forward and a backward pass, in nanoseconds. The
/// measurement compares a bag of one id in each table with as many bags in a single table.
fn overhead(cpu: &Cpu, args: &BenchEmbedding) -> Result<[f64; 2], Error> {
    // Small tables stay in the caches, so the cost of a call is measured rather than the memory.
    let rows = args.rows.min(OVERHEAD_ROWS);
    let time_tables = |tables: usize, samples: usize| -> Result<[f64; 2], Error> {
        let args = BenchEmbedding { tables, ..args.clone() };
        let made = Made {
            rows: vec![rows; tables],
            lengths: vec![1; tables],
            batch_size: samples,
            ..made(&args, IndexDistribution::Uniform)
        };
        let jagged = batches::make_one(&made, 0).sparse;
        let shape = EqualTables { rows, ..shape(&args, IndexDistribution::Uniform) };
        let mut tables = BenchTables::new(cpu, &shape);
        let mut call_seconds = [Vec::new(), Vec::new()];
        for _ in 0..OVERHEAD_CALLS {
            for (pass, call_seconds) in call_seconds.iter_mut().enumerate() {
                let start = std::time::Instant::now();
                if pass == 0 {
                    tables.forward(cpu, &jagged)?;
                } else {
                    tables.backward(cpu, &jagged)?;
                }
                call_seconds.push(start.elapsed().as_nanos() as f64);
            }
        }
        Ok(call_seconds.map(median))
    };
    // The two calls of `time_tables` look up the same number of ids. The calls differ only in the
    // number of tables, so the difference of their times is the overhead of the tables.
    let (many, one) = (time_tables(args.tables, 1)?, time_tables(1, args.tables)?);
    // Noise may make the difference negative, which is reported as 0.
    Ok([0, 1].map(|pass| ((many[pass] - one[pass]) / args.tables as f64).max(0.0)))
}

fn report(
    turns: &Turns<'_>,
    args: &BenchEmbedding,
    cpu: &Cpu,
    overhead: [f64; 2],
) -> EmbeddingReport {
    let (forward, backward) = (turns.case(0), turns.case(1));
    let limits = turns.limits();
    let ids = (args.tables * args.batch_size * args.pooling) as f64;
    EmbeddingReport {
        tables: args.tables,
        rows: args.rows,
        dim: args.dim,
        pooling: args.pooling,
        batch_size: args.batch_size,
        threads: cpu.pool.threads(),
        data_type: args.data_type,
        optimizer: args.optimizer,
        distribution: args.distribution.clone(),
        forward_ms: forward.ms(),
        forward_gb_per_s: forward.gb_per_s(),
        forward_rows_per_s: per_second(ids, forward.ms()),
        forward_pct_of_gather_limit: percent(forward.gb_per_s(), limits.gather_limit_gb_per_s),
        backward_ms: backward.ms(),
        backward_gb_per_s: backward.gb_per_s(),
        backward_rows_per_s: per_second(ids, backward.ms()),
        backward_pct_of_read_modify_write_limit: percent(
            backward.gb_per_s(),
            limits.read_modify_write_limit_gb_per_s,
        ),
        per_table_overhead_ns: overhead[0],
        per_table_overhead_backward_ns: overhead[1],
        limits,
        quality: turns.quality(),
        interrupted: turns.interrupted,
    }
}

fn table(report: &EmbeddingReport) -> String {
    let pass = |ms: f64, gb: f64, rows: f64, share: f64, limit: &str| {
        format!(
            "{gb:.2} GB/s of useful bytes, {share:.1} % of {limit}; {:.1} M rows/s; {ms:.3} ms",
            rows / 1e6
        )
    };
    let mut facts = vec![
        (
            "tables",
            format!(
                "{} of {} × {}, B = {}, {} per bag, {}",
                report.tables,
                render::count(report.rows),
                report.dim,
                report.batch_size,
                render::counted(report.pooling as u64, "id"),
                render::counted(report.threads as u64, "thread")
            ),
        ),
        (
            "forward",
            pass(
                report.forward_ms,
                report.forward_gb_per_s,
                report.forward_rows_per_s,
                report.forward_pct_of_gather_limit,
                "the gather limit",
            ),
        ),
        (
            "backward and update",
            pass(
                report.backward_ms,
                report.backward_gb_per_s,
                report.backward_rows_per_s,
                report.backward_pct_of_read_modify_write_limit,
                "the read-modify-write limit",
            ),
        ),
        (
            "overhead per table",
            format!(
                "{:.0} ns forward, {:.0} ns backward",
                report.per_table_overhead_ns, report.per_table_overhead_backward_ns
            ),
        ),
        ("limits here", report.limits.text()),
    ];
    facts.extend(report.quality.rows());
    render::facts(&facts)
}
