//! The dot interaction with vectors: both passes are one small matrix product per sample.
//!
//! ```text
//! forward:   Z = T Tᵀ              keep the pairs of Z
//! backward:  dT = S T              S[i, j] = S[j, i] = dZ of the pair (i, j), 0 where not kept
//! ```
//! 1. The right factor is laid out with the lanes along its columns (T transposed forward, T
//!    backward), padded with zeros to whole vectors: no horizontal sums, no tails.
//! 2. A register tile of 4 rows × 2 vectors hides the latency of the additions behind each other.
//!    Written with vectors: arrays of lanes were left in memory, at six to eight times the time.
//! 3. Forward computes only the vectors of columns that hold kept pairs of the tile's rows, by
//!    twos and a last one alone: about half.
//! 4. T is transposed in square blocks within registers; one element at a time costs as much as the
//!    product.
//! 5. Each element is its own sum in order of the inner index; with vectors, multiplication and
//!    addition are rounded once, and their width does not change a bit.

use super::Shape;
use crate::cpu::Isa;
use crate::ops::turn::{BLOCK, turn};

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
        _ => forward_samples::<Plain>(shape, inputs, out),
    }
}

/// One chunk of samples, with the instructions of `isa`.
pub(super) fn backward(isa: Isa, shape: &Shape, inputs: [&[f32]; 3], outputs: [&mut [f32]; 2]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => x86::backward_avx2(token, shape, inputs, outputs),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => x86::backward_avx512(token, shape, inputs, outputs),
        _ => backward_samples::<Plain>(shape, inputs, outputs),
    }
}

#[inline(always)]
fn forward_samples<P: Product>(shape: &Shape, [dense, pooled]: [&[f32]; 2], out: &mut [f32]) {
    let (vectors, dim) = (shape.vectors(), shape.dim);
    let stride = vectors.next_multiple_of(PAD);
    let mut right = vec![0.0f32; dim * stride];
    let mut z = vec![0.0f32; (ROWS + 1) * stride];
    for (sample, out) in out.chunks_exact_mut(shape.width()).enumerate() {
        let vector = |i: usize| shape.vector(sample, [dense, pooled], i.min(vectors - 1));
        transpose(vectors, vector, (&mut right, stride));
        let (head, mut pairs) = out.split_at_mut(dim);
        head.copy_from_slice(vector(0));
        for first in (0..vectors).step_by(ROWS) {
            let last = (first + ROWS).min(vectors) - 1;
            let (top, bottom) = (shape.partners(first), shape.partners(last));
            let start = top.start.min(bottom.start) / P::LANES * P::LANES;
            let columns = start..top.end.max(bottom.end);
            let left = [vector(first), vector(first + 1), vector(first + 2), vector(first + 3)];
            P::multiply(left, (&right, stride), columns, &mut z);
            for i in first..=last {
                let kept = shape.partners(i);
                copy_run(&z[(i - first) * stride + kept.start..], pairs, kept.len());
                pairs = &mut pairs[kept.len()..];
            }
        }
    }
}

