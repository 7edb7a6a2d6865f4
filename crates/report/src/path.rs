//! The critical path of the job and of each rank: by category, by name, and as a strip over time.

use analyze::critical_path::{Category, Contributor, CriticalPath, Part, Path};
use analyze::graph::measured::Evidence;
use serde::Serialize;

use crate::clock::Zero;

/// Names that are listed of each path.
const CONTRIBUTORS: usize = 40;
/// Stretches of a strip: more than a screen shows.
const STRETCHES: usize = 3000;

/// What bounds the windows.
#[derive(Clone, Debug, Serialize)]
pub struct PathPart {
    /// The job's first, if there are several ranks, then each rank's.
    pub paths: Vec<PathView>,
    /// What the dependencies rest on.
    pub evidence: Evidence,
}

/// One path.
#[derive(Clone, Debug, Serialize)]
pub struct PathView {
    /// The rank; `None` for the job's.
    pub rank: Option<u32>,
    /// Its start on the page's clock.
    pub at_ns: i64,
    /// What the parts sum to.
    pub window_ns: i64,
    /// By category.
    pub parts: Vec<Part>,
    /// By category and name, the longest first.
    pub contributors: Vec<Contributor>,
    /// By time: rank, category, start on the page's clock, duration. Neighbours of one rank and
    /// category are one, and stretches too short to be seen belong to the one before.
    pub strip: Vec<(u32, Category, i64, i64)>,
}

/// The paths, and the rows on the job's path by rank and row.
pub(crate) fn of(found: &CriticalPath, zero: &Zero) -> (PathPart, Vec<(u32, u32)>) {
    let marked = found.job.as_ref().or(found.ranks.first()).map_or_else(Vec::new, Path::overlay);
    let paths = found.job.iter().chain(&found.ranks).map(|path| view(path, zero)).collect();
    (PathPart { paths, evidence: found.evidence }, marked)
}

fn view(path: &Path, zero: &Zero) -> PathView {
    let rank = path.segments.first().map(|first| first.rank).or(path.rank).unwrap_or_default();
    PathView {
        rank: path.rank,
        at_ns: zero.at(rank, path.window_start_ns),
        window_ns: path.window_ns,
        parts: path.parts.clone(),
        contributors: path.contributors.iter().take(CONTRIBUTORS).cloned().collect(),
        strip: strip(path, zero),
    }
}

fn strip(path: &Path, zero: &Zero) -> Vec<(u32, Category, i64, i64)> {
    let least = if path.segments.len() > STRETCHES { path.window_ns / STRETCHES as i64 } else { 0 };
    let mut strip: Vec<(u32, Category, i64, i64)> = Vec::new();
    for one in &path.segments {
        let (at, length) = (zero.at(one.rank, one.start_ns), one.end_ns - one.start_ns);
        match strip.last_mut() {
            Some((rank, category, _, sum))
                if (*rank, *category) == (one.rank, one.category) || length < least =>
            {
                *sum += length;
            }
            _ => strip.push((one.rank, one.category, at, length)),
        }
    }
    strip
}
