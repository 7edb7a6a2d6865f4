//! Builds an [`OperatorTree`] by sorting each thread and keeping a stack of open rows.

use trace::store::{EventKind, Trace, TrackId};

use super::{Clip, NONE, OperatorTree, TreeThread};
use crate::facts::interval::Interval;

/// Order in which rows that start at the same time are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RowRank {
    /// An annotation without an event index, which contains everything that starts at the same
    /// time.
    Around,
    /// Operators and annotations that have an event index, ordered by it.
    Indexed,
    /// Operators that have only an external id, ordered by it.
    External,
    /// Operators without any index or id, longest first.
    Longest,
    /// A runtime or driver call, ordered by correlation id.
    Call,
}

/// Nests operators, annotations, runtime and driver calls per (process, thread).
///
/// The rows of a thread are processed in the order of (start, operators before calls, event index
/// or correlation id). A row is placed inside the innermost open row. An open row is closed before
/// a later start, and before a row with a duration that starts exactly at its end. Rows that start
/// at the same time without an event index are ordered as follows: annotations first, then
/// operators by external id, then operators without one, longest first.
///
/// # Cost
/// The cost is `O(n log n)` in the host rows of a thread.
pub fn build(trace: &Trace) -> OperatorTree {
    let mut tree = OperatorTree { node: vec![NONE; trace.slices.len()], ..OperatorTree::default() };
    let start = |row: u32| trace.slices.start(row);
    for (track, mut rows) in host_rows(trace).into_iter().enumerate() {
        if rows.is_empty() {
            continue;
        }
        // Files have long sorted stretches, which a stable sort recognizes.
        rows.sort_by(|a, b| {
            let by_start = start(*a).cmp(&start(*b));
            by_start.then_with(|| order(trace, *a).cmp(&order(trace, *b)))
        });
        let first = tree.nodes.len() as u32;
        stack(trace, &rows, &mut tree);
        finish(&mut tree, track, first);
    }
    tree
}

/// Collects the host rows of each track in file order.
fn host_rows(trace: &Trace) -> Vec<Vec<u32>> {
    let mut by_track = vec![Vec::new(); trace.tracks.len()];
    let is_nested = |kind: EventKind| {
        kind.is_call() || matches!(kind, EventKind::Operator | EventKind::Annotation)
    };
    for row in trace.rows().filter(|row| is_nested(trace.kind(*row))) {
        by_track[trace.slices.track[row as usize].0 as usize].push(row);
    }
    by_track
}

/// Returns the place of a row among the rows of its thread that start at the same time: its rank,
/// then an index or id, or a number that is smaller the longer the row is, then the row.
fn order(trace: &Trace, row: u32) -> (RowRank, u64, u32) {
    let (slices, kind) = (&trace.slices, trace.kind(row));
    // Longer rows must sort first, so the order is the complement of the duration.
    let longest = u64::MAX - slices.duration[row as usize].unsigned_abs();
    let (rank, order) = if kind.is_call() {
        (RowRank::Call, slices.correlation(row).unwrap_or(0))
    } else if let Some(index) = slices.event_index.get(row) {
        (RowRank::Indexed, *index)
    } else if kind == EventKind::Annotation {
        (RowRank::Around, longest)
    } else if let Some(id) = slices.external_id(row) {
        (RowRank::External, id)
    } else {
        (RowRank::Longest, longest)
    };
    (rank, order, row)
}

/// Nests the rows of one thread by opening and closing them in start order.
fn stack(trace: &Trace, rows: &[u32], tree: &mut OperatorTree) {
    let mut open: Vec<u32> = Vec::new();
    for &row in rows {
        let (start, end) = (trace.slices.start(row), trace.slices.end(row));
        while let Some(&top) = open.last() {
            let top_end = tree.end[top as usize];
            // A row without duration may be the last child of an operator, but it never starts
            // inside a call that has ended.
            let is_past_call = || trace.kind(tree.nodes[top as usize]).is_call();
            let is_inside = top_end == start && end == start && !is_past_call();
            if top_end > start || is_inside {
                break;
            }
            close(tree, &mut open);
        }
        open_row(trace, tree, &mut open, row, start);
    }
    while !open.is_empty() {
        close(tree, &mut open);
    }
}

/// Opens a row that starts at a given time inside the innermost open row.
fn open_row(trace: &Trace, tree: &mut OperatorTree, open: &mut Vec<u32>, row: u32, start: i64) {
    let end = trace.slices.end(row);
    let parent = open.last().copied();
    let limit = parent.map_or(i64::MAX, |parent| tree.end[parent as usize]);
    if let Some(parent) = parent.filter(|_| end > limit) {
        let parent = tree.nodes[parent as usize];
        tree.clipped.push(Clip { row, parent, excess_ns: end - limit });
    }
    open.push(add(tree, row, parent, (start, end.min(limit))));
}

