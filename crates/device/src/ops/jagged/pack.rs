//! Packs the ids of a slot into the message of its rank, on the CPU.

use schema::JaggedTensor;

use super::message::IdMessages;
use super::slot::IdSlot;

/// The buffers of the message to one rank.
struct MessageBuffers<'a> {
    lengths: &'a mut Vec<i32>,
    values: &'a mut Vec<i64>,
    weights: &'a mut Vec<f32>,
}

/// Appends the ids that `rank` needs for its `slots` to its message.
pub(super) fn pack(
    messages: &mut IdMessages,
    rank: usize,
    slots: &[IdSlot],
    sparse: &JaggedTensor,
    has_scales: bool,
) {
    let mut buffers = MessageBuffers {
        lengths: &mut messages.lengths[rank],
        values: &mut messages.values[rank],
        weights: &mut messages.weights[rank],
    };
    for slot in slots {
        // A tile with all rows takes every id of its feature, so one copy replaces a test per id.
        if slot.all_rows && slot.position.is_none() {
            pack_whole(slot, sparse, &mut buffers);
        } else {
            pack_rows(slot, sparse, &mut buffers);
        }
        if has_scales {
            let scale = |sample| slot.bag_scale(slot.positions(sparse, sample).len());
            messages.scales[rank].extend((0..sparse.batch_size).map(scale));
        }
    }
}

fn pack_whole(slot: &IdSlot, sparse: &JaggedTensor, buffers: &mut MessageBuffers<'_>) {
    let length = |sample| sparse.bag(slot.feature, sample).len() as i32;
    buffers.lengths.extend((0..sparse.batch_size).map(length));
    let ids = sparse.feature(slot.feature);
    buffers.values.extend_from_slice(&sparse.values[ids.clone()]);
    if let Some(weights) = &sparse.weights {
        buffers.weights.extend_from_slice(&weights[ids]);
    }
}

fn pack_rows(slot: &IdSlot, sparse: &JaggedTensor, buffers: &mut MessageBuffers<'_>) {
    for sample in 0..sparse.batch_size {
        let before = buffers.values.len();
        for position in slot.positions(sparse, sample) {
            let id = sparse.values[position];
            if slot.rows.contains(&id) {
                buffers.values.push(id - slot.rows.start);
                if let Some(weights) = &sparse.weights {
                    buffers.weights.push(weights[position]);
                }
            }
        }
        buffers.lengths.push((buffers.values.len() - before) as i32);
    }
}
