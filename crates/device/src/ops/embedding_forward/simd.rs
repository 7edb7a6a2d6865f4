//! Pooled lookup with vectors: one algorithm for every register width.
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
//! 2. Rows are random lines of a large table; the ids ahead, of the following bags too, say which
//!    lines come next, and no hardware prefetcher can guess them.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "vector instructions and unchecked row addresses")
)]

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{pool_avx2, pool_avx512};

#[cfg(not(target_arch = "x86_64"))]
mod elsewhere {
    use crate::cpu::{Avx2, Avx512};

    /// Cannot be called: the token does not exist on this machine.
    pub(in super::super) fn pool_avx2(_: Avx2, _: &super::super::Block<'_>) {}

    /// Cannot be called: the token does not exist on this machine.
    pub(in super::super) fn pool_avx512(_: Avx512, _: &super::super::Block<'_>) {}
}
#[cfg(not(target_arch = "x86_64"))]
pub(super) use elsewhere::{pool_avx2, pool_avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::Block;
    use crate::cpu::vector::x86::{Float8, Float16};
    use crate::cpu::vector::{Vector, prefetch_row};
    use crate::cpu::{Avx2, Avx512};

    /// Bytes of rows asked for ahead of their use.
    const BYTES_AHEAD: usize = 2048;

    /// The chunk with registers of 8 floats.
    pub(in super::super) fn pool_avx2(_: Avx2, block: &Block<'_>) {
        // SAFETY: the token proves AVX2 and FMA.
        unsafe { enter_avx2(block) }
    }

    /// The chunk with registers of 16 floats.
    pub(in super::super) fn pool_avx512(_: Avx512, block: &Block<'_>) {
        // SAFETY: the token proves the AVX-512 group.
        unsafe { enter_avx512(block) }
    }

    #[target_feature(enable = "avx2,fma")]
    fn enter_avx2(block: &Block<'_>) {
        // SAFETY: compiled for the instruction set of `Float8`; the caller has it.
        unsafe { pool_bags::<Float8>(block) }
    }

    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
    fn enter_avx512(block: &Block<'_>) {
        // SAFETY: compiled for the instruction set of `Float16`; the caller has it.
        unsafe { pool_bags::<Float16>(block) }
    }

    /// One bag: its rows, its factors and what comes after it.
    struct Bag<'a> {
        table: *const f32,
        dim: usize,
        ids: &'a [i64],
        /// Weights of the ids, empty where all are 1.
        weights: &'a [f32],
        scale: f32,
        /// Ids from `ids[distance]` on, across the following bags of the slot.
        ahead: &'a [i64],
    }

    #[inline(always)]
    unsafe fn pool_bags<V: Vector>(block: &Block<'_>) {
        let (jagged, tile) = (block.jagged, block.tile);
        let end = jagged.feature(block.feature).end;
        let distance = (BYTES_AHEAD / (4 * tile.dim)).clamp(2, 32);
        let weights = jagged.weights.as_deref();
        for sample in block.samples.clone() {
            let range = jagged.bag(block.feature, sample);
            let bag = Bag {
                table: tile.weights.as_ptr(),
                dim: tile.dim,
                ids: &jagged.values[range.clone()],
                weights: weights.map_or(&[], |weights| &weights[range.clone()]),
                scale: block.scale(sample),
                ahead: &jagged.values[end.min(range.start + distance)..end],
            };
            // SAFETY: the caller vouches for `V`; the ids of the chunk have been checked.
            unsafe {
                if weights.is_some() {
                    pool_bag::<V, true>(&bag, block.out(sample));
                } else {
                    pool_bag::<V, false>(&bag, block.out(sample));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn pool_bag<V: Vector, const WEIGHTED: bool>(bag: &Bag<'_>, out: &mut [f32]) {
        let mut at = 0;
        // SAFETY: each strip lies inside the `dim` columns of the rows and of `out`.
        unsafe {
            while bag.dim - at >= 8 * V::LANES {
                at += strip::<V, 8, WEIGHTED>(bag, at, out);
            }
            if bag.dim - at >= 4 * V::LANES {
                at += strip::<V, 4, WEIGHTED>(bag, at, out);
            }
            if bag.dim - at >= 2 * V::LANES {
                at += strip::<V, 2, WEIGHTED>(bag, at, out);
            }
            while at < bag.dim {
                at += strip::<V, 1, WEIGHTED>(bag, at, out);
            }
        }
    }

    /// Pools the columns from `at` on, `N` registers of them (a last one may be partial where `N`
    /// is 1), and returns how many columns a full strip has.
    #[inline(always)]
    unsafe fn strip<V: Vector, const N: usize, const WEIGHTED: bool>(
        bag: &Bag<'_>,
        at: usize,
        out: &mut [f32],
    ) -> usize {
        let left = bag.dim - at;
        let ahead = if at == 0 { bag.ahead } else { &[] };
        // SAFETY: `id < rows` was checked for every id of the chunk, so `row` starts inside the
        // table and has `left` floats after it; `out` has `dim` floats. `load_up_to` and
        // `store_up_to` stay within `left`, and only the last register of a strip can be partial.
        unsafe {
            let mut sums = [V::splat(0.0); N];
            for (j, &id) in bag.ids.iter().enumerate() {
                if let Some(&next) = ahead.get(j) {
                    prefetch_row(bag.table.wrapping_add(next as usize * bag.dim), bag.dim);
                }
                let row = bag.table.add(id as usize * bag.dim + at);
                let weight = V::splat(if WEIGHTED { *bag.weights.get_unchecked(j) } else { 1.0 });
                for (n, sum) in sums.iter_mut().enumerate() {
                    let value = load::<V, N>(row.add(n * V::LANES), left);
                    *sum = sum.add(if WEIGHTED { weight.mul(value) } else { value });
                }
            }
            let scale = V::splat(bag.scale);
            let target = out.as_mut_ptr().add(at);
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

    /// One register of a row; only strips of one register can be partial.
    #[inline(always)]
    unsafe fn load<V: Vector, const N: usize>(pointer: *const f32, left: usize) -> V {
        // SAFETY: the caller vouches for `min(left, LANES)` floats, all of them where `N > 1`.
        unsafe { if N == 1 { V::load_up_to(pointer, left) } else { V::load(pointer) } }
    }
}
