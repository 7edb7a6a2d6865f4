//! A vector register of floats, as the kernels see it, with 8 lanes (AVX2) or 16 (AVX-512).
//!
//! This module does not depend on the operations. [`Vector`] keeps multiplication and addition as
//! separate instructions: each lane rounds exactly as the scalar oracle does, so results do not
//! depend on the instruction set. The kernels that use [`Vector`] are bound by memory, so fused
//! instructions would not speed them up. Kernels bound by arithmetic use [`Fused`].
#![expect(unsafe_code, reason = "calls vector instructions and loads through raw pointers")]

use half::{bf16, f16};

use super::Isa;
use crate::rounding::RowNoise;
use crate::weights::StoredWeight;

/// One vector register of floats.
///
/// # Safety
/// For all functions, the caller guarantees that the machine has the instruction set of the
/// implementor. The caller holds its token and is compiled with the matching target features. For
/// loads and stores, the caller also guarantees that the stated number of floats at `pointer` is
/// valid for the access.
pub(crate) trait Vector: Copy {
    /// Number of floats per register, a divisor of 16.
    const LANES: usize;
    /// Returns a register with `value` in every lane.
    unsafe fn splat(value: f32) -> Self;
    /// Loads all lanes from memory.
    unsafe fn load(pointer: *const f32) -> Self;
    /// Loads the first `count < LANES` lanes from memory and sets the other lanes to 0.
    unsafe fn load_first(pointer: *const f32, count: usize) -> Self;
    /// Stores all lanes of the register to memory.
    unsafe fn store(self, pointer: *mut f32);
    /// Stores all lanes past the caches. `pointer` must be aligned to the size of the register.
    /// Other threads may see the values only after a call of [`streamed`].
    unsafe fn stream(self, pointer: *mut f32);
    /// Stores the first `count < LANES` lanes to memory.
    unsafe fn store_first(self, pointer: *mut f32, count: usize);
    /// Returns `self + other`, lane by lane.
    unsafe fn add(self, other: Self) -> Self;
    /// Returns `self − other`, lane by lane.
    unsafe fn sub(self, other: Self) -> Self;
    /// Returns `self · other`, lane by lane.
    unsafe fn mul(self, other: Self) -> Self;
    /// Returns `self / other`, lane by lane.
    unsafe fn div(self, other: Self) -> Self;
    unsafe fn sqrt(self) -> Self;
    /// Sums 16 lanes held in `16 / LANES` registers by halving: lane `i` plus lane `i + 8`, then
    /// `+ 4`, `+ 2`, `+ 1`. A register of 16 lanes ignores `high`.
    unsafe fn sum_of_16(low: Self, high: Self) -> f32;
    /// Loads all lanes from f16 values in memory. The conversion is exact.
    unsafe fn load_f16(pointer: *const f16) -> Self;
    /// Loads all lanes from bf16 values in memory. The conversion is exact.
    unsafe fn load_bf16(pointer: *const bf16) -> Self;
    /// Stores all lanes as f16. Each lane is rounded like [`crate::rounding::to_f16`] with the
    /// noise of its column, the first of which is `column`.
    unsafe fn store_f16(self, pointer: *mut f16, noise: RowNoise, column: usize);
    /// Stores all lanes as bf16. Each lane is rounded like [`crate::rounding::to_bf16`] with the
    /// noise of its column, the first of which is `column`.
    unsafe fn store_bf16(self, pointer: *mut bf16, noise: RowNoise, column: usize);

    /// Loads the first `min(count, LANES)` lanes from memory.
    #[inline(always)]
    unsafe fn load_up_to(pointer: *const f32, count: usize) -> Self {
        // SAFETY: the caller guarantees the instruction set and `min(count, LANES)` valid floats at
        // `pointer`.
        unsafe {
            if count >= Self::LANES {
                Self::load(pointer)
            } else {
                Self::load_first(pointer, count)
            }
        }
    }

    /// Stores the first `min(count, LANES)` lanes to memory.
    #[inline(always)]
    unsafe fn store_up_to(self, pointer: *mut f32, count: usize) {
        // SAFETY: the caller guarantees the instruction set and `min(count, LANES)` valid floats at
        // `pointer`.
        unsafe {
            if count >= Self::LANES {
                self.store(pointer);
            } else {
                self.store_first(pointer, count);
            }
        }
    }
}

