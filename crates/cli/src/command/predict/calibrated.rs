//! Reads a recorded step together with the calibration that determines its costs, and checks that
//! both come from the same machine.

use std::cell::RefCell;
use std::path::Path;

use analyze::Scope;
use predict::calibration::{Calibration, Machine};
use predict::evaluate::error_pct;
use predict::prediction::{Draws, PredictedStepRow};
use predict::recording::Step;
use predict::simulate::Simulation;
use trace::store::Trace;

use crate::args::{DrawOptions, StepSelection};
use setup::Session;
use setup::error::{Error, UsageError};
use setup::progress::{Meter, ProgressUnit};
use setup::recorded_steps::{Steps, calibrate_steps, prepare_job, recorded_machine};
use setup::step_times::Measured;

/// A recorded step, with the calibration that determines its costs.
pub struct CalibratedStep {
    pub step: Step,
    pub calibration: Calibration,
    /// All recorded steps. `step` is one of them.
    pub steps: Steps,
}

/// Reads the selected step, and its calibration from a file. Without a file, the calibration is
/// computed from the recording itself.
///
/// # Errors
/// The step was not recorded, or the calibration is of another machine.
pub fn read_step(
    calibration: Option<&Path>,
    selection: StepSelection,
    traces: &[Trace],
    scopes: &[Scope<'_>],
    session: &Session,
) -> Result<CalibratedStep, Error> {
    let steps = Steps::find(scopes)?;
    let spans = steps.spans_of_step(steps.check_number(selection.step)?);
    let job = prepare_job(scopes, session);
    let step = job.step(&spans)?;
    let calibration = match calibration {
        None => calibrate_steps(&job, &steps, traces.len())?,
        Some(path) => {
            let calibration = read_calibration(path)?;
            let has_device = step.program.ranks.iter().any(|rank| !rank.works.is_empty());
            let recorded = with_device_work(recorded_machine(traces), has_device);
            let checked = check_machine(path, &calibrated_machine(&calibration), &recorded);
            match checked {
                Err(error) if selection.force => session.console.warn(&error),
                checked => checked?,
            }
            calibration
        }
    };
    Ok(CalibratedStep { step, calibration, steps })
}

/// Largest error of a simulated step against its recording, in percent, with which changes of the
/// step can be predicted.
const BASE_ERROR_PCT: f64 = 5.0;

impl CalibratedStep {
    /// Returns the mean time of a rank's recorded steps.
    pub fn recorded_ns(&self, at: usize) -> i64 {
        let rank = self.step.program.ranks[at].rank;
        Measured::from_spans(rank, &self.steps.spans[at]).mean_ns.round() as i64
    }

    /// Warns if the simulation does not reproduce the steps that were recorded, because its changes
    /// cannot be trusted then. `simulation` has each rank start as recorded.
    pub fn check_base(&self, simulation: &Simulation, session: &Session) {
        for (at, rank) in self.step.program.ranks.iter().enumerate() {
            let (step_ns, recorded_ns) = (simulation.step_ns(at), self.recorded_ns(at));
            let error = error_pct(step_ns, recorded_ns);
            if error.abs() > BASE_ERROR_PCT {
                session.console.warn(format_args!(
                    "DO NOT TRUST THESE SAVINGS: the simulated step of rank {} takes {:.3} ms \
                     without any edit, but recorded steps take {:.3} ms ({error:+.1} %, expected \
                     at most {BASE_ERROR_PCT} %)\n\
                     hint: rowmill predict evaluate shows where recording and simulation differ",
                    rank.rank,
                    step_ns as f64 / 1e6,
                    recorded_ns as f64 / 1e6,
                ));
            }
        }
    }
}

/// Reads a calibration file that `rowmill predict calibrate` wrote.
///
/// # Errors
/// The file cannot be read or has another version.
pub fn read_calibration(path: &Path) -> Result<Calibration, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    let calibration = Calibration::from_json(&text);
    Ok(calibration.map_err(|source| UsageError::CalibrationFile {
        path: path.to_owned(),
        source: Box::new(source),
    })?)
}

/// With `-v`, prints the machine on which a calibration was collected. Commands without a recording
/// call this function, because they have no machine to compare with.
pub fn report_machine(machine: &Machine, session: &Session) {
    let host = if machine.host.is_empty() { "an unknown host" } else { &machine.host };
    session.console.detail(format_args!("calibrated on {host}, {}", machine.devices.join(", ")));
}

/// Least share of measured parts of a step, in percent, below which its calibration is of another
/// kind of job.
const OTHER_JOB_PCT: f64 = 40.0;

/// Warns if a calibration contains few of a step's operators and kernels with their sizes.
pub fn warn_of_other_job(rows: &[PredictedStepRow], session: &Session) {
    let least = rows.iter().map(|row| row.measured_pct).fold(100.0, f64::min);
    if least < OTHER_JOB_PCT {
        session.console.warn(format_args!(
            "the calibration has samples of only {least:.1} % of this step's operators and kernels, \
             so it is of another kind of job; the other times are guesses from other names and sizes\n\
             hint: calibrate on a recording of a similar job"
        ));
    }
}

/// Returns the machine of a calibration, whose device is `none` if it contains no device work.
pub fn calibrated_machine(calibration: &Calibration) -> Machine {
    with_device_work(calibration.machine.clone(), calibration.has_device_work())
}

fn with_device_work(mut machine: Machine, has_device_work: bool) -> Machine {
    if machine.devices.is_empty() && !has_device_work {
        machine.devices.push("no device".to_owned());
    }
    machine
}

/// Refuses a calibration of another host or of other devices. An unknown host or device is
/// accepted.
pub fn check_machine(path: &Path, calibrated: &Machine, recorded: &Machine) -> Result<(), Error> {
    let differs = |a: &str, b: &str| !a.is_empty() && !b.is_empty() && a != b;
    let devices = |machine: &Machine| machine.devices.join(", ");
    let is_other = differs(&calibrated.host, &recorded.host)
        || differs(&devices(calibrated), &devices(recorded));
    if !is_other {
        return Ok(());
    }
    let describe = |machine: &Machine| {
        let host = if machine.host.is_empty() { "unknown host" } else { &machine.host };
        format!("{host} with {}", devices(machine))
    };
    let (expected, got) = (describe(recorded), describe(calibrated));
    Err(UsageError::OtherMachine { path: path.to_owned(), expected, got }.into())
}

/// Predicts with the random draws of the options, and shows how many are done.
pub fn predict_with_progress<R>(
    options: DrawOptions,
    session: &Session,
    predict: impl FnOnce(Draws<'_>) -> R,
) -> R {
    let total = Some(u64::from(options.draws));
    let meter = Meter::start(session.console, "drawing", ProgressUnit::Draws, total);
    let meter = RefCell::new(meter);
    let on_draw = |done: u32| meter.borrow_mut().advance(u64::from(done), "");
    let found = predict(Draws { count: options.draws, seed: options.seed, on_draw: &on_draw });
    meter.into_inner().finish();
    found
}
