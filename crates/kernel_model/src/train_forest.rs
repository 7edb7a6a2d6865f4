//! Trains a forest on the rows of some devices: over the baseline of each device, or the roofline.

use super::baseline::Baseline;
use super::bins::Bins;
use super::boosting::{self, BinnedRows, BoostingParams};
use super::device_rows::DeviceRows;
use super::feature::{Features, MOST};
use super::forest::Forest;
use super::measured::Measured;
use super::split::{self, Part};

/// Parts of the training rows for cross-validation; each is predicted by trees that learned from
/// the others.
pub const FOLDS: u64 = 5;
/// Of one device.
pub const OWN: ForestConfig = ForestConfig {
    target: ResidualTarget::Baseline,
    params: BoostingParams { rounds: 450, leaves: 31, rate: 0.06, rows: 8, features: 0.8 },
};
/// Over all devices: fewer and broader leaves.
const BROAD: BoostingParams =
    BoostingParams { rounds: 120, leaves: 7, rate: 0.1, rows: 100, features: 0.3 };
/// Over all devices, for those of which a few rows are known, and a line by these.
pub const POOLED: ForestConfig = ForestConfig { target: ResidualTarget::Baseline, params: BROAD };
/// Over all devices, for unmeasured ones.
pub const UNSEEN: ForestConfig = ForestConfig { target: ResidualTarget::Roofline, params: BROAD };

/// What trees correct.
#[derive(Clone, Copy, Debug)]
pub enum ResidualTarget {
    /// The line of each device.
    Baseline,
    /// The roofline: an unmeasured device has no line, and those of others mislead.
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

/// How trees are grown, and on what.
#[derive(Clone, Copy, Debug)]
pub struct ForestConfig {
    target: ResidualTarget,
    params: BoostingParams,
}

/// Which of the rows to learn from are learnt from.
#[derive(Clone, Copy, Debug)]
pub enum TrainingRows {
    All,
    /// Those of all folds but one.
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

pub fn fold_of(row: &Measured) -> u64 {
    split::hash(&row.work, 1) % FOLDS
}

/// The bins of the features of all rows to learn from.
pub fn bins(devices: &[&DeviceRows]) -> Bins {
    let examples: Vec<Features> = examples(devices, ResidualTarget::Baseline, TrainingRows::All)
        .map(|(features, _)| features)
        .collect();
    Bins::from_rows(&examples.iter().map(Features::values).collect::<Vec<_>>())
}

/// A forest on the rows to learn from.
pub fn forest(devices: &[&DeviceRows], bins: &Bins, config: ForestConfig) -> Forest {
    grow(devices, bins, config, TrainingRows::All)
}

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
    boosting::forest(&table, config.params, features as u64)
}

fn examples(
    devices: &[&DeviceRows],
    target: ResidualTarget,
    learning: TrainingRows,
) -> impl Iterator<Item = (Features, f32)> {
    let of_device = move |device: &&DeviceRows| {
        let line = target.line(device.line);
        let rows = device.part(Part::Train).filter(|row| learning.takes(row));
        rows.map(|row| device.example(row, line)).collect::<Vec<_>>()
    };
    devices.iter().flat_map(of_device)
}
