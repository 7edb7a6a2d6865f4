//! Measures the arithmetic limit of a pool's threads with multiply-adds that access no memory.
//!
//! ```text
//! on each thread, again and again:
//!     for each of 12 registers: sum = sum · factor + term             (1)
//! ```
//! 1. A multiply-add takes 4 cycles and two can start per cycle, so 8 in flight keep the units
//!    busy. 12 leave room for cores with a longer latency and fit the 16 registers of AVX2.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "calls vector instructions"))]

use std::hint::black_box;
use std::time::Instant;

use crate::cpu::{Avx2, Avx512, Avx512Bf16, Pool};

/// Number of independent accumulators, each in its own register.
const REGISTERS: usize = 12;
/// Multiply-adds per accumulator in one chunk, which take about half a millisecond.
const ROUNDS: usize = 200_000;
/// Number of chunks per thread. With many chunks, threads that share a core with others end at
/// the same time as the rest.
const CHUNKS: usize = 16;
/// Number of lanes of the portable form.
const LANES: usize = 4;

/// A form of the multiply-add, which differs in its instruction set and number format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Multiplies and adds f32 in separate instructions, on any machine.
    Portable,
    /// Fused multiply-add of f32 in 8 lanes.
    Fma256(Avx2),
    /// Fused multiply-add of f32 in 16 lanes.
    Fma512(Avx512),
    /// Multiplies pairs of bf16 and adds them to f32 sums, in 16 lanes.
    Bf16Pairs512(Avx512Bf16),
}

impl Arithmetic {
    /// Returns the f32 forms of this machine: all fused forms, or the portable one if there is no
    /// fused one.
    #[must_use]
    pub fn f32_forms() -> Vec<Self> {
        let fused = [Avx2::new().map(Self::Fma256), Avx512::new().map(Self::Fma512)];
        let fused: Vec<_> = fused.into_iter().flatten().collect();
        if fused.is_empty() { vec![Self::Portable] } else { fused }
    }

    /// Returns the bf16 form, if the machine supports it.
    #[must_use]
    pub fn bf16_form() -> Option<Self> {
        Avx512::new().and_then(Avx512::bf16).map(Self::Bf16Pairs512)
    }

    /// Returns the number of FLOPs in one multiply-add of a register.
    fn flops(self) -> usize {
        match self {
            Self::Portable => 2 * LANES,
            Self::Fma256(_) => 2 * 8,
            Self::Fma512(_) => 2 * 16,
            Self::Bf16Pairs512(_) => 2 * 2 * 16,
        }
    }

    fn chunk(self) -> f32 {
        match self {
            Self::Portable => portable(),
            #[cfg(target_arch = "x86_64")]
            Self::Fma256(token) => x86::fma256(token),
            #[cfg(target_arch = "x86_64")]
            Self::Fma512(token) => x86::fma512(token),
            #[cfg(target_arch = "x86_64")]
            Self::Bf16Pairs512(token) => x86::bf16_pairs512(token),
            // This arm is unreachable, because the tokens cannot exist on this architecture.
            #[cfg(not(target_arch = "x86_64"))]
            Self::Fma256(_) | Self::Fma512(_) | Self::Bf16Pairs512(_) => portable(),
        }
    }
}

/// Returns billions of floating-point operations per second over all threads of `pool`. A
/// multiply-add counts as two operations.
#[must_use]
pub fn gflop_per_s(pool: &Pool, form: Arithmetic) -> f64 {
    let chunks = CHUNKS * pool.threads();
    let start = Instant::now();
    pool.run(chunks, |_| _ = black_box(form.chunk()));
    let flops = chunks * ROUNDS * REGISTERS * form.flops();
    flops as f64 / start.elapsed().as_nanos().max(1) as f64
}

fn portable() -> f32 {
    let (factor, term) = (black_box(0.999_f32), black_box(1e-3_f32));
    let mut sums = [[1.0_f32; LANES]; REGISTERS];
    for _ in 0..ROUNDS {
        for sum in sums.as_flattened_mut() {
            *sum = *sum * factor + term;
        }
    }
    sums.as_flattened().iter().sum()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{REGISTERS, ROUNDS};
    use crate::cpu::{Avx2, Avx512, Avx512Bf16};

    pub(super) fn fma256(_: Avx2) -> f32 {
        // SAFETY: the token argument proves that the machine has AVX2 and FMA.
        unsafe { enter_fma256() }
    }

    pub(super) fn fma512(_: Avx512) -> f32 {
        // SAFETY: the token argument proves that the machine has the AVX-512 group.
        unsafe { enter_fma512() }
    }

    pub(super) fn bf16_pairs512(_: Avx512Bf16) -> f32 {
        // SAFETY: the token argument proves that the machine has AVX-512 F and BF16.
        unsafe { enter_bf16_pairs512() }
    }

    #[target_feature(enable = "avx2,fma")]
    fn enter_fma256() -> f32 {
        let (factor, term) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(1e-3)));
        let mut sums = [_mm256_set1_ps(1.0); REGISTERS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, factor, term);
            }
        }
        let mut total = sums[0];
        for sum in &sums[1..] {
            total = _mm256_add_ps(total, *sum);
        }
        _mm256_cvtss_f32(total)
    }

    #[target_feature(enable = "avx512f")]
    fn enter_fma512() -> f32 {
        let (factor, term) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(1e-3)));
        let mut sums = [_mm512_set1_ps(1.0); REGISTERS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, factor, term);
            }
        }
        let mut total = sums[0];
        for sum in &sums[1..] {
            total = _mm512_add_ps(total, *sum);
        }
        _mm512_reduce_add_ps(total)
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    fn enter_bf16_pairs512() -> f32 {
        let half = _mm512_set1_ps(black_box(0.5));
        let pairs = _mm512_cvtne2ps_pbh(half, half);
        let mut sums = [_mm512_set1_ps(1.0); REGISTERS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, pairs, pairs);
            }
        }
        let mut total = sums[0];
        for sum in &sums[1..] {
            total = _mm512_add_ps(total, *sum);
        }
        _mm512_reduce_add_ps(total)
    }
}
