//! Trains the MLP kernel models of arXiv:2201.07821 for comparison with ours.
//!
//! A grid search chooses one MLP per kind and device. The published search chose MLPs by the same
//! rows on which it reported errors, whereas this one chooses by the calibration rows.

use kernel_model::error_metrics::{gmae, mape};
use kernel_model::evaluate::{CleanLatency, list_latencies};
use kernel_model::parallel::in_parallel;
use kernel_model::{Element, Kind, Measured, Part, Work};
use serde::Serialize;

use super::mlp_grid::{MlpGrid, MlpSetting};

/// Rows in the form that an MLP is trained on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MlpExamples {
    /// Inputs with the shape `[N, inputs]`, row by row. Sizes are logarithms, other inputs are
    /// unchanged.
    pub inputs: Vec<f32>,
    /// Targets with the shape `[N]`. Each target is the logarithm of a latency in microseconds.
    pub targets: Vec<f32>,
}

/// The training problem of one MLP: the latencies of one kind on one device, split as for rowmill's
/// own models.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpProblem {
    pub kind: Kind,
    /// Key of the device in the hardware table.
    pub device: String,
    pub train: MlpExamples,
    pub calibrate: MlpExamples,
    pub test: MlpExamples,
}

/// Prediction errors of the MLP that the published grid search chose.
#[derive(Clone, Debug, Serialize)]
pub struct MlpRow {
    #[serde(flatten)]
    pub setting: MlpSetting,
    /// Epoch with the smallest error on the calibration rows.
    pub epoch: usize,
    /// Geometric mean of the MLP's absolute errors on the calibration rows, including rows at the
    /// launch overhead.
    pub calibrate_gmae_pct: f64,
    /// Geometric mean of the MLP's absolute errors on test rows above the launch overhead.
    pub gmae_pct: f64,
    pub mape_pct: f64,
}

/// Creates the problem of each device for one kind. An MLP is trained on the same latencies as our
/// models, without host jitter and drift.
pub fn problems(kind: Kind, rows: &[Measured]) -> Vec<MlpProblem> {
    let problem = |rows: &[CleanLatency]| MlpProblem {
        kind,
        device: rows[0].row.device.key.clone().into_owned(),
        train: examples(rows, Part::Train),
        calibrate: examples(rows, Part::Calibrate),
        test: examples(rows, Part::Test),
    };
    by_device(&list_latencies(kind, rows)).map(problem).collect()
}

/// Groups consecutive latencies of one device.
fn by_device(rows: &[CleanLatency]) -> impl Iterator<Item = &[CleanLatency]> {
    rows.chunk_by(|one, next| one.row.device.key == next.row.device.key)
}

fn examples(rows: &[CleanLatency], part: Part) -> MlpExamples {
    let mut examples = MlpExamples::default();
    for row in rows.iter().filter(|row| row.part == part) {
        put_inputs(&row.row.work, &mut examples.inputs);
        examples.targets.push((row.row.latency_ns / 1e3).ln() as f32);
    }
    examples
}

/// Appends the MLP's inputs for one operation to `to`.
fn put_inputs(work: &Work, to: &mut Vec<f32>) {
    let log = |size: u64| (size as f64).ln() as f32;
    match (work.kind(), work.sizes()) {
        (Kind::Conv, &[batch, channels_in, channels_out, kernel, size, stride, padding]) => {
            to.extend([batch, size + 2 * padding, channels_in, channels_out].map(log));
            to.extend([kernel, stride].map(|count| count as f32));
        }
        (_, sizes) => to.extend(sizes.iter().copied().map(log)),
    }
    // Each published MLP models one operation. Our five element-wise operations share an MLP, so
    // the operation is an input.
    if work.kind() == Kind::ElementWise {
        let is = |element: &Element| f32::from(u8::from(work.element() == Some(*element)));
        to.extend(Element::ALL.iter().map(is));
    }
}

/// An MLP that learns the rows of an [`MlpProblem`] and predicts further ones.
pub trait Regressor {
    /// The error type of training and prediction.
    type Error;

    /// Trains for one epoch over all rows.
    ///
    /// # Errors
    /// Returns the error of the implementation.
    fn epoch(&mut self) -> Result<(), Self::Error>;

    /// Predicts the targets of rows.
    ///
    /// # Errors
    /// Returns the error of the implementation.
    fn predict(&mut self, inputs: &[f32]) -> Result<Vec<f32>, Self::Error>;
}

/// The MLP that a grid search chose for one kind on one device, with its predictions.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenMlp {
    pub kind: Kind,
    /// Key of the device in the hardware table.
    pub device: String,
    pub setting: MlpSetting,
    /// Epoch with the smallest error on the calibration rows.
    pub epoch: usize,
    /// Geometric mean of the absolute errors on the calibration rows, by which the MLP was chosen.
    pub calibrate_gmae_pct: f64,
    /// Predictions for the test rows, in order.
    pub predicted_ns: Vec<f64>,
}

/// An MLP during training, with its best epoch so far.
struct MlpLearner<R> {
    regressor: R,
    setting: MlpSetting,
    epochs: usize,
    best: BestEpoch,
}

