//! The limits of this machine, measured in turns with what they bound.

use device::limits::{Arithmetic, RowSet, gflop_per_s};
use device::{Cpu, Pool};
use serde::Serialize;

use super::sample::{Kept, Sample, Watch};

/// The rows of the limits take no more than this, however large the tables are: far beyond every
/// cache, and beyond what the translation caches hold.
const BYTES_MAX: u64 = 2 << 30;

/// What the limits are measured with.
pub struct Limits {
    rows: RowSet,
}

/// Measured limits: billions of floating-point operations or of bytes per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Measured {
    /// The better of the forms of f32 multiply-adds.
    pub fma_peak_gflop_per_s: f64,
    pub fma_256_gflop_per_s: Option<f64>,
    pub fma_512_gflop_per_s: Option<f64>,
    pub bf16_peak_gflop_per_s: Option<f64>,
    pub stream_limit_gb_per_s: f64,
    pub gather_limit_gb_per_s: f64,
    pub read_modify_write_limit_gb_per_s: f64,
}

impl Limits {
    /// For tables of `bytes` in all, with rows of `row_bytes`.
    pub fn new(pool: &Pool, bytes: u64, row_bytes: usize) -> Self {
        Self { rows: RowSet::new(pool, bytes.min(BYTES_MAX) as usize, row_bytes) }
    }

    /// Measures each once.
    pub fn measure(&mut self, cpu: &Cpu) -> Sample<Measured> {
        let watch = Watch::start(&cpu.pool);
        let forms: Vec<(Arithmetic, f64)> = Arithmetic::f32_forms()
            .into_iter()
            .map(|form| (form, gflop_per_s(&cpu.pool, form)))
            .collect();
        let of = |wanted: fn(&Arithmetic) -> bool| {
            forms.iter().find(|(form, _)| wanted(form)).map(|(_, rate)| *rate)
        };
        let measured = Measured {
            fma_peak_gflop_per_s: forms.iter().map(|(_, rate)| *rate).fold(0.0, f64::max),
            fma_256_gflop_per_s: of(|form| matches!(form, Arithmetic::Fma256(_))),
            fma_512_gflop_per_s: of(|form| matches!(form, Arithmetic::Fma512(_))),
            bf16_peak_gflop_per_s: Arithmetic::bf16_form().map(|form| gflop_per_s(&cpu.pool, form)),
            stream_limit_gb_per_s: self.rows.stream_gb_per_s(cpu),
            gather_limit_gb_per_s: self.rows.gather_gb_per_s(cpu),
            read_modify_write_limit_gb_per_s: self.rows.read_modify_write_gb_per_s(cpu),
        };
        watch.sample(&cpu.pool, |_| measured)
    }
}

impl Measured {
    /// The median of each limit.
    pub fn median(kept: &Kept<'_, Self>) -> Self {
        let some = |figure: fn(&Self) -> Option<f64>| {
            Some(kept.median(|limits| figure(limits).unwrap_or(f64::NAN))).filter(|v| v.is_finite())
        };
        Self {
            fma_peak_gflop_per_s: kept.median(|limits| limits.fma_peak_gflop_per_s),
            fma_256_gflop_per_s: some(|limits| limits.fma_256_gflop_per_s),
            fma_512_gflop_per_s: some(|limits| limits.fma_512_gflop_per_s),
            bf16_peak_gflop_per_s: some(|limits| limits.bf16_peak_gflop_per_s),
            stream_limit_gb_per_s: kept.median(|limits| limits.stream_limit_gb_per_s),
            gather_limit_gb_per_s: kept.median(|limits| limits.gather_limit_gb_per_s),
            read_modify_write_limit_gb_per_s: kept
                .median(|limits| limits.read_modify_write_limit_gb_per_s),
        }
    }

    /// For people.
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
