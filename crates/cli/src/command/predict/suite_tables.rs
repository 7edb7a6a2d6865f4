//! The command `rowmill predict evaluate --tables`, which predicts the steps of a recorded suite
//! and prints their errors as in Table V and Figures 9 and 10 of arXiv:2201.07821.

use std::collections::BTreeSet;
use std::io::Write;

use predict::calibration::Calibration;
use predict::calibration::shipped::ShippedOverheads;
use predict::edit::{Edit, tensors};
use predict::evaluate::geomean_pct;
use predict::recording::Step;
use predict::step::Models;
use predict::step::execution_trace_time::{
    HostRow, ModeledDevice, OWN_HOST, calibrate_each_rank, host_rows, rows,
};
use schema::median::float_median;
use schema::unit::counted;
use serde::Serialize;
use trace::execution_trace::ExecutionTrace;

use super::error_drawing::draw_errors;
use super::execution_step::add_origin;
use super::suite_jobs::{JobErrorRow, SuiteJob, find_jobs, model, read_job};
use crate::args::PredictEvaluate;
use setup::Session;
use setup::error::Error;
use setup::{output, render};

/// The errors of all jobs of a suite, and what the predictions had seen.
#[derive(Serialize)]
struct SuiteErrors {
    training_data: Vec<String>,
    jobs: Vec<JobErrorRow>,
    errors: Vec<ErrorSummary>,
}

/// Statistics of the absolute errors of a set of jobs, in percent.
#[derive(Serialize)]
struct ErrorSummary {
    /// Name of the device, or "all".
    device: String,
    measure: &'static str,
    ranks: usize,
    geomean_pct: f64,
    least_pct: f64,
    most_pct: f64,
}

/// Returns an error of a row, or `None` if it does not apply to the job.
type Measure = fn(&JobErrorRow) -> Option<f64>;

/// The errors of a row, with their names in tables.
const MEASURES: [(&str, Measure); 7] = [
    ("active", |row| row.active_pct),
    ("E2E", |row| Some(row.own_pct)),
    ("shared E2E", |row| Some(row.shared_pct)),
    ("kernel only", |row| row.kernel_only_pct),
    ("unchanged", |row| row.unchanged_pct),
    ("line", |row| row.line_pct),
    ("trees", |row| row.trees_pct),
];

/// Smallest number of other jobs through which a line is drawn.
const LINE_LEAST: usize = 3;

/// Runs `rowmill predict evaluate --tables` and prints its result.
pub fn run(args: &PredictEvaluate, session: &Session) -> Result<(), Error> {
    let mut jobs = Vec::new();
    for suite in &args.paths {
        for files in find_jobs(suite)? {
            jobs.extend(read_job(files, session)?);
        }
    }
    if jobs.is_empty() {
        let expected = "folders with a timeline (*kineto*) and its execution trace (execution.* \
                        or *_et.*)";
        let (expected, got) = (expected.to_owned(), "none".to_owned());
        return Err(predict::Error::Workload { expected, got }.into());
    }
    let models = Models::shipped()?;
    let mut rows = Vec::new();
    for at in 0..jobs.len() {
        rows.extend(predict_job(&jobs, at, &models, session)?);
    }
    for at in 0..rows.len() {
        add_baselines(&mut rows, at);
    }
    if let Some(path) = &args.svg {
        let text = draw_errors(&rows);
        output::put(path, |file| {
            file.write_all(text.as_bytes()).map_err(Error::io(path, "write"))
        })?;
    }
    let report =
        SuiteErrors { training_data: training_data(&jobs), errors: summarize(&rows), jobs: rows };
    session.console.report(&report, format_report)
}

/// The overheads from which the steps of a job are predicted.
struct JobHosts {
    own: Vec<Calibration>,
    shared: Calibration,
    shared_from: String,
}

