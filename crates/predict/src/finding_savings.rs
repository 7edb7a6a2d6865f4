//! Computes the savings of findings by simulation instead of on the graph of the recording. Rows of
//! remedies are mapped to works and actions of the step's program.

use analyze::findings::{self, Action as RowAction, Finding, RowEdit};
use analyze::graph::{DependencyGraph, EdgeKind, NodeId};

use crate::program::{Action, Overhead, Returns};
use crate::recording::{Place, Step};
use crate::simulate::Simulation;

/// Weight of an edge that no longer delays its target. This weight is earlier than any time and far
/// from overflow.
const NEVER: i64 = -(1 << 60);

/// Computes the savings of findings on the simulation of a recorded step and sorts the findings by
/// them. Returns the number of findings that were repriced.
///
/// A finding keeps the saving from its recording if its remedy cannot be expressed in the program.
/// Such remedies are edits of nested operators, of device gaps, of earlier ranks, or only of rows
/// of other steps. [`Saving::source`](findings::Saving::source) says where a saving comes from.
/// `is_inside` decides whether a row of a rank belongs to the step.
///
/// # Cost
/// `O(n)` for each finding, where `n` is the number of nodes of the simulation.
pub fn reprice_findings(
    step: &Step,
    simulation: &Simulation,
    is_inside: impl Fn(u32, u32) -> bool,
    findings: &mut [Finding],
) -> usize {
    let ranks = step.program.ranks.len();
    let simulation = &simulation.clone().into_steady();
    let before: Vec<i64> = (0..ranks).map(|rank| simulation.step_ns(rank)).collect();
    let longest = before.iter().copied().max().unwrap_or_default();
    let mut repriced = 0;
    for finding in findings.iter_mut() {
        let Some(remedy) = finding.remedy.as_ref().filter(|_| finding.saving.is_some()) else {
            continue;
        };
        let mut edited =
            EditedSimulation { step, simulation, graph: simulation.graph.clone(), changed: 0 };
        let all = remedy.edits.iter().all(|edit| edited.apply(edit, &is_inside).is_some());
        if !all || edited.changed == 0 {
            continue;
        }
        let mut again = simulation.clone();
        again.graph = edited.graph;
        let again = again.into_steady();
        let saved: i64 = (0..ranks).map(|rank| before[rank] - again.step_ns(rank)).sum();
        let is_repriced = findings::reprice(finding, saved / ranks.max(1) as i64, longest);
        repriced += usize::from(is_repriced);
    }
    // Savings by the recording become shares of the same step as those by simulation.
    for saving in findings.iter_mut().filter_map(|finding| finding.saving.as_mut()) {
        saving.mid_pct = (1e5 * saving.mid_ns as f64 / longest.max(1) as f64).round() / 1e3;
    }
    findings::sort(findings);
    repriced
}

/// A simulated step on which the edits of one remedy are being applied.
struct EditedSimulation<'a> {
    step: &'a Step,
    simulation: &'a Simulation,
    graph: DependencyGraph,
    changed: usize,
}

impl EditedSimulation<'_> {
    /// Applies an edit of rows. Returns `None` if a row of the step has no counterpart in the
    /// program.
    fn apply(&mut self, edit: &RowEdit, is_inside: &impl Fn(u32, u32) -> bool) -> Option<()> {
        // A program contains only time that rows cover, so edits of bare time spans have no
        // counterpart.
        if !edit.spans.is_empty() {
            return None;
        }
        let ranks = &self.step.program.ranks;
        let rank = ranks.iter().position(|rank| rank.rank == edit.rank)?;
        for row in edit.rows.iter().filter(|row| is_inside(edit.rank, **row)) {
            let place = *self.step.recorded.ranks[rank].rows.get(row)?;
            self.apply_action(rank, place, edit.action)?;
            self.changed += 1;
        }
        Some(())
    }

    fn apply_action(&mut self, rank: usize, place: Place, action: RowAction) -> Option<()> {
        match action {
            RowAction::Scale(factor) => self.scale(&self.nodes(rank, place), factor),
            RowAction::Overlap => self.scale(&self.nodes(rank, place), 0.0),
            RowAction::ShortenTo(ns) => {
                let nodes = self.nodes(rank, place);
                let total: i64 = nodes.iter().map(|node| self.graph.node(*node).weight).sum();
                if total > ns {
                    self.scale(&nodes, ns.max(0) as f64 / total as f64);
                }
            }
            RowAction::Unblock => self.unblock(rank, place)?,
            RowAction::CloseGap => self.close_gap(rank, place)?,
            RowAction::ArriveEarlier(_) => return None,
        }
        Some(())
    }

    /// Returns the nodes whose weights add up to the cost of a place.
    fn nodes(&self, rank: usize, place: Place) -> Vec<NodeId> {
        let (thread, range) = match place {
            Place::Work(work) => return vec![self.simulation.work_node(rank, work)],
            Place::Actions { thread, first, last } => (thread, first..=last),
        };
        let actions = &self.step.program.ranks[rank].threads[thread].actions;
        let costs = |at: &usize| match &actions[*at] {
            Action::Host(_) => true,
            Action::Call(call) => call.returns == Returns::AtOnce,
            _ => false,
        };
        let places = range.filter(costs);
        places.map(|at| self.simulation.action_node(rank, thread, at)).collect()
    }

    fn scale(&mut self, nodes: &[NodeId], factor: f64) {
        for node in nodes {
            let weight = self.graph.node(*node).weight as f64 * factor;
            self.graph.set_node_weight(*node, weight.round() as i64);
        }
    }

    /// Removes the waits of host actions for device work.
    fn unblock(&mut self, rank: usize, place: Place) -> Option<()> {
        let Place::Actions { thread, first, last } = place else { return None };
        let actions = &self.step.program.ranks[rank].threads[thread].actions;
        for (at, action) in actions.iter().enumerate().take(last + 1).skip(first) {
            if !matches!(action, Action::Call(_) | Action::Wait(_)) {
                continue;
            }
            let node = self.simulation.action_node(rank, thread, at);
            let waits = self.graph.edges_into(node);
            let waits = waits.filter(|(_, edge)| edge.kind == EdgeKind::Synchronization);
            for edge in waits.map(|(id, _)| id).collect::<Vec<_>>() {
                self.graph.set_edge_weight(edge, NEVER);
            }
        }
        Some(())
    }

    /// Removes the host time between a place and the operator before it on its thread.
    fn close_gap(&mut self, rank: usize, place: Place) -> Option<()> {
        let Place::Actions { thread, first, .. } = place else { return None };
        let before = first.checked_sub(1)?;
        let actions = &self.step.program.ranks[rank].threads[thread].actions;
        match &actions[before] {
            Action::Host(gap) if gap.overhead == Overhead::BetweenOps => {
                let node = self.simulation.action_node(rank, thread, before);
                self.graph.set_node_weight(node, 0);
                Some(())
            }
            _ => None,
        }
    }
}
