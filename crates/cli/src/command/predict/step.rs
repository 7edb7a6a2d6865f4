//! `rowmill predict step`: a recorded step by a calibration.

use predict::prediction::{self, PredictionRow};
use predict::recording::{Span, StepRule};

use super::{Steps, calibration, check_machine, job, machine, recordings, scopes, write_traces};
use crate::args::PredictStep;
use crate::error::Error;
use crate::resolve::Session;
use crate::sheet::{self, Target};

/// Runs the command.
pub fn run(args: &PredictStep, session: &Session) -> Result<(), Error> {
    let Some(path) = &args.calibration else { return super::priced::step(args, session) };
    if args.asked.is_asked() || args.host.launch_us > 0.0 || args.host.models.is_some() {
        // Nothing of a recording follows them.
        let expected = "--model beside --set, --batch-size, --pooling, --ranks, --sharding, --plan, \
                        --launch-us and --models";
        let got = "a recording".to_owned();
        return Err(predict::Error::Workload { expected: expected.to_owned(), got }.into());
    }
    if !args.execution_trace.is_empty() {
        return super::execution::run(args, path, session);
    }
    let calibration_of = calibration(path)?;
    let traces = recordings(&args.paths, session)?;
    let recorded = machine(&traces);
    let calibrated = (path, &calibration_of.machine);
    check_machine(calibrated, &recorded, (args.recorded.force, session))?;
    let scopes = scopes(&traces);
    let steps = Steps::of(&scopes)?;
    say_steps(&steps, session);
    let job = job(&scopes, session);
    let step = job.step(&steps.one(steps.checked(args.recorded.step)?))?;
    let predicted = prediction::of(&step, &calibration_of, args.drawn.into())?;
    let mut rows = predicted.rows;
    for (row, spans) in rows.iter_mut().zip(&steps.spans) {
        add_spread(row, spans);
    }
    if let Some(folder) = &args.write_trace {
        write_traces(folder, &step.program, &predicted.simulation)?;
    }
    sheet::put(session.console, &rows, Target::default())
}

fn say_steps(steps: &Steps, session: &Session) {
    let what = match steps.rule {
        StepRule::ProfilerStep => "ProfilerStep",
        StepRule::ZeroGrad => "Optimizer.zero_grad to the next",
        StepRule::Whole => "the whole recording: it marks no steps",
    };
    session.console.detail(format_args!("{} steps, by {what}", steps.count()));
}

/// How much the recorded steps differ, and how far off their mean is.
fn add_spread(row: &mut PredictionRow, spans: &[Span]) {
    if spans.len() < 2 {
        return;
    }
    let lengths: Vec<f64> = spans.iter().map(|span| (span.end - span.start) as f64).collect();
    let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
    let square: f64 = lengths.iter().map(|length| (length - mean).powi(2)).sum();
    row.noise_pct = Some(100.0 * (square / lengths.len() as f64).sqrt() / mean.max(1.0));
    let measured = row.measured_ns.max(1) as f64;
    row.baseline_error_pct = Some(100.0 * (mean - measured) / measured);
}
