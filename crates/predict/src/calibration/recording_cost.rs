//! Finds the profiler's overhead per recorded event by comparison with the duration of steps
//! without the profiler. The overhead is subtracted from host samples, so predictions do not
//! contain it.

use super::Calibration;
use super::price::Prices;
use crate::Error;
use crate::recording::Step;
use crate::simulate;

/// Number of bisection steps, which narrow the overhead to about 10⁻⁷ of the recorded step.
const HALVINGS: u32 = 24;

/// Finds the profiler overhead per event, in nanoseconds. Recorded steps predicted without this
/// overhead are shorter by the same ratio as unrecorded steps are. Returns 0 if unrecorded steps
/// are not shorter.
///
/// `calibrated` builds the calibration of the steps for a given overhead.
///
/// # Errors
/// [`Error::Unrecorded`] if the unrecorded steps are shorter than the time that remains when all
/// host events take 0 ns. [`Error::Cycle`] if a step waits for itself.
pub fn event_ns(
    steps: &[Step],
    unrecorded_ns: i64,
    calibrated: impl Fn(f64) -> Calibration,
) -> Result<f64, Error> {
    let recorded_ns = mean(steps, |step, rank| step.recorded.ranks[rank].step_ns);
    if unrecorded_ns <= 0 {
        let expected = "a time above 0 ns".to_owned();
        return Err(Error::Unrecorded { expected, got: format!("{unrecorded_ns} ns") });
    }
    if unrecorded_ns as f64 >= recorded_ns {
        return Ok(0.0);
    }
    let predicted = |event_ns: f64| predicted_ns(steps, &calibrated(event_ns));
    // Compare predictions with predictions, so that their error does not count as profiler
    // overhead.
    let wanted = predicted(0.0)? * unrecorded_ns as f64 / recorded_ns.max(1.0);
    let (mut low, mut high) = (0.0, recorded_ns);
    let least = predicted(high)?;
    if least > wanted {
        let share = least / predicted(0.0)?.max(1.0);
        let expected = format!(
            "at least {:.0} ns, which devices, waits and the stretches without an event take",
            share * recorded_ns
        );
        return Err(Error::Unrecorded { expected, got: format!("{unrecorded_ns} ns") });
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        match predicted(middle)? > wanted {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok(f64::midpoint(low, high))
}

/// Predicts the mean step time over all steps and ranks from a calibration.
fn predicted_ns(steps: &[Step], calibration: &Calibration) -> Result<f64, Error> {
    let prices = Prices::new(calibration);
    let (mut sum, mut count) = (0.0, 0u32);
    for step in steps {
        let setting = step.recorded.setting(&step.program);
        let simulation = simulate::run(&step.program, &prices.price(&step.program, &setting))?;
        for rank in 0..step.program.ranks.len() {
            sum += simulation.step_ns(rank) as f64;
            count += 1;
        }
    }
    Ok(sum / f64::from(count.max(1)))
}

fn mean(steps: &[Step], of: impl Fn(&Step, usize) -> i64) -> f64 {
    let all = steps.iter().flat_map(|step| {
        (0..step.program.ranks.len()).map(|rank| of(step, rank) as f64).collect::<Vec<f64>>()
    });
    let (sum, count) = all.fold((0.0, 0u32), |(sum, count), ns| (sum + ns, count + 1));
    sum / f64::from(count.max(1))
}
