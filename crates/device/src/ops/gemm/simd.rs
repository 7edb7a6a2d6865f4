//! The products with vectors: a register tile of rows × 32 columns, and the loops over a chunk.
//!
//! ```text
//! for strip of rows, for panel of columns:
//!     sums[row, column] = Σ_i a[row, i] · b[i, column]      in registers, over the whole inner
//!     c = finish(sums)                                      bias and ReLU, or the mask of ReLU
//! ```
//! 1. The tile is 8 × 32 (AVX-512: 16 sums, more than the latency needs) or 6 × 16 (AVX2, half a
//!    panel at a time). A wider tile reads less of `b` but was no faster: prefetching decides.
//! 2. `a` is read in place, one broadcast per row and inner index. Its lines are asked for one
//!    panel and one strip ahead: without, a core of 117 GFLOP/s gives 80–95, with it 109–111.
//! 3. The whole inner extent is summed in registers, so that `c` is written once, finished.
#![expect(unsafe_code, reason = "vector instructions on raw panels")]

use std::ops::Range;

use super::column_sums;
use super::panels::PANEL;
use crate::cpu::vector::Vector;

/// Inner indices by which the packed factor is asked for ahead.
const AHEAD: usize = 8;
/// Floats of a cache line.
const LINE: usize = 16;
/// Samples that one pass of the weight gradient sums: panels of both factors stay in the cache.
pub(super) const SAMPLES: usize = 512;

/// What the products ask of a register beside what every kernel does.
///
/// # Safety
/// As for [`Vector`].
pub(super) trait Register: Vector {
    /// `self · other + sum`, rounded once.
    unsafe fn multiply_add(self, other: Self, sum: Self) -> Self;
    /// 0 where below 0; NaN stays.
    unsafe fn relu(self) -> Self;
    /// 0 where `output ≤ 0`.
    unsafe fn where_positive(self, output: Self) -> Self;
}

/// What becomes of a tile's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// They are stored.
    Store,
    /// They are added to what is there.
    Add,
    /// The bias is added.
    Bias,
    /// The bias is added, then ReLU.
    BiasRelu,
    /// Stored as 0 where the layer before put out nothing.
    Mask,
}

/// A chunk of the forward product or of the gradient of the input: `C = A B` on some rows and some
/// panels of C.
pub(super) struct RowsChunk {
    /// `[⌈inner/32⌉][samples][32]`.
    pub(super) a: *const f32,
    /// `[panels of C][inner][32]`.
    pub(super) b: *const f32,
    /// `[panels of C][samples][32]`.
    pub(super) c: *mut f32,
    /// The bias, `[panels of C][32]`, or the mask, like `c`.
    pub(super) other: *const f32,
    pub(super) finish: Finish,
    pub(super) samples: usize,
    pub(super) inner: usize,
    pub(super) rows: Range<usize>,
    pub(super) panels: Range<usize>,
}

/// A chunk of the gradient of the weight: `dW = dYᵀ X` for a panel of N and some panels of K.
pub(super) struct WeightChunk {
    /// `[⌈N/32⌉][samples][32]`.
    pub(super) d_y: *const f32,
    /// `[⌈K/32⌉][samples][32]`.
    pub(super) x: *const f32,
    /// `[N, K]`.
    pub(super) d_weight: *mut f32,
    /// `[N]`, or null where another chunk writes it.
    pub(super) d_bias: *mut f32,
    pub(super) samples: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) n_panel: usize,
    pub(super) k_panels: Range<usize>,
}

/// The inner extent as the broadcast factor lies: runs of consecutive steps.
#[derive(Clone, Copy)]
struct Inner {
    runs: usize,
    steps: usize,
    last_steps: usize,
    /// Floats from run to run.
    stride: usize,
}

/// Where a tile reads and writes.
#[derive(Clone, Copy)]
struct Tile {
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    c_stride: usize,
    other: *const f32,
    columns: usize,
}

