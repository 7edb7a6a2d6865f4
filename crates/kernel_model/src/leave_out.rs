//! Evaluates predictions of a device that was left out of training.
//!
//! The model has seen either none of the device's measurements or twenty of them. Simple
//! predictions are evaluated on the same rows.

use serde::Serialize;

use super::bins::BINS_MOST;
use super::boosting::BoostingParams;
use super::device_rows::{DeviceRows, by_device, usual_floors};
use super::error_metrics::mape;
use super::feature::roofline_ns;
use super::few_shot;
use super::measured::Measured;
use super::model::KernelModel;
use super::model_shapes::resembles_layers;
use super::parallel::in_parallel;
use super::split::{Part, hash};
use super::transfer::DeviceTransfer;
use super::trees::{TreeExample, Trees, TreesParams};
use schema::HardwareSpec;

/// Number of measurements of the new device that calibrate a model.
const SHOTS: usize = 20;
/// Number of random draws of calibration rows. Reported errors are means over the draws.
const DRAWS: u64 = 5;
/// Usual hyperparameters of gradient-boosted trees, for comparison.
const STOCK: TreesParams = TreesParams {
    boosting: BoostingParams { rounds: 100, leaves: 31, rate: 0.1, rows: 20, features: 1.0 },
    bins: BINS_MOST,
    forests: 1,
};

/// Prediction errors for one kind of kernel on a device that was left out of training. All errors
/// are mean absolute errors.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOutRow {
    pub kind: &'static str,
    pub device: String,
    /// Test rows above the floor, as in [`KernelRow::rows`](super::evaluate::KernelRow::rows).
    pub rows: usize,
    /// Error of max(roofline, launch overhead of the other devices).
    pub roofline_mape_pct: f64,
    /// Error of the latency on the nearest device without any change.
    pub unchanged_mape_pct: f64,
    /// Error of the nearest device's line, max(overhead, start · overhead + slope · roofline).
    pub nearest_line_mape_pct: f64,
    /// Error of gradient-boosted trees over sizes and hardware of the other devices.
    pub trees_mape_pct: f64,
    /// Error of the model, which knows only the other devices.
    pub mape_pct: f64,
    /// Error after calibration by twenty measurements of this device.
    pub shots_mape_pct: f64,
    /// Share of measured times above the floor within the interval for unmeasured devices.
    pub covered_pct: f64,
    /// Share of covered times among the rows that resemble layers of real models.
    pub layers_covered_pct: f64,
}

/// Leaves out each device of a model in turn and returns the prediction errors on that device. The
/// forests of the other devices are those of the model, because they depend only on their own
/// device.
#[must_use]
pub fn evaluate_left_out_devices(
    model: &KernelModel,
    rows: &[Measured],
    threads: usize,
) -> Vec<LeftOutRow> {
    let devices = by_device(model.kind, rows);
    let is_known =
        |device: &&DeviceRows| model.devices.iter().any(|own| own.device == device.device.key);
    let devices: Vec<&DeviceRows> = devices.iter().filter(is_known).collect();
    // With fewer than three devices, the remaining ones are too few for an interval.
    if devices.len() < 3 {
        return Vec::new();
    }
    in_parallel(threads, devices.len(), |at| row(model, &devices, at))
}

