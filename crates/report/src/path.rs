//! The critical path tab of the page: the paths of the job and of each rank by category, by name
//! and over time.

use std::collections::BTreeMap;

use analyze::JobFacts;
use analyze::critical_path::{CategoryPart, Contributor, Path, PathCategory, PathSegment};
use analyze::graph::measured::WaitEvidence;
use serde::Serialize;

use crate::clock::Zero;

/// Maximum number of listed names per path.
const CONTRIBUTORS: usize = 40;
/// Number of columns of the strip that shows a path over time. The number must equal `STRIP_WIDTH`
/// of `chart.js`.
const STRETCHES: usize = 1060;

/// The critical paths of a job and of its ranks.
#[derive(Clone, Debug, Serialize)]
pub struct PathPart {
    /// The paths of all ranks. With several ranks, the path of the job precedes their paths.
    pub paths: Vec<PathView>,
    pub evidence: WaitEvidence,
}

/// One critical path, prepared for display.
#[derive(Clone, Debug, Serialize)]
pub struct PathView {
    /// Number of the rank, or `None` for the path of the job.
    pub rank: Option<u32>,
    /// Start of the window on the page's clock.
    pub at_ns: i64,
    /// Length of the window, to which the parts sum up.
    pub window_ns: i64,
    pub parts: Vec<CategoryPart>,
    /// Contributors by category and name, sorted by descending time.
    pub contributors: Vec<Contributor>,
    /// Segments of the path in order of time: rank, index of the part, start on the page's clock,
    /// and duration. Neighboring segments of the same rank and category are joined. If there are
    /// more segments than a screen shows, each column shows the part with its largest share.
    pub strip: Vec<(u32, usize, i64, i64)>,
}

/// Builds the tab with the critical paths.
pub(crate) fn build_part(job: &JobFacts<'_>, zero: &Zero) -> PathPart {
    let found = job.paths();
    let paths = found.job.iter().chain(&found.ranks).map(|path| view(job, path, zero)).collect();
    PathPart { paths, evidence: found.evidence }
}

/// Returns the rows on the path of the job, as pairs of rank and row.
pub(crate) fn marked_rows(job: &JobFacts<'_>) -> Vec<(u32, u32)> {
    let found = job.paths();
    let main = found.job.as_ref().or(found.ranks.first());
    main.map_or_else(Vec::new, |path| path.overlay(job.path_job()))
}

fn view(job: &JobFacts<'_>, path: &Path, zero: &Zero) -> PathView {
    let segments = path.segments(job.path_job());
    let rank = segments.first().map(|first| first.rank).or(path.rank).unwrap_or_default();
    let place = |category: PathCategory| {
        let place = path.parts.iter().position(|part| part.category == category);
        place.unwrap_or_default()
    };
    PathView {
        rank: path.rank,
        at_ns: zero.at(rank, path.window_start_ns),
        window_ns: path.window_ns,
        parts: path.parts.clone(),
        contributors: path.contributors.iter().take(CONTRIBUTORS).cloned().collect(),
        strip: strip(&segments, path.window_ns, zero)
            .into_iter()
            .map(|(rank, category, at, length)| (rank, place(category), at, length))
            .collect(),
    }
}

fn strip(
    segments: &[PathSegment],
    window_ns: i64,
    zero: &Zero,
) -> Vec<(u32, PathCategory, i64, i64)> {
    let parts = segments.iter().map(|one| {
        let at = zero.at(one.rank, one.start_ns);
        (one.rank, one.category, at, one.end_ns - one.start_ns)
    });
    if segments.len() <= STRETCHES {
        return joined(parts);
    }
    let start = segments.first().map_or(0, |first| zero.at(first.rank, first.start_ns));
    joined(majority(parts, start, window_ns))
}

/// Divides a window into columns of equal length. Returns the rank and category with the largest
/// share of each column.
fn majority(
    segments: impl Iterator<Item = (u32, PathCategory, i64, i64)>,
    start: i64,
    window_ns: i64,
) -> impl Iterator<Item = (u32, PathCategory, i64, i64)> {
    let edge = move |column: usize| {
        let share = i128::from(window_ns) * column as i128 / STRETCHES as i128;
        start.saturating_add(i64::try_from(share).unwrap_or(i64::MAX))
    };
    let mut columns: Vec<BTreeMap<(u32, PathCategory), i64>> = vec![BTreeMap::new(); STRETCHES];
    for (rank, category, at, length) in segments {
        let elapsed = i128::from((at - start).clamp(0, window_ns));
        let first = (elapsed * STRETCHES as i128 / i128::from(window_ns.max(1))) as usize;
        for (column, shares) in columns.iter_mut().enumerate().skip(first) {
            if edge(column) >= at + length {
                break;
            }
            let covered = edge(column + 1).min(at + length) - edge(column).max(at);
            *shares.entry((rank, category)).or_default() += covered.max(0);
        }
    }
    columns.into_iter().enumerate().filter_map(move |(column, shares)| {
        // Among equal shares, the first one by rank and category is chosen.
        let most = shares.into_iter().rev().max_by_key(|(_, share)| *share);
        let ((rank, category), _) = most?;
        Some((rank, category, edge(column), edge(column + 1) - edge(column)))
    })
}

/// Joins neighboring segments of the same rank and category.
fn joined(
    segments: impl Iterator<Item = (u32, PathCategory, i64, i64)>,
) -> Vec<(u32, PathCategory, i64, i64)> {
    let mut strip: Vec<(u32, PathCategory, i64, i64)> = Vec::new();
    for (rank, category, at, length) in segments {
        match strip.last_mut() {
            Some((last_rank, last, _, sum)) if (*last_rank, *last) == (rank, category) => {
                *sum += length;
            }
            _ => strip.push((rank, category, at, length)),
        }
    }
    strip
}

#[cfg(test)]
mod tests {
    use super::{PathCategory, STRETCHES, joined, majority};

    #[test]
    fn each_column_shows_its_largest_share() {
        // In each column, 60 ns of work precede 40 ns of idle time. Only the last column is
        // completely idle.
        let count = STRETCHES as i64;
        let each = |at: i64| {
            let works = if at + 1 < count { 60 } else { 0 };
            let (work, rest) = (PathCategory::Compute, PathCategory::DeviceGap);
            [(0, work, 7 + 100 * at, works), (0, rest, 7 + 100 * at + works, 100 - works)]
        };
        let found = joined(majority((0..count).flat_map(each), 7, 100 * count));
        let expected = [
            (0, PathCategory::Compute, 7, 100 * (count - 1)),
            (0, PathCategory::DeviceGap, 7 + 100 * (count - 1), 100),
        ];
        assert_eq!(found, expected);
    }
}
