//! The part of a parameter that one chunk updates, and the task that is run on it.

/// The task that is run on every piece of a parameter.
#[derive(Clone, Copy)]
pub(super) enum PieceTask {
    /// Apply the update rule to rows of `row` elements.
    Update {
        row: usize,
    },
    /// Compute LAMB's moments and its sums of squares.
    Moments,
    Apply {
        ratio: f32,
    },
}

/// The part of a parameter that one chunk works on.
pub(super) struct ParameterPiece<'a> {
    /// Index of the run from which the piece is cut, and index of the piece's first element in
    /// that run.
    pub(super) place: (usize, usize),
    pub(super) weights: &'a mut [f32],
    pub(super) gradient: &'a [f32],
    pub(super) state: [&'a mut [f32]; 2],
    /// Sums of squares that LAMB needs: `Σ w²` of the weights and `Σ r²` of the directions.
    pub(super) squares: [f32; 2],
}
