//! The commands `rowmill trace merge` and `rowmill trace convert`, which write traces in formats
//! that other tools open.

use std::fs;
use std::path::{Path, PathBuf};

use analyze::classify::ClassRule;
use analyze::job::RankFacts;
use analyze::{Classifier, Scope, WindowRule, clock, collectives, coverage, kernels, ops};
use schema::TableRow;
use serde::Serialize;
use trace::export::{self, ExportedEvents};
use trace::merge::{self, Merged, Offsets};
use trace::store::{Job, Trace};

use crate::trace_files::{estimate_clocks, export_options, is_same, refuse_input, trim_to_covered};

use super::query::path_names;
use crate::args::ConvertTo;
use setup::Session;
use setup::args::OutputFormat;
use setup::error::{Error, UsageError};
use setup::open_job::{Extent, keep_ranks, open_job};
use setup::output;
use setup::render::{self, Console};
use setup::table_output::{self, TableTarget};

/// The result of a conversion, in the form in which it is printed.
#[derive(Serialize)]
struct WrittenTrace {
    #[serde(serialize_with = "render::path_text")]
    path: PathBuf,
    ranks: usize,
    slices: u64,
    slices_moved: u64,
    slices_typed_only: u64,
    flows: u64,
    counters: u64,
    instants: u64,
    bytes: u64,
    clocks: Vec<clock::RankClock>,
    /// Describes the missing parts of the recordings. `None` if they are complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    recording_cut: Option<String>,
}

/// A row of `events.parquet`, which describes one slice of a trace.
#[derive(Serialize, TableRow)]
pub struct EventRow<'a> {
    rank: u32,
    row: u32,
    category: &'a str,
    name: &'a str,
    pid: String,
    tid: String,
    start_ns: i64,
    duration_ns: i64,
    correlation: Option<u64>,
    external_id: Option<u64>,
    device: Option<i32>,
    stream: Option<i32>,
    bytes: Option<u64>,
}

/// The traces to convert, and the file or folder for the result.
pub struct ConversionRequest<'a> {
    pub paths: &'a [PathBuf],
    /// The file to write, or the folder to write if the result is a set of tables.
    pub out: &'a Path,
    /// The ranks to convert. If the list is empty, all ranks are converted.
    pub ranks: &'a [u32],
    pub session: &'a Session,
}

/// Merges the ranks of a job into one file with aligned clocks, for `rowmill trace merge`.
pub fn merge(request: &ConversionRequest<'_>, keep_clocks: bool) -> Result<(), Error> {
    check_name(request.out, None)?;
    let job = open_input(request)?;
    let clocks = estimate_clocks(&job);
    let mut offsets = Offsets::default();
    if !keep_clocks {
        offsets.ahead_ns = clocks.iter().map(|clock| (clock.rank, clock.correction_ns)).collect();
    }
    let written = write(request.out, &merge::merge(&job, &offsets))?;
    report_written(request.session, request.out, &job, written, clocks)
}

/// Writes one trace in another format, or all tables as Parquet, for `rowmill trace convert`.
pub fn convert(request: &ConversionRequest<'_>, to: Option<ConvertTo>) -> Result<(), Error> {
    if ConvertTo::is_parquet(to, request.out) {
        return write_tables(&open_input(request)?, request.out, request.session);
    }
    check_name(request.out, to)?;
    let job = open_input(request)?;
    if job.traces.len() > 1 {
        return Err(UsageError::SeveralRanks {
            paths: path_names(request.paths),
            ranks: job.traces.len(),
        }
        .into());
    }
    let out = name_for_format(request.out, to);
    let written = write(&out, &merge::alone(&job.traces[0]))?;
    report_written(request.session, &out, &job, written, Vec::new())
}

/// Writes the merged traces to a file. If Ctrl-C interrupts it, no partial file remains.
fn write(out: &Path, merged: &Merged<'_>) -> Result<ExportedEvents, Error> {
    output::clear_up_beside(vec![out.to_owned()]);
    Ok(export::write(out, merged, &export_options())?)
}

/// Refuses a file name that does not imply a format, because the writer would fall back to a format
/// that the user did not request.
fn check_name(out: &Path, to: Option<ConvertTo>) -> Result<(), Error> {
    let name = out.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let plain = name.trim_end_matches(".gz").trim_end_matches(".zst");
    let known = [".json", ".pftrace", ".perfetto-trace"].iter().any(|end| plain.ends_with(end));
    if known || to.is_some() {
        return Ok(());
    }
    Err(UsageError::UnknownFormat { path: out.to_owned() }.into())
}

/// Adjusts a file name to the requested format, because the writer derives the format from the
/// name.
fn name_for_format(out: &Path, to: Option<ConvertTo>) -> PathBuf {
    let name = out.to_string_lossy();
    let is_perfetto = name.contains(".pftrace") || name.contains(".perfetto-trace");
    match to {
        Some(ConvertTo::Perfetto) if !is_perfetto => PathBuf::from(format!("{name}.pftrace")),
        Some(ConvertTo::Kineto) if is_perfetto => PathBuf::from(format!("{name}.json")),
        _ => out.to_owned(),
    }
}

