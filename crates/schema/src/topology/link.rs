//! The time of a message between two hosts as a function of its size. A longer message never
//! takes less time.

use serde::Serialize;

/// Share of a data sheet's bandwidth that large messages between hosts are assumed to reach.
const REACHED: f64 = 0.8;

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

    /// Assumed time of an empty message between hosts, in microseconds.
    pub const NETWORK_US: f64 = 15.0;

    /// Returns the link of one rank between hosts whose ranks share network cards. Messages are
    /// assumed to reach 0.8 of the cards' rate.
    #[must_use]
    pub fn cards(nics: u32, gbit_per_s: f64, ranks_per_host: u32, latency_us: f64) -> Self {
        let shared = gbit_per_s / 8.0 * f64::from(nics) / f64::from(ranks_per_host.max(1));
        let (size, alpha_ns) = (1e6, 1e3 * latency_us);
        let source = format!(
            "{REACHED} of {nics} cards of {gbit_per_s} Gbit/s per host, after {latency_us} µs: assumed"
        );
        let points = vec![(size, alpha_ns + size / (REACHED * shared))];
        Self { alpha_ns, points, source }
    }

    /// Returns the link between hosts. The 100 Gbit/s and 15 µs of this link are assumed, not
    /// measured.
    #[must_use]
    pub fn network() -> Self {
        let bytes_per_ns = 12.5;
        let size = 1e6;
        let source = "assumed: 100 Gbit/s for each rank after 15 µs";
        let alpha_ns = 1e3 * Self::NETWORK_US;
        let points = vec![(size, alpha_ns + size / bytes_per_ns)];
        Self { alpha_ns, points, source: source.to_owned() }
    }

    /// Returns an assumed link between processes or threads of one host: 5 GB/s after 30 µs.
    #[must_use]
    pub fn memory() -> Self {
        let (size, alpha_ns) = (1e6, 3e4);
        let points = vec![(size, alpha_ns + size / 5.0)];
        Self { alpha_ns, points, source: "assumed: 5 GB/s through memory after 30 µs".to_owned() }
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

    /// Multiplies all times by a factor.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let points = self.points.iter().map(|&(bytes, ns)| (bytes, factor * ns)).collect();
        Self { alpha_ns: factor * self.alpha_ns, points, source: self.source.clone() }
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
