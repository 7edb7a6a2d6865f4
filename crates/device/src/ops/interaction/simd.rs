//! The dot interaction with vector instructions. Both passes are one small matrix product per
//! sample.
//!
//! ```text
//! forward:   Z = T Tᵀ              keep the pairs of Z
//! backward:  dT = S T              S[i, j] = S[j, i] = dZ of the pair (i, j), 0 where not kept
//! ```
//! 1. The lanes of a register hold columns of the right factor, so no horizontal sums are needed.
//!    The right factor is T transposed, padded to whole registers, in the forward pass, and T
//!    itself in the backward pass.
//! 2. A register tile of 4 rows × 2 registers hides the latency of the additions. The forward pass
//!    uses 8 rows if there are enough registers, because its tiles are often one register wide.
//! 3. The forward pass computes only the registers of columns that contain kept pairs of the tile's
//!    rows, about half of them.
//! 4. T is transposed in square blocks within registers. Transposing one element at a time would
//!    cost as much as the product.
//! 5. The backward pass never builds S in memory. On one side of the diagonal, the four factors of
//!    a tile are read from four rows of pairs; on the other side they are adjacent in one row.
//! 6. The vectors of the next sample are prefetched during the multiplication of the current one.
//! 7. Each element is summed in order of the inner index. Vector kernels round each multiply-add
//!    once, so the width of the vectors does not change the result.
#![expect(unsafe_code, reason = "registers load factors at computed addresses")]

use std::ops::Range;

use schema::TriangleOrder;

use super::shape::Shape;
use crate::cpu::Isa;
use crate::cpu::vector::{Fused, prefetch_row, prefetch_row_second};
use crate::ops::gemm::panels::RowsMut;
use crate::ops::transpose::{BLOCK, transpose_block};

/// Number of rows in a register tile. The forward pass may use twice as many.
const ROWS: usize = 4;
/// The number of columns of the transposed T is padded to a multiple of this, which is two of the
/// widest registers.
const PAD: usize = 32;

/// The rows of the panels that a chunk of samples writes.
pub(super) type PanelRows<'a> = (&'a RowsMut<'a>, Range<usize>);

/// Computes one chunk of samples with the instructions of `isa`.
///
/// # Safety
/// The caller guarantees that no other thread writes the chunk's `rows` of `out`.
pub(super) unsafe fn forward(isa: Isa, shape: &Shape, inputs: [&[f32]; 2], out: PanelRows<'_>) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller guarantees the chunk's rows, and the token proves the instruction
        // set.
        Isa::Avx2(token) => unsafe { x86::forward_avx2(token, shape, inputs, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller guarantees the chunk's rows, and the token proves the instruction set.
        Isa::Avx512(token) => unsafe { x86::forward_avx512(token, shape, inputs, out) },
        // SAFETY: `Plain` needs no instruction set, and the caller guarantees the chunk's rows.
        _ => unsafe { forward_samples::<Plain>(shape, inputs, out) },
    }
}

/// Computes the gradients of one chunk of samples with the instructions of `isa`.
pub(super) fn backward(isa: Isa, shape: &Shape, inputs: [&[f32]; 3], outputs: [&mut [f32]; 2]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => x86::backward_avx2(token, shape, inputs, outputs),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => x86::backward_avx512(token, shape, inputs, outputs),
        // SAFETY: `Plain` needs no instruction set, so it runs on any machine.
        _ => unsafe { backward_samples::<Plain>(shape, inputs, outputs) },
    }
}

