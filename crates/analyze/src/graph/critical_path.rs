//! Finds the critical path of a window, which is the chain of events that determined its length.
//!
//! The search starts at the last moment of the window and steps back from each event to the one
//! that it waited for. The stretches of the path cover the window without gaps or overlaps, so
//! their sum equals the window to the nanosecond, including untraced time. Each rank has a path of
//! its own, on which waiting for a peer is a stretch. The path of the job continues on the peer
//! instead.

mod walk;

use std::collections::BTreeMap;

use schema::TableRow;
use serde::Serialize;
use trace::store::{StringId, TrackId};

use crate::facts::scope::Scope;
use crate::graph::measured::{CATEGORIES, MeasuredGraph, ThreadLabel, WaitEvidence};
use crate::graph::{EdgeKind, NodeTimes};
use crate::percent::percent;

pub use crate::graph::measured::{Party, PathCategory};
pub(crate) use walk::{Reach, RelaxedGraph, StretchPlace, WalkStretch, walk_back, walk_back_from};

/// The critical path of each rank of a job, and that of the job itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CriticalPath {
    /// The path of each rank, in the order of the scopes. Each path covers its rank's whole window.
    pub ranks: Vec<Path>,
    /// The path of the rank whose window ends last, which continues on another rank wherever it
    /// waited for that rank. The path is `None` for a job with one rank, because it would equal the
    /// path of that rank.
    pub job: Option<Path>,
    /// Number of recorded waits, and of inferred ones.
    pub evidence: WaitEvidence,
}

/// A path that covers the time `window_start_ns..window_end_ns` without gaps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Path {
    /// The rank on which the path ends; `None` for the path of the job.
    pub rank: Option<u32>,
    /// Start of the path in absolute nanoseconds. For the path of the job, this is the start of the
    /// window of the rank where the walk back arrives.
    pub window_start_ns: i64,
    /// End of the path, in absolute nanoseconds.
    pub window_end_ns: i64,
    /// Length of the path, which equals the sum of its parts.
    pub window_ns: i64,
    /// Time per category, sorted by category, without categories that have no time.
    pub parts: Vec<CategoryPart>,
    /// The categories and names with the most time on the path, longest time first.
    pub contributors: Vec<Contributor>,
    /// Index of a rank among the scopes. The path ends where the window of this rank ends.
    #[serde(skip)]
    last: usize,
    #[serde(skip)]
    reach: Reach,
}

/// Total time of one category on a critical path.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct CategoryPart {
    /// The rank of the path; `None` for the path of the job.
    pub rank: Option<u32>,
    pub category: PathCategory,
    pub duration_ns: i64,
    /// Share of the window, in percent.
    pub window_pct: Option<f64>,
}

/// Time on the critical path of the rows of one name.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct Contributor {
    /// The rank of the path; `None` for the path of the job.
    pub rank: Option<u32>,
    pub category: PathCategory,
    /// Name of the row, or of the annotation around untraced time; may be empty.
    pub name: String,
    pub count: u64,
    pub duration_ns: i64,
    /// Share of the window, in percent.
    pub window_pct: Option<f64>,
}

/// A stretch of the critical path on one thread or stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PathSegment {
    /// The rank on which the segment lies.
    pub rank: u32,
    /// The row that ran during the segment. For gaps and delays, it is the row that waited. For
    /// untraced time, it is the annotation around it. For Python time, it is the frame, if the
    /// frame has a row.
    pub row: Option<u32>,
    /// For Python time, the index of the frame in [`Scope::frames`].
    pub frame: Option<u32>,
    /// Index of the thread or stream among the trace's tracks.
    pub track: Option<u32>,
    /// The activity on which the time of the segment is spent.
    pub category: PathCategory,
    /// The kind of dependency that delayed the start of the segment; `None` at the start of the
    /// window.
    pub via: Option<EdgeKind>,
    /// The rank that this rank waited for during the segment.
    pub peer: Option<u32>,
    /// Start of the segment, in absolute nanoseconds.
    pub start_ns: i64,
    /// End of the segment, in absolute nanoseconds.
    pub end_ns: i64,
}

