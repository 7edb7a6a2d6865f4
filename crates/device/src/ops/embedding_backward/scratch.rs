//! Buffers of the embedding backward that grow to the largest batch seen.

use super::tile::IDS_PER_PART;

/// Buffers that grow to the largest batch seen and are reused by the next call.
#[derive(Debug, Default)]
pub struct Scratch {
    /// One entry per id: its row number, counted over all tiles, above the position of its
    /// gradient. If ids or bags have factors, the lower bits hold the id's own position instead.
    pub(super) pairs: Vec<u64>,
    /// Copy of the gradient of a pooled output, slot by slot, if the copy pays.
    pub(super) gradient: Vec<f32>,
    /// The second buffer of the sort, `[nnz]`.
    pub(super) spare: Vec<u64>,
    /// Digit counts of the sort, `[chunks, digits]`.
    pub(super) counts: Vec<usize>,
    /// Position of the gradient of each id and its factor, `[nnz]`; empty without factors.
    pub(super) sources: Vec<(usize, f32)>,
    /// Rows whose gradients are summed in several parts.
    pub(super) long: Vec<LongSegment>,
    /// The sums of the parts of long rows.
    pub(super) partials: Vec<f32>,
}

/// A row with more than [`IDS_PER_PART`] pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongSegment {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) dim: usize,
    /// Total number of parts of the preceding long segments.
    pub(super) first_part: usize,
    /// Index at which its partial sums start, `[parts, dim]`.
    pub(super) partials: usize,
}

impl LongSegment {
    /// Number of parts in which it is summed.
    pub(super) fn parts(&self) -> usize {
        (self.end - self.start).div_ceil(IDS_PER_PART)
    }
}
