//! The products with vector instructions: the loops over a chunk, around a [tile](super::tile) of
//! sums.
//!
//! ```text
//! for panel of columns, for strip of rows:
//!     sums[row, column] = Σ_i a[row, i] · b[i, column]      in registers, over the whole inner
//!     c = finish(sums)                                      bias and ReLU, or the mask of ReLU
//! ```
//! 1. The tile is 12 × 32 (AVX-512: 24 sums of 32 registers) or 6 × 16 (AVX2, half a panel at a
//!    time). A step has 14 loads and 24 multiply-adds, which suits a core that starts two of each
//!    per cycle; tiles of 8 × 32 (10 loads, 16 multiply-adds) took 15–20 % longer. On a core that
//!    starts one 512-bit multiply-add per cycle, both are equally fast. In the last panel only
//!    the registers that contain columns are summed. The weight gradient uses tiles of 8 × 48
//!    where possible, two tiles on three panels. Such a tile needs 11 loads for as many sums, and
//!    32 outputs are exactly four strips. The wide tiles save 3–5 % of the time. The other
//!    products would gain 4–8 % if two hardware threads share a core, but lose 2–3 % if one
//!    thread has the core alone.
//! 2. `a` is read in place, one broadcast per row and inner index. The cache lines of `a` are
//!    prefetched one panel and one strip ahead. On a core with a peak of 117 GFLOP/s, the
//!    products reach 80–95 GFLOP/s without this prefetch and 109–111 with it. Later operands are
//!    prefetched into L2, spread over the steps. The weight gradient prefetches the next panel of
//!    dY and the next block of X (8 % less time, 20 % if the shared cache is busy or far away).
//!    The other products prefetch the next panel of weights and the output of the tile.
//!    Prefetching the output in a burst before the first step took 2 % of the time.
//! 3. A chunk's rows stay in the second-level cache while panels of weights are read sequentially.
//!    The alternative, keeping two panels in the cache while rows are read, takes 4–5 % more time
//!    if two threads share memory with others, because the rows of each panel come from another
//!    place.
//! 4. The whole inner extent is summed in registers, so that `c` is written once, with all
//!    operations applied. In bf16, two rows are written at a time, because both forms of a pair
//!    need values of two rows.
#![expect(unsafe_code, reason = "calls vector instructions on raw pointers to panels")]

use std::ops::Range;

use super::chunk::{CHUNK_ROWS, Finish, RoundChunk, RowsChunk, SumSink, WIDE_PANELS, WeightChunk};
use super::panels::{ACROSS, PANEL};
use super::terms::{Register, Terms};
use super::tile::{Ahead, LINE, STEPS, Strip, sums};
use super::word::Word;
use crate::cpu::vector::{Vector, prefetch_row_second};

impl<W: Word> RowsChunk<'_, W> {
    /// Returns the memory that a tile of `rows` rows writes, and the outputs that mask the tile.
    /// Both are prefetched over the steps, or at once if there are too few steps.
    #[inline(always)]
    fn outputs(&self, panel: usize, row: usize, rows: usize) -> [Ahead<W>; 2] {
        let at = (panel * self.samples + row) * PANEL;
        let (c, words) = match self.sink {
            SumSink::F32(values) => (values.as_ptr().wrapping_add(at).cast(), rows * PANEL),
            SumSink::Bf16 { across, .. } => {
                (across.as_ptr().wrapping_add(at / 2).cast(), rows * ACROSS)
            }
        };
        let mask = match self.finish {
            Finish::Mask(outputs) => outputs.as_ptr().wrapping_add(at).cast(),
            Finish::MaskPairs(outputs) => outputs.as_ptr().wrapping_add(at / 2).cast(),
            _ => c,
        };
        let pace = (2 * words).div_ceil(self.inner.max(1));
        if pace * STEPS > LINE {
            prefetch_row_second(c, words);
            if mask != c {
                prefetch_row_second(mask, words);
            }
        }
        [c, mask].map(|next| Ahead { next, pace })
    }
}

