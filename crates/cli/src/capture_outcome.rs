//! What a capture brought: per process a trace or a reason, then the report.

use std::path::PathBuf;
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

/// Letters of a command line that are shown.
const COMMAND_WIDTH: usize = 60;

/// What a capture brought.
#[derive(Serialize)]
pub struct CaptureOutcome {
    /// Where the traces are.
    #[serde(serialize_with = "render::path_text")]
    pub folder: PathBuf,
    /// The page about them.
    #[serde(serialize_with = "render::path_text_or_null")]
    pub report: Option<PathBuf>,
    /// All ranks on one timeline, where there are several.
    #[serde(serialize_with = "render::path_text_or_null")]
    pub merged: Option<PathBuf>,
    /// Whether all ranks recorded at the same time; unknown for fewer than two.
    pub is_aligned: Option<bool>,
    /// One row per process.
    pub processes: Vec<ProcessRow>,
}

/// A process of a capture: where its trace is, or why it has none.
#[derive(Serialize)]
pub struct ProcessRow {
    /// Where it ran, of an order to agents.
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

/// Makes the report, prints the outcome, decides the exit code.
pub fn tell(
    mut outcome: CaptureOutcome,
    session: &Session,
    stopped: bool,
) -> Result<ExitCode, Error> {
    let lost = outcome.processes.iter().filter(|row| row.path.is_none()).count();
    let has_traces = lost < outcome.processes.len();
    let mut shown = String::new();
    if has_traces {
        let chosen = open_folder(&outcome.folder, session)?;
        if session.console.format == OutputFormat::Table {
            shown = short_summary(&chosen)?;
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
            "the ranks did not record the same iterations; choose --align so that many take longer \
             than 5 s",
        );
    }
    if !shown.is_empty() {
        session.console.print(&format!("\n{shown}\n"))?;
        let folder = quoted(&outcome.folder.display().to_string());
        session.console.say(format_args!("more: rowmill trace {folder}"));
    }
    Ok(match (stopped, lost) {
        (true, _) => ExitCode::from(EXIT_INTERRUPTED),
        (false, 0) => ExitCode::SUCCESS,
        (false, _) => ExitCode::from(EXIT_FAILED),
    })
}

/// A process, as progress lines name it.
pub fn title(process: &Process) -> String {
    match process.rank() {
        Some(rank) => format!("rank {rank} (process {})", process.pid),
        None => format!("process {}", process.pid),
    }
}

/// A process that polled for the first time.
pub fn introduction(process: &Process) -> String {
    format!("{}: {}", title(process), shortened(&process.command.join(" ")))
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
            // A host that took no order has a row without a process.
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

/// Ranks in step with each other record the same iterations at the same time.
fn is_aligned(traces: &[Trace]) -> Option<bool> {
    let spans: Option<Vec<(i64, i64)>> = traces.iter().map(span).collect();
    let spans = spans.filter(|spans| spans.len() > 1)?;
    let from = spans.iter().map(|span| span.0).max()?;
    let until = spans.iter().map(|span| span.1).min()?;
    let shortest = spans.iter().map(|span| span.1 - span.0).min()?;
    Some(2 * (until - from) > shortest)
}

/// First start and last end of what a rank did.
fn span(trace: &Trace) -> Option<(i64, i64)> {
    let is_operator = |row: &u32| trace.kind(*row) == EventKind::Operator;
    let rows: Vec<usize> = trace.rows().filter(is_operator).map(|row| row as usize).collect();
    let start = rows.iter().map(|&row| trace.slices.start[row]).min()?;
    let end = |row: usize| trace.slices.start[row] + trace.slices.duration[row];
    Some((start, rows.iter().map(|&row| end(row)).max()?))
}

/// The start of a command line, which is the process's word and may hold anything.
fn shortened(text: &str) -> String {
    let text: String = text
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    match text.char_indices().nth(COMMAND_WIDTH) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
