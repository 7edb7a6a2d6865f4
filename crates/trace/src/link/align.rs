//! Aligns two similar sequences of names in near-linear time.
//!
//! Runs of names that occur once in both sequences become anchors. The gaps between anchors are
//! aligned by runs that are unique within the gap. Small gaps are aligned by their longest common
//! subsequence.

use std::collections::HashMap;

use super::sequence::{Name, OTHER};

/// Lengths of runs that can become anchors, longest first.
const RUNS: [usize; 5] = [16, 8, 4, 2, 1];
/// Length of the runs of names that vote for the position of a sequence.
const VOTE: usize = 4;
/// Largest number of occurrences of a run that votes, because the position of a frequent run is
/// ambiguous.
const MANY: usize = 64;
/// Largest number of cells in the table for the longest common subsequence.
const CELLS: usize = 1 << 20;
/// Number of names that may be missing before the first anchor and after the last one.
const SLACK: usize = 32;
/// Depth limit of the recursion into gaps.
const DEPTH: usize = 32;

/// Pairs of positions with equal names, ascending in both sequences.
type AlignedPairs = Vec<(usize, usize)>;

/// Returns two measures of how similar the sequences are, 0..=1: the share of the short sequence's
/// runs that also occur in the long one, and the same share of its names.
pub fn likeness(short: &[Name], long: &[Name]) -> [f64; 2] {
    [VOTE.min(short.len()), 1].map(|length| shared(short, long, length))
}

fn shared(short: &[Name], long: &[Name], length: usize) -> f64 {
    if length == 0 || short.len() < length || long.len() < length {
        return 0.0;
    }
    let mut runs: HashMap<&[Name], usize> = HashMap::new();
    for run in short.windows(length) {
        *runs.entry(run).or_default() += 1;
    }
    let all = short.len() + 1 - length;
    let mut matches = 0;
    for run in long.windows(length) {
        // Each run is removed when it matches, so that repetitions in the long sequence are not
        // counted twice.
        matches += runs.remove(run).unwrap_or_default();
    }
    matches as f64 / all as f64
}

/// Aligns two sequences, and returns pairs of positions with equal names, ascending in both. Both
/// ends of the long sequence may stay unmatched. If the long sequence repeats the short one, the
/// best repetition is chosen, and the first one among equally good ones.
pub fn align(short: &[Name], long: &[Name]) -> AlignedPairs {
    let Some((from, to)) = region(short, long) else { return AlignedPairs::new() };
    let near = &long[from..to];
    let anchors = RUNS.iter().map(|run| anchors(short, near, *run)).find(|found| !found.is_empty());
    let anchors = anchors.unwrap_or_default();
    let (first, last) = (anchors.first().copied(), anchors.last().copied());
    // Names farther from the anchors than the length of the short sequence belong to another
    // repetition.
    let begin = first.map_or(0, |(a, b)| b.saturating_sub(a + SLACK));
    let end = last.map_or(near.len(), |(a, b)| near.len().min(b + (short.len() - a) + SLACK));
    let mut pairs = AlignedPairs::new();
    gap(short, &near[begin..end], 0, begin, DEPTH, &mut pairs);
    pairs.iter().map(|(a, b)| (*a, b + from)).collect()
}

/// Finds the region of the long sequence that contains the short one. Each run that occurs in both
/// sequences votes for the distance between its two positions.
fn region(short: &[Name], long: &[Name]) -> Option<(usize, usize)> {
    let length = VOTE.min(short.len());
    if length == 0 || long.len() < length {
        return None;
    }
    let mut places: HashMap<&[Name], Vec<usize>> = HashMap::new();
    for (at, run) in short.windows(length).enumerate() {
        places.entry(run).or_default().push(at);
    }
    // Distances are grouped, because a few missing names change the distance of all later runs.
    let width = (short.len() / 8).max(16);
    let mut votes = vec![0_u32; (short.len() + long.len()) / width + 2];
    for (at, run) in long.windows(length).enumerate() {
        let voters = places.get(run).filter(|places| places.len() <= MANY);
        for place in voters.into_iter().flatten() {
            // The length of the short sequence is added to keep the distance non-negative.
            votes[(at + short.len() - place) / width] += 1;
        }
    }
    // A missing name shifts all later runs into the next group, so two neighboring groups are
    // added.
    let sums: Vec<u32> = votes.windows(2).map(|pair| pair[0] + pair[1]).collect();
    let most = sums.iter().copied().max().filter(|most| *most > 0);
    // If no run votes, any part of the long sequence may match.
    let Some(at) = most.and_then(|most| sums.iter().position(|sum| *sum == most)) else {
        // A sequence that is much longer and has no common run belongs to other work.
        return (long.len() <= 4 * short.len()).then_some((0, long.len()));
    };
    let from = (at * width).saturating_sub(short.len());
    let to = ((at + 2) * width).min(long.len());
    Some((from.min(to), to))
}

