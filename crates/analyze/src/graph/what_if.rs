//! Answers what-if questions: how long the window would be if some work were faster.
//!
//! A question selects nodes, or the edges of a category, and says what happens to them; then
//! everything is relaxed anew. What was not recorded stays as it was measured, and work that shares
//! a device is not slowed down by it: a what-if says what the dependencies allow.

mod question;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

use schema::TableRow;
use serde::Serialize;

use crate::facts::job::JobFacts;
use crate::graph::NodeTimes;
use crate::graph::critical_path::{
    self, PathCategory, Reach, RelaxedGraph, StretchPlace, walk_back,
};
use crate::graph::edit::{Editor, Effect};
use crate::graph::measured::MeasuredGraph;
use crate::percent::percent;

pub use question::{Pattern, Question, Selector, parse};

/// Answers to some what-if questions, with the new length of each window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIf {
    /// What the edits changed, in their order.
    pub edits: Vec<Edited>,
    /// One per rank, in the order of the scopes, then the job's.
    pub windows: Vec<NewWindow>,
    /// The critical paths' parts before and after, by window.
    pub parts: Vec<NewPart>,
}

/// Nodes and time that one edit changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Edited {
    pub edit: String,
    /// Number of nodes that it selected; 0 if nothing matches.
    pub nodes: u64,
    pub edges: u64,
    /// Number of times that it changed; 0 if the selected nodes have no such time, such as no wait.
    pub changed: u64,
    pub old_ns: i64,
    pub new_ns: i64,
}

/// A window before and after.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct NewWindow {
    /// The rank; `None` for the job: from the first start to the last end.
    pub rank: Option<u32>,
    pub window_ns: i64,
    /// Nanoseconds with the edits applied.
    pub new_window_ns: i64,
    /// `window_ns` less `new_window_ns`; negative if it would take longer.
    pub saving_ns: i64,
    /// Share of the measured window.
    pub saving_pct: Option<f64>,
    /// Host time of the window; for the job, of the rank that takes longest.
    pub host_ns: i64,
    /// Host time with the edits applied.
    pub new_host_ns: i64,
    /// Steps of the devices, if they are longer than the host's by more than 1 %. They then define
    /// the window.
    pub device_ns: Option<i64>,
    pub new_device_ns: Option<i64>,
    /// Saving of the devices' steps, in percent.
    pub device_saving_pct: Option<f64>,
}

/// A part of a critical path before and after.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct NewPart {
    /// The rank; `None` for the job's path.
    pub rank: Option<u32>,
    pub category: PathCategory,
    /// Nanoseconds on the measured path.
    pub duration_ns: i64,
    /// Nanoseconds on the critical path with the edits, which may be another path.
    pub new_duration_ns: i64,
}

/// Applies edits to a job's measured graph in order. Factors multiply if several edits select the
/// same node.
///
/// # Cost
/// `O(nodes + edges)` per edit.
pub fn answer_questions(job: &JobFacts<'_>, questions: &[Question]) -> WhatIf {
    let measured = job.measured();
    let mut editor = Editor::new(measured);
    let edited = questions.iter().map(|one| edited(job, one, &mut editor)).collect();
    let (times, graph) = (editor.times(), editor.graph());
    let recorded = RelaxedGraph::recorded(measured);
    let edited_graph = RelaxedGraph { measured, graph, times: &times };
    let mut found = WhatIf { edits: edited, windows: Vec::new(), parts: Vec::new() };
    for (at, markers) in measured.ranks.iter().enumerate() {
        let window_ns = measured.length_ns(at, &measured.times);
        let new_window_ns = measured.length_ns(at, &times);
        let sides = [&measured.times, &times].map(|times| sides(measured, [at], times));
        found.windows.push(window(Some(markers.rank), window_ns, new_window_ns, sides));
        let rank = Some(markers.rank);
        let old = sums(recorded, at, Reach::Rank);
        found.parts.extend(changes(rank, &old, &sums(edited_graph, at, Reach::Rank)));
    }
    let ends = |times: &NodeTimes| {
        let last = critical_path::last_to_end(measured, times)?;
        let length = times.start[measured.ranks[last].end.index()] - times.origin;
        let longest = (0..measured.ranks.len()).map(|at| measured.length_ns(at, times)).max()?;
        Some((last, length.max(longest)))
    };
    if let Some((old, new)) = ends(&measured.times).zip(ends(&times)) {
        let sides =
            [&measured.times, &times].map(|times| sides(measured, 0..measured.ranks.len(), times));
        found.windows.push(window(None, old.1, new.1, sides));
        let before = sums(recorded, old.0, Reach::Job);
        let after = sums(edited_graph, new.0, Reach::Job);
        found.parts.extend(changes(None, &before, &after));
    }
    found
}