impl<W: Word> WeightChunk<W> {
    /// Returns the prefetch targets during a tile of the weight gradient. The targets are the
    /// tile's share of the next dY panel, and its share of the next block of X in two halves.
    /// After the last block, they are the tile's part of the weight and of the weight's other
    /// layout, for a fused update. Both counts are in rows of 32 values: `done` rows since
    /// `panel`, and `rows` of this tile.
    #[inline(always)]
    fn ahead(
        &self,
        steps: &Range<usize>,
        n_panel: usize,
        panel: usize,
        done: usize,
        rows: usize,
    ) -> [Ahead<W>; 3] {
        let (groups, parts) = (self.k_panels.len(), self.n_panels.len());
        let next = if n_panel + 1 < self.n_panels.end {
            (n_panel + 1) * self.inner + steps.start
        } else {
            self.n_panels.start * self.inner + steps.end
        };
        // One panel of dY accounts for `groups · 32` rows of prefetched memory.
        let done_here = (panel - self.k_panels.start) * PANEL + done;
        let done_all = (n_panel - self.n_panels.start) * groups * PANEL + done_here;
        let (place, block) = (done_all * steps.len() / parts, steps.len() * PANEL);
        let x = (self.k_panels.start + place / block) * self.inner + steps.end;
        let d_y = self.d_y.wrapping_add(next * PANEL + done_here * steps.len() / groups);
        let x = self.x.wrapping_add(x * PANEL + place % block);
        let d_y = Ahead { next: d_y, pace: rows.div_ceil(groups) };
        if let Some(beside) = self.beside.filter(|_| steps.end == self.inner) {
            let row = (panel + done / PANEL) * self.n + n_panel * PANEL + done % PANEL;
            let values = beside.values.wrapping_add(row * PANEL);
            let form_row = n_panel * self.k.div_ceil(W::VALUES);
            let form_row = form_row + panel * PANEL / W::VALUES + done / W::VALUES;
            let forward = beside.forward.wrapping_add(form_row * PANEL);
            let pace = (2 * rows * PANEL).div_ceil(steps.len());
            return [
                d_y,
                Ahead { next: values.cast(), pace },
                Ahead { next: forward.cast(), pace },
            ];
        }
        let pace = rows.div_ceil(parts);
        let half = x.wrapping_add(steps.len() / 2 * pace);
        [d_y, Ahead { next: x, pace }, Ahead { next: half, pace }]
    }
}

/// Computes panels in strips of `R` rows, then of 8, 4, 2 and 1. Each strip prefetches a part of
/// the next panel's factors. In the last panel, it prefetches the first panel, with which the
/// next chunk begins.
///
/// # Safety
/// The caller guarantees that the machine has the registers of `T`, that the chunk's pointers are
/// valid for the extents that its fields state, and that no other thread writes the same part of
/// the result.
#[inline(always)]
unsafe fn rows_chunk<T: Terms, const R: usize>(chunk: &RowsChunk<'_, T::Word>) {
    let RowsChunk { inner, panels, rows, .. } = chunk;
    for panel in panels.clone() {
        let next = if panel + 1 < panels.end { panel + 1 } else { panels.start };
        let next = chunk.b.wrapping_add(next * inner * PANEL);
        let mut ahead = Ahead { next, pace: PANEL * R / CHUNK_ROWS };
        let mut row = rows.start;
        while row < rows.end {
            let taken = strip(rows.end - row, R);
            // SAFETY: the caller checked that the rows and the panels lie inside the matrices.
            unsafe {
                match taken {
                    8 if R > 8 => rows_tile::<T, 8>(chunk, panel, row, ahead),
                    4 => rows_tile::<T, 4>(chunk, panel, row, ahead),
                    2 => rows_tile::<T, 2>(chunk, panel, row, ahead),
                    1 => rows_tile::<T, 1>(chunk, panel, row, ahead),
                    _ => rows_tile::<T, R>(chunk, panel, row, ahead),
                }
            }
            ahead.next = ahead.next.wrapping_add(inner * ahead.pace);
            row += taken;
        }
    }
}

