//! Stores a calibration as JSON of one version, with its machine and every sample.

use serde::{Deserialize, Serialize};
use serde_json::error::Category;

use super::{Calibration, WorkSamples};
use crate::Error;

/// File format version that is written, and the only one that can be read.
pub const VERSION: u64 = 5;
/// Longest sample, about a month. With this bound, the sum of as many samples as a file can hold
/// fits in `i64`.
const SAMPLE_NS_MOST: i64 = 2_600_000_000_000_000;

/// The whole content of a calibration file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CalibrationFile<C> {
    rowmill_calibration: u64,
    calibration: C,
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
        let file = CalibrationFile { rowmill_calibration: VERSION, calibration: self };
        serde_json::to_string(&file).map_err(|error| wrong("numbers that JSON can hold", &error))
    }

    /// Parses the JSON that [`Calibration::to_json`] writes.
    ///
    /// # Errors
    /// [`Error::Calibration`] if the file has another version, or if the text is not a calibration.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let not_json = |error| wrong("a calibration in JSON", &error);
        // The version is read first, so that a file of another version is refused by its version
        // and not by a missing field.
        let version: Versioned =
            serde_json::from_str(text).map_err(|error| match error.classify() {
                Category::Data => wrong("a calibration", &"JSON of another form"),
                _ => not_json(error),
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
        let file: CalibrationFile<Self> = serde_json::from_str(text).map_err(not_json)?;
        file.calibration.check()?;
        Ok(file.calibration)
    }

    /// Checks what prices rely on.
    fn check(&self) -> Result<(), Error> {
        if !(0.0..=1e9).contains(&self.event_ns) {
            let got = format!("{} ns", self.event_ns);
            return Err(wrong("a profiler overhead of 0 to 1e9 ns per event", &got));
        }
        let count = self.recordings.iter().try_fold(0u32, |sum, steps| sum.checked_add(*steps));
        let count = count.ok_or_else(|| wrong("fewer than 2^32 steps", &"more"))?;
        for (key, samples) in &self.works {
            if !samples.is_valid() {
                let got = format!("other numbers of both, or another order, of {:?}", key.name);
                return Err(wrong("a step for each sample, in their order", &got));
            }
            if let Some(step) = samples.steps().last().filter(|step| **step >= count) {
                let expected = format!("samples of the {count} steps of its recordings");
                return Err(wrong(&expected, &format!("step {step} of {:?}", key.name)));
            }
        }
        let host = self.overheads.values().chain(self.waits.values());
        let all = host.chain(self.transfers.values()).map(Vec::as_slice);
        let mut all = all.chain(self.works.values().map(WorkSamples::ns)).flatten();
        let is_too_long = |ns: &&i64| !(-SAMPLE_NS_MOST..=SAMPLE_NS_MOST).contains(*ns);
        match all.find(is_too_long) {
            Some(ns) => Err(wrong("samples of less than a month", &format!("{ns} ns"))),
            None => Ok(()),
        }
    }
}

fn wrong(expected: &str, got: &impl ToString) -> Error {
    Error::Calibration { expected: expected.to_owned(), got: got.to_string() }
}
