//! The MLP settings of Table II of arXiv:2201.07821, and a subset of them that trains in minutes.

use clap::ValueEnum;
use schema::Optimizer;
use serde::Serialize;

/// Architecture and optimizer of one MLP of the grid search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MlpSetting {
    /// Number of hidden layers, each followed by ReLU.
    pub layers: usize,
    pub width: usize,
    #[serde(serialize_with = "by_name")]
    pub optimizer: Optimizer,
    /// Learning rate of the optimizer. For SGD it is ten times the rate of the grid.
    pub learning_rate: f64,
}

fn by_name<S: serde::Serializer>(optimizer: &Optimizer, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(optimizer.name())
}

/// Number of settings and epochs with which the published MLPs are trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MlpGrid {
    /// Try 16 settings for 8 epochs each, and train the best one for 120
    Small,
    /// Train all 280 settings for 800 epochs each
    Whole,
}

impl MlpGrid {
    /// Lists the settings in a fixed order.
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

    /// Returns the number of epochs for every setting, and the total number for the best setting.
    pub fn epochs(self) -> (usize, usize) {
        match self {
            Self::Small => (8, 120),
            Self::Whole => (800, 800),
        }
    }
}
