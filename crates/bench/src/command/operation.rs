//! Compares the operations of recorded steps with the limits of the machine, by operation and, for
//! matrix products, by shape.

use std::collections::BTreeMap;

use schema::{GemmProduct, Op, OpWork, Precision};
use serde::Serialize;
use trace::OpSpan;

use super::limit::MeasuredLimits;
use bench::sample::{Kept, median};
use bench::steps::BenchStep;
use setup::render;

/// Times and rates of all calls of one operation in a step.
#[derive(Clone, Debug, Serialize)]
pub struct OperationRow {
    pub op: &'static str,
    pub calls: usize,
    pub ms: f64,
    pub pct_of_step: f64,
    pub gflop: f64,
    pub gb: f64,
    pub gflop_per_s: f64,
    pub gb_per_s: f64,
    /// Name of the limit that bounds the operation: `fma`, `bf16`, `stream`, `gather` or
    /// `read_modify_write`.
    pub bound: &'static str,
    /// Time at the limit divided by the measured time, in percent. The percentage exceeds 100 if
    /// caches serve data that the limit reads from memory.
    pub pct_of_roofline: f64,
}

/// Times and rates of one matrix product of a step.
#[derive(Clone, Debug, Serialize)]
pub struct GemmRow {
    pub product: &'static str,
    pub precision: Precision,
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub calls: usize,
    pub ms: f64,
    pub gflop_per_s: f64,
    pub pct_of_peak: f64,
}

/// The breakdown of a step by operation and by matrix product.
#[derive(Clone, Debug, Serialize)]
pub struct Breakdown {
    /// Median time of the recorded steps. The recording itself adds a little to this time.
    pub profiled_step_ms: f64,
    pub gemm_ms: f64,
    pub gemm_gflop_per_step: f64,
    pub gemm_gflop_per_s: f64,
    /// Time that all products would need at the measured peaks of their precisions, divided by
    /// their measured time.
    pub gemm_pct_of_peak: f64,
    /// Share of everything except matrix products, including the time between operations.
    pub rest_pct_of_step: f64,
    /// Share of the time between operations, which is part of `rest_pct_of_step`.
    pub between_ops_pct_of_step: f64,
    pub ops: Vec<OperationRow>,
    pub gemms: Vec<GemmRow>,
}

/// Total time and work of all calls of one kind in one step.
#[derive(Clone, Copy, Debug, Default)]
struct OperationTimes {
    calls: usize,
    seconds: f64,
    /// Shortest time in which the FLOPs could be computed at the peak rate.
    arithmetic_seconds: f64,
    work: OpWork,
}

impl Breakdown {
    /// Breaks down the accepted steps and compares their operations with `limits`.
    pub fn new(kept: &Kept<'_, BenchStep>, limits: &MeasuredLimits) -> Self {
        let gemm_ms = 1e3 * kept.median(|step| seconds(step, is_gemm));
        let gemm_gflop = kept.median(|step| {
            let gemms = step.spans.iter().filter(|span| is_gemm(span));
            gemms.map(|span| span.op.work().flops as f64 / 1e9).sum()
        });
        let gemm_peak_ms = kept.median(|step| {
            let gemms = step.spans.iter().filter(|span| is_gemm(span));
            gemms.map(|span| 1e3 * arithmetic_seconds(&span.op, limits)).sum()
        });
        let rate = per_second(gemm_gflop, gemm_ms);
        let share = |part: &dyn Fn(&OpSpan) -> bool| {
            100.0 - kept.median(|step| 100.0 * seconds(step, part) / step.seconds)
        };
        Self {
            profiled_step_ms: kept.median(|step| 1e3 * step.seconds),
            gemm_ms,
            gemm_gflop_per_step: gemm_gflop,
            gemm_gflop_per_s: rate,
            gemm_pct_of_peak: percent(gemm_peak_ms, gemm_ms),
            rest_pct_of_step: share(&is_gemm),
            between_ops_pct_of_step: share(&|_| true),
            ops: rows(kept, limits),
            gemms: gemm_rows(kept, limits),
        }
    }
}

