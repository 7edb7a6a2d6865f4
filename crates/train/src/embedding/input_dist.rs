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

use comm::Communicator;
use schema::JaggedTensor;

use super::layout::{Slot, SlotLayout};
use super::touched_rows::TouchedRows;
use crate::Error;
use crate::lane::Exchange;
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
    type Comm = Communicator;

    // The thread of the lane also splits the ids by owner, which takes longer than sending them.
    fn start(&mut self, _: &mut Communicator) -> Result<(), Error> {
        Ok(())
    }

    fn finish(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        let Some(RankBatch { batch, first_sample }) = self.batch.take() else { return Ok(()) };
        self.run(comm, &batch.sparse, first_sample, BatchUse::Training)
    }
}

impl IdExchange {
    /// Creates an exchange with empty buffers.
    #[must_use]
    pub fn new(layout: Arc<SlotLayout>) -> Self {
        let touched = TouchedRows::new(&layout.replica_rows);
        Self { layout, touched, ..Self::default() }
    }

    /// Sends the ids of `sparse` to the owners of their rows, and writes the ids that this rank
    /// owns to [`Self::ids`]. Ids for whole tables go to [`Self::own`]. For a training step, ranks
    /// also exchange the rows of replicated tables that they look up. `sparse` has this rank's
    /// samples, which begin at `first_sample` of the global batch.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`] names table, feature, sample and id before anything is sent.
    /// [`Error::Communication`] if a peer left.
    pub fn run(
        &mut self,
        comm: &mut Communicator,
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
            self.parcels.exchange(comm, layout.any_mean, has_weights)?;
            let slots = layout.slots[comm.rank().index()].len();
            self.parcels.put_together(slots, layout.any_mean, has_weights, &mut self.ids);
        }
        if !layout.as_given && !layout.local.is_empty() {
            let (slots, any_mean) = (&layout.local, layout.any_local_mean);
            self.own_parcel.clear(1);
            self.own_parcel.pack(0, slots, sparse, any_mean);
            self.own_parcel.put_together(slots.len(), any_mean, has_weights, &mut self.own);
        }
        if batch_use == BatchUse::Training && !layout.replica_rows.is_empty() {
            let jagged = if layout.as_given { sparse } else { &self.own.jagged };
            return self.touched.exchange(comm, &layout.local, jagged);
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
        if slots.is_empty() {
            // The rank still adds up vectors of its host for these samples.
            parcel.lengths.push(sparse.batch_size as i32);
        }
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
        // Every slot has one length per sample, so the number of lengths gives a rank's number of
        // samples. Without slots, the only value is this number.
        let samples = |lengths: &Vec<i32>| match slots {
            0 => lengths.first().map_or(0, |&samples| samples as usize),
            _ => lengths.len() / slots,
        };
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