/// Opens the traces to convert, and refuses to overwrite one of them.
fn open_input(request: &ConversionRequest<'_>) -> Result<Job, Error> {
    let out = request.out;
    if let Some(path) = request.paths.iter().find(|path| path.is_file() && is_same(path, out)) {
        return Err(UsageError::OutputIsInput { path: path.clone() }.into());
    }
    let mut job = open_job(request.paths, Extent::Everything, request.session)?.job;
    refuse_input(&job, out)?;
    keep_ranks(&mut job, request.ranks)?;
    let parent = out.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    let parent = parent.canonicalize().ok();
    // The user is warned if the result lies in the folder of its inputs, because the next command
    // on that folder would read it as one more rank.
    let is_around = |path: &&PathBuf| {
        let folder = path.canonicalize().ok().filter(|path| path.is_dir());
        folder.zip(parent.as_ref()).is_some_and(|(folder, parent)| parent.starts_with(folder))
    };
    if let Some(path) = request.paths.iter().find(is_around) {
        request.session.console.warn(format_args!(
            "{} is inside {}; the next command on that folder will read it as another trace",
            out.display(),
            path.display()
        ));
    }
    Ok(job)
}

fn report_written(
    session: &Session,
    path: &Path,
    job: &Job,
    written: ExportedEvents,
    clocks: Vec<clock::RankClock>,
) -> Result<(), Error> {
    if written.slices_typed_only > 0 {
        session.console.warn(format_args!(
            "{} slices have only their main arguments, because their text could not be read again",
            render::count(written.slices_typed_only)
        ));
    }
    let report = WrittenTrace {
        path: path.to_owned(),
        ranks: job.traces.len(),
        slices: written.slices,
        slices_moved: written.slices_moved,
        slices_typed_only: written.slices_typed_only,
        flows: written.flows,
        counters: written.counters,
        instants: written.instants,
        bytes: fs::metadata(path).map_or(0, |metadata| metadata.len()),
        clocks,
        recording_cut: coverage::missing(&job.traces),
    };
    session.console.report(&report, table)
}

fn table(report: &WrittenTrace) -> String {
    let mut facts = vec![
        ("written", report.path.display().to_string()),
        ("size", schema::Bytes(report.bytes).to_string()),
        ("ranks", report.ranks.to_string()),
        ("slices", render::count(report.slices)),
        ("slices moved to extra lanes", render::count(report.slices_moved)),
        ("ends of flow arrows", render::count(report.flows)),
    ];
    let clock = |clock: &clock::RankClock| {
        let nanos = |ns: i64| render::nanos(ns as f64);
        let text =
            format!("rank {}: {} ± {}", clock.rank, nanos(clock.ahead_ns), nanos(clock.spread_ns));
        if clock.correction_ns == 0 { text } else { format!("{text}, corrected") }
    };
    let clocks: Vec<String> = report.clocks.iter().map(clock).collect();
    if !clocks.is_empty() {
        facts.push(("clocks ahead by", clocks.join("\n")));
    }
    render::facts(&facts)
}

/// Writes the tables of a job as Parquet files into a folder.
fn write_tables(job: &Job, folder: &Path, session: &Session) -> Result<(), Error> {
    let _made = output::folder(folder)?;
    let classifier = Classifier::new(ClassRule::Category);
    let scope = |trace| Scope::new(trace, WindowRule::All, &classifier);
    let covered = trim_to_covered(job);
    let scopes: Vec<Scope<'_>> = covered.traces.iter().map(scope).collect();
    // The events are written completely. Only the derived tables are restricted to the part that
    // was recorded completely.
    let events: Vec<EventRow<'_>> = job.traces.iter().flat_map(events).collect();
    let operators: Vec<_> = scopes
        .iter()
        .flat_map(|scope| {
            let facts = RankFacts::new(scope);
            ops::list_operators(scope, facts.tree(), facts.attribution())
        })
        .collect();
    let mut kernels: Vec<_> = scopes.iter().flat_map(kernels::list_kernels).collect();
    kernels::distinguish(&mut kernels);
    let collectives = collectives::match_collectives(&scopes).rows();
    let names = ["events", "ops", "kernels", "collectives"];
    let missing = coverage::missing(&job.traces);
    let writer = TableWriter { folder, console: session.console, missing: missing.as_deref() };
    output::clear_up_beside(names.map(|name| writer.path(name)).to_vec());
    writer.write_table("events", &events)?;
    writer.write_table("ops", &operators)?;
    writer.write_table("kernels", &kernels)?;
    writer.write_table("collectives", &collectives)
}

/// Writes Parquet tables into a folder. Each table is marked if parts of the recordings are
/// missing.
struct TableWriter<'a> {
    folder: &'a Path,
    console: Console,
    missing: Option<&'a str>,
}

impl TableWriter<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.parquet"))
    }

    fn write_table<T: Serialize + TableRow>(&self, name: &str, rows: &[T]) -> Result<(), Error> {
        let path = self.path(name);
        let console = Console { format: OutputFormat::Parquet, ..self.console };
        let target = TableTarget { output: Some(&path), top: None };
        table_output::write_rows_with_cut_notice(console, rows, target, self.missing)?;
        let count = render::counted(rows.len() as u64, "row");
        self.console.say(format_args!("{}: {count}", path.display()));
        Ok(())
    }
}

fn events(trace: &Trace) -> impl Iterator<Item = EventRow<'_>> {
    trace.rows().map(|row| {
        let (slices, track) = (&trace.slices, trace.track(row));
        EventRow {
            rank: trace.rank,
            row,
            category: &trace.categories[usize::from(slices.category[row as usize])].name,
            name: trace.name(row),
            pid: track.pid.to_string(),
            tid: track.tid.to_string(),
            start_ns: slices.start(row),
            duration_ns: slices.duration[row as usize],
            correlation: slices.correlation(row),
            external_id: slices.external_id(row),
            device: slices.device(row),
            stream: slices.stream(row),
            bytes: slices.bytes.get(row).copied(),
        }
    })
}
