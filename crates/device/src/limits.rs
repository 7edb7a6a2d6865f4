//! The limits of this machine, measured on demand: arithmetic, streaming, random rows, and the
//! apparent clock of its cores.
//!
//! Each measurement takes milliseconds on the threads of a pool, so it can be interleaved with
//! the work that it limits. The measurements do not depend on the operations; callers compare
//! them with their own figures.

mod arithmetic;
mod clock;
mod rows;

pub use arithmetic::{Arithmetic, gflop_per_s};
pub use clock::apparent_ghz;
pub use rows::RowSet;

#[cfg(test)]
mod tests {
    use super::{Arithmetic, RowSet, apparent_ghz, gflop_per_s};
    use crate::cpu::{Cpu, Isa};

    #[test]
    fn every_limit_is_a_positive_number() {
        let positive = |value: f64| assert!(value.is_finite() && value > 0.0, "{value}");
        for threads in [1, 3] {
            for isa in Isa::all() {
                let cpu = Cpu::with_isa(threads, isa);
                // The sizes cover rows that are not a multiple of a register, and fewer rows than
                // chunks.
                for (bytes, row_bytes) in [(1 << 20, 256), (1 << 16, 52), (40, 40)] {
                    let mut rows = RowSet::new(&cpu.pool, bytes, row_bytes);
                    positive(rows.stream_gb_per_s(&cpu));
                    positive(rows.gather_gb_per_s(&cpu));
                    positive(rows.read_modify_write_gb_per_s(&cpu));
                }
            }
            let cpu = Cpu::new(threads);
            let forms = Arithmetic::f32_forms().into_iter().chain(Arithmetic::bf16_form());
            forms.for_each(|form| positive(gflop_per_s(&cpu.pool, form)));
            positive(apparent_ghz(&cpu.pool));
        }
    }
}