/// # Safety
/// The caller guarantees the same conditions as for [`FloatLanes`], and that no other thread
/// writes `rows` of `out`.
#[inline(always)]
unsafe fn forward_samples<V: FloatLanes>(
    shape: &Shape,
    [dense, pooled]: [&[f32]; 2],
    (out, rows): PanelRows<'_>,
) {
    let (vectors, dim, width) = (shape.vectors(), shape.dim, shape.width());
    let stride = vectors.next_multiple_of(PAD);
    let mut right = vec![0.0f32; dim * stride];
    let mut z = vec![0.0f32; (2 * ROWS + 1) * stride];
    let mut row = vec![0.0f32; width + PAD];
    for (sample, to) in rows.enumerate() {
        // The last tile may have more rows than there are vectors left, so it repeats the last
        // vector.
        let vector = |i: usize| shape.vector(sample, [dense, pooled], i.min(vectors - 1));
        let next = pooled.as_ptr().wrapping_add((sample + 1) * shape.pooled_width());
        transpose(vectors, vector, &mut right, stride);
        let direct = shape.dense_width();
        row[..direct].copy_from_slice(&dense[sample * direct..][..direct]);
        let (mut first, mut at) = (0, direct);
        while first < vectors {
            let ([a, b, c, d], below) = (four(&vector, first), first + ROWS);
            let tall = V::TALL && below < vectors;
            let tile = if tall { 2 * ROWS } else { ROWS };
            prefetch_row(next.wrapping_add(first * dim), tile * dim);
            let from = Transposed { values: &right, stride };
            // SAFETY: the caller guarantees the instruction set of `V`.
            at = unsafe {
                if tall {
                    let [e, f, g, h] = four(&vector, below);
                    let left = [a, b, c, d, e, f, g, h];
                    pairs::<V, { 2 * ROWS }>(shape, first, left, from, &mut z, &mut row, at)
                } else {
                    pairs::<V, ROWS>(shape, first, [a, b, c, d], from, &mut z, &mut row, at)
                }
            };
            first += tile;
        }
        // SAFETY: the caller guarantees that no other thread writes these rows of `out`.
        unsafe { out.write(to, &row[..width]) };
    }
}

/// The vectors of a sample as columns of a matrix, whose rows are `stride` values apart.
#[derive(Clone, Copy)]
struct Transposed<'a> {
    values: &'a [f32],
    stride: usize,
}

/// Writes the kept pairs of `R` vectors from `first` on to `row`, from `at` on, and returns the
/// position of the next pair. `z` holds a tile's products and has room for one more register.
///
/// # Safety
/// The caller guarantees the same conditions as for [`FloatLanes`].
#[inline(always)]
unsafe fn pairs<V: FloatLanes, const R: usize>(
    shape: &Shape,
    first: usize,
    left: [&[f32]; R],
    right: Transposed<'_>,
    z: &mut [f32],
    row: &mut [f32],
    mut at: usize,
) -> usize {
    let last = (first + R).min(shape.vectors()) - 1;
    let (top, bottom) = (shape.partners(first), shape.partners(last));
    let start = top.start.min(bottom.start) / V::LANES * V::LANES;
    // SAFETY: the caller guarantees the instruction set of `V`.
    unsafe {
        let Transposed { values, stride } = right;
        multiply::<V, R>(left, values, stride, start..top.end.max(bottom.end), z);
        for i in first..=last {
            let kept = shape.partners(i);
            copy_run::<V>(&z[(i - first) * stride + kept.start..], &mut row[at..], kept.len());
            at += kept.len();
        }
    }
    at
}

/// Returns four vectors from `first` on.
#[inline(always)]
fn four<'a>(vector: &impl Fn(usize) -> &'a [f32], first: usize) -> [&'a [f32]; ROWS] {
    [vector(first), vector(first + 1), vector(first + 2), vector(first + 3)]
}