/// Predicts the step of a job with its own overheads and with those of other jobs, at its batch
/// size and at the others that were measured.
fn predict_job(
    jobs: &[SuiteJob],
    at: usize,
    models: &Models,
    session: &Session,
) -> Result<Vec<JobErrorRow>, Error> {
    let job = &jobs[at];
    let others =
        || jobs.iter().filter(|other| other.device == job.device && other.name != job.name);
    // The profiler's cost comes from other jobs, because the one of this job was fitted to its
    // measured step.
    let mut costs: Vec<f64> = others().filter_map(|other| other.event_ns).collect();
    let event_ns = float_median(&mut costs).unwrap_or_default();
    let own = calibrate_each_rank(&job.steps, event_ns);
    let (shared_from, shared) = shared_overheads(job, others())?;
    let hosts = JobHosts { own, shared, shared_from };
    let mut found = predict_ranks(job, &job.executions, &hosts, models)?;
    if let (Some(topology), Some(step)) = (&job.topology, middle_step(job)) {
        let active = rows(&job.executions, 0, step, models, topology)
            .map_err(|source| add_origin(source, &job.executions))?;
        for (row, active) in found.iter_mut().zip(active) {
            row.active_pct = Some(active.models_error_pct);
        }
    }
    // On a CPU, the times of operators depend on sizes that the recording does not contain.
    for other in job.other_batches.iter().filter(|_| job.topology.is_some()) {
        let size = |batch: Option<u64>| batch.and_then(|batch| u32::try_from(batch).ok());
        let (Some(from), Some(to)) = (size(job.batch), size(Some(other.batch))) else { continue };
        let mut executions = job.executions.clone();
        if let Err(error) = tensors::apply(&mut executions, 0, &[Edit::Resize { from, to }]) {
            session.console.warn(format_args!("{} is left out: {error}", other.name));
            continue;
        }
        for mut row in predict_ranks(job, &executions, &hosts, models)? {
            // The errors are relative to the step at the recorded batch size.
            let measured_ns = other.unrecorded_ns as f64;
            let rescale = |pct: f64| error_pct((1.0 + pct / 100.0) * row.measured_ns, measured_ns);
            row.own_pct = rescale(row.own_pct);
            row.shared_pct = rescale(row.shared_pct);
            row.kernel_only_pct = row.kernel_only_pct.map(rescale);
            row.unchanged_pct = Some(error_pct(row.measured_ns, measured_ns));
            (row.job, row.batch) = (other.name.clone(), Some(other.batch));
            row.measured_ns = measured_ns;
            found.push(row);
        }
    }
    Ok(found)
}

/// Returns the recorded step in the middle, after the first ones, which prepare the device.
fn middle_step(job: &SuiteJob) -> Option<&Step> {
    job.steps.get(job.steps.len() / 2)
}

/// Predicts the step of execution traces of a job, and compares it with the job's step.
fn predict_ranks(
    job: &SuiteJob,
    executions: &[ExecutionTrace],
    hosts: &JobHosts,
    models: &Models,
) -> Result<Vec<JobErrorRow>, Error> {
    let Some(step) = middle_step(job) else { return Ok(Vec::new()) };
    let device = job.topology.as_ref().map(|topology| ModeledDevice { models, topology });
    let predict = |name: &str, hosts: &[Calibration]| {
        host_rows(executions, 0, step, device, name, hosts)
            .map_err(|source| add_origin(source, executions))
    };
    let own = predict(OWN_HOST, &hosts.own)?;
    let shared = predict(&hosts.shared_from, std::slice::from_ref(&hosts.shared))?;
    let row = |(at, (own, shared)): (usize, (&HostRow, &HostRow))| {
        let recorded_ns = job.recorded_ns(at);
        let measured_ns = job.unrecorded_ns.map_or(recorded_ns, |ns| ns as f64);
        let error = |ns: i64| error_pct(ns as f64, measured_ns);
        JobErrorRow {
            job: job.name.clone(),
            device: job.device.clone(),
            batch: job.batch,
            rank: own.rank,
            is_recommender: job.is_recommender(),
            operators: job.operators(at),
            measured_ns,
            active_pct: None,
            own_pct: error(own.step_ns),
            shared_pct: error(shared.step_ns),
            shared_from: hosts.shared_from.clone(),
            kernel_only_pct: device.map(|_| error(own.kernel_only_ns)),
            unchanged_pct: job.unrecorded_ns.map(|_| error_pct(recorded_ns, measured_ns)),
            line_pct: None,
            trees_pct: None,
        }
    };
    Ok(own.iter().zip(&shared).enumerate().map(row).collect())
}

