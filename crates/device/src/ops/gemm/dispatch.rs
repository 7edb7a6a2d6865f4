//! Chunks of products, with the instructions of the machine.
#![expect(unsafe_code, reason = "chunks are raw parts of matrices")]

use super::chunk::{RoundChunk, RowsChunk, WeightChunk};
use super::portable;
#[cfg(target_arch = "x86_64")]
use super::simd::x86;
#[cfg(target_arch = "x86_64")]
use super::widened;
use super::word::Word;
use crate::cpu::Isa;

/// What products are made of words of this kind.
///
/// # Safety
/// The chunks' factors are as their fields say, and no other thread writes their part.
pub(super) trait Factor: Word {
    /// The chunk, with the instructions of `isa`.
    unsafe fn rows(isa: Isa, chunk: &RowsChunk<Self>);
    /// The chunk, with the instructions of `isa`.
    unsafe fn weight(isa: Isa, chunk: &WeightChunk<Self>);
}

impl Factor for f32 {
    unsafe fn rows(isa: Isa, chunk: &RowsChunk<f32>) {
        // SAFETY: the caller vouches for the chunk.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2(token) => x86::rows_avx2(token, chunk),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512(token) => x86::rows_avx512(token, chunk),
                _ => portable::rows(chunk),
            }
        }
    }
    unsafe fn weight(isa: Isa, chunk: &WeightChunk<f32>) {
        // SAFETY: the caller vouches for the chunk.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2(token) => x86::weight_avx2(token, chunk),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512(token) => x86::weight_avx512(token, chunk),
                _ => portable::weight(chunk),
            }
        }
    }
}

impl Factor for u32 {
    unsafe fn rows(isa: Isa, chunk: &RowsChunk<u32>) {
        // SAFETY: the caller vouches for the chunk.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2(token) => widened::rows(chunk, |chunk| x86::rows_avx2(token, chunk)),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512(token) => match token.bf16() {
                    Some(token) => x86::pair_rows_bf16(token, chunk),
                    None => widened::rows(chunk, |chunk| x86::rows_avx512(token, chunk)),
                },
                _ => portable::rows(chunk),
            }
        }
    }
    unsafe fn weight(isa: Isa, chunk: &WeightChunk<u32>) {
        // SAFETY: the caller vouches for the chunk.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2(token) => widened::weight(chunk, |chunk| x86::weight_avx2(token, chunk)),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512(token) => match token.bf16() {
                    Some(token) => x86::pair_weight_bf16(token, chunk),
                    None => widened::weight(chunk, |chunk| x86::weight_avx512(token, chunk)),
                },
                _ => portable::weight(chunk),
            }
        }
    }
}

/// Rounds rows of one panel.
///
/// # Safety
/// The chunk's matrices are as its fields say, and no other thread writes its part.
pub(super) unsafe fn round(isa: Isa, chunk: &RoundChunk) {
    // SAFETY: the caller vouches for the chunk's matrices; a token proves its instruction set.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(token) => x86::round_avx2(token, chunk),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(token) => x86::round_avx512(token, chunk),
            _ => portable::round(chunk),
        }
    }
}
