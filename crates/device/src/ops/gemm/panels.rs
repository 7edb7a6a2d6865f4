//! Matrices in panels of 32 columns, which is the layout of activations, weights and their
//! gradients.
//!
//! ```text
//! panels[p, row, c] = matrix[row, 32 p + c],  0 beyond the last column
//! ```
//! All three products of a layer use this layout. The rows of a panel are contiguous, as forward
//! and backward-input need them for their broadcast factor, and the weight gradient reads a panel
//! as its packed factor. In a row-major matrix, rows of 4 KiB would compete for the same cache
//! sets.
#![expect(unsafe_code, reason = "rows of panels are not contiguous slices")]

use std::ops::Range;

use crate::MatrixShape;
use crate::cpu::{Cpu, DisjointMut};
use crate::error::Error;
use crate::ops::extent;

/// Number of columns in a panel.
pub const PANEL: usize = 32;
/// Number of words per row in a panel of pairs across columns.
pub(super) const ACROSS: usize = PANEL / 2;
/// Number of rows that one chunk copies.
const CHUNK_ROWS: usize = 64;

/// Returns the number of panels that hold `columns` columns.
#[must_use]
pub fn count(columns: usize) -> usize {
    columns.div_ceil(PANEL)
}

/// Returns the number of elements of a `[rows, columns]` matrix in panels, padding included.
#[must_use]
pub fn len(rows: usize, columns: usize) -> usize {
    rows * count(columns) * PANEL
}

/// Returns the range of elements of `rows` within a panel of a matrix of `n` rows.
pub(crate) fn rows_of(n: usize, panel: usize, rows: &Range<usize>) -> Range<usize> {
    (panel * n + rows.start) * PANEL..(panel * n + rows.end) * PANEL
}

/// Writes the row-major `matrix` `[rows, columns]` as panels, with zeros after the last column.
///
/// # Errors
/// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
pub fn pack(cpu: &Cpu, matrix: &[f32], shape: MatrixShape, to: &mut [f32]) -> Result<(), Error> {
    let MatrixShape { rows, columns } = shape;
    extent::check("panels pack", "matrix [rows, columns]", rows * columns, matrix.len())?;
    extent::check("panels pack", "panels of [rows, columns]", len(rows, columns), to.len())?;
    let out = RowsMut::new(to, rows);
    cpu.pool.run(rows.div_ceil(CHUNK_ROWS), |chunk| {
        for row in chunk_rows(chunk, rows) {
            // SAFETY: each chunk writes only its own rows.
            unsafe { out.write(row, &matrix[row * columns..][..columns]) };
        }
    });
    Ok(())
}

/// Writes `panels` of a `[rows, columns]` matrix as a row-major matrix.
///
/// # Errors
/// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
pub fn unpack(cpu: &Cpu, panels: &[f32], shape: MatrixShape, to: &mut [f32]) -> Result<(), Error> {
    let MatrixShape { rows, columns } = shape;
    extent::check("panels unpack", "matrix [rows, columns]", rows * columns, to.len())?;
    extent::check("panels unpack", "panels of [rows, columns]", len(rows, columns), panels.len())?;
    cpu.pool.run_slices(to, CHUNK_ROWS * columns.max(1), |chunk, part| {
        let first = chunk * CHUNK_ROWS;
        for (row, to) in (first..).zip(part.chunks_exact_mut(columns)) {
            read_row(panels, rows, row, to);
        }
    });
    Ok(())
}

