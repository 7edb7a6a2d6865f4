//! Computes prediction errors of models on held-out rows and compares them with errors of the
//! roofline.

use serde::Serialize;

use super::device_rows::{DeviceRows, by_device};
use super::error_metrics::{gmae, mape};
use super::feature::roofline_ns;
use super::measured::Measured;
use super::model::KernelModel;
use super::split::Part;
use super::work::Kind;

/// Prediction errors of one kind of kernel on one device.
#[derive(Clone, Debug, Serialize)]
pub struct KernelRow {
    pub kind: &'static str,
    pub device: String,
    /// Number of rows above the launch overhead, from which the errors are computed. For
    /// memory-bound kinds it counts only rows whose kernels are long enough to be observed.
    pub rows: usize,
    /// Geometric mean of the absolute errors of max(roofline, launch overhead).
    pub roofline_gmae_pct: f64,
    pub roofline_mape_pct: f64,
    /// Geometric mean of the absolute errors of the model.
    pub gmae_pct: f64,
    pub mape_pct: f64,
    /// Mean absolute error over rows of at least twice the launch overhead, whose latency is mostly
    /// kernel time.
    pub kernel_mape_pct: f64,
    /// Share of all rows, including those at the launch overhead, that lie within their intervals.
    pub covered_pct: f64,
    /// Launch overhead of the operation that the first row measures.
    pub floor_ns: f64,
    /// Drift of the launch overhead from one row of the table to the next.
    pub drift_ns_per_row: f64,
}

/// A measured latency in the form that models are trained on and judged by.
#[derive(Clone, Copy, Debug)]
pub struct CleanLatency {
    /// The row with its latency without drift of the host or of the device's state.
    pub row: Measured,
    pub part: Part,
    /// Launch overhead of the operation.
    pub floor_ns: f64,
    /// Whether prediction errors include the row, because its kernel is long enough to show.
    pub is_judged: bool,
}

/// Lists the latencies of one kind, device by device in the order of their keys.
#[must_use]
pub fn list_latencies(kind: Kind, rows: &[Measured]) -> Vec<CleanLatency> {
    let mut latencies = Vec::new();
    for device in by_device(kind, rows) {
        latencies.extend(device.rows.iter().map(|row| CleanLatency {
            row: Measured { latency_ns: device.latency_ns(row), ..*row },
            part: Part::for_work(&row.work),
            floor_ns: device.floor_ns(row),
            is_judged: device.is_above_floor(row),
        }));
    }
    latencies
}

/// Computes the errors on each device for one part of the rows. [`Part::Test`] judges a model.
/// [`Part::Calibrate`] helps to choose how models are trained.
#[must_use]
pub fn evaluate_model(model: &KernelModel, rows: &[Measured], part: Part) -> Vec<KernelRow> {
    by_device(model.kind, rows).iter().map(|device| row(model, device, part)).collect()
}

fn row(model: &KernelModel, device: &DeviceRows, part: Part) -> KernelRow {
    let tested: Vec<&Measured> = device.part(part).collect();
    // Rows at the launch overhead contain no kernel time, so kernel errors exclude them.
    let above = |floors: f64| {
        let is_far = move |row: &&Measured| device.latency_ns(row) > floors * device.floor_ns(row);
        tested.iter().copied().filter(|row| device.is_above_floor(row)).filter(is_far)
    };
    let over_floor =
        |row: &Measured, ns: f64| (ns.max(device.floor_ns(row)), device.latency_ns(row));
    let roofline = above(1.0).map(|row| over_floor(row, roofline_ns(&row.work, row.device)));
    let predict = |row: &Measured| model.predict_latency(&row.work, row.device);
    let predicted = |row: &Measured| (predict(row).mean_ns, device.latency_ns(row));
    let covered = tested.iter().filter(|row| predict(row).covers(device.latency_ns(row)));
    let floor = device.rows.first().map(|row| device.floor(row)).unwrap_or_default();
    KernelRow {
        kind: model.kind.name(),
        device: device.device.key.clone().into_owned(),
        rows: above(1.0).count(),
        roofline_gmae_pct: gmae(roofline.clone()),
        roofline_mape_pct: mape(roofline),
        gmae_pct: gmae(above(1.0).map(predicted)),
        mape_pct: mape(above(1.0).map(predicted)),
        kernel_mape_pct: mape(above(2.0).map(predicted)),
        covered_pct: 100.0 * covered.count() as f64 / tested.len().max(1) as f64,
        floor_ns: floor.ns,
        drift_ns_per_row: floor.drift_ns,
    }
}
