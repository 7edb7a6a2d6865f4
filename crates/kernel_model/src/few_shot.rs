//! Calibrates a model for a new device with a few measurements of that device.
//!
//! Measured latencies of calls determine the launch overhead and how the device's kernels differ
//! from the shared forest. Kernels that were timed alone contain no launch overhead, so their
//! device gets its own baseline. Cross-validation then chooses whether the device's own trees or
//! the shared forest predict the residual.

use std::collections::BTreeMap;

use schema::HardwareSpec;

use super::baseline::{Baseline, BaselinePoint, DeviceBaseline};
use super::bins::Bins;
use super::boosting::{self, BinnedRows, BoostingParams};
use super::correction::{Correction, share};
use super::error_interval::{ErrorInterval, quantiles};
use super::feature::{Features, MOST, roofline_ns};
use super::forest::Forest;
use super::latency::{Latency, latency};
use super::measured::{Measured, Timed};
use super::model::{DeviceModel, DeviceResidual, KernelModel, LaunchOverheads};
use super::roofline_slack::slack;
use super::split;
use super::{Error, Kind};

/// Minimum number of rows to calibrate a device with.
const ROWS_LEAST: usize = 5;
/// Weight of the mean over all operations when the launch overhead of one operation is estimated. A
/// measurement of that operation has weight 1.
const ALL: f64 = 0.3;
/// Number of folds of the cross-validation that chooses a [`Residual`].
const FOLDS: u64 = 5;
/// Hyperparameters of a forest for one calibrated device. Few rows support only few leaves.
const OWN: BoostingParams =
    BoostingParams { rounds: 200, leaves: 7, rate: 0.06, rows: 4, features: 0.5 };

/// The forest that is trained on all devices, with the bins of its features.
#[derive(Clone, Copy, Debug)]
pub struct SharedForest<'a> {
    pub bins: &'a Bins,
    pub pooled: &'a Forest,
}

/// Adds a device to a model, calibrated by a few rows. A device that the model has already is
/// replaced.
///
/// # Errors
/// [`Error::TooFew`] if there are fewer than five rows of the model's kind.
pub fn calibrate(mut model: KernelModel, rows: &[Measured]) -> Result<KernelModel, Error> {
    let rows: Vec<Measured> =
        rows.iter().filter(|row| row.work.kind() == model.kind).copied().collect();
    let mut keys: Vec<&HardwareSpec> = rows.iter().map(|row| row.device).collect();
    keys.sort_by(|a, b| a.key.cmp(&b.key));
    keys.dedup_by(|a, b| a.key == b.key);
    let usual = LaunchOverheads::median_of(model.devices.iter().map(|device| &device.floors));
    let line = Baseline::median(model.devices.iter().map(|device| device.line));
    for device in keys {
        let own: Vec<Measured> =
            rows.iter().filter(|row| row.device.key == device.key).copied().collect();
        let kernels: Vec<Measured> =
            own.iter().filter(|row| !row.timed.is_call()).copied().collect();
        let trees = SharedForest { bins: &model.bins, pooled: &model.pooled };
        let found = if kernels.is_empty() {
            fit_device(model.kind, trees, &usual, line, &own)?
        } else {
            fit_kernel_times(model.kind, trees, &kernels)?
        };
        model.devices.retain(|old| old.device != device.key);
        model.devices.push(found);
    }
    Ok(model)
}

