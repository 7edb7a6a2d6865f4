//! The commands `rowmill trace …`, which print tables about the traces of a job. There is one
//! function per table.
//!
//! The analyses are part of the crate `analyze`. `setup::table_output` prints their rows.

use std::process::ExitCode;

use analyze::sequences::SequenceRequest;

use crate::args::{Trace, TraceVerb};
use convert::ConversionRequest;
use query::TraceQuery;
use setup::Session;
use setup::args::Selection;
use setup::error::Error;

mod collective;
mod convert;
mod device;
mod diff;
mod doctor;
mod execution;
mod finding;
mod host;
mod path;
mod query;
mod report;
mod serve;
mod summary;
#[cfg(test)]
mod tests;

/// Runs the chosen verb of `rowmill trace`, or prints the summary of a job.
pub fn run(args: &Trace, session: &Session) -> Result<ExitCode, Error> {
    let done = |()| ExitCode::SUCCESS;
    let Some(verb) = &args.verb else {
        return summary::run(&args.selection, session).map(done);
    };
    let open = |selection| TraceQuery::new(selection, session);
    match verb {
        TraceVerb::Breakdown { selection, by } => device::breakdown(&open(selection)?, *by),
        TraceVerb::Idle { selection, by, kernel_wait_ns } => {
            device::idle(&open(selection)?, *by, *kernel_wait_ns)
        }
        TraceVerb::Overlap { selection, by } => device::overlap(&open(selection)?, *by),
        TraceVerb::Kernels { selection, by } => device::kernels(&open(selection)?, *by),
        TraceVerb::Launches { selection, by } => device::launches(&open(selection)?, *by),
        TraceVerb::Queue { selection, by } => device::queue(&open(selection)?, *by),
        TraceVerb::Memory { selection, by } => host::memory(&open(selection)?, *by),
        TraceVerb::Ops { selection, by, operator, kernels_min } => {
            let pattern = SequenceRequest { operator, kernels_min: *kernels_min };
            host::ops(&open(selection)?, *by, pattern)
        }
        TraceVerb::Steps { selection, by } => host::steps(&open(selection)?, *by),
        TraceVerb::Collectives { selection, by } => {
            let all = all_ranks(selection);
            collective::collectives(&open(&all)?, *by, &selection.ranks)
        }
        TraceVerb::Stragglers { selection, by } => {
            let all = all_ranks(selection);
            collective::stragglers(&open(&all)?, *by, &selection.ranks)
        }
        TraceVerb::CriticalPath { selection, by, what_if } => {
            path::run(&open(selection)?, *by, what_if)
        }
        TraceVerb::Diff { selection, by, report } => {
            diff::run(selection, *by, report.as_deref(), session)
        }
        TraceVerb::Merge { paths, out, ranks, keep_clocks } => {
            convert::merge(&ConversionRequest { paths, out, ranks, session }, *keep_clocks)
        }
        TraceVerb::Convert { paths, out, ranks, to } => {
            convert::convert(&ConversionRequest { paths, out, ranks, session }, *to)
        }
        TraceVerb::Findings { selection, fail_on, rules, write_edit } => {
            let query = open(selection)?;
            return finding::run(&query, rules.as_deref(), *fail_on, write_edit.as_deref());
        }
        TraceVerb::Doctor { selection } => return doctor::run(&open(selection)?),
        TraceVerb::Report { content, output } => report::run(content, output, session),
        TraceVerb::Serve { content, port } => serve::run(content, *port, session),
        TraceVerb::ExecutionTrace { paths, kineto, output } => {
            execution::run(paths, kineto, output.as_deref(), session)
        }
    }
    .map(done)
}

/// Extends a selection to all ranks, because only a comparison of all ranks shows which rank was
/// last.
fn all_ranks(selection: &Selection) -> Selection {
    Selection { ranks: Vec::new(), ..selection.clone() }
}
