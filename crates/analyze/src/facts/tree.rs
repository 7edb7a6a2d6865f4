//! Nests the operators, annotations and calls of each host thread.
//!
//! Parents are found by the order in which rows started, never by durations alone. In files with
//! times in whole microseconds, an operator and its child often start and end in the same
//! microsecond. Rows that overlap without nesting are clipped and counted, but never rejected.

mod build;
#[cfg(test)]
mod tests;

use std::ops::Range;

use trace::store::{EventKind, Trace, TrackId};

pub use build::{build, build_python_tree};

const NONE: u32 = u32::MAX;

/// The rows of the host, nested per thread.
///
/// Nodes are stored in pre-order, thread after thread, so a subtree is a contiguous range of
/// [`OperatorTree::nodes`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorTree {
    /// Rows in pre-order, thread after thread: a parent comes before its children, and siblings are
    /// sorted by start.
    pub nodes: Vec<u32>,
    /// The threads of the tree, in the order of their tracks.
    pub threads: Vec<TreeThread>,
    /// Rows that reached past the end of their parent and were clipped, in pre-order.
    pub clipped: Vec<Clip>,
    /// Index of each node's parent.
    parent: Vec<u32>,
    /// Index of the first node after the subtree of each node.
    behind: Vec<u32>,
    /// Start of each node, which never decreases within a thread.
    start: Vec<i64>,
    /// End of each node, which is never later than the parent's end.
    end: Vec<i64>,
    /// Index of the node that belongs to each row of the trace.
    node: Vec<u32>,
}

/// The contiguous part of [`OperatorTree::nodes`] that belongs to one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeThread {
    pub track: TrackId,
    pub first: u32,
    /// Index of the first node that comes after this thread's nodes.
    pub behind: u32,
}

/// A row that reached past the end of its parent and was clipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clip {
    pub row: u32,
    pub parent: u32,
    pub excess_ns: i64,
}

/// Returns whether a row is only a label of the rows inside it, which is true for an annotation and
/// for an operator with the name of a label.
///
/// # Source
/// The event tree of arXiv:2201.07821 skips operators of the same names.
pub fn is_label(trace: &Trace, row: u32) -> bool {
    match trace.kind(row) {
        EventKind::Annotation => true,
        EventKind::Operator => is_label_name(trace.name(row)),
        _ => false,
    }
}

/// Returns whether an operator with this name is only a label, because the profiler wrote its own
/// annotations as operators before 2022.
pub fn is_label_name(name: &str) -> bool {
    const LABELS: [&str; 7] =
        ["##", "__", "module::", "DLRM ", "DistributedDataParallel", "ProfilerStep#", "Optimizer."];
    LABELS.iter().any(|label| name.starts_with(label))
}

/// Returns whether a row with this name loads input.
pub fn is_data_loading(name: &str) -> bool {
    name.contains("DataLoader") || name == "rowmill::input_wait"
}

impl OperatorTree {
    /// Returns whether a trace row belongs to the tree.
    pub fn contains(&self, row: u32) -> bool {
        self.place(row).is_some()
    }

    /// Returns the parent of a row.
    pub fn parent(&self, row: u32) -> Option<u32> {
        let parent = self.parent[self.place(row)?];
        (parent != NONE).then(|| self.nodes[parent as usize])
    }

    /// Returns the depth of a row, which is 1 for a root and 0 for a row outside the tree.
    pub fn depth(&self, row: u32) -> u32 {
        if self.contains(row) { 1 + self.ancestors(row).count() as u32 } else { 0 }
    }

    /// Returns the end of a row, clipped to the end of its parents, or `None` for a row outside the
    /// tree.
    pub fn end(&self, row: u32) -> Option<i64> {
        self.place(row).map(|node| self.end[node])
    }

    /// Iterates over the ancestors of a row, innermost ancestor first.
    pub fn ancestors(&self, row: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(self.parent(row), |parent| self.parent(*parent))
    }

    /// Returns the time from a row's start to its clipped end, or 0 for rows outside the tree.
    pub fn length(&self, trace: &Trace, row: u32) -> i64 {
        self.end(row).map_or(0, |end| end - trace.slices.start(row))
    }

    /// Returns the clipped length of a row minus the lengths of its children.
    pub fn own_length(&self, trace: &Trace, row: u32) -> i64 {
        let inside = self.children(row).map(|child| self.length(trace, child));
        self.length(trace, row) - inside.sum::<i64>()
    }