/// Computes `R` rows of a panel of C.
///
/// # Safety
/// The caller guarantees the same conditions as for [`rows_chunk`]. The rows and the panel must
/// belong to the chunk.
#[inline(always)]
unsafe fn rows_tile<T: Terms, const R: usize>(
    chunk: &RowsChunk<'_, T::Word>,
    panel: usize,
    row: usize,
    ahead: Ahead<T::Word>,
) {
    let inner = chunk.inner;
    let columns = PANEL.min(chunk.columns - panel * PANEL);
    let width = PANEL / T::Word::VALUES;
    let runs = inner.div_ceil(width);
    let [c, mask] = chunk.outputs(panel, row, R);
    let a = Strip {
        first: chunk.a.wrapping_add(row * width),
        row: width,
        step: 1,
        runs,
        steps: width,
        last_steps: inner - runs.saturating_sub(1) * width,
        stride: chunk.a_samples * width,
        ahead: [ahead, c, mask],
    };
    let b = chunk.b.wrapping_add(panel * inner * PANEL);
    for half in (0..PANEL).step_by(2 * T::Sum::LANES) {
        // SAFETY: the caller guarantees the registers of `T` and a valid chunk, to which these
        // rows and this panel belong.
        unsafe {
            let b = std::array::from_fn(|c| b.wrapping_add(half + c * T::Sum::LANES));
            let sums = sums::<T, R, 2>(a, b, columns.saturating_sub(half));
            put_rows(sums, chunk, panel, row, half);
        }
    }
}

/// Applies the finishing operation to the sums of `R` rows from the even `row` on, and stores the
/// results.
///
/// # Safety
/// The caller guarantees the same conditions as for [`rows_chunk`]. The rows and the panel must
/// belong to the chunk.
#[inline(always)]
unsafe fn put_rows<V: Register, W, const R: usize>(
    sums: [[V; 2]; R],
    chunk: &RowsChunk<'_, W>,
    panel: usize,
    first: usize,
    half: usize,
) {
    let at = (panel * chunk.samples + first) * PANEL + half;
    let tile = (R - 1) * PANEL + 2 * V::LANES;
    // SAFETY: panels are padded to 32 columns, so whole registers lie inside them even after the
    // last column.
    unsafe {
        let sums = finished(sums, chunk, at, panel * PANEL + half);
        match chunk.sink {
            SumSink::F32(c) => {
                let c = c.write_ptr(at..at + tile);
                for_registers::<R>(|row, i| {
                    sums[row][i].store(c.add(row * PANEL + i * V::LANES));
                });
            }
            SumSink::Bf16 { across, down } => {
                let across = across.write_ptr(at / 2..(at + tile) / 2);
                for (row, sums) in sums.iter().enumerate() {
                    for (i, sum) in sums.iter().enumerate() {
                        sum.store_across(across.add((row * PANEL + i * V::LANES) / 2));
                    }
                }
                let pair = (panel * chunk.samples.div_ceil(2) + first / 2) * PANEL + half;
                let pairs = (R.div_ceil(2) - 1) * PANEL + 2 * V::LANES;
                let down = down.write_ptr(pair..pair + pairs);
                for (row, rows) in sums.chunks(2).enumerate() {
                    for i in 0..2 {
                        let second = if rows.len() == 2 { rows[1][i] } else { V::splat(0.0) };
                        rows[0][i].store_down(second, down.add(row * PANEL + i * V::LANES));
                    }
                }
            }
        }
    }
}

