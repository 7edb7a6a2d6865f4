//! The performance limits of this machine, measured in turns with the operations that they bound.

use std::collections::BTreeMap;

use device::limits::{Arithmetic, RowSet, gflop_per_s};
use device::{Cpu, Pool};
use schema::Precision;
use serde::Serialize;

use bench::sample::{BenchSample, Conditions, Judge, Watch};

/// Largest array on which the limits are measured, however large the tables are. This size is far
/// larger than the caches and the reach of the TLB.
const BYTES_MAX: u64 = 2 << 30;

/// The arrays on which the limits are measured, and the samples measured so far.
pub struct LimitBench {
    rows: RowSet,
    samples: BTreeMap<LimitKind, Vec<BenchSample<f64>>>,
}

/// A kind of machine limit that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LimitKind {
    Portable,
    Fma256,
    Fma512,
    Bf16,
    Stream,
    Gather,
    ReadModifyWrite,
}

/// Measured limits, in billions of floating-point operations or of bytes per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MeasuredLimits {
    /// Rate of the fastest form of f32 multiply-adds.
    pub fma_peak_gflop_per_s: f64,
    pub fma_256_gflop_per_s: Option<f64>,
    pub fma_512_gflop_per_s: Option<f64>,
    pub bf16_peak_gflop_per_s: Option<f64>,
    pub stream_limit_gb_per_s: f64,
    pub gather_limit_gb_per_s: f64,
    pub read_modify_write_limit_gb_per_s: f64,
}

impl LimitBench {
    /// Prepares measurements for tables of `bytes` bytes in total, whose rows have `row_bytes`
    /// bytes.
    pub fn new(pool: &Pool, bytes: u64, row_bytes: usize) -> Self {
        // The array is as large as the tables, because random access is faster in small arrays.
        let rows = RowSet::new(pool, bytes.min(BYTES_MAX) as usize, row_bytes);
        Self { rows, samples: BTreeMap::new() }
    }

    /// Measures each limit once more. Each limit is a separate sample, because short samples are
    /// disturbed less often.
    pub fn measure(&mut self, cpu: &Cpu) {
        let forms = Arithmetic::f32_forms().into_iter().chain(Arithmetic::bf16_form());
        for form in forms {
            let kind = match form {
                Arithmetic::Portable => LimitKind::Portable,
                Arithmetic::Fma256(_) => LimitKind::Fma256,
                Arithmetic::Fma512(_) => LimitKind::Fma512,
                Arithmetic::Bf16Pairs512(_) => LimitKind::Bf16,
            };
            self.sample(cpu, kind, |_| gflop_per_s(&cpu.pool, form));
        }
        self.sample(cpu, LimitKind::Stream, |rows| rows.stream_gb_per_s(cpu));
        self.sample(cpu, LimitKind::Gather, |rows| rows.gather_gb_per_s(cpu));
        self.sample(cpu, LimitKind::ReadModifyWrite, |rows| rows.read_modify_write_gb_per_s(cpu));
    }

    fn sample(&mut self, cpu: &Cpu, kind: LimitKind, measure: impl FnOnce(&mut RowSet) -> f64) {
        let watch = Watch::start(&cpu.pool);
        let value = measure(&mut self.rows);
        let sample = watch.sample(&cpu.pool, |_| value);
        self.samples.entry(kind).or_default().push(sample);
    }

    /// Returns the conditions of all samples.
    pub fn conditions(&self) -> impl Iterator<Item = &Conditions> {
        self.samples.values().flatten().map(|sample| &sample.conditions)
    }

    /// Returns whether every kind of limit has enough undisturbed samples.
    pub fn are_trusted(&self, judge: &Judge) -> bool {
        self.samples.values().all(|samples| judge.kept(samples).is_trusted)
    }

    /// Returns the median of each limit.
    pub fn medians(&self, judge: &Judge) -> MeasuredLimits {
        // A form of arithmetic that this machine does not support has no samples, so its limit is
        // absent.
        let some = |kind| Some(judge.kept(self.samples.get(&kind)?).median(|rate| *rate));
        let forms = [LimitKind::Portable, LimitKind::Fma256, LimitKind::Fma512];
        MeasuredLimits {
            fma_peak_gflop_per_s: forms.into_iter().filter_map(some).fold(0.0, f64::max),
            fma_256_gflop_per_s: some(LimitKind::Fma256),
            fma_512_gflop_per_s: some(LimitKind::Fma512),
            bf16_peak_gflop_per_s: some(LimitKind::Bf16),
            stream_limit_gb_per_s: some(LimitKind::Stream).unwrap_or_default(),
            gather_limit_gb_per_s: some(LimitKind::Gather).unwrap_or_default(),
            read_modify_write_limit_gb_per_s: some(LimitKind::ReadModifyWrite).unwrap_or_default(),
        }
    }
}

impl MeasuredLimits {
    /// Returns the peak rate that bounds products in `precision`. On CPUs without an instruction
    /// for pairs of bf16, this rate is the f32 peak.
    pub fn peak_gflop_per_s(&self, precision: Precision) -> f64 {
        match precision {
            Precision::F32 => self.fma_peak_gflop_per_s,
            Precision::Bf16 => self.bf16_peak_gflop_per_s.unwrap_or(self.fma_peak_gflop_per_s),
        }
    }

    /// Returns the name of the peak for `precision` in tables.
    pub fn peak_name(&self, precision: Precision) -> &'static str {
        match precision {
            Precision::Bf16 if self.bf16_peak_gflop_per_s.is_some() => "bf16",
            _ => "FMA",
        }
    }

    /// Formats the measured limits as one line.
    pub fn text(&self) -> String {
        let bf16 = self.bf16_peak_gflop_per_s.map(|rate| format!(", bf16 {rate:.0}"));
        format!(
            "FMA {:.0} GFLOP/s{}; stream {:.1}, gather {:.1}, read-modify-write {:.1} GB/s",
            self.fma_peak_gflop_per_s,
            bf16.unwrap_or_default(),
            self.stream_limit_gb_per_s,
            self.gather_limit_gb_per_s,
            self.read_modify_write_limit_gb_per_s
        )
    }
}
