//! Third phase of the embedding backward: sums the gradients of each distinct row and updates the
//! row in place, or carries out a part of that. The pairs are already sorted, and the update rules
//! are in [`crate::optimizer`].
#![expect(unsafe_code, reason = "each chunk updates its own rows of a shared table")]

use std::ops::Range;

use half::{bf16, f16};
use schema::Optimizer;
use schema::random::CounterRng;

use super::scalar;
use super::scratch::LongSegment;
use super::tile::{IDS_PER_PART, TileMut, Updated};
use crate::cpu::DisjointMut;
use crate::cpu::vector::{VectorElement, prefetch_row_second};
use crate::optimizer::{UpdateRule, split_state};
use crate::rounding::RowNoise;
use crate::weights::WeightsMut;

/// Number of pairs by which rows and gradients are prefetched ahead.
const PAIRS_AHEAD: usize = 8;

/// Longest row whose summed gradient is kept on the stack.
const STACK_DIM: usize = 512;

/// The read-only inputs of the batch, and its pairs in row order.
pub(super) struct UpdateBatch<'a> {
    /// Gradient of the forward pass's output.
    pub gradient: &'a [f32],
    /// Pairs in row order, `[nnz]`.
    pub pairs: &'a [u64],
    /// Position and factor of each id's gradient. Empty if every factor is 1.
    pub sources: &'a [(usize, f32)],
    pub payload_bits: u32,
}

/// A tile in the form in which the chunks update it.
pub(super) struct UpdateTarget<'a> {
    weights: TargetWeights<'a>,
    state: DisjointMut<'a, f32>,
    state_per_row: usize,
    /// Range of the tile's row numbers, counted over all tiles.
    rows: Range<usize>,
    pub dim: usize,
    /// Random bits of the table at this step. The two fields below give the tile's position in
    /// the table.
    noise: CounterRng,
    first_row: u64,
    first_column: u32,
    pub sums: TileSums,
}

/// The place of a tile's rows among the distinct rows of a batch, and of their summed gradients.
#[derive(Clone, Copy, Default)]
pub(super) struct TileSums {
    /// Number of distinct rows of the tiles before it.
    pub first_row: usize,
    /// Number of values of their gradients.
    pub first_value: usize,
}

