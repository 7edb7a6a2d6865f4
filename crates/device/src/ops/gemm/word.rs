//! A factor's word in memory, which is one f32 or a pair of bf16.

use super::{column_sums, pair};

/// A word of a factor in memory: one f32, or a pair of bf16. With this trait, one loop serves
/// both precisions.
pub(super) trait Word: Copy + Send + Sync {
    /// Number of values in a word.
    const VALUES: usize;
    fn value(self, place: usize) -> f32;
    /// Adds the column sums of one panel to `sums`, for as many columns as `sums` has. A panel
    /// has rows, or pairs of rows, of 32 words.
    fn add_column_sums(panel: &[Self], sums: &mut [f32]);
}

impl Word for f32 {
    const VALUES: usize = 1;

    #[inline(always)]
    fn value(self, _place: usize) -> f32 {
        self
    }
    #[inline(always)]
    fn add_column_sums(panel: &[f32], sums: &mut [f32]) {
        column_sums::add_panel(panel, sums);
    }
}

impl Word for u32 {
    const VALUES: usize = 2;

    #[inline(always)]
    fn value(self, place: usize) -> f32 {
        pair::value(self, place)
    }
    #[inline(always)]
    fn add_column_sums(panel: &[u32], sums: &mut [f32]) {
        column_sums::add_pairs(panel, sums);
    }
}
