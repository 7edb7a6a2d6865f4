//! The pooled lookup with vector instructions. One algorithm serves every register width.
//!
//! ```text
//! for each bag of the chunk:
//!     for each strip of columns (8, 4, 2 or 1 registers, then a masked tail):    (1)
//!         sums = 0
//!         for each id of the bag: prefetch the row some ids ahead               (2)
//!             sums += weight · row[strip]
//!         out[strip] = scale · sums
//! ```
//! 1. The sums of a strip stay in registers over the whole bag, so each output is written once.
//! 2. Rows are random lines of a large table, which no hardware prefetcher can predict. The
//!    following ids, also those of later bags, determine the next lines, so they are prefetched.
//!    If each bag has one id, storing the output past the caches saves a quarter of the time.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calls vector instructions and reads rows without bounds checks")
)]

use super::block::BagBlock;
use crate::cpu::Isa;
use crate::cpu::vector::VectorElement;

/// Pools the bags of `block` from its table's weights.
pub(super) fn pool<E: VectorElement>(isa: Isa, block: &BagBlock<'_>, weights: &[E]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => x86::pool_avx2(token, block, weights),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => x86::pool_avx512(token, block, weights),
        _ => block.pool_portable(weights),
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::block::BagBlock;
    use crate::cpu::vector::x86::{Float8, Float16};
    use crate::cpu::vector::{Vector, VectorElement, prefetch_row_second};
    use crate::cpu::{Avx2, Avx512};

    /// Number of bytes of rows that are prefetched ahead of their use.
    const BYTES_AHEAD: usize = 8192;

    macro_rules! entry {
        ($name:ident, $token:ty, $vector:ty, $features:literal) => {
            pub(super) fn $name<E: VectorElement>(_: $token, block: &BagBlock<'_>, weights: &[E]) {
                #[target_feature(enable = $features)]
                fn enter<E: VectorElement>(block: &BagBlock<'_>, weights: &[E]) {
                    // SAFETY: this function is compiled with the vector's instruction set, and
                    // the token of its caller proved that the machine has it.
                    unsafe { pool_block::<$vector, E>(block, weights) }
                }
                // SAFETY: the token proves that the machine has the instruction set.
                unsafe { enter(block, weights) }
            }
        };
    }
    entry!(pool_avx2, Avx2, Float8, "avx2,fma,f16c");
    entry!(pool_avx512, Avx512, Float16, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c");

    /// One bag: its rows and their factors, and the ids that follow it.
    struct Bag<'a, E> {
        table: *const E,
        dim: usize,
        ids: &'a [i64],
        /// Weights of the ids; empty if all of them are 1.
        weights: &'a [f32],
        scale: f32,
        /// Ids to prefetch: those from `ids[distance]` on, including the ids of the following
        /// bags of the block.
        ahead: &'a [i64],
        past_caches: bool,
    }

    /// Pools the bags of a block like [`pool_bags`], with an instance of the code for each common
    /// dimension. If each bag has one id, this saves a tenth of the time at D = 32 and a
    /// twentieth at D = 64.
    ///
    /// # Safety
    /// The caller guarantees that the machine has the instruction set of `V`, and that every id
    /// of the block is a row of `table`.
    #[inline(always)]
    unsafe fn pool_block<V: Vector, E: VectorElement>(block: &BagBlock<'_>, table: &[E]) {
        // SAFETY: the caller guarantees the instruction set of `V` and valid ids, and `dim` is
        // the table's dimension.
        unsafe {
            match block.tile.dim {
                16 => pool_bags::<V, E>(block, table, 16),
                32 => pool_bags::<V, E>(block, table, 32),
                64 => pool_bags::<V, E>(block, table, 64),
                128 => pool_bags::<V, E>(block, table, 128),
                dim => pool_bags::<V, E>(block, table, dim),
            }
        }
    }

    /// # Safety
    /// The caller guarantees the same conditions as for [`pool_block`], and that `dim` is the
    /// dimension of the table.
    #[inline(always)]
    unsafe fn pool_bags<V: Vector, E: VectorElement>(
        block: &BagBlock<'_>,
        table: &[E],
        dim: usize,
    ) {
        let (jagged, ids) = (block.jagged, block.positions());
        let (end, distance) = (ids.end, (BYTES_AHEAD / (size_of::<E>() * dim)).clamp(2, 64));
        // The first rows are prefetched here. Each later row is prefetched while an earlier one
        // is summed.
        for &id in jagged.values[ids].iter().take(distance) {
            prefetch_row_second(table.as_ptr().wrapping_add(id as usize * dim), dim);
        }
        let weights = jagged.weights.as_deref();
        for sample in block.samples.clone() {
            let bag = jagged.bag(block.feature, sample);
            if block.gives_nothing(&bag) {
                continue;
            }
            let (scale, mut at, last) = (block.scale(sample), bag.start, bag.end);
            loop {
                let range = block.summed(&bag, at);
                at = range.end;
                let out = block.out(sample, range.start);
                let bag = Bag {
                    table: table.as_ptr(),
                    dim,
                    ids: &jagged.values[range.clone()],
                    weights: weights.map_or(&[], |weights| &weights[range.clone()]),
                    scale,
                    ahead: &jagged.values[end.min(range.start + distance)..end],
                    past_caches: block.past_caches,
                };
                // SAFETY: the caller guarantees the instruction set of `V`, and the ids of the
                // chunk have been checked.
                unsafe {
                    if weights.is_some() {
                        pool_bag::<V, E, true>(&bag, out);
                    } else {
                        pool_bag::<V, E, false>(&bag, out);
                    }
                }
                if at >= last {
                    break;
                }
            }
        }
    }

    /// # Safety
    /// The caller guarantees the same conditions as for [`pool_block`] for the ids of this bag,
    /// and that `out` has `dim` floats.
    #[inline(always)]
    unsafe fn pool_bag<V: Vector, E: VectorElement, const WEIGHTED: bool>(
        bag: &Bag<'_, E>,
        out: &mut [f32],
    ) {
        let mut at = 0;
        // SAFETY: the caller guarantees the instruction set of `V` and valid ids, and each strip
        // lies inside the `dim` columns of the rows and of `out`.
        unsafe {
            while bag.dim - at >= 8 * V::LANES {
                at += strip::<V, E, 8, WEIGHTED>(bag, at, out);
            }
            if bag.dim - at >= 4 * V::LANES {
                at += strip::<V, E, 4, WEIGHTED>(bag, at, out);
            }
            if bag.dim - at >= 2 * V::LANES {
                at += strip::<V, E, 2, WEIGHTED>(bag, at, out);
            }
            while at < bag.dim {
                at += strip::<V, E, 1, WEIGHTED>(bag, at, out);
            }
        }
    }

    /// Pools `N` registers of columns from column `at` on, and returns the number of columns of a
    /// full strip. Only a strip of one register may be partial.
    ///
    /// # Safety
    /// The caller guarantees the same conditions as for [`pool_bag`], that `at` lies inside the
    /// row, and that a strip of several registers ends inside the row.
    #[inline(always)]
    unsafe fn strip<V: Vector, E: VectorElement, const N: usize, const WEIGHTED: bool>(
        bag: &Bag<'_, E>,
        at: usize,
        out: &mut [f32],
    ) -> usize {
        let left = bag.dim - at;
        let ahead = if at == 0 { bag.ahead } else { &[] };
        // SAFETY: `id < rows` was checked for every id of the chunk, so `row` starts inside the
        // table and has at least `left` weights. `out` has `dim` floats. `load_up_to` and
        // `store_up_to` stay within `left`, and only the last register of a strip can be partial.
        unsafe {
            let mut sums = [V::splat(0.0); N];
            for (j, &id) in bag.ids.iter().enumerate() {
                if let Some(&next) = ahead.get(j) {
                    prefetch_row_second(bag.table.wrapping_add(next as usize * bag.dim), bag.dim);
                }
                let row = bag.table.add(id as usize * bag.dim + at);
                let weight = V::splat(if WEIGHTED { *bag.weights.get_unchecked(j) } else { 1.0 });
                for (n, sum) in sums.iter_mut().enumerate() {
                    let value = load::<V, E, N>(row.add(n * V::LANES), left);
                    *sum = sum.add(if WEIGHTED { weight.mul(value) } else { value });
                }
            }
            let scale = V::splat(bag.scale);
            let target = out.as_mut_ptr().add(at);
            if bag.past_caches {
                for (n, sum) in sums.into_iter().enumerate() {
                    scale.mul(sum).stream(target.add(n * V::LANES));
                }
                return N * V::LANES;
            }
            for (n, sum) in sums.iter().enumerate() {
                let value = scale.mul(*sum);
                if N == 1 {
                    value.store_up_to(target, left);
                } else {
                    value.store(target.add(n * V::LANES));
                }
            }
        }
        N * V::LANES
    }

    /// Loads one register of a row. The register may be partial only in a strip of one register.
    ///
    /// # Safety
    /// The caller guarantees that the machine has the instruction set of `V` and that `min(left,
    /// LANES)` weights at `pointer` are valid. If `N > 1`, all `LANES` weights must be valid.
    #[inline(always)]
    unsafe fn load<V: Vector, E: VectorElement, const N: usize>(
        pointer: *const E,
        left: usize,
    ) -> V {
        // SAFETY: the caller guarantees `min(left, LANES)` valid weights at `pointer`, and
        // `LANES` valid weights if `N > 1`.
        unsafe { if N == 1 { E::load_up_to(pointer, left) } else { E::load(pointer) } }
    }
}