/// Returns the sums of `R` rows with bias, ReLU or mask applied; `at` is an index into C. The
/// kind of operation is examined once for all rows, so that the loop has no branch and the sums
/// stay in registers.
///
/// # Safety
/// The caller guarantees the same conditions as for [`rows_chunk`]. `R` rows of two registers
/// from `at` on must belong to the chunk.
#[inline(always)]
unsafe fn finished<V: Register, W, const R: usize>(
    mut sums: [[V; 2]; R],
    chunk: &RowsChunk<'_, W>,
    at: usize,
    column: usize,
) -> [[V; 2]; R] {
    let place = |row: usize, i: usize| at + row * PANEL + i * V::LANES;
    let sum = &mut sums;
    // SAFETY: the bias has all columns of C, and the mask has all values of C, so the reads lie
    // inside them.
    unsafe {
        match (chunk.finish, chunk.sink) {
            (Finish::Store, _) => {}
            (Finish::Add, SumSink::F32(c)) => for_registers::<R>(|row, i| {
                sum[row][i] = sum[row][i].add(V::load(c.as_ptr().add(place(row, i))));
            }),
            (Finish::Add, SumSink::Bf16 { across, .. }) => for_registers::<R>(|row, i| {
                let there = across.as_ptr().add(place(row, i) / 2);
                sum[row][i] = sum[row][i].add(V::load_bf16(there.cast()));
            }),
            (Finish::Bias(bias), _) => {
                let bias = [0, 1].map(|i| V::load(bias.as_ptr().add(column + i * V::LANES)));
                for_registers::<R>(|row, i| sum[row][i] = sum[row][i].add(bias[i]));
            }
            (Finish::BiasRelu(bias), _) => {
                let bias = [0, 1].map(|i| V::load(bias.as_ptr().add(column + i * V::LANES)));
                for_registers::<R>(|row, i| sum[row][i] = sum[row][i].add(bias[i]).relu());
            }
            (Finish::Mask(outputs), _) => for_registers::<R>(|row, i| {
                let output = V::load(outputs.as_ptr().add(place(row, i)));
                sum[row][i] = sum[row][i].where_positive(output);
            }),
            (Finish::MaskPairs(outputs), _) => for_registers::<R>(|row, i| {
                let output = V::load_bf16(outputs.as_ptr().add(place(row, i) / 2).cast());
                sum[row][i] = sum[row][i].where_positive(output);
            }),
        }
    }
    sums
}

/// Calls `each` for each row and each of its two registers, in loops that the compiler unrolls.
#[inline(always)]
fn for_registers<const R: usize>(mut each: impl FnMut(usize, usize)) {
    for rows in [0..R / 4, R / 4..R / 2, R / 2..R * 3 / 4, R * 3 / 4..R] {
        for row in rows {
            each(row, 0);
            each(row, 1);
        }
    }
}

/// Returns the number of columns that tiles of `c` registers cover together: one panel for tiles
/// of two registers, and `c` registers otherwise.
const fn width<V: Vector>(c: usize) -> usize {
    if c == 2 { PANEL } else { c * V::LANES }
}

/// Returns the word index at which each of the `C` registers of columns from `column` on begins,
/// in panels of `rows` rows.
#[inline(always)]
fn places<V: Vector, const C: usize>(column: usize, rows: usize) -> [usize; C] {
    let place = |column| column / PANEL * rows * PANEL + column % PANEL;
    if PANEL.is_multiple_of(C * V::LANES) {
        return std::array::from_fn(|c| place(column) + c * V::LANES);
    }
    std::array::from_fn(|c| place(column + c * V::LANES))
}

/// Computes one block of steps at a time and adds its sums to those of earlier blocks. Tiles of
/// `WIDE` rows and three registers cover three panels of X together, unless `WIDE` is 0. Tiles of
/// `R` rows and two registers cover the remaining panels one by one.
///
/// # Safety
/// The caller guarantees that the machine has the registers of `T`, that the chunk's pointers are
/// valid for the extents that its fields state, and that no other thread writes the same part of
/// the result.
#[inline(always)]
unsafe fn weight_chunk<T: Terms, const R: usize, const WIDE: usize>(chunk: &WeightChunk<T::Word>) {
    let whole = chunk.k_panels.end.min(chunk.k / PANEL);
    for steps in chunk.blocks() {
        for n_panel in chunk.n_panels.clone() {
            // SAFETY: the caller checked that the panels lie inside the matrices.
            unsafe {
                chunk.add_bias(&steps, n_panel);
                let mut panel = chunk.k_panels.start;
                while panel < chunk.k_panels.end {
                    if WIDE > 0 && panel + WIDE_PANELS <= whole {
                        for tile in 0..WIDE_PANELS * PANEL / width::<T::Sum>(3) {
                            weight_strips::<T, WIDE, 3>(chunk, &steps, n_panel, panel, tile);
                        }
                        panel += WIDE_PANELS;
                    } else {
                        weight_strips::<T, R, 2>(chunk, &steps, n_panel, panel, 0);
                        panel += 1;
                    }
                }
            }
        }
    }
}