#[inline(always)]
fn backward_samples<P: Product>(
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
        right[..dim].copy_from_slice(shape.vector(sample, [dense, pooled], 0));
        if stride == dim {
            let pooled = &pooled[sample * pooled_width..][..pooled_width];
            right[dim..][..pooled_width].copy_from_slice(pooled);
        } else {
            for (i, to) in right.chunks_exact_mut(stride.max(1)).enumerate().skip(1) {
                to[..dim].copy_from_slice(shape.vector(sample, [dense, pooled], i));
            }
        }
        spread_pairs(shape, &d_out[dim..], &mut symmetric);
        let d_dense = &mut d_dense[sample * dim..][..dim];
        let d_pooled = &mut d_pooled[sample * pooled_width..][..pooled_width];
        for first in (0..vectors).step_by(ROWS) {
            let (a, rest) = symmetric[first * vectors..].split_at(vectors);
            let (b, rest) = rest.split_at(vectors);
            let (c, rest) = rest.split_at(vectors);
            let left = [a, b, c, &rest[..vectors]];
            if first > 0 && first + ROWS <= vectors && stride == dim {
                let out = &mut d_pooled[(first - 1) * dim..];
                P::multiply(left, (&right, stride), 0..dim, out);
                continue;
            }
            P::multiply(left, (&right, stride), 0..dim, &mut gradient);
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

/// Lays the gradients of the pairs out as the symmetric matrix S, `vectors` columns apart. Places
/// of pairs that are not kept are not written: they stay 0.
#[inline(always)]
fn spread_pairs(shape: &Shape, d_pairs: &[f32], symmetric: &mut [f32]) {
    let vectors = shape.vectors();
    let mut rest = d_pairs;
    for i in 0..vectors {
        let kept = shape.partners(i);
        let (row, after) = rest.split_at(kept.len());
        rest = after;
        symmetric[i * vectors..][kept.clone()].copy_from_slice(row);
        for (j, &d_z) in kept.zip(row) {
            symmetric[j * vectors + i] = d_z;
        }
        if shape.itself {
            // A vector's product with itself counts for both of its places.
            symmetric[i * vectors + i] += symmetric[i * vectors + i];
        }
    }
}

/// Writes vector `i` down column `i` of `right`; columns past the last vector repeat it.
#[inline(always)]
fn transpose<'a>(
    vectors: usize,
    vector: impl Fn(usize) -> &'a [f32],
    (right, stride): (&mut [f32], usize),
) {
    for first in (0..vectors).step_by(BLOCK) {
        let (a, a_tail) = vector(first).as_chunks::<BLOCK>();
        let (b, b_tail) = vector(first + 1).as_chunks::<BLOCK>();
        let (c, c_tail) = vector(first + 2).as_chunks::<BLOCK>();
        let (d, d_tail) = vector(first + 3).as_chunks::<BLOCK>();
        let (whole, tail) = right.split_at_mut(a.len() * BLOCK * stride);
        let blocks = a.iter().zip(b).zip(c).zip(d).zip(whole.chunks_exact_mut(BLOCK * stride));
        for ((((&a, &b), &c), &d), to) in blocks {
            let turned = turn([a, b, c, d]);
            for (turned, to) in turned.iter().zip(to.chunks_exact_mut(stride)) {
                to[first..first + BLOCK].copy_from_slice(turned);
            }
        }
        let tails = a_tail.iter().zip(b_tail).zip(c_tail).zip(d_tail);
        for ((((&a, &b), &c), &d), to) in tails.zip(tail.chunks_exact_mut(stride)) {
            to[first..first + BLOCK].copy_from_slice(&[a, b, c, d]);
        }
    }
}

/// Values that [`copy_run`] moves at a time.
const RUN: usize = 8;

/// Copies `len` values in whole pieces where `to` has room: what follows the run in `to` is written
/// afterwards by the caller.
#[inline(always)]
fn copy_run(from: &[f32], to: &mut [f32], len: usize) {
    for at in (0..len).step_by(RUN) {
        if let Some(to) = to.get_mut(at..at + RUN) {
            to.copy_from_slice(&from[at..at + RUN]);
        } else {
            to[at..len].copy_from_slice(&from[at..len]);
        }
    }
}

/// The product of a few rows with a matrix.
trait Product {
    /// Columns of a register; divides [`PAD`].
    const LANES: usize;

    /// `out[r, c] = Σ_k left[r, k] · right[k, c]` for [`ROWS`] rows and the whole registers that
    /// cover `columns`, which start at one; `out` has the stride of `right`.
    fn multiply(
        left: [&[f32]; ROWS],
        right: (&[f32], usize),
        columns: std::ops::Range<usize>,
        out: &mut [f32],
    );
}

/// Plain loops, for any machine.
struct Plain;

impl Product for Plain {
    const LANES: usize = 8;

    #[inline(always)]
    fn multiply(
        [a, b, c, d]: [&[f32]; ROWS],
        (right, stride): (&[f32], usize),
        columns: std::ops::Range<usize>,
        out: &mut [f32],
    ) {
        for column in columns.step_by(Self::LANES) {
            let mut sums = [[0.0f32; Self::LANES]; ROWS];
            let factors = a.iter().zip(b).zip(c).zip(d);
            for ((((&a, &b), &c), &d), right) in factors.zip(right.chunks_exact(stride)) {
                let right = &right[column..column + Self::LANES];
                for (sums, factor) in sums.iter_mut().zip([a, b, c, d]) {
                    for (sum, &right) in sums.iter_mut().zip(right) {
                        *sum += factor * right;
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                out[r * stride + column..][..Self::LANES].copy_from_slice(sums);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The same code, compiled for wider vectors.
    #![expect(unsafe_code, reason = "functions of an instruction set, entered with its token")]

    use std::marker::PhantomData;
    use std::ops::Range;

    use super::{Product, ROWS, Shape, backward_samples, forward_samples};
    use crate::cpu::vector::Fused;
    use crate::cpu::vector::x86::{Float8, Float16};
    use crate::cpu::{Avx2, Avx512};

    /// Registers of `V`; used only in functions compiled for `V`, on a machine whose token was
    /// shown.
    struct Vectors<V>(PhantomData<V>);

    impl<V: Fused> Product for Vectors<V> {
        const LANES: usize = V::LANES;

        #[inline(always)]
        fn multiply(
            left: [&[f32]; ROWS],
            (right, stride): (&[f32], usize),
            columns: Range<usize>,
            out: &mut [f32],
        ) {
            let inner = left[0].len();
            assert!(left.iter().all(|row| row.len() == inner));
            let end = columns.end.next_multiple_of(V::LANES);
            assert!(end <= stride && inner * stride <= right.len() && ROWS * stride <= out.len());
            let mut column = columns.start;
            while column < columns.end {
                // SAFETY: whole registers up to `end ≤ stride`, so that every row of both matrices
                // holds them, as checked above; the token of the caller's caller proves the
                // instruction set.
                unsafe {
                    if column + V::LANES < columns.end {
                        tile::<V, 2>(left, (right, stride), column, out);
                        column += 2 * V::LANES;
                    } else {
                        tile::<V, 1>(left, (right, stride), column, out);
                        column += V::LANES;
                    }
                }
            }
        }
    }

    /// `C` registers of columns from `column` on.
    ///
    /// # Safety
    /// As for [`Fused`]; each row of `right` and `out` holds the registers.
    #[inline(always)]
    unsafe fn tile<V: Fused, const C: usize>(
        left: [&[f32]; ROWS],
        (right, stride): (&[f32], usize),
        column: usize,
        out: &mut [f32],
    ) {
        // SAFETY: the caller's promise; all rows of `left` have the length of the first.
        unsafe {
            let mut sums = [[V::splat(0.0); C]; ROWS];
            for k in 0..left[0].len() {
                let right = right.as_ptr().add(k * stride + column);
                let right: [V; C] = std::array::from_fn(|c| V::load(right.add(c * V::LANES)));
                for (sums, row) in sums.iter_mut().zip(left) {
                    let factor = V::splat(*row.get_unchecked(k));
                    for (sum, right) in sums.iter_mut().zip(right) {
                        *sum = factor.multiply_add(right, *sum);
                    }
                }
            }
            for (r, sums) in sums.into_iter().enumerate() {
                for (c, sum) in sums.into_iter().enumerate() {
                    sum.store(out.as_mut_ptr().add(r * stride + column + c * V::LANES));
                }
            }
        }
    }

    macro_rules! entries {
        ($token:ty, $vector:ty, $features:literal, $forward:ident, $backward:ident) => {
            pub(super) fn $forward(
                _proof: $token,
                shape: &Shape,
                inputs: [&[f32]; 2],
                out: &mut [f32],
            ) {
                #[target_feature(enable = $features)]
                fn compiled(shape: &Shape, inputs: [&[f32]; 2], out: &mut [f32]) {
                    forward_samples::<Vectors<$vector>>(shape, inputs, out);
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
                    backward_samples::<Vectors<$vector>>(shape, inputs, outputs);
                }
                // SAFETY: the token proves that the machine has the instruction set.
                unsafe { compiled(shape, inputs, outputs) }
            }
        };
    }

    entries!(Avx2, Float8, "avx2,fma", forward_avx2, backward_avx2);
    entries!(Avx512, Float16, "avx512f", forward_avx512, backward_avx512);
}
