//! Simple predictions of a published step from the other published steps of its model.

use predict::Error;
use schema::median::float_median;
use schema::{TableRow, Topology};
use serde::Serialize;

use super::{PublishedStep, STEPS};

/// Predictions of a published step from the other published steps of its model, in nanoseconds.
/// They are `None` if there are too few.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, TableRow)]
pub struct StepBaselines {
    /// Time of the samples on the hardware whose rate is nearest.
    pub unchanged_ns: Option<f64>,
    /// A line through the logarithms of rates and times of a sample.
    pub line_ns: Option<f64>,
    /// Stock gradient-boosted trees. With 20 rows in a leaf at least, they predict the median.
    pub trees_ns: Option<f64>,
}

/// Logarithms of the FLOP/s of all ranks and of the time of a sample.
struct SamplePoint {
    rate: f64,
    ns: f64,
}

impl SamplePoint {
    fn new(step: &PublishedStep) -> Result<Self, Error> {
        let topology = Topology::parse(step.hardware).map_err(Error::Hardware)?;
        let peak = topology.device.peak_rate(step.format).map_err(Error::Hardware)?;
        let ns = (step.step_ns / step.job.batch_size as f64).ln();
        Ok(Self { rate: (peak * topology.ranks() as f64).ln(), ns })
    }
}

impl StepBaselines {
    /// Predicts a step from the others of its model.
    pub(super) fn from_other_steps(step: &PublishedStep) -> Result<Self, Error> {
        let is_other = |other: &&PublishedStep| {
            other.job.model == step.job.model && !std::ptr::eq(*other, step)
        };
        let points = STEPS.iter().filter(is_other).map(SamplePoint::new);
        let points = points.collect::<Result<Vec<SamplePoint>, Error>>()?;
        let rate = SamplePoint::new(step)?.rate;
        let distance = |point: &&SamplePoint| (point.rate - rate).abs();
        let nearest = points.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        let batch_ns = |sample: f64| sample.exp() * step.job.batch_size as f64;
        Ok(Self {
            unchanged_ns: nearest.map(|point| batch_ns(point.ns)),
            line_ns: line_at(&points, rate).map(batch_ns),
            trees_ns: float_median(&mut points.iter().map(|point| point.ns).collect::<Vec<_>>())
                .map(batch_ns),
        })
    }
}

/// Returns the value at `rate` of the least-squares line through points of different rates.
fn line_at(points: &[SamplePoint], rate: f64) -> Option<f64> {
    let count = points.len().max(1) as f64;
    let mean_rate = points.iter().map(|point| point.rate).sum::<f64>() / count;
    let mean_ns = points.iter().map(|point| point.ns).sum::<f64>() / count;
    let square: f64 = points.iter().map(|point| (point.rate - mean_rate).powi(2)).sum();
    let off = |point: &SamplePoint| (point.rate - mean_rate) * (point.ns - mean_ns);
    let both: f64 = points.iter().map(off).sum();
    (square > 1e-6).then(|| mean_ns + (rate - mean_rate) * both / square)
}