/// The two limits that bound an operation, with their names.
struct Roof {
    peak: f64,
    arithmetic: &'static str,
    bandwidth: f64,
    memory: &'static str,
}

/// Returns the limits that bound `op`: the arithmetic peak, and the bandwidth of its kind of memory
/// access.
fn roof(op: &Op, limits: &MeasuredLimits) -> Roof {
    let (precision, arithmetic) = match op {
        Op::Gemm { precision: Precision::Bf16, .. } if limits.bf16_peak_gflop_per_s.is_some() => {
            (Precision::Bf16, "bf16")
        }
        _ => (Precision::F32, "fma"),
    };
    let (bandwidth, memory) = match op {
        // Lookups and row updates access random rows. All other operations read arrays
        // sequentially.
        Op::EmbeddingForward { .. } => (limits.gather_limit_gb_per_s, "gather"),
        Op::EmbeddingBackward { .. } => {
            (limits.read_modify_write_limit_gb_per_s, "read_modify_write")
        }
        _ => (limits.stream_limit_gb_per_s, "stream"),
    };
    Roof { peak: limits.peak_gflop_per_s(precision), arithmetic, bandwidth, memory }
}

/// Returns the shortest time in which the FLOPs of `op` could be computed at the peak rate.
fn arithmetic_seconds(op: &Op, limits: &MeasuredLimits) -> f64 {
    op.work().flops as f64 / 1e9 / roof(op, limits).peak
}

fn rows(kept: &Kept<'_, BenchStep>, limits: &MeasuredLimits) -> Vec<OperationRow> {
    let by_name = |span: &OpSpan| Some((span.op.name(), span.op));
    let step_ms = kept.median(|step| 1e3 * step.seconds);
    let mut rows: Vec<OperationRow> = grouped(kept, limits, by_name)
        .into_iter()
        .map(|(name, (op, taken))| {
            let Roof { arithmetic, bandwidth, memory, .. } = roof(&op, limits);
            let ms = 1e3 * taken.seconds;
            let (gflop, gb) = (taken.work.flops as f64 / 1e9, taken.work.bytes as f64 / 1e9);
            let arithmetic_ms = 1e3 * taken.arithmetic_seconds;
            let memory_ms = 1e3 * gb / bandwidth;
            OperationRow {
                op: name,
                calls: taken.calls,
                ms,
                pct_of_step: percent(ms, step_ms),
                gflop,
                gb,
                gflop_per_s: per_second(gflop, ms),
                gb_per_s: per_second(gb, ms),
                // Arithmetic and memory accesses overlap, so the longer of the two times is the
                // bound.
                bound: if arithmetic_ms > memory_ms { arithmetic } else { memory },
                pct_of_roofline: percent(arithmetic_ms.max(memory_ms), ms),
            }
        })
        .collect();
    rows.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    rows
}

fn gemm_rows(kept: &Kept<'_, BenchStep>, limits: &MeasuredLimits) -> Vec<GemmRow> {
    let by_shape = |span: &OpSpan| match span.op {
        Op::Gemm { product, precision, m, n, k } => {
            Some(((m, k, n, product_name(product), precision.to_string()), span.op))
        }
        _ => None,
    };
    let row = |(_, (op, taken)): (_, (Op, OperationTimes))| {
        let Op::Gemm { product, precision, m, n, k } = op else { return None };
        let ms = 1e3 * taken.seconds;
        let rate = per_second(taken.work.flops as f64 / 1e9, ms);
        let (pct_of_peak, product) = (percent(rate, roof(&op, limits).peak), product_name(product));
        let calls = taken.calls;
        Some(GemmRow { product, precision, m, k, n, calls, ms, gflop_per_s: rate, pct_of_peak })
    };
    let mut rows: Vec<GemmRow> =
        grouped(kept, limits, by_shape).into_iter().filter_map(row).collect();
    rows.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    rows
}

