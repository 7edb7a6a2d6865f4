//! The dot interaction with vectors: both passes are one small matrix product per sample.
//!
//! ```text
//! forward:   Z = T Tᵀ              keep the pairs of Z
//! backward:  dT = S T              S[i, j] = S[j, i] = dZ of the pair (i, j), 0 where not kept
//! ```
//! 1. The right factor is laid out with the lanes along its columns (T transposed forward, T backward),
//!    padded with zeros to whole vectors: no horizontal sums, no tails.
//! 2. A register tile of 4 rows × 2 vectors hides the latency of the additions behind each other.
//! 3. Forward computes only the vectors of columns that hold kept pairs of the tile's rows: about half.
//! 4. Each element is its own sum in order of the inner index, with multiplication and addition rounded
//!    apart: the width of the vectors does not change a bit.

use super::Shape;
use crate::cpu::Isa;

/// Rows of a register tile.
const ROWS: usize = 4;
/// Padding of the right factor's columns: a multiple of two of the widest vectors.
const PAD: usize = 32;

/// One chunk of samples, with the instructions of `isa`.
pub(super) fn forward(isa: Isa, shape: &Shape, inputs: [&[f32]; 2], out: &mut [f32]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => x86::forward_avx2(token, shape, inputs, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => x86::forward_avx512(token, shape, inputs, out),
        _ => forward_samples::<4>(shape, inputs, out),
    }
}

/// One chunk of samples, with the instructions of `isa`.
pub(super) fn backward(isa: Isa, shape: &Shape, inputs: [&[f32]; 3], outputs: [&mut [f32]; 2]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => x86::backward_avx2(token, shape, inputs, outputs),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => x86::backward_avx512(token, shape, inputs, outputs),
        _ => backward_samples::<4>(shape, inputs, outputs),
    }
}

#[inline(always)]
fn forward_samples<const LANES: usize>(
    shape: &Shape,
    [dense, pooled]: [&[f32]; 2],
    out: &mut [f32],
) {
    let (vectors, dim) = (shape.vectors(), shape.dim);
    let stride = vectors.next_multiple_of(PAD);
    let rows = vectors.next_multiple_of(ROWS);
    let mut left = vec![0.0f32; rows * dim];
    let mut right = vec![0.0f32; dim * stride];
    let mut z = vec![0.0f32; rows * stride];
    for (sample, out) in out.chunks_exact_mut(shape.width()).enumerate() {
        gather(shape, sample, [dense, pooled], &mut left, dim);
        for (column, vector) in left[..vectors * dim].chunks_exact(dim.max(1)).enumerate() {
            for (d, &value) in vector.iter().enumerate() {
                right[d * stride + column] = value;
            }
        }
        let (head, mut pairs) = out.split_at_mut(dim);
        head.copy_from_slice(&left[..dim]);
        for first in (0..vectors).step_by(ROWS) {
            let last = (first + ROWS).min(vectors) - 1;
            let kept = shape.partners(first).start.min(shape.partners(last).start)
                ..shape.partners(first).end.max(shape.partners(last).end);
            let columns = kept.start / (2 * LANES) * (2 * LANES)..kept.end;
            let left = Left { data: &left[first * dim..], stride: dim, depth: dim };
            multiply::<LANES>(left, (&right, stride), columns, &mut z[first * stride..]);
            for i in first..=last {
                let kept = shape.partners(i);
                let (row, rest) = pairs.split_at_mut(kept.len());
                row.copy_from_slice(&z[i * stride..][kept]);
                pairs = rest;
            }
        }
    }
}

