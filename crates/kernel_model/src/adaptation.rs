//! Adapts transferred times to a device by a few of its measurements.

use schema::HardwareSpec;
use serde::{Deserialize, Serialize};

use super::formula::fit::FormulaPoint;
use super::formula::{Amounts, DeviceFactors};
use super::latency::Latency;
use super::launch_overhead::LaunchOverheads;
use super::measured::Measured;
use super::transfer::DeviceTransfer;
use super::work::Work;

/// Weight of the transferred factors in a fit: the square of the logarithm by which a fitted factor
/// differs counts as much as this many errors of rows.
const PRIOR: f64 = 0.3;
/// Weight of the difference between the transferred and the fitted start.
const START_PRIOR: f64 = 1.0;
/// Steps of the search for factors, in logarithms.
const STEPS: [f64; 6] = [0.4, 0.2, 0.1, 0.05, 0.02, 0.01];
/// Error below which the loss is quadratic instead of absolute.
const NEAR: f64 = 0.02;
/// Weight of equal weights of all devices in the fit of [`Adaptation::weights`], in squared errors.
const EQUAL: f64 = 0.3;
/// Number of rounds in which each weight is fitted to the others.
const ROUNDS: usize = 50;

/// The transferred time of a device, with constants that were fitted to a few of its rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adaptation {
    factors: DeviceFactors,
    /// For each device of the transfer, the share of its residual over the formula that this
    /// device has too.
    weights: Vec<f64>,
}

impl Adaptation {
    /// Fits factors first, then the residuals of other devices. `residuals` has those of each row.
    pub fn fit(
        transfer: &DeviceTransfer,
        floors: &LaunchOverheads,
        rows: &[Measured],
        residuals: &[Vec<f64>],
    ) -> Self {
        let factors = fit_factors(transfer, floors, rows);
        let own = |row: &Measured| {
            let floor_ns = floors.ns(row.work.name());
            (row.latency_ns / transfer.latency(&row.work, row.device, factors, floor_ns).ns).ln()
        };
        let own: Vec<f64> = rows.iter().map(own).collect();
        Self { factors, weights: fit_weights(residuals, &own, transfer.teachers.len()) }
    }

    /// Predicts the latency of a call by the formula with the factors of this device, and by the
    /// residuals of other devices.
    pub fn latency(
        &self,
        transfer: &DeviceTransfer,
        work: &Work,
        device: &HardwareSpec,
        floor_ns: f64,
        residuals: &[f64],
    ) -> Latency {
        let residual: f64 =
            self.weights.iter().zip(residuals).map(|(one, other)| one * other).sum();
        transfer.latency(work, device, self.factors, floor_ns).times(residual.exp())
    }

    /// Checks the constants of a model that was read from a file.
    pub fn is_valid(&self, teachers: usize) -> bool {
        let is_weight = |weight: &f64| (0.0..=1.0).contains(weight);
        self.factors.is_valid()
            && self.weights.len() == teachers
            && self.weights.iter().all(is_weight)
    }
}

/// Searches the factors with the smallest sum of errors, starting with the transferred ones.
fn fit_factors(
    transfer: &DeviceTransfer,
    floors: &LaunchOverheads,
    rows: &[Measured],
) -> DeviceFactors {
    let transferred = transfer.factors(rows[0].device);
    let point = |row: &Measured| FormulaPoint {
        amounts: Amounts::new(&row.work, row.device),
        floor_ns: floors.ns(row.work.name()),
        latency_ns: row.latency_ns,
    };
    let points: Vec<FormulaPoint> = rows.iter().map(point).collect();
    let loss = |factors: DeviceFactors| {
        let error = |point: &FormulaPoint| {
            let predicted = point.predict_ns(&transfer.formula, factors);
            (predicted / point.latency_ns).ln().hypot(NEAR)
        };
        let compute = (factors.compute / transferred.compute).ln();
        let memory = (factors.memory / transferred.memory).ln();
        let prior = compute.powi(2) + memory.powi(2) + 0.5 * (compute - memory).powi(2);
        let start = (factors.start - transferred.start).abs();
        points.iter().map(error).sum::<f64>() + PRIOR * prior + START_PRIOR * start
    };
    let mut best = (transferred, loss(transferred));
    for step in STEPS {
        // Every accepted change reduces the loss, so the search ends.
        loop {
            let now = best.0;
            let moves = [(0.0, step, 0.0), (0.0, 0.0, step), (0.0, step, step), (step, 0.0, 0.0)];
            for (start, compute, memory) in moves {
                for sign in [-1.0, 1.0] {
                    let factors = DeviceFactors {
                        start: (now.start + sign * start).clamp(0.0, 1.0),
                        compute: now.compute * (sign * compute).exp(),
                        memory: now.memory * (sign * memory).exp(),
                    };
                    let loss = loss(factors);
                    if loss < best.1 {
                        best = (factors, loss);
                    }
                }
            }
            if best.0 == now {
                break;
            }
        }
    }
    best.0
}

/// Fits weights from 0 to 1 of the residuals of other devices in each row to those of this device.
fn fit_weights(residuals: &[Vec<f64>], own: &[f64], devices: usize) -> Vec<f64> {
    let equal = 1.0 / devices.max(1) as f64;
    let mut weights = vec![equal; devices];
    for _ in 0..ROUNDS {
        for at in 0..devices {
            let (mut product, mut square) = (EQUAL * equal, EQUAL);
            for (others, own) in residuals.iter().zip(own) {
                let sum: f64 = others.iter().zip(&weights).map(|(one, weight)| one * weight).sum();
                product += others[at] * (own - sum + weights[at] * others[at]);
                square += others[at] * others[at];
            }
            weights[at] = (product / square).clamp(0.0, 1.0);
        }
    }
    weights
}
