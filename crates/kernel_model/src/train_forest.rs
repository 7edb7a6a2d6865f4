//! Trains a forest on the rows of some devices, with residuals over each device's baseline or over
//! the roofline.

use super::baseline::Baseline;
use super::bins::Bins;
use super::boosting::{self, BinnedRows, BoostingParams};
use super::device_rows::DeviceRows;
use super::feature::{Features, MOST};
use super::forest::Forest;
use super::measured::Measured;
use super::split::{self, Part};

/// Number of folds of the cross-validation. Each fold is predicted by trees that were trained on
/// the others.
pub const FOLDS: u64 = 5;
/// Configuration of the forest of one device.
pub const OWN: ForestConfig = ForestConfig {
    target: ResidualTarget::Baseline,
    params: BoostingParams { rounds: 450, leaves: 31, rate: 0.06, rows: 8, features: 0.8 },
};
/// Hyperparameters of forests over all devices, which have fewer trees with fewer leaves.
const BROAD: BoostingParams =
    BoostingParams { rounds: 120, leaves: 7, rate: 0.1, rows: 100, features: 0.3 };
/// Configuration of the forest that calibrated devices share. Residuals of this forest are relative
/// to the devices' baselines.
pub const POOLED: ForestConfig = ForestConfig { target: ResidualTarget::Baseline, params: BROAD };
/// Configuration of the forest for unmeasured devices. Residuals of this forest are relative to the
/// roofline.
pub const UNSEEN: ForestConfig = ForestConfig { target: ResidualTarget::Roofline, params: BROAD };

/// The reference time that a residual is relative to.
#[derive(Clone, Copy, Debug)]
pub enum ResidualTarget {
    /// The baseline of each device.
    Baseline,
    /// The roofline of the device. An unmeasured device has no baseline, and baselines of other
    /// devices mislead.
    Roofline,
}

impl ResidualTarget {
    fn line(self, own: Baseline) -> Baseline {
        match self {
            Self::Baseline => own,
            Self::Roofline => Baseline::ROOFLINE,
        }
    }
}

/// Target and hyperparameters of a forest.
#[derive(Clone, Copy, Debug)]
pub struct ForestConfig {
    target: ResidualTarget,
    params: BoostingParams,
}

/// The training rows that a forest is trained on.
#[derive(Clone, Copy, Debug)]
pub enum TrainingRows {
    All,
    /// The rows of all folds except this one.
    Without(u64),
}

impl TrainingRows {
    fn takes(self, row: &Measured) -> bool {
        match self {
            Self::All => true,
            Self::Without(fold) => fold_of(row) != fold,
        }
    }
}

/// Assigns a row to a fold by a hash of its operation and sizes.
pub fn fold_of(row: &Measured) -> u64 {
    split::hash(&row.work, 1) % FOLDS
}

/// Computes the bins of every feature from all training rows.
pub fn bins(devices: &[&DeviceRows]) -> Bins {
    let examples: Vec<Features> = examples(devices, ResidualTarget::Baseline, TrainingRows::All)
        .map(|(features, _)| features)
        .collect();
    Bins::from_rows(&examples.iter().map(Features::values).collect::<Vec<_>>())
}

/// Trains a forest on all training rows.
pub fn forest(devices: &[&DeviceRows], bins: &Bins, config: ForestConfig) -> Forest {
    grow(devices, bins, config, TrainingRows::All)
}

/// Trains a forest on the selected training rows.
pub fn grow(
    devices: &[&DeviceRows],
    bins: &Bins,
    config: ForestConfig,
    learning: TrainingRows,
) -> Forest {
    let features = bins.ends().len();
    let mut table = BinnedRows { features, bins: Vec::new(), targets: Vec::new() };
    let mut placed = [0; MOST];
    for (features_of, target) in examples(devices, config.target, learning) {
        bins.place(features_of.values(), &mut placed);
        table.bins.extend_from_slice(&placed[..features]);
        table.targets.push(target);
    }
    boosting::train_forest(&table, config.params, features as u64)
}

fn examples(
    devices: &[&DeviceRows],
    target: ResidualTarget,
    learning: TrainingRows,
) -> impl Iterator<Item = (Features, f32)> {
    let device_examples = move |device: &&DeviceRows| {
        let line = target.line(device.line);
        let rows = device.part(Part::Train).filter(|row| learning.takes(row));
        rows.map(|row| device.example(row, line)).collect::<Vec<_>>()
    };
    devices.iter().flat_map(device_examples)
}