fn error_pct(predicted: f64, measured: f64) -> f64 {
    100.0 * (predicted - measured) / measured.max(1.0)
}

/// Returns the overheads of the other jobs of a device, or else the shipped ones of the nearest GPU
/// that were not made from this job, with their source.
fn shared_overheads<'a>(
    job: &SuiteJob,
    others: impl Iterator<Item = &'a SuiteJob>,
) -> Result<(String, Calibration), Error> {
    let mut merged: Option<Calibration> = None;
    let mut count = 0;
    for other in others {
        count += 1;
        match &mut merged {
            Some(merged) => merged.merge(other.samples()),
            None => merged = Some(other.samples()),
        }
    }
    let source = counted(count, "other job");
    match (merged, &job.topology) {
        (Some(merged), Some(_)) => Ok((source, merged.shared_overheads())),
        (Some(merged), None) => Ok((source, merged)),
        (None, Some(topology)) => {
            let own = job.samples().shared_overheads();
            for shipped in ShippedOverheads::by_nearness(&topology.device, job.kind()) {
                let overheads = shipped.read()?;
                if overheads.overheads != own.overheads {
                    return Ok((shipped.name.to_owned(), overheads));
                }
            }
            Ok((OWN_HOST.to_owned(), own))
        }
        (None, None) => Ok((OWN_HOST.to_owned(), job.samples())),
    }
}

/// Predicts a row from the measured steps of the device's other jobs alone.
fn add_baselines(rows: &mut [JobErrorRow], at: usize) {
    let row = &rows[at];
    let is_other =
        |other: &&JobErrorRow| other.device == row.device && model(&other.job) != model(&row.job);
    let logarithm = |row: &JobErrorRow| (row.operators.max(1) as f64).ln();
    let point = |other: &JobErrorRow| (logarithm(other), other.measured_ns.max(1.0).ln());
    let points: Vec<(f64, f64)> = rows.iter().filter(is_other).map(point).collect();
    let mut steps: Vec<f64> = points.iter().map(|point| point.1).collect();
    let error = |logarithm_ns: f64| error_pct(logarithm_ns.exp(), row.measured_ns);
    let trees_pct = float_median(&mut steps).map(error);
    let line_pct =
        (points.len() >= LINE_LEAST).then(|| error(line_through(&points, logarithm(row))));
    (rows[at].trees_pct, rows[at].line_pct) = (trees_pct, line_pct);
}

/// Returns the value at `x` of the least-squares line through points.
fn line_through(points: &[(f64, f64)], x: f64) -> f64 {
    let count = points.len().max(1) as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
    let both: f64 = points.iter().map(|point| (point.0 - mean_x) * (point.1 - mean_y)).sum();
    let square: f64 = points.iter().map(|point| (point.0 - mean_x).powi(2)).sum();
    mean_y + if square > 0.0 { (x - mean_x) * both / square } else { 0.0 }
}

fn devices(rows: &[JobErrorRow]) -> Vec<&str> {
    rows.iter().map(|row| row.device.as_str()).collect::<BTreeSet<&str>>().into_iter().collect()
}

