//! `rowmill trace critical-path`: what bounds the window, and what an edit would change.

use analyze::critical_path::Path;
use analyze::graph::measured::MeasuredGraph;
use analyze::what_if::{self, Question, WhatIf};
use analyze::{JobFacts, Scope};
use trace::store::Trace;

use super::collective::is_usable;
use super::query::TraceQuery;
use crate::args::PathBy;
use setup::error::{Error, UsageError};
use setup::render;

/// Runs `rowmill trace critical-path` and prints its result.
pub fn run(look: &TraceQuery<'_>, by: Option<PathBy>, edits: &[String]) -> Result<(), Error> {
    let questions: Vec<Question> =
        edits.iter().map(|edit| what_if::parse(edit)).collect::<Result<_, _>>()?;
    let scopes = look.chosen.scopes();
    let job = JobFacts::new(&scopes);
    say_evidence(look, job.measured());
    if !questions.is_empty() {
        return changed(look, by, &what_if::answer_questions(&job, &questions));
    }
    let found = job.paths();
    let is_usable = |path: &&Path| path.rank.is_some_and(|rank| is_usable(&scopes, rank));
    let ranks: Vec<&Path> = found.ranks.iter().filter(is_usable).collect();
    // The path of a job of one rank is that rank's.
    let hopping = found.job.as_ref().filter(|_| ranks.len() > 1);
    let paths = || ranks.iter().copied().chain(hopping);
    let parts = |path: &Path| path.parts.clone();
    let named = |path: &Path| {
        let most = path.contributors.iter().take(look.target.top.unwrap_or(usize::MAX));
        most.cloned().collect::<Vec<_>>()
    };
    match by.unwrap_or(PathBy::Category) {
        PathBy::Category => look.put(&paths().flat_map(parts).collect::<Vec<_>>()),
        PathBy::Name => look.put(&paths().flat_map(named).collect::<Vec<_>>()),
        PathBy::Segment => segments(look, &scopes, hopping.or(ranks.first().copied())),
    }
}

/// The stretches of one path: the job's, where there are several ranks.
fn segments(look: &TraceQuery<'_>, scopes: &[Scope<'_>], path: Option<&Path>) -> Result<(), Error> {
    look.put(&path.map_or_else(Vec::new, |path| path.rows(scopes)))
}

fn changed(look: &TraceQuery<'_>, by: Option<PathBy>, found: &WhatIf) -> Result<(), Error> {
    let nanos = |ns: i64| render::nanos(ns as f64);
    for edit in &found.edits {
        look.session.console.say(format_args!(
            "{}: {} pieces of work and {} waits, {} → {}",
            edit.edit,
            render::count(edit.nodes),
            render::count(edit.edges),
            nanos(edit.old_ns),
            nanos(edit.new_ns)
        ));
        if edit.nodes + edit.edges == 0 {
            look.session.console.warn(format_args!("{} matches nothing", edit.edit));
        } else if edit.changed == 0 {
            look.session.console.warn(format_args!(
                "{} changes nothing: what it matches has no such wait, gap or collective of several \
                 ranks",
                edit.edit
            ));
        }
    }
    match by {
        // Nothing can be said of what is not covered.
        _ if !look.chosen.job.traces.iter().any(Trace::is_usable) => look.put::<()>(&[]),
        None => look.put(&found.windows),
        Some(PathBy::Category) => look.put(&found.parts),
        Some(_) => Err(UsageError::WhatIfTable.into()),
    }
}

/// What the dependencies rest on, with `-v`.
fn say_evidence(look: &TraceQuery<'_>, graph: &MeasuredGraph) {
    let found = graph.evidence;
    look.session.console.detail(format_args!(
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
