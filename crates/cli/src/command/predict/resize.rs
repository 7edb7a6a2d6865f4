//! The command `rowmill predict resize`, which predicts a step at a batch size between or beyond
//! two recorded ones.

use predict::prediction::{PredictedStepRow, predict_resized};
use schema::TableRow;
use serde::Serialize;

use super::calibrated::{calibrated_machine, check_machine, predict_with_progress};
use crate::args::PredictResize;
use setup::Session;
use setup::error::Error;
use setup::resized_step::read_recording;
use setup::step_times::measured;
use setup::table_output::{self, TableTarget};

/// The predicted step of one rank at one batch size, and the measured step if that size was
/// recorded.
#[derive(Serialize, TableRow)]
struct SizeRow {
    size: u64,
    #[serde(flatten)]
    predicted: PredictedStepRow,
}

/// Runs `rowmill predict resize` and prints its result.
pub fn run(args: &PredictResize, session: &Session) -> Result<(), Error> {
    let (from, until) = args.sizes;
    let small = read_recording(&args.small, from, session)?;
    let large = read_recording(&args.large, until, session)?;
    let machines = [&large, &small].map(|one| calibrated_machine(&one.sized.calibration));
    check_machine(&args.large, &machines[0], &machines[1])?;
    let measured = measured(&args.measured, session)?;
    let outside = args.to.iter().filter(|to| !(from.min(until)..=from.max(until)).contains(to));
    for to in outside {
        session.console.warn(format_args!(
            "{to} is not between the recorded sizes {from} and {until}: its times are extrapolated, \
             and the interval does not count that error"
        ));
    }
    let mut rows = Vec::new();
    for (at, to) in args.to.iter().enumerate() {
        let prediction = predict_with_progress(args.draws, session, |draws| {
            predict_resized(&small.sized, &large.sized, *to, draws)
        })?;
        let is_measured = at + 1 == args.to.len();
        let share = (*to as f64 - from as f64) / (until as f64 - from as f64);
        for (place, mut predicted) in prediction.rows.into_iter().enumerate() {
            // The baseline is a straight line through the mean steps of the two recordings.
            let baseline_ns =
                small.means_ns[place] + (large.means_ns[place] - small.means_ns[place]) * share;
            let measured = measured.iter().find(|one| one.rank == predicted.rank && is_measured);
            if let Some(measured) = measured {
                predicted.add_measured(measured.mean_ns, measured.noise_pct, baseline_ns);
            }
            rows.push(SizeRow { size: *to, predicted });
        }
    }
    table_output::write_rows(session.console, &rows, TableTarget::default())
}
