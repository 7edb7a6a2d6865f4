//! The part of a parameter that one chunk updates, and the operation on it.

/// The operation that is run on every piece.
#[derive(Clone, Copy)]
pub(super) enum PieceTask {
    /// Apply the update rule to rows of `row` elements.
    Update {
        row: usize,
    },
    /// Compute LAMB's moments and sums of squares.
    Moments,
    Apply {
        ratio: f32,
    },
}

/// The part of a parameter that one chunk works on.
pub(super) struct ParameterPiece<'a> {
    /// Number of the run from which the piece is cut, and index of its first element in that run.
    pub(super) place: (usize, usize),
    pub(super) weights: &'a mut [f32],
    pub(super) gradient: &'a [f32],
    pub(super) state: [&'a mut [f32]; 2],
    /// `Σ w²` and `Σ r²` of LAMB.
    pub(super) squares: [f32; 2],
}
