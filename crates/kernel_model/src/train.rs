//! Trains the model of one kind of kernel on measured rows.
//!
//! The same rows give the same model, byte for byte, with any number of threads.

use super::Error;
use super::device_rows::{DeviceRows, by_device};
use super::error_interval::{self, ErrorInterval};
use super::forest::Forest;
use super::measured::Measured;
use super::model::{DeviceModel, DeviceResidual, KernelModel, Shared, Source};
use super::parallel::in_parallel;
use super::roofline_slack::device_slack;
use super::split::Part;
use super::train_forest::{FOLDS, TrainingRows, bins, fold_of, grow};
use super::transfer::DeviceTransfer;
use super::work::Kind;

/// Maximum size of a model file in bytes.
pub const MODEL_BYTES_MOST: usize = 300_000;
/// Minimum number of training rows of a device.
const ROWS_LEAST: usize = 200;
/// If a device has fewer calibration rows than this, its interval also uses cross-validation
/// residuals of the training rows. Quantiles of few rows may miss the nominal coverage by several
/// percent.
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
    let bins = bins(&all);
    let calibration_rows = |device: &DeviceRows| device.part(Part::Calibrate).count();
    let fewest = devices.iter().map(calibration_rows).min().unwrap_or(0);
    let folds = if fewest < CALIBRATION_FEW { FOLDS as usize } else { 0 };
    // Each device has one job for the forest of all rows, followed by one job per left-out fold.
    let grown = in_parallel(threads, devices.len() * (1 + folds), |job| {
        let (at, fold) = (job / (1 + folds), job % (1 + folds));
        let without = fold.checked_sub(1).map(|fold| TrainingRows::Without(fold as u64));
        grow(&devices[at], &bins, without.unwrap_or(TrainingRows::All))
    });
    let mut grown = grown.into_iter();
    let transfer = DeviceTransfer::train(&all, threads);
    let shared = Shared { bins: &bins, transfer: &transfer, devices: &[] };
    let build =
        |device| build_device_model(device, shared, grown.by_ref().take(1 + folds).collect());
    let devices: Vec<DeviceModel> = devices.iter().map(build).collect();
    let (least, most) = ranges(kind, rows);
    Ok(KernelModel { kind, sources, least, most, bins, transfer, devices })
}

/// Builds the model of a device from its forests. The first forest is trained on all rows. The
/// others, if any, belong to the folds of the cross-validation.
fn build_device_model(
    device: &DeviceRows,
    shared: Shared<'_>,
    mut forests: Vec<Forest>,
) -> DeviceModel {
    let forest = if forests.is_empty() { Forest::default() } else { forests.remove(0) };
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
    let error = |model: &DeviceModel, row: &Measured| {
        let latency = model.latency(shared, &row.work, row.device);
        (latency.above_floor, (device.latency_ns(row) / latency.ns).ln())
    };
    let calibration = |model: &DeviceModel| -> Vec<(f32, f64)> {
        device.part(Part::Calibrate).map(|row| error(model, row)).collect()
    };
    let without = |forest| DeviceModel { residual: DeviceResidual::Own(forest), ..model.clone() };
    let folds: Vec<DeviceModel> = forests.into_iter().map(without).collect();
    let mut errors_of_rows = calibration(&model);
    // Forests that lack a fold have larger errors than the forest of all rows. The ratio is
    // measured on calibration rows, which no forest was trained on.
    let nearer = error_interval::ratio(
        &errors_of_rows,
        &folds.iter().flat_map(calibration).collect::<Vec<_>>(),
    );
    for (fold, lacking) in (0..).zip(&folds) {
        let unseen = device.part(Part::Train).filter(|row| fold_of(row) == fold);
        let errors = unseen.map(|row| error(lacking, row));
        errors_of_rows.extend(errors.map(|(above_floor, off)| (above_floor, nearer * off)));
    }
    model.interval = ErrorInterval::from_rows(errors_of_rows);
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
