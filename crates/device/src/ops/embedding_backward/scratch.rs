//! Buffers that grow to the largest batch seen.

use super::tile::IDS_PER_PART;

/// Buffers that grow to the largest batch seen and are used again by the next call.
#[derive(Debug, Default)]
pub struct Scratch {
    /// One entry per id: its row, counted over all tiles, above the place of its gradient (or above
    /// its position, if ids or bags have factors).
    pub(super) pairs: Vec<u64>,
    /// The gradient of a pooled output, slot by slot, where that pays.
    pub(super) gradient: Vec<f32>,
    /// The sort's other buffer, `[nnz]`.
    pub(super) spare: Vec<u64>,
    /// Digit counts of the sort, `[chunks, digits]`.
    pub(super) counts: Vec<usize>,
    /// Place of the gradient of each position and its factor, `[nnz]`; empty without factors.
    pub(super) sources: Vec<(usize, f32)>,
    /// Rows whose gradients are summed in parts.
    pub(super) long: Vec<LongSegment>,
    /// The sums of those parts.
    pub(super) partials: Vec<f32>,
}

/// A row with more than [`IDS_PER_PART`] pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongSegment {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) dim: usize,
    /// Number of parts of the long segments before it.
    pub(super) first_part: usize,
    /// Where its partial sums start, `[parts, dim]`.
    pub(super) partials: usize,
}

impl LongSegment {
    /// How many parts it is summed in.
    pub(super) fn parts(&self) -> usize {
        (self.end - self.start).div_ceil(IDS_PER_PART)
    }
}
