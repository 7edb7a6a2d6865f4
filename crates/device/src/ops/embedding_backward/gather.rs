//! First phase: one (row, bag) pair per id, in `values` order, and the check of every id.
//! Knows nothing of gradients.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Numbering, Scratch};
use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::slot::{Lookup, TileShape, first_bad};

/// Positions per chunk.
const POSITIONS_PER_CHUNK: usize = 8192;

/// Fills `scratch.pairs` (and `scratch.bags` for weighted lookups).
///
/// # Errors
/// [`Error::RowOutOfRange`] for the first bad id; only scratch has been written then.
pub(super) fn run<'a, Shape: Fn(usize) -> TileShape<'a> + Sync>(
    cpu: &Cpu,
    lookup: &Lookup<'a, Shape>,
    numbering: &Numbering,
    scratch: &mut Scratch,
) -> Result<(), Error> {
    let jagged = lookup.jagged;
    let weighted = jagged.weights.is_some();
    scratch.pairs.resize(jagged.values.len(), 0);
    scratch.bags.resize(if weighted { jagged.values.len() } else { 0 }, 0);
    let first_bad_position = AtomicUsize::new(usize::MAX);
    cpu.pool.run_slices(&mut scratch.pairs, POSITIONS_PER_CHUNK, |chunk, pairs| {
        let start = chunk * POSITIONS_PER_CHUNK;
        for_each_bag(&jagged.offsets, start..start + pairs.len(), |bag, positions| {
            let tile = lookup.slots[bag / jagged.batch_size].tile;
            let ids = &jagged.values[positions.clone()];
            if let Some(bad) = first_bad(ids, (lookup.shape)(tile).rows) {
                first_bad_position.fetch_min(positions.start + bad, Ordering::Relaxed);
                return;
            }
            let first_row = numbering.first_rows[tile];
            let out = &mut pairs[positions.start - start..positions.end - start];
            for (offset, (pair, &id)) in out.iter_mut().zip(ids).enumerate() {
                let payload = if weighted { positions.start + offset } else { bag };
                *pair =
                    ((first_row + id as usize) as u64) << numbering.payload_bits | payload as u64;
            }
        });
    });
    cpu.pool.run_slices(&mut scratch.bags, POSITIONS_PER_CHUNK, |chunk, bags| {
        let start = chunk * POSITIONS_PER_CHUNK;
        for_each_bag(&jagged.offsets, start..start + bags.len(), |bag, positions| {
            bags[positions.start - start..positions.end - start].fill(bag);
        });
    });
    match first_bad_position.into_inner() {
        usize::MAX => Ok(()),
        position => Err(lookup.row_out_of_range(position)),
    }
}

/// Calls `visit` with each bag that has ids among `positions`, and with those positions.
#[inline]
fn for_each_bag(
    offsets: &[usize],
    positions: Range<usize>,
    mut visit: impl FnMut(usize, Range<usize>),
) {
    let mut bag = offsets.partition_point(|&offset| offset <= positions.start) - 1;
    let mut at = positions.start;
    while at < positions.end {
        let end = offsets[bag + 1].min(positions.end);
        if at < end {
            visit(bag, at..end);
            at = end;
        }
        bag += 1;
    }
}
