//! The tiles of one rank in host memory, in the form that the CPU's lookup and update take.

use schema::JaggedTensor;

use crate::backend::{RowValues, StepScalars, TableValues, TileRows, TileValues};
use crate::buffer::Array;
use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::embedding_backward::{
    self, BackwardArguments, RowArguments, RowSums, Scratch, TileMut, TileOrigin, Updated,
};
use crate::ops::embedding_forward::{self, TileView};
use crate::ops::{Slot, SlotOutput, extent};
use crate::weights::WeightsView;

/// Tiles with their optimizer states, and the scratch buffers in which an update sorts its ids.
#[derive(Debug, Default)]
pub struct CpuTables {
    tiles: Vec<TileValues>,
    slots: Vec<Slot>,
    output: SlotOutput,
    /// Elements of a pooled row.
    width: usize,
    scratch: Scratch,
    /// Lists of tile views. The lists are empty between calls and are kept only to reuse their
    /// memory.
    views: Vec<TileView<'static>>,
    views_mut: Vec<TileMut<'static>>,
}

impl CpuTables {
    pub(super) fn new(TableValues { tiles, slots, output }: TableValues) -> Self {
        let dims = slots.iter().filter_map(|slot| tiles.get(slot.tile)).map(|tile| tile.dim);
        let width = output.row_elements(dims);
        let (scratch, views, views_mut) = (Scratch::default(), Vec::new(), Vec::new());
        Self { tiles, slots, output, width, scratch, views, views_mut }
    }

    /// Returns the weights and the optimizer state of a range of rows of a tile.
    pub(super) fn tile(&self, TileRows { tile, rows }: &TileRows) -> (WeightsView<'_>, &[f32]) {
        let TileValues { weights, state, rows: all, dim, .. } = &self.tiles[*tile];
        let width = state.len() / (*all).max(1);
        let weights = weights.view().slice(rows.start * dim..rows.end * dim);
        (weights, &state[rows.start * width..rows.end * width])
    }

    /// Overwrites the weights and the optimizer state of a range of rows of a tile.
    pub(super) fn set_rows(&mut self, values: &RowValues<'_>) -> Result<(), Error> {
        const OP: &str = "set_rows";
        let TileRows { tile, rows } = &values.rows;
        let TileValues { weights, state, rows: all, dim, origin, .. } = &mut self.tiles[*tile];
        let width = state.len() / (*all).max(1);
        extent::check(OP, "weights [rows, D]", rows.len() * *dim, values.weights.len())?;
        extent::check(OP, "state [rows, state per row]", rows.len() * width, values.state.len())?;
        let to = weights.view_mut().slice(rows.start * *dim..rows.end * *dim);
        let origin = TileOrigin { row: origin.row + rows.start as u64, ..*origin };
        embedding_backward::write_rows(to, values.weights, *dim, origin, values.rounding);
        state[rows.start * width..rows.end * width].copy_from_slice(values.state);
        Ok(())
    }

    /// Pools the rows of a batch and writes them to the first elements of `out`.
    pub(super) fn lookup(
        &mut self,
        cpu: &Cpu,
        jagged: &JaggedTensor,
        bag_scales: Option<&[f32]>,
        out: &mut Array<f32>,
    ) -> Result<(), Error> {
        let len = jagged.batch_size * self.width;
        extent::within("embedding_forward", "out [B, ΣD]", out.len(), len)?;
        let mut tiles = emptied(std::mem::take(&mut self.views));
        tiles.extend(self.tiles.iter().map(view));
        let arguments = embedding_forward::ForwardArguments {
            tiles: &tiles,
            slots: &self.slots,
            jagged,
            bag_scales,
            output: self.output,
            out: &mut out[..len],
        };
        let looked_up = embedding_forward::run(cpu, arguments);
        self.views = emptied(tiles);
        looked_up
    }