/// A stored weight (f32, f16 or bf16) that vector registers can load and store.
///
/// # Safety
/// For all functions, the caller guarantees the instruction set as for [`Vector`], and that
/// `min(count, LANES)` weights at `pointer` are valid for the access.
pub(crate) trait VectorElement: StoredWeight {
    /// Loads the first `min(count, LANES)` weights exactly and sets the other lanes to 0.
    unsafe fn load_up_to<V: Vector>(pointer: *const Self, count: usize) -> V;
    /// Loads one weight per lane from memory. The conversion to f32 is exact.
    unsafe fn load<V: Vector>(pointer: *const Self) -> V;
    /// Stores the first `min(count, LANES)` lanes, each rounded with the noise of its column.
    unsafe fn store_up_to<V: Vector>(
        lanes: V,
        pointer: *mut Self,
        count: usize,
        noise: RowNoise,
        column: usize,
    );
    /// Returns the weights of a row in f32, which the caller may change and then store with
    /// `put`. The result is the row itself if it is f32, and otherwise a copy in `buffer`, which
    /// has the same length.
    unsafe fn take<'a, V: Vector>(row: &'a mut [Self], buffer: &'a mut [f32]) -> &'a mut [f32];
    /// Stores the weights that `take` returned, with the caller's changes.
    unsafe fn put<V: Vector>(row: &mut [Self], buffer: &[f32], noise: RowNoise);
}

impl VectorElement for f32 {
    #[inline(always)]
    unsafe fn load_up_to<V: Vector>(pointer: *const Self, count: usize) -> V {
        // SAFETY: the caller guarantees the instruction set of `V` and the floats at `pointer`,
        // which is all that `V` requires.
        unsafe { V::load_up_to(pointer, count) }
    }
    #[inline(always)]
    unsafe fn load<V: Vector>(pointer: *const Self) -> V {
        // SAFETY: the caller guarantees the instruction set of `V` and the floats at `pointer`,
        // which is all that `V` requires.
        unsafe { V::load(pointer) }
    }
    #[inline(always)]
    unsafe fn store_up_to<V: Vector>(
        lanes: V,
        pointer: *mut Self,
        count: usize,
        _noise: RowNoise,
        _column: usize,
    ) {
        // SAFETY: the caller guarantees the instruction set of `V` and the floats at `pointer`,
        // which is all that `V` requires.
        unsafe { lanes.store_up_to(pointer, count) }
    }
    #[inline(always)]
    unsafe fn take<'a, V: Vector>(row: &'a mut [Self], _buffer: &'a mut [f32]) -> &'a mut [f32] {
        row
    }
    #[inline(always)]
    unsafe fn put<V: Vector>(_row: &mut [Self], _buffer: &[f32], _noise: RowNoise) {}
}

