//! The three matrix products of a linear layer `Y = X Wᵀ + bias`, with the bias, ReLU and their
//! gradients fused where the sums are still in registers.
//!
//! Activations and their gradients come and go in [`panels`]; the weight is read from a
//! [`PackedWeight`], made once per step. This module owns the cut into chunks and the order of
//! sums. Knows nothing of layers in a row.
#![expect(unsafe_code, reason = "chunks of one matrix are scattered, so slices cannot part them")]

pub mod column;
pub(crate) mod column_sums;
pub mod panels;
mod portable;
pub mod scalar;
mod simd;
mod weight;

use std::ops::Range;

pub use weight::PackedWeight;

use crate::cpu::{Cpu, DisjointMut, Isa};
use crate::error::Error;
use crate::ops::extent;
use panels::PANEL;
use simd::{Finish, RowsChunk, WeightChunk};

/// Largest error of a sum of `K` products against the f64 oracle, relative to the sum of the
/// products' magnitudes.
pub const TOLERANCE: f64 = 1e-5;

/// Rows of a chunk of the forward product or of the gradient of the input.
const CHUNK_ROWS: usize = 64;
/// Floats of the packed weight that a chunk reads: half a second-level cache of 1 MiB, which they
/// keep from chunk to chunk, beside the rows that pass.
const CHUNK_WEIGHTS: usize = 128 << 10;
/// Panels of X of a chunk of the weight gradient: with one of dY, half a second-level cache.
const CHUNK_PANELS: usize = 4;

/// What follows the bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    None,
    /// `max(y, 0)`; NaN stays.
    Relu,
}

/// Arguments of [`forward`].
#[derive(Debug)]
pub struct LinearForward<'a> {
    /// Input, `[B, K]` in panels.
    pub x: &'a [f32],
    /// Weight, `[N, K]`.
    pub weight: &'a PackedWeight,
    /// Bias, `[N]`.
    pub bias: Option<&'a [f32]>,
    /// What follows the bias.
    pub activation: Activation,
    /// Output, `[B, N]` in panels, overwritten.
    pub y: &'a mut [f32],
    /// B, samples.
    pub b: usize,
}

/// What becomes of the gradient of the input.
#[derive(Clone, Copy, Debug)]
pub enum InputGradient<'a> {
    /// It is written.
    Write,
    /// It is added to what is there: the input feeds more than this layer.
    Accumulate,
    /// It is written as 0 where this input `[B, K]` in panels, the output of a ReLU, is not above
    /// 0: the gradient before the ReLU.
    BeforeRelu(&'a [f32]),
}

/// Arguments of [`backward_input`].
#[derive(Debug)]
pub struct LinearBackwardInput<'a> {
    /// Gradient of the output, `[B, N]` in panels.
    pub d_y: &'a [f32],
    /// Weight, `[N, K]`.
    pub weight: &'a PackedWeight,
    /// What becomes of the gradient.
    pub gradient: InputGradient<'a>,
    /// Gradient of the input, `[B, K]` in panels.
    pub d_x: &'a mut [f32],
    /// B, samples.
    pub b: usize,
}

/// Arguments of [`backward_weight`].
#[derive(Debug)]
pub struct LinearBackwardWeight<'a> {
    /// Input of the forward product, `[B, K]` in panels.
    pub x: &'a [f32],
    /// Gradient of the output, `[B, N]` in panels.
    pub d_y: &'a [f32],
    /// Gradient of the weight, `[N, K]`, row-major, overwritten.
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

/// `Y = f(X Wᵀ + bias)`.
///
/// # Cost
/// `2·B·N·K` FLOPs; compute-bound but for narrow layers.
/// # Numerics
/// f32 sums over `K` in order, multiplication and addition rounded once, then the bias; within
/// [`TOLERANCE`] of [`scalar::forward`]. The same bytes for any thread count.
/// # Errors
/// [`Error::Shape`] before any work.
pub fn forward(cpu: &Cpu, arguments: LinearForward<'_>) -> Result<(), Error> {
    const OP: &str = "gemm forward";
    let LinearForward { x, weight, bias, activation, y, b } = arguments;
    let (n, k) = weight.shape();
    extent::check(OP, "x [B, K] in panels", panels::len(b, k), x.len())?;
    extent::check(OP, "bias [N]", n, bias.map_or(n, <[f32]>::len))?;
    extent::check(OP, "y [B, N] in panels", panels::len(b, n), y.len())?;
    let mut padded = vec![0.0; panels::len(1, n)];
    if let Some(bias) = bias {
        padded[..n].copy_from_slice(bias);
    }
    let finish = match activation {
        Activation::None => Finish::Bias,
        Activation::Relu => Finish::BiasRelu,
    };
    let rows = Rows { a: x, b: weight.forward(), other: &padded, finish, inner: k, columns: n };
    rows.run(cpu, y, b);
    Ok(())
}

