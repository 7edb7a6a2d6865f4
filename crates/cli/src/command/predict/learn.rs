//! `rowmill predict learn`: what operations take on a CPU, measured and learnt in one command, or
//! what a recorded suite says of a GPU. The models are `predict::kernel`'s.

mod alone;
mod draw;
pub mod folder;
mod measure;
pub mod recorded;

use std::path::Path;

use predict::kernel::cpu::{CpuKindErrors, CpuModel, Example, MeasuredStep, MeasuredSteps};
use serde::Serialize;

use crate::args::{NeverRunStep, PredictLearn, Sharding};
use crate::error::Error;
use crate::output;
use crate::render;
use crate::resolve::Session;
use crate::resolve::workload::Workload;
use folder::{HARDWARE, write};
use recorded::SUITE;

/// What was measured, in the folder that is written.
const STEPS: &str = "steps.jsonl";

/// What was learnt, and how far off it is.
#[derive(Serialize)]
struct Report {
    hardware: String,
    cpu: String,
    threads: u32,
    /// Steps learnt from and judged by, of those that were measured.
    steps: [usize; 2],
    stream_gb_per_s: f64,
    kinds: Vec<CpuKindErrors>,
}

/// Runs the command.
pub fn run(args: &PredictLearn, session: &Session) -> Result<(), Error> {
    if let Some(folder) = args.measured.as_deref().filter(|path| path.join(SUITE).is_file()) {
        return recorded::run(folder, &args.output, session);
    }
    // Measuring takes minutes: where nothing can be written, none are spent.
    let _made = output::folder(&args.output)?;
    let measured = match &args.measured {
        Some(path) => read(path)?,
        None => measure::run(args, session)?,
    };
    if args.measured.is_none() {
        // Before anything is learnt, which may fail.
        write(&args.output.join(STEPS), &measured.to_text()?)?;
    }
    let (model, kinds) = learnt(&measured)?;
    let path = args.output.join(HARDWARE);
    write(&path, &model.to_text()?)?;
    let report = Report {
        hardware: path.display().to_string(),
        cpu: model.machine.spec.name.clone().into_owned(),
        threads: model.machine.threads,
        steps: model.steps,
        stream_gb_per_s: model.stream_gb_per_s,
        kinds,
    };
    session.console.report(&report, for_people)
}

/// Steps that were measured before: its file, or its folder.
fn read(path: &Path) -> Result<MeasuredSteps, Error> {
    let file = if path.is_dir() { path.join(STEPS) } else { path.to_owned() };
    let text = std::fs::read_to_string(&file).map_err(Error::io(&file, "read"))?;
    MeasuredSteps::parse(&text).map_err(|source| Error::Kernels { path: file, source })
}

fn learnt(measured: &MeasuredSteps) -> Result<(CpuModel, Vec<CpuKindErrors>), Error> {
    let workloads: Vec<Workload> = measured.steps.iter().map(workload).collect::<Result<_, _>>()?;
    let both = workloads.iter().zip(&measured.steps);
    let examples: Vec<Example<'_>> = both
        .map(|(workload, measured)| Example { workload: workload.borrowed(), measured })
        .collect();
    Ok(CpuModel::learn(measured.machine.clone(), &examples, &measured.tables)?)
}

/// What a measured step trained.
fn workload(step: &MeasuredStep) -> Result<Workload, Error> {
    let asked = NeverRunStep {
        set: step.set.clone(),
        batch_size: None,
        pooling: step.pooling,
        ranks: None,
        sharding: Sharding::Table,
        plan: None,
    };
    Workload::resolve(&step.config, &asked, 1)
}

fn for_people(report: &Report) -> String {
    let [kept, all] = report.steps;
    let facts = render::facts(&[
        (
            "CPU",
            format!("{}, {}", report.cpu, render::counted(u64::from(report.threads), "thread")),
        ),
        (
            "steps",
            format!("{kept} of {all}, where memory is read at {:.1} GB/s", report.stream_gb_per_s),
        ),
        ("written", report.hardware.clone()),
    ]);
    let row = |kind: &CpuKindErrors| {
        let percent =
            |value: f64| if value.is_finite() { format!("{value:.1}") } else { String::new() };
        vec![
            kind.kind.clone(),
            kind.learnt.to_string(),
            kind.judged.to_string(),
            percent(kind.gmae_pct),
            percent(kind.mape_pct),
            percent(kind.covered_pct),
            percent(kind.share_pct),
            kind.floor_pct.map_or(String::new(), percent),
        ]
    };
    let header = [
        "operation",
        "learnt",
        "judged",
        "GMAE %",
        "mean %",
        "covered %",
        "of the time %",
        "rounds apart %",
    ];
    let rows: Vec<Vec<String>> = report.kinds.iter().map(row).collect();
    format!(
        "{facts}\n\nErrors on steps that nothing was learnt from:\n{}",
        render::grid(&header, &rows)
    )
}
