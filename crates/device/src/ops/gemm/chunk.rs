//! Chunks of products: the parts of matrices that one thread multiplies at a time, and where their
//! sums go. Independent of the instruction sets.
#![expect(unsafe_code, reason = "chunks are raw parts of matrices")]

use std::ops::Range;

use super::panels::PANEL;
use super::word::Word;
use crate::cpu::DisjointMut;

/// Rows of a chunk of the forward product or of the gradient of the input: 8 strips of 12. The rows
/// stay in the second-level cache while all panels are multiplied with them, so each panel is read
/// once per chunk.
pub(super) const CHUNK_ROWS: usize = 96;
/// Number of steps that a tile of the weight gradient sums at a time, chosen so that blocks of
/// panels of both factors stay in the cache.
pub(super) const BLOCK: usize = 512;
/// Panels of X that wide tiles of the weight gradient cover.
pub(super) const WIDE_PANELS: usize = 3;

/// The operation on the sums of a tile before they are stored.
#[derive(Clone, Copy, Debug)]
pub(super) enum Finish<'a> {
    Store,
    /// Adds the sums to the existing values.
    Add,
    /// Adds the bias `[panels of C][32]`.
    Bias(&'a [f32]),
    /// Adds the bias, then applies ReLU.
    BiasRelu(&'a [f32]),
    /// Stores 0 where the preceding layer's output, laid out like C, is not positive.
    Mask(&'a [f32]),
    /// Like `Mask`, for outputs stored in pairs.
    MaskPairs(&'a [u32]),
}

/// The destination of the sums, C: `[panels][samples][32]`, or both forms of pairs.
#[derive(Debug)]
pub(super) enum SumSink<'a> {
    F32(DisjointMut<'a, f32>),
    Bf16 { across: DisjointMut<'a, u32>, down: DisjointMut<'a, u32> },
}

/// A chunk of the forward product or of the gradient of the input: `C = A B` on some rows and some
/// panels of C. The first row has an even number.
pub(super) struct RowsChunk<'a, W> {
    /// `[⌈inner·VALUES/32⌉][a_samples][32/VALUES]`.
    pub(super) a: *const W,
    /// `[panels of C][inner][32]`.
    pub(super) b: *const W,
    pub(super) sink: &'a SumSink<'a>,
    pub(super) finish: Finish<'a>,
    pub(super) samples: usize,
    /// Number of rows of A. Row 0 of A is row 0 of C, even if A holds only the chunk's rows.
    pub(super) a_samples: usize,
    pub(super) inner: usize,
    pub(super) columns: usize,
    pub(super) rows: Range<usize>,
    pub(super) panels: Range<usize>,
}

/// A chunk of the gradient of the weight: `dW = dYᵀ X` for some panels of N and of K.
pub(super) struct WeightChunk<W> {
    /// `[⌈N/32⌉][inner][32]`.
    pub(super) d_y: *const W,
    /// `[⌈K/32⌉][inner][32]`.
    pub(super) x: *const W,
    /// `[⌈K/32⌉][N][32]`.
    pub(super) d_weight: *mut f32,
    /// `[N]`, or null if another chunk writes it.
    pub(super) d_bias: *mut f32,
    /// Number of words that hold the samples.
    pub(super) inner: usize,
    /// Number of words of a block of steps.
    pub(super) block: usize,
    /// Whether the sums of the first block are added to the existing values.
    pub(super) adds: bool,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) n_panels: Range<usize>,
    pub(super) k_panels: Range<usize>,
    /// The weight to update once the gradient is complete, if the update is fused.
    pub(super) beside: Option<Beside>,
}

/// Addresses of the weight to prefetch for a fused update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside {
    /// `[⌈K/32⌉][N][32]`, as the gradient.
    pub(crate) values: *const f32,
    /// `[⌈N/32⌉][⌈K/VALUES⌉][32]` words.
    pub(crate) forward: *const f32,
}

impl<W: Word> WeightChunk<W> {
    /// The blocks of steps, in the order in which every element sums them.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let (inner, block) = (self.inner, self.block);
        (0..inner).step_by(block.max(1)).map(move |first| first..inner.min(first + block))
    }

    /// Number of outputs of a panel of N.
    pub(super) fn outputs(&self, n_panel: usize) -> usize {
        PANEL.min(self.n - n_panel * PANEL)
    }

    /// Adds the sums of the steps of a panel of dY to the bias's gradient, if this chunk computes
    /// it.
    ///
    /// # Safety
    /// The pointers are valid for the extents that the fields state.
    pub(super) unsafe fn add_bias(&self, steps: &Range<usize>, n_panel: usize) {
        if self.d_bias.is_null() {
            return;
        }
        // SAFETY: `d_bias` has N elements, and only this chunk writes the elements of its panels.
        unsafe {
            let d_y = self.d_y.wrapping_add((n_panel * self.inner + steps.start) * PANEL);
            let d_y = std::slice::from_raw_parts(d_y, steps.len() * PANEL);
            let sums = self.d_bias.wrapping_add(n_panel * PANEL);
            let sums = std::slice::from_raw_parts_mut(sums, self.outputs(n_panel));
            if steps.start == 0 {
                sums.fill(0.0);
            }
            W::add_column_sums(d_y, sums);
        }
    }
}

/// Rows of a panel to be rounded. The first row has an even number.
pub(super) struct RoundChunk {
    /// `[rows][32]`.
    pub(super) matrix: *const f32,
    /// `[rows][16]`.
    pub(super) across: *mut u32,
    /// `[⌈rows/2⌉][32]`.
    pub(super) down: *mut u32,
    pub(super) rows: usize,
}
