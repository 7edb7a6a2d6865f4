//! The tiles of one rank in host memory, in the form that the CPU's lookup and update take.

use schema::JaggedTensor;

use crate::backend::{StepScalars, TileRows, TileValues};
use crate::buffer::Array;
use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::embedding_backward::{self, Scratch, TileMut, Updated};
use crate::ops::embedding_forward::{self, TileView};
use crate::ops::{Slot, SlotOutput, extent};
use crate::weights::WeightsView;

/// Tiles with their optimizer states, and the scratch buffers in which an update sorts its ids.
#[derive(Debug, Default)]
pub struct CpuTables {
    tiles: Vec<TileValues>,
    slots: Vec<Slot>,
    /// Elements of a pooled row: the sum of `D` over all slots.
    width: usize,
    scratch: Scratch,
    /// Lists of tile views. The lists are empty between calls and are kept only to reuse their
    /// memory.
    views: Vec<TileView<'static>>,
    views_mut: Vec<TileMut<'static>>,
}

impl CpuTables {
    pub(super) fn new(tiles: Vec<TileValues>, slots: Vec<Slot>) -> Self {
        let width = slots.iter().filter_map(|slot| tiles.get(slot.tile)).map(|tile| tile.dim).sum();
        let (scratch, views, views_mut) = (Scratch::default(), Vec::new(), Vec::new());
        Self { tiles, slots, width, scratch, views, views_mut }
    }

    /// Returns the weights and the optimizer state of a range of rows of a tile.
    pub(super) fn tile(&self, TileRows { tile, rows }: &TileRows) -> (WeightsView<'_>, &[f32]) {
        let TileValues { weights, state, rows: all, dim, .. } = &self.tiles[*tile];
        let width = state.len() / (*all).max(1);
        let weights = weights.view().slice(rows.start * dim..rows.end * dim);
        (weights, &state[rows.start * width..rows.end * width])
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
            output: SlotOutput::Pooled,
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
        let len = jagged.batch_size * self.width;
        extent::within("embedding_backward", "gradient [B, ΣD]", gradient.len(), len)?;
        let mut tiles = emptied(std::mem::take(&mut self.views_mut));
        tiles.extend(self.tiles.iter_mut().map(view_mut));
        let arguments = embedding_backward::BackwardArguments {
            tiles: &mut tiles,
            slots: &self.slots,
            jagged,
            bag_scales,
            output: SlotOutput::Pooled,
            gradient: &gradient[..len],
            rule: step.sparse,
            rounding: step.rounding,
        };
        let updated = embedding_backward::run(cpu, arguments, &mut self.scratch);
        self.views_mut = emptied(tiles);
        updated
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
