//! The shape of a matrix.

/// The number of rows and columns of a matrix, as operations take it to check the length of a
/// buffer. For a linear layer's weight `[N, K]`, rows are outputs and columns are inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    pub rows: usize,
    pub columns: usize,
}

impl MatrixShape {
    /// Creates the shape `[rows, columns]`.
    #[must_use]
    pub const fn new(rows: usize, columns: usize) -> Self {
        Self { rows, columns }
    }

    /// The number of elements of a row-major matrix of this shape.
    #[must_use]
    pub const fn elements(self) -> usize {
        self.rows * self.columns
    }
}