/// Groups calls by key. Each group holds the operation with the most FLOPs, and the median number
/// of calls, time and work per step.
fn grouped<K: Ord>(
    kept: &Kept<'_, BenchStep>,
    limits: &MeasuredLimits,
    key: impl Fn(&OpSpan) -> Option<(K, Op)>,
) -> BTreeMap<K, (Op, OperationTimes)> {
    let mut all: BTreeMap<K, (Op, Vec<OperationTimes>)> = BTreeMap::new();
    for (number, step) in kept.values().enumerate() {
        for span in &step.spans {
            let Some((key, op)) = key(span) else { continue };
            let (largest, steps) = all.entry(key).or_insert((op, Vec::new()));
            if op.work().flops > largest.work().flops {
                *largest = op;
            }
            // A step without a call of this kind counts as zero time, so that the median is over
            // all steps.
            steps.resize(number + 1, OperationTimes::default());
            let (taken, work) = (&mut steps[number], span.op.work());
            taken.calls += 1;
            taken.seconds += span_seconds(span);
            taken.arithmetic_seconds += arithmetic_seconds(&span.op, limits);
            taken.work.flops += work.flops;
            taken.work.bytes += work.bytes;
        }
    }
    let middle = |steps: Vec<OperationTimes>| {
        let middle =
            |figure: fn(&OperationTimes) -> f64| median(steps.iter().map(figure).collect());
        OperationTimes {
            calls: middle(|taken| taken.calls as f64) as usize,
            seconds: middle(|taken| taken.seconds),
            arithmetic_seconds: middle(|taken| taken.arithmetic_seconds),
            work: OpWork {
                flops: middle(|taken| taken.work.flops as f64) as u64,
                bytes: middle(|taken| taken.work.bytes as f64) as u64,
            },
        }
    };
    all.into_iter().map(|(key, (op, steps))| (key, (op, middle(steps)))).collect()
}

fn seconds(step: &BenchStep, part: impl Fn(&OpSpan) -> bool) -> f64 {
    step.spans.iter().filter(|span| part(span)).map(span_seconds).sum()
}

fn span_seconds(span: &OpSpan) -> f64 {
    (span.end.0 - span.start.0) as f64 / 1e9
}

fn is_gemm(span: &OpSpan) -> bool {
    matches!(span.op, Op::Gemm { .. })
}

fn product_name(product: GemmProduct) -> &'static str {
    match product {
        GemmProduct::Forward => "forward",
        GemmProduct::BackwardInput => "backward_input",
        GemmProduct::BackwardWeight => "backward_weight",
    }
}

/// Converts an amount and its duration in milliseconds to a rate per second. Returns 0 if the
/// duration is 0.
pub fn per_second(amount: f64, ms: f64) -> f64 {
    if ms > 0.0 { amount / ms * 1e3 } else { 0.0 }
}

/// Returns `part` as a percentage of `whole`, or 0 if `whole` is 0.
pub fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

/// Formats the operations of a step as a text table.
pub fn ops_grid(ops: &[OperationRow]) -> String {
    let header =
        ["operation", "calls", "ms", "% of step", "GFLOP/s", "GB/s", "% of roofline", "bound"];
    let row = |row: &OperationRow| {
        vec![
            row.op.to_owned(),
            row.calls.to_string(),
            format!("{:.3}", row.ms),
            format!("{:.1}", row.pct_of_step),
            format!("{:.1}", row.gflop_per_s),
            format!("{:.1}", row.gb_per_s),
            format!("{:.1}", row.pct_of_roofline),
            row.bound.to_owned(),
        ]
    };
    render::grid(&header, &ops.iter().map(row).collect::<Vec<_>>())
}

/// Formats the matrix products of a step as a text table.
pub fn gemms_grid(gemms: &[GemmRow]) -> String {
    let header = ["product", "of", "M", "K", "N", "calls", "ms", "GFLOP/s", "% of peak"];
    let row = |row: &GemmRow| {
        vec![
            row.product.to_owned(),
            row.precision.to_string(),
            row.m.to_string(),
            row.k.to_string(),
            row.n.to_string(),
            row.calls.to_string(),
            format!("{:.3}", row.ms),
            format!("{:.1}", row.gflop_per_s),
            format!("{:.1}", row.pct_of_peak),
        ]
    };
    render::grid(&header, &gemms.iter().map(row).collect::<Vec<_>>())
}
