//! Trace files that commands write from a job: merged ranks, aligned clocks, and never over what
//! was read.

use std::borrow::Cow;
use std::path::Path;

use analyze::classify::ClassRule;
use analyze::{Classifier, Scope, WindowRule, clock, collectives, coverage};
use setup::error::{Error, UsageError};
use trace::export::{self, Options, Overlaps, WhichArguments};
use trace::merge::{self, Offsets};
use trace::store::Job;

/// Puts the ranks of a job on one timeline, clocks aligned.
pub fn write_merged(job: &Job, out: &Path) -> Result<(), Error> {
    let ahead = clocks(job).into_iter().map(|clock| (clock.rank, clock.correction_ns));
    let offsets = Offsets { ahead_ns: ahead.collect() };
    export::write(out, &merge::merge(job, &offsets), &export_options())?;
    Ok(())
}

/// Options for writing all events with all arguments; overlapping events get lanes of their own.
pub fn export_options() -> Options {
    Options { overlaps: Overlaps::Lanes, arguments: WhichArguments::All, counters: Vec::new() }
}

/// Refuses to write over a trace that was read.
pub fn refuse_input(job: &Job, out: &Path) -> Result<(), Error> {
    match job.traces.iter().find(|trace| is_same(&trace.origin.path, out)) {
        Some(trace) => Err(UsageError::OutputIsInput { path: trace.origin.path.clone() }.into()),
        None => Ok(()),
    }
}

/// Whether two paths lead to the same existing file.
pub fn is_same(path: &Path, other: &Path) -> bool {
    path.canonicalize().ok().zip(other.canonicalize().ok()).is_some_and(|(a, b)| a == b)
}

/// The clocks of a job's ranks, by the ends of their collectives.
pub fn clocks(job: &Job) -> Vec<clock::RankClock> {
    let job = &covered(job);
    let classifier = Classifier::new(ClassRule::Category);
    let scope = |trace| Scope::new(trace, WindowRule::All, &classifier);
    let scopes: Vec<Scope<'_>> = job.traces.iter().map(scope).collect();
    collectives::match_collectives(&scopes).compare_clocks(&scopes)
}

/// The job without what cut recordings do not cover.
pub fn covered(job: &Job) -> Cow<'_, Job> {
    if job.traces.iter().all(|trace| trace.cut.is_none()) {
        return Cow::Borrowed(job);
    }
    let mut job = job.clone();
    job.traces.iter_mut().for_each(coverage::trim);
    Cow::Owned(job)
}
