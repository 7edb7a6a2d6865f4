//! The command `rowmill predict calibrate`, which collects samples from recorded steps and writes
//! them to a file.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use predict::calibration::{constants, recording_cost, runs};
use serde::Serialize;

use super::calibrated::{calibrated_machine, check_machine, read_calibration};
use crate::args::PredictCalibrate;
use setup::Session;
use setup::error::Error;
use setup::output;
use setup::recorded_steps::{
    Steps, collect_samples, open_recordings, prepare_job, read_steps, recorded_machine,
    whole_scopes,
};
use setup::render;

/// The facts about a written calibration, in the form in which the command prints them.
#[derive(Serialize)]
struct CalibrationReport {
    #[serde(serialize_with = "render::path_text")]
    path: PathBuf,
    host: String,
    devices: Vec<String>,
    ranks: usize,
    /// Number of recordings, including the recordings of merged calibrations.
    recordings: usize,
    /// Number of recordings of configurations that were recorded more than once. Such recordings
    /// show how much runs differ.
    repeated: usize,
    steps: u32,
    overheads: usize,
    works: usize,
    samples: u64,
    /// Nanoseconds that the profiler needs to record an event. This time was subtracted from the
    /// samples of the host.
    event_ns: f64,
}

/// Runs `rowmill predict calibrate` and prints its result.
pub fn run(args: &PredictCalibrate, session: &Session) -> Result<(), Error> {
    let traces = open_recordings(&args.paths, session)?;
    let scopes = whole_scopes(&traces);
    let steps = Steps::find(&scopes)?;
    let job = prepare_job(&scopes, session);
    let machine = recorded_machine(&traces);
    let read = read_steps(&job, &steps)?;
    let event_ns = match &args.unrecorded {
        None => 0.0,
        Some(given) => {
            let calibrate = |event_ns| collect_samples(&read, traces.len(), event_ns);
            let event_ns = recording_cost::event_ns(&read, unrecorded_ns(given)?, calibrate)?;
            if event_ns == 0.0 {
                session.console.warn(
                    "--unrecorded: steps take no less than the recorded ones, so what recording an \
                     event takes stays unknown: predictions are of recorded steps",
                );
            }
            event_ns
        }
    };
    let mut calibration = collect_samples(&read, traces.len(), event_ns);
    calibration.machine = machine.clone();
    for path in &args.merge {
        let other = read_calibration(path)?;
        let own = calibrated_machine(&calibration);
        let checked = check_machine(path, &calibrated_machine(&other), &own);
        match checked {
            Err(error) if args.force => session.console.warn(&error),
            checked => checked?,
        }
        calibration.merge(other);
    }
    if args.host_only {
        calibration = calibration.shared_overheads();
    }
    let text = calibration.to_json()?;
    // clap requires --output unless --overheads is given, and --overheads runs another function.
    let path = args.output.clone().unwrap_or_default();
    output::put(&path, |file| writeln!(file, "{text}").map_err(Error::io(&path, "write")))?;
    let report = CalibrationReport {
        path,
        host: calibration.machine.host.clone(),
        devices: calibration.machine.devices.clone(),
        ranks: traces.len(),
        recordings: calibration.recordings.len(),
        repeated: runs::factors(&calibration).len(),
        steps: calibration.step_count(),
        overheads: calibration.overheads.len(),
        works: calibration.works.len(),
        samples: calibration.sample_count(),
        event_ns: calibration.event_ns,
    };
    session.console.report(&report, |report| {
        render::facts(&[
            ("written", report.path.display().to_string()),
            ("devices", report.devices.join(", ")),
            ("recordings", format!("{}, {} of them repeated", report.recordings, report.repeated)),
            ("steps of ranks", render::count(u64::from(report.steps))),
            ("kinds of host time", render::count(report.overheads as u64)),
            ("kinds of device work", render::count(report.works as u64)),
            ("samples", render::count(report.samples)),
            ("recording an event", format_event(report.event_ns)),
        ])
    })
}

fn format_event(ns: f64) -> String {
    if ns > 0.0 { format!("{}, left out", render::nanos(ns)) } else { "not known".to_owned() }
}

/// Parses the time of a step without the profiler. The argument is a number, or the path of a file,
/// of whose lines the median is taken.
fn unrecorded_ns(given: &str) -> Result<i64, Error> {
    if let Ok(ns) = given.parse::<i64>() {
        return Ok(ns);
    }
    let path = Path::new(given);
    let text = fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    let lines = (1u64..).zip(text.lines()).filter(|line| !line.1.trim().is_empty());
    let refuse = |line: u64, got: &str| {
        let expected = format!("nanoseconds of a step in line {line} of {}", path.display());
        predict::Error::Unrecorded { expected, got: format!("{got:?}") }
    };
    let ns = |(number, line): (u64, &str)| {
        let ns = line.trim().parse::<i64>().ok().filter(|ns| *ns > 0);
        ns.ok_or_else(|| refuse(number, line.trim()))
    };
    let all = lines.map(ns).collect::<Result<Vec<i64>, predict::Error>>()?;
    Ok(constants::median(&all).ok_or_else(|| refuse(1, ""))?)
}
