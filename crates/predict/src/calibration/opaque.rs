//! Prices operators that were never recorded by the bytes they move, at the median rate of all
//! recorded operators.

use super::constants::transfer;
use super::{Calibration, mean};
use crate::cost::{Cost, Source, Transfer};
use crate::effort::Effort;
use crate::program::Overhead;
use crate::recording::text_bytes;

/// Name given to a kernel or to host time of an operator that the calibration does not contain. The
/// detail of such a key holds the number of bytes that the operator moves.
pub const OPAQUE: &str = "opaque";

/// Linear models of time by bytes, fitted to all recorded operators. The models price operators
/// that were never recorded.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpaqueCosts {
    work: Transfer,
    host: Transfer,
}

impl OpaqueCosts {
    /// Fits both lines to a calibration. Collectives are excluded because most of their time is
    /// waiting.
    pub fn from_calibration(calibration: &Calibration) -> Self {
        let works = calibration.works.iter().filter(|(key, _)| !key.name.contains("nccl"));
        let recordings = &calibration.recordings;
        let works =
            works.filter_map(|(key, found)| Some((bytes(&key.detail), found.centre(recordings)?)));
        let hosts = calibration.overheads.iter();
        let hosts = hosts.filter(|(key, _)| key.class == Overhead::HostOnly);
        let hosts =
            hosts.filter_map(|(key, samples)| Some((text_bytes(&key.detail), mean(samples)?)));
        let hosts: Vec<(u64, f64)> = hosts.filter(|(bytes, _)| *bytes > 0).collect();
        Self { work: line(works), host: transfer(&hosts) }
    }

    /// Prices device work from the number of bytes in its detail, such as `512 B`.
    pub fn work(&self, detail: &str) -> Cost {
        cost(self.work, detail)
    }

    /// Estimates the factor by which a work's time changes between two sizes. The work's time at
    /// the sizes `known` is `ns`.
    ///
    /// A tensor is ignored if moving it would alone take more than twice as long as `ns`. A tensor
    /// of that size cannot have been read as a whole. An example is the table of a lookup.
    pub fn growth(&self, known: &str, ns: f64, wanted: &str) -> f64 {
        const MOST: f64 = 2.0;
        // A recording without sizes does not show how much larger the wanted work is.
        if text_bytes(known) == 0 {
            return 1.0;
        }
        let Transfer { fixed_ns, per_byte_ns } = self.work;
        let (mut from, mut to) = (fixed_ns, fixed_ns);
        for (known, wanted) in known.split(", ").zip(wanted.split(", ")) {
            let [known, wanted] = [known, wanted].map(|part| per_byte_ns * text_bytes(part) as f64);
            if known <= MOST * ns {
                from += known;
                to += wanted;
            }
        }
        if from > 0.0 { to / from } else { 1.0 }
    }

    /// Prices host time from the number of bytes in its detail, such as `512 B`.
    pub fn host(&self, detail: &str) -> Cost {
        cost(self.host, detail)
    }

    /// Estimates how much of the host time of an operator without runtime calls is work on its
    /// tensors. The result is at most `whole_ns`.
    pub fn host_work_ns(&self, sizes: &str, whole_ns: i64) -> i64 {
        let ns = self.host.per_byte_ns * text_bytes(sizes) as f64;
        (ns.min(9e15).round() as i64).min(whole_ns)
    }
}

/// Fewest bytes from whose time a rate is computed. Profilers always record the bytes of memory
/// sets, even without tensor sizes. Those of a few bytes take as long as an empty one, so they show
/// no rate.
const RATE_BYTES_LEAST: u64 = 4_096;
/// Assumed nanoseconds per byte if no recorded work shows a rate: 100 GB/s, which is slower than
/// the memory of any known GPU.
const SLOWEST: f64 = 0.01;

/// Fits a robust line. The fixed time is the median time of the smaller half of the points, and the
/// time per byte is the median slope of the largest quarter. Lookups read only a small part of
/// their tables, so means and least squares would be misled.
fn line(points: impl Iterator<Item = (u64, f64)>) -> Transfer {
    let mut points: Vec<(u64, f64)> = points.filter(|(bytes, _)| *bytes > 0).collect();
    points.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Transfer::default();
    };
    let fixed_ns = match first.0 == last.0 {
        true => 0.0,
        false => middle(points[..points.len().div_ceil(2)].iter().map(|point| point.1)),
    };
    let large = &points[points.len() - points.len().div_ceil(4)..];
    let slope = |(bytes, ns): &(u64, f64)| ((ns - fixed_ns) / *bytes as f64).max(0.0);
    let per_byte_ns = middle(large.iter().map(slope));
    let is_too_small = last.0 < RATE_BYTES_LEAST;
    Transfer {
        fixed_ns,
        per_byte_ns: if is_too_small { per_byte_ns.min(SLOWEST) } else { per_byte_ns },
    }
}

/// Returns the median of the values, or 0 if there are none.
fn middle(values: impl Iterator<Item = f64>) -> f64 {
    schema::median::float_median(&mut values.collect::<Vec<f64>>()).unwrap_or_default()
}

fn cost(line: Transfer, detail: &str) -> Cost {
    let ns = line.fixed_ns + line.per_byte_ns * bytes(detail) as f64;
    Cost { ns: ns.clamp(0.0, 9e15).round() as i64, source: Some(Source::Unknown) }
}

/// Reads a number of bytes from a detail. The number is the bytes of the effort, or else the bytes
/// of the copy, or else the size of the operator's tensors.
fn bytes(detail: &str) -> u64 {
    if let Some(effort) = Effort::parse(detail) {
        return effort.bytes();
    }
    let last = detail.rsplit("; ").next().unwrap_or(detail);
    let moved = last.strip_suffix(" B").and_then(|number| number.parse().ok());
    moved.unwrap_or_else(|| text_bytes(detail.split("; ").next().unwrap_or_default()))
}