/// Writes vector `i` to column `i` of `right`. Columns after the last vector repeat that vector.
#[inline(always)]
fn transpose<'a>(
    vectors: usize,
    vector: impl Fn(usize) -> &'a [f32],
    right: &mut [f32],
    stride: usize,
) {
    assert!(vectors.next_multiple_of(BLOCK) <= stride);
    for first in (0..vectors).step_by(BLOCK) {
        let rows = four(&vector, first);
        let dim = rows[0].len();
        assert!(rows.iter().all(|row| row.len() == dim) && dim * stride <= right.len());
        let whole = dim / BLOCK * BLOCK;
        for k in (0..whole).step_by(BLOCK) {
            // SAFETY: `k + BLOCK ≤ dim`, which is the length of the rows. `right` has `dim` rows,
            // each with room for all vectors in blocks, as checked above.
            unsafe {
                let block =
                    rows.map(|row| row.as_ptr().add(k).cast::<[f32; BLOCK]>().read_unaligned());
                let column = right.as_mut_ptr().add(k * stride + first);
                for (k, transposed) in transpose_block(block).into_iter().enumerate() {
                    column.add(k * stride).cast::<[f32; BLOCK]>().write_unaligned(transposed);
                }
            }
        }
        for k in whole..dim {
            right[k * stride + first..][..BLOCK].copy_from_slice(&rows.map(|row| row[k]));
        }
    }
}

/// Computes `out[r, c] = Σ_k left[r, k] · right[k, c]` for `R` rows and the whole registers that
/// cover `columns`. `columns` start at the first lane of a register, and `out` has the stride of
/// `right`.
///
/// # Safety
/// The caller guarantees the same conditions as for [`FloatLanes`].
#[inline(always)]
unsafe fn multiply<V: FloatLanes, const R: usize>(
    left: [&[f32]; R],
    right: &[f32],
    stride: usize,
    columns: Range<usize>,
    out: &mut [f32],
) {
    let inner = left[0].len();
    assert!(left.iter().all(|row| row.len() == inner));
    let end = columns.end.next_multiple_of(V::LANES);
    assert!(end <= stride && inner * stride <= right.len() && R * stride <= out.len());
    let mut column = columns.start;
    while column < columns.end {
        // SAFETY: the caller guarantees the instruction set of `V`. Registers end at `end ≤
        // stride`, so every row of both matrices contains them, as checked above.
        unsafe {
            if column + V::LANES < columns.end {
                product_tile::<V, R, 2>(left, right, stride, column, out);
                column += 2 * V::LANES;
            } else {
                product_tile::<V, R, 1>(left, right, stride, column, out);
                column += V::LANES;
            }
        }
    }
}

/// Computes a tile of the product: `R` rows and `C` registers of columns from `column` on.
///
/// # Safety
/// The caller guarantees the same conditions as for [`FloatLanes`], and that each row of `right`
/// and `out` contains these registers.
#[inline(always)]
unsafe fn product_tile<V: FloatLanes, const R: usize, const C: usize>(
    left: [&[f32]; R],
    right: &[f32],
    stride: usize,
    column: usize,
    out: &mut [f32],
) {
    // SAFETY: the caller guarantees the instruction set of `V` and whole registers in every row
    // of `right` and `out`. All rows of `left` have the length of the first row.
    unsafe {
        let mut sums = [[V::zero(); C]; R];
        for k in 0..left[0].len() {
            let right = right.as_ptr().add(k * stride + column);
            let factors = left.map(|row| *row.get_unchecked(k));
            add::<V, R, C>(&mut sums, right, factors);
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (c, sum) in sums.into_iter().enumerate() {
                sum.store(out.as_mut_ptr().add(r * stride + column + c * V::LANES));
            }
        }
    }
}

/// Adds the products of one inner index: `sums[r] += factors[r] · right`.
///
/// # Safety
/// The caller guarantees the same conditions as for [`FloatLanes`], and that `C` registers at
/// `right` are valid.
#[inline(always)]
unsafe fn add<V: FloatLanes, const R: usize, const C: usize>(
    sums: &mut [[V; C]; R],
    right: *const f32,
    factors: [f32; R],
) {
    // SAFETY: the caller guarantees the instruction set of `V` and `C` registers at `right`.
    unsafe {
        let right: [V; C] = std::array::from_fn(|c| V::load(right.add(c * V::LANES)));
        for (sums, factor) in sums.iter_mut().zip(factors) {
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = sum.plus(factor, right);
            }
        }
    }
}

