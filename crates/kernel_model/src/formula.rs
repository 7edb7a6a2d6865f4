//! A formula for the time of a kernel, which grows with every size of the kernel and falls with
//! every rate of the device.
//!
//! An algorithm takes the sum of its amounts of work, each divided by a rate of the device and
//! multiplied by a non-negative coefficient. Every amount grows with the sizes of the kernel, so
//! the time does too. The coefficients are the same on all devices. A device differs only by its
//! [`DeviceFactors`].

pub mod fit;

use schema::HardwareSpec;
use serde::{Deserialize, Serialize};

use super::work::{Kind, Work};

/// Maximum number of algorithms of a kind of kernel: direct convolution, and Winograd's algorithm
/// with tiles of 2 × 2 and of 4 × 4 outputs.
const ALGORITHMS: usize = 3;
/// Number of amounts of an algorithm that the arithmetic rate divides. The memory rate divides the
/// others.
const COMPUTE: usize = 5;
/// Number of amounts of an algorithm.
const AMOUNTS: usize = COMPUTE + 4;
/// Exponent of the smooth minimum over the times of algorithms.
const SMOOTH: f64 = 6.0;
/// Share of its peak bandwidth that a device's memory is assumed to reach if no benchmark result
/// is known. The known ones are 0.74 (P100), 0.80 (Titan Xp), 0.89 (A100) and 0.91 (V100).
const MEMORY_SHARE: f64 = 0.85;

/// Returns the arithmetic rate of a device that amounts are divided by, in FLOP/s.
pub fn compute_rate(device: &HardwareSpec) -> f64 {
    device.peak.f32
}

/// Returns the memory bandwidth that amounts are divided by, in bytes per second.
pub fn memory_rate(device: &HardwareSpec) -> f64 {
    device.dram_sustained.unwrap_or(MEMORY_SHARE * device.dram)
}

/// Properties of one device by which its times differ from the formula.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceFactors {
    /// Share of the launch overhead that has passed when the kernel starts.
    pub start: f64,
    /// Factor on all times that the arithmetic rate determines.
    pub compute: f64,
    /// Factor on all times that the memory rate determines.
    pub memory: f64,
}

impl DeviceFactors {
    /// Checks the factors of a model that was read from a file.
    pub fn is_valid(self) -> bool {
        let is_positive = |factor: f64| factor > 0.0 && factor.is_finite();
        (0.0..=1.0).contains(&self.start) && is_positive(self.compute) && is_positive(self.memory)
    }

    /// Returns the factor on the amount at a position.
    fn at(self, amount: usize) -> f64 {
        if amount < COMPUTE { self.compute } else { self.memory }
    }
}

/// Times of each algorithm's amounts of work at the rates of a device, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Amounts {
    /// One array for each algorithm, with the amounts of arithmetic first. Unused amounts are 0.
    algorithms: [[f64; AMOUNTS]; ALGORITHMS],
    count: usize,
}

impl Amounts {
    /// Computes the amounts of a kernel on a device. No amount falls if a size grows, or grows if
    /// a rate does.
    pub fn new(work: &Work, device: &HardwareSpec) -> Self {
        let compute = 1e9 / compute_rate(device);
        let memory = 1e9 / memory_rate(device);
        let units = f64::from(device.multiprocessors);
        let (flops, bytes) = work.flops_and_bytes();
        let sizes: Vec<f64> = work.sizes().iter().map(|size| *size as f64).collect();
        let mut amounts = Self { algorithms: [[0.0; AMOUNTS]; ALGORITHMS], count: 0 };
        let mut push = |arithmetic: &[f64], moved: &[f64]| {
            let algorithm = &mut amounts.algorithms[amounts.count];
            for (amount, flops) in algorithm.iter_mut().zip(arithmetic) {
                *amount = compute * flops;
            }
            for (amount, bytes) in algorithm[COMPUTE..].iter_mut().zip(moved) {
                *amount = memory * bytes;
            }
            amounts.count += 1;
        };
        match (work.kind(), &sizes[..]) {
            (Kind::Linear, &[m, n, k]) => {
                push(&product([1.0, m, n, k], flops, units), &matrices(1.0, [m, n, k]));
            }
            (Kind::Bmm, &[batch, m, n, k]) => {
                push(&product([batch, m, n, k], flops, units), &matrices(batch, [m, n, k]));
            }
            (Kind::Conv, &[batch, channels_in, channels_out, kernel, ..]) => {
                let out = work.conv_output().unwrap_or(0) as f64;
                let positions = batch * out * out;
                let window = channels_in * kernel * kernel;
                let direct = product([1.0, positions, channels_out, window], flops, units);
                push(&direct, &[bytes, 4.0 * positions * channels_out]);
                // Winograd's algorithm is for windows of 3 × 3 with stride 1.
                if work.sizes()[3] == 3 && work.sizes()[5] == 1 {
                    for tile in [2.0, 4.0] {
                        let tiles = batch * f64::ceil(out / tile).powi(2);
                        let channels = [channels_in, channels_out];
                        let (arithmetic, moved) = winograd(tile, tiles, channels, units);
                        push(&arithmetic, &[[bytes].as_slice(), &moved].concat());
                    }
                }
            }
            (Kind::LayerNorm | Kind::Softmax, &[rows, columns]) => {
                push(&[flops, 640.0 * rows], &[bytes, 8.0 * units * columns]);
            }
            _ => push(&[flops], &[bytes]),
        }
        amounts
    }
}