macro_rules! half_element {
    ($half:ty, $load:ident, $store:ident) => {
        impl VectorElement for $half {
            #[inline(always)]
            unsafe fn load_up_to<V: Vector>(pointer: *const Self, count: usize) -> V {
                // SAFETY: the caller guarantees the instruction set of `V` and `min(count, LANES)`
                // valid 16-bit weights. The array has as many elements as the widest register has
                // lanes.
                unsafe {
                    if count >= V::LANES {
                        return V::$load(pointer);
                    }
                    let mut halves = [Self::default(); 16];
                    std::ptr::copy_nonoverlapping(pointer, halves.as_mut_ptr(), count);
                    V::$load(halves.as_ptr())
                }
            }
            #[inline(always)]
            unsafe fn load<V: Vector>(pointer: *const Self) -> V {
                // SAFETY: the caller guarantees the instruction set of `V` and the weights at
                // `pointer`, which is all that `V`'s load requires.
                unsafe { V::$load(pointer) }
            }
            #[inline(always)]
            unsafe fn store_up_to<V: Vector>(
                lanes: V,
                pointer: *mut Self,
                count: usize,
                noise: RowNoise,
                column: usize,
            ) {
                // SAFETY: the caller guarantees the instruction set of `V` and `min(count, LANES)`
                // valid 16-bit weights. The array has as many elements as the widest register has
                // lanes.
                unsafe {
                    if count >= V::LANES {
                        return lanes.$store(pointer, noise, column);
                    }
                    let mut halves = [Self::default(); 16];
                    lanes.$store(halves.as_mut_ptr(), noise, column);
                    std::ptr::copy_nonoverlapping(halves.as_ptr(), pointer, count);
                }
            }
            #[inline(always)]
            unsafe fn take<'a, V: Vector>(
                row: &'a mut [Self],
                buffer: &'a mut [f32],
            ) -> &'a mut [f32] {
                let dim = row.len();
                assert!(buffer.len() == dim);
                for at in (0..dim).step_by(V::LANES) {
                    // SAFETY: `at < dim`, and at most `dim − at` weights are accessed from `at` on,
                    // in two slices of `dim` weights. The caller guarantees the instruction set.
                    unsafe {
                        let lanes: V = Self::load_up_to(row.as_ptr().add(at), dim - at);
                        lanes.store_up_to(buffer.as_mut_ptr().add(at), dim - at);
                    }
                }
                buffer
            }
            #[inline(always)]
            unsafe fn put<V: Vector>(row: &mut [Self], buffer: &[f32], noise: RowNoise) {
                let dim = row.len();
                assert!(buffer.len() == dim);
                for at in (0..dim).step_by(V::LANES) {
                    // SAFETY: `at < dim`, and at most `dim − at` weights are accessed from `at` on,
                    // in two slices of `dim` weights. The caller guarantees the instruction set.
                    unsafe {
                        let lanes = V::load_up_to(buffer.as_ptr().add(at), dim - at);
                        let target = row.as_mut_ptr().add(at);
                        Self::store_up_to(lanes, target, dim - at, noise, at);
                    }
                }
            }
        }
    };
}

half_element!(f16, load_f16, store_f16);
half_element!(bf16, load_bf16, store_bf16);

/// A vector register with fused multiply-add.
///
/// # Safety
/// The caller guarantees the same conditions as for [`Vector`].
pub(crate) trait Fused: Vector {
    /// Returns `self · other + sum`, rounded once.
    unsafe fn multiply_add(self, other: Self, sum: Self) -> Self;
}

/// Runs `body` compiled for `isa`, so that the compiler vectorizes its loops. Multiplication and
/// addition stay separate instructions, so the results do not depend on `isa`.
#[inline]
pub(crate) fn widened<R>(isa: Isa, body: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn avx2<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
        fn avx512<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        match isa {
            // SAFETY: the token in `Isa::Avx2` proves that the machine has AVX2.
            Isa::Avx2(_) => return unsafe { avx2(body) },
            // SAFETY: the token in `Isa::Avx512` proves that the machine has the AVX-512 group.
            Isa::Avx512(_) => return unsafe { avx512(body) },
            Isa::Portable => {}
        }
    }
    body()
}

/// Orders all earlier [`Vector::stream`] stores of this thread before its later stores. The call
/// waits until the streamed data has been written, so call it once after many stores.
#[inline(always)]
pub(crate) fn streamed() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `sfence` belongs to SSE, which every x86-64 CPU has.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Prefetches the cache line at `pointer`. Any address is allowed, even an invalid one.
#[inline(always)]
pub(crate) fn prefetch<T>(pointer: *const T) {
    ask::<T, 1>(pointer);
}

/// Prefetches the cache line at `pointer` into the second-level cache. Any address is allowed.
#[inline(always)]
pub(crate) fn prefetch_second<T>(pointer: *const T) {
    ask::<T, 2>(pointer);
}

