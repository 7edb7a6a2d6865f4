//! The dot interaction: all pairwise dot products of a sample's vectors, after its dense vector.
//! The dense vectors, the output and their gradients are in panels, like the matrices of the
//! adjacent layers; a chunk of samples is transposed to rows and back within the cache. Independent
//! of tables or layers.
#![expect(unsafe_code, reason = "chunks of samples write scattered rows of panels")]

pub mod cuda;
pub mod scalar;
mod shape;
mod simd;

pub use shape::Shape;

use crate::cpu::{Cpu, DisjointMut};
use crate::error::Error;
use crate::ops::extent;
use crate::ops::gemm::panels::{self, RowsMut};

/// Samples of a chunk.
const CHUNK_SAMPLES: usize = 32;

/// Arguments of [`forward`]: the vectors of a batch, and the output.
#[derive(Debug)]
pub struct Forward<'a> {
    pub shape: Shape,
    /// Vector 0 of each sample, `[B, D]` in panels.
    pub dense: &'a [f32],
    /// Vectors 1 to F of each sample, `[B, F·D]`.
    pub pooled: &'a [f32],
    /// `[B, D + pairs]` in panels, overwritten.
    pub out: &'a mut [f32],
}

/// Arguments of [`backward`]: the vectors of a batch, the gradient of the output, and the gradients
/// to write.
#[derive(Debug)]
pub struct Backward<'a> {
    pub shape: Shape,
    /// Vector 0 of each sample, `[B, D]` in panels.
    pub dense: &'a [f32],
    /// Vectors 1 to F of each sample, `[B, F·D]`.
    pub pooled: &'a [f32],
    /// Gradient of the output, `[B, D + pairs]` in panels.
    pub d_out: &'a [f32],
    /// Gradient of `dense`, `[B, D]` in panels, overwritten.
    pub d_dense: &'a mut [f32],
    /// Gradient of `pooled`, `[B, F·D]`, overwritten.
    pub d_pooled: &'a mut [f32],
}

/// `out[b] = [dense[b] ‖ t_i · t_j for the kept pairs (i, j)]`, `t` the vectors of sample `b`;
/// without a dense vector, only the pairs.
///
/// # Cost
/// `2·D` FLOPs per kept pair; the kernel computes up to twice as many in whole vectors.
/// # Numerics
/// Sums over `d` in order. Vector kernels round each multiply-add once; portable code rounds
/// multiplication and addition separately and has the bytes of [`scalar::forward`]. The thread
/// count and the width of vectors do not change the bytes.
/// # Errors
/// [`Error::Shape`] before any work.
/// # Source
/// DLRM, arXiv:1906.00091; the order of the upper triangle follows TorchRec.
pub fn forward(cpu: &Cpu, arguments: Forward<'_>) -> Result<(), Error> {
    const OP: &str = "interaction forward";
    let Forward { shape, dense, pooled, out } = arguments;
    check_inputs(OP, &shape, dense, pooled)?;
    let width = shape.width();
    extent::check(OP, "out [B, D + pairs] in panels", panels::len(shape.b, width), out.len())?;
    let out = RowsMut::new(out, shape.b);
    cpu.pool.run(shape.b.div_ceil(CHUNK_SAMPLES), |chunk| {
        let (first, samples) = samples_of(chunk, shape.b);
        let dense = rows_of(dense, shape.b, first, samples, shape.dense_width());
        let pooled = part(pooled, first * shape.pooled_width(), samples * shape.pooled_width());
        let rows = first..first + samples;
        // SAFETY: each chunk writes only the rows of its own samples.
        unsafe { simd::forward(cpu.isa, &shape, [&dense, pooled], (&out, rows)) };
    });
    Ok(())
}

/// The gradients of both inputs of [`forward`].
///
/// # Cost
/// `4·D` FLOPs per kept pair; the kernel's symmetric form does `2·D·(F + 1)²`.
/// # Numerics
/// Sums over the partners in order of their index, with the rounding of [`forward`]. The results
/// are within f32 rounding of [`scalar::backward`], which adds in the order of the pairs. The same
/// bytes for any thread count and width of vectors.
/// # Errors
/// [`Error::Shape`] before any work.
pub fn backward(cpu: &Cpu, arguments: Backward<'_>) -> Result<(), Error> {
    const OP: &str = "interaction backward";
    let Backward { shape, dense, pooled, d_out, d_dense, d_pooled } = arguments;
    check_inputs(OP, &shape, dense, pooled)?;
    let (width, pooled_width) = (shape.width(), shape.pooled_width());
    let (b, d_out_len) = (shape.b, panels::len(shape.b, width));
    extent::check(OP, "d_out [B, D + pairs] in panels", d_out_len, d_out.len())?;
    let (dense_width, dense_len) = (shape.dense_width(), panels::len(b, shape.dense_width()));
    extent::check(OP, "d_dense [B, D] in panels", dense_len, d_dense.len())?;
    extent::check(OP, "d_pooled [B, F·D]", b * pooled_width, d_pooled.len())?;
    let d_dense = RowsMut::new(d_dense, b);
    let d_pooled = DisjointMut::new(d_pooled);
    cpu.pool.run(b.div_ceil(CHUNK_SAMPLES), |chunk| {
        let (first, samples) = samples_of(chunk, b);
        let rows = |panels, columns| rows_of(panels, b, first, samples, columns);
        let (dense, d_out) = (rows(dense, dense_width), rows(d_out, width));
        let pooled = part(pooled, first * pooled_width, samples * pooled_width);
        // SAFETY: each chunk writes only its own samples, all of which lie inside the pooled
        // matrix.
        let d_pooled =
            unsafe { d_pooled.part(first * pooled_width..(first + samples) * pooled_width) };
        let mut d_rows = vec![0.0; samples * dense_width];
        simd::backward(cpu.isa, &shape, [&dense, pooled, &d_out], [&mut d_rows, d_pooled]);
        for (row, values) in (first..).zip(d_rows.chunks_exact(dense_width.max(1))) {
            // SAFETY: each chunk writes only the rows of its own samples.
            unsafe { d_dense.write(row, values) };
        }
    });
    Ok(())
}

/// Returns the first sample of a chunk and its number of samples.
fn samples_of(chunk: usize, b: usize) -> (usize, usize) {
    let first = chunk * CHUNK_SAMPLES;
    (first, CHUNK_SAMPLES.min(b - first))
}

/// Copies some rows from panels of `b` rows to a row-major matrix.
fn rows_of(panels: &[f32], b: usize, first: usize, samples: usize, columns: usize) -> Vec<f32> {
    let mut rows = vec![0.0; samples * columns];
    for (row, to) in (first..).zip(rows.chunks_exact_mut(columns.max(1))) {
        panels::read_row(panels, b, row, to);
    }
    rows
}

fn part(data: &[f32], first: usize, len: usize) -> &[f32] {
    &data[first..first + len]
}

fn check_inputs(
    op: &'static str,
    shape: &Shape,
    dense: &[f32],
    pooled: &[f32],
) -> Result<(), Error> {
    let dense_len = panels::len(shape.b, shape.dense_width());
    extent::check(op, "dense [B, D] in panels", dense_len, dense.len())?;
    extent::check(op, "pooled [B, F·D]", shape.b * shape.pooled_width(), pooled.len())
}
