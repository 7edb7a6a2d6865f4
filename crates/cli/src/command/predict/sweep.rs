//! The command `rowmill predict sweep`, which predicts steps of many models, devices and batch
//! sizes.

use std::io::Write;

use predict::step::{SweepRow, mark_best};

use super::hardware_step::{Hardware, StepHost, StepOptions, price_with_host};
use super::pareto::{self, PooledRow};
use crate::args::{PredictSweep, each};
use setup::Session;
use setup::args::NeverRunStep;
use setup::error::Error;
use setup::output;
use setup::progress::{Meter, ProgressUnit};
use setup::table_output::{self, TableTarget};
use setup::workload::Workload;

/// Runs `rowmill predict sweep` and prints its result.
pub fn run(args: &PredictSweep, session: &Session) -> Result<(), Error> {
    let models = args.host.models.as_deref();
    let names = each(&args.hardware);
    let hardware: Vec<Hardware> =
        names.iter().map(|text| Hardware::from_name(text, models)).collect::<Result<_, _>>()?;
    let read_host = |hardware: &Hardware| {
        StepHost::read(hardware, &args.host, None, args.overheads.as_deref(), session)
    };
    let hosts: Vec<Option<StepHost>> = hardware.iter().map(read_host).collect::<Result<_, _>>()?;
    StepHost::report(hosts.iter().flatten(), session);
    let mut all = Vec::new();
    let counts =
        [args.model.len(), names.len(), each(&args.batch_size).len(), each(&args.pooling).len()];
    let total: usize = counts.into_iter().product();
    let mut meter =
        Meter::start(session.console, "pricing", ProgressUnit::Steps, Some(total as u64));
    let mut priced_steps = 0;
    for pooling in each(&args.pooling) {
        let mut rows = Vec::new();
        for model in &args.model {
            for ((name, hardware), host) in names.iter().zip(&hardware).zip(&hosts) {
                for batch_size in each(&args.batch_size) {
                    let described = NeverRunStep {
                        set: args.set.clone(),
                        batch_size: Some(batch_size),
                        pooling,
                        ranks: None,
                        sharding: args.sharding,
                        plan: None,
                    };
                    let workload = Workload::resolve(model, &described, hardware.hosts())?;
                    let options = StepOptions { pooling, launch_ns: 0.0, kernels: &args.kernels };
                    let priced =
                        price_with_host(hardware, &workload, options, host.as_ref(), session)?;
                    priced_steps += 1;
                    meter.advance(priced_steps, "");
                    let binds = priced.binds();
                    rows.push(SweepRow::new(model, name, batch_size, &priced.price, binds));
                }
            }
        }
        // Steps are compared within one pooling factor only, because the number of ids is part of
        // the workload.
        mark_best(&mut rows);
        all.extend(rows.into_iter().map(|step| PooledRow { pooling, step }));
    }
    meter.finish();
    if let Some(path) = &args.svg {
        let text = pareto::draw_frontier(&all);
        output::put(path, |file| {
            file.write_all(text.as_bytes()).map_err(Error::io(path, "write"))
        })?;
    }
    all.retain(|row| row.step.is_best || !args.best);
    let target = TableTarget { output: args.output.as_deref(), top: Some(all.len()) };
    table_output::write_rows(session.console, &all, target)
}