/// A segment of a path as a table row, with names instead of indices.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct SegmentRow {
    pub index: u32,
    pub rank: u32,
    pub category: PathCategory,
    /// Name of [`PathSegment::row`]; empty if the segment has no row.
    pub name: String,
    /// Process and thread of the segment, or device and stream.
    pub track: String,
    pub row: Option<u32>,
    pub via: Option<EdgeKind>,
    pub peer: Option<u32>,
    /// Start of the segment, in absolute nanoseconds.
    pub start_ns: i64,
    /// End of the segment, in absolute nanoseconds.
    pub end_ns: i64,
    pub duration_ns: i64,
}

/// Finds the critical paths of the ranks of one job, and the path of the job itself.
///
/// # Cost
/// The cost is linear in the length of the paths, and `O(n log n)` in the names on them.
pub fn find_critical_paths(scopes: &[Scope<'_>], measured: &MeasuredGraph) -> CriticalPath {
    let job = PathJob { scopes, measured };
    let rank = |at: usize| path(&job, Some(measured.ranks[at].rank), at, Reach::Rank);
    let ranks: Vec<Path> = (0..measured.ranks.len()).map(rank).collect();
    let last = last_to_end(measured, &measured.times).filter(|_| ranks.len() > 1);
    let hopping = last.map(|last| path(&job, None, last, Reach::Job));
    CriticalPath { ranks, job: hopping, evidence: measured.evidence }
}

/// Returns the rank whose window ends last, or the first of several such ranks.
pub(crate) fn last_to_end(measured: &MeasuredGraph, times: &NodeTimes) -> Option<usize> {
    let end = |at: usize| times.end[measured.ranks[at].end.index()];
    (0..measured.ranks.len()).max_by_key(|at| (end(*at), std::cmp::Reverse(*at)))
}

impl Path {
    /// Returns the segments of the path as table rows.
    pub fn rows(&self, job: PathJob<'_, '_>) -> Vec<SegmentRow> {
        let scopes = job.scopes;
        let path_part = |(index, one): (usize, &PathSegment)| {
            let scope = scopes.iter().find(|scope| scope.trace.rank == one.rank)?;
            let trace = scope.trace;
            let track = one.track.map(|track| &trace.tracks[track as usize]);
            Some(SegmentRow {
                index: index as u32,
                rank: one.rank,
                category: one.category,
                name: trace.strings.get(name_of(scope, one)).to_owned(),
                track: track.map_or_else(String::new, |t| format!("{}/{}", t.pid, t.tid)),
                row: one.row,
                via: one.via,
                peer: one.peer,
                start_ns: one.start_ns,
                end_ns: one.end_ns,
                duration_ns: one.end_ns - one.start_ns,
            })
        };
        self.segments(job).iter().enumerate().filter_map(path_part).collect()
    }

    /// Returns the segments of the path, sorted by time, without gaps or overlaps. `job` is the job
    /// of the path.
    ///
    /// # Cost
    /// Walks the path again, because a path may have as many segments as the trace has rows.
    pub fn segments(&self, job: PathJob<'_, '_>) -> Vec<PathSegment> {
        let mut segments = Vec::new();
        self.visit(job, |one| segments.push(*one));
        segments.reverse();
        segments
    }

    /// Returns the trace rows on the path without repetition, sorted by rank and row, so that a
    /// timeline can mark them.
    pub fn overlay(&self, job: PathJob<'_, '_>) -> Vec<(u32, u32)> {
        let mut rows = Vec::new();
        self.visit(job, |one| rows.extend(one.ran().map(|row| (one.rank, row))));
        // The path visits the rows of each thread in order, so this sort finds long sorted runs.
        rows.sort();
        rows.dedup();
        rows
    }

    /// Passes the segments to `visit`, the latest first.
    pub(crate) fn visit(&self, job: PathJob<'_, '_>, visit: impl FnMut(&PathSegment)) {
        each_segment(&job, self.last, self.reach, visit);
    }
}

impl PathSegment {
    /// Returns the row that ran, or waited, during the segment; `None` for time outside rows.
    pub(crate) fn ran(&self) -> Option<u32> {
        let is_outside =
            matches!(self.category, PathCategory::UntracedHost | PathCategory::PythonFrame);
        self.row.filter(|_| !is_outside)
    }
}

/// The traces of a job and the graph built from them, which every walk along a critical path reads.
#[derive(Clone, Copy)]
pub struct PathJob<'a, 'b> {
    pub scopes: &'a [Scope<'b>],
    pub measured: &'a MeasuredGraph,
}

