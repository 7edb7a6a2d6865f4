//! The operand of one multiply-add step: a number, or a pair of bf16 whose two products are added
//! together. This file does not depend on the matrices.
#![expect(unsafe_code, reason = "calls vector instructions and loads through raw pointers")]

use super::word::Word;
use crate::cpu::vector::Fused;

/// A register of sums, with the operations that only the matrix products need.
///
/// # Safety
/// The caller guarantees the same conditions as for [`Vector`], and that the stored words are
/// valid for writes.
pub(super) trait Register: Fused {
    /// Returns the register with 0 in lanes that were below 0. NaN stays NaN.
    unsafe fn relu(self) -> Self;
    /// Returns the register with 0 in lanes where `output ≤ 0`.
    unsafe fn where_positive(self, output: Self) -> Self;
    /// Stores the lanes as bf16, rounded to nearest, next to each other. The function writes
    /// `LANES / 2` words.
    unsafe fn store_across(self, words: *mut u32);
    /// Stores the lanes of both registers as pairs of bf16, rounded to nearest. The function
    /// writes `LANES` words.
    unsafe fn store_down(self, second: Self, words: *mut u32);
}

/// The factors of a product, and the instructions that multiply them.
///
/// # Safety
/// The caller guarantees the same conditions as for [`Vector`], for the register type
/// [`Terms::Sum`].
pub(super) trait Terms {
    /// The word in memory, which holds one or two values of a factor.
    type Word: Word;
    /// The form that a factor has in registers.
    type Factor: Copy;
    /// The register in which the sums are accumulated.
    type Sum: Register;
    /// Returns a factor that has the same word in every lane.
    unsafe fn splat(word: Self::Word) -> Self::Factor;
    /// Loads one word for each lane of `Sum`.
    unsafe fn load(words: *const Self::Word) -> Self::Factor;
    /// Returns `sum + a · b`, lane by lane.
    unsafe fn multiply_add(a: Self::Factor, b: Self::Factor, sum: Self::Sum) -> Self::Sum;
}

/// Products of f32 in registers of type `V`.
pub(super) struct Single<V>(std::marker::PhantomData<V>);

impl<V: Register> Terms for Single<V> {
    type Word = f32;
    type Factor = V;
    type Sum = V;
    #[inline(always)]
    unsafe fn splat(word: f32) -> V {
        // SAFETY: the caller guarantees that the machine has the registers of `V`.
        unsafe { V::splat(word) }
    }
    #[inline(always)]
    unsafe fn load(words: *const f32) -> V {
        // SAFETY: the caller guarantees the registers of `V` and as many words at `words` as a
        // register has lanes.
        unsafe { V::load(words) }
    }
    #[inline(always)]
    unsafe fn multiply_add(a: V, b: V, sum: V) -> V {
        // SAFETY: the caller guarantees that the machine has the registers of `V`.
        unsafe { a.multiply_add(b, sum) }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    //! The implementations for AVX2 and AVX-512 registers.

    use std::arch::x86_64::*;

    use super::{Register, Terms};
    use crate::cpu::vector::x86::{Float8, Float16};

    /// Number that is added to the bits of an f32, together with the lowest bit that bf16 keeps,
    /// before the lower 16 bits are dropped. The result is the nearest bf16, and of two equally
    /// near values the even one.
    const HALF: i32 = 0x7fff;
    /// Bit that makes a NaN quiet. Without this bit, a NaN whose payload is in the lower half
    /// would become infinity.
    const QUIET: i32 = 0x0040_0000;

    /// Returns the bits of 8 floats, whose upper halves are the values rounded to the nearest
    /// bf16.
    ///
    /// # Safety
    /// The caller guarantees that the machine has AVX2.
    #[inline(always)]
    unsafe fn rounded8(value: __m256) -> __m256i {
        // SAFETY: the caller guarantees AVX2, and the instructions access no memory.
        unsafe {
            let bits = _mm256_castps_si256(value);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let half = _mm256_add_epi32(odd, _mm256_set1_epi32(HALF));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(QUIET));
            _mm256_blendv_epi8(_mm256_add_epi32(bits, half), quiet, nan)
        }
    }

    /// Returns the bits of 16 floats, whose upper halves are the values rounded to the nearest
    /// bf16.
    ///
    /// # Safety
    /// The caller guarantees that the machine has AVX-512 F.
    #[inline(always)]
    unsafe fn rounded16(value: __m512) -> __m512i {
        // SAFETY: the caller guarantees AVX-512 F, and the instructions access no memory.
        unsafe {
            let bits = _mm512_castps_si512(value);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let half = _mm512_add_epi32(odd, _mm512_set1_epi32(HALF));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
            let sum = _mm512_add_epi32(bits, half);
            _mm512_mask_or_epi32(sum, nan, bits, _mm512_set1_epi32(QUIET))
        }
    }