/// What is done with the summed gradient of each row.
pub(super) enum RowForm<'a> {
    /// The rule updates the row.
    Update,
    /// The sum is written to its place among those of the distinct `rows`.
    Sum { rows: &'a [u64], sums: DisjointMut<'a, f32> },
    /// The terms of the row are computed, `[rows, 2]`. Each row has one pair.
    Terms(DisjointMut<'a, f32>),
    /// The rule updates the row with the terms of the whole row, `[rows, 2]`. Each row has one
    /// pair.
    Finish(&'a [f32]),
}

/// The weights of a tile, `[rows, dim]`, in their number format.
enum TargetWeights<'a> {
    F32(DisjointMut<'a, f32>),
    F16(DisjointMut<'a, f16>),
    Bf16(DisjointMut<'a, bf16>),
}

impl TargetWeights<'_> {
    fn element_bytes(&self) -> usize {
        match self {
            Self::F32(_) => 4,
            Self::F16(_) | Self::Bf16(_) => 2,
        }
    }
}

impl UpdateBatch<'_> {
    /// Returns the row that the pair at `position` updates, which the upper bits of the pair
    /// hold.
    #[inline(always)]
    pub fn row(&self, position: usize) -> usize {
        (self.pairs[position] >> self.payload_bits) as usize
    }

    /// Returns the start of the gradient of the pair at `position`, and the factor `weight ·
    /// scale` of the pair.
    #[inline(always)]
    pub fn locate(&self, position: usize) -> (usize, f32) {
        let payload = (self.pairs[position] & ((1 << self.payload_bits) - 1)) as usize;
        if self.sources.is_empty() { (payload, 1.0) } else { self.sources[payload] }
    }

    /// Returns the end of the run of pairs of `row`, whose first pair is at `start`.
    #[inline(always)]
    fn segment_end(&self, start: usize, row: usize) -> usize {
        let mut end = start + 1;
        while end < self.pairs.len() && self.row(end) == row {
            end += 1;
        }
        end
    }
}

impl<'a> UpdateTarget<'a> {
    /// Creates the target of a tile whose row numbers begin at `first_row`.
    pub fn new(
        tile: &'a mut TileMut<'_>,
        first_row: usize,
        optimizer: Optimizer,
        rounding: CounterRng,
    ) -> Self {
        let weights = match &mut tile.weights {
            WeightsMut::F32(weights) => TargetWeights::F32(DisjointMut::new(weights)),
            WeightsMut::F16(weights) => TargetWeights::F16(DisjointMut::new(weights)),
            WeightsMut::Bf16(weights) => TargetWeights::Bf16(DisjointMut::new(weights)),
        };
        Self {
            weights,
            state: DisjointMut::new(tile.state),
            state_per_row: optimizer.state_per_row(tile.dim),
            rows: first_row..first_row + tile.rows,
            dim: tile.dim,
            noise: rounding.child(u64::from(tile.origin.table)),
            first_row: tile.origin.row,
            first_column: tile.origin.column,
            sums: TileSums::default(),
        }
    }

    /// Returns the number that follows those of the tile's rows.
    pub fn end_row(&self) -> usize {
        self.rows.end
    }

    /// Returns the weights and the state of one row, given by its number over all tiles.
    ///
    /// # Safety
    /// The caller guarantees that `weights` and `dim` belong to this tile, that `row` lies in
    /// `self.rows`, and that no other reference to the row is alive.
    #[inline(always)]
    unsafe fn row<E>(
        &self,
        weights: &DisjointMut<'a, E>,
        dim: usize,
        row: usize,
    ) -> (&'a mut [E], &'a mut [f32]) {
        let local = row - self.rows.start;
        let (weight, state) = (local * dim, local * self.state_per_row);
        // SAFETY: both slices have `rows` rows, as `check` verified. The caller guarantees that
        // this reference to the row is the only one.
        unsafe {
            (weights.part(weight..weight + dim), self.state.part(state..state + self.state_per_row))
        }
    }

    /// Returns the random bits for rounding one row.
    #[inline(always)]
    fn row_noise(&self, row: usize) -> RowNoise {
        let row = self.first_row + (row - self.rows.start) as u64;
        RowNoise::new(self.noise, row, self.first_column)
    }

    #[inline(always)]
    fn prefetch<E>(&self, weights: &DisjointMut<'a, E>, dim: usize, row: usize) {
        let local = row - self.rows.start;
        prefetch_row_second(weights.as_ptr().wrapping_add(local * dim), dim);
        if self.state_per_row > 0 {
            let state = self.state.as_ptr().wrapping_add(local * self.state_per_row);
            prefetch_row_second(state, self.state_per_row);
        }
    }
}

/// The arithmetic on one row, implemented for each instruction set.
pub(super) trait RowKernel {
    /// Computes `sum[d] = Σ factor · gradient[d]` over the pairs, in order.
    ///
    /// # Safety
    /// The caller guarantees that the machine has the kernel's instruction set, and is compiled
    /// for it.
    unsafe fn sum(batch: &UpdateBatch<'_>, pairs: Range<usize>, sum: &mut [f32]);

    /// Computes the terms of one row, see [`UpdateRule::row_terms`]. `buffer` is scratch of the
    /// row's length.
    ///
    /// # Safety
    /// The caller guarantees the same conditions as for `sum`.
    unsafe fn terms<E: VectorElement>(
        rule: &UpdateRule,
        weights: &mut [E],
        buffer: &mut [f32],
        sum: &[f32],
        state: &mut [f32],
    ) -> [f32; 2];

    /// Applies the update rule to one row with its summed gradient and its state. `buffer` is
    /// scratch of the row's length. With `terms`, only the second half of the update is left.
    ///
    /// # Safety
    /// The caller guarantees the same conditions as for `sum`.
    unsafe fn update<E: VectorElement>(
        rule: &UpdateRule,
        weights: &mut [E],
        buffer: &mut [f32],
        noise: RowNoise,
        sum: &[f32],
        state: &mut [f32],
        terms: Option<[f32; 2]>,
    );
}

/// Returns the index of the tile that holds a row number.
pub(super) fn tile_of(targets: &[UpdateTarget<'_>], row: usize) -> usize {
    targets.partition_point(|target| target.rows.end <= row)
}

/// The inputs that all chunks share, and the rows that they update.
pub(super) struct UpdateWork<'a> {
    pub batch: &'a UpdateBatch<'a>,
    pub targets: &'a [UpdateTarget<'a>],
    pub rule: UpdateRule,
    pub form: RowForm<'a>,
    pub long: &'a [LongSegment],
    pub partials: &'a [f32],
}

impl UpdateWork<'_> {
    /// Updates the rows whose first pair lies in `pairs`.
    ///
    /// # Safety
    /// The caller guarantees that the machine has the kernel's instruction set, that it is
    /// compiled for this set, and that no other thread works on the same chunk.
    #[inline(always)]
    pub unsafe fn update_chunk<K: RowKernel>(&self, pairs: Range<usize>) -> Updated {
        let mut updated = Updated::default();
        let mut at = pairs.start;
        if at > 0 {
            // A row that began in an earlier chunk belongs to that chunk, so its pairs are
            // skipped.
            let row = self.batch.row(at - 1);
            while at < pairs.end && self.batch.row(at) == row {
                at += 1;
            }
        }
        while at < pairs.end {
            let target = &self.targets[tile_of(self.targets, self.batch.row(at))];
            // SAFETY: the caller guarantees the instruction set and exclusive use of this chunk.
            // `tile_of` found the target that contains the row, and `weights` belong to that
            // target.
            let rows = unsafe {
                match &target.weights {
                    TargetWeights::F32(weights) => {
                        self.update_tile::<K, _>(target, weights, &mut at, pairs.end)
                    }
                    TargetWeights::F16(weights) => {
                        self.update_tile::<K, _>(target, weights, &mut at, pairs.end)
                    }
                    TargetWeights::Bf16(weights) => {
                        self.update_tile::<K, _>(target, weights, &mut at, pairs.end)
                    }
                }
            };
            updated.unique_rows += rows;
            updated.unique_elements += rows * target.dim;
            updated.unique_bytes += rows * target.dim * target.weights.element_bytes();
        }
        updated
    }

    /// Updates the rows of one tile whose first pair lies in `at..end`, moves `at` past their
    /// last pair, and returns the number of rows.
    ///
    /// Each common dimension has its own instance of the code, in which loops are unrolled and
    /// the sum of a row's gradients stays in registers. The separate instances save a fifth of
    /// the time.
    ///
    /// # Safety
    /// The caller guarantees the same conditions as for [`Self::update_chunk`]. `weights` and the
    /// row at `at` must belong to `target`.
    #[inline(always)]
    unsafe fn update_tile<K: RowKernel, E: VectorElement>(
        &self,
        target: &UpdateTarget<'_>,
        weights: &DisjointMut<'_, E>,
        at: &mut usize,
        end: usize,
    ) -> usize {
        // SAFETY: the caller guarantees the instruction set and the rows. Both buffers have the
        // length of a row.
        unsafe {
            match target.dim {
                16 => self.update_rows::<K, E>(
                    target,
                    weights,
                    &mut [0.0; 16],
                    &mut [0.0; 16],
                    at,
                    end,
                ),
                32 => self.update_rows::<K, E>(
                    target,
                    weights,
                    &mut [0.0; 32],
                    &mut [0.0; 32],
                    at,
                    end,
                ),
                64 => self.update_rows::<K, E>(
                    target,
                    weights,
                    &mut [0.0; 64],
                    &mut [0.0; 64],
                    at,
                    end,
                ),
                128 => self.update_rows::<K, E>(
                    target,
                    weights,
                    &mut [0.0; 128],
                    &mut [0.0; 128],
                    at,
                    end,
                ),
                dim if dim <= STACK_DIM => {
                    let [sum, buffer] = &mut [[0.0; STACK_DIM]; 2];
                    self.update_rows::<K, E>(
                        target,
                        weights,
                        &mut sum[..dim],
                        &mut buffer[..dim],
                        at,
                        end,
                    )
                }
                dim => {
                    let mut heap = vec![0.0; 2 * dim];
                    let (sum, buffer) = heap.split_at_mut(dim);
                    self.update_rows::<K, E>(target, weights, sum, buffer, at, end)
                }
            }
        }
    }

    /// Updates rows like `update_tile`, with scratch for the sum of a row's gradients and for its
    /// weights in f32.
    ///
    /// # Safety
    /// The caller guarantees the same conditions as for [`Self::update_tile`]. `sum` and `buffer`
    /// must have the length of a row of `target`.
    #[inline(always)]
    unsafe fn update_rows<K: RowKernel, E: VectorElement>(
        &self,
        target: &UpdateTarget<'_>,
        weights: &DisjointMut<'_, E>,
        sum: &mut [f32],
        buffer: &mut [f32],
        at: &mut usize,
        end: usize,
    ) -> usize {
        // `dim` equals `target.dim`. The value is taken from `sum`, because the length of `sum`
        // is a constant in the instances for common dimensions.
        let dim = sum.len();
        let first = match self.form {
            RowForm::Sum { rows, .. } => {
                let row = self.batch.row(*at) as u64;
                rows.partition_point(|&other| other < row)
            }
            _ => *at,
        };
        let mut rows = 0;
        while *at < end {
            let row = self.batch.row(*at);
            if row >= target.rows.end {
                break;
            }
            let segment = *at..self.batch.segment_end(*at, row);
            *at = segment.end;
            let index = first + rows;
            rows += 1;
            // SAFETY: the caller guarantees the instruction set. `gather` or `run_rows` checked
            // the row, and only the chunk that holds the first pair of a row accesses the row and
            // its outputs.
            unsafe {
                self.sum_segment::<K, E>(target, weights, segment, sum);
                if let RowForm::Sum { sums, .. } = &self.form {
                    let TileSums { first_row, first_value } = target.sums;
                    let start = first_value + (index - first_row) * dim;
                    sums.part(start..start + dim).copy_from_slice(sum);
                    continue;
                }
                let noise = target.row_noise(row);
                let (weights, state) = target.row(weights, dim, row);
                let terms = match &self.form {
                    RowForm::Terms(terms) => {
                        let row_terms = K::terms(&self.rule, weights, &mut *buffer, &*sum, state);
                        terms.part(2 * index..2 * index + 2).copy_from_slice(&row_terms);
                        continue;
                    }
                    RowForm::Finish(terms) => Some([terms[2 * index], terms[2 * index + 1]]),
                    RowForm::Update | RowForm::Sum { .. } => None,
                };
                K::update(&self.rule, weights, &mut *buffer, noise, &*sum, state, terms);
            }
        }
        rows
    }

    /// Computes the summed gradient of one row from its segment of pairs.
    ///
    /// # Safety
    /// The caller guarantees that the machine has the kernel's instruction set, and is compiled
    /// for it.
    #[inline(always)]
    unsafe fn sum_segment<K: RowKernel, E>(
        &self,
        target: &UpdateTarget<'_>,
        weights: &DisjointMut<'_, E>,
        segment: Range<usize>,
        sum: &mut [f32],
    ) {
        if segment.len() > IDS_PER_PART {
            return self.add_parts(segment.start, sum);
        }
        for position in segment.clone() {
            self.prefetch(target, weights, sum.len(), position + PAIRS_AHEAD);
        }
        // SAFETY: the caller guarantees the kernel's instruction set.
        unsafe { K::sum(self.batch, segment, sum) }
    }

    /// Adds the partial sums of a long segment in order, which gives the sum of the row's
    /// gradients.
    #[cold]
    fn add_parts(&self, start: usize, sum: &mut [f32]) {
        let segment = &self.long[self.long.partition_point(|segment| segment.start < start)];
        let sums = &self.partials[segment.partials..][..segment.parts() * segment.dim];
        sum.fill(0.0);
        for part in sums.chunks(segment.dim) {
            scalar::add_scaled(1.0, part, sum);
        }
    }

    /// Prefetches the gradient of a later pair. Also prefetches its row, unless the preceding
    /// pair has the same row.
    #[inline(always)]
    fn prefetch<E>(
        &self,
        target: &UpdateTarget<'_>,
        weights: &DisjointMut<'_, E>,
        dim: usize,
        position: usize,
    ) {
        let batch = self.batch;
        if position >= batch.pairs.len() {
            return;
        }
        let (offset, _) = batch.locate(position);
        prefetch_row_second(batch.gradient.as_ptr().wrapping_add(offset), dim);
        let row = batch.row(position);
        if row != batch.row(position - 1) && row < target.rows.end {
            target.prefetch(weights, dim, row);
        }
    }
}

