//! `rowmill predict calibrate`: samples of recorded steps, as a file.

use std::io::Write;
use std::path::PathBuf;

use predict::calibration::runs;
use serde::Serialize;

use super::{Steps, calibrated, calibration, check_machine, job, machine, recordings, scopes};
use crate::args::PredictCalibrate;
use crate::error::Error;
use crate::output;
use crate::render;
use crate::resolve::Session;

/// What was written.
#[derive(Serialize)]
struct Report {
    #[serde(serialize_with = "render::path_text")]
    path: PathBuf,
    host: String,
    devices: Vec<String>,
    ranks: usize,
    /// Of this one and of those that were merged.
    recordings: usize,
    /// Recordings of a configuration that was recorded more than once: they say how runs differ.
    repeated: usize,
    steps: u32,
    overheads: usize,
    works: usize,
    samples: u64,
}

/// Runs the command.
pub fn run(args: &PredictCalibrate, session: &Session) -> Result<(), Error> {
    let traces = recordings(&args.paths, session)?;
    let scopes = scopes(&traces);
    let steps = Steps::of(&scopes)?;
    let job = job(&scopes, session);
    let machine = machine(&traces);
    let mut found = calibrated(&job, &steps, traces.len())?;
    found.machine = machine.clone();
    for path in &args.merge {
        let other = calibration(path)?;
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
        ])
    })
}
