//! Scratch buffers of the embedding backward, which grow to the largest batch seen.

use super::tile::IDS_PER_PART;

/// Buffers that grow to the largest batch seen and that the next call reuses.
#[derive(Debug, Default)]
pub struct Scratch {
    /// One pair per id: its row number, counted over all tiles, above the position of its
    /// gradient. If ids or bags have factors, the lower bits hold the position of the id instead.
    pub(super) pairs: Vec<u64>,
    /// Copy of the gradient of a pooled output, slot by slot, if that copy pays.
    pub(super) gradient: Vec<f32>,
    /// Second buffer of the sort, `[nnz]`.
    pub(super) spare: Vec<u64>,
    /// Digit counts of the sort, `[chunks, digits]`.
    pub(super) counts: Vec<usize>,
    /// Position of each id's gradient, with the id's factor, `[nnz]`. Empty if there are no
    /// factors.
    pub(super) sources: Vec<(usize, f32)>,
    /// Rows whose gradients are summed in several parts.
    pub(super) long: Vec<LongSegment>,
    /// Sums of the parts of long rows.
    pub(super) partials: Vec<f32>,
}

/// A row with more than [`IDS_PER_PART`] pairs, whose gradients are summed in parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongSegment {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) dim: usize,
    /// Total number of parts of all preceding long segments.
    pub(super) first_part: usize,
    /// Index at which the segment's partial sums start, `[parts, dim]`.
    pub(super) partials: usize,
}

impl LongSegment {
    /// Returns the number of parts in which the row's gradients are summed.
    pub(super) fn parts(&self) -> usize {
        (self.end - self.start).div_ceil(IDS_PER_PART)
    }
}
