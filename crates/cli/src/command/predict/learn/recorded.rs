//! Learns from a suite that `bench/collect` recorded. The results are kernel models of the GPU, the
//! highest rates that the GPU reached, and the overheads of the host.

use std::io::Write;
use std::path::Path;

use kernel_model::evaluate::{self, KernelRow};
use kernel_model::{Kind, Measured, Part, Timed, few_shot};
use predict::calibration::{Calibration, constants};
use schema::HardwareSpec;
use schema::topology::hardware;
use serde::Serialize;

use super::device::write_device;
use super::folder::{HARDWARE, write};
use setup::Session;
use setup::error::Error;
use setup::kernel_files::{model_path, read_model};
use setup::output;
use setup::recorded_steps::{
    Steps, calibrate_steps, open_recordings, prepare_job, recorded_machine, whole_scopes,
};
use setup::render;
use setup::suite::{self, SuiteFile, SuiteMeasured, SuiteWork};

/// Name of the calibration file in the output folder.
const CALIBRATION: &str = "calibration.json";
/// Smallest number of measurements with which a kernel model is adapted.
const ROWS_LEAST: usize = 5;

/// The models and rates learned from a suite, in the form in which the command prints them.
#[derive(Serialize)]
struct SuiteReport {
    device: Option<String>,
    written: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kernels: Vec<KernelRow>,
    recordings: usize,
    overheads: usize,
    launch_ns: i64,
}

/// Learns from the suite in `folder` and writes the results into `output`.
pub fn run(folder: &Path, output: &Path, session: &Session) -> Result<(), Error> {
    let suite = suite::read(folder)?;
    let _made = output::folder(output)?;
    let mut written = Vec::new();
    let (overheads, recordings) = overheads(folder, &suite, session)?;
    if let Some(found) = &overheads {
        let path = output.join(CALIBRATION);
        write(&path, &(found.to_json()? + "\n"))?;
        written.push(path.display().to_string());
    }
    let gpu = suite.gpu();
    let launch_ns =
        overheads.as_ref().map_or(0, |found| constants::derive_constants(found).launch_ns);
    let mut kernels = Vec::new();
    let mut device = None;
    match gpu {
        None => session.console.say(
            "the suite was recorded on a CPU: no kernel models are made of it; without a suite, \
             rowmill predict learn measures a CPU",
        ),
        Some(gpu) => {
            let spec = hardware(gpu).map_err(kernel_model::Error::from)?;
            let rows = learned(&suite::read_microbenchmarks(folder, &suite)?, spec);
            let (paths, judged) = models(&rows, output)?;
            written.extend(paths);
            kernels = judged;
            write_device(output, &reached(spec, &rows))?;
            written.push(output.join(HARDWARE).display().to_string());
            device = Some(spec.name.clone().into_owned());
        }
    }
    let overheads = overheads.map_or(0, |found| found.overheads.len());
    let report = SuiteReport { device, written, kernels, recordings, overheads, launch_ns };
    session.console.report(&report, for_people)
}

/// Calibrates on all recordings of the suite. Returns the calibration and the number of recordings.
fn overheads(
    folder: &Path,
    suite: &SuiteFile,
    session: &Session,
) -> Result<(Option<Calibration>, usize), Error> {
    let mut all: Option<Calibration> = None;
    let mut count = 0;
    for recorded in suite.files.iter().filter(|file| file.kind == "kineto") {
        let traces = open_recordings(&[folder.join(&recorded.path)], session)?;
        let scopes = whole_scopes(&traces);
        let mut found =
            calibrate_steps(&prepare_job(&scopes, session), &Steps::find(&scopes)?, traces.len())?;
        found.machine = recorded_machine(&traces);
        count += 1;
        match &mut all {
            Some(all) => all.merge(found),
            None => all = Some(found),
        }
    }
    Ok((all, count))
}

