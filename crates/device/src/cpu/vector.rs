//! A vector of floats, as the kernels see it: 8 lanes (AVX2) or 16 (AVX-512).
//!
//! Knows no operation. Multiplication and addition stay separate instructions on purpose: each lane
//! rounds exactly as the scalar oracle does, so results do not depend on the instruction set, and
//! the kernels that use this trait wait for memory, not for arithmetic.
#![expect(unsafe_code, reason = "vector instructions and raw loads")]

/// One register of floats.
///
/// # Safety
/// All functions: the machine has the instruction set of the implementor (the caller holds its
/// token and is compiled with the matching target features). Loads and stores: the named number of
/// floats at `pointer` is valid for the access.
pub(crate) trait Vector: Copy {
    /// Floats per register; divides 16.
    const LANES: usize;
    /// `value` in every lane.
    unsafe fn splat(value: f32) -> Self;
    /// All lanes from memory.
    unsafe fn load(pointer: *const f32) -> Self;
    /// The first `count < LANES` lanes from memory, 0 in the others.
    unsafe fn load_first(pointer: *const f32, count: usize) -> Self;
    /// All lanes to memory.
    unsafe fn store(self, pointer: *mut f32);
    /// The first `count < LANES` lanes to memory.
    unsafe fn store_first(self, pointer: *mut f32, count: usize);
    /// Lane-wise `self + other`.
    unsafe fn add(self, other: Self) -> Self;
    /// Lane-wise `self − other`.
    unsafe fn sub(self, other: Self) -> Self;
    /// Lane-wise `self · other`.
    unsafe fn mul(self, other: Self) -> Self;
    /// Lane-wise `self / other`.
    unsafe fn div(self, other: Self) -> Self;
    /// Lane-wise square root.
    unsafe fn sqrt(self) -> Self;
    /// Sum of 16 lanes held in `16 / LANES` registers (`high` is ignored by 16-lane registers),
    /// by halving: lane `i` plus lane `i + 8`, then `+ 4`, `+ 2`, `+ 1`.
    unsafe fn sum_of_16(low: Self, high: Self) -> f32;

    /// The first `min(count, LANES)` lanes from memory.
    #[inline(always)]
    unsafe fn load_up_to(pointer: *const f32, count: usize) -> Self {
        // SAFETY: the caller vouches for `min(count, LANES)` floats.
        unsafe {
            if count >= Self::LANES {
                Self::load(pointer)
            } else {
                Self::load_first(pointer, count)
            }
        }
    }

    /// The first `min(count, LANES)` lanes to memory.
    #[inline(always)]
    unsafe fn store_up_to(self, pointer: *mut f32, count: usize) {
        // SAFETY: the caller vouches for `min(count, LANES)` floats.
        unsafe {
            if count >= Self::LANES {
                self.store(pointer);
            } else {
                self.store_first(pointer, count);
            }
        }
    }
}

/// Asks for the cache line at `pointer`; any address is allowed.
#[inline(always)]
pub(crate) fn prefetch(pointer: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults and changes no value, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(pointer.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = pointer;
}

/// Asks for every cache line of the `dim` floats at `pointer`.
#[inline(always)]
pub(crate) fn prefetch_row(pointer: *const f32, dim: usize) {
    const FLOATS_PER_LINE: usize = 16;
    let mut at = 0;
    while at < dim {
        prefetch(pointer.wrapping_add(at));
        at += FLOATS_PER_LINE;
    }
    // A row that does not start on a line may end on one more.
    prefetch(pointer.wrapping_add(dim - 1));
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use super::Vector;

    /// An AVX2 register.
    #[derive(Clone, Copy)]
    pub(crate) struct Float8(__m256);

    /// An AVX-512 register.
    #[derive(Clone, Copy)]
    pub(crate) struct Float16(__m512);

    /// `MASKS[8 − n..]` starts with `n` set lanes.
    static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

    #[inline(always)]
    unsafe fn mask8(count: usize) -> __m256i {
        debug_assert!(count <= 8);
        // SAFETY: `count ≤ 8`, so the 8 integers from `8 − count` lie inside the table.
        unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - count).cast()) }
    }

    #[inline(always)]
    unsafe fn sum_of_8(lanes: __m256) -> f32 {
        // SAFETY: register arithmetic; the caller vouches for AVX2.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    // SAFETY of every block in the two implementations: the trait's contract gives the instruction
    // set and the validity of the memory; unaligned and masked forms touch nothing beyond it.
    impl Vector for Float8 {
        const LANES: usize = 8;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_set1_ps(value) })
        }
        #[inline(always)]
        unsafe fn load(pointer: *const f32) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_loadu_ps(pointer) })
        }
        #[inline(always)]
        unsafe fn load_first(pointer: *const f32, count: usize) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_maskload_ps(pointer, mask8(count)) })
        }
        #[inline(always)]
        unsafe fn store(self, pointer: *mut f32) {
            // SAFETY: see above.
            unsafe { _mm256_storeu_ps(pointer, self.0) }
        }
        #[inline(always)]
        unsafe fn store_first(self, pointer: *mut f32, count: usize) {
            // SAFETY: see above.
            unsafe { _mm256_maskstore_ps(pointer, mask8(count), self.0) }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn sub(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_sub_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn mul(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_mul_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn div(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_div_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn sqrt(self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_sqrt_ps(self.0) })
        }
        #[inline(always)]
        unsafe fn sum_of_16(low: Self, high: Self) -> f32 {
            // SAFETY: see above.
            unsafe { sum_of_8(_mm256_add_ps(low.0, high.0)) }
        }
    }

    impl Vector for Float16 {
        const LANES: usize = 16;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_set1_ps(value) })
        }
        #[inline(always)]
        unsafe fn load(pointer: *const f32) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_loadu_ps(pointer) })
        }
        #[inline(always)]
        unsafe fn load_first(pointer: *const f32, count: usize) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_maskz_loadu_ps(((1u32 << count) - 1) as __mmask16, pointer) })
        }
        #[inline(always)]
        unsafe fn store(self, pointer: *mut f32) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_ps(pointer, self.0) }
        }
        #[inline(always)]
        unsafe fn store_first(self, pointer: *mut f32, count: usize) {
            // SAFETY: see above.
            unsafe { _mm512_mask_storeu_ps(pointer, ((1u32 << count) - 1) as __mmask16, self.0) }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn sub(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_sub_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn mul(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_mul_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn div(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_div_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn sqrt(self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_sqrt_ps(self.0) })
        }
        #[inline(always)]
        unsafe fn sum_of_16(low: Self, _high: Self) -> f32 {
            // SAFETY: see above.
            unsafe {
                let high = _mm512_castpd_ps(_mm512_shuffle_f64x2::<0b1110>(
                    _mm512_castps_pd(low.0),
                    _mm512_castps_pd(low.0),
                ));
                sum_of_8(_mm256_add_ps(_mm512_castps512_ps256(low.0), _mm512_castps512_ps256(high)))
            }
        }
    }
}
