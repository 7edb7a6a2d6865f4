//! `rowmill predict calibrate`: samples of recorded steps, as a file.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use predict::calibration::{constants, recording_cost, runs};
use serde::Serialize;

use super::calibrated::{check_machine, read_calibration};
use crate::args::PredictCalibrate;
use setup::Session;
use setup::error::Error;
use setup::output;
use setup::recorded_steps::{
    Steps, collect_samples, open_recordings, prepare_job, read_steps, recorded_machine,
    whole_scopes,
};
use setup::render;

/// The written calibration, as the command prints it.
#[derive(Serialize)]
struct Report {
    #[serde(serialize_with = "render::path_text")]
    path: PathBuf,
    host: String,
    devices: Vec<String>,
    ranks: usize,
    /// Number of recordings, merged ones included.
    recordings: usize,
    /// Recordings of a configuration that was recorded more than once: they say how runs differ.
    repeated: usize,
    steps: u32,
    overheads: usize,
    works: usize,
    samples: u64,
    /// Nanoseconds of recording an event, which samples of the host are without.
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
            let calibrated = |event_ns| collect_samples(&read, traces.len(), event_ns);
            let found = recording_cost::event_ns(&read, unrecorded_ns(given)?, calibrated)?;
            if found == 0.0 {
                session.console.warn(
                    "--unrecorded: steps take no less than the recorded ones, so what recording an \
                     event takes stays unknown: predictions are of recorded steps",
                );
            }
            found
        }
    };
    let mut found = collect_samples(&read, traces.len(), event_ns);
    found.machine = machine.clone();
    for path in &args.merge {
        let other = read_calibration(path)?;
        check_machine((path, &other.machine), &machine, (args.force, session))?;
        found.merge(other);
    }
    let text = found.to_json()?;
    output::put(&args.output, |file| {
        writeln!(file, "{text}").map_err(Error::io(&args.output, "write"))
    })?;
    let report = Report {
        path: args.output.clone(),
        host: found.machine.host.clone(),
        devices: found.machine.devices.clone(),
        ranks: traces.len(),
        recordings: found.recordings.len(),
        repeated: runs::factors(&found).len(),
        steps: found.step_count(),
        overheads: found.overheads.len(),
        works: found.works.len(),
        samples: found.sample_count(),
        event_ns: found.event_ns,
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
            ("recording an event", event(report.event_ns)),
        ])
    })
}

fn event(ns: f64) -> String {
    if ns > 0.0 { format!("{}, left out", render::nanos(ns)) } else { "not known".to_owned() }
}

/// The median of times in nanoseconds: one as typed, or those of a file, one a line.
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