/// The epoch of an MLP with the smallest calibration error, and the predictions after that epoch.
#[derive(Clone)]
struct BestEpoch {
    epoch: usize,
    calibrate_gmae_pct: f64,
    predicted: Vec<f32>,
}

impl<R: Regressor> MlpLearner<R> {
    /// Trains an MLP for some epochs. Keeps the predictions of the epoch with the smallest error on
    /// the calibration rows.
    fn learn(&mut self, problem: &MlpProblem, epochs: usize) -> Result<(), R::Error> {
        for _ in 0..epochs {
            self.regressor.epoch()?;
            self.epochs += 1;
            let predicted = self.regressor.predict(&problem.calibrate.inputs)?;
            let pairs = predicted.iter().zip(&problem.calibrate.targets);
            let error = gmae(pairs.map(|(predicted, target)| (nanos(*predicted), nanos(*target))));
            // Comparisons with NaN are false, so MLPs that diverged are skipped.
            if error < self.best.calibrate_gmae_pct {
                let predicted = self.regressor.predict(&problem.test.inputs)?;
                self.best = BestEpoch { epoch: self.epochs, calibrate_gmae_pct: error, predicted };
            }
        }
        Ok(())
    }
}

fn nanos(ln_us: f32) -> f64 {
    1e3 * f64::from(ln_us).exp()
}

/// Finds the setting of a grid whose MLP has the smallest error on the calibration rows. `make`
/// creates an MLP. Returns `None` if no MLP has a finite error, for example if there are no
/// calibration rows.
///
/// # Errors
/// Returns the first error of `make` or of an MLP.
pub fn search<R: Regressor>(
    problem: &MlpProblem,
    grid: MlpGrid,
    make: impl Fn(&MlpSetting) -> Result<R, R::Error>,
) -> Result<Option<ChosenMlp>, R::Error> {
    let (first, all) = grid.epochs();
    let mut chosen: Option<MlpLearner<R>> = None;
    for setting in grid.settings() {
        let regressor = make(&setting)?;
        let best = BestEpoch { epoch: 0, calibrate_gmae_pct: f64::INFINITY, predicted: Vec::new() };
        let mut learner = MlpLearner { regressor, setting, epochs: 0, best };
        learner.learn(problem, first)?;
        let error = learner.best.calibrate_gmae_pct;
        // If two settings have equal errors, the first one wins.
        let least = chosen.as_ref().map_or(f64::INFINITY, |chosen| chosen.best.calibrate_gmae_pct);
        if error < least {
            chosen = Some(learner);
        }
    }
    let Some(mut chosen) = chosen else { return Ok(None) };
    chosen.learn(problem, all - first)?;
    let BestEpoch { epoch, calibrate_gmae_pct, predicted } = chosen.best;
    Ok(Some(ChosenMlp {
        kind: problem.kind,
        device: problem.device.clone(),
        setting: chosen.setting,
        epoch,
        calibrate_gmae_pct,
        predicted_ns: predicted.into_iter().map(nanos).collect(),
    }))
}

/// Runs [`search`] for many problems in parallel and calls `found` with each result as it arrives.
/// The returned results are in the order of the problems. Problems for which no MLP has a finite
/// error are missing.
///
/// # Errors
/// Returns the first error of an MLP, in the order of the problems.
pub fn search_all<'a, R: Regressor>(
    problems: &'a [MlpProblem],
    grid: MlpGrid,
    threads: usize,
    make: impl Fn(&'a MlpProblem, &MlpSetting) -> Result<R, R::Error> + Sync,
    found: impl Fn(&ChosenMlp) + Sync,
) -> Result<Vec<ChosenMlp>, R::Error>
where
    R::Error: Send,
{
    // Start the longest jobs first, so that no thread ends long after the others.
    let mut order: Vec<usize> = (0..problems.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(problems[*at].train.targets.len()));
    let searched = in_parallel(threads, order.len(), |job| {
        let problem = &problems[order[job]];
        let chosen = search(problem, grid, |setting| make(problem, setting))?;
        chosen.iter().for_each(&found);
        Ok(chosen)
    });
    let mut searched: Vec<_> = order.into_iter().zip(searched).collect();
    searched.sort_by_key(|(at, _)| *at);
    searched.into_iter().filter_map(|(_, chosen)| chosen.transpose()).collect()
}

/// Computes the errors of a chosen MLP on the test rows on which rowmill's model is judged.
pub fn errors(mlp: &ChosenMlp, rows: &[Measured]) -> MlpRow {
    let latencies = list_latencies(mlp.kind, rows);
    let is_tested =
        |row: &&CleanLatency| row.part == Part::Test && *row.row.device.key == *mlp.device;
    let pairs = latencies
        .iter()
        .filter(is_tested)
        .zip(&mlp.predicted_ns)
        .filter(|(row, _)| row.is_judged)
        .map(|(row, predicted)| (*predicted, row.row.latency_ns));
    MlpRow {
        setting: mlp.setting,
        epoch: mlp.epoch,
        calibrate_gmae_pct: mlp.calibrate_gmae_pct,
        gmae_pct: gmae(pairs.clone()),
        mape_pct: mape(pairs),
    }
}

#[cfg(test)]
mod tests;