fn row(model: &KernelModel, devices: &[&DeviceRows], at: usize) -> LeftOutRow {
    let device = devices[at];
    let mut others = devices.to_vec();
    others.remove(at);
    let own_models = model
        .devices
        .iter()
        .filter(|own| others.iter().any(|other| own.device == other.device.key) && !own.is_adapted);
    let model = KernelModel {
        transfer: DeviceTransfer::train(&others, 1),
        devices: own_models.cloned().collect(),
        sources: model.sources.clone(),
        least: model.least.clone(),
        most: model.most.clone(),
        bins: model.bins.clone(),
        ..*model
    };
    let tested: Vec<&Measured> =
        device.part(Part::Test).filter(|row| device.is_above_floor(row)).collect();
    let error = |predict: &dyn Fn(&Measured) -> f64| {
        mape(tested.iter().map(|row| (predict(row), device.latency_ns(row))))
    };
    let floors = usual_floors(&others);
    let nearest = nearest(&others, device.device);
    let near_model = model.devices.iter().find(|own| own.device == nearest.device.key);
    let trees = train_stock_trees(&others);
    let shots = (0..DRAWS).map(|draw| {
        few_shot::calibrate(model.clone(), &draw_rows(device, draw)).map_or(f64::NAN, |model| {
            error(&|row| model.predict_latency(&row.work, row.device).mean_ns)
        })
    });
    let covered_pct = |rows: &[&Measured]| {
        let is_covered = |row: &&&Measured| {
            model.predict_latency(&row.work, row.device).covers(device.latency_ns(row))
        };
        let covered = rows.iter().filter(is_covered);
        100.0 * covered.count() as f64 / rows.len().max(1) as f64
    };
    LeftOutRow {
        kind: model.kind.name(),
        device: device.device.key.clone().into_owned(),
        rows: tested.len(),
        roofline_mape_pct: error(&|row| {
            roofline_ns(&row.work, row.device).max(floors.ns(row.work.name()))
        }),
        unchanged_mape_pct: error(&|row| {
            near_model
                .map_or(f64::NAN, |own| own.latency(model.shared(), &row.work, nearest.device).ns)
        }),
        nearest_line_mape_pct: error(&|row| {
            let floor_ns = nearest.floors.get(row.work.name()).map_or(0.0, |floor| floor.ns);
            nearest.line.ns(roofline_ns(&row.work, row.device), floor_ns)
        }),
        trees_mape_pct: error(&|row| trees.predict(&stock_features(row)).exp()),
        mape_pct: error(&|row| model.predict_latency(&row.work, row.device).mean_ns),
        shots_mape_pct: shots.sum::<f64>() / DRAWS as f64,
        covered_pct: covered_pct(&tested),
        layers_covered_pct: covered_pct(&resembles_layers(&tested)),
    }
}

/// Finds the device whose peak rates are nearest, by the logarithms of FLOP/s and bandwidth.
fn nearest<'a>(devices: &[&'a DeviceRows], asked: &HardwareSpec) -> &'a DeviceRows {
    let distance = |device: &DeviceRows| {
        let flops = (device.device.peak.f32 / asked.peak.f32).ln();
        flops.hypot((device.device.dram / asked.dram).ln())
    };
    let nearer = |a: &&DeviceRows, b: &&DeviceRows| distance(a).total_cmp(&distance(b));
    devices.iter().copied().min_by(nearer).unwrap_or(devices[0])
}

/// Trains gradient-boosted trees that predict the logarithm of a latency from sizes and hardware.
fn train_stock_trees(devices: &[&DeviceRows]) -> Trees {
    let example = |device: &DeviceRows, row: &Measured| {
        (stock_features(row), device.latency_ns(row).ln() as f32)
    };
    let examples: Vec<TreeExample> = devices
        .iter()
        .flat_map(|device| device.part(Part::Train).map(move |row| example(device, row)))
        .collect();
    Trees::learn(&examples.iter().collect::<Vec<_>>(), STOCK)
}

fn stock_features(row: &Measured) -> Vec<f32> {
    let (flops, bytes) = row.work.flops_and_bytes();
    let HardwareSpec { peak, dram, l2_bytes, multiprocessors, .. } = row.device;
    let hardware = [peak.f32, *dram, *l2_bytes as f64, f64::from(*multiprocessors)];
    let element = row.work.element().map_or(0, |element| element as u32);
    let sizes = row.work.sizes().iter().map(|size| (*size as f64).max(0.5));
    let logs = sizes.chain([flops, bytes]).chain(hardware).map(|value| value.ln() as f32);
    logs.chain([element as f32]).collect()
}

/// Draws training rows for calibration and corrects their latencies for the drift of the host.
fn draw_rows(device: &DeviceRows, draw: u64) -> Vec<Measured> {
    let mut rows: Vec<Measured> = device.part(Part::Train).copied().collect();
    // Element-wise operations of one size share a hash. A different salt for each operation draws
    // the operations independently.
    let salt = |row: &Measured| {
        1 + draw + DRAWS * row.work.element().map_or(0, |element| 1 + element as u64)
    };
    rows.sort_by_key(|row| (hash(&row.work, salt(row)), row.work));
    rows.truncate(SHOTS);
    for row in &mut rows {
        row.latency_ns = device.latency_ns(row);
    }
    rows
}
