//! Finds the steps of a recorded job that all ranks have, reads their programs, and collects the
//! samples on which predictions are calibrated.

use std::path::PathBuf;

use analyze::classify::ClassRule;
use analyze::{Classifier, Scope, StepMark, WindowRule};
use predict::calibration::{Calibration, Machine, collect};
use predict::recording::{Job, Span, Step, TensorSizes, spans};
use schema::OpWork;
use serde_json::Value;
use trace::store::Trace;

use crate::Session;
use crate::error::{Error, UsageError};
use crate::open_job::{Extent, open_job};
use crate::render;
use crate::shapes::{each_with_shapes, tensors};

/// Opens the traces of a job and keeps the ranks that a prediction can use.
///
/// # Errors
/// Returns an error if no trace can be read, or if none is usable.
pub fn open_recordings(paths: &[PathBuf], session: &Session) -> Result<Vec<Trace>, Error> {
    let mut traces = open_job(paths, Extent::Covered, session)?.job.traces;
    traces.retain(Trace::is_usable);
    if traces.is_empty() {
        return Err(predict::Error::TooFewRanks { expected: 1, got: 0 }.into());
    }
    Ok(traces)
}

/// Creates one scope per trace over the whole recording.
pub fn whole_scopes(traces: &[Trace]) -> Vec<Scope<'_>> {
    let classifier = Classifier::new(ClassRule::Category);
    traces.iter().map(|trace| Scope::new(trace, WindowRule::All, &classifier)).collect()
}

/// The steps of a job that all ranks recorded, as time ranges on each rank.
pub struct Steps {
    /// The annotations that delimit steps, or `None` if the whole recording is one step.
    pub mark: Option<StepMark>,
    /// The time ranges of the steps of each rank.
    pub spans: Vec<Vec<Span>>,
}

impl Steps {
    /// Finds the steps of every rank.
    ///
    /// # Errors
    /// Returns an error if a rank has no step.
    pub fn find(scopes: &[Scope<'_>]) -> Result<Self, Error> {
        let spans: Vec<Vec<Span>> = scopes.iter().map(spans).collect();
        for (scope, spans) in scopes.iter().zip(&spans) {
            if spans.is_empty() {
                let rank = scope.trace.rank;
                return Err(predict::Error::TooFewSteps { rank, expected: 1, got: 0 }.into());
            }
        }
        let mark = scopes.first().and_then(|scope| scope.step_mark);
        Ok(Self { mark, spans })
    }

    /// Returns `step` if all ranks recorded it.
    ///
    /// # Errors
    /// [`UsageError::NoSuchStep`] if a rank did not record the step.
    pub fn check_number(&self, step: usize) -> Result<usize, Error> {
        let count = self.count();
        if step < count { Ok(step) } else { Err(UsageError::NoSuchStep { step, count }.into()) }
    }

    /// Returns the number of steps that all ranks recorded.
    pub fn count(&self) -> usize {
        self.spans.iter().map(Vec::len).min().unwrap_or_default()
    }

    /// Returns the time range of one step on each rank.
    pub fn spans_of_step(&self, step: usize) -> Vec<Span> {
        self.spans.iter().map(|spans| spans[step]).collect()
    }
}

/// Prepares traces for reading steps and attaches the sizes of tensors. Warns about collectives
/// that keep their measured time because not all of their ranks were recorded.
pub fn prepare_job<'a>(scopes: &'a [Scope<'a>], session: &Session) -> Job<'a> {
    let job = Job::new(scopes, |rows| read_sizes(scopes, rows));
    if job.partial_collectives() > 0 {
        session.console.warn(format_args!(
            "{} collectives stay as measured, with their waits: not all of their ranks were recorded",
            render::count(job.partial_collectives() as u64)
        ));
    }
    job
}

/// Reads the sizes of tensors that the files recorded. Each file is read only once.
fn read_sizes(scopes: &[Scope<'_>], rows: &[Vec<u32>]) -> TensorSizes {
    let mut sizes = TensorSizes::default();
    each_with_shapes(scopes.iter().map(|scope| scope.trace), rows, |place, arguments| {
        let tensors = tensors(arguments.get("Input Dims"), arguments.get("Input type"));
        sizes.tensors.extend(tensors.map(|tensors| (place, tensors)));
        let number = |key: &str| arguments.get(key).and_then(Value::as_u64);
        if let (Some(flops), Some(bytes)) = (number("flops"), number("bytes")) {
            sizes.work.insert(place, OpWork { flops, bytes });
        }
    });
    sizes
}

/// Calibrates on all steps of a recording.
///
/// # Errors
/// Returns an error if a step cannot be read.
pub fn calibrate_steps(job: &Job<'_>, steps: &Steps, ranks: usize) -> Result<Calibration, Error> {
    Ok(collect_samples(&read_steps(job, steps)?, ranks, 0.0))
}

/// Reads the program and the recorded times of every step of a recording.
///
/// # Errors
/// Returns an error if a step cannot be read.
pub fn read_steps(job: &Job<'_>, steps: &Steps) -> Result<Vec<Step>, Error> {
    (0..steps.count()).map(|number| Ok(job.step(&steps.spans_of_step(number))?)).collect()
}

/// Collects the samples of `steps`. `event_ns`, the cost of recording an event, is subtracted for
/// each event.
pub fn collect_samples(steps: &[Step], ranks: usize, event_ns: f64) -> Calibration {
    let all: Vec<usize> = (0..ranks).collect();
    let mut calibration = Calibration { event_ns, ..Calibration::default() };
    steps.iter().for_each(|step| collect::add(&mut calibration, step, &all));
    collect::add_factors(&mut calibration, steps, &all);
    calibration
}

/// Returns the host and the devices on which the traces were recorded.
pub fn recorded_machine(traces: &[Trace]) -> Machine {
    let mut devices: Vec<String> = traces
        .iter()
        .flat_map(|trace| &trace.header.devices)
        .map(|device| device.name.clone())
        .collect();
    devices.sort();
    devices.dedup();
    let host = traces.iter().find_map(|trace| {
        let named = ["host", "hostname", "host_name"];
        named.iter().find_map(|key| trace.header.rest.get(*key)?.as_str())
    });
    Machine { host: host.unwrap_or_default().to_owned(), devices }
}