/// Computes gradients like [`backward_samples`], with an instance of the code for each common
/// dimension, which saves a seventh of the time at D = 64.
///
/// # Safety
/// The caller guarantees the same conditions as for [`FloatLanes`].
#[inline(always)]
unsafe fn backward_chunk<V: FloatLanes>(
    shape: &Shape,
    inputs: [&[f32]; 3],
    outputs: [&mut [f32]; 2],
) {
    let with_dim = |dim| Shape { dim, ..*shape };
    // SAFETY: the caller guarantees the instruction set of `V`.
    unsafe {
        match shape.dim {
            32 => backward_samples::<V>(&with_dim(32), inputs, outputs),
            64 => backward_samples::<V>(&with_dim(64), inputs, outputs),
            128 => backward_samples::<V>(&with_dim(128), inputs, outputs),
            _ => backward_samples::<V>(shape, inputs, outputs),
        }
    }
}

/// # Safety
/// The caller guarantees the same conditions as for [`FloatLanes`].
#[inline(always)]
unsafe fn backward_samples<V: FloatLanes>(
    shape: &Shape,
    [dense, pooled, d_out]: [&[f32]; 3],
    [d_dense, d_pooled]: [&mut [f32]; 2],
) {
    let (vectors, dim, pooled_width) = (shape.vectors(), shape.dim, shape.pooled_width());
    if dim == 0 || shape.width() == 0 {
        d_pooled.fill(0.0);
        return;
    }
    let rows = PairRows::new(shape);
    // A tile's last register may end after the vector, so the buffers have rows of whole
    // registers.
    let stride = dim.next_multiple_of(2 * V::LANES);
    let mut padded = vec![0.0f32; if stride == dim { 0 } else { vectors * stride }];
    let mut gradient = vec![0.0f32; ROWS * stride];
    for (sample, d_out) in d_out.chunks_exact(shape.width()).enumerate() {
        let vector = |i: usize| shape.vector(sample, [dense, pooled], i);
        for (i, to) in padded.chunks_exact_mut(stride).enumerate() {
            to[..dim].copy_from_slice(vector(i));
        }
        let right = if stride == dim {
            let others = &pooled[sample * pooled_width..][..pooled_width];
            Right { first: vector(0), others: &others[dim - shape.dense_width()..] }
        } else {
            let (first, others) = padded.split_at(stride);
            Right { first, others }
        };
        let direct = shape.dense_width();
        let d_pooled = &mut d_pooled[sample * pooled_width..];
        // The gradient of vector 0 is written to one matrix, and those of the other vectors to
        // another.
        let (d_first, d_pooled) = if shape.dense {
            (&mut d_dense[sample * dim..][..dim], d_pooled)
        } else {
            d_pooled.split_at_mut(dim)
        };
        for first in (0..vectors).step_by(ROWS) {
            // The prefetch targets the second-level cache, because from 64 elements on, the
            // vectors of two samples and their gradients do not fit into the first-level cache
            // together.
            let next = (sample + 1) * pooled_width + first * dim;
            prefetch_row_second(pooled.as_ptr().wrapping_add(next), ROWS * dim);
            let next = pooled_width + first * dim;
            prefetch_row_second(d_pooled.as_ptr().wrapping_add(next), ROWS * dim);
            let tile = ProductTile::new(&rows, d_out, first);
            if first > 0 && first + ROWS <= vectors && stride == dim {
                // SAFETY: the caller guarantees the instruction set of `V`, and the function
                // checks the lengths.
                unsafe { tile.multiply::<V>(&right, dim, &mut d_pooled[(first - 1) * dim..]) };
                continue;
            }
            // SAFETY: the caller guarantees the instruction set of `V`, and the function checks
            // the lengths.
            unsafe { tile.multiply::<V>(&right, stride, &mut gradient) };
            for (i, row) in (first..vectors).zip(gradient.chunks_exact(stride)) {
                if i == 0 {
                    d_first.copy_from_slice(&row[..dim]);
                    for (to, &direct) in d_first.iter_mut().zip(&d_out[..direct]) {
                        *to += direct;
                    }
                } else {
                    d_pooled[(i - 1) * dim..i * dim].copy_from_slice(&row[..dim]);
                }
            }
        }
    }
}

