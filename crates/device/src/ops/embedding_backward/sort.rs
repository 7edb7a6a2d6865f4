//! Second phase of the embedding backward: a stable radix sort of the pairs by the bits of their
//! row number. The sort does not depend on what the other bits mean.
#![expect(unsafe_code, reason = "each chunk writes its own positions of a shared array")]

use std::ops::Range;

use super::scratch::Scratch;
use crate::cpu::{DisjointMut, Pool};

/// Number of bits in the widest digit. The counts of such a digit and the ends of its output runs
/// fit in the second-level cache.
const DIGIT_BITS: u32 = 11;

/// Smallest number of pairs per chunk. With fewer pairs, counting costs more than parallel work
/// saves.
const PAIRS_PER_CHUNK: usize = 8192;

/// Largest number of chunks, which limits the memory and the serial work of the counts.
const CHUNKS: usize = 64;

/// Largest group that a comparison sort sorts, like [`SMALL`], but for groups that one thread
/// sorts.
const SMALL_GROUP: usize = 256;

/// Largest batch for which a comparison sort ends before a radix sort has cleared its counts.
const SMALL: usize = 512;

/// The pairs of one tile, which are contiguous before and after the sort.
#[derive(Clone, Debug)]
pub(super) struct TilePairs {
    pub pairs: Range<usize>,
    /// Number of the tile's first row, counted over all tiles.
    pub first_row: u64,
    /// Number of bits of the tile's row numbers, relative to its first row.
    pub bits: u32,
}

/// Sorts `scratch.pairs` by the bits `key`. Pairs with equal keys keep their order.
///
/// A stable sort has only one result, so the method may depend on the number of threads. If there
/// are enough groups of similar size, each thread sorts its own groups, in its own cache and on
/// fewer bits.
pub(super) fn run(pool: &Pool, key: Range<u32>, groups: &[TilePairs], scratch: &mut Scratch) {
    let len = scratch.pairs.len();
    let longest = groups.iter().map(|group| group.pairs.len()).max().unwrap_or(len);
    if len > SMALL && !groups.is_empty() && longest * pool.threads() <= len {
        return sort_groups(pool, key.start, groups, scratch);
    }
    if len <= SMALL {
        scratch.pairs.sort_by_key(|pair| pair >> key.start);
        return;
    }
    scratch.spare.resize(len, 0);
    let passes = (key.end - key.start).div_ceil(DIGIT_BITS);
    // The bits are divided evenly among the passes, so that no digit is wider than necessary.
    let width = (key.end - key.start).div_ceil(passes.max(1));
    for pass in 0..passes {
        let low = key.start + pass * width;
        let digit = Digit { low, bits: width.min(key.end - low) };
        sort_by_digit(pool, digit, scratch);
        std::mem::swap(&mut scratch.pairs, &mut scratch.spare);
    }
}

/// Returns the largest number of bytes that the counts for `len` pairs use.
pub(super) fn count_bytes(len: usize) -> usize {
    (CHUNKS.min(len.div_ceil(PAIRS_PER_CHUNK)) << DIGIT_BITS) * size_of::<usize>()
}

/// Sorts the groups in parallel, each on one thread.
fn sort_groups(pool: &Pool, payload_bits: u32, groups: &[TilePairs], scratch: &mut Scratch) {
    scratch.spare.resize(scratch.pairs.len(), 0);
    let (pairs, spare) =
        (DisjointMut::new(&mut scratch.pairs), DisjointMut::new(&mut scratch.spare));
    pool.run(groups.len(), |index| {
        let TilePairs { pairs: range, first_row, bits } = groups[index].clone();
        // SAFETY: the groups are consecutive ranges of positions, and one chunk sorts each group.
        let (mut from, mut to) = unsafe { (pairs.part(range.clone()), spare.part(range)) };
        if from.len() <= SMALL_GROUP {
            return from.sort_by_key(|pair| pair >> payload_bits);
        }
        let passes = bits.div_ceil(DIGIT_BITS);
        let width = bits.div_ceil(passes.max(1));
        for pass in 0..passes {
            let low = pass * width;
            let mask = (1usize << width.min(bits - low)) - 1;
            let digit = |pair: u64| (((pair >> payload_bits) - first_row) >> low) as usize & mask;
            scatter(from, to, digit);
            std::mem::swap(&mut from, &mut to);
        }
        // After an odd number of passes, the sorted pairs are in the spare buffer.
        if passes % 2 == 1 {
            to.copy_from_slice(from);
        }
    });
}

/// Makes one pass of the radix sort over a group: counts digits, finds first positions, scatters.
#[inline(always)]
fn scatter(from: &[u64], to: &mut [u64], digit: impl Fn(u64) -> usize) {
    let mut places = [0usize; 1 << DIGIT_BITS];
    for &pair in from {
        places[digit(pair)] += 1;
    }
    let mut next = 0;
    for place in &mut places {
        next += std::mem::replace(place, next);
    }
    for &pair in from {
        let place = &mut places[digit(pair)];
        to[*place] = pair;
        *place += 1;
    }
}

