//! Before the first phase: the gradient of a pooled output, slot by slot.
//!
//! A slot's vectors lie far apart in `[B, Σ D]`, at distances that are often a power of two, so
//! that they compete for a few sets of the second-level cache. Side by side they fit: on a batch of
//! 2048 samples, 8 tables of 64 columns and 32 ids per bag, three interleaved runs of the whole
//! backward reached 59 to 64 % of the read-modify-write limit without the copy and 63 to 74 % with
//! it.
#![expect(unsafe_code, reason = "chunks write different vectors of one array")]

use schema::JaggedTensor;

use crate::cpu::{DisjointMut, Pool};
use crate::ops::slot::{KeyPlace, KeyPlaces};

/// Ids per bag from which on vectors are read often enough to be worth the copy.
const IDS_PER_BAG: usize = 4;

/// Samples of a chunk.
const SAMPLES_PER_CHUNK: usize = 64;

/// Whether vectors of so many slots, bags and ids are read often enough to be worth the copy.
pub(super) fn pays(slots: usize, ids: usize, bags: usize) -> bool {
    slots >= 2 && ids >= IDS_PER_BAG * bags
}

/// Copies `gradient` to `packed` and gives the new places, where that pays.
pub(super) fn run(
    pool: &Pool,
    jagged: &JaggedTensor,
    dims: &[usize],
    gradient: &[f32],
    places: &KeyPlaces,
    packed: &mut Vec<f32>,
) -> Option<KeyPlaces> {
    let samples = jagged.batch_size;
    let pooled = matches!(places.first()?, KeyPlace::Pooled { .. });
    if !pooled || !pays(dims.len(), jagged.values.len(), samples * dims.len()) {
        return None;
    }
    packed.resize(gradient.len(), 0.0);
    let target = KeyPlaces::by_key(dims, samples);
    let out = DisjointMut::new(packed);
    pool.run(samples.div_ceil(SAMPLES_PER_CHUNK), |chunk| {
        let first = chunk * SAMPLES_PER_CHUNK;
        for sample in first..samples.min(first + SAMPLES_PER_CHUNK) {
            for (key, &dim) in dims.iter().enumerate() {
                let from = places.place(key).start(sample, 0);
                let to = target.place(key).start(sample, 0);
                // SAFETY: the places of different keys and samples do not overlap and end at the
                // length of the gradient; each chunk is run once.
                let out = unsafe { out.part(to..to + dim) };
                out.copy_from_slice(&gradient[from..from + dim]);
            }
        }
    });
    Some(target)
}
