//! Evaluates models on a device that was left out of training, with none of its rows and with
//! twenty.

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

/// Number of rows of the new device.
const SHOTS: usize = 20;
/// Number of random draws of these rows; errors are means over the draws.
const DRAWS: u64 = 5;

/// Prediction errors on a device that was left out of training.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOutRow {
    pub kind: &'static str,
    pub device: String,
    /// Test rows above the floor, as in [`KernelRow::rows`](super::evaluate::KernelRow::rows).
    pub rows: usize,
    /// Mean absolute error of max(roofline, launch overhead of the other devices).
    pub roofline_mape_pct: f64,
    /// Error of the forest of the other devices, without a row of this device.
    pub mape_pct: f64,
    /// Error after calibration by twenty rows of this device.
    pub shots_mape_pct: f64,
    /// Share of rows within the interval for unmeasured devices.
    pub covered_pct: f64,
}

/// Forest, launch overheads and baseline of all devices but one.
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

/// Computes the interval for unmeasured devices: the worst of the devices when each is left out.
pub(super) fn interval(devices: &[&DeviceRows], threads: usize) -> ErrorInterval {
    if devices.len() < 2 {
        // A single device shows nothing about others, so assume a factor of e.
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

/// Leaves out each device of a kind in turn and returns the errors on it.
#[must_use]
pub fn evaluate_left_out_devices(kind: Kind, rows: &[Measured], threads: usize) -> Vec<LeftOutRow> {
    let devices = by_device(kind, rows);
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
    // Compute the interval from the remaining devices, as for a user with an unmeasured device.
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

/// Draws training rows for calibration, with latencies corrected for the drift of the host.
fn draw_rows(device: &DeviceRows, draw: u64) -> Vec<Measured> {
    let mut rows: Vec<Measured> = device.part(Part::Train).copied().collect();
    // Element-wise operations of one size share a hash, so a salt by operation draws each
    // independently.
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
