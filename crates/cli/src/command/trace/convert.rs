//! `rowmill trace merge` and `convert`: traces to files other tools open.

use std::fs;
use std::path::{Path, PathBuf};

use analyze::classify::ClassRule;
use analyze::job::RankFacts;
use analyze::{Classifier, Scope, WindowRule, clock, collectives, coverage, kernels, ops};
use serde::Serialize;
use trace::export::{self, ExportedEvents};
use trace::merge::{self, Merged, Offsets};
use trace::store::{Job, Trace};

use crate::trace_files::{clocks, covered, export_options, is_same, refuse_input};

use super::query::{Marked, path_names};
use crate::args::ConvertTo;
use setup::Session;
use setup::args::OutputFormat;
use setup::error::{Error, UsageError};
use setup::open_job::{Extent, keep_ranks, open_job};
use setup::output;
use setup::render::{self, Console};
use setup::table_output::{self, TableTarget};

/// What was written, for people and programs.
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
    /// What is missing of the recordings.
    #[serde(skip_serializing_if = "Option::is_none")]
    recording_cut: Option<String>,
}

/// One slice of the events table.
#[derive(Serialize)]
struct EventRow<'a> {
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

/// What is to be written, and where.
pub struct WrittenTraceFile<'a> {
    pub paths: &'a [PathBuf],
    /// The file or folder.
    pub out: &'a Path,
    /// The selected ranks; none: all.
    pub ranks: &'a [u32],
    pub session: &'a Session,
}

/// Merges the ranks of a job into one file, clocks aligned, for `rowmill trace merge`.
pub fn merge(file: &WrittenTraceFile<'_>, keep_clocks: bool) -> Result<(), Error> {
    check_name(file.out, None)?;
    let job = input(file)?;
    let clocks = clocks(&job);
    let mut offsets = Offsets::default();
    if !keep_clocks {
        offsets.ahead_ns = clocks.iter().map(|clock| (clock.rank, clock.correction_ns)).collect();
    }
    let written = write(file.out, &merge::merge(&job, &offsets))?;
    tell(file.session, file.out, &job, written, clocks)
}

/// Writes one trace in another format, or all tables as Parquet, for `rowmill trace convert`.
pub fn convert(file: &WrittenTraceFile<'_>, to: Option<ConvertTo>) -> Result<(), Error> {
    if ConvertTo::is_parquet(to, file.out) {
        return tables(&input(file)?, file.out, file.session);
    }
    check_name(file.out, to)?;
    let job = input(file)?;
    if job.traces.len() > 1 {
        return Err(UsageError::SeveralRanks {
            paths: path_names(file.paths),
            ranks: job.traces.len(),
        }
        .into());
    }
    let out = spelled(file.out, to);
    let written = write(&out, &merge::alone(&job.traces[0]))?;
    tell(file.session, &out, &job, written, Vec::new())
}

/// Writes the file; Ctrl-C leaves nothing of it.
fn write(out: &Path, merged: &Merged<'_>) -> Result<ExportedEvents, Error> {
    output::clear_up_beside(vec![out.to_owned()]);
    Ok(export::write(out, merged, &export_options())?)
}

/// A name that says no format would be written as one the user did not ask for.
fn check_name(out: &Path, to: Option<ConvertTo>) -> Result<(), Error> {
    let name = out.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let plain = name.trim_end_matches(".gz").trim_end_matches(".zst");
    let known = [".json", ".pftrace", ".perfetto-trace"].iter().any(|end| plain.ends_with(end));
    if known || to.is_some() {
        return Ok(());
    }
    Err(UsageError::UnknownFormat { path: out.to_owned() }.into())
}

/// The name that makes the writer choose the format asked for.
fn spelled(out: &Path, to: Option<ConvertTo>) -> PathBuf {
    let name = out.to_string_lossy();
    let is_perfetto = name.contains(".pftrace") || name.contains(".perfetto-trace");
    match to {
        Some(ConvertTo::Perfetto) if !is_perfetto => PathBuf::from(format!("{name}.pftrace")),
        Some(ConvertTo::Kineto) if is_perfetto => PathBuf::from(format!("{name}.json")),
        _ => out.to_owned(),
    }
}