fn summarize(rows: &[JobErrorRow]) -> Vec<ErrorSummary> {
    let mut summaries = Vec::new();
    for device in std::iter::once("all").chain(devices(rows)) {
        for (measure, error) in MEASURES {
            let of_device = rows.iter().filter(|row| device == "all" || row.device == device);
            let errors: Vec<f64> = of_device.filter_map(error).map(f64::abs).collect();
            if !errors.is_empty() {
                summaries.push(ErrorSummary {
                    device: device.to_owned(),
                    measure,
                    ranks: errors.len(),
                    geomean_pct: geomean_pct(errors.iter().copied()),
                    least_pct: errors.iter().copied().fold(f64::INFINITY, f64::min),
                    most_pct: errors.iter().copied().fold(0.0, f64::max),
                });
            }
        }
    }
    summaries
}

/// Says which measurements the predictions had seen.
fn training_data(jobs: &[SuiteJob]) -> Vec<String> {
    let mut lines = vec![
        "kernels: shipped models, of NeuSight's tables; the least times of small kernels on H100 \
         come from rowmill's own suite, on other GPUs from public jobs on V100"
            .to_owned(),
        "E2E: host times of the job's own recording, so the step is not unseen; the profiler's \
         cost comes from the other jobs of the device"
            .to_owned(),
        "shared E2E: host times of the device's other jobs, or of shipped overheads of another job"
            .to_owned(),
        "line, trees: measured steps of the device's other jobs".to_owned(),
    ];
    if jobs.iter().any(|job| job.topology.is_some() && !job.other_batches.is_empty()) {
        let line = "other batches: the execution trace of the recorded batch, resized; unchanged is \
                    the step at the recorded batch";
        lines.push(line.to_owned());
    }
    if jobs.iter().any(|job| job.topology.is_none()) {
        lines.push("CPU: operators take their recorded time, by name and sizes".to_owned());
    }
    lines
}

fn format_report(report: &SuiteErrors) -> String {
    let mut parts = vec![report.training_data.join("\n"), format_table_v(report)];
    let figures = [
        ("Figure 9: models with embeddings, errors %", true),
        ("Figure 10: other models, errors %", false),
    ];
    for (title, is_recommender) in figures {
        let rows = report.jobs.iter().filter(|row| row.is_recommender == is_recommender);
        let rows: Vec<Vec<String>> = rows.map(format_job).collect();
        if !rows.is_empty() {
            let names = MEASURES.iter().map(|(name, _)| *name);
            let header: Vec<&str> =
                ["job", "device", "rank", "measured"].into_iter().chain(names).collect();
            parts.push(format!("{title}\n{}", render::grid(&header, &rows)));
        }
    }
    parts.join("\n\n")
}

fn format_job(row: &JobErrorRow) -> Vec<String> {
    let facts =
        [row.job.clone(), row.device.clone(), row.rank.to_string(), render::nanos(row.measured_ns)];
    let error = |error: Option<f64>| error.map_or_else(String::new, |pct| format!("{pct:.1}"));
    facts.into_iter().chain(MEASURES.iter().map(|(_, of)| error(of(row)))).collect()
}

fn format_table_v(report: &SuiteErrors) -> String {
    let header: Vec<&str> = ["error", "all"].into_iter().chain(devices(&report.jobs)).collect();
    let cell = |measure: &str, device: &str| {
        let mut all = report.errors.iter();
        let summary = all.find(|one| one.measure == measure && one.device == device);
        summary.map_or_else(String::new, |one| {
            format!("{:.2} ({:.2} to {:.2})", one.geomean_pct, one.least_pct, one.most_pct)
        })
    };
    let row = |(measure, _): &(&str, Measure)| {
        let cells = header[1..].iter().map(|device| cell(measure, device));
        std::iter::once((*measure).to_owned()).chain(cells).collect()
    };
    let rows: Vec<Vec<String>> = MEASURES.iter().map(row).collect();
    format!(
        "Table V: geometric mean of the absolute errors, with the least and the largest, %\n{}",
        render::grid(&header, &rows)
    )
}
