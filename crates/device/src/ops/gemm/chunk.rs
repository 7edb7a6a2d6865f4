//! Chunks of products: the parts of matrices that one thread multiplies at a time, and the
//! destinations of their sums. The chunks do not depend on the instruction sets.
#![expect(unsafe_code, reason = "chunks hold raw pointers to parts of matrices")]

use std::ops::Range;

use super::panels::PANEL;
use super::word::Word;
use crate::cpu::DisjointMut;

/// Number of rows in a chunk of the forward product or of the gradient of the input: 8 strips of
/// 12. The rows stay in the second-level cache while all panels are multiplied with them, so each
/// panel is read once per chunk.
pub(super) const CHUNK_ROWS: usize = 96;
/// Number of steps that a tile of the weight gradient sums at a time, chosen so that blocks of
/// panels of both factors stay in the cache.
pub(super) const BLOCK: usize = 512;
/// Number of panels of X that a wide tile of the weight gradient covers.
pub(super) const WIDE_PANELS: usize = 3;

/// The operation on the sums of a tile before they are stored.
#[derive(Clone, Copy, Debug)]
pub(super) enum Finish<'a> {
    Store,
    /// Adds the sums to the existing values.
    Add,
    /// Adds the bias, whose layout is `[panels of C][32]`.
    Bias(&'a [f32]),
    /// Adds the bias, whose layout is `[panels of C][32]`, and then applies ReLU.
    BiasRelu(&'a [f32]),
    /// Stores 0 where the preceding layer's output, laid out like C, is not positive.
    Mask(&'a [f32]),
    /// Like `Mask`, for outputs of the preceding layer that are stored in pairs.
    MaskPairs(&'a [u32]),
}

/// The destination C of the sums: `[panels][samples][32]` in f32, or both layouts of bf16 pairs.
#[derive(Debug)]
pub(super) enum SumSink<'a> {
    F32(DisjointMut<'a, f32>),
    Bf16 { across: DisjointMut<'a, u32>, down: DisjointMut<'a, u32> },
}

/// A chunk of the forward product or of the gradient of the input: `C = A B` on some rows and
/// some panels of C. The number of the first row is even.
pub(super) struct RowsChunk<'a, W> {
    /// Factor A of the product, `[⌈inner·VALUES/32⌉][a_samples][32/VALUES]`.
    pub(super) a: *const W,
    /// Factor B of the product, `[panels of C][inner][32]`.
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
    /// Gradient of the output, `[⌈N/32⌉][inner][32]`.
    pub(super) d_y: *const W,
    /// Input of the layer, `[⌈K/32⌉][inner][32]`.
    pub(super) x: *const W,
    /// Gradient of the weight, `[⌈K/32⌉][N][32]`.
    pub(super) d_weight: *mut f32,
    /// Gradient of the bias, `[N]`, or null if another chunk writes it.
    pub(super) d_bias: *mut f32,
    /// Number of words that hold the samples.
    pub(super) inner: usize,
    /// Number of words in a block of steps.
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

/// Addresses of the weight that a product prefetches for a fused update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside {
    /// Values of the weight, `[⌈K/32⌉][N][32]`, in the layout of the gradient.
    pub(crate) values: *const f32,
    /// Copy of the weight for the forward product, `[⌈N/32⌉][⌈K/VALUES⌉][32]` words.
    pub(crate) forward: *const f32,
}

impl<W: Word> WeightChunk<W> {
    /// Returns the blocks of steps, in the order in which every element sums them.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let (inner, block) = (self.inner, self.block);
        (0..inner).step_by(block.max(1)).map(move |first| first..inner.min(first + block))
    }

    /// Returns the number of the layer's outputs in a panel.
    pub(super) fn outputs(&self, n_panel: usize) -> usize {
        PANEL.min(self.n - n_panel * PANEL)
    }

    /// Adds a panel of dY, summed over the steps, to the bias's gradient, if this chunk computes
    /// that gradient.
    ///
    /// # Safety
    /// The caller guarantees that the pointers are valid for the extents that the fields state.
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

/// Rows of a panel that are to be rounded to bf16. The number of the first row is even.
pub(super) struct RoundChunk {
    /// Matrix of f32 to be rounded, `[rows][32]`.
    pub(super) matrix: *const f32,
    /// Result with pairs of neighboring columns, `[rows][16]`.
    pub(super) across: *mut u32,
    /// Result with pairs of neighboring rows, `[⌈rows/2⌉][32]`.
    pub(super) down: *mut u32,
    pub(super) rows: usize,
}
