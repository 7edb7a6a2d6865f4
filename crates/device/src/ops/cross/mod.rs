//! The element-wise part of a low-rank cross layer (DCN v2): `out = x0 ⊙ (u + bias) + x`. The
//! products `u = W (V x)` are computed by `gemm`.
//!
//! All matrices are in panels ([`crate::ops::gemm::panels`]); here each panel is treated as a small
//! matrix. One loop serves every instruction set, because the compiler vectorizes it and memory is
//! the limit.

pub mod cuda;
pub mod scalar;

use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::extent;
use crate::ops::gemm::column_sums;
use crate::ops::gemm::panels::{self, PANEL};

/// Elements of a chunk, rounded to whole rows of one panel.
const CHUNK: usize = 16_384;

/// Arguments of [`forward`], all `[B, N]` in panels except the bias.
#[derive(Debug)]
pub struct Forward<'a> {
    /// Input of the first cross layer, `[B, N]` in panels.
    pub x0: &'a [f32],
    /// `W (V x)` without bias, `[B, N]` in panels.
    pub u: &'a [f32],
    /// Bias, `[N]`; its length is the width.
    pub bias: &'a [f32],
    /// Input of this layer, `[B, N]` in panels.
    pub x: &'a [f32],
    /// Output, `[B, N]` in panels, overwritten.
    pub out: &'a mut [f32],
}

/// Arguments of [`backward`], all `[B, N]` in panels except the bias and its gradient.
#[derive(Debug)]
pub struct Backward<'a> {
    /// Gradient of the output, `[B, N]` in panels.
    pub d_out: &'a [f32],
    /// Input of the first cross layer, `[B, N]` in panels.
    pub x0: &'a [f32],
    /// `W (V x)` without bias, `[B, N]` in panels.
    pub u: &'a [f32],
    /// Bias, `[N]`; its length is the width.
    pub bias: &'a [f32],
    /// Gradient of `u`, `[B, N]` in panels, overwritten.
    pub d_u: &'a mut [f32],
    /// Gradient of the bias, `[N]`, overwritten.
    pub d_bias: &'a mut [f32],
    /// Gradient of `x0`, `[B, N]` in panels; the layer's part is added to it.
    pub d_x0: &'a mut [f32],
    /// The direct part of the gradient of `x`, `[B, N]` in panels, overwritten; the caller adds the
    /// part through `u` (`gemm::backward_input`, accumulating).
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
    let b = check_rows(OP, bias.len(), x0.len())?;
    for (what, got) in [("u [B, N]", u.len()), ("x [B, N]", x.len()), ("out [B, N]", out.len())] {
        extent::check(OP, what, x0.len(), got)?;
    }
    let mut parts: Vec<_> = parts_mut(out, b).collect();
    cpu.pool.run_slices(&mut parts, 1, |_, parts| {
        for PanelPart { panel, first, data: out } in parts {
            let inputs = [x0, u, x].map(|data| &data[*first..*first + out.len()]);
            scalar::forward(inputs, &panel_bias(bias, *panel), out);
        }
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
    let b = check_rows(OP, bias.len(), x0.len())?;
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
    let outputs = parts_mut(d_u, b).zip(parts_mut(d_x0, b)).zip(parts_mut(d_x, b));
    let mut parts: Vec<_> = outputs.collect();
    cpu.pool.run_slices(&mut parts, 1, |_, parts| {
        for ((PanelPart { panel, first, data: d_u }, d_x0), d_x) in parts {
            let inputs = [d_out, x0, u].map(|data| &data[*first..*first + d_u.len()]);
            scalar::backward(inputs, &panel_bias(bias, *panel), [d_u, d_x0.data, d_x.data]);
        }
    });
    column_sums::run(cpu, d_u, b, d_bias);
    Ok(())
}

/// Some rows of one panel.
struct PanelPart<'a> {
    panel: usize,
    /// Position of the first element in the whole matrix.
    first: usize,
    data: &'a mut [f32],
}

fn parts_mut(matrix: &mut [f32], b: usize) -> impl Iterator<Item = PanelPart<'_>> {
    let panel_len = (b * PANEL).max(1);
    matrix.chunks_mut(panel_len).enumerate().flat_map(move |(panel, data)| {
        let parts = data.chunks_mut(CHUNK).enumerate();
        parts.map(move |(i, data)| PanelPart { panel, first: panel * panel_len + i * CHUNK, data })
    })
}

fn panel_bias(bias: &[f32], panel: usize) -> [f32; PANEL] {
    let mut padded = [0.0; PANEL];
    let own = &bias[panel * PANEL..bias.len().min((panel + 1) * PANEL)];
    padded[..own.len()].copy_from_slice(own);
    padded
}

/// Returns B if the elements form whole rows.
fn check_rows(op: &'static str, width: usize, elements: usize) -> Result<usize, Error> {
    let row = panels::len(1, width);
    let b = elements.checked_div(row).unwrap_or(0);
    extent::check(op, "x0 [B, N] in panels, whole rows", b * row, elements)?;
    Ok(b)
}
