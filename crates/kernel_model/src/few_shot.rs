//! Calibrates a model for a new device with a few measurements of that device.
//!
//! Measured latencies of calls adapt the times that are transferred from other devices. Kernels
//! that were timed alone contain no launch overhead and are often hundreds. For these,
//! cross-validation chooses between the transfer and the device's own trees.

use std::collections::BTreeMap;

use schema::HardwareSpec;
use schema::median::float_median;

use super::adaptation::Adaptation;
use super::baseline::{Baseline, BaselinePoint, DeviceBaseline};
use super::boosting::{self, BoostingParams};
use super::error_interval::{ErrorInterval, quantiles};
use super::feature::{Features, roofline_ns};
use super::forest::Forest;
use super::launch_overhead::LaunchOverheads;
use super::measured::{Measured, Timed};
use super::model::{DeviceModel, DeviceResidual, KernelModel, Shared};
use super::roofline_slack::slack;
use super::{Error, split};

/// Minimum number of rows to calibrate a device with.
const ROWS_LEAST: usize = 5;
/// Weight of the mean over all operations when the launch overhead of one operation is estimated. A
/// measurement of that operation has weight 1.
const ALL: f64 = 0.3;
/// Number of folds of the cross-validation that chooses a [`Method`].
const FOLDS: u64 = 5;
/// Hyperparameters of a forest for one calibrated device. Few rows support only few leaves.
const OWN: BoostingParams =
    BoostingParams { rounds: 200, leaves: 7, rate: 0.06, rows: 4, features: 0.5 };

/// Adds a device to a model, calibrated by a few rows. A device that the model has already is
/// replaced.
///
/// # Errors
/// [`Error::TooFew`] if there are fewer than five rows of the model's kind, [`Error::Unlikely`] if
/// they take a hundred times longer or shorter than predicted.
pub fn calibrate(mut model: KernelModel, rows: &[Measured]) -> Result<KernelModel, Error> {
    let rows: Vec<Measured> =
        rows.iter().filter(|row| row.work.kind() == model.kind).copied().collect();
    let mut keys: Vec<&HardwareSpec> = rows.iter().map(|row| row.device).collect();
    keys.sort_by(|a, b| a.key.cmp(&b.key));
    keys.dedup_by(|a, b| a.key == b.key);
    for device in keys {
        let own: Vec<Measured> =
            rows.iter().filter(|row| row.device.key == device.key).copied().collect();
        let kernels: Vec<Measured> =
            own.iter().filter(|row| !row.timed.is_call()).copied().collect();
        let own = if kernels.is_empty() { own } else { kernels };
        if own.len() < ROWS_LEAST {
            let (kind, expected) = (model.kind.name(), ROWS_LEAST);
            return Err(Error::TooFew { kind, expected, got: own.len() });
        }
        check_unit(&model, &own)?;
        // A device must not teach its replacement.
        model.devices.retain(|old| old.device != device.key);
        let found = fit_device(model.shared(), &own);
        model.devices.push(found);
    }
    Ok(model)
}

/// Refuses rows whose median is so far from the prediction that they have another unit.
fn check_unit(model: &KernelModel, rows: &[Measured]) -> Result<(), Error> {
    let predict = |row: &Measured| match row.timed {
        Timed::Call => model.predict_latency(&row.work, row.device).mean_ns,
        // No launch hides a kernel, so any time from its roofline up to the prediction is likely.
        Timed::Kernel => {
            let most = model.price(&row.work, row.device).mean_ns;
            row.latency_ns.clamp(roofline_ns(&row.work, row.device).min(most), most)
        }
    };
    let median = |mut times: Vec<f64>| float_median(&mut times).unwrap_or(1.0);
    let expected_ns = median(rows.iter().map(predict).collect());
    let got_ns = median(rows.iter().map(|row| row.latency_ns).collect());
    if (0.01..=100.0).contains(&(got_ns / expected_ns)) {
        return Ok(());
    }
    let (kind, device) = (model.kind.name(), rows[0].device.key.clone().into_owned());
    Err(Error::Unlikely { kind, device, expected_ns, got_ns })
}

/// The method that predicts the times of a calibrated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// A forest trained on the device's own rows predicts the residual over its baseline.
    OwnTrees,
    /// The times of other devices are transferred and adapted.
    Adapted,
}

