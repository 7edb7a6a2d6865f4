//! The matrices that products read and write, either panels of f32 or pairs of bf16. This file
//! does not depend on the products.

use schema::Precision;

use super::pairs::{self, PairMatrix, PairsMut};
use super::panels;
use crate::MatrixShape;
use crate::buffer::Array;
use crate::error::Error;
use crate::ops::extent;

/// A matrix that a product reads, in f32 panels or in bf16 pairs.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    F32(&'a [f32]),
    Bf16(PairMatrix<'a>),
}

/// A matrix that a product writes, in f32 panels or in bf16 pairs.
#[derive(Debug)]
pub enum OperandMut<'a> {
    F32(&'a mut [f32]),
    /// Pairs of bf16, to which a product rounds its f32 sums to nearest.
    Bf16(PairsMut<'a>),
}

impl Operand<'_> {
    /// Returns the precision of the operand's values.
    #[must_use]
    pub fn precision(&self) -> Precision {
        match self {
            Self::F32(_) => Precision::F32,
            Self::Bf16(_) => Precision::Bf16,
        }
    }

    /// Checks that the operand has as many values as a matrix of this shape.
    pub(super) fn check(
        &self,
        op: &'static str,
        what: &'static str,
        shape: MatrixShape,
    ) -> Result<(), Error> {
        let MatrixShape { rows, columns } = shape;
        match self {
            Self::F32(values) => extent::check(op, what, panels::len(rows, columns), values.len()),
            Self::Bf16(pairs) => pairs.check(op, what, shape),
        }
    }
}

impl OperandMut<'_> {
    /// Borrows the operand for reading.
    #[must_use]
    pub fn as_operand(&self) -> Operand<'_> {
        match self {
            Self::F32(values) => Operand::F32(values),
            Self::Bf16(pairs) => Operand::Bf16(pairs.as_pairs()),
        }
    }
}

/// A buffer for the values of a matrix in one precision.
#[derive(Clone, Debug)]
pub struct Matrix(MatrixBuffers);

/// The values of a matrix, stored once in f32, or twice in bf16: in pairs across columns and in
/// pairs down rows.
#[derive(Clone, Debug)]
enum MatrixBuffers {
    F32(Array<f32>),
    Bf16 { across: Array<u32>, down: Array<u32> },
}

impl Matrix {
    /// Allocates a matrix of zeros for `[rows, columns]` values.
    #[must_use]
    pub fn new(precision: Precision, rows: usize, columns: usize) -> Self {
        Self(match precision {
            Precision::F32 => MatrixBuffers::F32(Array::zeroed(panels::len(rows, columns))),
            Precision::Bf16 => MatrixBuffers::Bf16 {
                across: Array::zeroed(pairs::across_len(rows, columns)),
                down: Array::zeroed(pairs::down_len(rows, columns)),
            },
        })
    }

    /// Returns the memory size in bytes of a `[rows, columns]` matrix.
    #[must_use]
    pub fn bytes(precision: Precision, rows: usize, columns: usize) -> usize {
        match precision {
            Precision::F32 => Array::<f32>::bytes(panels::len(rows, columns)),
            Precision::Bf16 => {
                Array::<u32>::bytes(pairs::across_len(rows, columns))
                    + Array::<u32>::bytes(pairs::down_len(rows, columns))
            }
        }
    }

    /// Borrows the f32 panels of `[rows, columns]` values.
    pub(crate) fn panels(
        &self,
        op: &'static str,
        rows: usize,
        columns: usize,
    ) -> Result<&[f32], Error> {
        let MatrixBuffers::F32(values) = &self.0 else { return Err(not_f32(op)) };
        let len = panels::len(rows, columns);
        extent::within(op, "[rows, columns] in panels", values.len(), len)?;
        Ok(&values[..len])
    }

    /// Borrows the f32 panels of `[rows, columns]` values for writing.
    pub(crate) fn panels_mut(
        &mut self,
        op: &'static str,
        rows: usize,
        columns: usize,
    ) -> Result<&mut [f32], Error> {
        let MatrixBuffers::F32(values) = &mut self.0 else { return Err(not_f32(op)) };
        let len = panels::len(rows, columns);
        extent::within(op, "[rows, columns] in panels", values.len(), len)?;
        Ok(&mut values[..len])
    }

    /// Returns the values that were last written as `[rows, columns]`. A matrix of this shape
    /// must fit into the buffer.
    #[must_use]
    pub fn get(&self, rows: usize, columns: usize) -> Operand<'_> {
        match &self.0 {
            MatrixBuffers::F32(values) => Operand::F32(&values[..panels::len(rows, columns)]),
            MatrixBuffers::Bf16 { across, down } => Operand::Bf16(PairMatrix {
                across: &across[..pairs::across_len(rows, columns)],
                down: &down[..pairs::down_len(rows, columns)],
            }),
        }
    }

    /// Returns the matrix for writing as `[rows, columns]`. A matrix of this shape must fit into
    /// the buffer.
    #[must_use]
    pub fn get_mut(&mut self, rows: usize, columns: usize) -> OperandMut<'_> {
        match &mut self.0 {
            MatrixBuffers::F32(values) => {
                OperandMut::F32(&mut values[..panels::len(rows, columns)])
            }
            MatrixBuffers::Bf16 { across, down } => OperandMut::Bf16(PairsMut {
                across: &mut across[..pairs::across_len(rows, columns)],
                down: &mut down[..pairs::down_len(rows, columns)],
            }),
        }
    }
}

impl Default for Matrix {
    fn default() -> Self {
        Self::new(Precision::F32, 0, 0)
    }
}

fn not_f32(op: &'static str) -> Error {
    Error::Precision { op, what: "matrix", expected: Precision::F32, got: Precision::Bf16 }
}

#[cfg(test)]
mod tests {
    use schema::Precision;

    use super::{Array, Matrix, MatrixBuffers};

    #[test]
    fn scratch_memory_matches_its_estimate() {
        for precision in [Precision::F32, Precision::Bf16] {
            for (rows, columns) in [(0, 0), (1, 1), (7, 33), (64, 32)] {
                let held = match Matrix::new(precision, rows, columns).0 {
                    MatrixBuffers::F32(values) => Array::<f32>::bytes(values.len()),
                    MatrixBuffers::Bf16 { across, down } => {
                        Array::<u32>::bytes(across.len()) + Array::<u32>::bytes(down.len())
                    }
                };
                assert_eq!(Matrix::bytes(precision, rows, columns), held, "{rows}, {columns}");
            }
        }
    }
}
