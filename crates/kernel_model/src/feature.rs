//! Computes the features of an operation on a device.
//!
//! Features are logarithms of sizes, how evenly sizes divide into tiles and waves of thread blocks,
//! and the position on the roofline.

use schema::HardwareSpec;

use super::baseline::DeviceBaseline;
use super::bins::FEATURES_MOST;
use super::measured::Measured;
use super::work::Work;

/// Elements that a thread block computes: 128 threads that move 16 bytes each.
const BLOCK: f64 = 512.0;
/// Thread blocks that run on a multiprocessor at the same time.
const BLOCKS_OF_UNIT: f64 = 8.0;

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

/// Duration of the shortest kernel that was ever recorded.
const SHORTEST_NS: f64 = 1_000.0;

/// Returns the duration of the shortest kernel of a device, in nanoseconds. It is assumed unless it
/// was measured.
#[must_use]
pub fn shortest_ns(device: &HardwareSpec) -> f64 {
    device.launch_floor_ns.map_or(SHORTEST_NS, f64::from)
}

/// Numeric features of one operation, in a fixed order that depends only on
/// the kind.
#[derive(Clone, Debug)]
pub struct Features {
    values: [f32; FEATURES_MOST],
    count: usize,
}

impl Features {
    /// Computes the features of an operation on a device, relative to the device's baseline.
    #[must_use]
    pub fn compute(work: &Work, device: &HardwareSpec, baseline: DeviceBaseline) -> Self {
        let DeviceBaseline { overhead_ns, line } = baseline;
        let mut features = Self { values: [0.0; FEATURES_MOST], count: 0 };
        let (flops, bytes) = work.flops_and_bytes();
        // The first feature must be the height above the launch overhead, which `above_floor`
        // returns.
        features.log(line.above_ns(roofline_ns(work, device), overhead_ns) / overhead_ns);
        features.log(bytes / device.l2_bytes as f64);
        features.log(flops / bytes / device.ridge());
        features.put(work.element().map_or(0, |element| element as u32) as f32);
        // Winograd's algorithm computes tiles of 4 × 4 outputs.
        let tiles = |out: u64| work.sizes()[0] * out.div_ceil(4).pow(2);
        let output_sizes = work.conv_output().map(|out| [out, tiles(out)]);
        for size in work.sizes().iter().copied().chain(output_sizes.into_iter().flatten()) {
            // Padding may be 0.
            features.log((size as f64).max(0.5));
            // The largest power of two that divides the size, at most 64.
            features.put(size.trailing_zeros().min(6) as f32);
        }
        let outputs = work.outputs();
        features.log(outputs);
        // Idle share of the last wave of thread blocks.
        let blocks = (outputs / BLOCK).ceil();
        let waves = blocks / (BLOCKS_OF_UNIT * f64::from(device.multiprocessors));
        features.log(waves.ceil() / waves);
        // Threads of a block share the innermost dimension.
        let inner = work.sizes().last().copied().unwrap_or(1).max(1);
        let multiples = [32, 1024, 4096].map(|step| inner.next_multiple_of(step));
        for padded in [inner.next_power_of_two()].into_iter().chain(multiples) {
            features.log(padded as f64 / inner as f64);
        }
        features
    }

    /// Computes the features of a row and the residual that a forest is trained to predict for it.
    /// `latency_ns` is the latency of the row without drift.
    pub fn example(row: &Measured, latency_ns: f64, baseline: DeviceBaseline) -> (Self, f32) {
        let base = baseline.line.ns(roofline_ns(&row.work, row.device), baseline.overhead_ns);
        let features = Self::compute(&row.work, row.device, baseline);
        (features, (latency_ns / base).ln() as f32)
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
}

impl AsRef<[f32]> for Features {
    fn as_ref(&self) -> &[f32] {
        &self.values[..self.count]
    }
}