#[inline(always)]
fn ask<T, const LEVEL: u8>(pointer: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults and changes no value, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        match LEVEL {
            1 => _mm_prefetch::<_MM_HINT_T0>(pointer.cast()),
            _ => _mm_prefetch::<_MM_HINT_T1>(pointer.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = pointer;
}

/// Prefetches every cache line of the `dim` values at `pointer`.
#[inline(always)]
pub(crate) fn prefetch_row<T>(pointer: *const T, dim: usize) {
    ask_row::<T, 1>(pointer, dim);
}

/// Prefetches a row into the second-level cache, which suits random rows of large tables.
///
/// Zen 4 can have more prefetches to L2 in flight than to L1. With this function, lookups of rows
/// of 256 bytes take 0.65 to 0.75 of the time, and those of 128 bytes 0.55 to 0.6. On Cascade
/// Lake both caches have the same limit.
#[inline(always)]
pub(crate) fn prefetch_row_second<T>(pointer: *const T, dim: usize) {
    ask_row::<T, 2>(pointer, dim);
}

#[inline(always)]
fn ask_row<T, const LEVEL: u8>(pointer: *const T, dim: usize) {
    const LINE_BYTES: usize = 64;
    for at in (0..dim).step_by(LINE_BYTES / size_of::<T>()) {
        ask::<T, LEVEL>(pointer.wrapping_add(at));
    }
    // A row that does not start on a cache line may end on one line more. Rows whose size is a
    // multiple of a line always start on a line.
    if !(dim * size_of::<T>()).is_multiple_of(LINE_BYTES) {
        ask::<T, LEVEL>(pointer.wrapping_add(dim - 1));
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use half::{bf16, f16};

    use super::{Fused, Vector};
    use crate::rounding::{self, RowNoise};

    /// An AVX2 register of eight f32.
    #[derive(Clone, Copy)]
    pub(crate) struct Float8(pub(crate) __m256);

    /// An AVX-512 register of sixteen f32.
    #[derive(Clone, Copy)]
    pub(crate) struct Float16(pub(crate) __m512);

    /// A window of 8 entries from `MASKS[8 − n]` on is a lane mask with the first `n` lanes set.
    static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

    /// # Safety
    /// The caller guarantees that the machine has AVX2 and that `count` is at most 8.
    #[inline(always)]
    unsafe fn mask8(count: usize) -> __m256i {
        debug_assert!(count <= 8);
        // SAFETY: `count ≤ 8`, so the 8 integers from `8 − count` lie inside the table.
        unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - count).cast()) }
    }

    /// # Safety
    /// The caller guarantees that the machine has AVX2.
    #[inline(always)]
    unsafe fn sum_of_8(lanes: __m256) -> f32 {
        // SAFETY: the caller guarantees AVX2, and the instructions access no memory.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    // The trait's contract guarantees the instruction set and the validity of the memory for
    // every block in the two implementations. Unaligned and masked instructions access nothing
    // beyond that memory.
    impl Fused for Float8 {
        #[inline(always)]
        unsafe fn multiply_add(self, other: Self, sum: Self) -> Self {
            // SAFETY: the caller guarantees AVX2 and FMA, and the instruction accesses no memory.
            Self(unsafe { _mm256_fmadd_ps(self.0, other.0, sum.0) })
        }
    }

    impl Vector for Float8 {
        const LANES: usize = 8;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: the caller guarantees AVX2, and the instructions access no memory.
            Self(unsafe { _mm256_set1_ps(value) })
        }
        #[inline(always)]
        unsafe fn load(pointer: *const f32) -> Self {
            // SAFETY: the caller guarantees AVX2 and 8 floats at `pointer`. The instruction needs
            // no alignment.
            Self(unsafe { _mm256_loadu_ps(pointer) })
        }
        #[inline(always)]
        unsafe fn load_first(pointer: *const f32, count: usize) -> Self {
            // SAFETY: the caller guarantees AVX2 and `count` floats at `pointer`; the mask excludes
            // the floats after them.
            Self(unsafe { _mm256_maskload_ps(pointer, mask8(count)) })
        }
        #[inline(always)]
        unsafe fn store(self, pointer: *mut f32) {
            // SAFETY: the caller guarantees AVX2 and 8 floats at `pointer`. The instruction needs
            // no alignment.
            unsafe { _mm256_storeu_ps(pointer, self.0) }
        }
        #[inline(always)]
        unsafe fn stream(self, pointer: *mut f32) {
            // SAFETY: the caller guarantees AVX2 and 8 floats at `pointer`, aligned to the size of
            // the register.
            unsafe { _mm256_stream_ps(pointer, self.0) }
        }
        #[inline(always)]
        unsafe fn store_first(self, pointer: *mut f32, count: usize) {
            // SAFETY: the caller guarantees AVX2 and `count` floats at `pointer`; the mask excludes
            // the floats after them.
            unsafe { _mm256_maskstore_ps(pointer, mask8(count), self.0) }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: the caller guarantees AVX2, and the instructions access no memory.
            Self(unsafe { _mm256_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn sub(self, other: Self) -> Self {
            // SAFETY: the caller guarantees AVX2, and the instructions access no memory.
            Self(unsafe { _mm256_sub_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn mul(self, other: Self) -> Self {
            // SAFETY: the caller guarantees AVX2, and the instructions access no memory.
            Self(unsafe { _mm256_mul_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn div(self, other: Self) -> Self {
            // SAFETY: the caller guarantees AVX2, and the instructions access no memory.
            Self(unsafe { _mm256_div_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn sqrt(self) -> Self {
            // SAFETY: the caller guarantees AVX2, and the instructions access no memory.
            Self(unsafe { _mm256_sqrt_ps(self.0) })
        }
        #[inline(always)]
        unsafe fn sum_of_16(low: Self, high: Self) -> f32 {
            // SAFETY: the caller guarantees AVX2, and the instructions access no memory.
            unsafe { sum_of_8(_mm256_add_ps(low.0, high.0)) }
        }
        #[inline(always)]
        unsafe fn load_f16(pointer: *const f16) -> Self {
            // SAFETY: the caller guarantees AVX2 with F16C and eight 16-bit floats at `pointer`.
            // The instruction needs no alignment.
            Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(pointer.cast())) })
        }
        #[inline(always)]
        unsafe fn load_bf16(pointer: *const bf16) -> Self {
            // SAFETY: the caller guarantees AVX2 and eight 16-bit floats at `pointer`. The
            // instruction needs no alignment.
            unsafe {
                let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(pointer.cast()));
                Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves)))
            }
        }
        #[inline(always)]
        unsafe fn store_f16(self, pointer: *mut f16, noise: RowNoise, column: usize) {
            // SAFETY: the caller guarantees AVX2 with F16C and eight 16-bit floats at `pointer`.
            // The instruction needs no alignment.
            unsafe {
                let noise = noise8(noise, column);
                let (sign, magnitude) = sign_and_magnitude8(self.0);
                let dropped = _mm256_set1_epi32(rounding::F16_DROPPED as i32);
                let normal = _mm256_add_epi32(magnitude, _mm256_srli_epi32::<19>(noise));
                let most = _mm256_set1_epi32(rounding::F16_MAX as i32);
                let normal = _mm256_min_epi32(_mm256_andnot_si256(dropped, normal), most);
                let fraction = _mm256_cvtepi32_ps(_mm256_srli_epi32::<18>(noise));
                let fraction = _mm256_mul_ps(fraction, _mm256_set1_ps(1.0 / 16_384.0));
                let units = _mm256_set1_ps(rounding::F16_UNITS);
                let units = _mm256_mul_ps(_mm256_castsi256_ps(magnitude), units);
                let units = _mm256_cvttps_epi32(_mm256_add_ps(units, fraction));
                let unit = _mm256_set1_ps(1.0 / rounding::F16_UNITS);
                let small = _mm256_mul_ps(_mm256_cvtepi32_ps(units), unit);
                let bound = _mm256_set1_epi32(rounding::F16_NORMAL as i32);
                let is_small = _mm256_cmpgt_epi32(bound, magnitude);
                let rounded = _mm256_blendv_epi8(normal, _mm256_castps_si256(small), is_small);
                let value = _mm256_or_si256(finish8(rounded, magnitude), sign);
                let halves =
                    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_castsi256_ps(value));
                _mm_storeu_si128(pointer.cast(), halves);
            }
        }
        #[inline(always)]
        unsafe fn store_bf16(self, pointer: *mut bf16, noise: RowNoise, column: usize) {
            // SAFETY: the caller guarantees AVX2 and eight 16-bit floats at `pointer`. The
            // instruction needs no alignment.
            unsafe {
                let noise = noise8(noise, column);
                let (sign, magnitude) = sign_and_magnitude8(self.0);
                let dropped = _mm256_set1_epi32(rounding::BF16_DROPPED as i32);
                // A NaN may overflow here; `finish8` replaces it.
                let rounded = _mm256_add_epi32(magnitude, _mm256_srli_epi32::<16>(noise));
                let most = _mm256_set1_epi32(rounding::BF16_MAX as i32);
                let rounded = _mm256_min_epi32(_mm256_andnot_si256(dropped, rounded), most);
                let value = _mm256_or_si256(finish8(rounded, magnitude), sign);
                let high = _mm256_srli_epi32::<16>(value);
                let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(high, high));
                _mm_storeu_si128(pointer.cast(), _mm256_castsi256_si128(packed));
            }
        }
    }

    /// Returns the noise of 8 columns from `column` on, equal to [`RowNoise::at`] of each column.
    ///
    /// # Safety
    /// The caller guarantees that the machine has AVX2.
    #[inline(always)]
    unsafe fn noise8(noise: RowNoise, column: usize) -> __m256i {
        let [a, b, c] = rounding::MULTIPLIERS.map(|multiplier| multiplier as i32);
        let column = noise.column.wrapping_add(column as u32) as i32;
        // SAFETY: the caller guarantees AVX2, and the instructions access no memory.
        unsafe {
            let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let columns = _mm256_add_epi32(_mm256_set1_epi32(column), lanes);
            let scaled = _mm256_mullo_epi32(columns, _mm256_set1_epi32(a));
            let x = _mm256_add_epi32(scaled, _mm256_set1_epi32(noise.key as i32));
            let x = _mm256_xor_si256(x, _mm256_srli_epi32::<16>(x));
            let x = _mm256_mullo_epi32(x, _mm256_set1_epi32(b));
            let x = _mm256_add_epi32(x, _mm256_set1_epi32((noise.key >> 32) as i32));
            let x = _mm256_xor_si256(x, _mm256_srli_epi32::<15>(x));
            let x = _mm256_mullo_epi32(x, _mm256_set1_epi32(c));
            _mm256_xor_si256(x, _mm256_srli_epi32::<16>(x))
        }
    }

    /// # Safety
    /// The caller guarantees that the machine has AVX2.
    #[inline(always)]
    unsafe fn sign_and_magnitude8(value: __m256) -> (__m256i, __m256i) {
        // SAFETY: the caller guarantees AVX2, and the instructions access no memory.
        unsafe {
            let (bits, sign) = (_mm256_castps_si256(value), _mm256_set1_epi32(i32::MIN));
            (_mm256_and_si256(bits, sign), _mm256_andnot_si256(sign, bits))
        }
    }

    /// Returns `rounded`, except that lanes whose magnitude is infinite or NaN stay infinite or
    /// NaN.
    ///
    /// # Safety
    /// The caller guarantees that the machine has AVX2.
    #[inline(always)]
    unsafe fn finish8(rounded: __m256i, magnitude: __m256i) -> __m256i {
        // SAFETY: the caller guarantees AVX2, and the instructions access no memory.
        unsafe {
            let infinity = _mm256_set1_epi32(rounding::INFINITY as i32);
            let is_infinite = _mm256_cmpeq_epi32(magnitude, infinity);
            let is_nan = _mm256_cmpgt_epi32(magnitude, infinity);
            let rounded = _mm256_blendv_epi8(rounded, infinity, is_infinite);
            _mm256_blendv_epi8(rounded, _mm256_set1_epi32(rounding::NAN as i32), is_nan)
        }
    }

    impl Fused for Float16 {
        #[inline(always)]
        unsafe fn multiply_add(self, other: Self, sum: Self) -> Self {
            // SAFETY: the caller guarantees AVX-512 F, and the instructions access no memory.
            Self(unsafe { _mm512_fmadd_ps(self.0, other.0, sum.0) })
        }
    }

    impl Vector for Float16 {
        const LANES: usize = 16;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: the caller guarantees AVX-512 F, and the instructions access no memory.
            Self(unsafe { _mm512_set1_ps(value) })
        }
        #[inline(always)]
        unsafe fn load(pointer: *const f32) -> Self {
            // SAFETY: the caller guarantees AVX-512 F and 16 floats at `pointer`. The instruction
            // needs no alignment.
            Self(unsafe { _mm512_loadu_ps(pointer) })
        }
        #[inline(always)]
        unsafe fn load_first(pointer: *const f32, count: usize) -> Self {
            // SAFETY: the caller guarantees AVX-512 F and `count` floats at `pointer`; the mask
            // excludes the floats after them.
            Self(unsafe { _mm512_maskz_loadu_ps(((1u32 << count) - 1) as __mmask16, pointer) })
        }
        #[inline(always)]
        unsafe fn store(self, pointer: *mut f32) {
            // SAFETY: the caller guarantees AVX-512 F and 16 floats at `pointer`. The instruction
            // needs no alignment.
            unsafe { _mm512_storeu_ps(pointer, self.0) }
        }
        #[inline(always)]
        unsafe fn stream(self, pointer: *mut f32) {
            // SAFETY: the caller guarantees AVX-512 F and 16 floats at `pointer`, aligned to the
            // size of the register.
            unsafe { _mm512_stream_ps(pointer, self.0) }
        }
        #[inline(always)]
        unsafe fn store_first(self, pointer: *mut f32, count: usize) {
            // SAFETY: the caller guarantees AVX-512 F and `count` floats at `pointer`; the mask
            // excludes the floats after them.
            unsafe { _mm512_mask_storeu_ps(pointer, ((1u32 << count) - 1) as __mmask16, self.0) }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: the caller guarantees AVX-512 F, and the instructions access no memory.
            Self(unsafe { _mm512_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn sub(self, other: Self) -> Self {
            // SAFETY: the caller guarantees AVX-512 F, and the instructions access no memory.
            Self(unsafe { _mm512_sub_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn mul(self, other: Self) -> Self {
            // SAFETY: the caller guarantees AVX-512 F, and the instructions access no memory.
            Self(unsafe { _mm512_mul_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn div(self, other: Self) -> Self {
            // SAFETY: the caller guarantees AVX-512 F, and the instructions access no memory.
            Self(unsafe { _mm512_div_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn sqrt(self) -> Self {
            // SAFETY: the caller guarantees AVX-512 F, and the instructions access no memory.
            Self(unsafe { _mm512_sqrt_ps(self.0) })
        }
        #[inline(always)]
        unsafe fn sum_of_16(low: Self, _high: Self) -> f32 {
            // SAFETY: the caller guarantees AVX-512 F, and the instructions access no memory.
            unsafe {
                let high = _mm512_castpd_ps(_mm512_shuffle_f64x2::<0b1110>(
                    _mm512_castps_pd(low.0),
                    _mm512_castps_pd(low.0),
                ));
                sum_of_8(_mm256_add_ps(_mm512_castps512_ps256(low.0), _mm512_castps512_ps256(high)))
            }
        }
        #[inline(always)]
        unsafe fn load_f16(pointer: *const f16) -> Self {
            // SAFETY: the caller guarantees AVX-512 F and sixteen 16-bit floats at `pointer`. The
            // instruction needs no alignment.
            Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(pointer.cast())) })
        }
        #[inline(always)]
        unsafe fn load_bf16(pointer: *const bf16) -> Self {
            // SAFETY: the caller guarantees AVX-512 F and sixteen 16-bit floats at `pointer`. The
            // instruction needs no alignment.
            unsafe {
                let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(pointer.cast()));
                Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves)))
            }
        }
        #[inline(always)]
        unsafe fn store_f16(self, pointer: *mut f16, noise: RowNoise, column: usize) {
            // SAFETY: the caller guarantees AVX-512 F and sixteen 16-bit floats at `pointer`. The
            // instruction needs no alignment.
            unsafe {
                let noise = noise16(noise, column);
                let (sign, magnitude) = sign_and_magnitude16(self.0);
                let dropped = _mm512_set1_epi32(rounding::F16_DROPPED as i32);
                let normal = _mm512_add_epi32(magnitude, _mm512_srli_epi32::<19>(noise));
                let most = _mm512_set1_epi32(rounding::F16_MAX as i32);
                let normal = _mm512_min_epi32(_mm512_andnot_si512(dropped, normal), most);
                let fraction = _mm512_cvtepi32_ps(_mm512_srli_epi32::<18>(noise));
                let fraction = _mm512_mul_ps(fraction, _mm512_set1_ps(1.0 / 16_384.0));
                let units = _mm512_set1_ps(rounding::F16_UNITS);
                let units = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), units);
                let units = _mm512_cvttps_epi32(_mm512_add_ps(units, fraction));
                let unit = _mm512_set1_ps(1.0 / rounding::F16_UNITS);
                let small = _mm512_mul_ps(_mm512_cvtepi32_ps(units), unit);
                let bound = _mm512_set1_epi32(rounding::F16_NORMAL as i32);
                let is_small = _mm512_cmplt_epi32_mask(magnitude, bound);
                let small = _mm512_castps_si512(small);
                let rounded = _mm512_mask_mov_epi32(normal, is_small, small);
                let value = _mm512_or_si512(finish16(rounded, magnitude), sign);
                let halves =
                    _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_castsi512_ps(value));
                _mm256_storeu_si256(pointer.cast(), halves);
            }
        }
        #[inline(always)]
        unsafe fn store_bf16(self, pointer: *mut bf16, noise: RowNoise, column: usize) {
            // SAFETY: the caller guarantees AVX-512 F and sixteen 16-bit floats at `pointer`. The
            // instruction needs no alignment.
            unsafe {
                let noise = noise16(noise, column);
                let (sign, magnitude) = sign_and_magnitude16(self.0);
                let dropped = _mm512_set1_epi32(rounding::BF16_DROPPED as i32);
                // A NaN may overflow here; `finish16` replaces it.
                let rounded = _mm512_add_epi32(magnitude, _mm512_srli_epi32::<16>(noise));
                let most = _mm512_set1_epi32(rounding::BF16_MAX as i32);
                let rounded = _mm512_min_epi32(_mm512_andnot_si512(dropped, rounded), most);
                let value = _mm512_or_si512(finish16(rounded, magnitude), sign);
                let high = _mm512_srli_epi32::<16>(value);
                _mm256_storeu_si256(pointer.cast(), _mm512_cvtepi32_epi16(high));
            }
        }
    }

    /// Returns the noise of 16 columns from `column` on, equal to [`RowNoise::at`] of each
    /// column.
    ///
    /// # Safety
    /// The caller guarantees that the machine has AVX-512 F.
    #[inline(always)]
    unsafe fn noise16(noise: RowNoise, column: usize) -> __m512i {
        let [a, b, c] = rounding::MULTIPLIERS.map(|multiplier| multiplier as i32);
        let column = noise.column.wrapping_add(column as u32) as i32;
        // SAFETY: the caller guarantees AVX-512, and the instructions access no memory.
        unsafe {
            let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            let columns = _mm512_add_epi32(_mm512_set1_epi32(column), lanes);
            let scaled = _mm512_mullo_epi32(columns, _mm512_set1_epi32(a));
            let x = _mm512_add_epi32(scaled, _mm512_set1_epi32(noise.key as i32));
            let x = _mm512_xor_si512(x, _mm512_srli_epi32::<16>(x));
            let x = _mm512_mullo_epi32(x, _mm512_set1_epi32(b));
            let x = _mm512_add_epi32(x, _mm512_set1_epi32((noise.key >> 32) as i32));
            let x = _mm512_xor_si512(x, _mm512_srli_epi32::<15>(x));
            let x = _mm512_mullo_epi32(x, _mm512_set1_epi32(c));
            _mm512_xor_si512(x, _mm512_srli_epi32::<16>(x))
        }
    }

    /// # Safety
    /// The caller guarantees that the machine has AVX-512 F.
    #[inline(always)]
    unsafe fn sign_and_magnitude16(value: __m512) -> (__m512i, __m512i) {
        // SAFETY: the caller guarantees AVX-512, and the instructions access no memory.
        unsafe {
            let (bits, sign) = (_mm512_castps_si512(value), _mm512_set1_epi32(i32::MIN));
            (_mm512_and_si512(bits, sign), _mm512_andnot_si512(sign, bits))
        }
    }

    /// Returns `rounded`, except that lanes whose magnitude is infinite or NaN stay infinite or
    /// NaN.
    ///
    /// # Safety
    /// The caller guarantees that the machine has AVX-512 F.
    #[inline(always)]
    unsafe fn finish16(rounded: __m512i, magnitude: __m512i) -> __m512i {
        // SAFETY: the caller guarantees AVX-512, and the instructions access no memory.
        unsafe {
            let infinity = _mm512_set1_epi32(rounding::INFINITY as i32);
            let is_infinite = _mm512_cmpeq_epi32_mask(magnitude, infinity);
            let is_nan = _mm512_cmpgt_epi32_mask(magnitude, infinity);
            let rounded = _mm512_mask_mov_epi32(rounded, is_infinite, infinity);
            _mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(rounding::NAN as i32))
        }
    }
}
