//! The command `rowmill predict step --model` with a calibration, which predicts a step of
//! rowmill's own trainer that was never run, on the calibrated host.

use std::path::Path;

use predict::prediction::{self, PredictedStepRow};
use predict::program::from_trainer::{self, ops};
use schema::TableRow;
use serde::Serialize;

use super::calibrated::{
    predict_with_progress, read_calibration, report_machine, warn_of_other_job,
};
use super::simulated_traces::write_traces;
use crate::args::PredictStep;
use setup::Session;
use setup::error::Error;
use setup::table_output::{self, TableTarget};
use setup::workload::{Workload, WorkloadHosts};

/// The predicted step of one rank, with the configuration and batch size of the step.
#[derive(Serialize, TableRow)]
struct WorkloadRow<'a> {
    config: &'a str,
    batch_size: usize,
    pooling: u32,
    ranks: u32,
    #[serde(flatten)]
    predicted: PredictedStepRow,
}

/// Predicts a step of a configuration with the calibration in a file, and prints it.
pub fn run(
    config: &str,
    calibration: &Path,
    args: &PredictStep,
    session: &Session,
) -> Result<(), Error> {
    let workload = Workload::resolve(config, &args.workload, WorkloadHosts::ONE_RANK)?;
    let calibration = read_calibration(calibration)?;
    report_machine(&calibration.machine, session);
    let ranks = workload.plan.world_size();
    // The ranks share the threads of the machine. The calibration ran on all threads, so work on a
    // rank takes longer.
    let threads = (session.threads / ranks as usize).max(1);
    let slowdown = session.threads as f64 / threads as f64;
    let program = from_trainer::build_program(&ops::list_ops(workload.borrowed())?, slowdown);
    let prediction = predict_with_progress(args.draws, session, |draws| {
        prediction::predict_never_run(&program, &calibration, draws)
    })?;
    warn_of_other_job(&prediction.rows, session);
    if let Some(folder) = &args.write_trace {
        write_traces(folder, &program, &prediction.simulation)?;
    }
    let row = |predicted| WorkloadRow {
        config: &workload.job.origin,
        batch_size: workload.job.config.training.batch_size,
        pooling: args.workload.pooling,
        ranks,
        predicted,
    };
    let rows: Vec<WorkloadRow<'_>> = prediction.rows.into_iter().map(row).collect();
    table_output::write_rows(session.console, &rows, TableTarget::default())
}
