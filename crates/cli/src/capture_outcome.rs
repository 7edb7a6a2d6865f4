//! The outcome of a capture: a trace or a reason for each process, and the report on the traces.
//!
//! `rowmill capture` and `rowmill fleet trace` share this module. The two commands differ in how
//! they get the traces.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fleet::process::Process;
use serde::Serialize;
use trace::store::{EventKind, Trace};

use crate::trace_files::write_merged;
use crate::trace_page::{open_folder, write_folder_page};
use crate::trace_summary::short_summary;
use setup::Session;
use setup::args::OutputFormat;
use setup::error::{EXIT_FAILED, EXIT_INTERRUPTED, Error};
use setup::render;
use setup::shell::quoted;

/// Largest number of characters of a command line that are shown.
const COMMAND_WIDTH: usize = 60;

/// The result of a capture, in the form in which it is printed.
#[derive(Serialize)]
pub struct CaptureOutcome {
    #[serde(serialize_with = "render::path_text")]
    pub folder: PathBuf,
    #[serde(serialize_with = "render::path_text_or_null")]
    pub report: Option<PathBuf>,
    /// The file with all ranks on one timeline. `None` for a single rank.
    #[serde(serialize_with = "render::path_text_or_null")]
    pub merged: Option<PathBuf>,
    /// Whether all ranks recorded at the same time. `None` for fewer than two ranks.
    pub is_aligned: Option<bool>,
    pub processes: Vec<CaptureRow>,
}

impl CaptureOutcome {
    /// Creates the outcome of a capture into `folder`, before the report is written.
    pub fn new(folder: &Path, processes: Vec<CaptureRow>) -> Self {
        let folder = folder.to_owned();
        Self { folder, report: None, merged: None, is_aligned: None, processes }
    }
}

/// A process of a capture: the path of its trace, or the reason why it has none.
#[derive(Serialize)]
pub struct CaptureRow {
    /// The host of the process. `None` if the process was captured without an agent.
    pub host: Option<String>,
    pub pid: u32,
    pub rank: Option<u32>,
    pub state: &'static str,
    pub reason: Option<String>,
    #[serde(serialize_with = "render::path_text_or_null")]
    pub path: Option<PathBuf>,
    pub bytes: u64,
    pub command: String,
}

/// Writes the report on the traces, prints the outcome, and determines the exit code. `stopped` is
/// true if the user interrupted the capture.
pub fn report_outcome(
    mut outcome: CaptureOutcome,
    session: &Session,
    stopped: bool,
) -> Result<ExitCode, Error> {
    let lost = outcome.processes.iter().filter(|row| row.path.is_none()).count();
    let has_traces = lost < outcome.processes.len();
    let mut summary = String::new();
    if has_traces {
        let chosen = open_folder(&outcome.folder, session)?;
        // The summary is text for people, so it is made only for the output format `table`.
        if session.console.format == OutputFormat::Table {
            summary = short_summary(&chosen)?;
        }
        let page = outcome.folder.join("report.html");
        write_folder_page(&chosen, &outcome.folder, None, &page, session)?;
        outcome.is_aligned = is_aligned(&chosen.job.traces);
        outcome.report = Some(page);
        if chosen.job.traces.len() > 1 {
            let merged = outcome.folder.join("merged.pftrace");
            write_merged(&chosen.job, &merged)?;
            outcome.merged = Some(merged);
        }
    }
    session.console.report(&outcome, table)?;
    if outcome.is_aligned == Some(false) {
        session.console.warn(
            "the ranks did not record the same iterations; choose a larger --align: so many iterations \
             must take longer than 5 s, the interval at which processes poll",
        );
    }
    if !summary.is_empty() {
        session.console.print(&format!("\n{summary}\n"))?;
        let folder = quoted(&outcome.folder.display().to_string());
        session.console.say(format_args!("more: rowmill trace {folder}"));
    }
    Ok(match (stopped, lost) {
        (true, _) => ExitCode::from(EXIT_INTERRUPTED),
        (false, 0) => ExitCode::SUCCESS,
        (false, _) => ExitCode::from(EXIT_FAILED),
    })
}

/// Names a process in progress lines by its process id and, if known, its rank.
pub fn process_title(process: &Process) -> String {
    match process.rank() {
        Some(rank) => format!("rank {rank} (process {})", process.pid),
        None => format!("process {}", process.pid),
    }
}

/// Describes a process that polled for the first time, by its title and its command line.
pub fn describe_process(process: &Process) -> String {
    format!("{}: {}", process_title(process), shorten_command(&process.command.join(" ")))
}

fn table(outcome: &CaptureOutcome) -> String {
    let rows: Vec<Vec<String>> = outcome
        .processes
        .iter()
        .map(|row| {
            let rank = row.rank.map_or(String::new(), |rank| rank.to_string());
            let what = match (&row.path, &row.reason) {
                (Some(path), _) => path.display().to_string(),
                (None, Some(reason)) => reason.clone(),
                (None, None) => String::new(),
            };
            let size = row.path.is_some().then(|| schema::Bytes(row.bytes).to_string());
            // A host that refused its order has a row whose process id is 0, which is not shown.
            let pid = if row.pid == 0 { String::new() } else { row.pid.to_string() };
            vec![pid, rank, row.state.into(), size.unwrap_or_default(), what]
        })
        .collect();
    let mut text = render::grid(&["pid", "rank", "state", "size", "trace or reason"], &rows);
    if let Some(report) = &outcome.report {
        text += &format!("\n\nreport: {}", report.display());
    }
    if let Some(merged) = &outcome.merged {
        text += &format!("\nall ranks, for ui.perfetto.dev: {}", merged.display());
    }
    text
}

/// Whether the ranks recorded the same iterations. The ranks of a job run in lockstep, so the same
/// iterations run at the same time. Recordings of the same iterations overlap for more than half of
/// the shortest recording.
fn is_aligned(traces: &[Trace]) -> Option<bool> {
    let spans: Option<Vec<(i64, i64)>> = traces.iter().map(operator_span).collect();
    let spans = spans.filter(|spans| spans.len() > 1)?;
    let from = spans.iter().map(|span| span.0).max()?;
    let until = spans.iter().map(|span| span.1).min()?;
    let shortest = spans.iter().map(|span| span.1 - span.0).min()?;
    Some(2 * (until - from) > shortest)
}

/// The first start and the last end of the operators that a rank recorded.
fn operator_span(trace: &Trace) -> Option<(i64, i64)> {
    let is_operator = |row: &u32| trace.kind(*row) == EventKind::Operator;
    let rows: Vec<usize> = trace.rows().filter(is_operator).map(|row| row as usize).collect();
    let start = rows.iter().map(|&row| trace.slices.start[row]).min()?;
    let end = |row: usize| trace.slices.start[row] + trace.slices.duration[row];
    Some((start, rows.iter().map(|&row| end(row)).max()?))
}

/// Shortens a command line to one printable line. A process can put anything into its command line,
/// including control sequences for the terminal.
fn shorten_command(text: &str) -> String {
    let text: String = text
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    match text.char_indices().nth(COMMAND_WIDTH) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
