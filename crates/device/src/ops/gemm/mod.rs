//! The three matrix products of a linear layer `Y = X Wᵀ + bias`. The bias, ReLU and their
//! gradients are fused into the products, where the sums are still in registers.
//!
//! Activations and their gradients are stored in [`panels`] of f32 or in [`pairs`] of bf16. The
//! weight is a [`LinearWeight`], and its gradient is stored in panels. Both factors of a product
//! have the same precision, sums are f32, and the result may have either precision. This module
//! divides products into chunks and determines the order of sums.
#![expect(unsafe_code, reason = "chunks of one matrix are not contiguous slices")]

mod chunk;
pub mod column;
pub(crate) mod column_sums;
pub mod cuda;
mod dispatch;
mod operand;
mod pair;
pub mod pairs;
pub mod panels;
mod portable;
pub mod scalar;
mod simd;
mod terms;
mod tile;
mod weight;
mod widened;
mod word;

use std::ops::Range;

use schema::Precision;

pub use operand::{Matrix, Operand, OperandMut};
pub use weight::LinearWeight;
pub(crate) use weight::Renewal;

use crate::MatrixShape;
use crate::cpu::{Cpu, DisjointMut};
use crate::error::Error;
use crate::ops::extent;
pub(crate) use chunk::Beside;
use chunk::{BLOCK, CHUNK_ROWS, Finish, RowsChunk, SumSink, WIDE_PANELS, WeightChunk};
use dispatch::Factor;
use panels::PANEL;
use weight::Forms;

/// Largest error of a sum of `K` products compared with the f64 oracle, relative to the sum of
/// the products' magnitudes.
pub const TOLERANCE: f64 = 1e-5;

/// Largest number of words of the packed weight that are multiplied with one chunk of rows.
const CHUNK_WEIGHTS: usize = 256 << 10;
/// Number of panels of X in a chunk of the weight gradient. A block of their samples stays in the
/// second-level cache while the chunk's blocks of dY are multiplied with it.
const CHUNK_PANELS: usize = WIDE_PANELS;
/// Largest number of panels of dY in a chunk of the weight gradient. Each block of X is fetched
/// once for all these panels. The sums of these panels take 96 KiB and stay in the second-level
/// cache too.
const CHUNK_OUTPUT_PANELS: usize = 8;
/// Number of chunks per thread. With several chunks each, all threads end at about the same time.
const CHUNKS_PER_THREAD: usize = 8;
/// Largest number of pieces into which the last chunks are divided. With whole chunks, threads
/// wait for the last one for 0.5–2 % of a product's time.
const PIECES: usize = 4;

/// The activation function that is applied after the bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    None,
    /// Computes `max(y, 0)`, where NaN stays NaN.
    Relu,
}

/// Arguments of [`forward`], the product of a linear layer.
#[derive(Debug)]
pub struct LinearForward<'a> {
    /// Input of the layer, `[B, K]`, in the weight's precision.
    pub x: Operand<'a>,
    /// Weight of the layer, `[N, K]`.
    pub weight: &'a LinearWeight,
    /// Optional bias of the layer, `[N]`.
    pub bias: Option<&'a [f32]>,
    /// The activation function that is applied after the bias.
    pub activation: Activation,
    /// Output of the layer, `[B, N]`, overwritten.
    pub y: OperandMut<'a>,
    pub b: usize,
}

/// The way in which a product stores the gradient of its input.
#[derive(Clone, Copy, Debug)]
pub enum InputGradient<'a> {
    Write,
    /// Add the gradient to the existing values, because other layers use the input too.
    Accumulate,
    /// Write the gradient, with 0 where this input `[B, K]`, the output of a ReLU, is not
    /// positive. The result is the gradient before the ReLU.
    BeforeRelu(Operand<'a>),
}

/// Arguments of [`backward_input`], the gradient of a layer's input.
#[derive(Debug)]
pub struct LinearBackwardInput<'a> {
    /// Gradient of the layer's output, `[B, N]`, in the weight's precision.
    pub d_y: Operand<'a>,
    /// Weight of the layer, `[N, K]`.
    pub weight: &'a LinearWeight,
    pub gradient: InputGradient<'a>,
    /// Gradient of the layer's input, `[B, K]`.
    pub d_x: OperandMut<'a>,
    pub b: usize,
}