/// Fits launch overhead, baseline and correction of a device to a few measured latencies of calls.
pub fn fit_device(
    kind: Kind,
    trees: SharedForest<'_>,
    usual: &LaunchOverheads,
    line: Baseline,
    rows: &[Measured],
) -> Result<DeviceModel, Error> {
    require_rows(kind, rows)?;
    let floors = scale_overheads(usual, rows);
    let point = |row: &Measured| BaselinePoint {
        roofline_ns: roofline_ns(&row.work, row.device),
        floor_ns: floors.ns(row.work.name()),
        latency_ns: row.latency_ns,
    };
    let line = line.fit_near(&rows.iter().map(point).collect::<Vec<_>>());
    let found: Vec<(Latency, f64)> = rows
        .iter()
        .map(|row| {
            let floor = DeviceBaseline { overhead_ns: floors.ns(row.work.name()), line };
            (latency(trees.bins, trees.pooled, &row.work, row.device, floor), row.latency_ns)
        })
        .collect();
    let correction = fit_correction(&found);
    // Predict each row with a correction fitted to the other rows, which shows the error on new
    // rows.
    let left_out = (0..found.len()).map(|at| {
        let mut others = found.clone();
        let (one, measured) = others.remove(at);
        (measured / fit_correction(&others).applied(one).ns).ln()
    });
    let (low, high) = quantiles(left_out);
    Ok(DeviceModel {
        device: rows[0].device.key.clone().into_owned(),
        rows: rows.len(),
        floors,
        timed: Timed::Call,
        line,
        slack: slack(rows.iter().map(|row| (row, row.latency_ns))),
        residual: DeviceResidual::Adapted(correction),
        interval: ErrorInterval::flat(low, high),
    })
}

fn require_rows(kind: Kind, rows: &[Measured]) -> Result<(), Error> {
    let (kind, expected, got) = (kind.name(), ROWS_LEAST, rows.len());
    if got < expected { Err(Error::TooFew { kind, expected, got }) } else { Ok(()) }
}

/// The method that predicts the residual over the baseline of kernel times.
#[derive(Clone, Copy, Debug)]
enum Residual {
    None,
    /// A forest trained on the device's own rows predicts the residual.
    Own,
    /// The shared forest predicts the residual, with a correction.
    Pooled,
}

/// Fits a device whose kernels were timed alone. Cross-validation chooses the residual method.
fn fit_kernel_times(
    kind: Kind,
    trees: SharedForest<'_>,
    rows: &[Measured],
) -> Result<DeviceModel, Error> {
    require_rows(kind, rows)?;
    let fold = |row: &Measured| split::hash(&row.work, 1) % FOLDS;
    let without = |one: u64| rows.iter().filter(move |row| fold(row) != one);
    let left_out: Vec<(u64, DeviceModel)> = (0..FOLDS)
        .map(|one| (one, fit_baseline(&without(one).copied().collect::<Vec<_>>(), rows[0].device)))
        .collect();
    let log_errors = |residual: Residual| -> Vec<f64> {
        let fold_residuals = |(one, base): &(u64, DeviceModel)| {
            let others: Vec<Measured> = without(*one).copied().collect();
            let model = base.clone().with_residual(residual, trees, &others);
            let tested = rows.iter().filter(|row| fold(row) == *one);
            tested.map(|row| log_error(&model, row, trees)).collect::<Vec<_>>()
        };
        left_out.iter().flat_map(fold_residuals).collect()
    };
    let error = |errors: &[f64]| errors.iter().map(|error| error.abs()).sum::<f64>();
    // A residual is used only if it has a smaller cross-validation error than the baseline alone.
    let mut best = (Residual::None, log_errors(Residual::None));
    for residual in [Residual::Own, Residual::Pooled] {
        let errors = log_errors(residual);
        if error(&errors) < error(&best.1) {
            best = (residual, errors);
        }
    }
    let model = fit_baseline(rows, rows[0].device).with_residual(best.0, trees, rows);
    let (low, high) = quantiles(best.1.into_iter());
    Ok(DeviceModel { interval: ErrorInterval::flat(low, high), ..model })
}

fn log_error(model: &DeviceModel, row: &Measured, trees: SharedForest<'_>) -> f64 {
    let latency = model.latency(trees.bins, Some(trees.pooled), &row.work, row.device);
    (row.latency_ns / latency.ns).ln()
}