    /// Updates the rows of the last lookup. The first elements of `gradient` are the gradients of
    /// the pooled rows.
    pub(super) fn update(
        &mut self,
        cpu: &Cpu,
        jagged: &JaggedTensor,
        bag_scales: Option<&[f32]>,
        gradient: &Array<f32>,
        step: &StepScalars,
    ) -> Result<Updated, Error> {
        self.backward(jagged, bag_scales, gradient, step, |arguments, scratch| {
            embedding_backward::run(cpu, arguments, scratch)
        })
    }

    /// Sums the gradients of the rows of the last lookup.
    pub(super) fn sum_rows(
        &mut self,
        cpu: &Cpu,
        jagged: &JaggedTensor,
        bag_scales: Option<&[f32]>,
        gradient: &Array<f32>,
        step: &StepScalars,
        to: &mut RowSums,
    ) -> Result<(), Error> {
        self.backward(jagged, bag_scales, gradient, step, |arguments, scratch| {
            embedding_backward::sum_rows(cpu, arguments, scratch, to)
        })
    }

    /// Computes the terms of rows with summed gradients.
    pub(super) fn row_terms(
        &mut self,
        cpu: &Cpu,
        sums: &RowSums,
        step: &StepScalars,
        terms: &mut Vec<f32>,
    ) -> Result<(), Error> {
        self.with_rows(sums, step, |arguments, scratch| {
            embedding_backward::row_terms(cpu, arguments, scratch, terms)
        })
    }

    /// Updates rows with their summed gradients.
    pub(super) fn apply_rows(
        &mut self,
        cpu: &Cpu,
        sums: &RowSums,
        terms: Option<&[f32]>,
        step: &StepScalars,
    ) -> Result<Updated, Error> {
        self.with_rows(sums, step, |arguments, scratch| {
            embedding_backward::apply_rows(cpu, arguments, scratch, terms)
        })
    }

    fn backward<T>(
        &mut self,
        jagged: &JaggedTensor,
        bag_scales: Option<&[f32]>,
        gradient: &Array<f32>,
        step: &StepScalars,
        run: impl FnOnce(BackwardArguments<'_, '_>, &mut Scratch) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let len = jagged.batch_size * self.width;
        extent::within("embedding_backward", "gradient [B, ΣD]", gradient.len(), len)?;
        let mut tiles = emptied(std::mem::take(&mut self.views_mut));
        tiles.extend(self.tiles.iter_mut().map(view_mut));
        let arguments = BackwardArguments {
            tiles: &mut tiles,
            slots: &self.slots,
            jagged,
            bag_scales,
            output: self.output,
            gradient: &gradient[..len],
            rule: step.sparse,
            rounding: step.rounding,
        };
        let result = run(arguments, &mut self.scratch);
        self.views_mut = emptied(tiles);
        result
    }

    fn with_rows<T>(
        &mut self,
        sums: &RowSums,
        step: &StepScalars,
        run: impl FnOnce(RowArguments<'_, '_>, &mut Scratch) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut tiles = emptied(std::mem::take(&mut self.views_mut));
        tiles.extend(self.tiles.iter_mut().map(view_mut));
        let (rule, rounding) = (step.sparse, step.rounding);
        let result =
            run(RowArguments { tiles: &mut tiles, sums, rule, rounding }, &mut self.scratch);
        self.views_mut = emptied(tiles);
        result
    }
}

/// Returns an empty list that reuses the memory of `list`. The element types `A` and `B` differ
/// only in their lifetimes.
fn emptied<A, B>(list: Vec<A>) -> Vec<B> {
    list.into_iter().filter_map(|_| None).collect()
}

fn view(tile: &TileValues) -> TileView<'_> {
    let TileValues { weights, rows, dim, name, .. } = tile;
    TileView { weights: weights.view(), rows: *rows, dim: *dim, name }
}

fn view_mut(tile: &mut TileValues) -> TileMut<'_> {
    let TileValues { weights, state, rows, dim, name, origin } = tile;
    let weights = weights.view_mut();
    TileMut { weights, state, rows: *rows, dim: *dim, name, origin: *origin }
}
