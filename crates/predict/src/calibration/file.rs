//! Stores a calibration as JSON of one version, with its machine and every sample.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::error::Category;

use super::launches::Launches;
use super::{Calibration, EventCount, Key, Machine, Waiting, WorkSamples, constants, mean};
use crate::Error;
use crate::cost::Constants;
use crate::program::{Overhead, WorkKind};

/// File format version that is written, and the only one that can be read.
pub const VERSION: u64 = 4;

/// The whole content of a calibration file, in the order in which it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    rowmill_calibration: u64,
    host: String,
    devices: Vec<String>,
    /// For each recording, the number of its steps multiplied by the number of its ranks.
    recordings: Vec<u32>,
    /// Constants derived from the waits. These constants are written for people who open the file,
    /// and are not read again.
    constants: Constants,
    overheads: Vec<SampleRow<Overhead>>,
    works: Vec<WorkRow>,
    waits: Vec<WaitRow>,
    transfers: Vec<TransferRow>,
    factors: Vec<f64>,
    work_factors: Vec<f64>,
    launches: Launches,
    /// Profiler overhead per event in nanoseconds, which is already subtracted from host samples.
    #[serde(default, skip_serializing_if = "is_zero")]
    event_ns: f64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    events: Vec<EventRow>,
}

/// JSON row with the number of events in one kind of host time.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventRow {
    class: Overhead,
    name: String,
    count: EventCount,
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// JSON row with the samples of one kind of host overhead.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SampleRow<C> {
    class: C,
    name: String,
    detail: String,
    mean_ns: f64,
    samples: Vec<i64>,
}

/// JSON row with the samples of one kind of device work, each with the step it was taken in.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkRow {
    class: WorkKind,
    name: String,
    detail: String,
    centre_ns: f64,
    samples: Vec<i64>,
    /// For each sample, the index of its step. Steps are numbered across all recordings.
    steps: Vec<u32>,
}

/// JSON row with the samples of one kind of latency or wait.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WaitRow {
    kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    samples: Vec<i64>,
}

/// JSON row with the transfer times of one collective operation at one message size.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TransferRow {
    operation: String,
    bytes: u64,
    samples: Vec<i64>,
}

/// Reads only the version of a file, so that a file of another version gets a clear error.
#[derive(Deserialize)]
struct Versioned {
    rowmill_calibration: Option<u64>,
}

impl Calibration {
    /// Serializes the calibration as JSON.
    ///
    /// # Errors
    /// [`Error::Calibration`] if a number cannot be represented in JSON.
    pub fn to_json(&self) -> Result<String, Error> {
        let waits = self.waits.iter().map(|(waiting, samples)| {
            let (kind, name) = spelt(waiting);
            WaitRow { kind: kind.to_owned(), name, samples: samples.clone() }
        });
        let transfers = self.transfers.iter().map(|((operation, bytes), samples)| TransferRow {
            operation: operation.clone(),
            bytes: *bytes,
            samples: samples.clone(),
        });
        let events = self.events.iter().map(|((class, name), count)| EventRow {
            class: *class,
            name: name.clone(),
            count: *count,
        });
        let content = Content {
            rowmill_calibration: VERSION,
            host: self.machine.host.clone(),
            devices: self.machine.devices.clone(),
            recordings: self.recordings.clone(),
            constants: constants::derive_constants(self),
            overheads: rows(&self.overheads),
            works: work_rows(self),
            waits: waits.collect(),
            transfers: transfers.collect(),
            factors: self.factors.clone(),
            work_factors: self.work_factors.clone(),
            launches: self.launches.clone(),
            event_ns: self.event_ns,
            events: events.collect(),
        };
        serde_json::to_string(&content).map_err(|error| wrong("numbers that JSON can hold", &error))
    }

    /// Parses the JSON that [`Calibration::to_json`] writes.
    ///
    /// # Errors
    /// [`Error::Calibration`] if the file has another version, or if the text is not a calibration.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        // The version is read first, so that a file of another version is refused by its version
        // and not by a missing field.
        let version: Versioned =
            serde_json::from_str(text).map_err(|error| match error.classify() {
                Category::Data => wrong("a calibration", &"JSON of another form"),
                _ => wrong("a calibration in JSON", &error),
            })?;
        match version.rowmill_calibration {
            Some(VERSION) => {}
            Some(other) => {
                return Err(wrong(&format!("version {VERSION}"), &format!("version {other}")));
            }
            None => {
                return Err(wrong("a calibration", &"JSON without \"rowmill_calibration\""));
            }
        }
        let content: Content =
            serde_json::from_str(text).map_err(|error| wrong("a calibration in JSON", &error))?;
        let mut waits = BTreeMap::new();
        for row in content.waits {
            let known = "a known kind of wait";
            let waiting = read(&row).ok_or_else(|| wrong(known, &format!("{:?}", row.kind)))?;
            waits.insert(waiting, row.samples);
        }
        if !(0.0..=1e9).contains(&content.event_ns) {
            let got = format!("{} ns", content.event_ns);
            return Err(wrong("a profiler overhead of 0 to 1e9 ns per event", &got));
        }
        let transfers = content.transfers.into_iter();
        Ok(Self {
            machine: Machine { host: content.host, devices: content.devices },
            works: works(content.works, &content.recordings)?,
            recordings: content.recordings,
            overheads: samples(content.overheads)?,
            waits,
            transfers: transfers.map(|row| ((row.operation, row.bytes), row.samples)).collect(),
            factors: content.factors,
            work_factors: content.work_factors,
            launches: content.launches,
            event_ns: content.event_ns,
            events: content
                .events
                .into_iter()
                .map(|row| ((row.class, row.name), row.count))
                .collect(),
            are_works_modelled: false,
        })
    }
}