/// Row `r`, step `s` of the broadcast factor lies at `r · ROW + s · STEP`.
#[inline(always)]
unsafe fn tile<V: Register, const R: usize, const ROW: usize, const STEP: usize>(
    inner: Inner,
    tile: Tile,
    finish: Finish,
) {
    // SAFETY: the chunk's maker vouches for all factors; columns beyond the last are inside the
    // panels, and stores to the row-major gradient are cut to `columns`. Prefetches never fault.
    unsafe {
        for half in (0..PANEL).step_by(2 * V::LANES) {
            if half >= tile.columns {
                break;
            }
            let mut sums = [[V::splat(0.0); 2]; R];
            let mut b = tile.b.add(half);
            for run in 0..inner.runs {
                let start = tile.a.wrapping_add(run * inner.stride);
                let steps = if run + 1 == inner.runs { inner.last_steps } else { inner.steps };
                let mut a = start;
                for step in 0..steps {
                    prefetch(b.wrapping_add(AHEAD * PANEL));
                    prefetch(b.wrapping_add(AHEAD * PANEL + LINE));
                    if STEP == 1 {
                        prefetch(start.wrapping_add(inner.stride + step * LINE));
                        prefetch(start.wrapping_add(R * ROW + step * LINE));
                    } else {
                        prefetch(a.wrapping_add(AHEAD * STEP));
                    }
                    let (low, high) = (V::load(b), V::load(b.add(V::LANES)));
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let factor = V::splat(*a.add(row * ROW));
                        sums[0] = factor.multiply_add(low, sums[0]);
                        sums[1] = factor.multiply_add(high, sums[1]);
                    }
                    a = a.wrapping_add(STEP);
                    b = b.wrapping_add(PANEL);
                }
            }
            for (row, sums) in sums.into_iter().enumerate() {
                for (i, sum) in sums.into_iter().enumerate() {
                    let column = half + i * V::LANES;
                    put(sum, row, column, (tile, finish));
                }
            }
        }
    }
}

/// Finishes and stores one register of sums, cut to the tile's columns.
#[inline(always)]
unsafe fn put<V: Register>(sum: V, row: usize, column: usize, (tile, finish): (Tile, Finish)) {
    let count = tile.columns.saturating_sub(column).min(V::LANES);
    // SAFETY: as in `tile`.
    unsafe {
        let at = row * tile.c_stride + column;
        let c = tile.c.wrapping_add(at);
        if count < V::LANES {
            let before =
                if finish == Finish::Add { V::load_first(c, count) } else { V::splat(0.0) };
            return sum.add(before).store_first(c, count);
        }
        let sum = match finish {
            Finish::Store => sum,
            Finish::Add => sum.add(V::load(c)),
            Finish::Bias => sum.add(V::load(tile.other.add(column))),
            Finish::BiasRelu => sum.add(V::load(tile.other.add(column))).relu(),
            Finish::Mask => sum.where_positive(V::load(tile.other.add(at))),
        };
        sum.store(c);
    }
}

/// Strips of `R` rows, then of 4, 2 and 1.
#[inline(always)]
unsafe fn rows_chunk<V: Register, const R: usize>(chunk: &RowsChunk) {
    let RowsChunk { samples, inner: extent, finish, .. } = *chunk;
    let runs = extent.div_ceil(PANEL);
    let last_steps = extent - runs.saturating_sub(1) * PANEL;
    let inner = Inner { runs, steps: PANEL, last_steps, stride: samples * PANEL };
    let mut row = chunk.rows.start;
    while row < chunk.rows.end {
        let left = chunk.rows.end - row;
        let taken = strip(left, R);
        for panel in chunk.panels.clone() {
            let at = (panel * samples + row) * PANEL;
            let other = if finish == Finish::Mask { at } else { panel * PANEL };
            let place = Tile {
                a: chunk.a.wrapping_add(row * PANEL),
                b: chunk.b.wrapping_add(panel * extent * PANEL),
                c: chunk.c.wrapping_add(at),
                c_stride: PANEL,
                other: chunk.other.wrapping_add(other),
                columns: PANEL,
            };
            // SAFETY: the rows and panels lie inside the matrices, as the caller checked.
            unsafe {
                match taken {
                    4 => tile::<V, 4, PANEL, 1>(inner, place, finish),
                    2 => tile::<V, 2, PANEL, 1>(inner, place, finish),
                    1 => tile::<V, 1, PANEL, 1>(inner, place, finish),
                    _ => tile::<V, R, PANEL, 1>(inner, place, finish),
                }
            }
        }
        row += taken;
    }
}

