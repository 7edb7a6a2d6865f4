//! Trains the MLPs of arXiv:2201.07821 with rowmill's own layers, `train::regression`. The settings
//! come from `mlp_grid`, and `mlp_search` chooses among them.

use device::Cpu;
use kernel_model::{Kind, Measured};
use schema::OptimizerConfig;
use train::regression::{Regression, RegressionConfig, RegressionExamples};

use super::mlp_grid::{MlpGrid, MlpSetting};
use super::mlp_search::{self, ChosenMlp, MlpProblem, Regressor};
use setup::Session;
use setup::error::Error;
use setup::render;

/// Number of rows in a training step, which is the largest number that the published code uses.
const BATCH_SIZE: usize = 64;
/// Seed of the initial weights and of the order of the rows.
const SEED: u64 = 1;

/// Trains an MLP for each kind of kernel and device.
pub fn search(
    kinds: &[Kind],
    rows: &[Measured],
    grid: MlpGrid,
    session: &Session,
) -> Result<Vec<ChosenMlp>, Error> {
    let problems: Vec<MlpProblem> =
        kinds.iter().flat_map(|kind| mlp_search::problems(*kind, rows)).collect();
    let (settings, (first, all)) = (grid.settings().len(), grid.epochs());
    session.console.say(format_args!(
        "{}: {settings} settings each, {first} epochs; the best one {all}",
        render::counted(problems.len() as u64, "MLP"),
    ));
    let say = |chosen: &ChosenMlp| {
        let MlpSetting { layers, width, optimizer, learning_rate } = chosen.setting;
        session.console.say(format_args!(
            "{} on {}: {layers} layers of {width}, {} at {learning_rate}, {} epochs: {:.2} % on \
             calibration rows",
            chosen.kind.name(),
            chosen.device,
            optimizer.name(),
            chosen.epoch,
            chosen.calibrate_gmae_pct
        ));
    };
    Ok(mlp_search::search_all(&problems, grid, session.threads, ProblemMlp::new, say)?)
}

/// An MLP that learns one problem on a single thread.
struct ProblemMlp<'a> {
    problem: &'a MlpProblem,
    regression: Regression<Cpu>,
}

impl<'a> ProblemMlp<'a> {
    fn new(problem: &'a MlpProblem, setting: &MlpSetting) -> Result<Self, train::Error> {
        let config = RegressionConfig {
            widths: vec![setting.width; setting.layers],
            optimizer: OptimizerConfig::new(setting.optimizer, setting.learning_rate),
            batch_size: BATCH_SIZE,
            seed: SEED,
        };
        let regression = Regression::new(Cpu::new(1), config, examples(problem))?;
        Ok(Self { problem, regression })
    }
}

fn examples(problem: &MlpProblem) -> RegressionExamples<'_> {
    RegressionExamples { inputs: &problem.train.inputs, targets: &problem.train.targets }
}

impl Regressor for ProblemMlp<'_> {
    type Error = train::Error;

    fn epoch(&mut self) -> Result<(), train::Error> {
        self.regression.epoch(examples(self.problem)).map(drop)
    }

    fn predict(&mut self, inputs: &[f32]) -> Result<Vec<f32>, train::Error> {
        self.regression.predict(inputs)
    }
}
