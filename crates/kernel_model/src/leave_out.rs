//! Evaluates models on a device that was left out of training.
//!
//! The model has seen either none of the device's measurements or twenty of them.

use serde::Serialize;

use super::baseline::{Baseline, DeviceBaseline};
use super::bins::Bins;
use super::device_rows::{DeviceRows, by_device};
use super::error_interval::{ErrorInterval, quantiles};
use super::error_metrics::mape;
use super::feature::roofline_ns;
use super::few_shot;
use super::forest::Forest;
use super::latency::latency;
use super::measured::Measured;
use super::model::LaunchOverheads;
use super::parallel::in_parallel;
use super::split::{Part, hash};
use super::train_forest::{POOLED, UNSEEN, bins, forest};
use super::work::Kind;

/// Number of measurements of the new device that calibrate a model.
const SHOTS: usize = 20;
/// Number of random draws of calibration rows. Reported errors are means over the draws.
const DRAWS: u64 = 5;

/// Prediction errors for one kind of kernel on a device that was left out of training.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOutRow {
    pub kind: &'static str,
    pub device: String,
    /// Test rows above the floor, as in [`KernelRow::rows`](super::evaluate::KernelRow::rows).
    pub rows: usize,
    /// Mean absolute error of a simple prediction, max(roofline, launch overhead of the other
    /// devices).
    pub roofline_mape_pct: f64,
    /// Mean absolute error of the forest trained on the other devices only.
    pub mape_pct: f64,
    /// Mean absolute error after calibration by twenty measurements of this device.
    pub shots_mape_pct: f64,
    /// Share of measured times within the interval for unmeasured devices.
    pub covered_pct: f64,
}

/// A model trained on all devices but one: its forest, launch overheads and baseline.
struct Others {
    bins: Bins,
    unseen: Forest,
    floors: LaunchOverheads,
    line: Baseline,
}

fn train_others(devices: &[&DeviceRows], left_out: usize) -> Others {
    let others = all_but(devices, left_out);
    let bins = bins(&others);
    let unseen = forest(&others, &bins, UNSEEN);
    let floors: Vec<LaunchOverheads> = others.iter().map(|device| device.floors_ns()).collect();
    let line = Baseline::median(others.iter().map(|device| device.line));
    Others { bins, unseen, floors: LaunchOverheads::median_of(floors.iter()), line }
}

fn all_but<'a>(devices: &[&'a DeviceRows], left_out: usize) -> Vec<&'a DeviceRows> {
    let others = devices.iter().enumerate().filter(|(at, _)| *at != left_out);
    others.map(|(_, device)| *device).collect()
}

impl Others {
    fn predicted_ns(&self, row: &Measured) -> f64 {
        let overhead_ns = self.floors.ns(row.work.name());
        let floor = DeviceBaseline { overhead_ns, line: Baseline::ROOFLINE };
        latency(&self.bins, &self.unseen, &row.work, row.device, floor).ns
    }
}

/// Computes the interval of predictions on unmeasured devices. Leaves out each device in turn and
/// returns the hull of the resulting intervals.
pub(super) fn interval(devices: &[&DeviceRows], threads: usize) -> ErrorInterval {
    if devices.len() < 2 {
        // A single device shows nothing about other devices, so assume a factor of e in both
        // directions.
        return ErrorInterval::flat(-1.0, 1.0);
    }
    let ends = in_parallel(threads, devices.len(), |at| {
        let (others, device) = (train_others(devices, at), devices[at]);
        quantiles(
            device
                .part(Part::Calibrate)
                .map(|row| (device.latency_ns(row) / others.predicted_ns(row)).ln()),
        )
    });
    ErrorInterval::hull(&ends)
}

/// Leaves out each device of a kind in turn and returns the prediction errors on that device.
#[must_use]
pub fn evaluate_left_out_devices(kind: Kind, rows: &[Measured], threads: usize) -> Vec<LeftOutRow> {
    let devices = by_device(kind, rows);
    // With fewer than three devices, the remaining ones are too few for an interval.
    if devices.len() < 3 {
        return Vec::new();
    }
    let devices: Vec<&DeviceRows> = devices.iter().collect();
    in_parallel(threads, devices.len(), |at| row(kind, &devices, at))
}

fn row(kind: Kind, devices: &[&DeviceRows], at: usize) -> LeftOutRow {
    let (others, device) = (train_others(devices, at), devices[at]);
    let tested: Vec<&Measured> =
        device.part(Part::Test).filter(|row| device.is_above_floor(row)).collect();
    let error = |predict: &dyn Fn(&Measured) -> f64| {
        mape(tested.iter().map(|row| (predict(row), device.latency_ns(row))))
    };
    let roofline =
        |row: &Measured| roofline_ns(&row.work, row.device).max(others.floors.ns(row.work.name()));
    let pooled = forest(&all_but(devices, at), &others.bins, POOLED);
    let shots = (0..DRAWS).map(|draw| {
        let rows = draw_rows(device, draw);
        let shared = few_shot::SharedForest { bins: &others.bins, pooled: &pooled };
        few_shot::fit_device(kind, shared, &others.floors, others.line, &rows).map_or(
            f64::NAN,
            |model| {
                error(&|row| model.latency(&others.bins, Some(&pooled), &row.work, row.device).ns)
            },
        )
    });
    let shots_mape_pct = shots.sum::<f64>() / DRAWS as f64;
    // Compute the interval from the remaining devices, which is what a user with an unmeasured
    // device gets.
    let interval = interval(&all_but(devices, at), 1);
    let covered = device.part(Part::Test).filter(|row| {
        let (low, high) = interval.at(0.0);
        let ratio = device.latency_ns(row) / others.predicted_ns(row);
        (low..=high).contains(&ratio)
    });
    let covered_pct = 100.0 * covered.count() as f64 / device.part(Part::Test).count() as f64;
    LeftOutRow {
        kind: kind.name(),
        device: device.device.key.clone().into_owned(),
        rows: tested.len(),
        roofline_mape_pct: error(&roofline),
        mape_pct: error(&|row| others.predicted_ns(row)),
        shots_mape_pct,
        covered_pct,
    }
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
