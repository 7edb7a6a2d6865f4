//! Answers what-if questions, which ask how long the window would be if some work were faster.
//!
//! A question selects nodes, or edges of a category, and states how they change. The whole graph is
//! then relaxed again. Unrecorded time stays as it was measured, and work does not slow down other
//! work on the same device. The answer therefore says what the dependencies alone allow.

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
    /// The nodes and times that each edit changed, in the order of the edits.
    pub edits: Vec<Edited>,
    /// The windows of the ranks in the order of the scopes, and then the window of the job.
    pub windows: Vec<NewWindow>,
    /// The parts of the critical paths before and after the edits, window by window.
    pub parts: Vec<NewPart>,
}

/// Number of nodes and total time that one edit changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Edited {
    pub edit: String,
    /// Number of nodes that the edit selected; 0 if nothing matches.
    pub nodes: u64,
    pub edges: u64,
    /// Number of times that the edit changed; 0 if the selected nodes have no time of that kind,
    /// such as no wait.
    pub changed: u64,
    pub old_ns: i64,
    pub new_ns: i64,
}

/// Length of a window before and after the edits.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct NewWindow {
    /// The rank of the window; `None` for the job, whose window reaches from the first start to the
    /// last end.
    pub rank: Option<u32>,
    pub window_ns: i64,
    /// Length of the window in nanoseconds with the edits applied.
    pub new_window_ns: i64,
    /// `window_ns` minus `new_window_ns`, which is negative if the window would become longer.
    pub saving_ns: i64,
    /// Saving as a share of the measured window, in percent.
    pub saving_pct: Option<f64>,
    /// Length of the window on the host; for the job, that of the rank with the longest window.
    pub host_ns: i64,
    /// Length of the window on the host with the edits applied.
    pub new_host_ns: i64,
    /// Length of the devices' steps, if they are longer than the host's by more than 1 %. Such
    /// longer steps of the devices define the window.
    pub device_ns: Option<i64>,
    pub new_device_ns: Option<i64>,
    /// Saving as a share of the devices' steps, in percent.
    pub device_saving_pct: Option<f64>,
}

/// A part of a critical path before and after the edits.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct NewPart {
    /// The rank of the path; `None` for the path of the job.
    pub rank: Option<u32>,
    pub category: PathCategory,
    /// Nanoseconds on the critical path before the edits.
    pub duration_ns: i64,
    /// Nanoseconds on the critical path with the edits applied, which may be another path.
    pub new_duration_ns: i64,
}

/// Applies edits to the measured graph of a job, in the given order. Factors multiply if several
/// edits select the same node.
///
/// # Cost
/// The cost is `O(nodes + edges)` per edit.
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
        let length = times.end[measured.ranks[last].end.index()] - times.origin;
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

/// Returns the longest times among some ranks, on the host and on the devices.
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

/// Nanoseconds on a critical path by category.
type CategorySums = BTreeMap<PathCategory, i64>;

fn sums(relaxed: RelaxedGraph<'_>, rank: usize, reach: Reach) -> CategorySums {
    let mut sums = CategorySums::new();
    for stretch in walk_back(relaxed, rank, reach) {
        let ns = stretch.end - stretch.start;
        let mut add = |category, ns: i64| *sums.entry(category).or_insert(0) += ns;
        match (stretch.what, stretch.category) {
            (StretchPlace::Edge(edge), PathCategory::PythonFrame | PathCategory::UntracedHost) => {
                // If the length of a pause changes, Python frames keep their share of it.
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
