//! Predicts training steps whose times vendors published, and compares both. No constant of a
//! prediction is fitted to these steps.
//!
//! [`crate::at_scale`] simulates jobs with their launches. This module prices a step on the device
//! alone, from a model, a GPU, a plan and the kernels that the job's framework runs.

mod baselines;
mod jobs;
mod rows;

use kernel_model::Estimate;
use schema::topology::ProductFormat;
use schema::{FeatureStats, TableRow, Topology};
use serde::Serialize;

use predict::Error;
use predict::calibration::shipped::{JobKind, ShippedOverheads};
use predict::step::host::{DenseUpdateCalls, predict_host};
use predict::step::{BottomMlp, Conditions, DenseKernels, Models, RowUpdates, price};
use predict::workload::Workload;

pub use baselines::StepBaselines;
pub use jobs::{PublishedModel, PublishedPlan};
pub use rows::STEPS;

/// Largest factor between a prediction and a published step that counts as correct.
pub const FACTOR_MOST: f64 = 2.2;
/// Largest typical factor over the steps in f32 and TF32, and over those in mixed precision.
pub const TYPICAL_MOST: [f64; 2] = [1.3, 1.5];

/// A published job, which was run on several kinds of hardware or in several formats.
#[derive(Clone, Copy, Debug)]
pub struct PublishedJob {
    pub source: &'static str,
    pub model: PublishedModel,
    /// Samples of a step over all ranks.
    pub batch_size: usize,
    pub kernels: DenseKernels,
    pub row_updates: RowUpdates,
    pub dense_updates: DenseUpdateCalls,
    pub plan: PublishedPlan,
    /// Whether the job's steps count for the typical error.
    pub is_judged: bool,
}

/// A published step of a job.
#[derive(Clone, Copy, Debug)]
pub struct PublishedStep {
    pub job: PublishedJob,
    /// Hardware as on the command line.
    pub hardware: &'static str,
    pub format: ProductFormat,
    /// Time of a step in nanoseconds.
    pub step_ns: f64,
}

/// A published step beside its prediction.
#[derive(Clone, Debug, Serialize, TableRow)]
pub struct PublishedRow {
    pub source: String,
    pub hardware: String,
    pub model: &'static str,
    pub batch_size: usize,
    pub precision: &'static str,
    pub kernels: DenseKernels,
    pub plan: &'static str,
    pub predicted_ns: f64,
    pub low_ns: f64,
    pub high_ns: f64,
    /// Time of PyTorch's operators on the host, by the shipped overheads of the nearest GPU. It is
    /// not part of the prediction, because most of these jobs run without PyTorch's host.
    pub host_ns: f64,
    pub published_ns: f64,
    /// Predicted time relative to the published one.
    pub ratio: f64,
    /// Predictions from the other published steps of the model alone.
    #[serde(flatten)]
    pub baselines: StepBaselines,
    /// Whether the published time lies between `low_ns` and `high_ns`.
    pub is_covered: bool,
    pub is_judged: bool,
}

/// Typical error of judged steps: exp(mean |ln(predicted ÷ published)|).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, TableRow)]
pub struct PublishedError {
    pub precision: &'static str,
    pub steps: usize,
    pub typical_factor: f64,
    /// Largest typical factor that counts as correct.
    pub typical_most: f64,
    pub worst_factor: f64,
}

/// Predicts all published steps.
///
/// # Errors
/// [`Error`] if a step cannot be predicted.
pub fn evaluate(models: &Models) -> Result<Vec<PublishedRow>, Error> {
    STEPS.iter().map(|step| compare(step, models)).collect()
}

fn compare(step: &PublishedStep, models: &Models) -> Result<PublishedRow, Error> {
    let topology = Topology::parse(step.hardware).map_err(Error::Hardware)?;
    let PublishedJob { model, batch_size, kernels, row_updates, plan: placed, .. } = step.job;
    let config = model.config(batch_size)?;
    let plan = placed.tiling(&config.model.tables, topology.ranks() as u32)?;
    let features = FeatureStats::with_bag_sizes(&config, 1);
    let workload = Workload { config: &config, plan: &plan, features: &features };
    let conditions = Conditions {
        format: step.format,
        kernels,
        schedule: placed.schedule(),
        bottom_mlp: if placed == PublishedPlan::TablesBesideBottomMlp {
            BottomMlp::FirstRank
        } else {
            BottomMlp::DataParallel
        },
        row_updates,
        ..Conditions::new(&topology, models)
    };
    let Estimate { mean_ns, low_ns, high_ns } = price(workload, conditions)?.cost.step;
    let host = ShippedOverheads::nearest(&topology.device, JobKind::Recommendation).read()?;
    Ok(PublishedRow {
        source: step.job.source.to_owned(),
        hardware: step.hardware.to_owned(),
        model: step.job.model.name(),
        batch_size: step.job.batch_size,
        precision: step.format.name(),
        kernels: step.job.kernels,
        plan: step.job.plan.name(),
        predicted_ns: mean_ns,
        low_ns,
        high_ns,
        host_ns: predict_host(workload, &host, step.job.dense_updates).ns,
        published_ns: step.step_ns,
        baselines: StepBaselines::from_other_steps(step)?,
        ratio: mean_ns / step.step_ns,
        is_covered: (low_ns..=high_ns).contains(&step.step_ns),
        is_judged: step.job.is_judged,
    })
}

/// Computes the typical errors of the judged steps with products of 32-bit and of 16-bit values.
#[must_use]
pub fn typical_errors(rows: &[PublishedRow]) -> Vec<PublishedError> {
    let is_narrow = |row: &PublishedRow| ["fp16", "bf16"].contains(&row.precision);
    let groups = [("f32 and tf32", false), ("mixed", true)];
    let error = |((precision, narrow), typical_most): ((&'static str, bool), f64)| {
        let logs: Vec<f64> = rows
            .iter()
            .filter(|row| row.is_judged && is_narrow(row) == narrow)
            .map(|row| row.ratio.ln().abs())
            .collect();
        let mean = logs.iter().sum::<f64>() / logs.len().max(1) as f64;
        let worst_factor = logs.iter().copied().fold(0.0, f64::max).exp();
        let typical_factor = mean.exp();
        PublishedError { precision, steps: logs.len(), typical_factor, typical_most, worst_factor }
    };
    groups.into_iter().zip(TYPICAL_MOST).map(error).collect()
}
