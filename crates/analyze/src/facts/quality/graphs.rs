//! Reports kernels of CUDA graphs that the profiler seems to have left out.

use super::issue::{Issue, IssueKind, Severity, milliseconds, place};
use crate::facts::job::RankFacts;

/// Reports long gaps without device work that end with work of a graph, although the graph was
/// launched before the gap ended.
pub(super) fn issue(rank: &RankFacts<'_>) -> Option<Issue> {
    let trace = rank.scope.trace;
    let stalls = rank.partial_graphs()?;
    let share = rank.share(stalls.in_graphs_ns);
    let is_of_graph = |row: &u32| rank.is_of_graph(*row);
    let ended = || stalls.gaps.iter().filter_map(|gap| Some((gap.idle_ns, gap.ending_row?)));
    let (_, longest) = ended().filter(|(_, row)| is_of_graph(row)).max()?;
    let kind = IssueKind {
        id: "partial-graphs",
        severity: Severity::Warning,
        matters: "the device seems idle where kernels of graphs may have run: its compute time may be \
                  too short and its idle time too long",
        hint: "record a step once without graphs, or with a newer profiler: kernels that appear there \
               in these gaps were left out here; if none do, look for waits on events of other \
               streams and on other ranks",
    };
    // Without steps, `per_step` returns the time in the whole window.
    let steps = if rank.scope.window.steps.is_empty() { "in the window" } else { "per step" };
    let what = format!(
        "for {} {steps} ({share:.1} % of the window) no work of the device was recorded before work of \
         graphs that had been launched long before: the profiler may have left out kernels of these \
         graphs; {}",
        milliseconds(rank.per_step(stalls.in_graphs_ns)),
        seen_of_graphs(rank)
    );
    let count = ended().filter(|(_, row)| is_of_graph(row)).count() as u64;
    let issue = kind.issue(Some(trace.rank), count, what).share(Some(share));
    Some(issue.at(place(rank.scope, longest)))
}

/// Describes how many kernels of each graph launch were recorded, compared between steps.
fn seen_of_graphs(rank: &RankFacts<'_>) -> String {
    let links = rank.scope.links();
    let steps = &rank.scope.window.steps;
    let mut works: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
    let is_graph = |row: &&u32| rank.name(**row).contains("GraphLaunch");
    for call in rank.calls().iter().filter(is_graph) {
        if let Some(at) = rank.step_at(rank.start(*call)) {
            works[at].push(links.work(*call).len());
        }
    }
    // If every step recorded equally many kernels, the profiler may still have left out the same
    // ones each time.
    let same = works.first().filter(|first| works.len() > 1 && works.iter().all(|of| of == *first));
    let unlike = (0..works.iter().map(Vec::len).max().unwrap_or(0))
        .filter(|at| works.iter().any(|of| of.get(*at) != works[0].get(*at)))
        .count();
    match same {
        Some(counts) if !counts.is_empty() => format!(
            "each of the {} launches of graphs in a step recorded as much work in all {} steps, so \
             that what is missing, if anything, is missing every time",
            counts.len(),
            steps.len()
        ),
        None if works.len() > 1 && unlike > 0 => format!(
            "{unlike} of the launches of graphs in a step recorded more work in one step than in \
             another"
        ),
        _ => "only one step was recorded, with which nothing can be compared".to_owned(),
    }
}
