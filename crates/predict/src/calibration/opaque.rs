//! Prices operators that were never recorded by the bytes they move, at the rate of everything
//! recorded.

use super::constants::transfer;
use super::{Calibration, mean};
use crate::cost::{Cost, Source, Transfer};
use crate::effort::Effort;
use crate::program::Overhead;
use crate::recording::text_bytes;

/// The name of a kernel, or of host time, of an operator that the calibration does not contain. Its
/// detail has the bytes that the operator moves.
pub const OPAQUE: &str = "opaque";

/// Prices operators that were never recorded, by lines through time and bytes of all recorded
/// operators.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpaqueCosts {
    work: Transfer,
    host: Transfer,
}

impl OpaqueCosts {
    /// Fits the lines to a calibration. Collectives are left out because most of their time is
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

    /// Prices device work by the bytes in a detail such as `512 B`.
    pub fn work(&self, detail: &str) -> Cost {
        cost(self.work, detail)
    }

    /// Estimates the ratio of a work's time at `wanted` sizes to its time `ns` at `known` sizes.
    ///
    /// A tensor that alone would take twice as long as `ns` is not read as a whole, such as a
    /// lookup's table. It does not count.
    pub fn growth(&self, known: &str, ns: f64, wanted: &str) -> f64 {
        const MOST: f64 = 2.0;
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

    /// Prices host time by the bytes in a detail such as `512 B`.
    pub fn host(&self, detail: &str) -> Cost {
        cost(self.host, detail)
    }
}

impl OpaqueCosts {
    /// Estimates which part of an operator without calls is work on its data, at most `whole_ns`.
    pub fn host_work_ns(&self, sizes: &str, whole_ns: i64) -> i64 {
        let ns = self.host.per_byte_ns * text_bytes(sizes) as f64;
        (ns.min(9e15).round() as i64).min(whole_ns)
    }
}

/// Fits a robust line: the median of the smaller half as the fixed time, the median slope of the
/// largest quarter as the time per byte. Lookups read little of their tables, so means and least
/// squares would be misled.
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
    Transfer { fixed_ns, per_byte_ns: middle(large.iter().map(slope)) }
}

/// Returns the median; 0 of no values.
fn middle(values: impl Iterator<Item = f64>) -> f64 {
    schema::median::float_median(&mut values.collect::<Vec<f64>>()).unwrap_or_default()
}

fn cost(line: Transfer, detail: &str) -> Cost {
    let ns = line.fixed_ns + line.per_byte_ns * bytes(detail) as f64;
    Cost { ns: ns.clamp(0.0, 9e15).round() as i64, source: Some(Source::Unknown) }
}

/// Reads the bytes of a detail: of the work, of a copy, or else of the operator's tensors.
fn bytes(detail: &str) -> u64 {
    if let Some(effort) = Effort::parse(detail) {
        return effort.bytes();
    }
    let last = detail.rsplit("; ").next().unwrap_or(detail);
    let moved = last.strip_suffix(" B").and_then(|number| number.parse().ok());
    moved.unwrap_or_else(|| text_bytes(detail.split("; ").next().unwrap_or_default()))
}
