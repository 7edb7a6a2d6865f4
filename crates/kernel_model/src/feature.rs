//! Computes the features of an operation on a device.
//!
//! Features are logarithms of sizes, the fit of sizes to tiles and waves of thread blocks, and the
//! position on the roofline. Most of them are relative to the device, so that one forest can
//! describe unmeasured devices as well.

use schema::HardwareSpec;

use super::baseline::DeviceBaseline;
use super::work::{Kind, Work};

/// Tile sizes that libraries choose from for a matrix product, as rows and columns of the output.
const TILES: [(u64, u64); 5] = [(128, 128), (128, 64), (64, 64), (128, 32), (32, 32)];

/// Maximum number of features of an operation.
pub const MOST: usize = 48;

/// Computes the roofline time of an operation from its FLOPs and bytes, in nanoseconds.
#[must_use]
pub fn roofline_ns(work: &Work, device: &HardwareSpec) -> f64 {
    let (flops, bytes) = work.flops_and_bytes();
    1e9 * (flops / device.peak.f32).max(bytes / device.dram)
}

/// Computes the lower bound of an operation's time for any algorithm, in nanoseconds.
#[must_use]
pub fn physics_ns(work: &Work, device: &HardwareSpec) -> f64 {
    let (_, bytes) = work.flops_and_bytes();
    1e9 * (work.least_flops() / device.peak.f32).max(bytes / device.dram)
}

/// Numeric features of one operation. The meaning of each position depends only on the kind.
#[derive(Clone, Debug)]
pub struct Features {
    values: [f32; MOST],
    count: usize,
}

impl Features {
    /// Computes the features of an operation on a device, relative to the device's baseline.
    #[must_use]
    pub fn compute(work: &Work, device: &HardwareSpec, baseline: DeviceBaseline) -> Self {
        let DeviceBaseline { overhead_ns, line } = baseline;
        let mut features = Self { values: [0.0; MOST], count: 0 };
        let (flops, bytes) = work.flops_and_bytes();
        // The first feature must be the height above the launch overhead, which `above_floor`
        // returns.
        features.log(line.above_ns(roofline_ns(work, device), overhead_ns) / overhead_ns);
        features.log(bytes / device.l2_bytes as f64);
        let units = f64::from(device.multiprocessors);
        match (work.kind(), work.sizes()) {
            (Kind::Linear, &[m, n, k]) => {
                features.log(flops / bytes / device.ridge());
                features.product(1, [m, n, k], units);
            }
            (Kind::Bmm, &[batch, m, n, k]) => {
                features.log(flops / bytes / device.ridge());
                features.product(batch, [m, n, k], units);
            }
            (Kind::Conv, _) => {
                features.log(flops / bytes / device.ridge());
                features.conv(work, units);
            }
            (Kind::ElementWise, &[elements]) => {
                features.put(work.element().map_or(0, |element| element as u32) as f32);
                features.elements(elements, units);
            }
            (_, &[rows, columns]) => features.rows(rows, columns, units),
            _ => {}
        }
        features
    }

    /// Returns the feature values in a fixed order.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values[..self.count]
    }

    /// Returns the logarithm of the baseline over the launch overhead. The logarithm shows how much
    /// of a latency is kernel time.
    #[must_use]
    pub fn above_floor(&self) -> f32 {
        self.values[0]
    }

    fn put(&mut self, value: f32) {
        self.values[self.count] = value;
        self.count += 1;
    }

    fn log(&mut self, value: f64) {
        self.put(value.ln() as f32);
    }

    /// Adds the exponent of the largest power of two that divides a size, at most 6.
    fn divisor(&mut self, size: u64) {
        self.put(size.trailing_zeros().min(6) as f32);
    }

    /// Adds the number of waves of thread blocks and the idle share of the last wave.
    fn waves(&mut self, blocks: f64, units: f64) {
        let waves = blocks / units;
        self.log(waves);
        self.log(waves.ceil() / waves);
    }

    fn product(&mut self, batch: u64, [m, n, k]: [u64; 3], units: f64) {
        let products = batch as f64;
        for size in [batch, m, n, k] {
            self.log(size as f64);
        }
        self.log(products * m as f64 * n as f64);
        for (rows, columns) in TILES {
            let tiles = products * m.div_ceil(rows) as f64 * n.div_ceil(columns) as f64;
            self.waves(tiles, units);
            self.log(tiles * (rows * columns) as f64 / (products * m as f64 * n as f64));
        }
        for size in [m, n, k] {
            self.divisor(size);
        }
        self.log(k.next_multiple_of(8) as f64 / k as f64);
    }

    fn conv(&mut self, work: &Work, units: f64) {
        let &[batch, channels_in, channels_out, kernel, size, stride, padding] = work.sizes()
        else {
            return;
        };
        let out = work.conv_output();
        // A convolution is a matrix product of [output positions, window] and [window, output
        // channels].
        let positions = batch as f64 * (out as f64).powi(2);
        self.product(1, [positions as u64, channels_out, channels_in * kernel * kernel], units);
        for value in [batch, channels_in, size] {
            self.log(value as f64);
        }
        for value in [kernel, stride, padding] {
            self.put(value as f32);
        }
        for value in [channels_in, batch, out] {
            self.divisor(value);
        }
        // Winograd's algorithm works on tiles of 2 × 2 or 4 × 4 outputs.
        for tile in [2, 4] {
            let tiles = out.div_ceil(tile) as f64;
            self.log((tiles * tile as f64 / out as f64).powi(2));
            self.log(batch as f64 * tiles * tiles);
        }
        self.log(channels_in as f64 / channels_out as f64);
    }

    fn elements(&mut self, elements: u64, units: f64) {
        /// Elements of a block of 128 threads in which each thread moves 16 bytes.
        const BLOCK: u64 = 512;
        self.log(elements as f64);
        self.divisor(elements);
        self.waves(elements.div_ceil(BLOCK) as f64, units * 8.0);
    }

    fn rows(&mut self, rows: u64, columns: u64, units: f64) {
        self.log(rows as f64);
        self.log(columns as f64);
        self.divisor(columns);
        self.elements(rows.saturating_mul(columns), units);
        for rows_of_block in [1, 4, 8] {
            self.waves(rows.div_ceil(rows_of_block) as f64, units);
        }
        self.log(columns.next_power_of_two() as f64 / columns as f64);
        for step in [32, 1024, 4096] {
            self.log(columns.next_multiple_of(step) as f64 / columns as f64);
        }
    }
}