/// `dX = dY W`, and what [`InputGradient`] says becomes of it.
///
/// # Cost
/// `2·B·N·K` FLOPs.
/// # Numerics
/// As [`forward`], summed over `N`.
/// # Errors
/// [`Error::Shape`] before any work.
pub fn backward_input(cpu: &Cpu, arguments: LinearBackwardInput<'_>) -> Result<(), Error> {
    const OP: &str = "gemm backward_input";
    let LinearBackwardInput { d_y, weight, gradient, d_x, b } = arguments;
    let (n, k) = weight.shape();
    extent::check(OP, "d_y [B, N] in panels", panels::len(b, n), d_y.len())?;
    extent::check(OP, "d_x [B, K] in panels", panels::len(b, k), d_x.len())?;
    let (finish, other) = match gradient {
        InputGradient::Write => (Finish::Store, &[][..]),
        InputGradient::Accumulate => (Finish::Add, &[][..]),
        InputGradient::BeforeRelu(x) => {
            extent::check(OP, "x [B, K] in panels", panels::len(b, k), x.len())?;
            (Finish::Mask, x)
        }
    };
    let rows = Rows { a: d_y, b: weight.backward(), other, finish, inner: n, columns: k };
    rows.run(cpu, d_x, b);
    Ok(())
}

/// `dW = dYᵀ X` and `d_bias[n] = Σ_b dY[b, n]`.
///
/// # Cost
/// `2·B·N·K` FLOPs; the bias is summed from panels that the product has in the cache.
/// # Numerics
/// As [`forward`], summed over `B` in order (the bias in blocks of 64 samples).
/// # Errors
/// [`Error::Shape`] before any work.
pub fn backward_weight(cpu: &Cpu, arguments: LinearBackwardWeight<'_>) -> Result<(), Error> {
    const OP: &str = "gemm backward_weight";
    let LinearBackwardWeight { x, d_y, d_weight, d_bias, b, k, n } = arguments;
    extent::check(OP, "x [B, K] in panels", panels::len(b, k), x.len())?;
    extent::check(OP, "d_y [B, N] in panels", panels::len(b, n), d_y.len())?;
    extent::check(OP, "d_weight [N, K]", n * k, d_weight.len())?;
    extent::check(OP, "d_bias [N]", n, d_bias.as_ref().map_or(n, |d_bias| d_bias.len()))?;
    if b == 0 {
        d_weight.fill(0.0);
        d_bias.into_iter().for_each(|d_bias| d_bias.fill(0.0));
        return Ok(());
    }
    // At least one, so that the bias is summed even where there are no inputs.
    let groups = panels::count(k).div_ceil(CHUNK_PANELS).max(1);
    let d_weight = DisjointMut::new(d_weight);
    let d_bias = d_bias.map(DisjointMut::new);
    cpu.pool.run(groups * panels::count(n), |index| {
        let (group, n_panel) = (index / panels::count(n), index % panels::count(n));
        let k_panels = part_of(panels::count(k), group, groups);
        let sums = d_bias.as_ref().filter(|_| group == 0).map(|sums| sums.as_ptr().cast_mut());
        let chunk = WeightChunk {
            d_y: d_y.as_ptr(),
            x: x.as_ptr(),
            d_weight: d_weight.as_ptr().cast_mut(),
            d_bias: sums.unwrap_or(std::ptr::null_mut()),
            samples: b,
            n,
            k,
            n_panel,
            k_panels,
        };
        // SAFETY: the extents were checked; each chunk is its own rectangle of the gradient.
        unsafe {
            match cpu.isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2(token) => simd::x86::weight_avx2(token, &chunk),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512(token) => simd::x86::weight_avx512(token, &chunk),
                _ => portable::weight(&chunk),
            }
        }
    });
    Ok(())
}

/// `C = A B` where the rows of A and C are samples.
struct Rows<'a> {
    /// `[samples, inner]` in panels.
    a: &'a [f32],
    /// `[panels of C][inner][32]`.
    b: &'a [f32],
    /// The bias or the mask.
    other: &'a [f32],
    finish: Finish,
    inner: usize,
    columns: usize,
}

impl Rows<'_> {
    /// Chunks of rows within groups of panels: consecutive chunks read the same weights.
    fn run(&self, cpu: &Cpu, c: &mut [f32], samples: usize) {
        let panels = panels::count(self.columns);
        let groups = (panels * self.inner * PANEL).div_ceil(CHUNK_WEIGHTS).clamp(1, panels.max(1));
        let blocks = samples.div_ceil(CHUNK_ROWS);
        let c = DisjointMut::new(c);
        cpu.pool.run(groups * blocks, |index| {
            let (group, block) = (index / blocks, index % blocks);
            let chunk = RowsChunk {
                a: self.a.as_ptr(),
                b: self.b.as_ptr(),
                c: c.as_ptr().cast_mut(),
                other: self.other.as_ptr(),
                finish: self.finish,
                samples,
                inner: self.inner,
                rows: block * CHUNK_ROWS..samples.min((block + 1) * CHUNK_ROWS),
                panels: part_of(panels, group, groups),
            };
            // SAFETY: the extents were checked; each chunk is its own rectangle of C.
            unsafe {
                match cpu.isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2(token) => simd::x86::rows_avx2(token, &chunk),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512(token) => simd::x86::rows_avx512(token, &chunk),
                    _ => portable::rows(&chunk),
                }
            }
        });
    }
}

/// Part `part` of `parts` even parts of `0..length`.
fn part_of(length: usize, part: usize, parts: usize) -> Range<usize> {
    length * part / parts..length * (part + 1) / parts
}
