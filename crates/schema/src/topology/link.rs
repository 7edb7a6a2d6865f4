//! The time of a message between two devices as a function of its size. A longer message never
//! takes less time.

use serde::Serialize;

use super::HardwareSpec;

/// Time of an empty message between V100s with NVLink, in nanoseconds.
const ALPHA_NS: f64 = 7_000.0;
/// Measured points of a link: the bytes that each of eight ranks sends, and the time in
/// nanoseconds. The first sizes are seven eighths of the payload of all-to-alls, and the last are
/// 1.75 times the payload of all-reduces.
const SENT_NS: [(f64, f64); 5] = [
    (168.0, 7_000.0),
    (11_872.0, 7_000.0),
    (21_504.0, 10_000.0),
    (1_588_720.0, 69_000.0),
    (2_759_687.0, 86_000.0),
];
/// Share of a data sheet's bandwidth that large messages are assumed to reach.
const REACHED: f64 = 0.8;

/// Returns the link between the devices of a host, and its bandwidth per direction from data
/// sheets, in bytes per nanosecond.
fn fabric(key: &str) -> (&'static str, f64) {
    match key {
        "v100-sxm2" => ("NVLink", 150.0),
        "a100-sxm4-80gb" => ("NVLink", 300.0),
        "h100" | "h200" => ("NVLink", 450.0),
        "mi250" => ("Infinity Fabric", 150.0),
        "mi300x" => ("Infinity Fabric", 448.0),
        "a100" | "a100-80gb" | "l4" => ("PCIe", 31.5),
        _ => ("PCIe", 15.75),
    }
}

/// Error of measurements from which no link can be built.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum LinkError {
    /// There are no measurements.
    #[error("link: expected sizes with their times, got none")]
    Empty,
    /// A size or time is invalid.
    #[error(
        "link: expected sizes above 0 in rising order and times above 0, got {bytes} B in {ns} ns"
    )]
    Point { bytes: f64, ns: f64 },
}

/// A link with the time `α + size ÷ BW(size)`, interpolated between measured sizes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Time of an empty message, in nanoseconds.
    alpha_ns: f64,
    /// Measured points in bytes and nanoseconds, both ascending.
    points: Vec<(f64, f64)>,
    /// Description of where the times come from.
    source: String,
}

impl Link {
    /// Creates a link from measured points. A time that is below the time of a smaller size is
    /// raised to that time.
    ///
    /// # Errors
    /// Returns a [`LinkError`] if a size or time is invalid.
    pub fn new(points: &[(f64, f64)], source: &str) -> Result<Self, LinkError> {
        let mut rising: Vec<(f64, f64)> = Vec::new();
        for &(bytes, ns) in points {
            let (last_bytes, last_ns) = rising.last().copied().unwrap_or((0.0, 0.0));
            // The condition is negated so that NaN is rejected too.
            if !(bytes > last_bytes && ns > 0.0 && bytes.is_finite() && ns.is_finite()) {
                return Err(LinkError::Point { bytes, ns });
            }
            rising.push((bytes, ns.max(last_ns)));
        }
        let first = rising.first().ok_or(LinkError::Empty)?;
        Ok(Self { alpha_ns: first.1, points: rising, source: source.to_owned() })
    }

    /// Returns the link between the devices of one host. The size of a message is the number of
    /// bytes that each rank sends to the others.
    ///
    /// Times up to 2.8 MB were measured on V100s with NVLink. Beyond that size, 0.8 of the data
    /// sheets' bandwidth per direction is assumed. Devices without NVLink use the bandwidth of PCIe
    /// for all sizes.
    #[must_use]
    pub fn within(device: &HardwareSpec) -> Self {
        let (fabric, gb_per_s) = fabric(&device.key);
        let reached = REACHED * gb_per_s;
        let measured = "8 x V100 with NVLink up to 2.8 MB: shortest kernel over ranks of each \
                        collective (public DLRM trace)";
        let mut points: Vec<(f64, f64)> = SENT_NS.to_vec();
        if fabric == "PCIe" {
            points.iter_mut().for_each(|(bytes, ns)| *ns = ns.max(ALPHA_NS + *bytes / reached));
        }
        // A point beyond the measured sizes determines the slope for larger messages.
        let last = points[points.len() - 1];
        points.push((2.0 * last.0, last.1 + last.0 / reached));
        let source = format!("{measured}; beyond: {reached:.0} GB/s of {fabric}, assumed");
        Self { alpha_ns: ALPHA_NS, points, source }
    }

    /// Returns the link between hosts. The 100 Gbit/s and 15 µs of this link are assumed, not
    /// measured.
    #[must_use]
    pub fn network() -> Self {
        let bytes_per_ns = 12.5;
        let size = 1e6;
        let source = "assumed: 100 Gbit/s for each rank after 15 µs";
        let points = vec![(size, 15_000.0 + size / bytes_per_ns)];
        Self { alpha_ns: 15_000.0, points, source: source.to_owned() }
    }

    /// Returns the time of a message in nanoseconds, which is never less than the time of a shorter
    /// message.
    #[must_use]
    pub fn ns(&self, bytes: f64) -> f64 {
        let mut before = (0.0, self.alpha_ns);
        for &point in &self.points {
            if bytes <= point.0 {
                return before.1 + (point.1 - before.1) * (bytes - before.0) / (point.0 - before.0);
            }
            before = point;
        }
        // Above the largest measured size, the bandwidth between the last two points is used.
        let last = self.points.len() - 1;
        let from = if last == 0 { (0.0, self.alpha_ns) } else { self.points[last - 1] };
        let slope = (before.1 - from.1) / (before.0 - from.0);
        before.1 + slope * (bytes - before.0)
    }

    /// Returns the time of an empty message, in nanoseconds.
    #[must_use]
    pub fn alpha_ns(&self) -> f64 {
        self.alpha_ns
    }

    /// Returns the description of where the times come from.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }
}