/// Computes the outputs of a panel in strips of `R` rows, then of 8, 4, 2 and 1, for the columns
/// of one tile. The tile has the number `tile`, counted from `panel` on.
///
/// # Safety
/// The caller guarantees the same conditions as for [`weight_chunk`]. The steps, both panels and
/// the tile must belong to the chunk.
#[inline(always)]
unsafe fn weight_strips<T: Terms, const R: usize, const C: usize>(
    chunk: &WeightChunk<T::Word>,
    steps: &Range<usize>,
    n_panel: usize,
    panel: usize,
    tile: usize,
) {
    let (outputs, width) = (chunk.outputs(n_panel), width::<T::Sum>(C));
    let column = panel * PANEL + tile * width;
    let mut row = 0;
    while row < outputs {
        let taken = strip(outputs - row, R);
        let (done, rows) = ((tile * PANEL + row) * width / PANEL, (taken * width).div_ceil(PANEL));
        let ahead = chunk.ahead(steps, n_panel, panel, done, rows);
        let first = n_panel * PANEL + row;
        // SAFETY: the caller checked that the panels lie inside the matrices.
        unsafe {
            match taken {
                8 if R > 8 => weight_tile::<T, 8, C>(chunk, steps, first, column, ahead),
                4 => weight_tile::<T, 4, C>(chunk, steps, first, column, ahead),
                2 => weight_tile::<T, 2, C>(chunk, steps, first, column, ahead),
                1 => weight_tile::<T, 1, C>(chunk, steps, first, column, ahead),
                _ => weight_tile::<T, R, C>(chunk, steps, first, column, ahead),
            }
        }
        row += taken;
    }
}

/// Computes `R` outputs of the weight gradient for the inputs of a tile, over some steps.
///
/// # Safety
/// The caller guarantees the same conditions as for [`weight_chunk`]. The steps, the outputs and
/// the inputs must belong to the chunk.
#[inline(always)]
unsafe fn weight_tile<T: Terms, const R: usize, const C: usize>(
    chunk: &WeightChunk<T::Word>,
    steps: &Range<usize>,
    row: usize,
    column: usize,
    ahead: [Ahead<T::Word>; 3],
) {
    let WeightChunk { inner, n, k, .. } = *chunk;
    let d_y = (row / PANEL * inner + steps.start) * PANEL + row % PANEL;
    let a = Strip {
        first: chunk.d_y.wrapping_add(d_y),
        row: 1,
        step: PANEL,
        runs: 1,
        steps: 0,
        last_steps: steps.len(),
        stride: 0,
        ahead,
    };
    let end = column + width::<T::Sum>(C);
    for panel in column / PANEL..end.div_ceil(PANEL) {
        prefetch_row_second(chunk.d_weight.wrapping_add((panel * n + row) * PANEL), R * PANEL);
    }
    for column in (column..end).step_by(C * T::Sum::LANES) {
        let b = places::<T::Sum, C>(column, inner)
            .map(|place| chunk.x.wrapping_add(place + steps.start * PANEL));
        let c = places::<T::Sum, C>(column, n)
            .map(|place| chunk.d_weight.wrapping_add(place + row * PANEL));
        // SAFETY: the caller guarantees the registers of `T` and a valid chunk, to which these
        // steps, outputs and inputs belong. Panels of the gradient are padded to 32 columns.
        unsafe {
            let sums = if column < k {
                sums::<T, R, C>(a, b, k - column)
            } else {
                [[T::Sum::splat(0.0); C]; R]
            };
            for (row, sums) in sums.into_iter().enumerate() {
                for (c, sum) in c.iter().zip(sums) {
                    let c = c.wrapping_add(row * PANEL);
                    let sum = if steps.start == 0 && !chunk.adds {
                        sum
                    } else {
                        sum.add(T::Sum::load(c))
                    };
                    sum.store(c);
                }
            }
        }
    }
}

