//! Errors of models on held-out rows, beside the roofline's.

use serde::Serialize;

use super::feature::roofline_ns;
use super::measured::Measured;
use super::model::KernelModel;
use super::split::Part;
use super::train::{DeviceRows, by_device};

/// Errors of one kind on one device.
#[derive(Clone, Debug, Serialize)]
pub struct KernelRow {
    /// The kind.
    pub kind: &'static str,
    /// The device.
    pub device: String,
    /// Rows above the floor, which errors are of.
    pub rows: usize,
    /// Geometric mean of the absolute errors of max(roofline, floor).
    pub roofline_gmae_pct: f64,
    /// Mean of them.
    pub roofline_mape_pct: f64,
    /// Geometric mean of the absolute errors of the model.
    pub gmae_pct: f64,
    /// Mean of them.
    pub mape_pct: f64,
    /// Mean of them over rows of at least twice the floor: mostly kernel.
    pub kernel_mape_pct: f64,
    /// Rows, those at the floor too, within their intervals.
    pub covered_pct: f64,
    /// The host's part, for the operation with most rows.
    pub floor_ns: f64,
    /// What it adds to each row more than to the one before.
    pub drift_ns_per_row: f64,
}

/// By device, on the rows of one part: [`Part::Test`] to judge a model, [`Part::Calibrate`] to
/// choose how models are made.
#[must_use]
pub fn of(model: &KernelModel, rows: &[Measured], part: Part) -> Vec<KernelRow> {
    by_device(model.kind, rows).iter().map(|device| row(model, device, part)).collect()
}

fn row(model: &KernelModel, device: &DeviceRows, part: Part) -> KernelRow {
    let tested: Vec<&Measured> = device.part(part).collect();
    let above = |floors: f64| {
        tested
            .iter()
            .copied()
            .filter(move |row| device.latency_ns(row) > floors * device.floor_ns(row))
    };
    let roofline = above(1.0).map(|row| {
        let base = roofline_ns(&row.work, row.device).max(device.floor_ns(row));
        (base, device.latency_ns(row))
    });
    let predicted =
        |row: &Measured| (model.latency(&row.work, row.device).0.ns, device.latency_ns(row));
    let covered = tested.iter().filter(|row| {
        let (found, (low, high), _) = model.latency(&row.work, row.device);
        (found.ns * low..=found.ns * high).contains(&device.latency_ns(row))
    });
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

/// Mean absolute error in per cent, of predictions and measurements.
pub fn mape(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (sum, count) = pairs.fold((0.0, 0.0), |(sum, count), (predicted, measured)| {
        (sum + (predicted / measured - 1.0).abs(), count + 1.0)
    });
    100.0 * sum / count
}

/// Geometric mean of the absolute errors in per cent; 4e-4 is added to each, as in the paper's
/// code, so that one exact prediction does not decide.
pub fn gmae(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (sum, count) = pairs.fold((0.0, 0.0), |(sum, count), (predicted, measured)| {
        (sum + ((predicted / measured - 1.0).abs() + 4e-4).ln(), count + 1.0)
    });
    100.0 * (sum / count).exp()
}
