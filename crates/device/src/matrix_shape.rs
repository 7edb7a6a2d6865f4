//! The shape of a matrix, as operations take it.

/// The number of rows and columns of a matrix, by which operations check the length of a buffer.
/// The weight `[N, K]` of a linear layer has a row per output and a column per input.
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

    /// Returns the number of elements of a row-major matrix of this shape.
    #[must_use]
    pub const fn elements(self) -> usize {
        self.rows * self.columns
    }
}