    // The trait's contract guarantees the instruction set and the validity of the memory for both
    // implementations.
    impl Register for Float8 {
        #[inline(always)]
        unsafe fn relu(self) -> Self {
            // SAFETY: the caller guarantees AVX2, and the instructions access no memory.
            Self(unsafe { _mm256_max_ps(_mm256_setzero_ps(), self.0) })
        }
        #[inline(always)]
        unsafe fn where_positive(self, output: Self) -> Self {
            // SAFETY: the caller guarantees AVX2, and the instructions access no memory.
            unsafe {
                let off = _mm256_cmp_ps::<_CMP_LE_OQ>(output.0, _mm256_setzero_ps());
                Self(_mm256_andnot_ps(off, self.0))
            }
        }
        #[inline(always)]
        unsafe fn store_across(self, words: *mut u32) {
            // SAFETY: the caller guarantees AVX2 and 4 writable words at `words`.
            unsafe {
                let high = _mm256_srli_epi32::<16>(rounded8(self.0));
                let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(high, high));
                _mm_storeu_si128(words.cast(), _mm256_castsi256_si128(packed));
            }
        }
        #[inline(always)]
        unsafe fn store_down(self, second: Self, words: *mut u32) {
            // SAFETY: the caller guarantees AVX2 and 8 writable words at `words`.
            unsafe {
                let first = _mm256_srli_epi32::<16>(rounded8(self.0));
                let pairs = _mm256_blend_epi16::<0b1010_1010>(first, rounded8(second.0));
                _mm256_storeu_si256(words.cast(), pairs);
            }
        }
    }

    impl Register for Float16 {
        #[inline(always)]
        unsafe fn relu(self) -> Self {
            // SAFETY: the caller guarantees AVX-512 F, and the instructions access no memory.
            Self(unsafe { _mm512_max_ps(_mm512_setzero_ps(), self.0) })
        }
        #[inline(always)]
        unsafe fn where_positive(self, output: Self) -> Self {
            // SAFETY: the caller guarantees AVX-512 F, and the instructions access no memory.
            unsafe {
                let zero = _mm512_setzero_ps();
                let off = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(output.0, zero);
                Self(_mm512_mask_mov_ps(self.0, off, zero))
            }
        }
        #[inline(always)]
        unsafe fn store_across(self, words: *mut u32) {
            // SAFETY: the caller guarantees AVX-512 F and 8 writable words at `words`.
            unsafe {
                let high = _mm512_srli_epi32::<16>(rounded16(self.0));
                _mm256_storeu_si256(words.cast(), _mm512_cvtepi32_epi16(high));
            }
        }
        #[inline(always)]
        unsafe fn store_down(self, second: Self, words: *mut u32) {
            // SAFETY: the caller guarantees AVX-512 F and 16 writable words at `words`.
            unsafe {
                let first = _mm512_srli_epi32::<16>(rounded16(self.0));
                let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
                let second = _mm512_and_si512(rounded16(second.0), upper);
                _mm512_storeu_si512(words.cast(), _mm512_or_si512(first, second));
            }
        }
    }

    /// Products of bf16 pairs by `vdpbf16ps`, an instruction that adds both products of a pair to
    /// a sum.
    pub(in crate::ops::gemm) struct Paired;

    impl Terms for Paired {
        type Word = u32;
        type Factor = __m512bh;
        type Sum = Float16;
        #[inline(always)]
        unsafe fn splat(word: u32) -> __m512bh {
            // SAFETY: every bit pattern is valid for both types, and the caller guarantees that
            // the machine has AVX-512 F.
            unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(word as i32)) }
        }
        #[inline(always)]
        unsafe fn load(words: *const u32) -> __m512bh {
            // SAFETY: every bit pattern is valid for both types, and the caller guarantees
            // AVX-512 F and 16 words at `words`.
            unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(words.cast())) }
        }
        #[inline(always)]
        unsafe fn multiply_add(a: __m512bh, b: __m512bh, sum: Float16) -> Float16 {
            // SAFETY: the caller guarantees that the machine has AVX-512 F and BF16.
            Float16(unsafe { _mm512_dpbf16_ps(sum.0, a, b) })
        }
    }
}