/// The vectors of a sample, which begin `stride` values apart.
struct Right<'a> {
    first: &'a [f32],
    others: &'a [f32],
}

/// The position of each pair in a sample's output.
struct PairRows {
    order: TriangleOrder,
    itself: bool,
    /// Offsets of the rows of pairs. The pair (i, j) is at `starts[i] + j`.
    starts: Vec<usize>,
}

impl PairRows {
    fn new(shape: &Shape) -> Self {
        let mut at = shape.dense_width();
        let starts = (0..shape.vectors()).map(|i| {
            let kept = shape.partners(i);
            // Without a dense vector the difference may be negative. The difference wraps around,
            // and adding `j` wraps back to the correct position.
            let start = (at + kept.len()).wrapping_sub(kept.end);
            at += kept.len();
            start
        });
        Self { order: shape.order, itself: shape.itself, starts: starts.collect() }
    }

    /// Returns the position of the pair of two different vectors in the output.
    #[inline(always)]
    fn pair(&self, i: usize, j: usize) -> usize {
        match self.order {
            TriangleOrder::Lower => self.starts[i.max(j)].wrapping_add(i.min(j)),
            TriangleOrder::Upper => self.starts[i.min(j)].wrapping_add(i.max(j)),
        }
    }
}

/// A tile of [`ROWS`] rows of the matrix S of one sample.
struct ProductTile<'a> {
    rows: &'a PairRows,
    /// The gradient of the sample's output.
    d_out: &'a [f32],
    first: usize,
    /// Numbers of the tile's rows. Rows after the last vector are replaced by the last vector.
    members: [usize; ROWS],
    /// The tile's block on the diagonal of S, in column order.
    corner: [[f32; ROWS]; ROWS],
}

impl<'a> ProductTile<'a> {
    #[inline(always)]
    fn new(rows: &'a PairRows, d_out: &'a [f32], first: usize) -> Self {
        let last = rows.starts.len() - 1;
        let members: [usize; ROWS] = std::array::from_fn(|r| (first + r).min(last));
        let mut corner = [[0.0; ROWS]; ROWS];
        for r in 0..ROWS {
            if rows.itself {
                // The product of a vector with itself contributes twice to the gradient.
                let d_z = d_out[rows.starts[members[r]].wrapping_add(members[r])];
                corner[r][r] = d_z + d_z;
            }
            for c in 0..r {
                if members[c] < members[r] {
                    let d_z = d_out[rows.pair(members[r], members[c])];
                    (corner[c][r], corner[r][c]) = (d_z, d_z);
                }
            }
        }
        Self { rows, d_out, first, members, corner }
    }

    /// Computes `out[r, c] = Σ_j S[r, j] · right[j, c]` for all whole registers of `stride`.
    ///
    /// # Safety
    /// The caller guarantees the same conditions as for [`FloatLanes`].
    #[inline(always)]
    unsafe fn multiply<V: FloatLanes>(&self, right: &Right<'_>, stride: usize, out: &mut [f32]) {
        let vectors = self.rows.starts.len();
        assert!(right.first.len() == stride && right.others.len() == (vectors - 1) * stride);
        assert!(stride.is_multiple_of(2 * V::LANES) && ROWS * stride <= out.len());
        for column in (0..stride).step_by(2 * V::LANES) {
            // SAFETY: the caller guarantees the instruction set of `V`. Two registers from
            // `column` on end within `stride`, and the matrices have enough rows of `stride`, as
            // checked above.
            unsafe {
                let sums = self.sums::<V>(right, stride, column);
                for (r, sums) in sums.into_iter().enumerate() {
                    for (c, sum) in sums.into_iter().enumerate() {
                        sum.store(out.as_mut_ptr().add(r * stride + column + c * V::LANES));
                    }
                }
            }
        }
    }

