//! Fits a formula to measurements of several devices by gradient descent on the logarithms of all
//! coefficients and factors, so that none of them becomes negative.

use super::{
    ALGORITHMS, AMOUNTS, Amounts, COMPUTE, DeviceFactors, Formula, SMOOTH, smooth_minimum,
};

/// Number of steps of gradient descent (Adam), and its largest step, which falls along a cosine.
const STEPS: u32 = 600;
const STEP: f64 = 0.1;
/// Decay rates of Adam's means of gradients and of their squares.
const MEAN: f64 = 0.9;
const SQUARE: f64 = 0.99;
/// Error below which the loss is quadratic instead of absolute.
const NEAR: f64 = 0.02;
/// Weight of the squared logarithms of a device's factors, in errors of a row.
const RIDGE: f64 = 0.02;
/// Number of parameters of a device, which precede the coefficients.
const DEVICE: usize = 3;
/// Initial value of all coefficients.
const INITIAL: f64 = 0.3;

/// A measurement that a formula is fitted to, in nanoseconds.
#[derive(Clone, Debug)]
pub struct FormulaPoint {
    pub amounts: Amounts,
    /// Launch overhead of the operation.
    pub floor_ns: f64,
    pub latency_ns: f64,
}

impl FormulaPoint {
    /// Predicts the latency: the launch overhead, or the kernel that starts during it.
    pub fn predict_ns(&self, formula: &Formula, factors: DeviceFactors) -> f64 {
        let kernel_ns = formula.kernel_ns(&self.amounts, factors);
        (factors.start * self.floor_ns + kernel_ns).max(self.floor_ns)
    }
}

/// Fits the coefficients, and the factors of each device. Devices have equal weights.
pub fn fit(devices: &[Vec<FormulaPoint>]) -> (Formula, Vec<DeviceFactors>) {
    let count = DEVICE * devices.len() + ALGORITHMS * AMOUNTS;
    let mut parameters = vec![INITIAL.ln(); count];
    for device in parameters[..DEVICE * devices.len()].chunks_exact_mut(DEVICE) {
        device.copy_from_slice(&[1.0, 0.0, 0.0]);
    }
    let (mut means, mut squares) = (vec![0.0; count], vec![0.0; count]);
    for step in 1..=STEPS {
        let gradient = gradient(devices, &parameters);
        let progress = f64::from(step) / f64::from(STEPS);
        let size = STEP * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos());
        // Both means start at 0, so they are divided by the weight that gradients have so far.
        let (mean_weight, square_weight) =
            (1.0 - MEAN.powi(step as i32), 1.0 - SQUARE.powi(step as i32));
        for (at, slope) in gradient.into_iter().enumerate() {
            means[at] = MEAN * means[at] + (1.0 - MEAN) * slope;
            squares[at] = SQUARE * squares[at] + (1.0 - SQUARE) * slope * slope;
            let scale = (squares[at] / square_weight).sqrt() + 1e-12;
            parameters[at] -= size * means[at] / mean_weight / scale;
            parameters[at] = parameters[at].clamp(-12.0, 6.0);
        }
    }
    let factors = (0..devices.len()).map(|device| device_factors(&parameters, device)).collect();
    (formula(&parameters, devices.len()), factors)
}

fn device_factors(parameters: &[f64], device: usize) -> DeviceFactors {
    let own = &parameters[DEVICE * device..];
    let start = 1.0 / (1.0 + (-own[0]).exp());
    DeviceFactors { start, compute: own[1].exp(), memory: own[2].exp() }
}

fn formula(parameters: &[f64], devices: usize) -> Formula {
    let rows = parameters[DEVICE * devices..].chunks_exact(AMOUNTS);
    Formula(rows.map(|row| std::array::from_fn(|at| row[at].exp())).collect())
}

/// Computes the gradient of the mean absolute error of logarithms, over all devices.
fn gradient(devices: &[Vec<FormulaPoint>], parameters: &[f64]) -> Vec<f64> {
    let formula = formula(parameters, devices.len());
    let mut gradient = vec![0.0; parameters.len()];
    let (of_devices, of_formula) = gradient.split_at_mut(DEVICE * devices.len());
    for (device, (points, own)) in
        devices.iter().zip(of_devices.chunks_exact_mut(DEVICE)).enumerate()
    {
        let factors = device_factors(parameters, device);
        let weight = 1.0 / (points.len().max(1) * devices.len()) as f64;
        for point in points {
            let times = formula.algorithm_times(&point.amounts, factors);
            let times = &times[..point.amounts.count];
            let kernel_ns = smooth_minimum(times);
            let latency_ns = factors.start * point.floor_ns + kernel_ns;
            // A hidden kernel does not change the latency.
            if latency_ns <= point.floor_ns {
                continue;
            }
            let off = (latency_ns / point.latency_ns).ln();
            let slope = weight * off / off.hypot(NEAR) / latency_ns;
            own[0] += slope * point.floor_ns * factors.start * (1.0 - factors.start);
            for (algorithm, time) in times.iter().enumerate() {
                let slope = slope * (kernel_ns / time).powf(SMOOTH + 1.0);
                let amounts = &point.amounts.algorithms[algorithm];
                for (at, amount) in amounts.iter().enumerate() {
                    let term = slope * factors.at(at) * formula.0[algorithm][at] * amount;
                    of_formula[algorithm * AMOUNTS + at] += term;
                    own[if at < COMPUTE { 1 } else { 2 }] += term;
                }
            }
        }
        for (at, factor) in [(1, factors.compute), (2, factors.memory)] {
            own[at] += 2.0 * RIDGE * factor.ln() / devices.len() as f64;
        }
    }
    gradient
}
