//! Sends ids to the ranks that own their rows: checks ids, splits them by tile, and assembles the
//! received ones.
//!
//! Whole tables take this rank's own ids, and ranks only exchange which of their rows are used.
//!
//! The exchange takes up to four rounds of all-to-all: lengths, ids, and where needed scales and
//! weights. Counts follow from the lengths, so no round of sizes comes first. Ids beyond the length
//! of a sequence are checked like the others, but not sent. This file does not depend on weights or
//! optimizers.

use std::ops::Range;
use std::sync::Arc;

use comm::{Communicator, Flight};
use schema::JaggedTensor;

use super::layout::{Slot, SlotLayout};
use super::touched_rows::TouchedRows;
use crate::Error;
use crate::lane::{Exchange, LaneCommunicator};
use crate::share::RankBatch;

/// The ids of all ranks' samples for the tiles of this rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LocalIds {
    /// Ids relative to the tile's first row, with one feature per slot of this rank. Samples of
    /// rank 0 come first, then those of rank 1, and so on.
    pub jagged: JaggedTensor,
    /// One factor per bag, `[slots, B_global]`. The factors are present if a table of the model
    /// averages its bags.
    pub scales: Option<Vec<f32>>,
    /// Number of samples of each rank.
    pub batch_sizes: Vec<usize>,
}

impl LocalIds {
    /// Computes the bytes of `ids` ids in `bags` bags, of which `scales` have a factor.
    pub(super) fn bytes(ids: usize, bags: usize, scales: usize) -> usize {
        ids * size_of::<i64>() + (bags + 1) * size_of::<usize>() + scales * size_of::<f32>()
    }
}

/// Computes the bytes of the receive buffers for these ids. The buffers are kept between steps.
pub(super) fn arriving_bytes(ids: usize, bags: usize, scales: usize) -> usize {
    ids * size_of::<i64>() + bags * size_of::<i32>() + scales * size_of::<f32>()
}

/// The purpose for which a batch is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchUse {
    /// Rows that the batch looks up are updated.
    Training,
    Evaluation,
}

/// The communicators of an exchange of ids.
pub struct IdCommunicators {
    /// The ranks of this replica group, which exchange ids.
    within: Communicator,
    /// Is `None` if all ranks form one group.
    groups: Option<IdGroups>,
}

/// The communicators over which ranks of several groups exchange the rows that they look up.
struct IdGroups {
    /// The ranks with the same place in all groups, which hold the same tiles.
    between: Communicator,
    /// All ranks, which hold the same replicated tables.
    all: Communicator,
}

impl IdCommunicators {
    /// Creates the communicators of ranks that form one group.
    #[must_use]
    pub fn single(within: Communicator) -> Self {
        Self { within, groups: None }
    }

    /// Creates communicators from those of the ranks within a group, of the ranks with the same
    /// place in all groups, and of all ranks.
    #[must_use]
    pub fn grouped(within: Communicator, between: Communicator, all: Communicator) -> Self {
        Self { within, groups: Some(IdGroups { between, all }) }
    }

    /// Returns the communicator of all ranks.
    fn all(&mut self) -> &mut Communicator {
        self.groups.as_mut().map_or(&mut self.within, |groups| &mut groups.all)
    }
}

impl LaneCommunicator for IdCommunicators {
    fn duplicate(&self) -> Self {
        match &self.groups {
            None => Self::single(self.within.duplicate()),
            Some(IdGroups { between, all }) => {
                Self::grouped(self.within.duplicate(), between.duplicate(), all.duplicate())
            }
        }
    }

    fn settings(&mut self) -> &mut Communicator {
        &mut self.within
    }

    fn copy_settings(&mut self, other: &Communicator) {
        self.within.copy_settings(other);
        if let Some(IdGroups { between, all }) = &mut self.groups {
            [between, all].into_iter().for_each(|comm| comm.copy_settings(other));
        }
    }