/// FLOPs of a batch of matrix products: the exact ones, those of whole output tiles, and those of
/// one tile of each multiprocessor, whose products follow one another.
fn product([batch, m, n, k]: [f64; 4], flops: f64, units: f64) -> [f64; COMPUTE] {
    let tile = |size: f64| 2.0 * batch * padded(m, size) * padded(n, size) * k;
    [flops, tile(128.0), tile(64.0), tile(32.0), 2048.0 * units * k]
}

/// Bytes of the result and of both inputs of a batch of matrix products.
fn matrices(batch: f64, [m, n, k]: [f64; 3]) -> [f64; 3] {
    [4.0 * batch * m * n, 4.0 * batch * m * k, 4.0 * batch * n * k]
}

/// FLOPs of the matrix products in Winograd's algorithm, and bytes of its transformed weights,
/// inputs and outputs.
fn winograd(
    tile: f64,
    tiles: f64,
    [channels_in, channels_out]: [f64; 2],
    units: f64,
) -> ([f64; 4], [f64; 3]) {
    let products = (tile + 2.0).powi(2);
    let flops = |rows: f64, columns: f64| {
        2.0 * products * padded(tiles, rows) * padded(channels_out, columns) * channels_in
    };
    let arithmetic =
        [flops(1.0, 1.0), flops(64.0, 64.0), flops(128.0, 32.0), 2048.0 * units * channels_in];
    let moved = [channels_in * channels_out, tiles * channels_in, tiles * channels_out];
    (arithmetic, moved.map(|elements| 4.0 * products * elements))
}

/// Rounds a size up to a multiple of `step`.
fn padded(size: f64, step: f64) -> f64 {
    (size / step).ceil() * step
}

/// The coefficients of the amounts, which all devices share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Formula(Vec<[f64; AMOUNTS]>);

impl Formula {
    /// Predicts the time of a kernel without launch overhead, in nanoseconds.
    pub fn kernel_ns(&self, amounts: &Amounts, factors: DeviceFactors) -> f64 {
        let times = self.algorithm_times(amounts, factors);
        smooth_minimum(&times[..amounts.count])
    }

    fn algorithm_times(&self, amounts: &Amounts, factors: DeviceFactors) -> [f64; ALGORITHMS] {
        let mut times = [0.0; ALGORITHMS];
        let algorithms = amounts.algorithms.iter().zip(&self.0).take(amounts.count);
        for (time, (amounts, coefficients)) in times.iter_mut().zip(algorithms) {
            let term = |at: usize| factors.at(at) * coefficients[at] * amounts[at];
            *time = (0..AMOUNTS).map(term).sum();
        }
        times
    }

    /// Checks the coefficients of a model that was read from a file.
    pub fn is_valid(&self) -> bool {
        let mut coefficients = self.0.iter().flatten();
        self.0.len() == ALGORITHMS && coefficients.all(|one| *one >= 0.0 && one.is_finite())
    }
}

/// A minimum without a kink: a library chooses the fastest algorithm, but not always.
fn smooth_minimum(times: &[f64]) -> f64 {
    match times {
        [time] => *time,
        _ => times.iter().map(|time| time.powf(-SMOOTH)).sum::<f64>().powf(-1.0 / SMOOTH),
    }
}