/// Selects the measurements of the kernels for which there is a trained model.
fn learned(rows: &[SuiteMeasured], device: &'static HardwareSpec) -> Vec<Measured> {
    let row = |row: &SuiteMeasured| match row.work {
        SuiteWork::Learned(work) => Some((work, row.ns)),
        SuiteWork::Single(_) => None,
    };
    let rows = (0..).zip(rows.iter().filter_map(row));
    let measured = |(place, (work, latency_ns))| {
        let timed = Timed::Kernel;
        Measured { work, device, latency_ns, timed, place }
    };
    rows.map(measured).collect()
}

/// Adapts the kernel models that come with rowmill to four fifths of the measured shapes, and
/// evaluates them on the other shapes.
fn models(rows: &[Measured], output: &Path) -> Result<(Vec<String>, Vec<KernelRow>), Error> {
    let (mut written, mut judged) = (Vec::new(), Vec::new());
    for kind in Kind::ALL {
        let of_kind: Vec<Measured> =
            rows.iter().filter(|row| row.work.kind() == kind).copied().collect();
        let learned: Vec<Measured> =
            of_kind.iter().filter(|row| Part::for_work(&row.work) != Part::Test).copied().collect();
        if learned.len() < ROWS_LEAST {
            continue;
        }
        let adapted = few_shot::calibrate(read_model(None, kind)?, &learned)?;
        judged.extend(evaluate::evaluate_model(&adapted, &of_kind, Part::Test));
        let path = model_path(output, kind);
        let bytes = adapted.to_bytes()?;
        output::put(&path, |file| file.write_all(&bytes).map_err(Error::io(&path, "write")))?;
        written.push(path.display().to_string());
    }
    Ok((written, judged))
}

/// Returns the hardware data of a device, with its sustained rates replaced by the highest rates
/// that the measurements reached.
fn reached(spec: &HardwareSpec, rows: &[Measured]) -> HardwareSpec {
    let most = |kinds: &[Kind], of: &dyn Fn(&Measured) -> f64| {
        let rows = rows.iter().filter(|row| kinds.contains(&row.work.kind()));
        rows.map(|row| 1e9 * of(row) / row.latency_ns).reduce(f64::max)
    };
    let flops = most(&[Kind::Linear, Kind::Bmm], &|row| row.work.flops_and_bytes().0);
    // Kernels that move less than four times the size of the cache measure the cache rather than
    // memory, so they are left out.
    let is_large = |bytes: f64| if bytes > 4.0 * spec.l2_bytes as f64 { bytes } else { 0.0 };
    let bytes = most(&[Kind::ElementWise], &|row| is_large(row.work.flops_and_bytes().1));
    let shortest = rows.iter().map(|row| row.latency_ns).reduce(f64::min);
    HardwareSpec {
        sustained_f32: flops.or(spec.sustained_f32),
        dram_sustained: bytes.filter(|rate| *rate > 0.0).or(spec.dram_sustained),
        launch_floor_ns: shortest.map(|ns| ns as u32).or(spec.launch_floor_ns),
        source: format!(
            "{}; sustained rates and the shortest kernel by a recorded suite",
            spec.source
        )
        .into(),
        ..spec.clone()
    }
}

fn for_people(report: &SuiteReport) -> String {
    let mut facts = vec![
        ("device", report.device.clone().unwrap_or_else(|| "a CPU".to_owned())),
        ("recordings", report.recordings.to_string()),
        ("kinds of host time", report.overheads.to_string()),
        ("from a launch to its kernel", render::nanos(report.launch_ns as f64)),
    ];
    facts.extend(report.written.iter().map(|path| ("written", path.clone())));
    let row = |row: &KernelRow| {
        vec![
            row.kind.to_owned(),
            row.rows.to_string(),
            format!("{:.1}/{:.1}", row.roofline_gmae_pct, row.roofline_mape_pct),
            format!("{:.1}/{:.1}", row.gmae_pct, row.mape_pct),
            format!("{:.1}", row.covered_pct),
        ]
    };
    let rows: Vec<Vec<String>> = report.kernels.iter().map(row).collect();
    let facts = render::facts(&facts);
    if rows.is_empty() {
        return facts;
    }
    let header = ["kernel", "judged", "roofline %", "model %", "covered %"];
    format!(
        "{facts}\n\nErrors on shapes that nothing was learned from:\n{}",
        render::grid(&header, &rows)
    )
}