    fn take_flight(&mut self) -> Option<Flight> {
        let groups = self.groups.as_mut();
        let others = groups.map(|groups| [groups.between.take_flight(), groups.all.take_flight()]);
        let others = others.into_iter().flatten();
        others.chain([self.within.take_flight()]).flatten().reduce(Flight::join)
    }
}

/// The exchange of a batch's ids, with its buffers. A later step reuses the buffers.
#[derive(Default)]
pub struct IdExchange {
    /// The batch to distribute, until that is done.
    pub batch: Option<RankBatch>,
    layout: Arc<SlotLayout>,
    /// The ids for the tiles that this rank owns, of all ranks' samples.
    pub ids: LocalIds,
    /// The ids of this rank's samples for whole tables, unless the batch's ids are used unchanged.
    pub own: LocalIds,
    /// The rows of replicated tables that the batch of all ranks looks up.
    pub touched: TouchedRows,
    /// The rows of this rank's tiles that the batch of all groups looks up. Empty unless groups
    /// sum gradients.
    pub touched_in_groups: TouchedRows,
    parcels: Parcels,
    own_parcel: Parcels,
}

/// Ids per peer. The buffers hold the sent data, then the received data, slot-major over that
/// peer's samples.
#[derive(Default)]
struct Parcels {
    lengths: Vec<Vec<i32>>,
    values: Vec<Vec<i64>>,
    scales: Vec<Vec<f32>>,
    weights: Vec<Vec<f32>>,
    /// Number of ids of each rank that have been copied to the output.
    taken: Vec<usize>,
}

impl Exchange for IdExchange {
    type Comm = IdCommunicators;

    // The thread of the lane also splits the ids by owner, which takes longer than sending them.
    fn start(&mut self, _: &mut IdCommunicators) -> Result<(), Error> {
        Ok(())
    }

    fn finish(&mut self, comm: &mut IdCommunicators) -> Result<(), Error> {
        let Some(RankBatch { batch, first_sample }) = self.batch.take() else { return Ok(()) };
        self.run(comm, &batch.sparse, first_sample, BatchUse::Training)
    }
}

impl IdExchange {
    /// Creates an exchange with empty buffers. `tile_rows` is the number of rows of each tile of
    /// this rank whose gradients replica groups sum.
    #[must_use]
    pub fn new(layout: Arc<SlotLayout>, tile_rows: &[u64]) -> Self {
        let touched = TouchedRows::new(&layout.replica_rows);
        let touched_in_groups = TouchedRows::new(tile_rows);
        Self { layout, touched, touched_in_groups, ..Self::default() }
    }

    /// Sends the ids of `sparse` to the owners of their rows, and writes the ids that this rank
    /// owns to [`Self::ids`]. Ids for whole tables go to [`Self::own`]. For a training step, ranks
    /// also exchange the rows of replicated tables that they look up, and groups those of their
    /// tiles. `sparse` has this rank's samples, which begin at `first_sample` of the global batch.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`] names table, feature, sample and id before anything is sent.
    /// [`Error::Communication`] if a peer left.
    pub fn run(
        &mut self,
        comm: &mut IdCommunicators,
        sparse: &JaggedTensor,
        first_sample: usize,
        batch_use: BatchUse,
    ) -> Result<(), Error> {
        let layout = &*Arc::clone(&self.layout);
        check_ids(layout, sparse, first_sample)?;
        let has_weights = sparse.weights.is_some();
        if layout.has_tiles() {
            self.parcels.clear(layout.slots.len());
            for (rank, slots) in layout.slots.iter().enumerate() {
                self.parcels.pack(rank, slots, sparse, layout.any_mean);
            }
            self.parcels.exchange(&mut comm.within, layout.any_mean, has_weights)?;
            let slots = &layout.slots[comm.within.rank().index()];
            self.parcels.put_together(slots.len(), layout.any_mean, has_weights, &mut self.ids);
            let sums_tiles = batch_use == BatchUse::Training && self.touched_in_groups.has_tables();
            if let Some(IdGroups { between, .. }) = comm.groups.as_mut().filter(|_| sums_tiles) {
                self.touched_in_groups.exchange(between, slots, &self.ids.jagged)?;
            }
        }
        if !layout.as_given && !layout.local.is_empty() {
            let (slots, any_mean) = (&layout.local, layout.any_local_mean);
            self.own_parcel.clear(1);
            self.own_parcel.pack(0, slots, sparse, any_mean);
            self.own_parcel.put_together(slots.len(), any_mean, has_weights, &mut self.own);
        }
        if batch_use == BatchUse::Training && !layout.replica_rows.is_empty() {
            let jagged = if layout.as_given { sparse } else { &self.own.jagged };
            return self.touched.exchange(comm.all(), &layout.local, jagged);
        }
        Ok(())
    }
}