    /// Computes two registers of columns from `column` on, for all rows of the tile.
    ///
    /// # Safety
    /// The caller guarantees the same conditions as for [`FloatLanes`], and that each row of
    /// `right` contains these registers.
    #[inline(always)]
    unsafe fn sums<V: FloatLanes>(
        &self,
        right: &Right<'_>,
        stride: usize,
        column: usize,
    ) -> [[V; 2]; ROWS] {
        let (first, vectors) = (self.first, self.rows.starts.len());
        let starts = self.members.map(|row| self.rows.starts[row]);
        // `along` gives the positions of the pairs of the tile's rows with `j`. `across` gives
        // those of the pairs of `j` with the tile's rows, which are adjacent.
        let along = |j: usize| starts.map(|start: usize| start.wrapping_add(j));
        let across = |j: usize| self.members.map(|row| self.rows.starts[j].wrapping_add(row));
        let vector = |j: usize| match j {
            0 => right.first.as_ptr(),
            _ => right.others.as_ptr().wrapping_add((j - 1) * stride),
        };
        // SAFETY: every pair of two different vectors below `vectors` has a position inside
        // `d_out`.
        let factors =
            |places: [usize; ROWS]| places.map(|at| unsafe { *self.d_out.get_unchecked(at) });
        // SAFETY: the caller guarantees the instruction set of `V` and whole registers in every
        // row of `right`.
        unsafe {
            let mut sums = [[V::zero(); 2]; ROWS];
            let end = (first + ROWS).min(vectors);
            let is_lower = matches!(self.rows.order, TriangleOrder::Lower);
            for j in 0..first {
                let factors = factors(if is_lower { along(j) } else { across(j) });
                add::<V, ROWS, 2>(&mut sums, vector(j).add(column), factors);
            }
            for (j, factors) in (first..end).zip(self.corner) {
                add::<V, ROWS, 2>(&mut sums, vector(j).add(column), factors);
            }
            for j in end..vectors {
                let factors = factors(if is_lower { across(j) } else { along(j) });
                add::<V, ROWS, 2>(&mut sums, vector(j).add(column), factors);
            }
            sums
        }
    }
}

/// Copies `len` values in whole registers. The last register also overwrites values after the
/// run, which are written later.
///
/// # Safety
/// The caller guarantees the same conditions as for [`FloatLanes`].
#[inline(always)]
unsafe fn copy_run<V: FloatLanes>(from: &[f32], to: &mut [f32], len: usize) {
    assert!(len.next_multiple_of(V::LANES) <= from.len().min(to.len()));
    for at in (0..len).step_by(V::LANES) {
        // SAFETY: the caller guarantees the instruction set of `V`. Both slices hold whole
        // registers up to the next multiple of `len`, as checked above.
        unsafe { V::load(from.as_ptr().add(at)).store(to.as_mut_ptr().add(at)) };
    }
}

/// Several floats that one operation multiplies and adds together.
///
/// # Safety
/// The caller of each function guarantees the conditions of
/// [`Vector`](crate::cpu::vector::Vector).
trait FloatLanes: Copy {
    /// Number of lanes in a register. `2 · LANES` divides [`PAD`].
    const LANES: usize;
    /// Whether there are enough registers for tiles of twice [`ROWS`] rows.
    const TALL: bool;
    /// Returns a register of zeros.
    unsafe fn zero() -> Self;
    /// Loads all lanes from memory.
    unsafe fn load(pointer: *const f32) -> Self;
    /// Returns `self + factor · right`.
    unsafe fn plus(self, factor: f32, right: Self) -> Self;
    /// Stores all lanes to memory.
    unsafe fn store(self, pointer: *mut f32);
}

