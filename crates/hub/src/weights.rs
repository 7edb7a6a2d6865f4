//! Weights of GPU models, so that the time of different GPUs can be added up in one unit.

use serde::{Deserialize, Serialize};

use crate::pattern::matches_pattern;

/// The unit in which GPU time is added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuWeight {
    #[default]
    Gpu,
    Sm,
    /// Peak floating-point operations per second of 16 bits, without sparsity.
    Flops,
    Price,
}

/// Models of GPUs with their weights. The first model of the configuration that matches counts,
/// then the built-in ones.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct GpuModels(Vec<GpuModel>);

/// The weights of GPUs whose model matches a name. A missing weight is unknown.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuModel {
    /// Name as the driver reports it. A `*` at the end stands for any letters.
    pub name: String,
    pub sms: Option<f64>,
    pub flops: Option<f64>,
    pub price_per_hour: Option<f64>,
}

/// Words of a model's name, its multiprocessors, and its peak in TFLOP/s of 16 bits without
/// sparsity, by the vendor's data sheets. Longer names stand before those that they contain.
const BUILT_IN: [(&str, f64, f64); 14] = [
    ("B200", 148.0, 2250.0),
    ("H100 PCIe", 114.0, 756.0),
    ("H100 NVL", 132.0, 835.0),
    ("H100", 132.0, 989.0),
    ("H200", 132.0, 989.0),
    ("GH200", 132.0, 989.0),
    ("L40S", 142.0, 362.0),
    ("L4", 58.0, 121.0),
    ("A100", 108.0, 312.0),
    ("A30", 56.0, 165.0),
    ("A10", 72.0, 125.0),
    ("V100", 80.0, 125.0),
    ("T4", 40.0, 65.0),
    ("P100", 56.0, 18.7),
];

impl GpuWeight {
    /// Returns the unit of a sum of weighted seconds.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Gpu => "GPU s",
            Self::Sm => "SM s",
            Self::Flops => "FLOP",
            Self::Price => "price",
        }
    }
}

impl GpuModels {
    /// Returns the weight of a second of a GPU, or `None` if it is unknown.
    pub fn weight(&self, weight: GpuWeight, model: &str) -> Option<f64> {
        let configured = |value: fn(&GpuModel) -> Option<f64>| {
            let mut models = self.0.iter().filter(|known| matches_pattern(&known.name, model));
            models.find_map(value)
        };
        let words = || model.split(['-', ' ']).collect::<Vec<_>>().join(" ") + " ";
        let built_in = || {
            let name = words();
            BUILT_IN.iter().find(|(known, ..)| name.contains(&format!("{known} ")))
        };
        match weight {
            GpuWeight::Gpu => Some(1.0),
            GpuWeight::Sm => configured(|one| one.sms).or_else(|| Some(built_in()?.1)),
            GpuWeight::Flops => configured(|one| one.flops).or_else(|| Some(built_in()?.2 * 1e12)),
            GpuWeight::Price => configured(|one| one.price_per_hour).map(|price| price / 3600.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{GpuModels, GpuWeight};

    #[test]
    fn models_are_weighted_by_the_configuration_and_then_by_data_sheets() {
        #[derive(serde::Deserialize)]
        struct File {
            model: GpuModels,
        }
        let text = "[[model]]\nname = 'NVIDIA H100*'\nprice_per_hour = 3.6\n\
                    [[model]]\nname = 'Own 1'\nsms = 7.0";
        let file: File = toml::from_str(text).unwrap();
        let weight = |weight, model| file.model.weight(weight, model);
        assert_eq!(weight(GpuWeight::Gpu, "anything"), Some(1.0));
        for (model, sms) in [
            ("NVIDIA H100 80GB HBM3", 132.0),
            ("NVIDIA H100 PCIe", 114.0),
            ("Tesla V100-SXM2-32GB", 80.0),
            ("NVIDIA A100-SXM4-80GB", 108.0),
            ("NVIDIA L40S", 142.0),
            ("Tesla T4", 40.0),
            ("Own 1", 7.0),
        ] {
            assert_eq!(weight(GpuWeight::Sm, model), Some(sms), "{model}");
        }
        assert_eq!(weight(GpuWeight::Sm, "Own 2"), None);
        assert_eq!(weight(GpuWeight::Price, "NVIDIA H100 PCIe"), Some(0.001));
        assert_eq!(weight(GpuWeight::Price, "Tesla T4"), None);
        assert_eq!(weight(GpuWeight::Flops, "Tesla T4"), Some(65e12));
    }
}
