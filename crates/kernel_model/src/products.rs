//! Predicts matrix products on tensor cores from measured bf16 products of A100 and H100. Products
//! of f32 outside tensor cores have a trained model, [`crate::KernelModel`].

use std::sync::LazyLock;

use schema::HardwareSpec;
use schema::topology::{HardwareError, ProductFormat, hardware};

use crate::Estimate;
use crate::estimate::Factors;

/// Lowest and highest factor within the measured sizes on a measured device. Neighboring sizes of
/// the tables differ by about as much from a line through the sizes around them.
const MEASURED: Factors = (0.85, 1.2);
/// Lowest and highest factor for another format, another device, or sizes that were not measured.
const TRANSFERRED: Factors = (0.65, 1.5);

/// A predicted product, with the evidence for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductPrice {
    pub time: Estimate,
    /// Whether products of this format and these sizes were measured on the device.
    pub is_measured: bool,
}

/// Measured bf16 products of one device, by the binary logarithms of their sizes.
struct ProductTable {
    device: &'static HardwareSpec,
    /// Ascending logarithms of the measured sizes: of the smaller and the larger of m and n, and
    /// of k.
    axes: [Vec<f64>; 3],
    /// Logarithms of times in nanoseconds. A time is at least as long as that of a smaller product.
    ln_ns: Vec<f64>,
}

/// The tables of the measured devices. They are made by `bench/compare/measured_tables.py`.
static TABLES: LazyLock<[ProductTable; 2]> = LazyLock::new(|| {
    [
        ProductTable::parse("a100-sxm4-80gb", include_str!("../models/gemm-a100-sxm.csv")),
        ProductTable::parse("h100", include_str!("../models/gemm-h100-sxm.csv")),
    ]
});

/// Predicts a product `[m, k] · [k, n]` whose factors have a format that uses tensor cores.
///
/// A device without measurements, or another format, gets the time of the measured device whose
/// ridge point is nearest, times the ratio of both rooflines. TF32 has half the rate of bf16 and
/// twice its bytes, so its ratio is two. The shortest measured time does not scale, because it is
/// the time of a launch and not of the product.
///
/// # Errors
/// [`HardwareError::Format`] if the device has no unit for the format.
pub fn price_product(
    sizes: [u64; 3],
    format: ProductFormat,
    device: &HardwareSpec,
) -> Result<ProductPrice, HardwareError> {
    let peak = device.peak_rate(format)?;
    let ridge = |peak: f64, device: &HardwareSpec| (peak / device.dram).ln();
    let apart =
        |table: &ProductTable| (ridge(table.peak(), table.device) - ridge(peak, device)).abs();
    let own = TABLES.iter().find(|table| table.device.key == device.key);
    let nearest = TABLES.iter().min_by(|a, b| apart(a).total_cmp(&apart(b)));
    let table = own.or(nearest).unwrap_or(&TABLES[0]);
    let bytes = format.bytes() as f64;
    let limits = Limits { flops: peak, dram: device.dram, value_bytes: bytes };
    let ratio = limits.roofline_ns(sizes) / table.limits().roofline_ns(sizes);
    let (table_ns, is_inside) = table.ns(sizes);
    let start_ns = table.shortest_ns();
    let ns = start_ns + (table_ns - start_ns) * ratio;
    let is_measured = is_inside && own.is_some() && bytes < 4.0;
    let time = Estimate::within(ns, if is_measured { MEASURED } else { TRANSFERRED });
    Ok(ProductPrice { time, is_measured })
}

/// The limits of a product's roofline, per second.
struct Limits {
    flops: f64,
    dram: f64,
    value_bytes: f64,
}

impl Limits {
    fn roofline_ns(&self, sizes: [u64; 3]) -> f64 {
        let [m, n, k] = sizes.map(|size| size as f64);
        let bytes = self.value_bytes * (m * n + n * k + m * k);
        1e9 * (2.0 * m * n * k / self.flops).max(bytes / self.dram)
    }
}

impl ProductTable {
    /// Parses a shipped table with the columns `m,n,k,ns`.
    fn parse(key: &str, text: &str) -> Self {
        let numbers = |line: &str| -> Option<[f64; 4]> {
            let fields = line.split(',').map(str::parse);
            fields.collect::<Result<Vec<f64>, _>>().ok()?.try_into().ok()
        };
        let rows: Vec<[f64; 4]> = text.lines().skip(1).filter_map(numbers).collect();
        let axes = [0, 1, 2].map(|axis| {
            let mut sizes: Vec<f64> = rows.iter().map(|row| row[axis].log2()).collect();
            sizes.sort_by(f64::total_cmp);
            sizes.dedup();
            sizes
        });
        let device = hardware(key).unwrap_or(&schema::topology::HARDWARE[0]);
        let cells = axes.iter().map(Vec::len).product();
        let mut table = Self { device, axes, ln_ns: vec![f64::NEG_INFINITY; cells] };
        for row in rows {
            let at = [0, 1, 2].map(|axis| table.place(axis, row[axis].log2()));
            let cell = table.cell(at);
            table.ln_ns[cell] = row[3].ln();
        }
        table.raise();
        table
    }

    /// Returns the position of the largest measured size up to `log2`, but not of the last one.
    fn place(&self, axis: usize, log2: f64) -> usize {
        self.axes[axis].partition_point(|size| *size <= log2).saturating_sub(1)
    }

    fn cell(&self, [a, b, c]: [usize; 3]) -> usize {
        (a * self.axes[1].len() + b) * self.axes[2].len() + c
    }

