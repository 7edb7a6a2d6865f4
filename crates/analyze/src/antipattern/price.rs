//! What the edits of a finding save. Knows no rule.

use std::ops::Range;

use super::finding::RowEdit;
use crate::graph::edit::{Edit, Editor};
use crate::graph::measured::{MeasuredGraph, Pauses, RowNodes};
use crate::graph::{DependencyGraph, NodeTimes};
use crate::scope::Scope;

#[cfg(test)]
mod tests;

/// A graph that is asked what edits of rows save.
pub(super) struct Pricer<'a> {
    measured: &'a MeasuredGraph,
    editor: Editor<'a>,
    nodes: RowNodes,
    pauses: Pauses,
    ranks: Vec<u32>,
    /// The edits that the editor and `times` hold.
    edits: Vec<RowEdit>,
    times: NodeTimes,
}

impl<'a> Pricer<'a> {
    /// # Cost
    /// `O(nodes + edges + rows)`.
    pub fn new(scopes: &[Scope<'_>], measured: &'a MeasuredGraph) -> Self {
        Self {
            measured,
            editor: Editor::new(measured),
            nodes: RowNodes::new(scopes, measured),
            pauses: Pauses::new(measured),
            ranks: scopes.iter().map(|scope| scope.trace.rank).collect(),
            edits: Vec::new(),
            times: measured.times.clone(),
        }
    }

    /// Nanoseconds by which the window of a rank would shrink, averaged over ranks.
    pub fn saving(&mut self, edits: &[RowEdit]) -> i64 {
        self.saving_of(edits, 0..self.measured.ranks.len())
    }

    /// The same of the ranks at some places.
    pub fn saving_of(&mut self, edits: &[RowEdit], ranks: Range<usize>) -> i64 {
        let measured = self.measured;
        self.after(edits, |_, times| saving(measured, times, ranks))
    }

    /// Passes the edited graph and its times to `look`. Asking again with the same edits costs
    /// nothing: the graph is relaxed anew only for other ones.
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

    /// The graph as it was measured.
    pub fn measured(&self) -> &'a MeasuredGraph {
        self.measured
    }

    /// The nodes of rows; `None` for a rank that is not there.
    fn edit(&self, edit: &RowEdit) -> Option<Edit> {
        let scope = self.ranks.iter().position(|rank| *rank == edit.rank)?;
        let nodes = edit.rows.iter().flat_map(|row| self.nodes.of_row(scope, *row)).copied();
        let edges = self.pauses.within(scope as u32, edit.spans.iter().copied());
        Some(Edit { nodes: nodes.collect(), edges, action: edit.action })
    }
}

/// Nanoseconds by which the window of a rank would shrink, averaged over ranks.
fn saving(measured: &MeasuredGraph, times: &NodeTimes, ranks: Range<usize>) -> i64 {
    let length = |at: usize, times| measured.length_ns(at, times);
    let shorter = |at: usize| length(at, &measured.times) - length(at, times);
    let count = ranks.len() as i64;
    ranks.map(shorter).sum::<i64>() / count.max(1)
}