#[inline(always)]
fn backward_samples<const LANES: usize>(
    shape: &Shape,
    [dense, pooled, d_out]: [&[f32]; 3],
    [d_dense, d_pooled]: [&mut [f32]; 2],
) {
    let (vectors, dim, pooled_width) = (shape.vectors(), shape.dim, shape.pooled_width());
    let stride = dim.next_multiple_of(PAD);
    let rows = vectors.next_multiple_of(ROWS);
    let mut symmetric = vec![0.0f32; rows * vectors];
    let mut right = vec![0.0f32; vectors * stride];
    let mut gradient = vec![0.0f32; ROWS * stride];
    for (sample, d_out) in d_out.chunks_exact(shape.width()).enumerate() {
        gather(shape, sample, [dense, pooled], &mut right, stride);
        let mut d_pairs = d_out[dim..].iter();
        for i in 0..vectors {
            for (j, &d_z) in shape.partners(i).zip(&mut d_pairs) {
                // A vector's product with itself counts for both of its places.
                let d_z = if i == j { d_z + d_z } else { d_z };
                symmetric[i * vectors + j] = d_z;
                symmetric[j * vectors + i] = d_z;
            }
        }
        let d_dense = &mut d_dense[sample * dim..][..dim];
        let d_pooled = &mut d_pooled[sample * pooled_width..][..pooled_width];
        for first in (0..vectors).step_by(ROWS) {
            let left =
                Left { data: &symmetric[first * vectors..], stride: vectors, depth: vectors };
            multiply::<LANES>(left, (&right, stride), 0..dim, &mut gradient);
            let last = (first + ROWS).min(vectors);
            for (i, row) in (first..last).zip(gradient.chunks_exact(stride.max(1))) {
                if i == 0 {
                    for ((to, &direct), &pairs) in d_dense.iter_mut().zip(&d_out[..dim]).zip(row) {
                        *to = direct + pairs;
                    }
                } else {
                    d_pooled[(i - 1) * dim..i * dim].copy_from_slice(&row[..dim]);
                }
            }
        }
    }
}

/// Copies the vectors of one sample below each other, `stride` apart.
#[inline(always)]
fn gather(
    shape: &Shape,
    sample: usize,
    [dense, pooled]: [&[f32]; 2],
    to: &mut [f32],
    stride: usize,
) {
    let (dim, pooled_width) = (shape.dim, shape.pooled_width());
    if dim == 0 {
        return;
    }
    let dense = &dense[sample * dim..][..dim];
    let pooled = &pooled[sample * pooled_width..][..pooled_width];
    let vectors = std::iter::once(dense).chain(pooled.chunks_exact(dim));
    for (to, vector) in to.chunks_exact_mut(stride).zip(vectors) {
        to[..dim].copy_from_slice(vector);
    }
}

/// [`ROWS`] rows of a left factor.
#[derive(Clone, Copy)]
struct Left<'a> {
    data: &'a [f32],
    stride: usize,
    depth: usize,
}

/// `out[r, c] = Σ_k left[r, k] · right[k, c]` for [`ROWS`] rows and the whole pairs of vectors that
/// cover `columns`; `out` has the stride of `right`.
#[inline(always)]
fn multiply<const LANES: usize>(
    left: Left<'_>,
    (right, stride): (&[f32], usize),
    columns: std::ops::Range<usize>,
    out: &mut [f32],
) {
    let rows: [&[f32]; ROWS] = std::array::from_fn(|r| &left.data[r * left.stride..][..left.depth]);
    for column in columns.step_by(2 * LANES) {
        let mut sums = [[[0.0f32; LANES]; 2]; ROWS];
        for k in 0..left.depth {
            let at = &right[k * stride + column..][..2 * LANES];
            let (low, high) = at.split_at(LANES);
            for r in 0..ROWS {
                let factor = rows[r][k];
                for lane in 0..LANES {
                    sums[r][0][lane] += factor * low[lane];
                    sums[r][1][lane] += factor * high[lane];
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            out[r * stride + column..][..LANES].copy_from_slice(&sums[0]);
            out[r * stride + column + LANES..][..LANES].copy_from_slice(&sums[1]);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The same code, compiled for wider vectors.
    #![expect(unsafe_code, reason = "functions of an instruction set, entered with its token")]

    use super::{Shape, backward_samples, forward_samples};
    use crate::cpu::{Avx2, Avx512};

    macro_rules! entries {
        ($token:ty, $lanes:literal, $features:literal, $forward:ident, $backward:ident) => {
            pub(super) fn $forward(
                _proof: $token,
                shape: &Shape,
                inputs: [&[f32]; 2],
                out: &mut [f32],
            ) {
                #[target_feature(enable = $features)]
                fn compiled(shape: &Shape, inputs: [&[f32]; 2], out: &mut [f32]) {
                    forward_samples::<$lanes>(shape, inputs, out);
                }
                // SAFETY: the token proves that the machine has the instruction set.
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
                    backward_samples::<$lanes>(shape, inputs, outputs);
                }
                // SAFETY: the token proves that the machine has the instruction set.
                unsafe { compiled(shape, inputs, outputs) }
            }
        };
    }

    entries!(Avx2, 8, "avx2", forward_avx2, backward_avx2);
    entries!(Avx512, 16, "avx512f", forward_avx512, backward_avx512);
}
