//! Distributes the third phase of the embedding backward over threads. Rows with many pairs are
//! first summed in parts. Then the rows are updated chunk by chunk with the kernel of the
//! machine's instruction set.
#![expect(unsafe_code, reason = "each chunk writes its own parts of a shared array")]

use std::sync::atomic::{AtomicUsize, Ordering};

use super::scratch::LongSegment;
use super::simd;
use super::tile::{IDS_PER_PART, Updated};
use super::update::{Portable, RowForm, RowKernel, UpdateBatch, UpdateTarget, UpdateWork, tile_of};
use crate::cpu::{Cpu, DisjointMut, Isa};
use crate::optimizer::UpdateRule;

/// Number of sorted pairs per chunk. A chunk updates the rows whose first pair lies inside it.
const PAIRS_PER_CHUNK: usize = 512;

/// Updates all rows of the batch, or carries out the part of it that `form` describes. Returns the
/// numbers of rows, elements and bytes.
pub(super) fn run(
    cpu: &Cpu,
    batch: &UpdateBatch<'_>,
    targets: &[UpdateTarget<'_>],
    rule: UpdateRule,
    form: RowForm<'_>,
    long: &mut Vec<LongSegment>,
    partials: &mut Vec<f32>,
) -> Updated {
    find_long_segments(batch, targets, long);
    sum_parts(cpu, batch, long, partials);
    let work = UpdateWork { batch, targets, rule, form, long, partials };
    let (rows, elements, bytes) = Default::default();
    let add = |sum: &AtomicUsize, value| sum.fetch_add(value, Ordering::Relaxed);
    cpu.pool.run(batch.pairs.len().div_ceil(PAIRS_PER_CHUNK), |chunk| {
        let start = chunk * PAIRS_PER_CHUNK;
        let pairs = start..batch.pairs.len().min(start + PAIRS_PER_CHUNK);
        let updated = match cpu.isa {
            // SAFETY: the portable kernel needs no instruction set, and the pool runs each chunk
            // once.
            Isa::Portable => unsafe { work.update_chunk::<Portable>(pairs) },
            Isa::Avx2(token) => simd::update_chunk_avx2(token, &work, pairs),
            Isa::Avx512(token) => simd::update_chunk_avx512(token, &work, pairs),
        };
        add(&rows, updated.unique_rows);
        add(&elements, updated.unique_elements);
        add(&bytes, updated.unique_bytes);
    });
    Updated {
        unique_rows: rows.into_inner(),
        unique_elements: elements.into_inner(),
        unique_bytes: bytes.into_inner(),
    }
}

/// Finds the rows with more than [`IDS_PER_PART`] pairs. The pairs of each such row cover a
/// position that is a multiple of that number, so only multiples are examined.
fn find_long_segments(
    batch: &UpdateBatch<'_>,
    targets: &[UpdateTarget<'_>],
    long: &mut Vec<LongSegment>,
) {
    long.clear();
    let (mut end, mut first_part, mut partials) = (0, 0, 0);
    for probe in (0..batch.pairs.len()).step_by(IDS_PER_PART) {
        // The probed position belongs to the row that was examined last.
        if probe < end {
            continue;
        }
        let row = batch.row(probe);
        let rank =
            |bound: u64| batch.pairs.partition_point(|pair| pair >> batch.payload_bits < bound);
        let start = rank(row as u64);
        end = rank(row as u64 + 1);
        if end - start > IDS_PER_PART {
            let dim = targets[tile_of(targets, row)].dim;
            let segment = LongSegment { start, end, dim, first_part, partials };
            first_part += segment.parts();
            partials += segment.parts() * dim;
            long.push(segment);
        }
    }
}

/// Sums each part of the long segments separately, in parallel.
fn sum_parts(cpu: &Cpu, batch: &UpdateBatch<'_>, long: &[LongSegment], partials: &mut Vec<f32>) {
    let Some(last) = long.last() else { return };
    partials.resize(last.partials + last.parts() * last.dim, 0.0);
    let sums = DisjointMut::new(partials);
    cpu.pool.run(last.first_part + last.parts(), |part| {
        let segment = &long[long.partition_point(|segment| segment.first_part <= part) - 1];
        let part = part - segment.first_part;
        let start = segment.start + part * IDS_PER_PART;
        let pairs = start..segment.end.min(start + IDS_PER_PART);
        let at = segment.partials + part * segment.dim;
        // SAFETY: `partials` has room for all parts, and only this part uses the range `at..at +
        // dim`.
        let sum = unsafe { sums.part(at..at + segment.dim) };
        match cpu.isa {
            // SAFETY: the portable kernel needs no instruction set.
            Isa::Portable => unsafe { Portable::sum(batch, pairs, sum) },
            Isa::Avx2(token) => simd::sum_avx2(token, batch, pairs, sum),
            Isa::Avx512(token) => simd::sum_avx512(token, batch, pairs, sum),
        }
    });
}
