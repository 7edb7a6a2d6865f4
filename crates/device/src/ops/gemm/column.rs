//! The products of a layer with one output, such as the logit. These products are
//! bandwidth-bound, so the weight row is not repacked, and `y` is a plain `[B]`.
//!
//! The functions loop over whole panels, and the compiler vectorizes these plain loops for the
//! instruction set in use.

use super::panels::{self, PANEL};
use crate::cpu::vector::{prefetch_row, widened};
use crate::cpu::{Cpu, DisjointMut};
use crate::error::Error;
use crate::ops::activation::scalar::relu_gradient;
use crate::ops::extent;

/// Number of samples in a chunk of the forward product, and in a partial sum.
const CHUNK_ROWS: usize = 64;

/// Computes `y[b] = Σ_k x[b, k] · weight[k] + bias`, where `x` is `[B, K]` in panels and `y` is
/// `[B]`. Without a bias, the sum is added to `y[b]`.
///
/// # Cost
/// Bandwidth-bound: reads `4·B·K` bytes for `2·B·K` FLOPs.
/// # Numerics
/// Each column of a panel has its own f32 sum, and the sums of the columns are added in order.
/// The result has the same bytes for any number of threads.
/// # Errors
/// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
pub fn forward(
    cpu: &Cpu,
    x: &[f32],
    weight: &[f32],
    bias: Option<f32>,
    y: &mut [f32],
) -> Result<(), Error> {
    let b = y.len();
    extent::check("column forward", "x [B, K] in panels", panels::len(b, weight.len()), x.len())?;
    cpu.pool.run_slices(y, CHUNK_ROWS, |chunk, y| {
        // The rows of these samples in the next panel are far away in memory, so they are
        // prefetched row by row.
        let mut sums = [[0.0f32; PANEL]; CHUNK_ROWS];
        for (panel, weight) in weight.chunks(PANEL).enumerate() {
            let weight = padded(weight);
            let rows = &x[(panel * b + chunk * CHUNK_ROWS) * PANEL..][..y.len() * PANEL];
            for (sums, x) in sums.iter_mut().zip(rows.as_chunks::<PANEL>().0) {
                prefetch_row(x.as_ptr().wrapping_add(b * PANEL), PANEL);
                add_products(x, &weight, sums);
            }
        }
        for (y, sums) in y.iter_mut().zip(&sums) {
            *y = sums.iter().sum::<f32>() + bias.unwrap_or(*y);
        }
    });
    Ok(())
}

/// Computes `sums += x ⊙ weight` with explicit SSE registers. From a plain loop the compiler
/// generates a loop over rows, lane by lane, which takes twice the time of the memory accesses.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "calls vector instructions")]
#[inline(always)]
fn add_products(x: &[f32; PANEL], weight: &[f32; PANEL], sums: &mut [f32; PANEL]) {
    use std::arch::x86_64::{__m128, _mm_add_ps, _mm_mul_ps};
    const REGISTERS: usize = PANEL / 4;
    let [x, weight, mut added] =
        [x, weight, sums].map(|lanes| -> [__m128; REGISTERS] { bytemuck::cast(*lanes) });
    for ((sum, x), weight) in added.iter_mut().zip(x).zip(weight) {
        // SAFETY: `_mm_add_ps` and `_mm_mul_ps` need SSE, which every x86-64 CPU has.
        *sum = unsafe { _mm_add_ps(*sum, _mm_mul_ps(x, weight)) };
    }
    *sums = bytemuck::cast(added);
}

/// Computes `sums += x ⊙ weight` in plain Rust.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn add_products(x: &[f32; PANEL], weight: &[f32; PANEL], sums: &mut [f32; PANEL]) {
    for ((sum, x), weight) in sums.iter_mut().zip(x).zip(weight) {
        *sum += x * weight;
    }
}