/// Arguments of [`backward_weight`], the gradients of weight and bias.
#[derive(Debug)]
pub struct LinearBackwardWeight<'a> {
    /// Input of the forward product, `[B, K]`.
    pub x: Operand<'a>,
    /// Gradient of the layer's output, `[B, N]`, in the input's precision.
    pub d_y: Operand<'a>,
    /// Gradient of the weight, `[N, K]` in panels, overwritten.
    pub d_weight: &'a mut [f32],
    /// Gradient of the bias, `[N]`, overwritten.
    pub d_bias: Option<&'a mut [f32]>,
    pub b: usize,
    pub k: usize,
    pub n: usize,
}

/// Computes the output of a linear layer, `Y = f(X Wᵀ + bias)`.
///
/// # Cost
/// Costs `2·B·N·K` FLOPs and is compute-bound, except for narrow layers.
/// # Numerics
/// Sums are f32, over `K` in order, with one rounding per multiply-add, and the bias is added
/// last. Results are within [`TOLERANCE`] of [`scalar::forward`]. In bf16, each step adds two
/// products, either exactly or with one rounding each. The result has the same bytes for any
/// number of threads.
/// # Errors
/// Fails with [`Error::Shape`] or [`Error::Precision`] before any work.
pub fn forward(cpu: &Cpu, arguments: LinearForward<'_>) -> Result<(), Error> {
    const OP: &str = "gemm forward";
    let LinearForward { x, weight, bias, activation, y, b } = arguments;
    let MatrixShape { rows: n, columns: k } = weight.shape();
    x.check(OP, "x [B, K] in panels", MatrixShape::new(b, k))?;
    extent::check(OP, "bias [N]", n, bias.map_or(n, <[f32]>::len))?;
    y.as_operand().check(OP, "y [B, N] in panels", MatrixShape::new(b, n))?;
    // The kernels add the bias in whole registers, so it is padded to whole panels.
    let mut padded = vec![0.0; panels::len(1, n)];
    if let Some(bias) = bias {
        padded[..n].copy_from_slice(bias);
    }
    let finish = match activation {
        Activation::None => Finish::Bias(&padded),
        Activation::Relu => Finish::BiasRelu(&padded),
    };
    let extents = Extents { samples: b, inner: k, columns: n };
    match (x, &weight.forms) {
        (Operand::F32(x), Forms::F32 { forward }) => {
            rows(cpu, x, forward, finish, y, extents);
        }
        (Operand::Bf16(x), Forms::Bf16 { forward, .. }) => {
            rows(cpu, x.across, forward, finish, y, extents);
        }
        _ => return Err(mixed(OP, "x", weight.precision(), x)),
    }
    Ok(())
}

/// Computes the gradient of the input, `dX = dY W`, stored as [`InputGradient`] specifies.
///
/// # Cost
/// Costs `2·B·N·K` FLOPs, as many as the forward product.
/// # Numerics
/// Sums follow the rules of [`forward`], over `N` instead of `K`.
/// # Errors
/// Fails with [`Error::Shape`] or [`Error::Precision`] before any work.
pub fn backward_input(cpu: &Cpu, arguments: LinearBackwardInput<'_>) -> Result<(), Error> {
    const OP: &str = "gemm backward_input";
    let LinearBackwardInput { d_y, weight, gradient, d_x, b } = arguments;
    let MatrixShape { rows: n, columns: k } = weight.shape();
    d_y.check(OP, "d_y [B, N] in panels", MatrixShape::new(b, n))?;
    d_x.as_operand().check(OP, "d_x [B, K] in panels", MatrixShape::new(b, k))?;
    let finish = match gradient {
        InputGradient::Write => Finish::Store,
        InputGradient::Accumulate => Finish::Add,
        InputGradient::BeforeRelu(x) => {
            x.check(OP, "x [B, K] in panels", MatrixShape::new(b, k))?;
            match x {
                Operand::F32(x) => Finish::Mask(x),
                Operand::Bf16(x) => Finish::MaskPairs(x.across),
            }
        }
    };
    let extents = Extents { samples: b, inner: n, columns: k };
    match (d_y, &weight.forms) {
        (Operand::F32(d_y), Forms::F32 { .. }) => {
            rows(cpu, d_y, &weight.values, finish, d_x, extents);
        }
        (Operand::Bf16(d_y), Forms::Bf16 { backward, .. }) => {
            rows(cpu, d_y.across, backward, finish, d_x, extents);
        }
        _ => return Err(mixed(OP, "d_y", weight.precision(), d_y)),
    }
    Ok(())
}

