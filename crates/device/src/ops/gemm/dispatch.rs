//! Runs chunks of products with the instructions of this machine's instruction set.
#![expect(unsafe_code, reason = "chunks hold raw pointers to parts of matrices")]

use super::chunk::{RoundChunk, RowsChunk, WeightChunk};
use super::portable;
#[cfg(target_arch = "x86_64")]
use super::simd::x86;
#[cfg(target_arch = "x86_64")]
use super::widened;
use super::word::Word;
use crate::cpu::Isa;

/// A factor's word type, for which the products have kernels.
///
/// # Safety
/// The caller guarantees that the chunks' pointers are valid for the extents that their fields
/// state, and that no other thread writes the same part of the result.
pub(super) trait Factor: Word {
    /// Computes a chunk of rows with the instructions of `isa`.
    unsafe fn rows(isa: Isa, chunk: &RowsChunk<Self>);
    /// Computes a chunk of the weight gradient with the instructions of `isa`.
    unsafe fn weight(isa: Isa, chunk: &WeightChunk<Self>);
}

impl Factor for f32 {
    unsafe fn rows(isa: Isa, chunk: &RowsChunk<f32>) {
        // SAFETY: the caller guarantees a valid chunk, and the token in `isa` proves that the
        // machine has the instruction set.
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
        // SAFETY: the caller guarantees a valid chunk, and the token in `isa` proves that the
        // machine has the instruction set.
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
        // SAFETY: the caller guarantees a valid chunk, and the token in `isa` proves that the
        // machine has the instruction set.
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
        // SAFETY: the caller guarantees a valid chunk, and the token in `isa` proves that the
        // machine has the instruction set.
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

/// Rounds the rows of a chunk, which lie in one panel, to bf16.
///
/// # Safety
/// The caller guarantees that the chunk's pointers are valid for the extents that its fields
/// state, and that no other thread writes the same part of the result.
pub(super) unsafe fn round(isa: Isa, chunk: &RoundChunk) {
    // SAFETY: the caller guarantees that the chunk's matrices are valid, and the token in `isa`
    // proves that the machine has the instruction set.
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