/// Builds the recorded path that ends at the end of the window of rank `last`.
fn path(job: &PathJob<'_, '_>, rank: Option<u32>, last: usize, reach: Reach) -> Path {
    let window_end_ns = job.measured.times.end[job.measured.ranks[last].end.index()];
    let mut window_start_ns = window_end_ns;
    let mut sums: Vec<NameSums> = job.scopes.iter().map(|_| NameSums::default()).collect();
    let mut durations = [0; CATEGORIES.len()];
    each_segment(job, last, reach, |one| {
        window_start_ns = one.start_ns;
        durations[one.category as usize] += one.end_ns - one.start_ns;
        let scope = job.scopes.iter().position(|scope| scope.trace.rank == one.rank);
        scope.into_iter().for_each(|at| sums[at].add(&job.scopes[at], one));
    });
    let window_ns = window_end_ns - window_start_ns;
    let durations = CATEGORIES.into_iter().zip(durations).filter(|(_, ns)| *ns > 0);
    let parts = parts(rank, window_ns, durations);
    let contributors = contributors(job, rank, window_ns, &sums);
    Path { rank, window_start_ns, window_end_ns, window_ns, parts, contributors, last, reach }
}

/// Passes the segments of a recorded path to `visit`, the latest first.
fn each_segment(
    job: &PathJob<'_, '_>,
    last: usize,
    reach: Reach,
    mut visit: impl FnMut(&PathSegment),
) {
    let mut segments = Vec::new();
    for stretch in walk_back(RelaxedGraph::recorded(job.measured), last, reach) {
        add_segments(job, &stretch, &mut segments);
        segments.iter().rev().for_each(&mut visit);
        segments.clear();
    }
}

/// Sums the parts of a path by party: the host, the devices, and waits for other ranks.
pub fn by_party(parts: impl IntoIterator<Item = (PathCategory, i64)>) -> [(Party, i64); 3] {
    let mut sums = [Party::Host, Party::Device, Party::Peers].map(|party| (party, 0));
    for (category, ns) in parts {
        sums[category.party() as usize].1 += ns;
    }
    sums
}

/// Sums durations by category and computes their shares of the window.
pub(crate) fn parts(
    rank: Option<u32>,
    window_ns: i64,
    durations: impl Iterator<Item = (PathCategory, i64)>,
) -> Vec<CategoryPart> {
    let mut sums: BTreeMap<PathCategory, i64> = BTreeMap::new();
    for (category, duration) in durations {
        *sums.entry(category).or_insert(0) += duration;
    }
    let part = |(category, duration_ns)| {
        let window_pct = percent(duration_ns, window_ns);
        CategoryPart { rank, category, duration_ns, window_pct }
    };
    sums.into_iter().map(part).collect()
}

/// Adds a stretch of the path as segments, splitting untraced time where the annotation around it
/// changes.
fn add_segments(job: &PathJob<'_, '_>, stretch: &WalkStretch, segments: &mut Vec<PathSegment>) {
    let measured = job.measured;
    let (origin, category) = match stretch.what {
        StretchPlace::Node(node) => (measured.origins[node.index()], stretch.category),
        StretchPlace::Edge(edge) => {
            let edge = measured.graph.edge(edge);
            let target = measured.origins[edge.target.index()];
            let source = measured.origins[edge.source.index()];
            // The end of the window has no track, so an edge into it lies on the track of its
            // source.
            (if target.track().is_some() { target } else { source }, stretch.category)
        }
    };
    let peer = stretch.peer.map(|node| measured.origins[node.index()].scope);
    let rank = |scope: u32| job.scopes[scope as usize].trace.rank;
    let one = PathSegment {
        rank: rank(origin.scope),
        row: origin.row(),
        frame: None,
        track: origin.track().map(|TrackId(track)| track),
        category,
        via: stretch.via,
        peer: peer.map(rank),
        start_ns: stretch.start,
        end_ns: stretch.end,
    };
    if !matches!(category, PathCategory::UntracedHost | PathCategory::PythonFrame) {
        segments.push(one);
        return;
    }
    let track = one.track.map_or(usize::MAX, |track| track as usize);
    let labels = measured.labels[origin.scope as usize].get(track).map_or(&[][..], Vec::as_slice);
    let frames = job.scopes[origin.scope as usize].frames();
    let untraced = |start_ns: i64, end_ns: i64| PathSegment {
        category: PathCategory::UntracedHost,
        start_ns,
        end_ns,
        ..one
    };
    let mut from = one.start_ns;
    // Python frames divide the stretch, and what lies between two frames is untraced time.
    for frame in frames.within(TrackId(track as u32), (one.start_ns, one.end_ns)) {
        if from < frame.start {
            add_untraced(untraced(from, frame.start), labels, segments);
        }
        segments.push(PathSegment {
            category: PathCategory::PythonFrame,
            row: frames.all()[frame.frame as usize].row,
            frame: Some(frame.frame),
            start_ns: frame.start,
            end_ns: frame.end,
            ..one
        });
        from = frame.end;
    }
    if from < one.end_ns {
        add_untraced(untraced(from, one.end_ns), labels, segments);
    }
}