/// Concatenates `left` `[rows, left_columns]`, in panels, and the row-major `right` `[rows,
/// right_columns]` into `to`, which is in panels.
///
/// # Errors
/// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
pub fn join(
    cpu: &Cpu,
    left: &[f32],
    right: &[f32],
    rows: usize,
    left_columns: usize,
    right_columns: usize,
    to: &mut [f32],
) -> Result<(), Error> {
    const OP: &str = "panels join";
    let width = left_columns + right_columns;
    extent::check(OP, "left in panels", len(rows, left_columns), left.len())?;
    extent::check(OP, "right [rows, columns]", rows * right_columns, right.len())?;
    extent::check(OP, "both in panels", len(rows, width), to.len())?;
    let out = RowsMut::new(to, rows);
    cpu.pool.run(rows.div_ceil(CHUNK_ROWS), |chunk| {
        let mut joined = vec![0.0; width];
        for row in chunk_rows(chunk, rows) {
            let (head, tail) = joined.split_at_mut(left_columns);
            read_row(left, rows, row, head);
            tail.copy_from_slice(&right[row * right_columns..][..right_columns]);
            // SAFETY: each chunk writes only its own rows.
            unsafe { out.write(row, &joined) };
        }
    });
    Ok(())
}

/// Splits a matrix that [`join`] concatenated into its left and its right part.
///
/// # Errors
/// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
pub fn split(
    cpu: &Cpu,
    from: &[f32],
    rows: usize,
    left_columns: usize,
    right_columns: usize,
    left: &mut [f32],
    right: &mut [f32],
) -> Result<(), Error> {
    const OP: &str = "panels split";
    let width = left_columns + right_columns;
    extent::check(OP, "both in panels", len(rows, width), from.len())?;
    extent::check(OP, "left in panels", len(rows, left_columns), left.len())?;
    extent::check(OP, "right [rows, columns]", rows * right_columns, right.len())?;
    let (left, right) = (RowsMut::new(left, rows), DisjointMut::new(right));
    cpu.pool.run(rows.div_ceil(CHUNK_ROWS), |chunk| {
        let mut joined = vec![0.0; width];
        for row in chunk_rows(chunk, rows) {
            read_row(from, rows, row, &mut joined);
            let (head, tail) = joined.split_at(left_columns);
            // SAFETY: each chunk writes only its own rows, and all these rows lie inside both
            // matrices.
            unsafe {
                left.write(row, head);
                right.part(row * right_columns..(row + 1) * right_columns).copy_from_slice(tail);
            }
        }
    });
    Ok(())
}

/// Copies the first columns of row `row` from a matrix in panels of `rows` rows.
#[inline(always)]
pub(crate) fn read_row(panels: &[f32], rows: usize, row: usize, to: &mut [f32]) {
    for (panel, to) in to.chunks_mut(PANEL).enumerate() {
        put(&panels[(panel * rows + row) * PANEL..][..to.len()], to);
    }
}

/// Copies part of a row of a panel. A whole row is copied inline, because a function call would
/// take as long as the copy.
#[inline(always)]
fn put(from: &[f32], to: &mut [f32]) {
    match (from.as_array::<PANEL>(), to.as_mut_array::<PANEL>()) {
        (Some(from), Some(to)) => *to = *from,
        _ => to.copy_from_slice(from),
    }
}

fn chunk_rows(chunk: usize, rows: usize) -> Range<usize> {
    chunk * CHUNK_ROWS..rows.min((chunk + 1) * CHUNK_ROWS)
}

/// A matrix in panels that several chunks write concurrently, each of them only its own rows.
pub(crate) struct RowsMut<'a> {
    panels: DisjointMut<'a, f32>,
    rows: usize,
}

impl<'a> RowsMut<'a> {
    /// Wraps all rows of `panels` for concurrent writing.
    pub(crate) fn new(panels: &'a mut [f32], rows: usize) -> Self {
        Self { panels: DisjointMut::new(panels), rows }
    }

    /// Writes `values` as row `row`, followed by zeros to the end of the last panel.
    ///
    /// # Safety
    /// The caller guarantees that no other thread writes the same row.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, row: usize, values: &[f32]) {
        assert!(row < self.rows && count(values.len()) * self.rows * PANEL <= self.panels.len());
        for (panel, values) in values.chunks(PANEL).enumerate() {
            let start = (panel * self.rows + row) * PANEL;
            // SAFETY: the range lies inside the panels, as checked above, and the caller guarantees
            // that no other thread writes the row.
            let to = unsafe { self.panels.part(start..start + PANEL) };
            let (head, tail) = to.split_at_mut(values.len());
            put(values, head);
            tail.fill(0.0);
        }
    }
}
