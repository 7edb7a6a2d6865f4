//! The three matrix products of a linear layer `Y = X Wᵀ + bias`, and the gradient of its bias.
//!
//! The products themselves are the `gemm` crate's, which picks its own instruction set at run time
//! (so [`crate::cpu::Isa`] is not asked here); this module owns the cut into tiles and the order of
//! sums. Knows nothing of activations or of layers in a row.

pub(crate) mod column_sums;
mod product;
pub mod scalar;

use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::extent;
use product::{Cut, Matrix, Product, Start};

/// Largest error of a sum of `K` products against the f64 oracle, relative to the sum of the
/// products' magnitudes.
pub const TOLERANCE: f64 = 1e-5;

/// Rows of the input are read in place, columns of `W` are packed: few rows would pay for the
/// packing.
const FORWARD_CUT: Cut = Cut { rows: 512, columns: 96, tiles: 32 };
/// As in the forward product, but packing rows of `W` costs less than packing its columns.
const BACKWARD_INPUT_CUT: Cut = Cut { rows: 128, columns: 96, tiles: 32 };
/// Both sides are packed: tiles of 96 columns lose a fifth of the rate to it, these a tenth.
const BACKWARD_WEIGHT_CUT: Cut = Cut { rows: 128, columns: 512, tiles: 8 };

/// Arguments of [`forward`].
#[derive(Debug)]
pub struct LinearForward<'a> {
    /// Input, `[B, K]`.
    pub x: &'a [f32],
    /// Weight, `[N, K]`.
    pub weight: &'a [f32],
    /// Bias, `[N]`.
    pub bias: Option<&'a [f32]>,
    /// Output, `[B, N]`, overwritten.
    pub y: &'a mut [f32],
    /// B, samples.
    pub b: usize,
    /// K, inputs.
    pub k: usize,
    /// N, outputs.
    pub n: usize,
}

/// Arguments of [`backward_input`] and [`backward_input_accumulate`].
#[derive(Debug)]
pub struct LinearBackwardInput<'a> {
    /// Gradient of the output, `[B, N]`.
    pub d_y: &'a [f32],
    /// Weight, `[N, K]`.
    pub weight: &'a [f32],
    /// Gradient of the input, `[B, K]`.
    pub d_x: &'a mut [f32],
    /// B, samples.
    pub b: usize,
    /// K, inputs.
    pub k: usize,
    /// N, outputs.
    pub n: usize,
}

/// Arguments of [`backward_weight`].
#[derive(Debug)]
pub struct LinearBackwardWeight<'a> {
    /// Input of the forward product, `[B, K]`.
    pub x: &'a [f32],
    /// Gradient of the output, `[B, N]`.
    pub d_y: &'a [f32],
    /// Gradient of the weight, `[N, K]`, overwritten.
    pub d_weight: &'a mut [f32],
    /// Gradient of the bias, `[N]`, overwritten.
    pub d_bias: Option<&'a mut [f32]>,
    /// B, samples.
    pub b: usize,
    /// K, inputs.
    pub k: usize,
    /// N, outputs.
    pub n: usize,
}

/// `Y = X Wᵀ + bias`.
///
/// # Cost
/// `2·B·N·K` FLOPs; compute-bound but for narrow layers.
/// # Numerics
/// f32 sums, blocked over `K` and started at the bias; within [`TOLERANCE`] of [`scalar::forward`].
/// The same bytes for any thread count.
/// # Errors
/// [`Error::Shape`] before any work.
pub fn forward(cpu: &Cpu, arguments: LinearForward<'_>) -> Result<(), Error> {
    const OP: &str = "gemm forward";
    let LinearForward { x, weight, bias, y, b, k, n } = arguments;
    extent::check(OP, "x [B, K]", b * k, x.len())?;
    extent::check(OP, "weight [N, K]", n * k, weight.len())?;
    extent::check(OP, "bias [N]", n, bias.map_or(n, <[f32]>::len))?;
    extent::check(OP, "y [B, N]", b * n, y.len())?;
    let mut product = Product {
        a: Matrix::new(x, k),
        b: Matrix::transposed(weight, k),
        start: bias.map_or(Start::Zero, Start::Row),
        c: y,
        m: b,
        n,
        inner: k,
        cut: FORWARD_CUT,
    };
    product::run(cpu, &mut product);
    Ok(())
}

/// `dX = dY W`; `d_x` is overwritten.
///
/// # Cost
/// `2·B·N·K` FLOPs.
/// # Numerics
/// As [`forward`], summed over `N`.
/// # Errors
/// [`Error::Shape`] before any work.
pub fn backward_input(cpu: &Cpu, arguments: LinearBackwardInput<'_>) -> Result<(), Error> {
    input_gradient(cpu, arguments, Start::Zero)
}

/// `dX += dY W`, where the input feeds more than this layer.
///
/// # Cost
/// `2·B·N·K` FLOPs.
/// # Numerics
/// As [`forward`], summed over `N`.
/// # Errors
/// [`Error::Shape`] before any work.
pub fn backward_input_accumulate(
    cpu: &Cpu,
    arguments: LinearBackwardInput<'_>,
) -> Result<(), Error> {
    input_gradient(cpu, arguments, Start::Kept)
}

fn input_gradient(
    cpu: &Cpu,
    arguments: LinearBackwardInput<'_>,
    start: Start<'_>,
) -> Result<(), Error> {
    const OP: &str = "gemm backward_input";
    let LinearBackwardInput { d_y, weight, d_x, b, k, n } = arguments;
    extent::check(OP, "d_y [B, N]", b * n, d_y.len())?;
    extent::check(OP, "weight [N, K]", n * k, weight.len())?;
    extent::check(OP, "d_x [B, K]", b * k, d_x.len())?;
    let mut product = Product {
        a: Matrix::new(d_y, n),
        b: Matrix::new(weight, k),
        start,
        c: d_x,
        m: b,
        n: k,
        inner: n,
        cut: BACKWARD_INPUT_CUT,
    };
    product::run(cpu, &mut product);
    Ok(())
}

/// `dW = dYᵀ X` and `d_bias[n] = Σ_b dY[b, n]`.
///
/// # Cost
/// `2·B·N·K` FLOPs, and one more reading of `d_y` for the bias.
/// # Numerics
/// As [`forward`], summed over `B` in order (the bias in blocks of 64 samples).
/// # Errors
/// [`Error::Shape`] before any work.
pub fn backward_weight(cpu: &Cpu, arguments: LinearBackwardWeight<'_>) -> Result<(), Error> {
    const OP: &str = "gemm backward_weight";
    let LinearBackwardWeight { x, d_y, d_weight, d_bias, b, k, n } = arguments;
    extent::check(OP, "x [B, K]", b * k, x.len())?;
    extent::check(OP, "d_y [B, N]", b * n, d_y.len())?;
    extent::check(OP, "d_weight [N, K]", n * k, d_weight.len())?;
    extent::check(OP, "d_bias [N]", n, d_bias.as_ref().map_or(n, |d_bias| d_bias.len()))?;
    let mut product = Product {
        a: Matrix::transposed(d_y, n),
        b: Matrix::new(x, k),
        start: Start::Zero,
        c: d_weight,
        m: n,
        n: k,
        inner: b,
        cut: BACKWARD_WEIGHT_CUT,
    };
    product::run(cpu, &mut product);
    if let Some(d_bias) = d_bias {
        column_sums::run(cpu, d_y, d_bias);
    }
    Ok(())
}
