//! The element-wise part of a low-rank cross layer (DCN v2): `out = x0 ⊙ (u + bias) + x`.
//! The products `u = W (V x)` are `gemm`'s; this module knows nothing of them.
//!
//! One loop serves every instruction set: it compiles to vectors as it is, and memory bounds it.

pub mod scalar;

use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::extent;
use crate::ops::gemm::column_sums;

/// Elements of a chunk, at least; chunks hold whole rows.
const CHUNK: usize = 16_384;

/// Arguments of [`forward`].
#[derive(Debug)]
pub struct Forward<'a> {
    /// Input of the first cross layer, `[B, N]`.
    pub x0: &'a [f32],
    /// `W (V x)` without bias, `[B, N]`.
    pub u: &'a [f32],
    /// Bias, `[N]`; its length is the width.
    pub bias: &'a [f32],
    /// Input of this layer, `[B, N]`.
    pub x: &'a [f32],
    /// Output, `[B, N]`, overwritten.
    pub out: &'a mut [f32],
}

/// Arguments of [`backward`].
#[derive(Debug)]
pub struct Backward<'a> {
    /// Gradient of the output, `[B, N]`.
    pub d_out: &'a [f32],
    /// Input of the first cross layer, `[B, N]`.
    pub x0: &'a [f32],
    /// `W (V x)` without bias, `[B, N]`.
    pub u: &'a [f32],
    /// Bias, `[N]`; its length is the width.
    pub bias: &'a [f32],
    /// Gradient of `u`, `[B, N]`, overwritten.
    pub d_u: &'a mut [f32],
    /// Gradient of the bias, `[N]`, overwritten.
    pub d_bias: &'a mut [f32],
    /// Gradient of `x0`, `[B, N]`, added to.
    pub d_x0: &'a mut [f32],
    /// The direct part of the gradient of `x`, `[B, N]`, overwritten; the caller adds the part
    /// through `u` (`gemm::backward_input_accumulate`).
    pub d_x: &'a mut [f32],
}

/// `out = x0 ⊙ (u + bias) + x`.
///
/// # Cost
/// 3 FLOPs per element; reads 12 bytes, writes 4: bandwidth-bound.
/// # Numerics
/// The bytes of [`scalar::forward`] for any thread count.
/// # Errors
/// [`Error::Shape`] before any work.
/// # Source
/// DCN v2, arXiv:2008.13535.
pub fn forward(cpu: &Cpu, arguments: Forward<'_>) -> Result<(), Error> {
    const OP: &str = "cross forward";
    let Forward { x0, u, bias, x, out } = arguments;
    check_rows(OP, bias.len(), x0.len())?;
    for (what, got) in [("u [B, N]", u.len()), ("x [B, N]", x.len()), ("out [B, N]", out.len())] {
        extent::check(OP, what, x0.len(), got)?;
    }
    let chunk_len = chunk_len(bias.len());
    cpu.pool.run_slices(out, chunk_len, |chunk, out| {
        let first = chunk * chunk_len;
        let inputs = [x0, u, x].map(|data| &data[first..first + out.len()]);
        scalar::forward(inputs, bias, out);
    });
    Ok(())
}

/// `d_u = d_out ⊙ x0`, `d_bias = Σ_b d_u[b]`, `d_x0 += d_out ⊙ (u + bias)`, `d_x = d_out`.
///
/// # Cost
/// 5 FLOPs per element; reads 16 bytes and writes 12: bandwidth-bound.
/// # Numerics
/// The bytes of [`scalar::backward`]; the bias sums blocks of 64 samples in order. The same bytes
/// for any thread count.
/// # Errors
/// [`Error::Shape`] before any work.
pub fn backward(cpu: &Cpu, arguments: Backward<'_>) -> Result<(), Error> {
    const OP: &str = "cross backward";
    let Backward { d_out, x0, u, bias, d_u, d_bias, d_x0, d_x } = arguments;
    check_rows(OP, bias.len(), x0.len())?;
    extent::check(OP, "d_bias [N]", bias.len(), d_bias.len())?;
    for (what, got) in [
        ("d_out [B, N]", d_out.len()),
        ("u [B, N]", u.len()),
        ("d_u [B, N]", d_u.len()),
        ("d_x0 [B, N]", d_x0.len()),
        ("d_x [B, N]", d_x.len()),
    ] {
        extent::check(OP, what, x0.len(), got)?;
    }
    let chunk_len = chunk_len(bias.len());
    let outputs = d_u.chunks_mut(chunk_len).zip(d_x0.chunks_mut(chunk_len));
    let mut parts: Vec<_> = outputs.zip(d_x.chunks_mut(chunk_len)).collect();
    cpu.pool.run_slices(&mut parts, 1, |chunk, parts| {
        for ((d_u, d_x0), d_x) in parts {
            let first = chunk * chunk_len;
            let inputs = [d_out, x0, u].map(|data| &data[first..first + d_u.len()]);
            scalar::backward(inputs, bias, [d_u, d_x0, d_x]);
        }
    });
    column_sums::run(cpu, d_u, d_bias);
    Ok(())
}

fn chunk_len(width: usize) -> usize {
    CHUNK.next_multiple_of(width.max(1))
}

fn check_rows(op: &'static str, width: usize, elements: usize) -> Result<(), Error> {
    let whole = elements.checked_div(width).unwrap_or(0) * width;
    extent::check(op, "x0 [B, N], whole rows", whole, elements)
}