    /// Returns a row and everything inside it, in pre-order, or nothing for a row outside the tree.
    pub fn subtree(&self, row: u32) -> &[u32] {
        self.place(row).map_or(&[], |node| &self.nodes[node..self.behind[node] as usize])
    }

    /// Returns the index of a row in [`OperatorTree::nodes`].
    pub fn position(&self, row: u32) -> Option<u32> {
        self.place(row).map(|node| node as u32)
    }

    /// Returns the range of indices of a row's subtree in [`OperatorTree::nodes`].
    pub fn range(&self, row: u32) -> Range<u32> {
        self.place(row).map_or(0..0, |node| node as u32..self.behind[node])
    }

    /// Iterates over the children of a row, sorted by start.
    pub fn children(&self, row: u32) -> impl Iterator<Item = u32> {
        let range = self.place(row).map_or(0..0, |node| node + 1..self.behind[node] as usize);
        self.siblings(range.start, range.end)
    }

    /// Iterates over the rows without a parent, sorted by thread and start.
    pub fn roots(&self) -> impl Iterator<Item = u32> {
        self.siblings(0, self.nodes.len())
    }

    /// Iterates over the rows of one thread that have no parent, sorted by start.
    pub fn roots_of(&self, thread: &TreeThread) -> impl Iterator<Item = u32> {
        self.siblings(thread.first as usize, thread.behind as usize)
    }

    /// Returns all rows of one thread, in pre-order.
    pub fn rows_of(&self, thread: &TreeThread) -> &[u32] {
        &self.nodes[thread.first as usize..thread.behind as usize]
    }

    /// Returns the thread of a track, if the tree has rows on it.
    pub fn thread(&self, track: TrackId) -> Option<&TreeThread> {
        let at = self.threads.binary_search_by_key(&track, |thread| thread.track);
        at.ok().map(|at| &self.threads[at])
    }

    /// Returns the innermost row of a thread that contains a time: `start ≤ time < end`.
    ///
    /// # Cost
    /// The cost is `O(log n + depth)`.
    pub fn deepest_at(&self, track: TrackId, time: i64) -> Option<u32> {
        let thread = self.thread(track)?;
        let (first, behind) = (thread.first as usize, thread.behind as usize);
        let started = self.start[first..behind].partition_point(|start| *start <= time);
        let mut node = first + started.checked_sub(1)?;
        // The row that contains the time is the row that started last, or one of its ancestors.
        while self.end[node] <= time {
            node = Some(self.parent[node]).filter(|parent| *parent != NONE)? as usize;
        }
        Some(self.nodes[node])
    }

    /// Returns the innermost operator around a row, or the row itself if it is an operator.
    pub fn operator(&self, trace: &Trace, row: u32) -> Option<u32> {
        let is_operator_row = |row: &u32| trace.kind(*row) == EventKind::Operator;
        std::iter::once(row)
            .filter(|row| self.contains(*row))
            .chain(self.ancestors(row))
            .find(is_operator_row)
    }

    /// Returns the outermost operators and calls, ignoring labels around them, in pre-order.
    pub fn top_rows(&self, trace: &Trace) -> Vec<u32> {
        let mut top = Vec::new();
        let mut node = 0;
        while node < self.nodes.len() {
            let row = self.nodes[node];
            if is_label(trace, row) {
                node += 1;
            } else {
                top.push(row);
                node = self.behind[node] as usize;
            }
        }
        top
    }

    /// Returns only the operators among [`OperatorTree::top_rows`].
    pub fn top_operators(&self, trace: &Trace) -> Vec<u32> {
        let is_operator = |row: &u32| trace.kind(*row) == EventKind::Operator;
        self.top_rows(trace).into_iter().filter(is_operator).collect()
    }

    fn siblings(&self, first: usize, behind: usize) -> impl Iterator<Item = u32> {
        let within = move |node: &usize| *node < behind;
        std::iter::successors(Some(first).filter(within), move |node| {
            Some(self.behind[*node] as usize).filter(within)
        })
        .map(|node| self.nodes[node])
    }

    fn place(&self, row: u32) -> Option<usize> {
        let node = self.node.get(row as usize).copied().filter(|node| *node != NONE);
        node.map(|node| node as usize)
    }
}
