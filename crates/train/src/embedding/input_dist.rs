//! Ids to their owners: checks, cuts by tile, sends, and puts together what arrived.
//!
//! Three rounds of all-to-all (lengths, ids, and where needed scales and weights); counts follow
//! from the lengths, so no round of sizes comes first. Ids beyond the length of a sequence are
//! checked like the others, and not sent. Knows nothing of weights or optimizers.

use std::ops::Range;

use comm::Communicator;
use schema::KeyedJaggedTensor;

use super::layout::{Layout, Slot};
use crate::Error;

/// The ids of all ranks' samples for the tiles of this rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LocalIds {
    /// One key per slot of this rank; samples of rank 0 first, then of rank 1, …; ids local to the
    /// tile.
    pub jagged: KeyedJaggedTensor,
    /// One factor per bag, `[slots, B_global]`, where the model averages.
    pub scales: Option<Vec<f32>>,
    /// Samples of each rank.
    pub batch_sizes: Vec<usize>,
}

impl LocalIds {
    /// Bytes of so many ids, in so many bags of which so many have a factor.
    pub(super) fn bytes(ids: usize, bags: usize, scales: usize) -> usize {
        ids * size_of::<i64>() + (bags + 1) * size_of::<usize>() + scales * size_of::<f32>()
    }
}

/// Bytes of such ids as they arrive, until they are put together.
pub(super) fn arriving_bytes(ids: usize, bags: usize, scales: usize) -> usize {
    ids * size_of::<i64>() + bags * size_of::<i32>() + scales * size_of::<f32>()
}

/// What one rank sends to one other.
#[derive(Default)]
struct Parcel {
    lengths: Vec<i32>,
    values: Vec<i64>,
    scales: Vec<f32>,
    weights: Vec<f32>,
}

/// Sends the ids of `sparse` (this rank's samples, from `first_sample` of the global batch on) to
/// the owners of their rows and returns the ids this rank owns.
///
/// # Errors
/// [`Error::RowOutOfRange`] naming table, feature, sample and id, before anything is sent;
/// [`Error::Communication`] where a peer left.
pub fn exchange(
    layout: &Layout,
    comm: &mut Communicator,
    sparse: &KeyedJaggedTensor,
    first_sample: usize,
) -> Result<LocalIds, Error> {
    check_ids(layout, sparse, first_sample)?;
    let mut parcels: Vec<Parcel> =
        layout.slots.iter().map(|slots| pack(slots, sparse, layout.any_mean)).collect();
    let mut take = |part: fn(&mut Parcel) -> Vec<f32>| parcels.iter_mut().map(part).collect();
    let mut scales: Vec<Vec<f32>> = take(|parcel| std::mem::take(&mut parcel.scales));
    let mut weights: Vec<Vec<f32>> = take(|parcel| std::mem::take(&mut parcel.weights));
    let (mut lengths, mut values): (Vec<_>, Vec<_>) =
        parcels.into_iter().map(|parcel| (parcel.lengths, parcel.values)).unzip();
    comm.all_to_all(&mut lengths)?;
    comm.all_to_all(&mut values)?;
    if layout.any_mean {
        comm.all_to_all(&mut scales)?;
    }
    if sparse.weights.is_some() {
        comm.all_to_all(&mut weights)?;
    }
    let received = Received {
        slots: layout.slots[comm.rank().index()].len(),
        lengths,
        values,
        scales: layout.any_mean.then_some(scales),
        weights: sparse.weights.is_some().then_some(weights),
    };
    Ok(received.put_together())
}