/// Checks that every id of `sparse` is a row of its table.
///
/// # Errors
/// [`Error::RowOutOfRange`] names table, feature, sample and id.
pub fn check_ids(
    layout: &SlotLayout,
    sparse: &JaggedTensor,
    first_sample: usize,
) -> Result<(), Error> {
    for (feature, table) in layout.features.iter().enumerate() {
        let ids = sparse.feature(feature);
        // Negative ids become huge as `u64` and fail the same comparison.
        let Some(at) = sparse.values[ids.clone()].iter().position(|&id| id as u64 >= table.rows)
        else {
            continue;
        };
        let at = ids.start + at;
        let ends = &sparse.offsets[feature * sparse.batch_size + 1..];
        let sample = ends.partition_point(|&end| end <= at);
        return Err(Error::RowOutOfRange {
            table: table.table.clone(),
            feature,
            sample: first_sample + sample,
            id: sparse.values[at],
            rows: table.rows,
        });
    }
    Ok(())
}

/// Clears the buffers and provides one of them per rank.
fn for_each_rank<T>(size: usize, buffers: &mut Vec<Vec<T>>) {
    buffers.resize_with(size, Vec::new);
    buffers.iter_mut().for_each(Vec::clear);
}

impl Parcels {
    /// Clears the buffers and provides one of each kind per rank.
    fn clear(&mut self, ranks: usize) {
        for_each_rank(ranks, &mut self.lengths);
        for_each_rank(ranks, &mut self.values);
        for_each_rank(ranks, &mut self.scales);
        for_each_rank(ranks, &mut self.weights);
    }

    /// Exchanges the ids with all ranks.
    fn exchange(
        &mut self,
        comm: &mut Communicator,
        has_scales: bool,
        has_weights: bool,
    ) -> Result<(), Error> {
        comm.all_to_all(&mut self.lengths)?;
        comm.all_to_all(&mut self.values)?;
        if has_scales {
            comm.all_to_all(&mut self.scales)?;
        }
        if has_weights {
            comm.all_to_all(&mut self.weights)?;
        }
        Ok(())
    }

    /// Packs the ids that `rank` needs for its `slots`.
    fn pack(&mut self, rank: usize, slots: &[Slot], sparse: &JaggedTensor, any_mean: bool) {
        let mut parcel = Parcel {
            lengths: &mut self.lengths[rank],
            values: &mut self.values[rank],
            weights: &mut self.weights[rank],
        };
        for slot in slots {
            // A tile with all rows takes every id of its feature, so one copy replaces a test per
            // id.
            if slot.all_rows && slot.position.is_none() {
                pack_whole(slot, sparse, &mut parcel);
            } else {
                pack_rows(slot, sparse, &mut parcel);
            }
            if any_mean {
                let scale = |sample| bag_scale(slot, positions(slot, sparse, sample).len());
                self.scales[rank].extend((0..sparse.batch_size).map(scale));
            }
        }
    }