fn wrong(expected: &str, got: &impl ToString) -> Error {
    Error::Calibration { expected: expected.to_owned(), got: got.to_string() }
}

fn rows<C: Copy + Ord>(of: &BTreeMap<Key<C>, Vec<i64>>) -> Vec<SampleRow<C>> {
    let row = |(key, samples): (&Key<C>, &Vec<i64>)| SampleRow {
        class: key.class,
        name: key.name.clone(),
        detail: key.detail.clone(),
        mean_ns: mean(samples).unwrap_or_default(),
        samples: samples.clone(),
    };
    of.iter().map(row).collect()
}

fn work_rows(calibration: &Calibration) -> Vec<WorkRow> {
    let row = |(key, samples): (&Key<WorkKind>, &WorkSamples)| WorkRow {
        class: key.class,
        name: key.name.clone(),
        detail: key.detail.clone(),
        centre_ns: samples.centre(&calibration.recordings).unwrap_or_default(),
        samples: samples.ns().to_vec(),
        steps: samples.steps().to_vec(),
    };
    calibration.works.iter().map(row).collect()
}

/// Checks the stored rows of device work and groups their samples by key.
fn works(
    rows: Vec<WorkRow>,
    recordings: &[u32],
) -> Result<BTreeMap<Key<WorkKind>, WorkSamples>, Error> {
    let sum = recordings.iter().try_fold(0u32, |sum, steps| sum.checked_add(*steps));
    let count = sum.ok_or_else(|| wrong("fewer than 2^32 steps", &"more"))?;
    let mut all = BTreeMap::new();
    for row in rows {
        check(&row.name, &row.samples)?;
        if let Some(step) = row.steps.last().filter(|step| **step >= count) {
            let expected = format!("samples of the {count} steps of its recordings");
            return Err(wrong(&expected, &format!("step {step} of {:?}", row.name)));
        }
        let (samples, steps) = (row.samples.len(), row.steps.len());
        let found = WorkSamples::new(row.samples, row.steps).ok_or_else(|| {
            let got = format!("{samples} samples and {steps} steps of {:?}", row.name);
            wrong("a step for each sample, in their order", &got)
        })?;
        all.insert(Key { class: row.class, name: row.name, detail: row.detail }, found);
    }
    Ok(all)
}

fn samples<C: Ord>(rows: Vec<SampleRow<C>>) -> Result<BTreeMap<Key<C>, Vec<i64>>, Error> {
    let mut all = BTreeMap::new();
    for row in rows {
        check(&row.name, &row.samples)?;
        all.insert(Key { class: row.class, name: row.name, detail: row.detail }, row.samples);
    }
    Ok(all)
}

fn check(name: &str, samples: &[i64]) -> Result<(), Error> {
    // The bound is about a month. With this bound, the sum of as many samples as a file can hold
    // fits in `i64`.
    const MOST_NS: i64 = 2_600_000_000_000_000;
    match samples.iter().find(|ns| !(-MOST_NS..=MOST_NS).contains(*ns)) {
        Some(ns) => Err(wrong("samples of less than a month", &format!("{ns} ns of {name:?}"))),
        None => Ok(()),
    }
}

fn spelt(waiting: &Waiting) -> (&'static str, Option<String>) {
    match waiting {
        Waiting::Launch => ("launch", None),
        Waiting::CopyLaunch => ("copy_launch", None),
        Waiting::QueueGap => ("queue_gap", None),
        Waiting::EventWait => ("event_wait", None),
        Waiting::SyncReturn => ("sync_return", None),
        Waiting::CopyReturn => ("copy_return", None),
        Waiting::HandOver(name) => ("hand_over", Some(name.clone())),
    }
}

fn read(row: &WaitRow) -> Option<Waiting> {
    Some(match (row.kind.as_str(), &row.name) {
        ("launch", None) => Waiting::Launch,
        ("copy_launch", None) => Waiting::CopyLaunch,
        ("queue_gap", None) => Waiting::QueueGap,
        ("event_wait", None) => Waiting::EventWait,
        ("sync_return", None) => Waiting::SyncReturn,
        ("copy_return", None) => Waiting::CopyReturn,
        ("hand_over", Some(name)) => Waiting::HandOver(name.clone()),
        _ => return None,
    })
}
