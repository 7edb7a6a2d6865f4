//! When traces are ordered without a person, which the configuration sets.

use std::time::Duration;

use serde::Deserialize;

use crate::error::Error;
use crate::time::{DAY_S, deserialize_span};

/// When traces are ordered without a person.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WatchRules {
    /// Length in seconds of the intervals that are compared.
    pub interval_s: u64,
    /// For how long the intervals of earlier runs count.
    #[serde(deserialize_with = "deserialize_span")]
    pub history: Duration,
    /// Number of intervals from which on there is a band.
    pub history_min: usize,
    /// Number of consecutive intervals outside of the band after which a trace is ordered.
    pub intervals: usize,
    /// Half width of the band in standard deviations, which are estimated by the median.
    pub deviations: f64,
    /// Smallest half width of the band as a share of the median.
    pub share_min: f64,
    /// Shortest time between two orders for the workflow of a user, except for schedules.
    #[serde(deserialize_with = "deserialize_span")]
    pub cool_down: Duration,
    /// Largest number of orders in 24 hours.
    pub per_day: usize,
    /// Number of steps to record.
    pub steps: u32,
    #[serde(rename = "schedule")]
    pub schedules: Vec<TraceSchedule>,
}

/// A workflow type of which a trace is ordered at intervals, while a run of it lasts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceSchedule {
    /// Name of the workflow type. A `*` at the end stands for any letters.
    pub workflow: String,
    #[serde(deserialize_with = "deserialize_span")]
    pub every: Duration,
}

impl Default for WatchRules {
    fn default() -> Self {
        Self {
            interval_s: 60,
            history: Duration::from_secs(DAY_S),
            history_min: 20,
            intervals: 5,
            deviations: 5.0,
            share_min: 0.15,
            cool_down: Duration::from_secs(6 * 3600),
            per_day: 20,
            steps: 5,
            schedules: Vec::new(),
        }
    }
}

impl WatchRules {
    /// Checks the values.
    ///
    /// # Errors
    /// If a value is out of its range.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |key: &str, expected, got: String| {
            Err(Error::Value { what: format!("watch: {key}"), expected, got })
        };
        if self.interval_s == 0 || 3600 % self.interval_s != 0 {
            return wrong("interval_s", "a divisor of 3600", self.interval_s.to_string());
        }
        if self.history_min < 3 {
            return wrong("history_min", "at least 3", self.history_min.to_string());
        }
        if self.intervals == 0 || self.intervals > 100 {
            return wrong("intervals", "1 to 100", self.intervals.to_string());
        }
        // The comparisons are false for NaN.
        if !(1.0..=1000.0).contains(&self.deviations) {
            return wrong("deviations", "1 to 1000", self.deviations.to_string());
        }
        if !(0.01..=10.0).contains(&self.share_min) {
            return wrong("share_min", "0.01 to 10", self.share_min.to_string());
        }
        if !(1..=1000).contains(&self.steps) {
            return wrong("steps", "1 to 1000", self.steps.to_string());
        }
        let short = |schedule: &&TraceSchedule| schedule.every < Duration::from_secs(60);
        match self.schedules.iter().find(short) {
            Some(one) => wrong("schedule: every", "at least 1m", format!("{:?}", one.every)),
            None => Ok(()),
        }
    }
}