    /// Raises each time to those of smaller products. A size that was not measured gets the time of
    /// the size before it, times the ratio of their FLOPs.
    fn raise(&mut self) {
        let lengths = [0, 1, 2].map(|axis| self.axes[axis].len());
        for a in 0..lengths[0] {
            for b in 0..lengths[1] {
                for c in 0..lengths[2] {
                    let at = [a, b, c];
                    let cell = self.cell(at);
                    for axis in (0..3).filter(|axis| at[*axis] > 0) {
                        let mut before = at;
                        before[axis] -= 1;
                        let sizes = &self.axes[axis];
                        let growth = (sizes[at[axis]] - sizes[before[axis]]) * f64::ln(2.0);
                        let smaller = self.ln_ns[self.cell(before)];
                        if self.ln_ns[cell] == f64::NEG_INFINITY {
                            self.ln_ns[cell] = smaller + growth;
                        }
                        self.ln_ns[cell] = self.ln_ns[cell].max(smaller);
                    }
                }
            }
        }
    }

    fn peak(&self) -> f64 {
        self.device.peak.bf16.unwrap_or(self.device.peak.f32)
    }

    fn limits(&self) -> Limits {
        Limits { flops: self.peak(), dram: self.device.dram, value_bytes: 2.0 }
    }

    fn shortest_ns(&self) -> f64 {
        self.ln_ns.first().map_or(0.0, |ln| ln.exp())
    }

    /// Interpolates the logarithm of the time between measured sizes. Outside them, the share of
    /// the roofline is that of the nearest measured size. Also returns whether the size is inside.
    fn ns(&self, [m, n, k]: [u64; 3]) -> (f64, bool) {
        // A product and its transpose take about the same time, so m is the smaller one.
        let sizes = [m.min(n), m.max(n), k].map(|size| size.max(1));
        let wanted = sizes.map(|size| (size as f64).log2());
        let (mut first, mut share, mut nearest) = ([0; 3], [0.0; 3], [0; 3]);
        for axis in 0..3 {
            let known = &self.axes[axis];
            let inside = wanted[axis].clamp(known[0], known[known.len() - 1]);
            first[axis] = self.place(axis, inside).min(known.len() - 2);
            let (low, high) = (known[first[axis]], known[first[axis] + 1]);
            share[axis] = (inside - low) / (high - low);
            nearest[axis] = if inside == wanted[axis] { sizes[axis] } else { inside.exp2() as u64 };
        }
        let mut ln_ns = 0.0;
        for corner in 0..8 {
            let (mut at, mut weight) = (first, 1.0);
            for axis in 0..3 {
                let is_high = corner >> axis & 1 == 1;
                at[axis] += usize::from(is_high);
                weight *= if is_high { share[axis] } else { 1.0 - share[axis] };
            }
            ln_ns += weight * self.ln_ns[self.cell(at)];
        }
        let limits = self.limits();
        let growth = limits.roofline_ns(sizes) / limits.roofline_ns(nearest);
        (ln_ns.exp() * growth, nearest == sizes)
    }
}

#[cfg(test)]
mod tests {
    use schema::topology::{ProductFormat, hardware};

    use super::{TABLES, price_product};

    fn ns(sizes: [u64; 3], format: ProductFormat, device: &str) -> f64 {
        price_product(sizes, format, hardware(device).unwrap()).unwrap().time.mean_ns
    }

    #[test]
    fn measured_sizes_keep_their_times() {
        // From the table of the A100: m = 1024, n = 65536, k = 1024.
        let table = &TABLES[0];
        assert_eq!(table.axes.each_ref().map(Vec::len), [10, 11, 11]);
        assert_eq!(TABLES[1].axes.each_ref().map(Vec::len), [12, 11, 11]);
        let (ns, is_inside) = table.ns([65_536, 1024, 1024]);
        let text = include_str!("../models/gemm-a100-sxm.csv");
        let row = text.lines().find(|line| line.starts_with("1024,65536,1024,")).unwrap();
        let measured: f64 = row.rsplit(',').next().unwrap().parse().unwrap();
        assert!(is_inside && (ns / measured - 1.0).abs() < 1e-6, "{ns} {measured}");
    }

    #[test]
    fn products_never_take_less_time_when_they_grow() {
        for device in ["v100-sxm2", "a100-sxm4-80gb", "h100"] {
            for axis in 0..3 {
                let grown = |step: i32| {
                    let mut sizes = [300, 700, 500];
                    sizes[axis] = (4.0 * 1.3f64.powi(step)) as u64;
                    ns(sizes, ProductFormat::F16, device)
                };
                let times: Vec<f64> = (0..50).map(grown).collect();
                let falls = times.windows(2).any(|pair| pair[1] < pair[0] * (1.0 - 1e-9));
                assert!(!falls, "{device} {axis}: {times:?}");
            }
        }
    }

    #[test]
    fn formats_follow_their_rooflines() {
        let sizes = [65_536, 1024, 1024];
        let [bf16, tf32] = [ProductFormat::Bf16, ProductFormat::Tf32]
            .map(|format| ns(sizes, format, "a100-sxm4-80gb"));
        assert!((tf32 / bf16 - 2.0).abs() < 0.05, "{tf32} {bf16}");
        let v100 = ns(sizes, ProductFormat::F16, "v100-sxm2");
        assert!((v100 / bf16 - 312.0 / 125.0).abs() < 0.1, "{v100} {bf16}");
    }

    #[test]
    fn formats_without_units_are_refused() {
        for (device, format) in [
            ("v100-sxm2", ProductFormat::Bf16),
            ("v100", ProductFormat::Tf32),
            ("titan-xp", ProductFormat::F16),
            ("t4", ProductFormat::Bf16),
        ] {
            let error = price_product([64; 3], format, hardware(device).unwrap()).unwrap_err();
            assert!(error.to_string().contains("expected one of f32"), "{error}");
        }
    }
}
