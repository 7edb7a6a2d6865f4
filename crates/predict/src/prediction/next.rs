//! Ranks the parts of a step by how much time the step would gain if they were faster.

use std::collections::BTreeMap;

use analyze::graph::NodeId;
use schema::{CellType, TableRow};
use serde::Serialize;

use crate::program::{Action, MarkKind, Overhead, Program, Returns};
use crate::simulate::Simulation;

/// Kind of the part that a row of possible speedups describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// Host time inside the named operator.
    Operator,
    /// Host time before the named operator.
    Between,
    Work,
    /// Transfer time of the named collective.
    Transfer,
}

/// All parts of a step that share one name, with the time the step would gain if they were faster.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct NextRow {
    pub subject: Subject,
    pub name: String,
    /// Number of parts over all ranks.
    pub count: u64,
    /// Total time of the parts over all ranks.
    pub total_ns: i64,
    /// `dT/dw`: gain of the slowest rank's step if the parts took no time, extrapolated from a
    /// reduction by a tenth.
    pub gradient_ns: i64,
    /// Simulated gain if the parts took no time. The gain is smaller than the gradient if other
    /// work becomes critical.
    pub saving_ns: i64,
    pub saving_pct: f64,
}

/// Share by which parts are shortened to measure the gradient of the step time.
const SHARE: f64 = 0.1;

/// Ranks the parts of a step by the time that the step would gain if they took no time.
///
/// # Cost
/// The graph is solved twice for each name.
pub fn rank_speedups(program: &Program, simulation: &Simulation) -> Vec<NextRow> {
    let ranks = program.ranks.len();
    let step = |of: &Simulation| (0..ranks).map(|rank| of.step_ns(rank)).max().unwrap_or_default();
    let simulation = &simulation.clone().into_steady();
    let whole = step(simulation);
    let mut again = simulation.clone();
    let mut rows = Vec::new();
    for ((subject, name), nodes) in named(program, simulation) {
        let weight = |node: &NodeId| simulation.graph.node(*node).weight;
        let total_ns: i64 = nodes.iter().map(weight).sum();
        if total_ns == 0 {
            continue;
        }
        let mut shortened = |share: f64| {
            for node in &nodes {
                let ns = (weight(node) as f64 * (1.0 - share)).round() as i64;
                again.graph.set_node_weight(*node, ns);
            }
            whole - step(&again.clone().into_steady())
        };
        let gradient_ns = (shortened(SHARE) as f64 / SHARE).round() as i64;
        let saving_ns = shortened(1.0);
        // The weights are restored, so that one copy of the graph serves all names.
        nodes.iter().for_each(|node| again.graph.set_node_weight(*node, weight(node)));
        rows.push(NextRow {
            subject,
            name,
            count: nodes.len() as u64,
            total_ns,
            gradient_ns,
            saving_ns,
            saving_pct: 100.0 * saving_ns as f64 / whole.max(1) as f64,
        });
    }
    rows.sort_by(|a, b| {
        let by = |row: &NextRow| (-row.gradient_ns, -row.saving_ns, row.subject);
        by(a).cmp(&by(b)).then_with(|| a.name.cmp(&b.name))
    });
    rows
}

/// Groups the nodes that have a cost by kind and name of the part they belong to.
fn named(program: &Program, simulation: &Simulation) -> BTreeMap<(Subject, String), Vec<NodeId>> {
    let mut found: BTreeMap<(Subject, String), Vec<NodeId>> = BTreeMap::new();
    for (at, rank) in program.ranks.iter().enumerate() {
        for (place, thread) in rank.threads.iter().enumerate() {
            let mut operator = None;
            for (number, action) in thread.actions.iter().enumerate() {
                let key = match action {
                    Action::Begin(mark) if mark.kind == MarkKind::Operator => {
                        operator = Some(mark.name);
                        continue;
                    }
                    Action::End => {
                        operator = None;
                        continue;
                    }
                    Action::Host(segment) if segment.overhead == Overhead::BetweenOps => {
                        (Subject::Between, segment.op)
                    }
                    Action::Host(segment) => (Subject::Operator, operator.unwrap_or(segment.op)),
                    Action::Call(call) if call.returns == Returns::AtOnce => {
                        (Subject::Operator, operator.unwrap_or(call.cost.op))
                    }
                    _ => continue,
                };
                let key = (key.0, program.text(key.1).to_owned());
                let node = simulation.action_node(at, place, number);
                found.entry(key).or_default().push(node);
            }
        }
        for (number, work) in (0u32..).zip(&rank.works).filter(|(_, work)| work.is_launched) {
            let subject = if work.collective.is_some() { Subject::Transfer } else { Subject::Work };
            let key = (subject, program.text(work.name).to_owned());
            found.entry(key).or_default().push(simulation.work_node(at, number));
        }
    }
    found
}
