//! Simple predictions of kernel latencies, beside which kernel models are evaluated: rooflines with
//! measured peaks (arXiv:2201.07821), lines, other devices, and stock gradient-boosted trees.

use std::collections::BTreeMap;

use kernel_model::error_metrics::{gmae, mape};
use kernel_model::evaluate::{CleanLatency, list_latencies};
use kernel_model::{
    BINS_MOST, BoostingParams, KernelModel, Kind, Measured, Part, TreeExample, Trees, TreesParams,
    Work,
};
use schema::HardwareSpec;
use serde::Serialize;

/// Usual hyperparameters of gradient-boosted trees, for comparison.
const STOCK: TreesParams = TreesParams {
    boosting: BoostingParams { rounds: 100, leaves: 31, rate: 0.1, rows: 20, features: 1.0 },
    bins: BINS_MOST,
    forests: 1,
};

/// The highest rates that measured kernels of a device reached, per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredPeaks {
    pub flops: f64,
    /// Highest bandwidth that memory-bound kernels reached.
    pub bytes: f64,
}

/// A kernel that moves more than this many times the L2 size is taken to read device memory.
const BEYOND_L2: f64 = 4.0;

impl MeasuredPeaks {
    /// Finds the highest rates over the training rows of all kinds. Without such rows it uses
    /// benchmark results, or else the data sheet.
    #[must_use]
    pub fn from_rows(device: &HardwareSpec, rows: &[Measured]) -> Self {
        let (mut flops, mut bytes) = (0.0, 0.0);
        let own = rows.iter().filter(|row| row.device.key == device.key);
        for row in own.filter(|row| Part::for_work(&row.work) == Part::Train) {
            let (of_work, moved) = row.work.flops_and_bytes();
            let rate = |count: f64| 1e9 * count / row.latency_ns;
            match row.work.kind() {
                Kind::Linear | Kind::Bmm => flops = rate(of_work).max(flops),
                // Winograd's algorithm executes fewer FLOPs than are counted, so the rate would be
                // too high.
                Kind::Conv => {}
                Kind::LayerNorm | Kind::Softmax | Kind::ElementWise => {
                    if moved > BEYOND_L2 * device.l2_bytes as f64 {
                        bytes = rate(moved).max(bytes);
                    }
                }
            }
        }
        let or = |rate: f64, other: f64| if rate > 0.0 { rate } else { other };
        Self {
            flops: or(flops, device.sustained_f32.unwrap_or(device.peak.f32)),
            bytes: or(bytes, device.dram_sustained.unwrap_or(device.dram)),
        }
    }

    /// Computes the time of the published roofline, without launch overhead or cache.
    #[must_use]
    pub fn roofline_ns(self, work: &Work) -> f64 {
        let (flops, bytes) = work.flops_and_bytes();
        1e9 * (flops / self.flops).max(bytes / self.bytes)
    }
}

/// Prediction errors of simple predictions, in percent of the measured time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SimpleErrors {
    /// Errors of the roofline with measured peaks, raised to the launch overhead where it is less:
    /// the geometric mean of the absolute errors, and their mean.
    pub measured_peak_gmae_pct: f64,
    pub measured_peak_mape_pct: f64,
    /// Error of the latency on the nearest other device without any change.
    pub unchanged_mape_pct: f64,
    /// Error of max(launch overhead, a line of the roofline), with the line of the device.
    pub line_mape_pct: f64,
    /// Error of gradient-boosted trees over sizes and hardware of all devices.
    pub trees_mape_pct: f64,
}