/// [`SAMPLES`] samples at a time; what they add up to is added to what the samples before did.
#[inline(always)]
unsafe fn weight_chunk<V: Register, const R: usize>(chunk: &WeightChunk) {
    let WeightChunk { samples, n, k, n_panel, .. } = *chunk;
    let outputs = PANEL.min(n - n_panel * PANEL);
    if !chunk.d_bias.is_null() {
        // SAFETY: `d_bias` has N elements, and this chunk alone writes those of its panel.
        unsafe {
            let d_y = chunk.d_y.wrapping_add(n_panel * samples * PANEL);
            let d_y = std::slice::from_raw_parts(d_y, samples * PANEL);
            let sums = chunk.d_bias.wrapping_add(n_panel * PANEL);
            column_sums::panel(d_y, std::slice::from_raw_parts_mut(sums, outputs));
        }
    }
    for first in (0..samples).step_by(SAMPLES) {
        let count = SAMPLES.min(samples - first);
        let inner = Inner { runs: 1, steps: 0, last_steps: count, stride: 0 };
        let finish = if first == 0 { Finish::Store } else { Finish::Add };
        for panel in chunk.k_panels.clone() {
            let mut row = 0;
            while row < outputs {
                let taken = strip(outputs - row, R);
                let out = n_panel * PANEL + row;
                let place = Tile {
                    a: chunk.d_y.wrapping_add((n_panel * samples + first) * PANEL + row),
                    b: chunk.x.wrapping_add((panel * samples + first) * PANEL),
                    c: chunk.d_weight.wrapping_add(out * k + panel * PANEL),
                    c_stride: k,
                    other: std::ptr::null(),
                    columns: PANEL.min(k - panel * PANEL),
                };
                // SAFETY: the panels lie inside the matrices, as the caller checked.
                unsafe {
                    match taken {
                        4 => tile::<V, 4, 1, PANEL>(inner, place, finish),
                        2 => tile::<V, 2, 1, PANEL>(inner, place, finish),
                        1 => tile::<V, 1, 1, PANEL>(inner, place, finish),
                        _ => tile::<V, R, 1, PANEL>(inner, place, finish),
                    }
                }
                row += taken;
            }
        }
    }
}

/// Rows of the next strip where `left` are left.
#[inline(always)]
fn strip(left: usize, full: usize) -> usize {
    [full, 4, 2].into_iter().find(|&rows| rows <= left).unwrap_or(1)
}

#[inline(always)]
fn prefetch(pointer: *const f32) {
    crate::cpu::vector::prefetch(pointer);
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    //! The registers, and the chunks compiled for them.

    use std::arch::x86_64::*;

    use super::{Register, RowsChunk, WeightChunk, rows_chunk, weight_chunk};
    use crate::cpu::vector::x86::{Float8, Float16};
    use crate::cpu::{Avx2, Avx512};

    // SAFETY of both implementations: the trait's contract gives the instruction set.
    impl Register for Float8 {
        #[inline(always)]
        unsafe fn multiply_add(self, other: Self, sum: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_fmadd_ps(self.0, other.0, sum.0) })
        }
        #[inline(always)]
        unsafe fn relu(self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_max_ps(_mm256_setzero_ps(), self.0) })
        }
        #[inline(always)]
        unsafe fn where_positive(self, output: Self) -> Self {
            // SAFETY: see above.
            unsafe {
                let off = _mm256_cmp_ps::<_CMP_LE_OQ>(output.0, _mm256_setzero_ps());
                Self(_mm256_andnot_ps(off, self.0))
            }
        }
    }

    impl Register for Float16 {
        #[inline(always)]
        unsafe fn multiply_add(self, other: Self, sum: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_fmadd_ps(self.0, other.0, sum.0) })
        }
        #[inline(always)]
        unsafe fn relu(self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_max_ps(_mm512_setzero_ps(), self.0) })
        }
        #[inline(always)]
        unsafe fn where_positive(self, output: Self) -> Self {
            // SAFETY: see above.
            unsafe {
                let zero = _mm512_setzero_ps();
                let off = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(output.0, zero);
                Self(_mm512_mask_mov_ps(self.0, off, zero))
            }
        }
    }

    macro_rules! entry {
        ($name:ident = $body:ident<$register:ty, $rows:literal>,
         $chunk:ty, $token:ty, $features:literal) => {
            /// # Safety
            /// The chunk's factors are as its fields say, and no other thread writes its part.
            pub(in crate::ops::gemm) unsafe fn $name(_proof: $token, chunk: &$chunk) {
                #[target_feature(enable = $features)]
                unsafe fn compiled(chunk: &$chunk) {
                    // SAFETY: compiled for the register's instruction set; the caller vouches for
                    // the chunk.
                    unsafe { $body::<$register, $rows>(chunk) }
                }
                // SAFETY: the token proves that the machine has the instruction set; the caller
                // vouches for the chunk.
                unsafe { compiled(chunk) }
            }
        };
    }

    entry!(rows_avx2 = rows_chunk<Float8, 6>, RowsChunk, Avx2, "avx2,fma");
    entry!(rows_avx512 = rows_chunk<Float16, 8>, RowsChunk, Avx512, "avx512f");
    entry!(weight_avx2 = weight_chunk<Float8, 6>, WeightChunk, Avx2, "avx2,fma");
    entry!(weight_avx512 = weight_chunk<Float16, 8>, WeightChunk, Avx512, "avx512f");
}
