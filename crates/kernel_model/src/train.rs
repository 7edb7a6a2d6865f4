//! Trains the model of one kind of kernel on measured rows.
//!
//! The same rows give the same model, byte for byte, with any number of threads.

use schema::HardwareSpec;

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
use super::split::{self, Part};
use super::transfer::DeviceTransfer;
use super::work::Kind;

/// Maximum size of a model file in bytes.
pub const MODEL_BYTES_MOST: usize = 300_000;
/// Minimum number of training rows of a device.
const ROWS_LEAST: usize = 200;
/// Hyperparameters of the forest of one device.
const OWN: BoostingParams =
    BoostingParams { rounds: 450, leaves: 31, rate: 0.06, rows: 8, features: 0.8 };
/// Number of parts of the training rows. Each is predicted by a forest that was trained on the
/// others.
const FOLDS: usize = 10;
/// If a device has fewer calibration rows than this, its interval also holds the errors of the
/// training rows. Quantiles of few rows may miss the nominal coverage by several percent.
const CALIBRATION_FEW: usize = 500;

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
    let features: Vec<(Features, f32)> =
        all.iter().flat_map(|device| examples(device, 0)).collect();
    let features: Vec<&[f32]> = features.iter().map(|(features, _)| features.as_ref()).collect();
    let bins = Bins::from_rows(&features, BINS_MOST);
    let calibration_rows = |device: &DeviceRows| device.part(Part::Calibrate).count();
    let fewest = devices.iter().map(calibration_rows).min().unwrap_or(0);
    // Each device has a forest of all rows, and one without each fold if its rows are few.
    let count = if fewest < CALIBRATION_FEW { 1 + FOLDS } else { 1 };
    let forests = in_parallel(threads, devices.len() * count, |job| {
        let table = bins.training_rows(examples(&devices[job / count], job % count));
        boosting::train_forest(&table, OWN, bins.features() as u64)
    });
    let transfer = DeviceTransfer::train(&all, threads);
    let shared = Shared { bins: &bins, transfer: &transfer, devices: &[] };
    let built = devices.iter().zip(forests.chunks(count));
    let devices =
        built.map(|(device, forests)| build_device_model(device, shared, forests)).collect();
    let (least, most) = ranges(kind, rows);
    Ok(KernelModel { kind, sources, least, most, bins, transfer, devices })
}

impl KernelModel {
    /// Returns the model that the other devices' rows give. `rows` are those of all devices. The
    /// forests of the others stay, because they depend only on their own device.
    #[must_use]
    pub fn without_device(&self, rows: &[Measured], device: &HardwareSpec) -> Self {
        let mut model = self.clone();
        model.devices.retain(|own| own.device != device.key && !own.is_adapted);
        let rows = by_device(model.kind, rows);
        let others = rows.iter().filter(|other| model.find_device(other.device).is_some());
        model.transfer = DeviceTransfer::train(&others.collect::<Vec<_>>(), 1);
        model
    }
}

/// Lists the features and residuals of a device's training rows, without those of a fold.
fn examples(device: &DeviceRows, without: usize) -> impl Iterator<Item = (Features, f32)> + '_ {
    let rows = device.part(Part::Train).filter(move |row| fold_of(row) != without);
    rows.map(|row| device.example(row))
}

/// Assigns a row to one of the folds from 1 by a hash of its operation and sizes.
fn fold_of(row: &Measured) -> usize {
    1 + split::hash(&row.work, 1) as usize % FOLDS
}

/// Builds the model of a device from its forests: the one of all rows, then those without a fold,
/// if any. Its interval holds the errors of rows that the predicting forest has not seen.
fn build_device_model(device: &DeviceRows, shared: Shared<'_>, forests: &[Forest]) -> DeviceModel {
    let build = |forest: &Forest| DeviceModel {
        device: device.device.key.clone().into_owned(),
        rows: device.part(Part::Train).count(),
        floors: device.floors_ns(),
        timed: device.rows.first().map(|row| row.timed).unwrap_or_default(),
        line: device.line,
        slack: device.slack(),
        is_adapted: false,
        residual: DeviceResidual::Own(forest.clone()),
        interval: ErrorInterval::flat(0.0, 0.0),
    };
    let errors = |(fold, forest): (usize, &Forest)| {
        let model = build(forest);
        let part = if fold == 0 { Part::Calibrate } else { Part::Train };
        let unseen = device.part(part).filter(move |row| fold == 0 || fold_of(row) == fold);
        let error = move |row: &Measured| {
            let latency = model.latency(shared, &row.work, row.device);
            (latency.above_floor, (device.latency_ns(row) / latency.ns).ln())
        };
        unseen.map(error).collect::<Vec<(f32, f64)>>()
    };
    let interval = ErrorInterval::from_rows(forests.iter().enumerate().flat_map(errors).collect());
    DeviceModel { interval, ..build(&forests[0]) }
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
