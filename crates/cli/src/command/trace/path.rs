//! The command `rowmill trace critical-path`, which prints the chain of work that determines how
//! long the window takes. With `--what-if`, it prints how an edit would change the window.

use analyze::JobFacts;
use analyze::critical_path::Path;
use analyze::graph::measured::MeasuredGraph;
use analyze::what_if::{self, Question, WhatIf};
use trace::store::Trace;

use super::collective::is_usable;
use super::query::TraceQuery;
use crate::args::PathBy;
use setup::error::{Error, UsageError};
use setup::render;

/// Runs `rowmill trace critical-path` and prints its result.
pub fn run(query: &TraceQuery<'_>, by: Option<PathBy>, edits: &[String]) -> Result<(), Error> {
    let questions: Vec<Question> =
        edits.iter().map(|edit| what_if::parse(edit)).collect::<Result<_, _>>()?;
    let scopes = query.chosen.scopes();
    let job = JobFacts::new(&scopes);
    report_evidence(query, job.measured());
    if !questions.is_empty() {
        return print_what_if(query, by, what_if::answer_questions(&job, &questions));
    }
    let all = job.paths();
    let is_usable = |path: &&Path| path.rank.is_some_and(|rank| is_usable(&scopes, rank));
    let ranks: Vec<&Path> = all.ranks.iter().filter(is_usable).collect();
    // For a single rank, the critical path of the job would repeat the path of that rank.
    let job_path = all.job.as_ref().filter(|_| ranks.len() > 1);
    let paths = || ranks.iter().copied().chain(job_path);
    let parts = |path: &Path| path.parts.clone();
    let named = |path: &Path| {
        let most = path.contributors.iter().take(query.target.top.unwrap_or(usize::MAX));
        most.cloned().collect::<Vec<_>>()
    };
    match by.unwrap_or(PathBy::Category) {
        PathBy::Category => query.put(&paths().flat_map(parts).collect::<Vec<_>>()),
        PathBy::Name => query.put(&paths().flat_map(named).collect::<Vec<_>>()),
        PathBy::Segment => print_segments(query, &job, job_path.or(ranks.first().copied())),
    }
}

/// Prints the segments of one critical path in order.
fn print_segments(
    query: &TraceQuery<'_>,
    job: &JobFacts<'_>,
    path: Option<&Path>,
) -> Result<(), Error> {
    query.put(&path.map_or_else(Vec::new, |path| path.rows(job.path_job())))
}

fn print_what_if(
    query: &TraceQuery<'_>,
    by: Option<PathBy>,
    mut found: WhatIf,
) -> Result<(), Error> {
    let nanos = |ns: i64| render::nanos(ns as f64);
    for edit in &found.edits {
        query.session.console.say(format_args!(
            "{}: changes {} pieces of work and {} waits, from {} to {}",
            edit.edit,
            render::count(edit.nodes),
            render::count(edit.edges),
            nanos(edit.old_ns),
            nanos(edit.new_ns)
        ));
        if edit.nodes + edit.edges == 0 {
            query.session.console.warn(format_args!("{} matches nothing", edit.edit));
        } else if edit.changed == 0 {
            query.session.console.warn(format_args!(
                "{} changes nothing: the matching work has no such wait, gap or collective",
                edit.edit
            ));
        }
    }
    // If no recording has a covered part, no figures can be computed, so the tables are cleared.
    if !query.chosen.job.traces.iter().any(Trace::is_usable) {
        found.windows.clear();
        found.parts.clear();
    }
    match by {
        None => query.put(&found.windows),
        Some(PathBy::Category) => query.put(&found.parts),
        Some(_) => Err(UsageError::WhatIfTable.into()),
    }
}

/// With `-v`, prints how many dependencies of the graph were recorded and how many were inferred.
fn report_evidence(query: &TraceQuery<'_>, graph: &MeasuredGraph) {
    let found = graph.evidence;
    query.session.console.detail(format_args!(
        "{} launches ({} pieces of work without one, {} that began before it), waits of the host: {} \
         recorded and {} inferred, of streams: {} and {}, {} hand-offs between threads, {} collectives \
         in which all ranks met",
        found.launches,
        found.orphans,
        found.early,
        found.host_waits_recorded,
        found.host_waits_inferred,
        found.stream_waits_recorded,
        found.stream_waits_inferred,
        found.hand_offs,
        found.rendezvous
    ));
}
