//! Matrices of bf16 in panels of 32 columns. Each value is stored twice: in a pair with its
//! neighbor across and in a pair with its neighbor below.
//!
//! ```text
//! across[p, row, i]  = (matrix[row, 32 p + 2 i], matrix[row, 32 p + 2 i + 1])     16 words a row
//! down[p, i, c]      = (matrix[2 i, 32 p + c], matrix[2 i + 1, 32 p + c])         32 words a row
//! ```
//! The first value of a pair is the low half of a word, and the padding after the last row and
//! column is zero. A product multiplies pairs along its inner extent. Forward and backward-input
//! broadcast `across`, and both factors of the weight gradient are `down`. Together the two
//! layouts are as large as one f32 matrix. The producer of the values has them in registers and
//! stores both layouts.
#![expect(unsafe_code, reason = "chunks of both layouts are not contiguous slices")]

use super::chunk::RoundChunk;
use super::dispatch;
use super::panels::{self, ACROSS, PANEL};
use crate::MatrixShape;
use crate::cpu::{Cpu, DisjointMut};
use crate::error::Error;
use crate::ops::extent;

/// Number of rows that one chunk rounds. The number is even, so that only one chunk writes each
/// pair.
const CHUNK_ROWS: usize = 256;

/// A matrix in bf16 pairs, for reading.
#[derive(Clone, Copy, Debug)]
pub struct PairMatrix<'a> {
    /// Pairs across columns, `[⌈columns/32⌉][rows][16]`.
    pub across: &'a [u32],
    /// Pairs down rows, `[⌈columns/32⌉][⌈rows/2⌉][32]`.
    pub down: &'a [u32],
}

/// A matrix in bf16 pairs, for writing.
#[derive(Debug)]
pub struct PairsMut<'a> {
    /// Pairs across columns, `[⌈columns/32⌉][rows][16]`.
    pub across: &'a mut [u32],
    /// Pairs down rows, `[⌈columns/32⌉][⌈rows/2⌉][32]`.
    pub down: &'a mut [u32],
}

impl PairMatrix<'_> {
    pub(super) fn check(
        &self,
        op: &'static str,
        what: &'static str,
        shape: MatrixShape,
    ) -> Result<(), Error> {
        let MatrixShape { rows, columns } = shape;
        extent::check(op, what, across_len(rows, columns), self.across.len())?;
        extent::check(op, what, down_len(rows, columns), self.down.len())
    }
}

impl PairsMut<'_> {
    /// Borrows the matrix for reading.
    #[must_use]
    pub fn as_pairs(&self) -> PairMatrix<'_> {
        PairMatrix { across: self.across, down: self.down }
    }
}

/// Returns the number of words of a `[rows, columns]` matrix in pairs across columns.
#[must_use]
pub fn across_len(rows: usize, columns: usize) -> usize {
    panels::count(columns) * rows * ACROSS
}

/// Returns the number of words of a `[rows, columns]` matrix in pairs down rows.
#[must_use]
pub fn down_len(rows: usize, columns: usize) -> usize {
    panels::count(columns) * rows.div_ceil(2) * PANEL
}

/// Rounds an f32 `matrix` `[rows, columns]` in panels to bf16 pairs.
///
/// # Cost
/// Bandwidth-bound: reads and writes `4·rows·columns` bytes.
/// # Numerics
/// Rounds to nearest, ties to even, and NaN stays NaN. The result has the same bytes on every
/// machine.
/// # Errors
/// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
pub fn round(cpu: &Cpu, matrix: &[f32], shape: MatrixShape, to: PairsMut<'_>) -> Result<(), Error> {
    const OP: &str = "pairs round";
    let MatrixShape { rows, columns } = shape;
    extent::check(OP, "matrix in panels", panels::len(rows, columns), matrix.len())?;
    to.as_pairs().check(OP, "pairs of [rows, columns]", shape)?;
    let blocks = rows.div_ceil(CHUNK_ROWS);
    let (across, down) = (DisjointMut::new(to.across), DisjointMut::new(to.down));
    cpu.pool.run(blocks * panels::count(columns), |index| {
        let (panel, block) = (index / blocks, index % blocks);
        let first = block * CHUNK_ROWS;
        let (row, pair) = (panel * rows + first, panel * rows.div_ceil(2) + first / 2);
        let rows = CHUNK_ROWS.min(rows - first);
        let chunk = RoundChunk {
            matrix: matrix.as_ptr().wrapping_add(row * PANEL),
            across: across.write_ptr(row * ACROSS..(row + rows) * ACROSS),
            down: down.write_ptr(pair * PANEL..(pair + rows.div_ceil(2)) * PANEL),
            rows,
        };
        // SAFETY: the extents were checked, and the chunks hold different pairs of rows.
        unsafe { dispatch::round(cpu.isa, &chunk) }
    });
    Ok(())
}
