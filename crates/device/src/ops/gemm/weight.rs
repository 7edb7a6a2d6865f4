//! A layer's weight in the two forms its products read, made once per step.
//!
//! ```text
//! for block of 32 outputs × 32 inputs:                                        4 KiB, in the cache
//!     backward = its rows, in bf16 pairs of rows                              (1)
//!     forward  = its columns, in bf16 pairs of columns, turned in registers
//! ```
//! 1. In f32 past the caches: it is read when the whole forward pass has been through them. At
//!    1024 × 1024 that takes a quarter off the time.
#![expect(unsafe_code, reason = "blocks of both forms are scattered, so slices cannot part them")]

use std::ops::Range;

use schema::Precision;

use super::pairs::{self, ACROSS};
use super::panels::{self, PANEL};
use super::simd::RoundChunk;
use crate::buffer::Array;
use crate::cpu::vector::{prefetch_row, stream, streamed};
use crate::cpu::{Cpu, DisjointMut};
use crate::error::Error;
use crate::ops::extent;
use crate::ops::turn::{self, turn};

/// Panels of inputs that a chunk packs for its panel of outputs.
const CHUNK_PANELS: usize = 8;

/// A weight `[N, K]` in panels: of N for the forward product, of K for the gradient of the input.
#[derive(Debug)]
pub struct PackedWeight {
    n: usize,
    k: usize,
    pub(super) forms: Forms,
}

/// `forward` `[⌈N/32⌉][K][32]`, `backward` `[⌈K/32⌉][N][32]`; in bf16 half as many words along
/// the inner extent, each a pair.
#[derive(Debug)]
pub(super) enum Forms {
    F32 { forward: Array<f32>, backward: Array<f32> },
    Bf16 { forward: Array<u32>, backward: Array<u32> },
}

impl PackedWeight {
    /// Room for `[n, k]`, all zero.
    #[must_use]
    pub fn new((n, k): (usize, usize), precision: Precision) -> Self {
        let forms = match precision {
            Precision::F32 => Forms::F32 {
                forward: Array::zeroed(panels::len(k, n)),
                backward: Array::zeroed(panels::len(n, k)),
            },
            Precision::Bf16 => Forms::Bf16 {
                forward: Array::zeroed(pairs::down_len(k, n)),
                backward: Array::zeroed(pairs::down_len(n, k)),
            },
        };
        Self { n, k, forms }
    }

    /// (N, K).
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        (self.n, self.k)
    }

    /// In which precision it is kept here.
    #[must_use]
    pub fn precision(&self) -> Precision {
        match self.forms {
            Forms::F32 { .. } => Precision::F32,
            Forms::Bf16 { .. } => Precision::Bf16,
        }
    }

    /// Takes over `weight` `[N, K]`, rounded to nearest where it is kept in bf16.
    ///
    /// # Cost
    /// Reads `4·N·K` bytes and writes twice as many, in bf16 as many: a thousandth of the products
    /// of a large batch.
    /// # Errors
    /// [`Error::Shape`] before any work.
    pub fn pack(&mut self, cpu: &Cpu, weight: &[f32]) -> Result<(), Error> {
        let shape @ (n, k) = (self.n, self.k);
        extent::check("gemm pack", "weight [N, K]", n * k, weight.len())?;
        match &mut self.forms {
            Forms::F32 { forward, backward } => {
                let (forward, backward) = (DisjointMut::new(forward), DisjointMut::new(backward));
                each_block(cpu, weight, shape, |block, Place { rows, columns }| {
                    let first = (columns.start / PANEL * n + rows.start) * PANEL;
                    let column = (rows.start / PANEL * k + columns.start) * PANEL;
                    // SAFETY: inside both forms, and this call alone writes the block's place.
                    let (backward, forward) = unsafe {
                        let backward = backward.part(first..first + rows.len() * PANEL);
                        (backward, forward.part(column..column + columns.len() * PANEL))
                    };
                    stream(&block.as_flattened()[..rows.len() * PANEL], backward);
                    turn_into(block, forward);
                });
            }
            Forms::Bf16 { forward, backward } => {
                let (forward, backward) = (DisjointMut::new(forward), DisjointMut::new(backward));
                each_block(cpu, weight, shape, |block, Place { rows, columns }| {
                    let first = columns.start / PANEL * n.div_ceil(2) + rows.start / 2;
                    let column = rows.start / PANEL * k.div_ceil(2) + columns.start / 2;
                    let column = column * PANEL..(column + columns.len().div_ceil(2)) * PANEL;
                    let mut across = [[0; ACROSS]; PANEL];
                    let chunk = RoundChunk {
                        matrix: block.as_flattened().as_ptr(),
                        across: across.as_flattened_mut().as_mut_ptr(),
                        down: backward.as_ptr().wrapping_add(first * PANEL).cast_mut(),
                        rows: rows.len(),
                    };
                    // SAFETY: inside both forms, and this call alone writes the block's place.
                    let forward = unsafe {
                        pairs::round_chunk(cpu.isa, &chunk);
                        forward.part(column)
                    };
                    let across = across.map(|row| row.map(f32::from_bits));
                    turn_into(&across, bytemuck::cast_slice_mut(forward));
                });
            }
        }
        Ok(())
    }
}

/// Where a block of 32 × 32 lies in the weight; smaller at its ends.
struct Place {
    rows: Range<usize>,
    columns: Range<usize>,
}

/// Calls `put` with each block of `weight` `[n, k]`, zeros beyond its ends.
fn each_block(
    cpu: &Cpu,
    weight: &[f32],
    (n, k): (usize, usize),
    put: impl Fn(&[[f32; PANEL]; PANEL], Place) + Sync,
) {
    let panel_of = |panel: usize, length: usize| panel * PANEL..length.min((panel + 1) * PANEL);
    let groups = panels::count(k).div_ceil(CHUNK_PANELS);
    cpu.pool.run(groups * panels::count(n), |index| {
        let rows = panel_of(index / groups, n);
        let first = index % groups * CHUNK_PANELS;
        let mut block = [[0.0; PANEL]; PANEL];
        for panel in first..panels::count(k).min(first + CHUNK_PANELS) {
            let columns = panel_of(panel, k);
            for (row, to) in rows.clone().zip(&mut block) {
                let from = &weight[row * k..][columns.clone()];
                prefetch_row(from.as_ptr_range().end, PANEL);
                to[..from.len()].copy_from_slice(from);
                to[from.len()..].fill(0.0);
            }
            put(&block, Place { rows: rows.clone(), columns });
        }
        // Whichever thread reads the panels, it is told after this.
        streamed();
    });
}

/// Writes column `c` of `block` as row `c` of `to`, for as many as `to` holds.
fn turn_into<const COLUMNS: usize>(block: &[[f32; COLUMNS]; PANEL], to: &mut [f32]) {
    for (row, rows) in block.as_chunks::<{ turn::BLOCK }>().0.iter().enumerate() {
        let rows = rows.each_ref().map(|row| row.as_chunks::<{ turn::BLOCK }>().0);
        for (column, to) in to.chunks_mut(turn::BLOCK * PANEL).enumerate() {
            let turned = turn(rows.map(|row| row[column]));
            for (to, turned) in to.chunks_exact_mut(PANEL).zip(turned) {
                to[row * turn::BLOCK..][..turn::BLOCK].copy_from_slice(&turned);
            }
        }
    }
}
