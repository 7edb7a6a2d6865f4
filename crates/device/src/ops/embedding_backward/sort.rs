//! Second phase: a stable radix sort of the pairs by row, on the bits that a row number needs.
//! Knows nothing of what the pairs mean.
#![expect(unsafe_code, reason = "chunks scatter to places that their counts keep apart")]

use std::ops::Range;

use super::Scratch;
use crate::cpu::{DisjointMut, Pool};

/// Widest digit: its counts and the ends of its output runs fit in the second-level cache.
const DIGIT_BITS: u32 = 11;

/// Fewest pairs per chunk; below that, counting costs more than it spreads.
const PAIRS_PER_CHUNK: usize = 8192;

/// Most chunks, which bounds the memory and the serial work of the counts.
const CHUNKS: usize = 64;

/// Batches that a comparison sort finishes before a radix sort has cleared its counts.
const SMALL: usize = 512;

/// Sorts `scratch.pairs` by the bits `key`; pairs of equal keys keep their order.
pub(super) fn run(pool: &Pool, key: Range<u32>, scratch: &mut Scratch) {
    let len = scratch.pairs.len();
    if len <= SMALL {
        scratch.pairs.sort_by_key(|pair| pair >> key.start);
        return;
    }
    scratch.spare.resize(len, 0);
    let passes = (key.end - key.start).div_ceil(DIGIT_BITS);
    let width = (key.end - key.start).div_ceil(passes.max(1));
    for pass in 0..passes {
        let low = key.start + pass * width;
        let digit = Digit { low, bits: width.min(key.end - low) };
        sort_by_digit(pool, digit, scratch);
        std::mem::swap(&mut scratch.pairs, &mut scratch.spare);
    }
}

#[derive(Clone, Copy)]
struct Digit {
    low: u32,
    bits: u32,
}

impl Digit {
    #[inline(always)]
    fn of(self, pair: u64) -> usize {
        (pair >> self.low) as usize & ((1 << self.bits) - 1)
    }
}

/// One pass: counts per chunk, first places, scatter from `pairs` to `spare`.
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
            counts[digit.of(pair)] += 1;
        }
    });
    counts_to_places(counts, digits);
    let spare = DisjointMut::new(spare);
    pool.run_slices(counts, digits, |chunk, places| {
        for &pair in chunk_of(chunk) {
            let place = &mut places[digit.of(pair)];
            // SAFETY: the places of one (chunk, digit) are the run that its count reserved, so each
            // place below `len` is written by one chunk, once.
            unsafe { spare.part(*place..*place + 1)[0] = pair };
            *place += 1;
        }
    });
}

/// Turns counts `[chunks, digits]` into first places: by digit, then by chunk.
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

    /// Sorts `len` pairs of `rows` rows and compares with the standard library's stable sort.
    fn check(threads: usize, len: usize, rows: u64, payload_bits: u32) {
        let rng = CounterRng::new(len as u64, rows);
        let pair = |i: usize| rng.below(i as u64, rows) << payload_bits | i as u64;
        let mut scratch = Scratch { pairs: (0..len).map(pair).collect(), ..Scratch::default() };
        let mut expected = scratch.pairs.clone();
        expected.sort_by_key(|pair| pair >> payload_bits);
        let bits = super::super::bits_below(rows as usize);
        run(&Pool::new(threads), payload_bits..payload_bits + bits, &mut scratch);
        assert!(scratch.pairs == expected, "{threads} threads, {len} pairs, {rows} rows");
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
