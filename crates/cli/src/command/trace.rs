//! `rowmill trace …`: what a job's traces tell. One function per table; the analyses are in
//! `analyze`, the way rows are printed in `sheet`.

use std::path::PathBuf;
use std::process::ExitCode;

use analyze::job::{JobFacts, RankFacts};
use analyze::sequences::SequenceRequest;
use serde::Serialize;

use crate::args::{Trace, TraceVerb};
use file::WrittenTraceFile;
use setup::Session;
use setup::args::{OutputFormat, Selection};
use setup::error::Error;
use setup::open_job::{SelectedJob, open_selection};
use setup::table_output::{self, TableTarget};

mod collective;
mod device;
mod diff;
mod doctor;
mod execution;
pub mod file;
pub(super) mod finding;
mod host;
mod path;
pub mod report;
mod serve;
pub mod summary;

/// Runs the command.
pub fn run(args: &Trace, session: &Session) -> Result<ExitCode, Error> {
    let done = |()| ExitCode::SUCCESS;
    let Some(verb) = &args.verb else {
        return summary::run(&args.selection, session).map(done);
    };
    let look = |selection| TraceLook::new(selection, session);
    match verb {
        TraceVerb::Breakdown { selection, by } => device::breakdown(&look(selection)?, *by),
        TraceVerb::Idle { selection, by, kernel_wait_ns } => {
            device::idle(&look(selection)?, *by, *kernel_wait_ns)
        }
        TraceVerb::Overlap { selection, by } => device::overlap(&look(selection)?, *by),
        TraceVerb::Kernels { selection, by } => device::kernels(&look(selection)?, *by),
        TraceVerb::Launches { selection, by } => device::launches(&look(selection)?, *by),
        TraceVerb::Queue { selection, by } => device::queue(&look(selection)?, *by),
        TraceVerb::Memory { selection, by } => host::memory(&look(selection)?, *by),
        TraceVerb::Ops { selection, by, operator, kernels_min } => {
            let pattern = SequenceRequest { operator, kernels_min: *kernels_min };
            host::ops(&look(selection)?, *by, pattern)
        }
        TraceVerb::Steps { selection, by } => host::steps(&look(selection)?, *by),
        TraceVerb::Collectives { selection, by } => {
            let all = all_ranks(selection);
            collective::collectives(&look(&all)?, *by, &selection.ranks)
        }
        TraceVerb::Stragglers { selection, by } => {
            let all = all_ranks(selection);
            collective::stragglers(&look(&all)?, *by, &selection.ranks)
        }
        TraceVerb::CriticalPath { selection, by, what_if } => {
            path::run(&look(selection)?, *by, what_if)
        }
        TraceVerb::Diff { selection, by, report } => {
            diff::run(selection, (*by, report.as_deref()), session)
        }
        TraceVerb::Merge { paths, out, ranks, keep_clocks } => {
            file::merge(&WrittenTraceFile { paths, out, ranks, session }, *keep_clocks)
        }
        TraceVerb::Convert { paths, out, ranks, to } => {
            file::convert(&WrittenTraceFile { paths, out, ranks, session }, *to)
        }
        TraceVerb::Findings { selection, fail_on, rules } => {
            return finding::run(&look(selection)?, rules.as_deref(), *fail_on);
        }
        TraceVerb::Doctor { selection } => return doctor::run(&look(selection)?),
        TraceVerb::Report { content, output } => report::run(content, output, session),
        TraceVerb::Serve { content, port } => serve::run(content, *port, session),
        TraceVerb::ExecutionTrace { paths, kineto, output } => {
            execution::run(paths, kineto, output.as_deref(), session)
        }
    }
    .map(done)
}

/// Traces that were chosen, and where the rows go.
struct TraceLook<'a> {
    chosen: SelectedJob,
    session: &'a Session,
    target: TableTarget<'a>,
}

impl<'a> TraceLook<'a> {
    fn new(selection: &'a Selection, session: &'a Session) -> Result<Self, Error> {
        let target = TableTarget { output: selection.output.as_deref(), top: selection.top };
        Ok(Self { chosen: open_selection(selection, session)?, session, target })
    }

    fn put<T: Serialize>(&self, rows: &[T]) -> Result<(), Error> {
        if let Some(output) = self.target.output {
            file::refuse_input(&self.chosen.job, output)?;
        }
        let console = self.session.console;
        let missing = self.chosen.missing.as_deref();
        match (missing, console.format) {
            // For people it is the first line.
            (None, _) | (_, OutputFormat::Table) => {
                table_output::write_rows(console, rows, self.target)
            }
            // A table without rows has no columns, and would pass as one of a whole recording.
            (Some(_), _) if rows.is_empty() => table_output::write_rows(
                console,
                &[Marked::<()> { of: None, recording_cut: missing }],
                self.target,
            ),
            (Some(_), _) => {
                let marked = |row| Marked { of: Some(row), recording_cut: missing };
                table_output::write_rows(
                    console,
                    &rows.iter().map(marked).collect::<Vec<_>>(),
                    self.target,
                )
            }
        }
    }

    /// A page with what is missing of its recordings.
    fn marked<'p, T>(&'p self, page: &'p T) -> Marked<'p, T> {
        Marked { of: Some(page), recording_cut: self.chosen.missing.as_deref() }
    }

    /// Prints or writes a page: JSON, or what `table` makes of it.
    fn report<T: Serialize>(
        &self,
        page: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), Error> {
        let console = self.session.console;
        let page = &self.marked(page);
        let table = |page: &Marked<'_, T>| page.of.map(table).unwrap_or_default();
        let Some(output) = self.target.output else { return console.report(page, table) };
        file::refuse_input(&self.chosen.job, output)?;
        table_output::deliver(Some(output), |out| {
            let text = match console.format {
                OutputFormat::Json => serde_json::to_string(page).map_err(Error::Json)?,
                _ => table(page),
            };
            writeln!(out, "{text}").map_err(Error::io(output, "write"))
        })
    }
}

/// A row or a page with what is missing of the recordings it is of.
#[derive(Serialize)]
struct Marked<'a, T> {
    #[serde(flatten)]
    of: Option<&'a T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recording_cut: Option<&'a str>,
}

/// The same without a choice of ranks: who was last is seen with all of them.
fn all_ranks(selection: &Selection) -> Selection {
    Selection { ranks: Vec::new(), ..selection.clone() }
}

/// The rows of all ranks.
fn each<'j, 'a, R: IntoIterator>(
    job: &'j JobFacts<'a>,
    rows: impl FnMut(&'j RankFacts<'a>) -> R,
) -> Vec<R::Item> {
    job.ranks.iter().flat_map(rows).collect()
}

/// The name of a path for messages.
fn named(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}
