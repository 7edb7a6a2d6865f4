//! Errors of models on held-out rows, beside the roofline's.

use serde::Serialize;

use super::device_rows::{DeviceRows, by_device};
use super::error_metrics::{gmae, mape};
use super::feature::roofline_ns;
use super::grid::MlpSetting;
use super::measured::Measured;
use super::model::KernelModel;
use super::peaks::{self, MeasuredPeaks};
use super::split::Part;

/// Errors of one kind on one device.
#[derive(Clone, Debug, Serialize)]
pub struct KernelRow {
    pub kind: &'static str,
    pub device: String,
    /// Rows above the floor, which errors are of; of kinds that wait for memory only those whose
    /// kernels are long enough to show.
    pub rows: usize,
    /// Geometric mean of the absolute errors of max(roofline, floor).
    pub roofline_gmae_pct: f64,
    pub roofline_mape_pct: f64,
    /// The same of the published roofline, whose peaks are those that the tables reached.
    pub measured_peak_gmae_pct: f64,
    pub measured_peak_mape_pct: f64,
    /// Of the published MLP, where one was trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlp: Option<MlpRow>,
    /// Geometric mean of the absolute errors of the model.
    pub gmae_pct: f64,
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

/// The errors of a chosen MLP.
#[derive(Clone, Debug, Serialize)]
pub struct MlpRow {
    /// Its shape and rule.
    #[serde(flatten)]
    pub setting: MlpSetting,
    /// After which of its epochs it was best on the calibration rows.
    pub epoch: usize,
    /// Geometric mean of its absolute errors there, of rows at the floor too.
    pub calibrate_gmae_pct: f64,
    /// Geometric mean of its absolute errors on test rows above the floor.
    pub gmae_pct: f64,
    pub mape_pct: f64,
}

/// By device, on the rows of one part: [`Part::Test`] to judge a model, [`Part::Calibrate`] to
/// choose how models are made.
#[must_use]
pub fn evaluate_model(model: &KernelModel, rows: &[Measured], part: Part) -> Vec<KernelRow> {
    let peaks = peaks::peaks_by_device(rows);
    let of = |device: &DeviceRows| row(model, device, part, peaks[&*device.device.key]);
    by_device(model.kind, rows).iter().map(of).collect()
}

fn row(model: &KernelModel, device: &DeviceRows, part: Part, peaks: MeasuredPeaks) -> KernelRow {
    let tested: Vec<&Measured> = device.part(part).collect();
    let above = |floors: f64| {
        let is_far = move |row: &&Measured| device.latency_ns(row) > floors * device.floor_ns(row);
        tested.iter().copied().filter(|row| device.is_above_floor(row)).filter(is_far)
    };
    let over_floor =
        |row: &Measured, ns: f64| (ns.max(device.floor_ns(row)), device.latency_ns(row));
    let roofline = above(1.0).map(|row| over_floor(row, roofline_ns(&row.work, row.device)));
    let measured_peak = above(1.0).map(|row| over_floor(row, peaks.roofline_ns(&row.work)));
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
        measured_peak_gmae_pct: gmae(measured_peak.clone()),
        measured_peak_mape_pct: mape(measured_peak),
        mlp: None,
        gmae_pct: gmae(above(1.0).map(predicted)),
        mape_pct: mape(above(1.0).map(predicted)),
        kernel_mape_pct: mape(above(2.0).map(predicted)),
        covered_pct: 100.0 * covered.count() as f64 / tested.len().max(1) as f64,
        floor_ns: floor.ns,
        drift_ns_per_row: floor.drift_ns,
    }
}
