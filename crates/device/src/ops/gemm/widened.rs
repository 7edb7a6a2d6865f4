//! Products of bf16 with the kernels of f32, for CPUs whose bf16 instruction is missing or slow.
//!
//! ```text
//! rows:    widen the chunk's rows of A;  for panel of B: widen it, multiply
//! weight:  for block of steps: widen the panels of X;  for panel of dY: widen it, multiply
//! ```
//! A bf16 is the upper half of an f32, so widening is exact. The kernels of f32 sum the products
//! one after the other in the order of their inner extent.
//! 1. Each factor is widened once per chunk. Kernels that widened in registers spent as many
//!    instructions on it as on multiply-adds and reached half of the rate of f32.
//!    `docs/decisions/0012-number-formats-on-cpus.md` has both figures.
#![expect(unsafe_code, reason = "chunks hold raw pointers to parts of matrices")]

use std::cell::RefCell;

use super::chunk::{RowsChunk, WeightChunk};
use super::panels::{ACROSS, PANEL};

thread_local! {
    /// Buffers for the widened factors of the chunk that this thread multiplies: one whole
    /// factor, and one panel of the other.
    static SCRATCH: RefCell<[Vec<f32>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// Computes a chunk of rows of a bf16 product: widens its factors, and lets `multiply` compute the
/// same chunk from the f32 values.
///
/// # Safety
/// The caller guarantees that the pointers of `chunk` refer to factors of the sizes that its
/// fields state, and that no other thread writes the part of the result that the chunk covers.
pub(super) unsafe fn rows(chunk: &RowsChunk<'_, u32>, multiply: impl Fn(&RowsChunk<'_, f32>)) {
    SCRATCH.with_borrow_mut(|[a, b]| {
        let (first, rows, inner) = (chunk.rows.start, chunk.rows.len(), 2 * chunk.inner);
        let a = room(a, chunk.inner.div_ceil(ACROSS) * rows * PANEL);
        for (run, to) in a.chunks_exact_mut((rows * PANEL).max(1)).enumerate() {
            let words = chunk.a.wrapping_add((run * chunk.a_samples + first) * ACROSS);
            // SAFETY: the caller guarantees that `chunk.a` holds all samples in whole panels.
            widen_across(unsafe { std::slice::from_raw_parts(words, rows * ACROSS) }, to);
        }
        let b = room(b, inner * PANEL);
        for panel in chunk.panels.clone() {
            let words = chunk.b.wrapping_add(panel * chunk.inner * PANEL);
            // SAFETY: the caller guarantees that `chunk.b` holds this panel.
            widen_down(unsafe { std::slice::from_raw_parts(words, chunk.inner * PANEL) }, b);
            multiply(&RowsChunk {
                a: a.as_ptr().wrapping_sub(first * PANEL),
                b: b.as_ptr().wrapping_sub(panel * inner * PANEL),
                sink: chunk.sink,
                finish: chunk.finish,
                samples: chunk.samples,
                a_samples: rows,
                inner,
                columns: chunk.columns,
                rows: chunk.rows.clone(),
                panels: panel..panel + 1,
            });
        }
    });
}

/// Computes a chunk of a weight gradient of bf16 factors: widens the factors, and lets `multiply`
/// compute the same chunk from the f32 values.
///
/// # Safety
/// The caller guarantees the same conditions as for [`rows`].
pub(super) unsafe fn weight(chunk: &WeightChunk<u32>, multiply: impl Fn(&WeightChunk<f32>)) {
    SCRATCH.with_borrow_mut(|[x, d_y]| {
        for steps in chunk.blocks() {
            let (words, inner) = (steps.len() * PANEL, 2 * steps.len());
            let panel_of = |matrix: *const u32, panel: usize| {
                let first = matrix.wrapping_add((panel * chunk.inner + steps.start) * PANEL);
                // SAFETY: the caller guarantees that the panels lie inside the matrices.
                unsafe { std::slice::from_raw_parts(first, words) }
            };
            let x = room(x, chunk.k_panels.len() * inner * PANEL);
            for (panel, to) in chunk.k_panels.clone().zip(x.chunks_exact_mut(inner * PANEL)) {
                widen_down(panel_of(chunk.x, panel), to);
            }
            let d_y = room(d_y, inner * PANEL);
            for n_panel in chunk.n_panels.clone() {
                // SAFETY: the caller guarantees that the pointers of the chunk are valid, and
                // only this thread writes the chunk's part of the result.
                unsafe { chunk.add_bias(&steps, n_panel) };
                widen_down(panel_of(chunk.d_y, n_panel), d_y);
                multiply(&WeightChunk {
                    d_y: d_y.as_ptr().wrapping_sub(n_panel * inner * PANEL),
                    x: x.as_ptr().wrapping_sub(chunk.k_panels.start * inner * PANEL),
                    d_bias: std::ptr::null_mut(),
                    d_weight: chunk.d_weight,
                    inner,
                    block: inner,
                    adds: chunk.adds || steps.start > 0,
                    n: chunk.n,
                    k: chunk.k,
                    n_panels: n_panel..n_panel + 1,
                    k_panels: chunk.k_panels.clone(),
                    beside: None,
                });
            }
        }
    });
}

/// Returns the first `length` values of a buffer, which is enlarged if it is too short.
fn room(buffer: &mut Vec<f32>, length: usize) -> &mut [f32] {
    if buffer.len() < length {
        buffer.resize(length, 0.0);
    }
    &mut buffer[..length]
}

/// Widens the two bf16 values of each word into two adjacent f32 values.
fn widen_across(words: &[u32], to: &mut [f32]) {
    for (word, to) in words.iter().zip(to.as_chunks_mut::<2>().0) {
        *to = [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)];
    }
}

/// Widens groups of 32 words. The 32 values of the lower halves come first, then the 32 values of
/// the upper halves.
fn widen_down(words: &[u32], to: &mut [f32]) {
    let (words, to) = (words.as_chunks::<PANEL>().0, to.as_chunks_mut::<PANEL>().0);
    for (words, to) in words.iter().zip(to.as_chunks_mut::<2>().0) {
        for (lane, word) in words.iter().enumerate() {
            to[0][lane] = f32::from_bits(word << 16);
            to[1][lane] = f32::from_bits(word & 0xffff_0000);
        }
    }
}