/// Aligns two parts of the sequences. `offset_a` and `offset_b` are the starts of the parts in the
/// whole sequences.
fn gap(
    a: &[Name],
    b: &[Name],
    offset_a: usize,
    offset_b: usize,
    depth: usize,
    pairs: &mut AlignedPairs,
) {
    let same = |(x, y): &(&Name, &Name)| x == y && **x != OTHER;
    // Most gaps differ in few names, so equal beginnings and ends are matched first in linear time.
    let head = a.iter().zip(b).take_while(same).count();
    pairs.extend((0..head).map(|at| (offset_a + at, offset_b + at)));
    let (a, b) = (&a[head..], &b[head..]);
    let (offset_a, offset_b) = (offset_a + head, offset_b + head);
    let tail = a.iter().rev().zip(b.iter().rev()).take_while(same).count();
    let (inner_a, inner_b) = (&a[..a.len() - tail], &b[..b.len() - tail]);
    middle(inner_a, inner_b, offset_a, offset_b, depth, pairs);
    let (end_a, end_b) = (offset_a + inner_a.len(), offset_b + inner_b.len());
    pairs.extend((0..tail).map(|at| (end_a + at, end_b + at)));
}

fn middle(
    a: &[Name],
    b: &[Name],
    offset_a: usize,
    offset_b: usize,
    depth: usize,
    pairs: &mut AlignedPairs,
) {
    if a.is_empty() || b.is_empty() {
        return;
    }
    // Small gaps are solved exactly, with a table of all pairs.
    if (a.len() + 1).saturating_mul(b.len() + 1) <= CELLS {
        let common = longest_common(a, b);
        pairs.extend(common.into_iter().map(|(x, y)| (offset_a + x, offset_b + y)));
        return;
    }
    let Some(inner) = depth.checked_sub(1) else { return };
    let anchors = RUNS.iter().map(|run| anchors(a, b, *run)).find(|found| !found.is_empty());
    let Some(anchors) = anchors else { return };
    let (mut at_a, mut at_b) = (0, 0);
    for (x, y) in anchors {
        gap(&a[at_a..x], &b[at_b..y], offset_a + at_a, offset_b + at_b, inner, pairs);
        pairs.push((offset_a + x, offset_b + y));
        (at_a, at_b) = (x + 1, y + 1);
    }
    gap(&a[at_a..], &b[at_b..], offset_a + at_a, offset_b + at_b, inner, pairs);
}

/// Finds runs that occur once in both parts. Returns the longest chain of such runs that ascends in
/// both parts.
fn anchors(a: &[Name], b: &[Name], run: usize) -> AlignedPairs {
    // Marks a run that occurs more than once, so that it cannot be an anchor.
    const TWICE: usize = usize::MAX;
    let once = |all: &[Name]| {
        let mut places = HashMap::new();
        for at in 0..(all.len() + 1).saturating_sub(run) {
            places.entry(hash(&all[at..at + run])).and_modify(|place| *place = TWICE).or_insert(at);
        }
        places
    };
    let in_b = once(b);
    let in_a = once(a);
    let mut pairs: AlignedPairs = Vec::new();
    for at in 0..(a.len() + 1).saturating_sub(run) {
        let key = hash(&a[at..at + run]);
        let place = in_b.get(&key).copied().filter(|place| *place != TWICE);
        let is_unique = in_a.get(&key) == Some(&at);
        if let Some(place) =
            place.filter(|place| is_unique && a[at..at + run] == b[*place..*place + run])
        {
            pairs.push((at, place));
        }
    }
    ascending(&pairs)
}

fn hash(run: &[Name]) -> u64 {
    run.iter().fold(0xcbf2_9ce4_8422_2325, |hash, name| {
        // The hash function is FNV-1a with whole names in place of bytes. Matching runs are
        // compared in full, so collisions do no harm.
        (hash ^ u64::from(*name)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Finds the longest subsequence of pairs in which the second positions ascend like the first ones.
fn ascending(pairs: &[(usize, usize)]) -> AlignedPairs {
    let mut tails: Vec<usize> = Vec::new();
    let mut before = vec![usize::MAX; pairs.len()];
    for (at, (_, b)) in pairs.iter().enumerate() {
        // `tails[n]` is the pair with the smallest end among all subsequences of length n + 1.
        let length = tails.partition_point(|tail| pairs[*tail].1 < *b);
        if length > 0 {
            before[at] = tails[length - 1];
        }
        if length == tails.len() {
            tails.push(at);
        } else {
            tails[length] = at;
        }
    }
    let mut pairs_kept = AlignedPairs::new();
    let mut at = tails.last().copied();
    while let Some(pair) = at {
        pairs_kept.push(pairs[pair]);
        at = Some(before[pair]).filter(|place| *place != usize::MAX);
    }
    pairs_kept.reverse();
    pairs_kept
}

/// Computes the longest common subsequence of two sequences by dynamic programming.
fn longest_common(a: &[Name], b: &[Name]) -> AlignedPairs {
    let width = b.len() + 1;
    let mut table = vec![0_u32; (a.len() + 1) * width];
    // The table is filled from the end, so that the pairs can be read off from the start.
    for x in (0..a.len()).rev() {
        for y in (0..b.len()).rev() {
            table[x * width + y] = if a[x] == b[y] && a[x] != OTHER {
                table[(x + 1) * width + y + 1] + 1
            } else {
                table[(x + 1) * width + y].max(table[x * width + y + 1])
            };
        }
    }
    let mut matches = AlignedPairs::new();
    let (mut x, mut y) = (0, 0);
    while x < a.len() && y < b.len() {
        let here = table[x * width + y];
        if a[x] == b[y] && a[x] != OTHER && here == table[(x + 1) * width + y + 1] + 1 {
            matches.push((x, y));
            (x, y) = (x + 1, y + 1);
        // Among equally long subsequences, the one that first skips in the short sequence is
        // chosen, so that the result is unique.
        } else if here == table[(x + 1) * width + y] {
            x += 1;
        } else {
            y += 1;
        }
    }
    matches
}