/// Whether every id of `sparse` names a row of its table.
///
/// # Errors
/// [`Error::RowOutOfRange`] naming table, feature, sample and id.
pub fn check_ids(
    layout: &Layout,
    sparse: &KeyedJaggedTensor,
    first_sample: usize,
) -> Result<(), Error> {
    for (feature, table) in layout.features.iter().enumerate() {
        let ids = sparse.feature(feature);
        // Negative ids become huge and fail the same comparison.
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

fn pack(slots: &[Slot], sparse: &KeyedJaggedTensor, any_mean: bool) -> Parcel {
    let mut parcel = Parcel::default();
    for slot in slots {
        if slot.all_rows && slot.position.is_none() {
            pack_whole(slot, sparse, &mut parcel);
        } else {
            pack_rows(slot, sparse, &mut parcel);
        }
        if any_mean {
            let scale = |sample| bag_scale(slot, positions(slot, sparse, sample).len());
            parcel.scales.extend((0..sparse.batch_size).map(scale));
        }
    }
    parcel
}

/// Where the ids of a slot's bag are: all of the sample's, or the one of a position, if there is
/// one.
fn positions(slot: &Slot, sparse: &KeyedJaggedTensor, sample: usize) -> Range<usize> {
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

fn pack_whole(slot: &Slot, sparse: &KeyedJaggedTensor, parcel: &mut Parcel) {
    let length = |sample| sparse.bag(slot.feature, sample).len() as i32;
    parcel.lengths.extend((0..sparse.batch_size).map(length));
    let ids = sparse.feature(slot.feature);
    parcel.values.extend_from_slice(&sparse.values[ids.clone()]);
    if let Some(weights) = &sparse.weights {
        parcel.weights.extend_from_slice(&weights[ids]);
    }
}

fn pack_rows(slot: &Slot, sparse: &KeyedJaggedTensor, parcel: &mut Parcel) {
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

/// What arrived, one entry per source rank, each slot-major over that rank's samples.
struct Received {
    slots: usize,
    lengths: Vec<Vec<i32>>,
    values: Vec<Vec<i64>>,
    scales: Option<Vec<Vec<f32>>>,
    weights: Option<Vec<Vec<f32>>>,
}

impl Received {
    /// From source-major to slot-major: the samples of all ranks side by side under each slot.
    fn put_together(self) -> LocalIds {
        let batch = |lengths: &Vec<i32>| lengths.len().checked_div(self.slots).unwrap_or(0);
        let batch_sizes: Vec<usize> = self.lengths.iter().map(batch).collect();
        let batch_size = batch_sizes.iter().sum();
        let mut offsets = Vec::with_capacity(self.slots * batch_size + 1);
        offsets.push(0);
        let mut end = 0;
        // Ids of each slot from each source, in the order they are wanted.
        let mut runs = Vec::with_capacity(self.slots * batch_sizes.len());
        let mut taken = vec![0; batch_sizes.len()];
        for slot in 0..self.slots {
            for (source, &samples) in batch_sizes.iter().enumerate() {
                let start = taken[source];
                for &length in &self.lengths[source][slot * samples..(slot + 1) * samples] {
                    end += length as usize;
                    taken[source] += length as usize;
                    offsets.push(end);
                }
                runs.push((source, start..taken[source]));
            }
        }
        let per_bag = |source: usize, slot: usize| {
            slot * batch_sizes[source]..(slot + 1) * batch_sizes[source]
        };
        let bags: Vec<_> = (0..self.slots)
            .flat_map(|slot| (0..batch_sizes.len()).map(move |source| (source, slot)))
            .map(|(source, slot)| (source, per_bag(source, slot)))
            .collect();
        LocalIds {
            jagged: KeyedJaggedTensor {
                features: self.slots,
                batch_size,
                offsets,
                values: in_order(self.values, &runs),
                weights: self.weights.map(|weights| in_order(weights, &runs)),
            },
            scales: self.scales.map(|scales| in_order(scales, &bags)),
            batch_sizes,
        }
    }
}

/// The pieces `runs` of `parts`, one after the other; a lone part is its own order.
fn in_order<T: Copy>(mut parts: Vec<Vec<T>>, runs: &[(usize, Range<usize>)]) -> Vec<T> {
    if parts.len() == 1 {
        return parts.remove(0);
    }
    let mut out = Vec::with_capacity(parts.iter().map(Vec::len).sum());
    for (source, run) in runs {
        out.extend_from_slice(&parts[*source][run.clone()]);
    }
    out
}