/// Computes the gradients of the weight, `dW = dYᵀ X`, and of the bias, `d_bias[n] = Σ_b dY[b,
/// n]`.
///
/// # Cost
/// Costs `2·B·N·K` FLOPs. The bias is summed from panels that the product already has in the
/// cache.
/// # Numerics
/// Sums follow the rules of [`forward`], over `B` in order, in blocks of 512 steps. The bias is
/// summed in blocks of 64 samples.
/// # Errors
/// Fails with [`Error::Shape`] or [`Error::Precision`] before any work.
pub fn backward_weight(cpu: &Cpu, arguments: LinearBackwardWeight<'_>) -> Result<(), Error> {
    backward_weight_into(cpu, arguments, None)
}

/// Receives the parts of a weight's gradient as they are completed, while they are in the cache.
pub(crate) trait Consumer: Sync {
    /// Returns the memory that the consumer reads. This memory is prefetched while the last
    /// samples are summed.
    fn beside(&self) -> Beside;
    /// Receives the `rows` of `panel`. The range of rows begins at a multiple of 32, and ends at
    /// a multiple of 32 or at N.
    ///
    /// # Safety
    /// The caller guarantees that the rows lie inside the weight, and that each row of a panel is
    /// passed once.
    unsafe fn take(&self, panel: usize, rows: Range<usize>, gradient: &[f32]);
}

/// Computes gradients like [`backward_weight`] and passes every part of the weight's gradient to
/// `consumer` once.
pub(crate) fn backward_weight_into(
    cpu: &Cpu,
    arguments: LinearBackwardWeight<'_>,
    consumer: Option<&dyn Consumer>,
) -> Result<(), Error> {
    const OP: &str = "gemm backward_weight";
    let LinearBackwardWeight { x, d_y, d_weight, d_bias, b, k, n } = arguments;
    x.check(OP, "x [B, K] in panels", MatrixShape::new(b, k))?;
    d_y.check(OP, "d_y [B, N] in panels", MatrixShape::new(b, n))?;
    extent::check(OP, "d_weight [N, K] in panels", panels::len(n, k), d_weight.len())?;
    extent::check(OP, "d_bias [N]", n, d_bias.as_ref().map_or(n, |d_bias| d_bias.len()))?;
    if x.precision() != d_y.precision() {
        return Err(mixed(OP, "d_y", x.precision(), d_y));
    }
    // Without samples there is nothing to multiply, but the gradients must still be overwritten.
    if b == 0 {
        d_weight.fill(0.0);
        d_bias.into_iter().for_each(|d_bias| d_bias.fill(0.0));
        if let Some(consumer) = consumer {
            for (panel, rows) in d_weight.chunks_exact((n * PANEL).max(1)).enumerate() {
                // SAFETY: each panel is passed once to `take`, as a whole.
                unsafe { consumer.take(panel, 0..n, rows) };
            }
        }
        return Ok(());
    }
    let gradients = Gradients {
        weight: DisjointMut::new(d_weight),
        bias: d_bias.map(DisjointMut::new),
        consumer,
    };
    match (x, d_y) {
        (Operand::Bf16(x), Operand::Bf16(d_y)) => {
            weight_gradient(cpu, x.down, d_y.down, &gradients, [b.div_ceil(2), n, k]);
        }
        (Operand::F32(x), Operand::F32(d_y)) => {
            weight_gradient(cpu, x, d_y, &gradients, [b, n, k]);
        }
        _ => {}
    }
    Ok(())
}

fn mixed(op: &'static str, what: &'static str, expected: Precision, got: Operand<'_>) -> Error {
    Error::Precision { op, what, expected, got: got.precision() }
}

/// The destinations of the gradients of a layer's weight and bias.
struct Gradients<'a> {
    weight: DisjointMut<'a, f32>,
    bias: Option<DisjointMut<'a, f32>>,
    consumer: Option<&'a dyn Consumer>,
}

