//! The tiles of one rank: their weights, their optimizer state, and the calls that use them.

use device::ops::embedding_backward::{Factors, Origin};
use device::ops::{Output, Slot, embedding_backward, embedding_forward};
use device::optimizer::Rule;
use schema::{KeyedJaggedTensor, ModelConfig, Op, Optimizer, ShardingPlan};

use super::input_dist::{self, LocalIds};
use super::layout::Layout;
use super::output_dist;
use crate::context::RankContext;
use crate::memory::{MemoryUse, Room, Traffic};
use crate::parameter::TileState;
use crate::{Error, initial};

/// The embedding tables of a model as one rank sees them.
pub struct EmbeddingCollection {
    layout: Layout,
    tiles: Vec<TileState>,
    /// Table names of `tiles`, for messages.
    names: Vec<String>,
    slots: Vec<Slot>,
    optimizer: Optimizer,
    /// Seed of the random bits of rounding.
    seed: u64,
    /// Pooled rows of this rank's slots for all ranks' samples, `[B_global, width]`; unused where
    /// they are the output as it is.
    local: Vec<f32>,
    /// Ids of the last forward; unused where they are the batch's as they are.
    ids: LocalIds,
    input: input_dist::Exchange,
    output: output_dist::Exchange,
    scratch: embedding_backward::Scratch,
    /// Empty between calls, for the memory of their lists of tiles.
    views: Vec<embedding_forward::TileView<'static>>,
    views_mut: Vec<embedding_backward::TileMut<'static>>,
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
            seed: model.seed,
            local: Vec::new(),
            ids: LocalIds::default(),
            input: input_dist::Exchange::default(),
            output: output_dist::Exchange::default(),
            scratch: embedding_backward::Scratch::default(),
            views: Vec::new(),
            views_mut: Vec::new(),
        }
    }

    /// The tiles with their state.
    #[must_use]
    pub fn tiles(&self) -> &[TileState] {
        &self.tiles
    }

    /// Puts other tiles of the same tables in place, which have the rows of the ids to come.
    pub fn replace_tiles(&mut self, tiles: Vec<TileState>) {
        assert_eq!(tiles.len(), self.tiles.len(), "tiles of the same tables");
        self.tiles = tiles;
    }

    /// Whether every id of `sparse` names a row of its table; see [`input_dist::check_ids`].
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`].
    pub fn check_ids(&self, sparse: &KeyedJaggedTensor, first_sample: usize) -> Result<(), Error> {
        input_dist::check_ids(&self.layout, sparse, first_sample)
    }

    /// Counts what a step keeps beside the tiles: ids, pooled vectors of its slots, and the sort of
    /// the updates. Returns the bytes of the messages that come and go.
    pub fn step_memory(&self, rank: schema::Rank, traffic: &Traffic<'_>, room: &mut Room) -> u64 {
        let layout = &self.layout;
        let slots = &layout.slots[rank.index()];
        let (samples, width) = (traffic.batch_size, layout.widths[rank.index()]);
        let ids: f64 = slots.iter().map(|slot| layout.ids_per_bag(slot, traffic.ids_per_bag)).sum();
        let (ids, bags) = ((ids * samples as f64) as usize, slots.len() * samples);
        let gradient = samples * width;
        let scratch = embedding_backward::ScratchShape {
            ids,
            bags,
            slots: slots.len(),
            gradient,
            factors: if layout.any_mean { Factors::Present } else { Factors::Absent },
        };
        room.count(MemoryUse::RowUpdates, embedding_backward::Scratch::bytes(scratch));
        let unrolled = slots.len() + layout.in_sum_order.len();
        room.count(MemoryUse::Exchange, unrolled * size_of::<super::layout::Slot>());
        if layout.as_given {
            return 0;
        }
        let scales = if layout.any_mean { bags } else { 0 };
        room.count(MemoryUse::Exchange, LocalIds::bytes(ids, bags, scales));
        let arriving = input_dist::arriving_bytes(ids, bags, scales);
        let vectors = gradient * size_of::<f32>();
        let vectors = if layout.whole {
            0
        } else {
            room.count(MemoryUse::Exchange, vectors);
            output_dist::message_bytes(vectors, layout.slots.len())
        };
        (arriving + vectors) as u64
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
        let (ids, input) = (&mut self.ids, &mut self.input);
        profiler.op(op, || {
            if layout.as_given {
                return input_dist::check_ids(layout, sparse, first_sample);
            }
            input.run(layout, &mut comm.input, (sparse, first_sample), ids)
        })?;
        let jagged = if layout.as_given { sparse } else { &self.ids.jagged };
        let (elements, row_bytes) = elements_and_bytes(&self.slots, &self.tiles, jagged);
        let out = if layout.whole {
            &mut *pooled
        } else {
            self.local.resize(jagged.batch_size * layout.widths[rank], 0.0);
            &mut self.local[..]
        };
        let mut tiles = emptied(std::mem::take(&mut self.views));
        tiles.extend(self.tiles.iter().zip(&self.names).map(view));
        let arguments = embedding_forward::Arguments {
            tiles: &tiles,
            slots: &self.slots,
            jagged,
            bag_scales: self.ids.scales.as_deref(),
            output: Output::Pooled,
            out,
        };
        let op = Op::EmbeddingForward {
            bags: jagged.features * jagged.batch_size,
            ids: jagged.values.len(),
            elements,
            pooled_elements: arguments.out.len(),
            row_bytes,
        };
        profiler.op(op, || embedding_forward::run(cpu, arguments))?;
        self.views = emptied(tiles);
        if layout.whole {
            return Ok(());
        }
        let op = Op::OutputDist { elements: self.local.len() };
        let (batch_sizes, output) = (&self.ids.batch_sizes, &mut self.output);
        profiler.op(op, || {
            output.forward(layout, (cpu, &mut comm.pooled), (&self.local, batch_sizes), pooled)
        })
    }

    /// Updates the rows of the last forward, which was given the same `sparse`, from
    /// `d_pooled [B, ΣD]` of this rank's samples, at a step of this number.
    ///
    /// # Errors
    /// [`Error::Communication`].
    pub fn backward(
        &mut self,
        context: &mut RankContext,
        (sparse, d_pooled): (&KeyedJaggedTensor, &[f32]),
        (rule, step): (Rule, u64),
    ) -> Result<(), Error> {
        let RankContext { cpu, comm, profiler } = context;
        let layout = &self.layout;
        let gradient = if layout.whole {
            d_pooled
        } else {
            let op = Op::GradientDist { elements: d_pooled.len() };
            let output = &mut self.output;
            profiler.op(op, || output.backward(layout, (cpu, &mut comm.pooled), d_pooled))?
        };
        let jagged = if layout.as_given { sparse } else { &self.ids.jagged };
        let (elements, _) = elements_and_bytes(&self.slots, &self.tiles, jagged);
        let mut tiles = emptied(std::mem::take(&mut self.views_mut));
        tiles.extend(self.tiles.iter_mut().zip(&self.names).map(view_mut));
        let (optimizer, pooled_elements) = (self.optimizer, gradient.len());
        let arguments = embedding_backward::Arguments {
            tiles: &mut tiles,
            slots: &self.slots,
            jagged,
            bag_scales: self.ids.scales.as_deref(),
            output: Output::Pooled,
            gradient,
            rule,
            rounding: initial::rounding(self.seed, step),
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
                unique_row_bytes: counts.unique_bytes,
                pooled_elements,
                optimizer,
            };
            (updated, op)
        };
        profiler.op_known_after(run)?;
        self.views_mut = emptied(tiles);
        Ok(())
    }
}

/// An empty list in the memory of another one, of whose type it differs in lifetimes alone.
fn emptied<A, B>(list: Vec<A>) -> Vec<B> {
    list.into_iter().filter_map(|_| None).collect()
}

/// Σ over ids of D, and of the bytes of a row.
fn elements_and_bytes(
    slots: &[Slot],
    tiles: &[TileState],
    jagged: &KeyedJaggedTensor,
) -> (usize, usize) {
    let of_slot = |(key, slot): (usize, &Slot)| {
        let TileState { tile, weight, .. } = &tiles[slot.tile];
        let elements = jagged.feature(key).len() * tile.dim();
        (elements, elements * weight.data_type().bytes())
    };
    let add = |a: (usize, usize), b: (usize, usize)| (a.0 + b.0, a.1 + b.1);
    slots.iter().enumerate().map(of_slot).fold((0, 0), add)
}

fn view<'a>((state, name): (&'a TileState, &'a String)) -> embedding_forward::TileView<'a> {
    let (rows, dim) = (state.tile.row_count(), state.tile.dim());
    embedding_forward::TileView { weights: state.weight.view(), rows, dim, name }
}

fn view_mut<'a>((state, name): (&'a mut TileState, &'a String)) -> embedding_backward::TileMut<'a> {
    let (rows, dim) = (state.tile.row_count(), state.tile.dim());
    let TileState { tile, weight, state } = state;
    let origin =
        Origin { table: tile.table.0, row: tile.rows.start, column: tile.columns.start as u32 };
    let weights = weight.view_mut();
    embedding_backward::TileMut { weights, state, rows, dim, name, origin }
}
