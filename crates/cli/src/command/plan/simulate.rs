//! The command `rowmill plan simulate`, which simulates a step with the launches of the host, with
//! and without techniques. Steps are computed in `plan::at_scale`.

use std::io::Write;

use plan::at_scale::{
    DemandRow, LaunchCase, PublishedSetting, SettingName, SimulatedCase, SimulatedRow,
    TORCHREC_CASES, compare_demands, simulate,
};
use predict::calibration::Calibration;
use predict::calibration::shipped::{JobKind, ShippedOverheads};
use predict::step::Models;
use schema::{TableRow, Topology};
use serde::Serialize;
use setup::error::{Error, UsageError};
use setup::kernel_files::read_model;
use setup::table_output::{self, TableTarget};
use setup::workload::Workload;
use setup::{Session, output};

use super::timeline_drawing;
use crate::args::{PlanSimulate, SettingChoice, SimulateRows};
use crate::command::predict::hardware_step::{Hardware, StepOptions, conditions, report_hardware};

/// A stage of a simulated step, in the order of its launches.
#[derive(Serialize, TableRow)]
struct SimulatedStageRow {
    case: String,
    stage: String,
    thread: usize,
    launch_ns: f64,
    host_ns: f64,
    /// Time for which the thread waits for the stage.
    blocked_ns: f64,
    queue: &'static str,
    begin_ns: f64,
    device_ns: f64,
}

/// A fact of a setting that no source states.
#[derive(Serialize, TableRow)]
struct AssumptionRow {
    assumption: &'static str,
}

/// The simulated cases of a setting or of a user's own job.
struct SimulatedJob {
    cases: Vec<SimulatedCase>,
    demands: Vec<DemandRow>,
    assumptions: &'static [&'static str],
}

/// Runs `rowmill plan simulate` and prints its result.
pub fn run(args: &PlanSimulate, session: &Session) -> Result<(), Error> {
    let simulated = match args.setting {
        Some(name) => simulate_setting(name, session)?,
        None => simulate_own(args, session)?,
    };
    if let Some(path) = &args.svg {
        let text = timeline_drawing::draw(&simulated.cases);
        output::put(path, |file| {
            file.write_all(text.as_bytes()).map_err(Error::io(path, "write"))
        })?;
    }
    let (console, target) = (session.console, TableTarget::default());
    match args.by {
        SimulateRows::Technique => {
            let rows: Vec<&SimulatedRow> = simulated.cases.iter().map(|case| &case.row).collect();
            table_output::write_rows(console, &rows, target)
        }
        SimulateRows::Stage => {
            let rows: Vec<SimulatedStageRow> =
                simulated.cases.iter().flat_map(stage_rows).collect();
            table_output::write_rows(console, &rows, target)
        }
        SimulateRows::Demand => table_output::write_rows(console, &simulated.demands, target),
        SimulateRows::Assumption => {
            let rows: Vec<AssumptionRow> = simulated
                .assumptions
                .iter()
                .map(|assumption| AssumptionRow { assumption })
                .collect();
            table_output::write_rows(console, &rows, target)
        }
    }
}

fn simulate_setting(name: SettingChoice, session: &Session) -> Result<SimulatedJob, Error> {
    let setting = PublishedSetting::new(match name {
        SettingChoice::Neo => SettingName::Neo,
        SettingChoice::Torchrec => SettingName::Torchrec,
    })?;
    let models = Models::from_loader(|kind| read_model(None, kind))?;
    let host = nearest_host(&setting.topology, session)?;
    let cases = setting.simulate(&models, &host)?;
    let step_ns = cases.first().map_or(0.0, |case| case.row.step_ns);
    let demands = setting.demands(&models, step_ns)?;
    Ok(SimulatedJob { cases, demands, assumptions: setting.assumptions })
}

/// Simulates the job that `--model` and `--hardware` name, before and after each optimization of
/// TorchRec's pipeline.
fn simulate_own(args: &PlanSimulate, session: &Session) -> Result<SimulatedJob, Error> {
    // Clap requires both options if there is no setting.
    let (Some(model), Some(name)) = (&args.model, &args.hardware) else {
        return Ok(SimulatedJob { cases: Vec::new(), demands: Vec::new(), assumptions: &[] });
    };
    let hardware = Hardware::from_name(name, None)?;
    let Hardware::Devices(topology, models) = &hardware else {
        return Err(UsageError::PlannedCpu { name: name.clone() }.into());
    };
    let workload = Workload::resolve(model, &args.workload, hardware.hosts())?;
    report_hardware(topology, workload.plan.world_size() as usize, session);
    let pooling = args.workload.pooling;
    let options = StepOptions { pooling, launch_ns: 0.0, kernels: &args.kernels };
    let conditions = conditions(topology, models, &workload, options);
    let host = nearest_host(topology, session)?;
    let simulate = |case: LaunchCase| simulate(workload.borrowed(), conditions, &host, case);
    let cases = TORCHREC_CASES.into_iter().map(simulate).collect::<Result<Vec<_>, _>>()?;
    let step_ns = cases.first().map_or(0.0, |case| case.row.step_ns);
    let demands = compare_demands(workload.borrowed(), conditions.format, step_ns)?;
    Ok(SimulatedJob { cases, demands, assumptions: &[] })
}

/// Reads the shipped overheads of the nearest GPU, and says which they are.
fn nearest_host(topology: &Topology, session: &Session) -> Result<Calibration, Error> {
    let shipped = ShippedOverheads::nearest(&topology.device, JobKind::Recommendation);
    session.console.say(format_args!(
        "host: overheads {} of {}, the nearest GPU with shipped overheads of a \
         recommendation model",
        shipped.name, shipped.device
    ));
    Ok(shipped.read()?)
}

fn stage_rows(case: &SimulatedCase) -> impl Iterator<Item = SimulatedStageRow> {
    case.stages.iter().zip(&case.step.stages).map(|(stage, times)| SimulatedStageRow {
        case: case.row.case.clone(),
        stage: stage.name.clone(),
        thread: stage.thread,
        launch_ns: times.launch_begin,
        host_ns: stage.host_ns,
        blocked_ns: times.host_end - times.launch_end,
        queue: stage.queue.name(),
        begin_ns: times.begin,
        device_ns: stage.device_ns,
    })
}
