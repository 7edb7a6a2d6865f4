//! The dot interaction: all pairwise dot products of a sample's vectors, after its dense vector.
//! Knows nothing of tables or layers.

pub mod scalar;
mod simd;

use schema::TriangleOrder;

use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::extent;

/// Samples of a chunk.
const CHUNK_SAMPLES: usize = 32;

/// The shape of an interaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// B, samples.
    pub b: usize,
    /// F, pooled vectors of a sample; with the dense one there are F + 1.
    pub features: usize,
    /// D, elements of a vector.
    pub dim: usize,
    /// Order of the pairs.
    pub order: TriangleOrder,
    /// Whether the products of a vector with itself are kept.
    pub itself: bool,
}

impl Shape {
    /// F + 1.
    #[must_use]
    pub fn vectors(&self) -> usize {
        self.features + 1
    }

    /// F·D, the elements of a sample's pooled vectors.
    #[must_use]
    pub fn pooled_width(&self) -> usize {
        self.features * self.dim
    }

    /// D plus the number of kept pairs, the elements of a sample's output.
    #[must_use]
    pub fn width(&self) -> usize {
        let vectors = self.vectors();
        let pairs = if self.itself { vectors * (vectors + 1) } else { vectors * (vectors - 1) };
        self.dim + pairs / 2
    }

    /// The second vectors of the pairs `(i, ·)`, in the order of the output.
    #[must_use]
    pub fn partners(&self, i: usize) -> std::ops::Range<usize> {
        let itself = usize::from(self.itself);
        match self.order {
            TriangleOrder::Lower => 0..i + itself,
            TriangleOrder::Upper => i + 1 - itself..self.vectors(),
        }
    }

    /// Vector `i` of sample `sample`: 0 is the dense one, the others are pooled.
    #[inline(always)]
    pub(crate) fn vector<'a, R>(
        &self,
        sample: usize,
        [dense, pooled]: [&'a [R]; 2],
        i: usize,
    ) -> &'a [R] {
        match i.checked_sub(1) {
            None => &dense[sample * self.dim..][..self.dim],
            Some(i) => &pooled[(sample * self.features + i) * self.dim..][..self.dim],
        }
    }

    /// All kept pairs in the order of the output.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..self.vectors()).flat_map(|i| self.partners(i).map(move |j| (i, j)))
    }
}

/// Arguments of [`forward`].
#[derive(Debug)]
pub struct Forward<'a> {
    /// The shape.
    pub shape: Shape,
    /// Vector 0 of each sample, `[B, D]`.
    pub dense: &'a [f32],
    /// Vectors 1 to F of each sample, `[B, F·D]`.
    pub pooled: &'a [f32],
    /// `[B, D + pairs]`, overwritten.
    pub out: &'a mut [f32],
}

/// Arguments of [`backward`].
#[derive(Debug)]
pub struct Backward<'a> {
    /// The shape.
    pub shape: Shape,
    /// Vector 0 of each sample, `[B, D]`.
    pub dense: &'a [f32],
    /// Vectors 1 to F of each sample, `[B, F·D]`.
    pub pooled: &'a [f32],
    /// Gradient of the output, `[B, D + pairs]`.
    pub d_out: &'a [f32],
    /// Gradient of `dense`, `[B, D]`, overwritten.
    pub d_dense: &'a mut [f32],
    /// Gradient of `pooled`, `[B, F·D]`, overwritten.
    pub d_pooled: &'a mut [f32],
}

/// `out[b] = [dense[b] ‖ t_i · t_j for the kept pairs (i, j)]`, `t` the F + 1 vectors of sample
/// `b`.
///
/// # Cost
/// `2·D` FLOPs per kept pair; the kernel computes up to twice as many in whole vectors.
/// # Numerics
/// Sums over `d` in order, multiplication and addition rounded apart: the bytes of
/// [`scalar::forward`], on every instruction set and any thread count.
/// # Errors
/// [`Error::Shape`] before any work.
/// # Source
/// DLRM, arXiv:1906.00091; the upper order is TorchRec's.
pub fn forward(cpu: &Cpu, arguments: Forward<'_>) -> Result<(), Error> {
    const OP: &str = "interaction forward";
    let Forward { shape, dense, pooled, out } = arguments;
    check_inputs(OP, &shape, dense, pooled)?;
    extent::check(OP, "out [B, D + pairs]", shape.b * shape.width(), out.len())?;
    if out.is_empty() {
        return Ok(());
    }
    cpu.pool.run_slices(out, CHUNK_SAMPLES * shape.width(), |chunk, out| {
        let first = chunk * CHUNK_SAMPLES;
        let samples = out.len() / shape.width();
        let dense = &dense[first * shape.dim..][..samples * shape.dim];
        let pooled = &pooled[first * shape.pooled_width()..][..samples * shape.pooled_width()];
        simd::forward(cpu.isa, &shape, [dense, pooled], out);
    });
    Ok(())
}

/// The gradients of both inputs of [`forward`].
///
/// # Cost
/// `4·D` FLOPs per kept pair; the kernel's symmetric form does `2·D·(F + 1)²`.
/// # Numerics
/// Sums over the partners in order of their index, multiplication and addition rounded apart;
/// within f32 rounding of [`scalar::backward`], which adds in the order of the pairs. The same
/// bytes on every instruction set and any thread count.
/// # Errors
/// [`Error::Shape`] before any work.
pub fn backward(cpu: &Cpu, arguments: Backward<'_>) -> Result<(), Error> {
    const OP: &str = "interaction backward";
    let Backward { shape, dense, pooled, d_out, d_dense, d_pooled } = arguments;
    check_inputs(OP, &shape, dense, pooled)?;
    let (width, pooled_width) = (shape.width(), shape.pooled_width());
    extent::check(OP, "d_out [B, D + pairs]", shape.b * width, d_out.len())?;
    extent::check(OP, "d_dense [B, D]", shape.b * shape.dim, d_dense.len())?;
    extent::check(OP, "d_pooled [B, F·D]", shape.b * pooled_width, d_pooled.len())?;
    if d_dense.is_empty() {
        return Ok(());
    }
    let run = |chunk: usize, d_dense: &mut [f32], d_pooled: &mut [f32]| {
        let first = chunk * CHUNK_SAMPLES;
        let samples = d_dense.len() / shape.dim;
        let part = |data, width| part(data, first * width, samples * width);
        let inputs = [part(dense, shape.dim), part(pooled, pooled_width), part(d_out, width)];
        simd::backward(cpu.isa, &shape, inputs, [d_dense, d_pooled]);
    };
    let chunk_len = CHUNK_SAMPLES * shape.dim;
    if pooled_width == 0 {
        cpu.pool.run_slices(d_dense, chunk_len, |chunk, d_dense| run(chunk, d_dense, &mut []));
    } else {
        let lens = (chunk_len, CHUNK_SAMPLES * pooled_width);
        cpu.pool.run_zipped((d_dense, d_pooled), lens, run);
    }
    Ok(())
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
    extent::check(op, "dense [B, D]", shape.b * shape.dim, dense.len())?;
    extent::check(op, "pooled [B, F·D]", shape.b * shape.pooled_width(), pooled.len())
}
