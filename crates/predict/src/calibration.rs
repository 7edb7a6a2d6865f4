//! Time samples of a host and its devices, from which programs are priced. A calibration keeps all
//! samples.
//!
//! Outliers are kept because overheads have long tails. A trimmed mean would be too small, and the
//! error would add up over the thousand overheads of a step.

pub mod collect;
pub mod constants;
pub mod file;
pub mod key;
pub mod launches;
pub mod nearest;
pub mod opaque;
pub mod operator_calls;
mod pairs;
pub mod price;
pub mod recording_cost;
pub mod roofline_scaling;
pub mod runs;
pub mod samples;
pub mod shared;
pub mod shipped;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use key::{Key, Waiting};
pub use samples::{WorkSamples, mean};

use crate::program::{Overhead, WorkKind};

/// Time samples of one or more recordings of a machine, grouped by what they measure. Programs are
/// priced from a calibration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    pub machine: Machine,
    /// For each recording, the number of its steps multiplied by the number of its ranks.
    pub recordings: Vec<u32>,
    #[serde(with = "pairs")]
    pub overheads: BTreeMap<Key<Overhead>, Vec<i64>>,
    #[serde(with = "pairs")]
    pub works: BTreeMap<Key<WorkKind>, WorkSamples>,
    #[serde(with = "pairs")]
    pub waits: BTreeMap<Waiting, Vec<i64>>,
    /// Operation and bytes of collectives, with the transfer time after the last rank arrived.
    #[serde(with = "pairs")]
    pub transfers: BTreeMap<(String, u64), Vec<i64>>,
    /// Host time of each rank and run relative to the mean of all; 1 is the mean.
    pub factors: Vec<f64>,
    /// Device time of each rank and step relative to the median step of its recording. On a shared
    /// CPU, a factor above 1 shows that other programs took part of its time.
    pub work_factors: Vec<f64>,
    pub launches: launches::Launches,
    /// Profiler overhead per event, already subtracted from host samples; 0 if unknown.
    pub event_ns: f64,
    /// Recorded events inside the samples of each operator and kind of overhead. An operator
    /// without samples is priced by the number of its nested operators.
    #[serde(with = "pairs")]
    pub events: BTreeMap<(Overhead, String), EventCount>,
    /// Whether models computed the times of device work, so that they do not count as measured.
    #[serde(skip)]
    pub are_works_modeled: bool,
}

/// Number of samples of one kind of host time, and of the host events that began during them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventCount {
    pub samples: u64,
    pub events: u64,
}

/// The host and devices on which the samples were recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Name of the host; empty if unknown.
    pub host: String,
    /// Names of the devices, without duplicates.
    pub devices: Vec<String>,
}

impl Calibration {
    /// Adds the samples of another calibration.
    pub fn merge(&mut self, other: Self) {
        fn add<K: Ord>(to: &mut BTreeMap<K, Vec<i64>>, from: BTreeMap<K, Vec<i64>>) {
            for (key, samples) in from {
                to.entry(key).or_default().extend(samples);
            }
        }
        if self.machine == Machine::default() {
            self.machine = other.machine;
        }
        let offset = self.step_count();
        for (key, samples) in &other.works {
            self.works.entry(key.clone()).or_default().append_later(samples, offset);
        }
        self.recordings.extend(other.recordings);
        add(&mut self.overheads, other.overheads);
        add(&mut self.waits, other.waits);
        add(&mut self.transfers, other.transfers);
        self.factors.extend(other.factors);
        self.work_factors.extend(other.work_factors);
        if self.event_ns == 0.0 {
            self.event_ns = other.event_ns;
        }
        self.launches.merge(other.launches);
        for (key, other) in other.events {
            let own = self.events.entry(key).or_default();
            own.samples += other.samples;
            own.events += other.events;
        }
        self.are_works_modeled |= other.are_works_modeled;
    }

    /// Returns whether any device work was recorded. Otherwise, the host computed everything.
    pub fn has_device_work(&self) -> bool {
        !self.works.is_empty() || self.launches.has_device()
    }

    /// Returns the number of recorded steps, with each step counted once for each rank.
    pub fn step_count(&self) -> u32 {
        self.recordings.iter().sum()
    }

    /// Returns the total number of samples.
    pub fn sample_count(&self) -> u64 {
        let count = |samples: &Vec<i64>| samples.len() as u64;
        self.overheads.values().map(count).sum::<u64>()
            + self.works.values().map(|samples| samples.ns().len() as u64).sum::<u64>()
            + self.waits.values().map(count).sum::<u64>()
            + self.transfers.values().map(count).sum::<u64>()
    }
}