fn add(tree: &mut OperatorTree, row: u32, parent: Option<u32>, span: Interval) -> u32 {
    let node = tree.nodes.len() as u32;
    tree.nodes.push(row);
    tree.parent.push(parent.unwrap_or(NONE));
    tree.behind.push(NONE);
    tree.start.push(span.0);
    tree.end.push(span.1);
    tree.node[row as usize] = node;
    node
}

fn close(tree: &mut OperatorTree, open: &mut Vec<u32>) {
    if let Some(node) = open.pop() {
        tree.behind[node as usize] = tree.nodes.len() as u32;
    }
}

fn finish(tree: &mut OperatorTree, track: usize, first: u32) {
    let behind = tree.nodes.len() as u32;
    tree.threads.push(TreeThread { track: TrackId(track as u32), first, behind });
}

/// Nests the frames of Python by their parent ids, which are right even where times are not.
///
/// A frame becomes a root if its parent is missing, runs on another thread or starts later than the
/// frame itself.
///
/// # Cost
/// The cost is `O(n log n)` in the frames.
pub fn build_python_tree(trace: &Trace) -> OperatorTree {
    // Parent ids are enough to nest the frames, so their durations are not read here.
    let slices = &trace.slices;
    let mut frames: Vec<Frame> = slices
        .python
        .iter()
        .filter(|(row, _)| trace.kind(*row) == EventKind::Python)
        .map(|(row, frame)| Frame {
            track: slices.track[row as usize],
            start: slices.start(row),
            id: frame.id,
            row,
            parent: frame.parent,
        })
        .collect();
    frames.sort_unstable();
    let mut tree = OperatorTree { node: vec![NONE; slices.len()], ..OperatorTree::default() };
    let forest = forest(&frames);
    let track = |root: &u32| frames[*root as usize].track;
    for roots in forest.roots.chunk_by(|a, b| track(a) == track(b)) {
        let first = tree.nodes.len() as u32;
        walk(trace, &forest, &frames, roots, &mut tree);
        finish(&mut tree, track(&roots[0]).0 as usize, first);
    }
    tree
}

/// A frame of Python. The parent of a frame starts no later than the frame and has a smaller id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    track: TrackId,
    start: i64,
    id: u64,
    row: u32,
    parent: Option<u64>,
}

/// First child and next sibling of each frame, as indices into the list of frames.
struct Forest {
    child: Vec<u32>,
    sibling: Vec<u32>,
    roots: Vec<u32>,
}

fn forest(frames: &[Frame]) -> Forest {
    let mut by_id: Vec<(u64, u32)> =
        frames.iter().enumerate().map(|(at, frame)| (frame.id, at as u32)).collect();
    by_id.sort_unstable();
    let find = |id: u64| by_id.binary_search_by_key(&id, |(id, _)| *id).ok();
    let none = vec![NONE; frames.len()];
    let mut forest = Forest { child: none.clone(), sibling: none, roots: Vec::new() };
    // Visit the frames backwards, so that each list of children begins with the earliest child.
    for (at, frame) in frames.iter().enumerate().rev() {
        let found = frame.parent.and_then(find).map(|found| by_id[found].1 as usize);
        match found.filter(|parent| *parent < at && frames[*parent].track == frame.track) {
            Some(parent) => {
                forest.sibling[at] = forest.child[parent];
                forest.child[parent] = at as u32;
            }
            None => forest.roots.push(at as u32),
        }
    }
    forest.roots.reverse();
    forest
}

/// Adds the frames of one track in pre-order.
fn walk(trace: &Trace, forest: &Forest, frames: &[Frame], roots: &[u32], tree: &mut OperatorTree) {
    let mut latest = i64::MIN;
    let mut open: Vec<u32> = Vec::new();
    for &root in roots {
        let mut to_visit = vec![(root, 0)];
        while let Some((at, level)) = to_visit.pop() {
            while open.len() > level {
                close(tree, &mut open);
            }
            let frame = &frames[at as usize];
            // Sibling frames may overlap, but the search by time needs ascending starts.
            latest = latest.max(frame.start);
            open_row(trace, tree, &mut open, frame.row, latest);
            let (sibling, child) = (forest.sibling[at as usize], forest.child[at as usize]);
            if level > 0 && sibling != NONE {
                to_visit.push((sibling, level));
            }
            if child != NONE {
                to_visit.push((child, level + 1));
            }
        }
        while !open.is_empty() {
            close(tree, &mut open);
        }
    }
}