/// Computes the gradient of the input, `d_x[b, k] = d_y[b] · weight[k]`, where `x[b, k]`, the
/// output of a ReLU, is positive, and 0 elsewhere. `x` and `d_x` are `[B, K]` in panels.
///
/// # Cost
/// Bandwidth-bound: reads and writes `4·B·K` bytes.
/// # Errors
/// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
pub fn backward_input(
    cpu: &Cpu,
    d_y: &[f32],
    weight: &[f32],
    x: Option<&[f32]>,
    d_x: &mut [f32],
) -> Result<(), Error> {
    const OP: &str = "column backward_input";
    let b = d_y.len();
    let len = panels::len(b, weight.len());
    extent::check(OP, "x [B, K] in panels", len, x.map_or(len, <[f32]>::len))?;
    extent::check(OP, "d_x [B, K] in panels", len, d_x.len())?;
    let blocks = b.div_ceil(CHUNK_ROWS);
    let parts = DisjointMut::new(d_x);
    let rows_of = |index: usize| {
        let (panel, block) = (index / blocks, index % blocks);
        let weight = padded(&weight[panel * PANEL..][..PANEL.min(weight.len() - panel * PANEL)]);
        let d_y = &d_y[block * CHUNK_ROWS..b.min((block + 1) * CHUNK_ROWS)];
        let first = (panel * b + block * CHUNK_ROWS) * PANEL;
        let range = first..first + d_y.len() * PANEL;
        #[expect(unsafe_code, reason = "each chunk writes its own rows of shared panels")]
        // SAFETY: the range lies inside the panels, whose length was checked, and each block has
        // its own chunk.
        let d_x = unsafe { parts.part(range.clone()) };
        for (d_x, &d_y) in d_x.as_chunks_mut::<PANEL>().0.iter_mut().zip(d_y) {
            for (d_x, &weight) in d_x.iter_mut().zip(&weight) {
                *d_x = d_y * weight;
            }
        }
        if let Some(x) = x {
            let outputs = &x[range];
            d_x.iter_mut().zip(outputs).for_each(|(d_x, &x)| *d_x = relu_gradient(x, *d_x));
        }
    };
    let count = blocks * panels::count(weight.len());
    cpu.pool.run(count, |index| widened(cpu.isa, || rows_of(index)));
    Ok(())
}

/// Computes the gradient of the weight, `d_weight[k] = Σ_b d_y[b] · x[b, k]`, where `x` is `[B,
/// K]` in panels. Returns the gradient of the bias, `Σ_b d_y[b]`.
///
/// # Cost
/// Bandwidth-bound: reads `4·B·K` bytes.
/// # Numerics
/// Sums are f32, over blocks of 64 samples in order. The result has the same bytes for any number
/// of threads.
/// # Errors
/// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
pub fn backward_weight(
    cpu: &Cpu,
    x: &[f32],
    d_y: &[f32],
    d_weight: &mut [f32],
) -> Result<f32, Error> {
    const OP: &str = "column backward_weight";
    let b = d_y.len();
    extent::check(OP, "x [B, K] in panels", panels::len(b, d_weight.len()), x.len())?;
    let panel_of = |panel: usize, d_weight: &mut [f32]| {
        let mut total = [0.0f32; PANEL];
        let blocks = x[panel * b * PANEL..][..b * PANEL].chunks(CHUNK_ROWS * PANEL);
        for (x, d_y) in blocks.zip(d_y.chunks(CHUNK_ROWS)) {
            let mut sums = [0.0f32; PANEL];
            for (x, &d_y) in x.as_chunks::<PANEL>().0.iter().zip(d_y) {
                for lane in 0..PANEL {
                    sums[lane] += x[lane] * d_y;
                }
            }
            for (total, &sum) in total.iter_mut().zip(&sums) {
                *total += sum;
            }
        }
        d_weight.copy_from_slice(&total[..d_weight.len()]);
    };
    cpu.pool.run_slices(d_weight, PANEL, |panel, d_weight| {
        widened(cpu.isa, || panel_of(panel, d_weight));
    });
    Ok(d_y.chunks(CHUNK_ROWS).map(|block| block.iter().sum::<f32>()).sum())
}

fn padded(weight: &[f32]) -> [f32; PANEL] {
    let mut padded = [0.0; PANEL];
    padded[..weight.len()].copy_from_slice(weight);
    padded
}
