//! Writes the traces of a job into one file with aligned clocks, and refuses to overwrite the
//! traces that were read.

use std::borrow::Cow;
use std::path::Path;

use analyze::classify::ClassRule;
use analyze::{Classifier, Scope, WindowRule, clock, collectives, coverage};
use setup::error::{Error, UsageError};
use trace::export::{self, Options, Overlaps, WhichArguments};
use trace::merge::{self, Offsets};
use trace::store::Job;

/// Writes all ranks of a job on one timeline with aligned clocks.
pub fn write_merged(job: &Job, out: &Path) -> Result<(), Error> {
    let ahead = estimate_clocks(job).into_iter().map(|clock| (clock.rank, clock.correction_ns));
    let offsets = Offsets { ahead_ns: ahead.collect() };
    export::write(out, &merge::merge(job, &offsets), &export_options())?;
    Ok(())
}

/// Options for writing all events with all arguments. Overlapping events are moved to lanes of
/// their own.
pub fn export_options() -> Options {
    Options { overlaps: Overlaps::Lanes, arguments: WhichArguments::All, counters: Vec::new() }
}

/// Checks that `out` is not one of the traces of the job.
///
/// # Errors
/// [`UsageError::OutputIsInput`] if `out` is a trace of the job.
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

/// Estimates the clock offset of every rank from collectives, because a collective ends on all
/// ranks at the same time.
pub fn estimate_clocks(job: &Job) -> Vec<clock::RankClock> {
    let job = &trim_to_covered(job);
    let classifier = Classifier::new(ClassRule::Category);
    let scope = |trace| Scope::new(trace, WindowRule::All, &classifier);
    let scopes: Vec<Scope<'_>> = job.traces.iter().map(scope).collect();
    collectives::match_collectives(&scopes).compare_clocks(&scopes)
}

/// Trims the recordings of a job to the parts that were recorded completely.
pub fn trim_to_covered(job: &Job) -> Cow<'_, Job> {
    if job.traces.iter().all(|trace| trace.cut.is_none()) {
        return Cow::Borrowed(job);
    }
    let mut job = job.clone();
    job.traces.iter_mut().for_each(coverage::trim);
    Cow::Owned(job)
}
