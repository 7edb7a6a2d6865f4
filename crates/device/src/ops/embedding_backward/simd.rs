//! The row kernels of the embedding backward with vector instructions. One algorithm serves every
//! register width.
//!
//! ```text
//! sum of a row's gradients:
//!     for each strip of columns (8, 4, 2 or 1 registers, then a masked tail):    (1)
//!         sums = 0
//!         for each pair of the row: sums += factor · gradient[bag][strip]
//!         out[strip] = sums
//! ```
//! 1. The sums of a strip stay in registers over the whole row.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "calls vector instructions"))]

#[cfg(not(target_arch = "x86_64"))]
pub(super) use elsewhere::{sum_avx2, sum_avx512, update_chunk_avx2, update_chunk_avx512};
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{sum_avx2, sum_avx512, update_chunk_avx2, update_chunk_avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::ops::Range;

    use super::super::tile::Updated;
    use super::super::update::{RowKernel, UpdateBatch, UpdateWork};
    use crate::cpu::vector::x86::{Float8, Float16};
    use crate::cpu::vector::{Vector, VectorElement};
    use crate::cpu::{Avx2, Avx512};
    use crate::optimizer::{UpdateRule, split_state};
    use crate::rounding::RowNoise;

    macro_rules! entries {
        ($update:ident, $sum:ident, $token:ty, $vector:ty, $features:literal) => {
            /// Updates the rows of one chunk of pairs.
            pub(in super::super) fn $update(
                _: $token,
                work: &UpdateWork<'_>,
                pairs: Range<usize>,
            ) -> Updated {
                #[target_feature(enable = $features)]
                fn enter(work: &UpdateWork<'_>, pairs: Range<usize>) -> Updated {
                    // SAFETY: this function is compiled with the vector's instruction set, and
                    // the pool runs each chunk once.
                    unsafe { work.update_chunk::<Vectors<$vector>>(pairs) }
                }
                // SAFETY: the token proves that the machine has the instruction set.
                unsafe { enter(work, pairs) }
            }

            /// Sums the gradients of a range of pairs.
            pub(in super::super) fn $sum(
                _: $token,
                batch: &UpdateBatch<'_>,
                pairs: Range<usize>,
                sum: &mut [f32],
            ) {
                #[target_feature(enable = $features)]
                fn enter(batch: &UpdateBatch<'_>, pairs: Range<usize>, sum: &mut [f32]) {
                    // SAFETY: this function is compiled with the vector's instruction set, and
                    // the token of its caller proved that the machine has it.
                    unsafe { Vectors::<$vector>::sum(batch, pairs, sum) }
                }
                // SAFETY: the token proves that the machine has the instruction set.
                unsafe { enter(batch, pairs, sum) }
            }
        };
    }
    entries!(update_chunk_avx2, sum_avx2, Avx2, Float8, "avx2,fma,f16c");
    entries!(
        update_chunk_avx512,
        sum_avx512,
        Avx512,
        Float16,
        "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c"
    );

    /// The row kernel on registers of type `V`.
    struct Vectors<V>(std::marker::PhantomData<V>);

    impl<V: Vector> RowKernel for Vectors<V> {
        #[inline(always)]
        unsafe fn sum(batch: &UpdateBatch<'_>, pairs: Range<usize>, sum: &mut [f32]) {
            let dim = sum.len();
            let mut at = 0;
            // SAFETY: the caller guarantees the instruction set of `V`, and each strip lies
            // inside the `dim` columns.
            unsafe {
                while dim - at >= 8 * V::LANES {
                    at += strip::<V, 8>(batch, pairs.clone(), at, sum);
                }
                if dim - at >= 4 * V::LANES {
                    at += strip::<V, 4>(batch, pairs.clone(), at, sum);
                }
                if dim - at >= 2 * V::LANES {
                    at += strip::<V, 2>(batch, pairs.clone(), at, sum);
                }
                while at < dim {
                    at += strip::<V, 1>(batch, pairs.clone(), at, sum);
                }
            }
        }

        #[inline(always)]
        unsafe fn terms<E: VectorElement>(
            rule: &UpdateRule,
            weights: &mut [E],
            buffer: &mut [f32],
            sum: &[f32],
            state: &mut [f32],
        ) -> [f32; 2] {
            // SAFETY: the caller guarantees the instruction set of `V`. `take` checks that the row
            // and its buffer have the same length.
            unsafe {
                let wide = E::take::<V>(weights, buffer);
                rule.row_terms_vector::<V>(wide, sum, split_state(rule.kind, state))
            }
        }

        #[inline(always)]
        unsafe fn update<E: VectorElement>(
            rule: &UpdateRule,
            weights: &mut [E],
            buffer: &mut [f32],
            noise: RowNoise,
            sum: &[f32],
            state: &mut [f32],
            terms: Option<[f32; 2]>,
        ) {
            // SAFETY: the caller guarantees the instruction set of `V`. `take` and `put` check
            // that the row and its buffer have the same length.
            unsafe {
                let wide = E::take::<V>(weights, buffer);
                let state = split_state(rule.kind, state);
                match terms {
                    None => rule.update_row_vector::<V>(wide, sum, state),
                    Some(terms) => rule.finish_row_vector::<V>(terms, wide, sum, state),
                }
                E::put::<V>(weights, buffer, noise);
            }
        }
    }

    /// Sums `N` registers of columns from column `at` on, and returns the number of columns of a
    /// full strip. Only a strip of one register may be partial.
    ///
    /// # Safety
    /// The caller guarantees that the machine has the instruction set of `V`, that `at` lies
    /// inside `sum`, and that a strip of several registers ends inside `sum`.
    #[inline(always)]
    unsafe fn strip<V: Vector, const N: usize>(
        batch: &UpdateBatch<'_>,
        pairs: Range<usize>,
        at: usize,
        sum: &mut [f32],
    ) -> usize {
        let left = sum.len() - at;
        // SAFETY: the checks of the operation verified that `gradient[start..]` has `dim` columns
        // of the slot. Loads and stores access at most `left` of these columns, and only strips
        // of one register can be partial.
        unsafe {
            let mut sums = [V::splat(0.0); N];
            for position in pairs {
                let (start, factor) = batch.locate(position);
                debug_assert!(start + sum.len() <= batch.gradient.len());
                let (factor, gradient) =
                    (V::splat(factor), batch.gradient.as_ptr().add(start + at));
                for (n, sum) in sums.iter_mut().enumerate() {
                    let pointer = gradient.add(n * V::LANES);
                    let value =
                        if N == 1 { V::load_up_to(pointer, left) } else { V::load(pointer) };
                    *sum = sum.add(factor.mul(value));
                }
            }
            let target = sum.as_mut_ptr().add(at);
            for (n, sum) in sums.iter().enumerate() {
                if N == 1 {
                    sum.store_up_to(target, left);
                } else {
                    sum.store(target.add(n * V::LANES));
                }
            }
        }
        N * V::LANES
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod elsewhere {
    use std::ops::Range;

    use super::super::tile::Updated;
    use super::super::update::{UpdateBatch, UpdateWork};
    use crate::cpu::{Avx2, Avx512};

    macro_rules! unreachable_entries {
        ($update:ident, $sum:ident, $token:ty) => {
            /// Never called, because the token cannot exist on this architecture.
            pub(in super::super) fn $update(
                _: $token,
                _: &UpdateWork<'_>,
                _: Range<usize>,
            ) -> Updated {
                Updated::default()
            }
            /// Never called, because the token cannot exist on this architecture.
            pub(in super::super) fn $sum(
                _: $token,
                _: &UpdateBatch<'_>,
                _: Range<usize>,
                _: &mut [f32],
            ) {
            }
        };
    }
    unreachable_entries!(update_chunk_avx2, sum_avx2, Avx2);
    unreachable_entries!(update_chunk_avx512, sum_avx512, Avx512);
}