// `FloatLanes` has the same contract as `Fused`, which the SAFETY comments below rely on.
impl<V: Fused> FloatLanes for V {
    const LANES: usize = V::LANES;
    // AVX-512 has 32 registers instead of 16.
    const TALL: bool = V::LANES == 16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller guarantees the instruction set of `V`.
        unsafe { V::splat(0.0) }
    }
    #[inline(always)]
    unsafe fn load(pointer: *const f32) -> Self {
        // SAFETY: the caller guarantees the instruction set of `V` and `LANES` valid floats at
        // `pointer`.
        unsafe { V::load(pointer) }
    }
    #[inline(always)]
    unsafe fn plus(self, factor: f32, right: Self) -> Self {
        // SAFETY: the caller guarantees the instruction set of `V`.
        unsafe { V::splat(factor).multiply_add(right, self) }
    }
    #[inline(always)]
    unsafe fn store(self, pointer: *mut f32) {
        // SAFETY: the caller guarantees the instruction set of `V` and `LANES` writable floats at
        // `pointer`.
        unsafe { V::store(self, pointer) }
    }
}

/// Lanes in plain Rust for any machine, which round multiplication and addition separately.
#[derive(Clone, Copy)]
struct Plain([f32; 8]);

impl FloatLanes for Plain {
    const LANES: usize = 8;
    const TALL: bool = false;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0.0; 8])
    }
    #[inline(always)]
    unsafe fn load(pointer: *const f32) -> Self {
        // SAFETY: the caller guarantees 8 valid floats at `pointer`, and an array of floats has
        // the alignment of a float.
        Self(unsafe { pointer.cast::<[f32; 8]>().read() })
    }
    #[inline(always)]
    unsafe fn plus(self, factor: f32, right: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] + factor * right.0[lane]))
    }
    #[inline(always)]
    unsafe fn store(self, pointer: *mut f32) {
        // SAFETY: the caller guarantees 8 valid floats at `pointer`, and an array of floats has
        // the alignment of a float.
        unsafe { pointer.cast::<[f32; 8]>().write(self.0) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The chunk functions, compiled once for each vector type.

    use super::{PanelRows, Shape, backward_chunk, forward_samples};
    use crate::cpu::vector::x86::{Float8, Float16};
    use crate::cpu::{Avx2, Avx512};

    macro_rules! entries {
        ($token:ty, $vector:ty, $features:literal, $forward:ident, $backward:ident) => {
            /// # Safety
            /// The caller guarantees the same conditions as for [`forward`](super::forward).
            pub(super) unsafe fn $forward(
                _proof: $token,
                shape: &Shape,
                inputs: [&[f32]; 2],
                out: PanelRows<'_>,
            ) {
                /// # Safety
                /// The caller guarantees that the machine has the target features, and that the
                /// chunk satisfies the contract of the enclosing function.
                #[target_feature(enable = $features)]
                unsafe fn compiled(shape: &Shape, inputs: [&[f32]; 2], out: PanelRows<'_>) {
                    // SAFETY: this function is compiled with the vector's instruction set, and
                    // the caller guarantees that the chunk's rows are valid.
                    unsafe { forward_samples::<$vector>(shape, inputs, out) }
                }
                // SAFETY: the token proves that the machine has the instruction set, and the
                // caller guarantees that the chunk's rows are valid.
                unsafe { compiled(shape, inputs, out) }
            }

            pub(super) fn $backward(
                _proof: $token,
                shape: &Shape,
                inputs: [&[f32]; 3],
                outputs: [&mut [f32]; 2],
            ) {
                #[target_feature(enable = $features)]
                fn compiled(shape: &Shape, inputs: [&[f32]; 3], outputs: [&mut [f32]; 2]) {
                    // SAFETY: this function is compiled with the vector's instruction set, and
                    // the token of its caller proved that the machine has it.
                    unsafe { backward_chunk::<$vector>(shape, inputs, outputs) }
                }
                // SAFETY: the token proves that the machine has the instruction set.
                unsafe { compiled(shape, inputs, outputs) }
            }
        };
    }

    entries!(Avx2, Float8, "avx2,fma", forward_avx2, backward_avx2);
    entries!(Avx512, Float16, "avx512f", forward_avx512, backward_avx512);
}
