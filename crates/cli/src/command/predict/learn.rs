//! The command `rowmill predict learn`, which measures the operations of this CPU and learns their
//! costs. The command can also learn from a recorded suite or from tables of latencies. The models
//! are part of `kernel_model`.

mod alone;
pub mod device;
mod draw;
pub mod folder;
mod measure;
mod recorded;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kernel_model::Error as KernelError;
use kernel_model::cpu::{CpuKindErrors, CpuModel, Example, MeasuredStep, MeasuredSteps};
use predict::step::cpu;
use serde::Serialize;
use trace::packed::unpacked;

use crate::args::PredictLearn;
use folder::{HARDWARE, write};
use setup::Session;
use setup::args::NeverRunStep;
use setup::error::{Error, RunError, UsageError};
use setup::hardware_file::read_device;
use setup::interrupt;
use setup::output;
use setup::render;
use setup::suite::SUITE;
use setup::workload::{Workload, WorkloadHosts};

/// Name of the file with the measured steps, in the output folder.
const STEPS: &str = "steps.jsonl";

/// The learned model of a CPU with its errors, in the form in which the command prints it.
#[derive(Serialize)]
struct CpuReport {
    hardware: String,
    cpu: String,
    threads: u32,
    /// Number of steps that were accepted, and number of steps that were measured.
    steps: [usize; 2],
    stream_gb_per_s: f64,
    kinds: Vec<CpuKindErrors>,
}

/// Runs `rowmill predict learn` and prints its result.
pub fn run(args: &PredictLearn, session: &Session) -> Result<(), Error> {
    if let Some(folder) = args.measured.iter().find(|path| path.join(SUITE).is_file()) {
        if let Some(other) = args.measured.iter().find(|path| *path != folder) {
            let expected = "a recorded suite alone".to_owned();
            let source = KernelError::Model { expected, got: format!("{} too", other.display()) };
            return Err(UsageError::Kernels { path: folder.clone(), source }.into());
        }
        if let Some(path) = &args.hardware {
            read_device(path)?;
        }
        return recorded::run(folder, &args.output, session);
    }
    if let Some(path) = args.hardware.clone() {
        let expected = "--kernels or a recorded suite with --hardware".to_owned();
        let source = KernelError::Model { expected, got: "steps of a CPU".to_owned() };
        return Err(UsageError::Kernels { path, source }.into());
    }
    let earlier = join_steps(&args.measured)?;
    let stop = match earlier {
        None => interrupt::stop_flag("learning from what was measured so far"),
        Some(_) => Arc::default(),
    };
    // Measuring takes minutes, so the folder is created before it. An error about the folder is
    // thus shown at once.
    let _made = output::folder(&args.output)?;
    let is_new = args.measured.len() != 1;
    let measured = match earlier {
        Some(measured) => measured,
        None => measure::run(args, &stop, session)?,
    };
    if is_new {
        // The measurements took minutes and learning may fail, so they are written before the
        // learning.
        write(&args.output.join(STEPS), &measured.to_text()?)?;
    }
    let (model, kinds) = learn_model(&measured).map_err(|error| match error {
        Error::Usage(_) if stop.load(Ordering::SeqCst) => RunError::Interrupted.into(),
        error => error,
    })?;
    let path = args.output.join(HARDWARE);
    write(&path, &model.to_text()?)?;
    let report = CpuReport {
        hardware: path.display().to_string(),
        cpu: model.machine.spec.name.clone().into_owned(),
        threads: model.machine.threads,
        steps: model.steps,
        stream_gb_per_s: model.stream_gb_per_s,
        kinds,
    };
    session.console.report(&report, format_report)
}

/// Joins the steps that several runs measured. Returns `None` if no paths are given.
fn join_steps(paths: &[PathBuf]) -> Result<Option<MeasuredSteps>, Error> {
    let mut all: Option<MeasuredSteps> = None;
    for path in paths {
        let found = read_steps(path)?;
        match &mut all {
            None => all = Some(found),
            Some(all) => {
                all.join(found)
                    .map_err(|source| UsageError::Kernels { path: path.clone(), source })?;
            }
        }
    }
    Ok(all)
}

/// Reads steps that were measured earlier. The path is a file, which may be compressed, or the
/// folder of such a file.
fn read_steps(path: &Path) -> Result<MeasuredSteps, Error> {
    let file = if path.is_dir() { path.join(STEPS) } else { path.to_owned() };
    let mut text = String::new();
    File::open(&file)
        .and_then(|packed| unpacked(packed)?.read_to_string(&mut text))
        .map_err(Error::io(&file, "read"))?;
    let steps = MeasuredSteps::parse(&text);
    Ok(steps.map_err(|source| UsageError::Kernels { path: file, source })?)
}

fn learn_model(measured: &MeasuredSteps) -> Result<(CpuModel, Vec<CpuKindErrors>), Error> {
    let workloads: Vec<Workload> = measured.steps.iter().map(workload).collect::<Result<_, _>>()?;
    let both = workloads.iter().zip(&measured.steps);
    let examples: Vec<Example<'_>> = both
        .map(|(workload, measured)| cpu::build_example(workload.borrowed(), measured))
        .collect::<Result<_, _>>()?;
    Ok(CpuModel::learn(measured.machine.clone(), &examples, &measured.tables)?)
}

/// Parses the configuration that a measured step trained.
fn workload(step: &MeasuredStep) -> Result<Workload, Error> {
    let options = NeverRunStep {
        set: step.set.clone(),
        batch_size: None,
        pooling: step.pooling,
        ranks: None,
        sharding: None,
        plan: None,
    };
    Workload::resolve(&step.config, &options, WorkloadHosts::ONE_RANK)
}

fn format_report(report: &CpuReport) -> String {
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
            kind.learned.to_string(),
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
        "learned",
        "judged",
        "GMAE %",
        "mean %",
        "covered %",
        "of the time %",
        "rounds apart %",
    ];
    let rows: Vec<Vec<String>> = report.kinds.iter().map(row).collect();
    format!(
        "{facts}\n\nErrors on steps that nothing was learned from:\n{}",
        render::grid(&header, &rows)
    )
}
