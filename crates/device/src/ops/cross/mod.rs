//! The element-wise part of a low-rank cross layer (DCN v2): `out = x0 ⊙ (u + bias) + x`. `gemm`
//! computes the products `u = W (V x)`.
//!
//! All matrices are stored in panels ([`crate::ops::gemm::panels`]), and each panel is treated as
//! a small matrix. One loop serves every instruction set, because the compiler vectorizes it and
//! memory is the bottleneck.

pub mod cuda;
pub mod scalar;

use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::extent;
use crate::ops::gemm::column_sums;
use crate::ops::gemm::panels::{self, PANEL};

/// Target number of elements in a chunk, which is rounded to whole rows of one panel.
const CHUNK: usize = 16_384;

/// Arguments of [`forward`]. All matrices are `[B, N]` in panels.
#[derive(Debug)]
pub struct Forward<'a> {
    /// Input of the first cross layer, `[B, N]` in panels.
    pub x0: &'a [f32],
    /// The product `W (V x)` without bias, `[B, N]` in panels.
    pub u: &'a [f32],
    /// Bias of the layer, `[N]`, whose length is the width of the layer.
    pub bias: &'a [f32],
    /// Input of this cross layer, `[B, N]` in panels.
    pub x: &'a [f32],
    /// Output of the layer, `[B, N]` in panels, overwritten.
    pub out: &'a mut [f32],
}

/// Arguments of [`backward`]. All matrices are `[B, N]` in panels.
#[derive(Debug)]
pub struct Backward<'a> {
    /// Gradient of the layer's output, `[B, N]` in panels.
    pub d_out: &'a [f32],
    /// Input of the first cross layer, `[B, N]` in panels.
    pub x0: &'a [f32],
    /// The product `W (V x)` without bias, `[B, N]` in panels.
    pub u: &'a [f32],
    /// Bias of the layer, `[N]`, whose length is the width of the layer.
    pub bias: &'a [f32],
    /// Gradient of `u`, `[B, N]` in panels, overwritten.
    pub d_u: &'a mut [f32],
    /// Gradient of the bias, `[N]`, overwritten.
    pub d_bias: &'a mut [f32],
    /// Gradient of `x0`, `[B, N]` in panels, to which the layer's part is added.
    pub d_x0: &'a mut [f32],
    /// Gradient of `x` along the residual path, `[B, N]` in panels, overwritten. The caller adds
    /// the part through `u` with an accumulating `gemm::backward_input`.
    pub d_x: &'a mut [f32],
}

/// Computes the output of the layer, `out = x0 ⊙ (u + bias) + x`.
///
/// # Cost
/// Bandwidth-bound: 3 FLOPs per element, for 12 bytes read and 4 written.
/// # Numerics
/// The result is bit-identical to that of [`scalar::forward`] for any number of threads.
/// # Errors
/// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
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

/// Computes the layer's gradients: `d_u = d_out ⊙ x0`, `d_bias = Σ_b d_u[b]`, `d_x0 += d_out ⊙ (u
/// + bias)`, `d_x = d_out`.
///
/// # Cost
/// Bandwidth-bound: 5 FLOPs per element, for 16 bytes read and 12 written.
/// # Numerics
/// The results are bit-identical to those of [`scalar::backward`] for any number of threads. The
/// gradient of the bias is summed over blocks of 64 samples, in order.
/// # Errors
/// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
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

/// A range of rows of one panel.
struct PanelPart<'a> {
    panel: usize,
    /// Index of the first element in the whole matrix.
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

/// Returns the number of rows `B` if the elements form whole rows.
fn check_rows(op: &'static str, width: usize, elements: usize) -> Result<usize, Error> {
    let row = panels::len(1, width);
    let b = elements.checked_div(row).unwrap_or(0);
    extent::check(op, "x0 [B, N] in panels, whole rows", b * row, elements)?;
    Ok(b)
}
