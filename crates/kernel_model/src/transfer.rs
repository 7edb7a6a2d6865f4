//! Predicts times on devices without measurements from the measured ones.
//!
//! All devices share a [`Formula`] and differ by their [`DeviceFactors`]. The factors of a new
//! device are halfway between two estimates that need no measurement of it: the mean over the
//! measured devices, and an interpolation between those with the next lower and the next higher
//! rate. With both of them, the time per unit of work never grows with the rate.

use schema::{HardwareSpec, median};
use serde::{Deserialize, Serialize};

use super::device_rows::DeviceRows;
use super::error_interval::{ErrorInterval, quantiles};
use super::formula::fit::{self, FormulaPoint};
use super::formula::{Amounts, DeviceFactors, Formula, compute_rate, memory_rate};
use super::latency::Latency;
use super::measured::Measured;
use super::model_shapes::resembles_layers;
use super::parallel::in_parallel;
use super::split::Part;
use super::work::Work;

/// A device whose long kernels take more than this many times the roofline lowered its clock, so
/// nothing is learned from it for other devices. P4 has 5.1 for linear layers, and no other device
/// has more than 3.4.
const THROTTLED: f64 = 4.0;
/// Maximum number of rows of a device that a formula is fitted to. More rows are thinned out
/// evenly.
const POINTS: usize = 1_500;

/// A measured device from whose times those of other devices are derived.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Teacher {
    pub device: HardwareSpec,
    pub factors: DeviceFactors,
}

/// The formula of one kind of kernel, and the measured devices that it was fitted to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceTransfer {
    pub formula: Formula,
    pub teachers: Vec<Teacher>,
    /// Interval of predictions for devices without measurements.
    pub interval: ErrorInterval,
}

impl DeviceTransfer {
    /// Fits a formula, and the interval that results when each device is left out in turn.
    pub fn train(devices: &[&DeviceRows], threads: usize) -> Self {
        let mut found = Self::fit(devices);
        if devices.len() > 1 {
            let errors = in_parallel(threads, devices.len(), |at| left_out_errors(devices, at));
            // Devices with many rows must not hide the errors of the others.
            let fewest = errors.iter().map(Vec::len).filter(|rows| *rows > 0).min().unwrap_or(0);
            let evenly = errors.iter().flat_map(|errors| {
                (0..fewest.min(errors.len())).map(|at| errors[at * errors.len() / fewest])
            });
            let (low, high) = quantiles(evenly);
            // The mean over n devices differs from their common value too, so a new device is off
            // by more than each of them is off the mean.
            let wider = (1.0 + 1.0 / devices.len() as f64).sqrt();
            found.interval = ErrorInterval::flat(wider * low, wider * high);
        }
        found
    }

    /// Fits a formula to the training rows of devices that did not lower their clock. The interval
    /// is a factor of e in both directions, because a single device shows nothing about others.
    fn fit(devices: &[&DeviceRows]) -> Self {
        let steady = devices.iter().filter(|device| device.slack() <= THROTTLED);
        let mut steady: Vec<&DeviceRows> = steady.copied().collect();
        if steady.is_empty() {
            steady = devices.to_vec();
        }
        let points: Vec<Vec<FormulaPoint>> = steady.iter().map(|one| points(one)).collect();
        let (formula, factors) = fit::fit(&points);
        let teacher = |(rows, factors): (&&DeviceRows, DeviceFactors)| Teacher {
            device: rows.device.clone(),
            factors,
        };
        let teachers = steady.iter().zip(factors).map(teacher).collect();
        Self { formula, teachers, interval: ErrorInterval::flat(-1.0, 1.0) }
    }

    /// Estimates the factors of a device without measurements.
    pub fn factors(&self, device: &HardwareSpec) -> DeviceFactors {
        let mut starts: Vec<f64> = self.teachers.iter().map(|one| one.factors.start).collect();
        DeviceFactors {
            start: median::float_median(&mut starts).unwrap_or(1.0),
            compute: self.factor(compute_rate, device, |factors| factors.compute),
            memory: self.factor(memory_rate, device, |factors| factors.memory),
        }
    }

    fn factor(
        &self,
        rate: fn(&HardwareSpec) -> f64,
        device: &HardwareSpec,
        of: fn(DeviceFactors) -> f64,
    ) -> f64 {
        let known: Vec<(f64, f64)> = self
            .teachers
            .iter()
            .map(|teacher| (rate(&teacher.device).ln(), of(teacher.factors).ln()))
            .collect();
        let mean = known.iter().map(|one| one.1).sum::<f64>() / known.len().max(1) as f64;
        (0.5 * (mean + interpolate(known, rate(device).ln()))).exp()
    }

