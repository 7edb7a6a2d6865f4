//! The command `rowmill predict evaluate --kernels`, which computes errors of kernel models on
//! measurements that they were not trained on.

use bench::left_out_devices::{LeftOutRow, evaluate_left_out_devices};
use bench::simple_predictions::{SimpleErrors, evaluate_simple_predictions};
use kernel_model::evaluate::{self, KernelRow};
use kernel_model::{Kind, Measured, Part};
use serde::Serialize;

use crate::args::PredictEvaluate;
use setup::Session;
use setup::error::Error;
use setup::kernel_files::{read_model, read_table};
use setup::progress::{Meter, ProgressUnit};
use setup::render;

/// Errors of kernel models, from one of the two kinds of evaluation.
#[derive(Serialize)]
struct KernelReport {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kernels: Vec<EvaluatedRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<LeftOutRow>,
}

/// Errors of a model of one kind on one device, beside those of simple predictions.
#[derive(Serialize)]
struct EvaluatedRow {
    #[serde(flatten)]
    own: KernelRow,
    #[serde(flatten)]
    simple: SimpleErrors,
}

/// Runs `rowmill predict evaluate --kernels` and prints its result.
pub fn run(args: &PredictEvaluate, session: &Session) -> Result<(), Error> {
    let mut rows = Vec::new();
    for path in &args.paths {
        rows.extend(read_table(path)?);
    }
    let has_kind = |kind: &Kind| rows.iter().any(|row| row.work.kind() == *kind);
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(has_kind).collect();
    let mut report = KernelReport { kernels: Vec::new(), left_out: Vec::new() };
    let total = Some(rows.len() as u64);
    let mut meter = Meter::start(session.console, "evaluating", ProgressUnit::Rows, total);
    let mut done = 0;
    for &kind in &kinds {
        meter.advance(done, kind.name());
        done += rows.iter().filter(|row| row.work.kind() == kind).count() as u64;
        let model = read_model(args.kernels.models.as_deref(), kind)?;
        if args.kernels.leave_out {
            report.left_out.extend(evaluate_left_out_devices(&model, &rows, session.threads));
            continue;
        }
        let simple = evaluate_simple_predictions(&model, &rows);
        let all = evaluate::evaluate_model(&model, &rows, Part::Test).into_iter();
        let row = |own: KernelRow| EvaluatedRow { simple: simple[&*own.device], own };
        report.kernels.extend(all.map(row));
    }
    meter.finish();
    warn_without_rows(&report, &rows, session);
    session.console.report(&report, format_report)
}

fn warn_without_rows(report: &KernelReport, rows: &[Measured], session: &Session) {
    if report.kernels.is_empty() && report.left_out.is_empty() {
        session.console.warn(format_args!(
            "{} rows, but none of them could be evaluated; leaving out takes three devices",
            render::count(rows.len() as u64)
        ));
    }
}

fn format_report(report: &KernelReport) -> String {
    let mut parts = Vec::new();
    if !report.kernels.is_empty() {
        parts.push(format_errors(report));
    }
    if !report.left_out.is_empty() {
        parts.push(format_left_out(report));
    }
    parts.join("\n\n")
}

fn format_errors(report: &KernelReport) -> String {
    let row = |EvaluatedRow { own: row, simple }: &EvaluatedRow| {
        let drift = format!("{} a row", render::nanos(row.drift_ns_per_row));
        vec![
            row.kind.to_owned(),
            row.device.clone(),
            render::count(row.rows as u64),
            format!("{:.1}/{:.1}", row.roofline_gmae_pct, row.roofline_mape_pct),
            format!("{:.1}/{:.1}", simple.measured_peak_gmae_pct, simple.measured_peak_mape_pct),
            format!("{:.1}", simple.unchanged_mape_pct),
            format!("{:.1}", simple.line_mape_pct),
            format!("{:.1}", simple.trees_mape_pct),
            format!("{:.2}/{:.2}", row.gmae_pct, row.mape_pct),
            format!("{:.2}", row.kernel_mape_pct),
            format!("{:.1}", row.covered_pct),
            render::nanos(row.floor_ns),
            if row.drift_ns_per_row > 0.0 { drift } else { String::new() },
        ]
    };
    let header = [
        "kernel",
        "device",
        "rows",
        "roofline %",
        "of measured peaks %",
        "unchanged %",
        "line %",
        "trees %",
        "model %",
        "far above floor %",
        "covered %",
        "floor",
        "drift",
    ];
    let rows: Vec<Vec<String>> = report.kernels.iter().map(row).collect();
    format!(
        "Rows that took no part in training, above the floor and long enough to show: geometric \
         mean / mean of absolute errors\n{}",
        render::grid(&header, &rows)
    )
}

fn format_left_out(report: &KernelReport) -> String {
    let values = |row: &LeftOutRow| {
        [
            row.roofline_mape_pct,
            row.unchanged_mape_pct,
            row.nearest_line_mape_pct,
            row.trees_mape_pct,
            row.mape_pct,
            row.shots_mape_pct,
            row.covered_pct,
            row.layers_covered_pct,
        ]
    };
    let cells = |values: [f64; 8]| values.map(|value| format!("{value:.1}"));
    let row = |row: &LeftOutRow| {
        let names = [row.kind.to_owned(), row.device.clone(), render::count(row.rows as u64)];
        names.into_iter().chain(cells(values(row))).collect()
    };
    let mut rows: Vec<Vec<String>> = report.left_out.iter().map(row).collect();
    for kind in Kind::ALL {
        let of_kind = report.left_out.iter().filter(|row| row.kind == kind.name());
        let all: Vec<[f64; 8]> = of_kind.map(values).collect();
        if all.is_empty() {
            continue;
        }
        let mean = |at: usize| all.iter().map(|row| row[at]).sum::<f64>() / all.len() as f64;
        let names = [kind.name(), "mean", ""].map(str::to_owned);
        rows.push(names.into_iter().chain(cells(std::array::from_fn(mean))).collect());
    }
    let header = [
        "kernel",
        "left out",
        "rows",
        "roofline %",
        "unchanged %",
        "nearest line %",
        "trees %",
        "no rows %",
        "20 rows %",
        "covered %",
        "layers covered %",
    ];
    format!(
        "Each device predicted from the others: mean of absolute errors\n{}",
        render::grid(&header, &rows)
    )
}
