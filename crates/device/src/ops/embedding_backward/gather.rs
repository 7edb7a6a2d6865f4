//! First phase of the embedding backward: checks every id and writes one pair per id, in the
//! order of `values`. A pair holds the row and the position of its gradient. Later phases read
//! the gradients.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use schema::JaggedTensor;

use super::numbering::Numbering;
use super::scratch::Scratch;
use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::slot::{KeyPlaces, Lookup, TileShape, first_bad};

/// Number of positions in `values` that one chunk processes.
const POSITIONS_PER_CHUNK: usize = 8192;

/// Fills `scratch.pairs`, and also `scratch.sources` if ids or bags have factors.
///
/// # Errors
/// Fails with [`Error::RowOutOfRange`] for the first bad id. Only scratch memory has been written
/// then.
pub(super) fn run<'a, Shape: Fn(usize) -> TileShape<'a> + Sync>(
    cpu: &Cpu,
    lookup: &Lookup<'a, Shape>,
    numbering: &Numbering,
    places: &KeyPlaces,
    scratch: &mut Scratch,
) -> Result<(), Error> {
    let jagged = lookup.jagged;
    scratch.pairs.resize(jagged.values.len(), 0);
    let sources = if numbering.factors { jagged.values.len() } else { 0 };
    scratch.sources.resize(sources, (0, 0.0));
    let first_bad_position = AtomicUsize::new(usize::MAX);
    cpu.pool.run_slices(&mut scratch.pairs, POSITIONS_PER_CHUNK, |chunk, pairs| {
        let start = chunk * POSITIONS_PER_CHUNK;
        for_each_key(jagged, start..start + pairs.len(), |key, positions| {
            let tile = lookup.slots[key].tile;
            let ids = &jagged.values[positions.clone()];
            if let Some(bad) = first_bad(ids, (lookup.shape)(tile).rows) {
                // The lowest position is reported, whichever thread finds a bad id first.
                first_bad_position.fetch_min(positions.start + bad, Ordering::Relaxed);
                return;
            }
            let (first_row, place) = (numbering.first_rows[tile], places.place(key));
            for_each_bag(jagged, key, positions, |sample, positions| {
                let out = &mut pairs[positions.start - start..positions.end - start];
                let ids = &jagged.values[positions.clone()];
                for (position, (pair, &id)) in positions.zip(out.iter_mut().zip(ids)) {
                    // With factors, the pair holds the id's position, at which `sources` has
                    // place and factor.
                    let payload =
                        if numbering.factors { position } else { place.start(sample, position) };
                    let row = (first_row + id as usize) as u64;
                    *pair = row << numbering.payload_bits | payload as u64;
                }
            });
        });
    });
    // Without factors, `sources` is empty and this loop does nothing.
    cpu.pool.run_slices(&mut scratch.sources, POSITIONS_PER_CHUNK, |chunk, sources| {
        let start = chunk * POSITIONS_PER_CHUNK;
        for_each_key(jagged, start..start + sources.len(), |key, positions| {
            let place = places.place(key);
            for_each_bag(jagged, key, positions, |sample, positions| {
                let bag = key * jagged.batch_size + sample;
                let scale = lookup.bag_scales.map_or(1.0, |scales| scales[bag]);
                let out = &mut sources[positions.start - start..positions.end - start];
                for (position, source) in positions.zip(out) {
                    let weight = jagged.weights.as_ref().map_or(1.0, |weights| weights[position]);
                    *source = (place.start(sample, position), weight * scale);
                }
            });
        });
    });
    match first_bad_position.into_inner() {
        usize::MAX => Ok(()),
        position => Err(lookup.row_out_of_range(position)),
    }
}

/// Calls `visit` with each key that has ids in `positions`, and with the positions of those ids.
#[inline(always)]
fn for_each_key(
    jagged: &JaggedTensor,
    positions: Range<usize>,
    mut visit: impl FnMut(usize, Range<usize>),
) {
    let bag = jagged.offsets.partition_point(|&offset| offset <= positions.start) - 1;
    let (mut key, mut at) = (bag / jagged.batch_size, positions.start);
    while at < positions.end {
        let end = jagged.feature(key).end.min(positions.end);
        if at < end {
            visit(key, at..end);
            at = end;
        }
        key += 1;
    }
}

/// Calls `visit` with the sample of each bag that has ids in `positions`, and with the positions
/// of those ids. All `positions` must belong to `key`.
#[inline(always)]
fn for_each_bag(
    jagged: &JaggedTensor,
    key: usize,
    positions: Range<usize>,
    mut visit: impl FnMut(usize, Range<usize>),
) {
    let ends = &jagged.offsets[key * jagged.batch_size + 1..][..jagged.batch_size];
    let (first, mut at) = (ends.partition_point(|&end| end <= positions.start), positions.start);
    for (sample, &end) in ends.iter().enumerate().skip(first) {
        let end = end.min(positions.end);
        if at < end {
            visit(sample, at..end);
            at = end;
        }
        if at == positions.end {
            return;
        }
    }
}