    /// Reorders the received ids from source-major to slot-major, so that the samples of all ranks
    /// are side by side under each slot.
    fn put_together(
        &mut self,
        slots: usize,
        has_scales: bool,
        has_weights: bool,
        ids: &mut LocalIds,
    ) {
        let Self { lengths, values, scales, weights, taken } = self;
        let LocalIds { jagged, scales: scales_out, batch_sizes } = ids;
        batch_sizes.clear();
        let samples = |lengths: &Vec<i32>| lengths.len().checked_div(slots).unwrap_or(0);
        // Every slot has one length per sample, so the number of lengths gives a rank's number of
        // samples.
        batch_sizes.extend(lengths.iter().map(samples));
        (jagged.features, jagged.batch_size) = (slots, batch_sizes.iter().sum());
        jagged.offsets.clear();
        jagged.offsets.push(0);
        jagged.values.clear();
        let mut weights_out = has_weights.then(|| jagged.weights.take().unwrap_or_default());
        let mut all_scales = has_scales.then(|| scales_out.take().unwrap_or_default());
        weights_out.iter_mut().chain(&mut all_scales).for_each(Vec::clear);
        taken.clear();
        taken.resize(batch_sizes.len(), 0);
        let (mut end, is_alone) = (0, batch_sizes.len() == 1);
        for slot in 0..slots {
            for (source, &samples) in batch_sizes.iter().enumerate() {
                let (bags, start) = (slot * samples..(slot + 1) * samples, taken[source]);
                for &length in &lengths[source][bags.clone()] {
                    end += length as usize;
                    taken[source] += length as usize;
                    jagged.offsets.push(end);
                }
                if is_alone {
                    continue;
                }
                let run = start..taken[source];
                jagged.values.extend_from_slice(&values[source][run.clone()]);
                if let Some(out) = &mut weights_out {
                    out.extend_from_slice(&weights[source][run]);
                }
                if let Some(out) = &mut all_scales {
                    out.extend_from_slice(&scales[source][bags]);
                }
            }
        }
        if is_alone {
            // With a single rank the order is already slot-major, so the buffers are swapped
            // without a copy.
            std::mem::swap(&mut jagged.values, &mut values[0]);
            weights_out.iter_mut().for_each(|out| std::mem::swap(out, &mut weights[0]));
            all_scales.iter_mut().for_each(|out| std::mem::swap(out, &mut scales[0]));
        }
        (jagged.weights, *scales_out) = (weights_out, all_scales);
    }
}

/// The buffers with the data that is sent to one rank.
struct Parcel<'a> {
    lengths: &'a mut Vec<i32>,
    values: &'a mut Vec<i64>,
    weights: &'a mut Vec<f32>,
}

/// Returns where the ids of one pooled vector lie in a sample's list of ids. A pooled feature uses
/// its whole bag, and a position of a sequence uses one id or, if the sequence is shorter, none.
fn positions(slot: &Slot, sparse: &JaggedTensor, sample: usize) -> Range<usize> {
    let bag = sparse.bag(slot.feature, sample);
    match slot.position {
        None => bag,
        Some(position) => {
            let at = bag.start + position;
            at.min(bag.end)..(at + 1).min(bag.end)
        }
    }
}

fn bag_scale(slot: &Slot, length: usize) -> f32 {
    if slot.mean && length > 0 { 1.0 / length as f32 } else { 1.0 }
}

fn pack_whole(slot: &Slot, sparse: &JaggedTensor, parcel: &mut Parcel<'_>) {
    let length = |sample| sparse.bag(slot.feature, sample).len() as i32;
    parcel.lengths.extend((0..sparse.batch_size).map(length));
    let ids = sparse.feature(slot.feature);
    parcel.values.extend_from_slice(&sparse.values[ids.clone()]);
    if let Some(weights) = &sparse.weights {
        parcel.weights.extend_from_slice(&weights[ids]);
    }
}

fn pack_rows(slot: &Slot, sparse: &JaggedTensor, parcel: &mut Parcel<'_>) {
    for sample in 0..sparse.batch_size {
        let before = parcel.values.len();
        for position in positions(slot, sparse, sample) {
            let id = sparse.values[position];
            if slot.rows.contains(&id) {
                parcel.values.push(id - slot.rows.start);
                if let Some(weights) = &sparse.weights {
                    parcel.weights.push(weights[position]);
                }
            }
        }
        parcel.lengths.push((parcel.values.len() - before) as i32);
    }
}