/// A digit of the radix sort: its lowest bit in the key, and its width in bits.
#[derive(Clone, Copy)]
struct Digit {
    low: u32,
    bits: u32,
}

impl Digit {
    #[inline(always)]
    fn digit(self, pair: u64) -> usize {
        (pair >> self.low) as usize & ((1 << self.bits) - 1)
    }
}

/// Makes one pass of the radix sort: counts digits per chunk, finds first positions, and scatters
/// the pairs from `pairs` to `spare`.
fn sort_by_digit(pool: &Pool, digit: Digit, scratch: &mut Scratch) {
    let Scratch { pairs, spare, counts, .. } = scratch;
    let digits = 1 << digit.bits;
    let chunk_len = PAIRS_PER_CHUNK.max(pairs.len().div_ceil(CHUNKS));
    let chunk_of =
        |chunk: usize| &pairs[chunk * chunk_len..pairs.len().min((chunk + 1) * chunk_len)];
    counts.clear();
    counts.resize(pairs.len().div_ceil(chunk_len) * digits, 0);
    pool.run_slices(counts, digits, |chunk, counts| {
        for &pair in chunk_of(chunk) {
            counts[digit.digit(pair)] += 1;
        }
    });
    counts_to_places(counts, digits);
    let spare = DisjointMut::new(spare);
    pool.run_slices(counts, digits, |chunk, places| {
        for &pair in chunk_of(chunk) {
            let place = &mut places[digit.digit(pair)];
            // SAFETY: the count of each (chunk, digit) reserved a run of positions below `len`,
            // so each position is written once, by one chunk.
            unsafe { spare.part(*place..*place + 1)[0] = pair };
            *place += 1;
        }
    });
}

/// Converts counts `[chunks, digits]` to first positions, ordered by digit and then by chunk.
fn counts_to_places(counts: &mut [usize], digits: usize) {
    let mut place = 0;
    for digit in 0..digits {
        for count in counts[digit..].iter_mut().step_by(digits) {
            place += std::mem::replace(count, place);
        }
    }
}

#[cfg(test)]
mod tests {
    use schema::random::CounterRng;

    use super::*;

    /// Sorts `len` pairs of `rows` rows and compares the result with the standard library's
    /// stable sort.
    fn check(threads: usize, len: usize, rows: u64, payload_bits: u32) {
        let rng = CounterRng::new(len as u64, rows);
        let pair = |i: usize| rng.below(i as u64, rows) << payload_bits | i as u64;
        let mut scratch = Scratch { pairs: (0..len).map(pair).collect(), ..Scratch::default() };
        let mut expected = scratch.pairs.clone();
        expected.sort_by_key(|pair| pair >> payload_bits);
        let bits = super::super::numbering::bits_below(rows as usize);
        run(&Pool::new(threads), payload_bits..payload_bits + bits, &[], &mut scratch);
        assert!(scratch.pairs == expected, "{threads} threads, {len} pairs, {rows} rows");
    }

    #[test]
    fn groups_are_sorted_apart() {
        let rng = CounterRng::new(4, 4);
        let (mut pairs, mut groups, mut first_row) = (Vec::new(), Vec::new(), 0);
        for (group, rows) in [1u64, 7, 5000, 5000, 1 << 22].into_iter().enumerate() {
            let start = pairs.len();
            let len = [1, 300, 9000, 0, 9000][group];
            let row = |i: u64| first_row + rng.child(group as u64).below(i, rows);
            pairs.extend((0..len).map(|i| row(i) << 20 | (start as u64 + i)));
            let bits = super::super::numbering::bits_below(rows as usize);
            groups.push(TilePairs { pairs: start..pairs.len(), first_row, bits });
            first_row += rows;
        }
        let mut expected = pairs.clone();
        expected.sort_by_key(|pair| pair >> 20);
        let bits = super::super::numbering::bits_below(first_row as usize);
        for threads in [1, 2] {
            let mut scratch = Scratch { pairs: pairs.clone(), ..Scratch::default() };
            run(&Pool::new(threads), 20..20 + bits, &groups, &mut scratch);
            assert!(scratch.pairs == expected, "{threads} threads");
        }
    }

    #[test]
    fn pairs_are_in_row_order_and_equal_rows_keep_theirs() {
        for len in [0, 1, 2, SMALL, SMALL + 1, 20_000, 150_000] {
            for rows in [1, 2, 3, 2048, 2049, 1_000_000, 1 << 40] {
                check(1, len, rows, 18);
            }
        }
        check(3, 150_000, 1_000_000, 18);
        check(7, 600_000, 5, 24);
    }
}
