//! The oracles of splitting and joining ids, which visit one bag after the other.

use schema::JaggedTensor;

use super::message::LocalIds;
use super::slot::IdSlot;

/// Returns the ids of a batch for some slots, with one key per slot, and the scales of the bags.
#[must_use]
pub fn split(slots: &[IdSlot], sparse: &JaggedTensor) -> (JaggedTensor, Vec<f32>) {
    let (mut lengths, mut positions, mut ids, mut scales) = (vec![], vec![], vec![], vec![]);
    for slot in slots {
        for sample in 0..sparse.batch_size {
            let before = ids.len();
            for position in slot.positions(sparse, sample) {
                let id = sparse.values[position];
                if slot.rows.contains(&id) {
                    positions.push(position);
                    ids.push(id - slot.rows.start);
                }
            }
            lengths.push(ids.len() - before);
            scales.push(slot.bag_scale(slot.positions(sparse, sample).len()));
        }
    }
    let weight = |weights: &Vec<f32>| positions.iter().map(|&at| weights[at]).collect();
    let weights = sparse.weights.as_ref().map(weight);
    let jagged = JaggedTensor::from_lengths(slots.len(), &lengths, ids);
    (JaggedTensor { weights, batch_size: sparse.batch_size, ..jagged }, scales)
}

/// Joins the ids that each rank split off for the same slots, and the scales of their bags.
#[must_use]
pub fn join(sent: &[(JaggedTensor, Vec<f32>)]) -> LocalIds {
    let slots = sent.first().map_or(0, |(first, _)| first.features);
    let (mut lengths, mut ids, mut weights, mut all_scales) = (vec![], vec![], vec![], vec![]);
    for slot in 0..slots {
        for (jagged, scales) in sent {
            let bags = slot * jagged.batch_size..(slot + 1) * jagged.batch_size;
            lengths.extend(bags.clone().map(|bag| jagged.offsets[bag + 1] - jagged.offsets[bag]));
            ids.extend_from_slice(&jagged.values[jagged.feature(slot)]);
            weights.extend(jagged.weights.iter().flat_map(|all| &all[jagged.feature(slot)]));
            all_scales.extend_from_slice(&scales[bags]);
        }
    }
    let has_weights = sent.iter().all(|(jagged, _)| jagged.weights.is_some());
    let jagged = JaggedTensor::from_lengths(slots, &lengths, ids);
    let batch_size = sent.iter().map(|(jagged, _)| jagged.batch_size).sum();
    let weights = has_weights.then_some(weights);
    LocalIds { jagged: JaggedTensor { weights, batch_size, ..jagged }, scales: Some(all_scales) }
}
