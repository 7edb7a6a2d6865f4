//! The MLP settings of Table II of arXiv:2201.07821, and a subset that trains in minutes.

use schema::Optimizer;
use serde::Serialize;

/// Architecture and optimizer of one MLP of the grid search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MlpSetting {
    /// Hidden layers, each followed by ReLU.
    pub layers: usize,
    pub width: usize,
    #[serde(serialize_with = "by_name")]
    pub optimizer: Optimizer,
    /// Learning rate of the optimizer; for SGD ten times that of the grid.
    pub learning_rate: f64,
}

fn by_name<S: serde::Serializer>(optimizer: &Optimizer, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(optimizer.name())
}

/// Which settings a grid search tries, and for how many epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpGrid {
    /// A part of the published grid that takes minutes: every setting learns for a few epochs, and
    /// the best one goes on.
    Small,
    /// All 280 published settings, each for as many epochs as the published code uses.
    Whole,
}

impl MlpGrid {
    /// Lists the settings in a fixed order.
    #[must_use]
    pub fn settings(self) -> Vec<MlpSetting> {
        let (layers, widths, rates): (&[usize], &[usize], &[f64]) = match self {
            Self::Small => (&[3, 5], &[128, 256], &[1e-3, 5e-3]),
            Self::Whole => (
                &[3, 4, 5, 6, 7],
                &[128, 256, 512, 1024],
                &[1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2],
            ),
        };
        let mut settings = Vec::new();
        for &layers in layers {
            for &width in widths {
                for (optimizer, factor) in [(Optimizer::Adam, 1.0), (Optimizer::Sgd, 10.0)] {
                    settings.extend(rates.iter().map(|rate| MlpSetting {
                        layers,
                        width,
                        optimizer,
                        learning_rate: factor * rate,
                    }));
                }
            }
        }
        settings
    }

    /// Returns the epochs of every setting, and those of the best setting in total.
    #[must_use]
    pub fn epochs(self) -> (usize, usize) {
        match self {
            Self::Small => (8, 120),
            Self::Whole => (800, 800),
        }
    }
}
