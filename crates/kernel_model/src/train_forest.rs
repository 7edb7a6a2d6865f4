//! Trains the forest of one device on residuals over the device's baseline.

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
/// Hyperparameters of the forest of one device.
const OWN: BoostingParams =
    BoostingParams { rounds: 450, leaves: 31, rate: 0.06, rows: 8, features: 0.8 };

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
    let examples = |device: &&DeviceRows| examples(device, TrainingRows::All).collect::<Vec<_>>();
    let examples: Vec<(Features, f32)> = devices.iter().flat_map(examples).collect();
    Bins::from_rows(&examples.iter().map(|(features, _)| features.values()).collect::<Vec<_>>())
}

/// Trains the forest of a device on the selected training rows.
pub fn grow(device: &DeviceRows, bins: &Bins, learning: TrainingRows) -> Forest {
    let features = bins.ends().len();
    let mut table = BinnedRows { features, bins: Vec::new(), targets: Vec::new() };
    let mut placed = [0; MOST];
    for (features_of, target) in examples(device, learning) {
        bins.place(features_of.values(), &mut placed);
        table.bins.extend_from_slice(&placed[..features]);
        table.targets.push(target);
    }
    boosting::train_forest(&table, OWN, features as u64)
}

fn examples(device: &DeviceRows, learning: TrainingRows) -> impl Iterator<Item = (Features, f32)> {
    let rows = device.part(Part::Train).filter(move |row| learning.takes(row));
    rows.map(|row| device.example(row))
}
