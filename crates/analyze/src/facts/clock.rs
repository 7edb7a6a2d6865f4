//! Estimates clock offsets between ranks from collectives, because all ranks end a collective at
//! the same time.
//!
//! The module `collectives` decides which kernels of the ranks form one collective.

use serde::Serialize;

use crate::facts::distribution;
use crate::facts::window::TimeWindow;

/// Minimum number of collectives common to two ranks. With fewer, clock skew cannot be
/// distinguished from chance.
const LEAST: usize = 3;
/// Share of the clock differences that the spread must cover: nine of ten.
const WITHIN: (usize, usize) = (9, 10);

/// Offset of one rank's clock from the other ranks' clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RankClock {
    pub rank: u32,
    /// Number of collectives whose end is known on this rank and on another one.
    pub collectives: u64,
    /// Nanoseconds by which this rank's clock runs ahead: the median over collectives of (its end −
    /// the median end over ranks).
    pub ahead_ns: i64,
    /// Nine of ten collectives deviate from `ahead_ns` by less than this many nanoseconds.
    pub spread_ns: i64,
    /// Nanoseconds to subtract from the rank's times: `ahead_ns` if it exceeds `spread_ns`, else 0.
    pub correction_ns: i64,
}

/// Returns whether the given windows have no moment in common, ignoring empty windows.
pub(crate) fn are_apart<'a>(windows: impl Iterator<Item = &'a TimeWindow>) -> bool {
    let spans =
        windows.filter(|window| window.length() > 0).map(|window| (window.start, window.end));
    spans
        .reduce(|a, b| (a.0.max(b.0), a.1.min(b.1)))
        .is_some_and(|(latest, earliest)| latest >= earliest)
}

/// Estimates the clock offset of each rank.
///
/// `ends[collective][rank]` are absolute nanoseconds, or `None` where a rank does not take part;
/// rows may differ in length. `ranks` holds the rank number of each column of `ends`.
///
/// `ahead(r) = median_c( end(c, r) − median_s end(c, s) )`
///
/// An offset is corrected only if there are at least three collectives and the offset exceeds the
/// spread. Within the spread, kernels that end a few microseconds apart look like skew.
///
/// # Numerics
/// All arithmetic uses integers. The median of an even number of values is the mean of the two in
/// the middle, rounded down.
pub fn skew(ends: &[Vec<Option<i64>>], ranks: &[u32]) -> Vec<RankClock> {
    let mut differences = vec![Vec::new(); ranks.len()];
    for of_collective in ends {
        let mut ends_ns: Vec<i64> = of_collective.iter().flatten().copied().collect();
        if ends_ns.len() < 2 {
            continue;
        }
        let Some(middle) = distribution::integer_median(&mut ends_ns) else { continue };
        for (of_rank, end) in differences.iter_mut().zip(of_collective) {
            of_rank.extend(end.map(|end| end - middle));
        }
    }
    ranks.iter().zip(differences).map(|(rank, of_rank)| clock(*rank, of_rank)).collect()
}

fn clock(rank: u32, mut differences: Vec<i64>) -> RankClock {
    let collectives = differences.len();
    let Some(ahead_ns) = distribution::integer_median(&mut differences) else {
        return RankClock { rank, collectives: 0, ahead_ns: 0, spread_ns: 0, correction_ns: 0 };
    };
    let mut distances: Vec<_> = differences.iter().map(|one| (one - ahead_ns).abs()).collect();
    distances.sort_unstable();
    let (share, whole) = WITHIN;
    let spread_ns = distances[(collectives * share).div_ceil(whole) - 1];
    let is_told = collectives >= LEAST && ahead_ns.abs() > spread_ns;
    let correction_ns = if is_told { ahead_ns } else { 0 };
    RankClock { rank, collectives: collectives as u64, ahead_ns, spread_ns, correction_ns }
}

#[cfg(test)]
mod tests;
