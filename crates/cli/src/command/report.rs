//! The command `rowmill report`, which plots the metrics of a training run into one HTML file.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use report::html;
use report::training::{self, About, TableShape, TrainingReport};
use schema::JobConfig;
use serde::Serialize;

use crate::args::ReportArgs;
use setup::error::{Error, UsageError};
use setup::{Session, record};
use setup::{output, render};

/// The result of `rowmill report`, in the form in which it is printed.
#[derive(Serialize)]
struct WrittenReport {
    #[serde(serialize_with = "render::path_text")]
    path: PathBuf,
    bytes: u64,
    steps: u64,
    evaluations: usize,
    best_step: Option<u64>,
    verdict: String,
}

/// Runs `rowmill report` and prints its result.
pub fn run(args: &ReportArgs, session: &Session) -> Result<(), Error> {
    let written = write(&args.run, &args.target())?;
    session.console.report(&written, table)
}

/// Writes the page of a run to its default path, and returns the path.
pub fn write_run_report(run: &Path) -> Result<PathBuf, Error> {
    let target = ReportArgs { run: run.to_owned(), output: None }.target();
    Ok(write(run, &target)?.path)
}

fn write(run: &Path, target: &Path) -> Result<WrittenReport, Error> {
    let metrics = run.join("metrics.jsonl");
    // `read_to_string` is not used, because the last line of a killed run may end within a UTF-8
    // character.
    let lines = match fs::read(&metrics) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error)
            if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) =>
        {
            return Err(UsageError::NoMetrics { run: run.to_owned() }.into());
        }
        Err(error) => return Err(Error::io(&metrics, "read")(error)),
    };
    let report = training::build_report(&lines, &describe_run(run));
    let page = html::training_page(&report)?;
    output::put(target, |file| {
        file.write_all(page.as_bytes()).map_err(Error::io(target, "write"))
    })?;
    Ok(describe_page(&report, target, page.len()))
}

/// Describes the run for the page: its title, its tables, and the metric that decides the best
/// checkpoint. If the configuration cannot be read, the page has only the curves.
fn describe_run(run: &Path) -> About {
    let program = concat!("rowmill ", env!("CARGO_PKG_VERSION")).to_owned();
    // A path such as `.` has no file name, so it is resolved first.
    let absolute = run.canonicalize().unwrap_or_else(|_| run.to_owned());
    let folder = absolute.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some(JobConfig { model, training, .. }) = record::config(run) else {
        return About { title: folder, program, ..About::default() };
    };
    let title = if model.name == folder { folder } else { format!("{folder}: {}", model.name) };
    let shape = |table: &schema::TableConfig| TableShape {
        name: table.name.clone(),
        rows: table.rows,
        dim: table.dim as u64,
    };
    let tables = model.tables.iter().map(shape).collect();
    let placement = record::placement(run);
    About { title, program, best_by: training.keep_best, tables, placement }
}

fn describe_page(report: &TrainingReport, path: &Path, bytes: usize) -> WrittenReport {
    WrittenReport {
        path: path.to_owned(),
        bytes: bytes as u64,
        steps: report.steps,
        evaluations: report.evaluations.len(),
        best_step: report.verdict.best_step,
        verdict: report.verdict.text.clone(),
    }
}

fn table(written: &WrittenReport) -> String {
    let facts = render::facts(&[
        ("report", written.path.display().to_string()),
        ("size", schema::Bytes(written.bytes).to_string()),
        ("steps", render::count(written.steps)),
        ("evaluations", render::count(written.evaluations as u64)),
    ]);
    format!("{}\n{facts}", written.verdict)
}
