//! Prices graph edits by relaxing the edited graph and comparing step times.

use std::ops::Range;

use super::finding::RowEdit;
use crate::facts::job::JobFacts;
use crate::graph::edit::{Edit, Editor};
use crate::graph::measured::{MeasuredGraph, Pauses, RowNodes};
use crate::graph::{DependencyGraph, NodeTimes};

#[cfg(test)]
mod tests;

/// Computes the savings of edits of trace rows on a measured graph.
pub(super) struct Pricer<'a> {
    measured: &'a MeasuredGraph,
    editor: Editor<'a>,
    nodes: &'a RowNodes,
    pauses: &'a Pauses,
    ranks: Vec<u32>,
    /// The edits that `editor` and `times` reflect at the moment.
    edits: Vec<RowEdit>,
    times: NodeTimes,
}

impl<'a> Pricer<'a> {
    /// # Cost
    /// `O(nodes + edges)`: copies the weights and times of the graph.
    pub fn new(job: &'a JobFacts<'_>) -> Self {
        let measured = job.measured();
        Self {
            measured,
            editor: Editor::new(measured),
            nodes: job.row_nodes(),
            pauses: job.pauses(),
            ranks: job.scopes().iter().map(|scope| scope.trace.rank).collect(),
            edits: Vec::new(),
            times: measured.times.clone(),
        }
    }

    /// Returns the nanoseconds by which the window of a rank would shrink, averaged over all ranks.
    pub fn saving(&mut self, edits: &[RowEdit]) -> i64 {
        self.saving_of(edits, 0..self.measured.ranks.len())
    }

    /// Returns the saving averaged over only some of the ranks, given by their indices.
    pub fn saving_of(&mut self, edits: &[RowEdit], ranks: Range<usize>) -> i64 {
        let measured = self.measured;
        self.after(edits, |_, times| saving(measured, times, ranks))
    }

    /// Applies edits, relaxes the graph and passes the graph and its times to `look`. Repeated
    /// calls with the same edits reuse the relaxed graph.
    pub fn after<T>(
        &mut self,
        edits: &[RowEdit],
        look: impl FnOnce(&DependencyGraph, &NodeTimes) -> T,
    ) -> T {
        if self.edits != edits {
            self.editor.undo();
            for edit in edits {
                if let Some(edit) = self.edit(edit) {
                    self.editor.apply(&edit);
                }
            }
            self.editor.update(&mut self.times);
            self.edits = edits.to_vec();
        }
        look(self.editor.graph(), &self.times)
    }

    /// Returns the graph as it was measured, without edits.
    pub fn measured(&self) -> &'a MeasuredGraph {
        self.measured
    }

    /// Converts an edit of rows to an edit of graph nodes, or returns `None` if the rank does not
    /// exist.
    fn edit(&self, edit: &RowEdit) -> Option<Edit> {
        let scope = self.ranks.iter().position(|rank| *rank == edit.rank)?;
        let nodes = edit.rows.iter().flat_map(|row| self.nodes.get_nodes(scope, *row)).copied();
        let spans = edit.spans.iter().copied();
        let edges = self.pauses.within(self.measured, scope as u32, spans);
        Some(Edit { nodes: nodes.collect(), edges, action: edit.action })
    }
}

/// Returns the nanoseconds by which the window of a rank shrinks, averaged over some ranks.
fn saving(measured: &MeasuredGraph, times: &NodeTimes, ranks: Range<usize>) -> i64 {
    let length = |at: usize, times| measured.length_ns(at, times);
    let shorter = |at: usize| length(at, &measured.times) - length(at, times);
    let count = ranks.len() as i64;
    ranks.map(shorter).sum::<i64>() / count.max(1)
}
