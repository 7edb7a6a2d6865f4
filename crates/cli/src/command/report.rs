//! `rowmill report`: the figures of a training run → one HTML file to share.

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

/// The written page, as the command prints it.
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

/// Writes the page of `run` where a user would look for it.
pub fn write_run_report(run: &Path) -> Result<PathBuf, Error> {
    let target = ReportArgs { run: run.to_owned(), output: None }.target();
    Ok(write(run, &target)?.path)
}

fn write(run: &Path, target: &Path) -> Result<WrittenReport, Error> {
    let metrics = run.join("metrics.jsonl");
    // A line that a killed process left half written need not be text.
    let lines = match fs::read(&metrics) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error)
            if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) =>
        {
            return Err(UsageError::NoMetrics { run: run.to_owned() }.into());
        }
        Err(error) => return Err(Error::io(&metrics, "read")(error)),
    };
    let report = training::build_report(&lines, &about(run));
    let page = html::training_page(&report)?;
    output::put(target, |file| {
        file.write_all(page.as_bytes()).map_err(Error::io(target, "write"))
    })?;
    Ok(written(&report, (target.to_owned(), page.len())))
}

/// The run beside its figures. One that does not know its configuration has curves, too.
fn about(run: &Path) -> About {
    let program = concat!("rowmill ", env!("CARGO_PKG_VERSION")).to_owned();
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
    About { title, program, best_by: training.keep_best, tables }
}

fn written(report: &TrainingReport, (path, bytes): (PathBuf, usize)) -> WrittenReport {
    WrittenReport {
        path,
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
