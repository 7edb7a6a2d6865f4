//! A recorded step and the calibration that prices it, and whether the two are of one machine.

use std::path::PathBuf;

use analyze::Scope;
use predict::calibration::{Calibration, Machine};
use predict::recording::{Span, Step};
use trace::store::Trace;

use crate::args::Recorded;
use setup::Session;
use setup::error::{Error, UsageError};
use setup::recorded_steps::{Steps, calibrate_steps, prepare_job, recorded_machine};

/// A recorded step with the calibration that prices it: one that was given, or that of its own
/// recording.
pub struct Priced {
    pub step: Step,
    pub known: Calibration,
    pub spans: Vec<Span>,
}

/// Reads the step that `recorded` selects, and its calibration.
///
/// # Errors
/// The step was not recorded, or the calibration is of another machine.
pub fn price_recorded_step(
    (path, recorded): (Option<&PathBuf>, Recorded),
    (traces, scopes): (&[Trace], &[Scope<'_>]),
    session: &Session,
) -> Result<Priced, Error> {
    let steps = Steps::find(scopes)?;
    let spans = steps.spans_of_step(steps.check_number(recorded.step)?);
    let job = prepare_job(scopes, session);
    let known = match path {
        None => calibrate_steps(&job, &steps, traces.len())?,
        Some(path) => {
            let given = read_calibration(path)?;
            check_machine(
                (path, &given.machine),
                &recorded_machine(traces),
                (recorded.force, session),
            )?;
            given
        }
    };
    Ok(Priced { step: job.step(&spans)?, known, spans })
}

/// Reads a file of `rowmill predict calibrate`.
///
/// # Errors
/// The file cannot be read or has another version.
pub fn read_calibration(path: &PathBuf) -> Result<Calibration, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    let read = Calibration::from_json(&text);
    Ok(read.map_err(|source| UsageError::CalibrationFile {
        path: path.clone(),
        source: Box::new(source),
    })?)
}

/// With `-v`, prints the machine on which a calibration was collected. Used where no recording
/// exists to compare that machine with.
pub fn report_machine(machine: &Machine, session: &Session) {
    let host = if machine.host.is_empty() { "an unknown host" } else { &machine.host };
    session.console.detail(format_args!("calibrated on {host}, {}", machine.devices.join(", ")));
}

/// Refuses a calibration of another host or other devices, or with `force` only says so.
pub fn check_machine(
    (path, calibrated): (&PathBuf, &Machine),
    recorded: &Machine,
    (force, session): (bool, &Session),
) -> Result<(), Error> {
    let differs = |a: &str, b: &str| !a.is_empty() && !b.is_empty() && a != b;
    let devices = |machine: &Machine| machine.devices.join(", ");
    let is_other = differs(&calibrated.host, &recorded.host)
        || differs(&devices(calibrated), &devices(recorded));
    if !is_other {
        return Ok(());
    }
    let named = |machine: &Machine| {
        let host = if machine.host.is_empty() { "unknown host" } else { &machine.host };
        format!("{host} with {}", devices(machine))
    };
    let error = UsageError::OtherMachine {
        path: path.clone(),
        expected: named(recorded),
        got: named(calibrated),
    };
    if force {
        session.console.warn(&error);
        return Ok(());
    }
    Err(error.into())
}
