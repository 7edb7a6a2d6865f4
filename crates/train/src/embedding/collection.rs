//! The tiles of one rank: their weights, their optimizer state, and the calls that use them.

use device::ops::{Slot, embedding_backward, embedding_forward};
use device::optimizer::Rule;
use schema::{KeyedJaggedTensor, ModelConfig, Op, Optimizer, ShardingPlan};

use super::input_dist::{self, LocalIds};
use super::layout::Layout;
use super::output_dist;
use crate::Error;
use crate::context::RankContext;
use crate::parameter::TileState;

/// The embedding tables of a model as one rank sees them.
pub struct EmbeddingCollection {
    layout: Layout,
    tiles: Vec<TileState>,
    /// Table names of `tiles`, for messages.
    names: Vec<String>,
    slots: Vec<Slot>,
    optimizer: Optimizer,
    /// Pooled rows of this rank's slots for all ranks' samples, `[B_global, width]`.
    local: Vec<f32>,
    /// Ids of the last forward; the backward updates their rows.
    ids: LocalIds,
    scratch: embedding_backward::Scratch,
}

impl EmbeddingCollection {
    /// The collection over `tiles`, which are those of this rank in plan order.
    #[must_use]
    pub fn new(
        model: &ModelConfig,
        plan: &ShardingPlan,
        rank: schema::Rank,
        (tiles, optimizer): (Vec<TileState>, Optimizer),
    ) -> Self {
        let layout = Layout::new(model, plan);
        let slot = |slot: &super::layout::Slot| Slot { tile: slot.tile, column: slot.local_column };
        let name = |tile: &TileState| model.tables[tile.tile.table.index()].name.clone();
        Self {
            slots: layout.slots[rank.index()].iter().map(slot).collect(),
            names: tiles.iter().map(name).collect(),
            layout,
            tiles,
            optimizer,
            local: Vec::new(),
            ids: LocalIds::default(),
            scratch: embedding_backward::Scratch::default(),
        }
    }

    /// The tiles with their state.
    #[must_use]
    pub fn tiles(&self) -> &[TileState] {
        &self.tiles
    }

    /// Writes the pooled vectors of this rank's samples to `pooled [B, ΣD]`.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`] before any weight of this rank changes; [`Error::Communication`].
    pub fn forward(
        &mut self,
        context: &mut RankContext,
        (sparse, first_sample): (&KeyedJaggedTensor, usize),
        pooled: &mut [f32],
    ) -> Result<(), Error> {
        let RankContext { cpu, comm, profiler } = context;
        let (layout, rank) = (&self.layout, comm.rank().index());
        let op = Op::InputDist { ids: sparse.values.len() };
        self.ids = profiler.op(op, || input_dist::exchange(layout, comm, sparse, first_sample))?;
        let jagged = &self.ids.jagged;
        self.local.resize(jagged.batch_size * layout.widths[rank], 0.0);
        let elements = self.elements();
        let tiles: Vec<_> = self.tiles.iter().zip(&self.names).map(view).collect();
        let arguments = embedding_forward::Arguments {
            tiles: &tiles,
            slots: &self.slots,
            jagged,
            bag_scales: self.ids.scales.as_deref(),
            out: &mut self.local,
        };
        let op = Op::EmbeddingForward {
            bags: jagged.features * jagged.batch_size,
            ids: jagged.values.len(),
            elements,
            pooled_elements: arguments.out.len(),
        };
        profiler.op(op, || embedding_forward::run(cpu, arguments))?;
        let op = Op::OutputDist { elements: self.local.len() };
        let batch_sizes = &self.ids.batch_sizes;
        profiler.op(op, || {
            output_dist::forward(layout, (cpu, comm), (&self.local, batch_sizes), pooled)
        })
    }

    /// Updates the rows of the last forward from `d_pooled [B, ΣD]` of this rank's samples.
    ///
    /// # Errors
    /// [`Error::Communication`].
    pub fn backward(
        &mut self,
        context: &mut RankContext,
        d_pooled: &[f32],
        rule: Rule,
    ) -> Result<(), Error> {
        let RankContext { cpu, comm, profiler } = context;
        let layout = &self.layout;
        let op = Op::GradientDist { elements: d_pooled.len() };
        let gradient = profiler.op(op, || output_dist::backward(layout, (cpu, comm), d_pooled))?;
        let jagged = &self.ids.jagged;
        let elements = self.elements();
        let mut tiles: Vec<_> = self.tiles.iter_mut().zip(&self.names).map(view_mut).collect();
        let (optimizer, pooled_elements) = (self.optimizer, gradient.len());
        let arguments = embedding_backward::Arguments {
            tiles: &mut tiles,
            slots: &self.slots,
            jagged,
            bag_scales: self.ids.scales.as_deref(),
            gradient: &gradient,
            rule,
        };
        let scratch = &mut self.scratch;
        let run = || {
            let updated = embedding_backward::run(cpu, arguments, scratch);
            let counts = updated.as_ref().copied().unwrap_or_default();
            let op = Op::EmbeddingBackward {
                ids: jagged.values.len(),
                unique_rows: counts.unique_rows,
                elements,
                unique_elements: counts.unique_elements,
                pooled_elements,
                optimizer,
            };
            (updated, op)
        };
        profiler.op_known_after(run)?;
        Ok(())
    }

    /// Σ over the ids of the last forward of D.
    fn elements(&self) -> usize {
        let of_slot = |(key, slot): (usize, &Slot)| {
            self.ids.jagged.feature(key).len() * self.tiles[slot.tile].tile.dim()
        };
        self.slots.iter().enumerate().map(of_slot).sum()
    }
}

fn view<'a>((state, name): (&'a TileState, &'a String)) -> embedding_forward::TileView<'a> {
    let (rows, dim) = (state.tile.row_count(), state.tile.dim());
    embedding_forward::TileView { weights: &state.weight, rows, dim, name }
}

fn view_mut<'a>((state, name): (&'a mut TileState, &'a String)) -> embedding_backward::TileMut<'a> {
    let (rows, dim) = (state.tile.row_count(), state.tile.dim());
    let TileState { weight, state, .. } = state;
    embedding_backward::TileMut { weights: weight, state, rows, dim, name }
}
