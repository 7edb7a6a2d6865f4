//! The command `rowmill predict evaluate --kernels`, which computes errors of kernel models on
//! measurements that they were not trained on.

use analyze::distribution;
use kernel_model::evaluate::{self, KernelRow};
use kernel_model::leave_out::{self, LeftOutRow};
use kernel_model::{Kind, Measured, Part};
use serde::Serialize;

use crate::args::PredictEvaluate;
use setup::Session;
use setup::error::Error;
use setup::kernel_files::{read_model, read_table};
use setup::render;

/// Errors of kernel models, from one of the two kinds of evaluation.
#[derive(Serialize)]
struct KernelReport {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kernels: Vec<KernelRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<LeftOutRow>,
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
    for &kind in &kinds {
        if args.kernels.leave_out {
            report.left_out.extend(leave_out::evaluate_left_out_devices(
                kind,
                &rows,
                session.threads,
            ));
            continue;
        }
        let model = read_model(args.kernels.models.as_deref(), kind)?;
        report.kernels.extend(evaluate::evaluate_model(&model, &rows, Part::Test));
    }
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
    let row = |row: &KernelRow| {
        let drift = format!("{} a row", render::nanos(row.drift_ns_per_row));
        vec![
            row.kind.to_owned(),
            row.device.clone(),
            render::count(row.rows as u64),
            format!("{:.1}/{:.1}", row.roofline_gmae_pct, row.roofline_mape_pct),
            format!("{:.1}/{:.1}", row.measured_peak_gmae_pct, row.measured_peak_mape_pct),
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
    let percent = |value: f64| format!("{value:.1}");
    let row = |row: &LeftOutRow| {
        vec![
            row.kind.to_owned(),
            row.device.clone(),
            render::count(row.rows as u64),
            percent(row.roofline_mape_pct),
            percent(row.mape_pct),
            percent(row.shots_mape_pct),
            percent(row.covered_pct),
        ]
    };
    let mut rows: Vec<Vec<String>> = report.left_out.iter().map(row).collect();
    for kind in Kind::ALL {
        let median_pct = |take: fn(&LeftOutRow) -> f64| {
            let rows = report.left_out.iter().filter(|row| row.kind == kind.name());
            distribution::median(&mut rows.map(take).collect::<Vec<_>>())
        };
        let Some(roofline) = median_pct(|row| row.roofline_mape_pct) else { continue };
        let zero = median_pct(|row| row.mape_pct).unwrap_or_default();
        let shots = median_pct(|row| row.shots_mape_pct).unwrap_or_default();
        let all = [roofline, zero, shots].map(percent);
        let name = [kind.name(), "median", ""].map(str::to_owned);
        rows.push(name.into_iter().chain(all).chain([String::new()]).collect());
    }
    let header =
        ["kernel", "left out", "rows", "roofline %", "no rows %", "20 rows %", "covered %"];
    format!(
        "Each device predicted from the others: mean of absolute errors\n{}",
        render::grid(&header, &rows)
    )
}