/// Computes `dW = dYᵀ X` over `inner` words of samples, and the column sums of dY, in chunks of
/// some panels of both factors. The order in which an element is summed does not depend on the
/// size of the chunks.
fn weight_gradient<W: Factor>(
    cpu: &Cpu,
    x: &[W],
    d_y: &[W],
    gradients: &Gradients<'_>,
    [inner, n, k]: [usize; 3],
) {
    let [n_panels, k_panels] = [n, k].map(panels::count);
    // There is at least one group, so that the bias is summed even if the layer has no inputs.
    let groups = k_panels.div_ceil(CHUNK_PANELS).max(1);
    let wanted = (CHUNKS_PER_THREAD * cpu.pool.threads()).div_ceil(groups);
    let parts = wanted.max(n_panels.div_ceil(CHUNK_OUTPUT_PANELS)).min(n_panels);
    let count = pieces(n_panels, parts);
    cpu.pool.run_tapered(groups * parts, count, |index, pieces| {
        let (group, part) = (index / parts, index % parts);
        let n_panels = panels_of(n_panels, part, parts, pieces, count);
        if n_panels.is_empty() {
            return;
        }
        // Only the first group of chunks sums the bias, so that each element is written once.
        let sums = gradients.bias.as_ref().filter(|_| group == 0).map(|sums| sums.write_ptr(0..n));
        let chunk = WeightChunk {
            d_y: d_y.as_ptr(),
            x: x.as_ptr(),
            d_weight: gradients.weight.write_ptr(0..panels::len(n, k)),
            d_bias: sums.unwrap_or(std::ptr::null_mut()),
            inner,
            block: BLOCK,
            adds: false,
            n,
            k,
            n_panels,
            k_panels: group * CHUNK_PANELS..k_panels.min((group + 1) * CHUNK_PANELS),
            beside: gradients.consumer.map(Consumer::beside),
        };
        // SAFETY: the extents were checked above, and each chunk covers its own rectangle of the
        // gradient.
        unsafe { W::weight(cpu.isa, &chunk) }
        let Some(consumer) = gradients.consumer else { return };
        let rows = chunk.n_panels.start * PANEL..n.min(chunk.n_panels.end * PANEL);
        for panel in chunk.k_panels.clone() {
            let place = panels::rows_of(n, panel, &rows);
            // SAFETY: `rows` of the panel belong to this chunk alone, and their gradient is
            // complete.
            unsafe { consumer.take(panel, rows.clone(), gradients.weight.part(place)) };
        }
    });
}

/// The extents in values of a product `C = A B`, in which the rows of A and C are samples.
#[derive(Clone, Copy)]
struct Extents {
    samples: usize,
    inner: usize,
    columns: usize,
}

/// Computes `C = A B`, where `a` is `[samples, inner]` and `b` is `[panels of C][inner][32]`. The
/// chunks are rows within groups of panels, so that consecutive chunks read the same weights.
fn rows<W: Factor>(
    cpu: &Cpu,
    a: &[W],
    b: &[W],
    finish: Finish<'_>,
    c: OperandMut<'_>,
    extents: Extents,
) {
    let Extents { samples, columns, .. } = extents;
    let inner = extents.inner.div_ceil(W::VALUES);
    let panels = panels::count(columns);
    let blocks = samples.div_ceil(CHUNK_ROWS);
    let wanted = (CHUNKS_PER_THREAD * cpu.pool.threads()).div_ceil(blocks.max(1));
    let groups = (panels * inner * PANEL).div_ceil(CHUNK_WEIGHTS).max(wanted).min(panels.max(1));
    let sink = match c {
        OperandMut::F32(values) => SumSink::F32(DisjointMut::new(values)),
        OperandMut::Bf16(pairs) => SumSink::Bf16 {
            across: DisjointMut::new(pairs.across),
            down: DisjointMut::new(pairs.down),
        },
    };
    let count = pieces(panels, groups);
    cpu.pool.run_tapered(groups * blocks, count, |index, pieces| {
        let (group, block) = (index / blocks, index % blocks);
        let chunk = RowsChunk {
            a: a.as_ptr(),
            b: b.as_ptr(),
            sink: &sink,
            finish,
            samples,
            a_samples: samples,
            inner,
            columns,
            rows: block * CHUNK_ROWS..samples.min((block + 1) * CHUNK_ROWS),
            panels: panels_of(panels, group, groups, pieces, count),
        };
        // SAFETY: the extents were checked above, each chunk covers its own rectangle of C, and
        // both rows of a pair are in one chunk.
        unsafe { W::rows(cpu.isa, &chunk) }
    });
}

/// Returns the number of pieces per chunk if `parts` chunks share `panels`.
fn pieces(panels: usize, parts: usize) -> usize {
    panels.div_ceil(parts.max(1)).clamp(1, PIECES)
}

/// Returns the range of panels that some pieces of chunk `part` cover if `parts` chunks share
/// `panels`. The range may be empty.
fn panels_of(
    panels: usize,
    part: usize,
    parts: usize,
    pieces: Range<usize>,
    pieces_per_chunk: usize,
) -> Range<usize> {
    let [first, end] = [pieces.start, pieces.end]
        .map(|piece| panels * (part * pieces_per_chunk + piece) / (parts * pieces_per_chunk));
    first..end
}