/// Returns the name of a segment, or an empty string if it has none.
fn name_of(scope: &Scope<'_>, one: &PathSegment) -> StringId {
    let frame_name = |frame: u32| scope.frames().all()[frame as usize].name;
    let row_name = |row: u32| scope.trace.slices.name[row as usize];
    one.frame.map(frame_name).or_else(|| one.row.map(row_name)).unwrap_or_default()
}

fn add_untraced(one: PathSegment, labels: &[ThreadLabel], segments: &mut Vec<PathSegment>) {
    let mut from = one.start_ns;
    let mut add = |row: Option<u32>, from: i64, until: i64| {
        if from < until {
            segments.push(PathSegment { row, start_ns: from, end_ns: until, ..one });
        }
    };
    let first = labels.partition_point(|label| label.end <= from);
    for label in labels[first..].iter().take_while(|label| label.start < one.end_ns) {
        add(None, from, label.start);
        let (start, end) = (label.start.max(from), label.end.min(one.end_ns));
        add(Some(label.row), start, end);
        from = end;
    }
    add(None, from, one.end_ns);
}

fn contributors(
    job: &PathJob<'_, '_>,
    rank: Option<u32>,
    window_ns: i64,
    sums: &[NameSums],
) -> Vec<Contributor> {
    let mut named: BTreeMap<(PathCategory, &str), (u64, i64)> = BTreeMap::new();
    // Ranks number their strings differently, so names are summed for each rank separately.
    for (scope, sums) in job.scopes.iter().zip(sums) {
        for sum in &sums.sums {
            let name = scope.trace.strings.get(sum.name);
            for (category, (count, ns)) in CATEGORIES.into_iter().zip(sum.by_category) {
                if count > 0 {
                    let total = named.entry((category, name)).or_insert((0, 0));
                    *total = (total.0 + count, total.1 + ns);
                }
            }
        }
    }
    let mut all: Vec<_> = named.into_iter().collect();
    all.sort_by_key(|(_, (_, duration))| std::cmp::Reverse(*duration));
    let one = |((category, name), (count, duration_ns)): ((PathCategory, &str), (u64, i64))| {
        let (name, window_pct) = (name.to_owned(), percent(duration_ns, window_ns));
        Contributor { rank, category, name, count, duration_ns, window_pct }
    };
    all.into_iter().map(one).collect()
}

/// Time on a path by the names of one rank.
#[derive(Default)]
struct NameSums {
    sums: Vec<NameSum>,
    /// Index of each string's entry in `sums`, or `u32::MAX`. Empty before the first segment.
    places: Vec<u32>,
}

/// Number of segments and nanoseconds of one name by category, in the order of [`CATEGORIES`].
struct NameSum {
    name: StringId,
    by_category: [(u64, i64); CATEGORIES.len()],
}

impl NameSums {
    fn add(&mut self, scope: &Scope<'_>, one: &PathSegment) {
        self.places.resize(scope.trace.strings.len(), u32::MAX);
        let name = name_of(scope, one);
        let place = &mut self.places[name.0 as usize];
        if *place == u32::MAX {
            *place = self.sums.len() as u32;
            self.sums.push(NameSum { name, by_category: [(0, 0); CATEGORIES.len()] });
        }
        let sum = &mut self.sums[*place as usize].by_category[one.category as usize];
        *sum = (sum.0 + 1, sum.1 + one.end_ns - one.start_ns);
    }
}