    /// Predicts the latency of a call on a device with these factors.
    pub fn latency(
        &self,
        work: &Work,
        device: &HardwareSpec,
        factors: DeviceFactors,
        floor_ns: f64,
    ) -> Latency {
        let kernel_ns = self.formula.kernel_ns(&Amounts::new(work, device), factors);
        let above_ns = factors.start * floor_ns + kernel_ns;
        let above_floor = (above_ns / floor_ns).ln() as f32;
        Latency { ns: above_ns.max(floor_ns), floor_ns, above_floor, kernel_ns: Some(kernel_ns) }
    }

    /// Checks what prediction relies on, in a model that was read from a file.
    pub fn is_valid(&self) -> bool {
        let rates = |device: &HardwareSpec| [compute_rate(device), memory_rate(device)];
        let is_teacher_valid = |teacher: &Teacher| {
            teacher.factors.is_valid()
                && rates(&teacher.device).iter().all(|rate| *rate > 0.0 && rate.is_finite())
        };
        self.formula.is_valid()
            && self.interval.is_valid()
            && !self.teachers.is_empty()
            && self.teachers.iter().all(is_teacher_valid)
    }
}

/// Interpolates the logarithm of a factor at the logarithm of a rate.
///
/// Times per unit of work that grow from one device to a faster one are replaced by their mean, so
/// the time per unit never grows with the rate. Beyond the slowest and the fastest device, the
/// factor is constant.
fn interpolate(mut known: Vec<(f64, f64)>, rate: f64) -> f64 {
    known.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Sum and number of the times per unit of neighbors that are averaged, with their rates.
    let mut groups: Vec<(f64, f64, Vec<f64>)> = Vec::new();
    for (rate, factor) in known {
        groups.push((factor - rate, 1.0, vec![rate]));
        while let [.., slower, faster] = &groups[..]
            && slower.0 / slower.1 < faster.0 / faster.1
        {
            let Some((sum, count, rates)) = groups.pop() else { break };
            let Some(slower) = groups.last_mut() else { break };
            slower.0 += sum;
            slower.1 += count;
            slower.2.extend(rates);
        }
    }
    let mean = |group: &(f64, f64, Vec<f64>)| group.0 / group.1;
    let times: Vec<(f64, f64)> =
        groups.iter().flat_map(|group| group.2.iter().map(|rate| (*rate, mean(group)))).collect();
    let after = times.partition_point(|one| one.0 < rate);
    match (after.checked_sub(1).map(|at| times[at]), times.get(after)) {
        (Some((slower, slower_time)), Some((faster, faster_time))) => {
            let share = (rate - slower) / (faster - slower);
            slower_time + share * (faster_time - slower_time) + rate
        }
        (Some((edge, time)), None) | (None, Some(&(edge, time))) => time + edge,
        (None, None) => 0.0,
    }
}

fn points(device: &DeviceRows) -> Vec<FormulaPoint> {
    let step = device.part(Part::Train).count().div_ceil(POINTS).max(1);
    let point = |row: &Measured| FormulaPoint {
        amounts: Amounts::new(&row.work, device.device),
        floor_ns: device.floor_ns(row),
        latency_ns: device.latency_ns(row),
    };
    device.part(Part::Train).step_by(step).map(point).collect()
}

/// Computes `ln(measured ÷ predicted)` for kernels of a device whose rows were not used. The
/// kernels are the calibration rows that are most similar to layers of real models.
fn left_out_errors(devices: &[&DeviceRows], at: usize) -> Vec<f64> {
    let others: Vec<&DeviceRows> =
        (0..devices.len()).filter(|one| *one != at).map(|one| devices[one]).collect();
    let (transfer, device) = (DeviceTransfer::fit(&others), devices[at]);
    let factors = transfer.factors(device.device);
    let floors = super::device_rows::usual_floors(&others);
    let rows = device.part(Part::Calibrate).filter(|row| device.is_above_floor(row));
    let rows: Vec<&Measured> = rows.collect();
    let error = |row: &Measured| {
        let floor_ns = floors.ns(row.work.name());
        let latency = transfer.latency(&row.work, device.device, factors, floor_ns);
        (device.latency_ns(row) / latency.ns).ln()
    };
    resembles_layers(&rows).into_iter().map(error).collect()
}

#[cfg(test)]
mod tests;
