//! Trains the model of one kind of kernel on measured rows.
//!
//! The same rows give the same model, byte for byte, with any number of threads.

use super::Error;
use super::bins::{BINS_MOST, Bins};
use super::boosting::{self, BoostingParams};
use super::device_rows::{DeviceRows, by_device};
use super::error_interval::ErrorInterval;
use super::feature::Features;
use super::forest::Forest;
use super::measured::Measured;
use super::model::{DeviceModel, DeviceResidual, KernelModel, Shared, Source};
use super::parallel::in_parallel;
use super::roofline_slack::device_slack;
use super::split::Part;
use super::transfer::DeviceTransfer;
use super::work::Kind;

/// Maximum size of a model file in bytes.
pub const MODEL_BYTES_MOST: usize = 300_000;
/// Minimum number of training rows of a device.
const ROWS_LEAST: usize = 200;
/// Hyperparameters of the forest of one device.
const OWN: BoostingParams =
    BoostingParams { rounds: 450, leaves: 31, rate: 0.06, rows: 8, features: 0.8 };
/// Trains the model of one kind on rows of any devices. Rows of other kinds are ignored.
///
/// # Errors
/// [`Error::TooFew`] if a device has fewer than 200 training rows.
pub fn train(
    kind: Kind,
    rows: &[Measured],
    sources: Vec<Source>,
    threads: usize,
) -> Result<KernelModel, Error> {
    let devices = by_device(kind, rows);
    let training_rows = |device: &DeviceRows| device.part(Part::Train).count();
    let fewest = devices.iter().map(training_rows).min().unwrap_or(0);
    if fewest < ROWS_LEAST {
        let (kind, expected) = (kind.name(), ROWS_LEAST);
        return Err(Error::TooFew { kind, expected, got: fewest });
    }
    let all: Vec<&DeviceRows> = devices.iter().collect();
    let features: Vec<(Features, f32)> = all.iter().flat_map(|device| examples(device)).collect();
    let features: Vec<&[f32]> = features.iter().map(|(features, _)| features.as_ref()).collect();
    let bins = Bins::from_rows(&features, BINS_MOST);
    let forests = in_parallel(threads, devices.len(), |at| {
        let table = bins.training_rows(examples(&devices[at]));
        boosting::train_forest(&table, OWN, bins.features() as u64)
    });
    let transfer = DeviceTransfer::train(&all, threads);
    let shared = Shared { bins: &bins, transfer: &transfer, devices: &[] };
    let built = devices.iter().zip(forests);
    let devices =
        built.map(|(device, forest)| build_device_model(device, shared, forest)).collect();
    let (least, most) = ranges(kind, rows);
    Ok(KernelModel { kind, sources, least, most, bins, transfer, devices })
}

/// Lists the features and residuals of a device's training rows.
fn examples(device: &DeviceRows) -> impl Iterator<Item = (Features, f32)> + '_ {
    device.part(Part::Train).map(|row| device.example(row))
}

/// Builds the model of a device from its forest. Its interval holds the errors of the calibration
/// rows.
fn build_device_model(device: &DeviceRows, shared: Shared<'_>, forest: Forest) -> DeviceModel {
    let mut model = DeviceModel {
        device: device.device.key.clone().into_owned(),
        rows: device.part(Part::Train).count(),
        floors: device.floors_ns(),
        timed: device.rows.first().map(|row| row.timed).unwrap_or_default(),
        line: device.line,
        slack: device_slack(device),
        is_adapted: false,
        residual: DeviceResidual::Own(forest),
        interval: ErrorInterval::flat(0.0, 0.0),
    };
    let error = |row: &Measured| {
        let latency = model.latency(shared, &row.work, row.device);
        (latency.above_floor, (device.latency_ns(row) / latency.ns).ln())
    };
    let errors = device.part(Part::Calibrate).map(error).collect();
    model.interval = ErrorInterval::from_rows(errors);
    model
}

/// Finds the smallest and largest value of each size over the training rows.
fn ranges(kind: Kind, rows: &[Measured]) -> (Vec<u64>, Vec<u64>) {
    let count = kind.sizes().len();
    let (mut least, mut most) = (vec![u64::MAX; count], vec![0; count]);
    let of_this_kind = rows.iter().filter(|row| row.work.kind() == kind);
    for row in of_this_kind.filter(|row| Part::for_work(&row.work) == Part::Train) {
        for (at, &size) in row.work.sizes().iter().enumerate() {
            least[at] = size.min(least[at]);
            most[at] = size.max(most[at]);
        }
    }
    (least, most)
}

#[cfg(test)]
mod tests;
