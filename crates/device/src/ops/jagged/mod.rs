//! What a rank computes itself when ranks exchange ids. [`split`] writes a message for each rank,
//! with the ids of the rows that this rank owns. [`join`] merges the messages that arrived. On a
//! GPU, the kernels of this folder also copy columns of matrices.
//!
//! Other code checks the ids and sends the messages. The functions here run on the calling thread,
//! because a communication thread calls them beside the computation.

pub mod cuda;
mod message;
mod pack;
pub mod scalar;
mod slot;

pub use message::{IdCounts, IdMessages, LocalIds};
use schema::JaggedTensor;
pub use slot::{IdLayout, IdSlot};

/// Splits the ids of a batch by slot: `messages` of rank `r` has, for every slot of `r` and every
/// sample, the ids that are rows of the slot's tile, in their order.
///
/// # Shapes
/// `lengths` and `scales` of rank `r` `[slots of r, B]`; `values` and `weights` `[ids of r]`.
/// # Cost
/// Bandwidth-bound: reads the ids of a feature once per tile of its table.
/// # Numerics
/// The result is bit-identical to that of [`scalar::split`].
pub fn split(layout: &IdLayout, sparse: &JaggedTensor, messages: &mut IdMessages) {
    messages.clear(layout.slots.len(), sparse.batch_size, sparse.weights.is_some());
    for (rank, slots) in layout.slots.iter().enumerate() {
        pack::pack(messages, rank, slots, sparse, layout.has_scales);
    }
}

/// Joins the ids that all ranks sent for the slots of this rank. They arrive grouped
/// by sender, and are returned grouped by slot, with the samples of all senders in rank order.
///
/// # Cost
/// Bandwidth-bound: reads and writes every id once. Nothing is copied if there is one rank.
/// # Numerics
/// The result is bit-identical to that of [`scalar::join`].
pub fn join(
    layout: &IdLayout,
    messages: &mut IdMessages,
    ids: &mut LocalIds,
    counts: &mut IdCounts,
) {
    let IdMessages { lengths, values, scales, weights, has_weights, samples, taken } = messages;
    let LocalIds { jagged, scales: scales_out } = ids;
    let slots = layout.slots[layout.own].len();
    let IdCounts { batch_sizes, ids_per_slot } = counts;
    batch_sizes.clone_from(samples);
    ids_per_slot.clear();
    (jagged.features, jagged.batch_size) = (slots, batch_sizes.iter().sum());
    jagged.offsets.clear();
    jagged.offsets.push(0);
    jagged.values.clear();
    let mut weights_out = has_weights.then(|| jagged.weights.take().unwrap_or_default());
    let mut all_scales = layout.has_scales.then(|| scales_out.take().unwrap_or_default());
    weights_out.iter_mut().chain(&mut all_scales).for_each(Vec::clear);
    taken.clear();
    taken.resize(batch_sizes.len(), 0);
    let (mut end, is_alone) = (0, batch_sizes.len() == 1);
    for slot in 0..slots {
        let slot_start = end;
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
        ids_per_slot.push(end - slot_start);
    }
    if is_alone {
        // With a single rank the order is already slot-major, so the buffers are swapped without a
        // copy.
        std::mem::swap(&mut jagged.values, &mut values[0]);
        weights_out.iter_mut().for_each(|out| std::mem::swap(out, &mut weights[0]));
        all_scales.iter_mut().for_each(|out| std::mem::swap(out, &mut scales[0]));
    }
    (jagged.weights, *scales_out) = (weights_out, all_scales);
}