/// Rounds the rows of a chunk to bf16, two rows at a time.
///
/// # Safety
/// The caller guarantees that the machine has the instruction set of `V`, that the chunk's
/// pointers are valid for the extents that its fields state, and that no other thread writes the
/// same part of the result.
#[inline(always)]
unsafe fn round_chunk<V: Register>(chunk: &RoundChunk) {
    for row in (0..chunk.rows).step_by(2) {
        for column in (0..PANEL).step_by(V::LANES) {
            // SAFETY: the caller guarantees that the chunk's matrices are valid, and both rows
            // lie inside them.
            unsafe {
                let first = V::load(chunk.matrix.add(row * PANEL + column));
                first.store_across(chunk.across.add(row * ACROSS + column / 2));
                let mut second = V::splat(0.0);
                if row + 1 < chunk.rows {
                    second = V::load(chunk.matrix.add((row + 1) * PANEL + column));
                    second.store_across(chunk.across.add((row + 1) * ACROSS + column / 2));
                }
                first.store_down(second, chunk.down.add(row / 2 * PANEL + column));
            }
        }
    }
}

/// Returns the number of rows of the next strip if `left` rows remain.
#[inline(always)]
fn strip(left: usize, full: usize) -> usize {
    [full, 8, 4, 2].into_iter().find(|&rows| rows <= left.min(full)).unwrap_or(1)
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    //! The chunk functions, compiled once for each register type.

    use super::super::chunk::{RoundChunk, RowsChunk, WeightChunk};
    use super::super::terms::Single;
    use super::super::terms::x86::Paired;
    use super::{round_chunk, rows_chunk, weight_chunk};
    use crate::cpu::vector::x86::{Float8, Float16};
    use crate::cpu::{Avx2, Avx512, Avx512Bf16};

    macro_rules! entry {
        ($name:ident = $body:ident<$($of:tt),+>($chunk:ty), $token:ty, $features:literal) => {
            /// # Safety
            /// The caller guarantees that the chunk's pointers are valid for the extents that its
            /// fields state, and that no other thread writes the same part of the result.
            pub(in crate::ops::gemm) unsafe fn $name(_proof: $token, chunk: &$chunk) {
                /// # Safety
                /// The caller guarantees that the machine has the target features, and that the
                /// chunk satisfies the contract of the enclosing function.
                #[target_feature(enable = $features)]
                unsafe fn compiled(chunk: &$chunk) {
                    // SAFETY: this function is compiled with the register's instruction set, and
                    // the caller guarantees that the chunk is valid.
                    unsafe { $body::<$($of),+>(chunk) }
                }
                // SAFETY: the token proves that the machine has the instruction set, and the
                // caller guarantees that the chunk is valid.
                unsafe { compiled(chunk) }
            }
        };
    }

    /// Products of f32 in the AVX2 register of eight values.
    type Single8 = Single<Float8>;
    /// Products of f32 in the AVX-512 register of sixteen values.
    type Single16 = Single<Float16>;
    /// A chunk of rows whose factors are f32.
    type Rows<'a> = RowsChunk<'a, f32>;
    /// A chunk of rows whose factors are pairs of bf16, packed in u32.
    type PairRows<'a> = RowsChunk<'a, u32>;

    entry!(rows_avx2 = rows_chunk<Single8, 6>(Rows<'_>), Avx2, "avx2,fma");
    entry!(rows_avx512 = rows_chunk<Single16, 12>(Rows<'_>), Avx512, "avx512f");
    entry!(weight_avx2 = weight_chunk<Single8, 6, 0>(WeightChunk<f32>), Avx2, "avx2,fma");
    entry!(weight_avx512 = weight_chunk<Single16, 12, 8>(WeightChunk<f32>), Avx512, "avx512f");

    entry!(pair_rows_bf16 = rows_chunk<Paired, 12>(PairRows<'_>), Avx512Bf16, "avx512f,avx512bf16");
    entry!(
        pair_weight_bf16 = weight_chunk<Paired, 12, 0>(WeightChunk<u32>),
        Avx512Bf16,
        "avx512f,avx512bf16"
    );

    entry!(round_avx2 = round_chunk<Float8>(RoundChunk), Avx2, "avx2");
    entry!(round_avx512 = round_chunk<Float16>(RoundChunk), Avx512, "avx512f");
}
