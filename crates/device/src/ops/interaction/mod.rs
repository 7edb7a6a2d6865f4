//! The dot interaction: all pairwise dot products of a sample's vectors, preceded by its dense
//! vector. The dense vectors, the output and their gradients are in panels, like the matrices of
//! the adjacent layers. A chunk of samples is transposed to rows and back within the cache. This
//! module does not depend on tables or layers.
#![expect(unsafe_code, reason = "each chunk of samples writes its own rows of shared panels")]

pub mod cuda;
pub mod scalar;
mod shape;
mod simd;

pub use shape::Shape;

use crate::cpu::{Cpu, DisjointMut};
use crate::error::Error;
use crate::ops::extent;
use crate::ops::gemm::panels::{self, RowsMut};

/// Number of samples in a chunk.
const CHUNK_SAMPLES: usize = 32;

/// Arguments of [`forward`]: the vectors of a batch, and the output.
#[derive(Debug)]
pub struct Forward<'a> {
    pub shape: Shape,
    /// Dense vector of each sample, which is its vector 0, `[B, D]` in panels.
    pub dense: &'a [f32],
    /// Pooled vectors of each sample, which are its vectors 1 to F, `[B, F·D]`.
    pub pooled: &'a [f32],
    /// Output, `[B, D + pairs]` in panels, overwritten.
    pub out: &'a mut [f32],
}

/// Arguments of [`backward`]: the vectors of a batch, the gradient of the output, and the gradients
/// to write.
#[derive(Debug)]
pub struct Backward<'a> {
    pub shape: Shape,
    /// Dense vector of each sample, which is its vector 0, `[B, D]` in panels.
    pub dense: &'a [f32],
    /// Pooled vectors of each sample, which are its vectors 1 to F, `[B, F·D]`.
    pub pooled: &'a [f32],
    /// Gradient of the output, `[B, D + pairs]` in panels.
    pub d_out: &'a [f32],
    /// Gradient of `dense`, `[B, D]` in panels, overwritten.
    pub d_dense: &'a mut [f32],
    /// Gradient of `pooled`, `[B, F·D]`, overwritten.
    pub d_pooled: &'a mut [f32],
}

/// Computes `out[b] = [dense[b] ‖ t_i · t_j for the kept pairs (i, j)]`, where `t` are the
/// vectors of sample `b`. Without a dense vector, the output has only the pairs.
///
/// # Cost
/// Costs `2·D` FLOPs per kept pair. The kernel computes up to twice as many products in whole
/// vectors.
/// # Numerics
/// Sums run over `d` in order. Vector kernels round each multiply-add once. Portable code rounds
/// multiplication and addition separately, and its results are bit-identical to those of
/// [`scalar::forward`]. The number of threads and the width of vectors do not change the results.
/// # Errors
/// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
/// # Source
/// DLRM is described in arXiv:1906.00091. The order of the upper triangle follows TorchRec.
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

/// Computes the gradients of both inputs of [`forward`].
///
/// # Cost
/// Costs `4·D` FLOPs per kept pair. The kernel's symmetric form computes `2·D·(F + 1)²`.
/// # Numerics
/// Sums run over the partners in order of their index, with the rounding of [`forward`]. The
/// results are within f32 rounding of those of [`scalar::backward`], which adds in the order of
/// the pairs. The results are bit-identical for any number of threads and width of vectors.
/// # Errors
/// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
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

/// Returns the first sample of a chunk and the number of its samples.
fn samples_of(chunk: usize, b: usize) -> (usize, usize) {
    let first = chunk * CHUNK_SAMPLES;
    (first, CHUNK_SAMPLES.min(b - first))
}

/// Copies `samples` rows, from row `first` on, from panels of `b` rows to a row-major matrix.
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