/// Fits a baseline in which the shortest kernel of each operation takes the place of the launch
/// overhead.
fn fit_baseline(rows: &[Measured], device: &HardwareSpec) -> DeviceModel {
    let mut shortest: BTreeMap<&str, f64> = BTreeMap::new();
    for row in rows {
        let least = shortest.entry(row.work.name()).or_insert(f64::INFINITY);
        *least = least.min(row.latency_ns);
    }
    let floors = LaunchOverheads::new(shortest.into_iter().map(|(name, ns)| (name.to_owned(), ns)));
    let point = |row: &Measured| BaselinePoint {
        roofline_ns: roofline_ns(&row.work, row.device),
        floor_ns: floors.ns(row.work.name()),
        latency_ns: row.latency_ns,
    };
    let line = Baseline::fit(&rows.iter().map(point).collect::<Vec<_>>());
    DeviceModel {
        device: device.key.clone().into_owned(),
        rows: rows.len(),
        floors,
        timed: Timed::Kernel,
        line,
        slack: slack(rows.iter().map(|row| (row, row.latency_ns))),
        residual: DeviceResidual::Own(Forest::default()),
        interval: ErrorInterval::flat(0.0, 0.0),
    }
}

impl DeviceModel {
    /// Adds a residual of the chosen kind to the model.
    fn with_residual(
        mut self,
        residual: Residual,
        trees: SharedForest<'_>,
        rows: &[Measured],
    ) -> Self {
        match residual {
            Residual::None => {}
            Residual::Own => self.residual = DeviceResidual::Own(self.own_trees(trees.bins, rows)),
            Residual::Pooled => {
                // Predict without a correction first, then fit the correction to the errors of
                // these predictions.
                let none = Correction { middle: 0.0, shift: 0.0, slope: 0.0 };
                self.residual = DeviceResidual::Adapted(none);
                let predict = |row: &Measured| {
                    let latency =
                        self.latency(trees.bins, Some(trees.pooled), &row.work, row.device);
                    (latency, row.latency_ns)
                };
                let found: Vec<(Latency, f64)> = rows.iter().map(predict).collect();
                self.residual = DeviceResidual::Adapted(fit_correction(&found));
            }
        }
        self
    }

    /// Trains a forest on the residuals of the rows over the baseline.
    fn own_trees(&self, bins: &Bins, rows: &[Measured]) -> Forest {
        let features = bins.ends().len();
        let mut table = BinnedRows { features, bins: Vec::new(), targets: Vec::new() };
        let mut placed = [0; MOST];
        for row in rows {
            let floor_ns = self.floors.ns(row.work.name());
            let features_of_row = Features::compute(
                &row.work,
                row.device,
                DeviceBaseline { overhead_ns: floor_ns, line: self.line },
            );
            bins.place(features_of_row.values(), &mut placed);
            table.bins.extend_from_slice(&placed[..features]);
            let base = self.line.ns(roofline_ns(&row.work, row.device), floor_ns);
            table.targets.push((row.latency_ns / base).ln() as f32);
        }
        boosting::train_forest(&table, OWN, features as u64)
    }
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

/// Fits a correction to pairs of predicted and measured latency by ridge regression.
fn fit_correction(rows: &[(Latency, f64)]) -> Correction {
    const SHIFT_RIDGE: f64 = 0.3;
    const SLOPE_RIDGE: f64 = 8.0;
    let share = |row: &(Latency, f64)| share(&row.0);
    // Rows at the launch overhead say nothing about kernels, so a row counts by its share of kernel
    // time.
    let weight: f64 = rows.iter().map(share).sum();
    if weight <= 0.0 {
        return Correction { middle: 0.0, shift: 0.0, slope: 0.0 };
    }
    let above = |row: &(Latency, f64)| f64::from(row.0.above_floor);
    let middle = rows.iter().map(|row| share(row) * above(row)).sum::<f64>() / weight;
    let (mut aa, mut ab, mut bb, mut a, mut b) = (SHIFT_RIDGE, 0.0, SLOPE_RIDGE, 0.0, 0.0);
    for row in rows {
        let (one, two) = (share(row), share(row) * (above(row) - middle));
        let off = (row.1 / row.0.ns).ln();
        aa += one * one;
        ab += one * two;
        bb += two * two;
        a += one * off;
        b += two * off;
    }
    let determinant = aa * bb - ab * ab;
    let (shift, slope) = ((a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant);
    Correction { middle, shift, slope }
}
