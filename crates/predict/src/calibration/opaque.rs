//! What operators cost that nobody recorded: by the bytes they move, as everything recorded did.

use super::Calibration;
use super::constants::transfer;
use super::mean;
use crate::cost::{Cost, Source, Transfer};
use crate::effort;
use crate::program::Overhead;
use crate::recording::text_bytes;

/// Lines through what operators took by the bytes of their tensors.
#[derive(Clone, Copy, Debug, Default)]
pub struct Opaque {
    /// Work of devices.
    work: Transfer,
    /// Operators without calls.
    host: Transfer,
}

impl Opaque {
    /// Of a calibration. Collectives are left out: most of them wait.
    pub fn of(calibration: &Calibration) -> Self {
        let works = calibration.works.iter().filter(|(key, _)| !key.name.contains("nccl"));
        let recordings = &calibration.recordings;
        let works =
            works.filter_map(|(key, found)| Some((bytes(&key.detail), found.centre(recordings)?)));
        let hosts = calibration.overheads.iter();
        let hosts = hosts.filter(|(key, _)| key.class == Overhead::HostOnly);
        let hosts =
            hosts.filter_map(|(key, samples)| Some((text_bytes(&key.detail), mean(samples)?)));
        Self { work: line(works), host: line(hosts) }
    }

    /// Device work of a detail such as `512 B`.
    pub fn work(&self, detail: &str) -> Cost {
        cost(self.work, detail)
    }

    /// Host time of a detail such as `512 B`.
    pub fn host(&self, detail: &str) -> Cost {
        cost(self.host, detail)
    }
}

impl Opaque {
    /// What of an operator without calls is work on its data, at most `whole_ns`: by the bytes of
    /// its tensors and what a byte takes in the mean of all operators.
    pub fn host_work_ns(&self, sizes: &str, whole_ns: i64) -> i64 {
        let ns = self.host.per_byte_ns * text_bytes(sizes) as f64;
        (ns.min(9e15).round() as i64).min(whole_ns)
    }
}

fn line(points: impl Iterator<Item = (u64, f64)>) -> Transfer {
    let points: Vec<(u64, f64)> = points.filter(|(bytes, _)| *bytes > 0).collect();
    transfer(&points)
}

fn cost(line: Transfer, detail: &str) -> Cost {
    let ns = line.fixed_ns + line.per_byte_ns * bytes(detail) as f64;
    Cost { ns: ns.clamp(0.0, 9e15).round() as i64, source: Some(Source::Unknown) }
}

/// The bytes that a detail says: of the work, of a copy, else of its operator's tensors.
fn bytes(detail: &str) -> u64 {
    if let Some(effort) = effort::of(detail) {
        return effort.bytes();
    }
    let last = detail.rsplit("; ").next().unwrap_or(detail);
    let moved = last.strip_suffix(" B").and_then(|number| number.parse().ok());
    moved.unwrap_or_else(|| text_bytes(detail.split("; ").next().unwrap_or_default()))
}