/// Computes the errors of simple predictions on the test rows of each device of a model. They were
/// fitted to the training rows of all devices. The keys are those of the devices.
#[must_use]
pub fn evaluate_simple_predictions(
    model: &KernelModel,
    rows: &[Measured],
) -> BTreeMap<&'static str, SimpleErrors> {
    let latencies = list_latencies(model.kind(), rows);
    let devices: Vec<&[CleanLatency]> =
        latencies.chunk_by(|one, next| one.row.device.key == next.row.device.key).collect();
    let trees = train_stock_trees(&devices);
    let errors = |at: usize| {
        let device: &'static HardwareSpec = devices[at][0].row.device;
        let peaks = MeasuredPeaks::from_rows(device, rows);
        let tested = devices[at].iter().filter(|one| one.part == Part::Test && one.is_judged);
        let pairs = |predict: &dyn Fn(&CleanLatency) -> f64| {
            let pairs = tested.clone().map(|one| (predict(one), one.row.latency_ns));
            pairs.collect::<Vec<(f64, f64)>>().into_iter()
        };
        let peak = pairs(&|one| peaks.roofline_ns(&one.row.work).max(one.floor_ns));
        let mut others = devices.clone();
        others.remove(at);
        let near = (!others.is_empty()).then(|| nearest(&others, device));
        let unchanged = |row: &Measured| {
            near.map_or(f64::NAN, |near| model.predict_latency(&row.work, near).mean_ns)
        };
        let own = model.find_device(device);
        let line = |row: &Measured| own.map_or(f64::NAN, |own| own.line_ns(&row.work, device));
        let errors = SimpleErrors {
            measured_peak_gmae_pct: gmae(peak.clone()),
            measured_peak_mape_pct: mape(peak),
            unchanged_mape_pct: mape(pairs(&|one| unchanged(&one.row))),
            line_mape_pct: mape(pairs(&|one| line(&one.row))),
            trees_mape_pct: mape(pairs(&|one| trees.predict(&stock_features(&one.row)).exp())),
        };
        (&*device.key, errors)
    };
    (0..devices.len()).map(errors).collect()
}

/// Finds the device whose peak rates are nearest, by the logarithms of FLOP/s and bandwidth.
///
/// # Panics
/// Panics if there are no devices.
#[must_use]
pub fn nearest(devices: &[&[CleanLatency]], asked: &HardwareSpec) -> &'static HardwareSpec {
    let distance = |device: &HardwareSpec| {
        (device.peak.f32 / asked.peak.f32).ln().hypot((device.dram / asked.dram).ln())
    };
    let nearer =
        |a: &&'static HardwareSpec, b: &&'static HardwareSpec| distance(a).total_cmp(&distance(b));
    let all = devices.iter().map(|device| device[0].row.device);
    all.min_by(nearer).unwrap_or(devices[0][0].row.device)
}

/// Trains stock gradient-boosted trees that predict the logarithm of a latency from sizes and
/// hardware.
#[must_use]
pub fn train_stock_trees(devices: &[&[CleanLatency]]) -> Trees {
    let training = devices.iter().copied().flatten().filter(|row| row.part == Part::Train);
    let example =
        |CleanLatency { row, .. }: &CleanLatency| (stock_features(row), row.latency_ns.ln() as f32);
    let examples: Vec<TreeExample> = training.map(example).collect();
    Trees::learn(&examples.iter().collect::<Vec<_>>(), STOCK)
}

/// Returns the features of stock trees: logarithms of sizes, FLOPs, bytes and rates of the device.
#[must_use]
pub fn stock_features(row: &Measured) -> Vec<f32> {
    let (flops, bytes) = row.work.flops_and_bytes();
    let HardwareSpec { peak, dram, l2_bytes, multiprocessors, .. } = row.device;
    let hardware = [peak.f32, *dram, *l2_bytes as f64, f64::from(*multiprocessors)];
    let element = row.work.element().map_or(0, |element| element as u32);
    let sizes = row.work.sizes().iter().map(|size| (*size as f64).max(0.5));
    let logs = sizes.chain([flops, bytes]).chain(hardware).map(|value| value.ln() as f32);
    logs.chain([element as f32]).collect()
}

#[cfg(test)]
mod tests {
    use kernel_model::{Kind, Measured, Timed, Work};
    use schema::topology::hardware;

    use super::MeasuredPeaks;

    #[test]
    fn peaks_are_the_highest_rates_of_training_rows() {
        let device = hardware("v100").expect("a device");
        let row = |place: u32| {
            let work = Work::new(Kind::LayerNorm, &[1_000 * u64::from(place), 1024]);
            let work = work.expect("a work");
            let latency_ns = 3e9 * work.flops_and_bytes().1 / device.dram;
            Measured { work, device, latency_ns, timed: Timed::Call, place }
        };
        let rows: Vec<Measured> = (1..200).map(row).collect();
        let peaks = MeasuredPeaks::from_rows(device, &rows);
        assert!((0.333..0.334).contains(&(peaks.bytes / device.dram)), "{peaks:?}");
        assert_eq!(peaks.flops, device.peak.f32, "no product was measured");
    }
}
