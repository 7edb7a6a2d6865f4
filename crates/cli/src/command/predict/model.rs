//! `rowmill predict model`: the step of a configuration that was never run.

use predict::prediction::never_run::{self, NeverRunRow};
use predict::program::from_trainer::{self, ops};
use schema::TableRow;
use serde::Serialize;

use super::calibrated::{read_calibration, report_machine};
use super::simulated_traces::write_traces;
use crate::args::PredictModel;
use setup::Session;
use setup::error::Error;
use setup::table_output::{self, TableTarget};
use setup::workload::Workload;

/// The predicted step of one rank of a configuration that was never run.
#[derive(Serialize, TableRow)]
struct Row {
    config: String,
    batch_size: usize,
    pooling: u32,
    ranks: u32,
    #[serde(flatten)]
    predicted: NeverRunRow,
}

/// Runs `rowmill predict model` and prints its result.
pub fn run(args: &PredictModel, session: &Session) -> Result<(), Error> {
    let workload = Workload::resolve(&args.config, &args.step, 1)?;
    let known = read_calibration(&args.calibration)?;
    report_machine(&known.machine, session);
    let ranks = workload.plan.world_size();
    // Each rank has its share of the threads, of which the calibration had all.
    let threads = (session.threads / ranks as usize).max(1);
    let slowdown = session.threads as f64 / threads as f64;
    let program = from_trainer::build_program(&ops::list_ops(workload.borrowed())?, slowdown);
    let found = never_run::predict_program(&program, &known, args.drawn.into())?;
    if let Some(folder) = &args.write_trace {
        write_traces(folder, &program, &found.simulation)?;
    }
    let row = |predicted: NeverRunRow| Row {
        config: workload.job.origin.clone(),
        batch_size: workload.job.config.training.batch_size,
        pooling: args.step.pooling,
        ranks,
        predicted,
    };
    let rows: Vec<Row> = found.rows.into_iter().map(row).collect();
    table_output::write_rows(session.console, &rows, TableTarget::default())
}
