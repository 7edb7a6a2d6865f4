//! Simulates a plan and a schedule with the launches of the host, with and without techniques that
//! make a step faster. [`setting`] has published jobs as ready-made settings.
//!
//! The search for plans prices steps without a host, because the host's time does not depend on
//! the plan.

mod demand;
mod setting;

use predict::calibration::Calibration;
use predict::step::host::{DenseUpdateCalls, predict_stage_hosts};
use predict::step::{Conditions, StepPricer};
use predict::workload::Workload;
use schema::TableRow;
use serde::Serialize;

use crate::Error;
use crate::launch_plan::{self, DenseLaunches, InputRounds, InputThread, LaunchPlan};
use crate::launched::{self, AfterLaunch, LaunchQueue, LaunchedStage, LaunchedStep};

pub use demand::{DemandRow, compare_demands};
pub use setting::{PublishedSetting, SettingCase, SettingName, TableBits};

/// A named way to launch a step.
#[derive(Clone, Copy, Debug)]
pub struct LaunchCase {
    pub name: &'static str,
    pub plan: LaunchPlan,
    /// Published time of the step in nanoseconds.
    pub published_ns: Option<f64>,
}

/// The optimizations of TorchRec's pipeline, each alone and all together.
pub const TORCHREC_CASES: [LaunchCase; 5] = {
    let before = LaunchPlan::TORCHREC;
    let (input, dense) = (InputThread::Own, DenseLaunches::Graph);
    let rounds = InputRounds::WithoutSizes;
    [
        LaunchCase { name: "before", plan: before, published_ns: None },
        LaunchCase {
            name: "threaded launch",
            plan: LaunchPlan { input, ..before },
            published_ns: None,
        },
        LaunchCase { name: "CUDA graph", plan: LaunchPlan { dense, ..before }, published_ns: None },
        LaunchCase {
            name: "no metadata exchange",
            plan: LaunchPlan { rounds, ..before },
            published_ns: None,
        },
        LaunchCase {
            name: "all",
            plan: LaunchPlan { input, dense, rounds, ..before },
            published_ns: None,
        },
    ]
};

/// A simulated step beside its published figure.
#[derive(Clone, Debug, Serialize, TableRow)]
pub struct SimulatedRow {
    pub case: String,
    pub step_ns: f64,
    pub samples_per_s: f64,
    /// Launching time of the thread that launches longest.
    pub host_ns: f64,
    /// Time of the step if the host took no time.
    pub device_ns: f64,
    /// Time for which threads wait for the device.
    pub blocked_ns: f64,
    /// Time by which the input distribution lengthens the step, apart from its launches.
    pub exposed_input_ns: f64,
    pub published_ns: Option<f64>,
    /// Simulated time relative to the published one.
    pub ratio: Option<f64>,
    /// Memory of the rank that uses most, in bytes.
    pub peak_bytes: u64,
    pub fits: bool,
}

/// A simulated step with the times of its stages.
#[derive(Clone, Debug)]
pub struct SimulatedCase {
    pub row: SimulatedRow,
    pub stages: Vec<LaunchedStage>,
    pub step: LaunchedStep,
}

/// Simulates a step that is launched in a given way, by the overheads of a host.
///
/// # Errors
/// [`Error::Step`] for a workload that cannot be priced.
pub fn simulate(
    workload: Workload<'_>,
    conditions: Conditions<'_>,
    host: &Calibration,
    case: LaunchCase,
) -> Result<SimulatedCase, Error> {
    let pricer = StepPricer::new(workload, conditions)?;
    let hosts = predict_stage_hosts(workload, host, DenseUpdateCalls::Grouped);
    let stages = launch_plan::list_stages(&pricer, &hosts, case.plan);
    let step = launched::simulate(&stages);
    let changed = |change: &dyn Fn(&mut LaunchedStage)| {
        let mut stages = stages.clone();
        stages.iter_mut().for_each(change);
        launched::simulate(&stages).step_ns
    };
    let device_ns = changed(&|stage| stage.host_ns = 0.0);
    let without_input = changed(&|stage| {
        if stage.queue == LaunchQueue::InputDistribution {
            (stage.device_ns, stage.then) = (0.0, AfterLaunch::GoOn);
        }
    });
    let cost = pricer.cost();
    let row = SimulatedRow {
        case: case.name.to_owned(),
        step_ns: step.step_ns,
        samples_per_s: 1e9 * workload.config.training.batch_size as f64 / step.step_ns.max(1.0),
        host_ns: step.host_ns,
        device_ns,
        blocked_ns: step.blocked_ns,
        exposed_input_ns: (step.step_ns - without_input).max(0.0),
        published_ns: case.published_ns,
        ratio: case.published_ns.map(|published| step.step_ns / published),
        peak_bytes: cost.peak_bytes,
        fits: cost.fits,
    };
    Ok(SimulatedCase { row, stages, step })
}