/// Returns the longest times of some ranks, on the host and on devices.
fn sides(
    measured: &MeasuredGraph,
    ranks: impl IntoIterator<Item = usize>,
    times: &NodeTimes,
) -> (i64, Option<i64>) {
    let each = |at| (measured.host_ns(at, times), measured.device_ns(at, times));
    let longest = |a: (i64, Option<i64>), b: (i64, Option<i64>)| (a.0.max(b.0), a.1.max(b.1));
    ranks.into_iter().map(each).reduce(longest).unwrap_or_default()
}

fn window(
    rank: Option<u32>,
    window_ns: i64,
    new_window_ns: i64,
    [old, new]: [(i64, Option<i64>); 2],
) -> NewWindow {
    let saving_ns = window_ns - new_window_ns;
    let shorter = old.1.zip(new.1).map(|(old, new)| (old - new, old));
    NewWindow {
        rank,
        window_ns,
        new_window_ns,
        saving_ns,
        saving_pct: percent(saving_ns, window_ns),
        host_ns: old.0,
        new_host_ns: new.0,
        device_ns: old.1,
        new_device_ns: new.1,
        device_saving_pct: shorter.and_then(|(shorter, old)| percent(shorter, old)),
    }
}

/// Nanoseconds of a critical path by category.
type CategorySums = BTreeMap<PathCategory, i64>;

fn sums(relaxed: RelaxedGraph<'_>, rank: usize, reach: Reach) -> CategorySums {
    let mut sums = CategorySums::new();
    for stretch in walk_back(relaxed, rank, reach) {
        let ns = stretch.end - stretch.start;
        let mut add = |category, ns: i64| *sums.entry(category).or_insert(0) += ns;
        match (stretch.what, stretch.category) {
            (StretchPlace::Edge(edge), PathCategory::PythonFrame | PathCategory::UntracedHost) => {
                // Frames keep their share of a pause whose length changes.
                let (framed, passed) = relaxed.measured.framed_ns(&relaxed.graph.edge(edge));
                let python = i128::from(ns) * i128::from(framed) / i128::from(passed.max(1));
                let python = i64::try_from(python).unwrap_or(ns);
                add(PathCategory::PythonFrame, python);
                add(PathCategory::UntracedHost, ns - python);
            }
            (_, category) => add(category, ns),
        }
    }
    sums.retain(|_, ns| *ns > 0);
    sums
}

fn changes(rank: Option<u32>, old: &CategorySums, new: &CategorySums) -> Vec<NewPart> {
    let mut all: BTreeMap<PathCategory, (i64, i64)> = BTreeMap::new();
    old.iter().for_each(|(category, ns)| all.entry(*category).or_default().0 = *ns);
    new.iter().for_each(|(category, ns)| all.entry(*category).or_default().1 = *ns);
    let one = |(category, (duration_ns, new_duration_ns))| NewPart {
        rank,
        category,
        duration_ns,
        new_duration_ns,
    };
    all.into_iter().map(one).collect()
}

fn edited(job: &JobFacts<'_>, question: &Question, editor: &mut Editor<'_>) -> Edited {
    let edit = question::edit(job, question);
    let Effect { changed, old_ns, new_ns } = editor.apply(&edit);
    Edited {
        edit: question.text.clone(),
        nodes: edit.nodes.len() as u64,
        edges: edit.edges.len() as u64,
        changed,
        old_ns,
        new_ns,
    }
}