/// Reads what is to be written elsewhere: never over what was read.
fn input(file: &WrittenTraceFile<'_>) -> Result<Job, Error> {
    let out = file.out;
    if let Some(path) = file.paths.iter().find(|path| path.is_file() && is_same(path, out)) {
        return Err(UsageError::OutputIsInput { path: path.clone() }.into());
    }
    let mut job = open_job(file.paths, Extent::Everything, file.session)?.job;
    refuse_input(&job, out)?;
    keep_ranks(&mut job, file.ranks)?;
    let parent = out.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    let parent = parent.canonicalize().ok();
    let is_around = |path: &&PathBuf| {
        let folder = path.canonicalize().ok().filter(|path| path.is_dir());
        folder.zip(parent.as_ref()).is_some_and(|(folder, parent)| parent.starts_with(folder))
    };
    if let Some(path) = file.paths.iter().find(is_around) {
        file.session.console.warn(format_args!(
            "{} lies among the traces of {}, and will be taken for one of them",
            out.display(),
            path.display()
        ));
    }
    Ok(job)
}

fn tell(
    session: &Session,
    path: &Path,
    job: &Job,
    written: ExportedEvents,
    clocks: Vec<clock::RankClock>,
) -> Result<(), Error> {
    if written.slices_typed_only > 0 {
        session.console.warn(format_args!(
            "{} slices have their main arguments only: their text could not be read again",
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
        ("moved to lanes of their own", render::count(report.slices_moved)),
        ("arrows' ends", render::count(report.flows)),
    ];
    let clock = |clock: &clock::RankClock| {
        let nanos = |ns: i64| render::nanos(ns as f64);
        let of =
            format!("rank {}: {} ± {}", clock.rank, nanos(clock.ahead_ns), nanos(clock.spread_ns));
        if clock.correction_ns == 0 { of } else { format!("{of}, corrected") }
    };
    let clocks: Vec<String> = report.clocks.iter().map(clock).collect();
    if !clocks.is_empty() {
        facts.push(("clocks ahead by", clocks.join("\n")));
    }
    render::facts(&facts)
}

/// The tables of a job as Parquet files in a folder.
fn tables(job: &Job, folder: &Path, session: &Session) -> Result<(), Error> {
    let _made = output::folder(folder)?;
    let classifier = Classifier::new(ClassRule::Category);
    let scope = |trace| Scope::new(trace, WindowRule::All, &classifier);
    let covered = covered(job);
    let scopes: Vec<Scope<'_>> = covered.traces.iter().map(scope).collect();
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
    let put = TableFolder { folder, console: session.console, missing: missing.as_deref() };
    output::clear_up_beside(names.map(|name| put.path(name)).to_vec());
    put.table("events", &events)?;
    put.table("ops", &operators)?;
    put.table("kernels", &kernels)?;
    put.table("collectives", &collectives)
}

/// A folder of Parquet tables.
struct TableFolder<'a> {
    folder: &'a Path,
    console: Console,
    missing: Option<&'a str>,
}

impl TableFolder<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.parquet"))
    }

    fn table<T: Serialize>(&self, name: &str, rows: &[T]) -> Result<(), Error> {
        let path = self.path(name);
        if rows.is_empty() {
            self.console.say(format_args!("{name}: no rows, no file"));
            return Ok(());
        }
        let console = Console { format: OutputFormat::Parquet, ..self.console };
        let target = TableTarget { output: Some(&path), top: None };
        match self.missing {
            None => table_output::write_rows(console, rows, target)?,
            missing => {
                let marked = |row| Marked { of: Some(row), recording_cut: missing };
                table_output::write_rows(
                    console,
                    &rows.iter().map(marked).collect::<Vec<_>>(),
                    target,
                )?;
            }
        }
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