/// The scalar row kernel, which runs on any machine.
pub(super) struct Portable;

impl RowKernel for Portable {
    #[inline(always)]
    unsafe fn sum(batch: &UpdateBatch<'_>, pairs: Range<usize>, sum: &mut [f32]) {
        sum.fill(0.0);
        for position in pairs {
            let (start, factor) = batch.locate(position);
            scalar::add_scaled(factor, &batch.gradient[start..start + sum.len()], sum);
        }
    }

    #[inline(always)]
    unsafe fn terms<E: VectorElement>(
        rule: &UpdateRule,
        weights: &mut [E],
        buffer: &mut [f32],
        sum: &[f32],
        state: &mut [f32],
    ) -> [f32; 2] {
        for (wide, weight) in buffer.iter_mut().zip(&*weights) {
            *wide = weight.widen();
        }
        rule.row_terms(buffer, sum, split_state(rule.kind, state))
    }

    #[inline(always)]
    unsafe fn update<E: VectorElement>(
        rule: &UpdateRule,
        weights: &mut [E],
        buffer: &mut [f32],
        noise: RowNoise,
        sum: &[f32],
        state: &mut [f32],
        terms: Option<[f32; 2]>,
    ) {
        for (wide, weight) in buffer.iter_mut().zip(&*weights) {
            *wide = weight.widen();
        }
        let state = split_state(rule.kind, state);
        match terms {
            None => rule.update_row(buffer, sum, state),
            Some(terms) => rule.finish_row(terms, buffer, sum, state),
        }
        for (column, (weight, &wide)) in weights.iter_mut().zip(&*buffer).enumerate() {
            *weight = E::round(wide, noise.at(column));
        }
    }
}
