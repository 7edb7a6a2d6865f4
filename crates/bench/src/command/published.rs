//! `rowmill-bench published` prints the errors of published methods, in the layout of their papers.
//! `rowmill predict evaluate` prints the errors of rowmill's own predictions.

mod algorithm1;
mod kernel_table;
mod mlp;
pub mod mlp_grid;
mod mlp_search;
mod published_code;
mod published_lookup;
mod step;
mod suite;

use kernel_model::evaluate::{self, KernelRow};
use kernel_model::{Kind, Part};
use serde::Serialize;

use self::mlp_search::MlpRow;

use crate::args::BenchPublished;
use setup::Session;
use setup::error::Error;
use setup::kernel_files::{read_model, read_table};
use setup::recorded_steps::{Steps, open_recordings, prepare_job, whole_scopes};
use setup::render;
use setup::table_output::{self, TableTarget};

/// Errors of rowmill's kernel models, with the errors of the published MLPs.
#[derive(Serialize)]
struct KernelReport {
    kernels: Vec<ComparedRow>,
}

/// Errors of rowmill's model of one kind on one device, with those of the chosen MLP.
#[derive(Serialize)]
struct ComparedRow {
    #[serde(flatten)]
    own: KernelRow,
    #[serde(skip_serializing_if = "Option::is_none")]
    mlp: Option<MlpRow>,
}

/// Runs `rowmill-bench published` and prints its result.
pub fn run(args: &BenchPublished, session: &Session) -> Result<(), Error> {
    if !args.kernels {
        return evaluate_step(args, session);
    }
    match suite::find(&args.paths) {
        Some(folder) => suite::run(folder, args, session),
        None => evaluate_kernels(args, session),
    }
}

/// Predicts each rank of a recorded step from the other ranks, with the published methods.
fn evaluate_step(args: &BenchPublished, session: &Session) -> Result<(), Error> {
    let traces = open_recordings(&args.paths, session)?;
    let scopes = whole_scopes(&traces);
    let steps = Steps::find(&scopes)?;
    let step = prepare_job(&scopes, session).step(&steps.spans_of_step(0))?;
    let rows = step::evaluate_left_out_ranks(&step)?;
    table_output::write_rows(session.console, &rows, TableTarget::default())
}

/// Trains the published MLPs on tables of latencies, and prints their errors next to those of
/// rowmill's kernel models.
fn evaluate_kernels(args: &BenchPublished, session: &Session) -> Result<(), Error> {
    let mut rows = Vec::new();
    for path in &args.paths {
        rows.extend(read_table(path)?);
    }
    let has_kind = |kind: &Kind| rows.iter().any(|row| row.work.kind() == *kind);
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(has_kind).collect();
    let mut kernels = Vec::new();
    for &kind in &kinds {
        let model = read_model(args.models.as_deref(), kind)?;
        kernels.extend(evaluate::evaluate_model(&model, &rows, Part::Test));
    }
    let chosen = mlp::search(&kinds, &rows, args.grid, session)?;
    let compare = |own: KernelRow| {
        let mut all = chosen.iter();
        let mlp = all.find(|mlp| mlp.kind.name() == own.kind && mlp.device == own.device);
        ComparedRow { mlp: mlp.map(|mlp| mlp_search::errors(mlp, &rows)), own }
    };
    let kernels = kernels.into_iter().map(compare).collect();
    session.console.report(&KernelReport { kernels }, format_report)
}

fn format_report(report: &KernelReport) -> String {
    let both = |gmae: f64, mape: f64| format!("{gmae:.2}/{mape:.2}");
    let row = |ComparedRow { own: row, mlp }: &ComparedRow| {
        let errors = |mlp: &MlpRow| both(mlp.gmae_pct, mlp.mape_pct);
        vec![
            row.kind.to_owned(),
            row.device.clone(),
            render::count(row.rows as u64),
            both(row.roofline_gmae_pct, row.roofline_mape_pct),
            mlp.as_ref().map(errors).unwrap_or_default(),
            both(row.gmae_pct, row.mape_pct),
        ]
    };
    let rows: Vec<Vec<String>> = report.kernels.iter().map(row).collect();
    let header = ["kernel", "device", "rows", "roofline %", "MLP %", "model %"];
    format!(
        "Rows that took no part in training: geometric mean / mean of absolute errors\n{}",
        render::grid(&header, &rows)
    )
}