/// Fits the method that predicts left-out rows best. The errors of these rows are the interval.
fn fit_device(shared: Shared<'_>, rows: &[Measured]) -> DeviceModel {
    // A few latencies of calls do not support trees, and most of them are at the launch overhead.
    let methods = match rows[0].timed {
        Timed::Call => &[Method::Adapted][..],
        Timed::Kernel => &[Method::OwnTrees, Method::Adapted],
    };
    let fold = |row: &Measured| split::hash(&row.work, 1) % FOLDS;
    let log_errors = |method: Method| -> Vec<f64> {
        let errors_in_fold = |one: u64| {
            let (tested, others): (Vec<Measured>, Vec<Measured>) =
                rows.iter().partition(|row| fold(row) == one);
            let model = (!others.is_empty()).then(|| build(shared, method, &others));
            let error = move |row: Measured| {
                let latency = model.as_ref()?.latency(shared, &row.work, row.device);
                Some((row.latency_ns / latency.ns).ln())
            };
            tested.into_iter().filter_map(error).collect::<Vec<f64>>()
        };
        (0..FOLDS).flat_map(errors_in_fold).collect()
    };
    let sum = |errors: &[f64]| errors.iter().map(|error| error.abs()).sum::<f64>();
    let mut best = (methods[0], log_errors(methods[0]));
    for &method in &methods[1..] {
        let errors = log_errors(method);
        if sum(&errors) < sum(&best.1) {
            best = (method, errors);
        }
    }
    let (low, high) = quantiles(best.1.into_iter());
    DeviceModel { interval: ErrorInterval::flat(low, high), ..build(shared, best.0, rows) }
}

/// Fits one method to rows of one device.
fn build(shared: Shared<'_>, method: Method, rows: &[Measured]) -> DeviceModel {
    let (device, timed) = (rows[0].device, rows[0].timed);
    let floors = match timed {
        Timed::Call => {
            let usual = shared.devices.iter().map(|device| &device.floors);
            scale_overheads(&LaunchOverheads::median_of(usual), rows)
        }
        Timed::Kernel => shortest_kernels(rows),
    };
    let point = |row: &Measured| BaselinePoint {
        roofline_ns: roofline_ns(&row.work, row.device),
        floor_ns: floors.ns(row.work.name()),
        latency_ns: row.latency_ns,
    };
    let line = Baseline::fit(&rows.iter().map(point).collect::<Vec<_>>());
    let residual = match method {
        Method::OwnTrees => DeviceResidual::Own(own_trees(shared, &floors, line, rows)),
        Method::Adapted => DeviceResidual::Adapted(adaptation(shared, &floors, rows)),
    };
    DeviceModel {
        device: device.key.clone().into_owned(),
        rows: rows.len(),
        floors,
        timed,
        line,
        slack: slack(rows.iter().map(|row| (row, row.latency_ns))),
        is_adapted: true,
        residual,
        interval: ErrorInterval::flat(0.0, 0.0),
    }
}

fn adaptation(shared: Shared<'_>, floors: &LaunchOverheads, rows: &[Measured]) -> Adaptation {
    let residuals: Vec<Vec<f64>> = rows.iter().map(|row| shared.residuals(&row.work)).collect();
    Adaptation::fit(shared.transfer, floors, rows, &residuals)
}

/// Trains a forest on the residuals of the rows over the baseline.
fn own_trees(
    shared: Shared<'_>,
    floors: &LaunchOverheads,
    line: Baseline,
    rows: &[Measured],
) -> Forest {
    let example = |row: &Measured| {
        let baseline = DeviceBaseline { overhead_ns: floors.ns(row.work.name()), line };
        Features::example(row, row.latency_ns, baseline)
    };
    let table = shared.bins.training_rows(rows.iter().map(example));
    boosting::train_forest(&table, OWN, table.features as u64)
}

/// Finds the shortest kernel of each operation, which takes the place of the launch overhead.
fn shortest_kernels(rows: &[Measured]) -> LaunchOverheads {
    let mut shortest: BTreeMap<&str, f64> = BTreeMap::new();
    for row in rows {
        let least = shortest.entry(row.work.name()).or_insert(f64::INFINITY);
        *least = least.min(row.latency_ns);
    }
    LaunchOverheads::new(shortest.into_iter().map(|(name, ns)| (name.to_owned(), ns)))
}

/// Scales the launch overheads of other devices to this device, by rows whose latency is close to
/// the overhead. Rows of the same operation are used if there are any, otherwise rows of all
/// operations.
fn scale_overheads(usual: &LaunchOverheads, rows: &[Measured]) -> LaunchOverheads {
    let ratio = |row: &Measured| row.latency_ns / usual.ns(row.work.name());
    // A latency is pure overhead if the kernel is short and the call is not much slower than usual.
    let is_at_floor = |row: &&Measured| {
        roofline_ns(&row.work, row.device) < 0.3 * usual.ns(row.work.name()) && ratio(row) < 3.0
    };
    let factors = |name: Option<&str>| {
        let own = rows.iter().filter(|row| name.is_none_or(|name| row.work.name() == name));
        let mut factors: Vec<f64> = own.filter(is_at_floor).map(|row| ratio(row).ln()).collect();
        factors.sort_by(f64::total_cmp);
        let at = |at: usize| factors.get(at).copied();
        let middle = at(factors.len().saturating_sub(1) / 2).zip(at(factors.len() / 2));
        middle.map(|(low, high)| (f64::midpoint(low, high), factors.len() as f64))
    };
    let all = factors(None).map(|found| found.0);
    let all = all.unwrap_or_else(|| rows.iter().map(ratio).fold(1.0, f64::min).ln());
    usual.with_each(|name, ns| {
        let (own, count) = factors(Some(name)).unwrap_or((all, 0.0));
        ns * ((count * own + ALL * all) / (count + ALL)).exp()
    })
}
