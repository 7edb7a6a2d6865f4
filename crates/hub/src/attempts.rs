//! Attempts of jobs before a requeue. Rows of GPUs have one name for all attempts of a job, so the
//! times of the attempts tell which part of its GPU hours each one held.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::events::read_events;
use crate::runs::RunState;
use crate::store::StoreFolder;

/// Attempts are events at their start, so events are read from this many seconds before the range
/// on, to find attempts that began before it.
const BEFORE_S: u64 = 7 * 86_400;

/// An attempt of a job after which the job was started again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunAttempt {
    pub started_unix_s: u64,
    pub ended_unix_s: u64,
    /// State by the scheduler.
    pub state: String,
    pub exit_code: Option<i32>,
    pub exit_signal: Option<u32>,
    pub is_failed: bool,
    /// The part of the allocated time of the run that this attempt held.
    pub allocated: f64,
}

/// What the details of an ended attempt say.
#[derive(Deserialize)]
struct AttemptDetails {
    state: String,
    exit_code: Option<i32>,
    exit_signal: Option<u32>,
}

/// Reads the attempts that overlap a range of time, by scheduler and job. Their allocated time is
/// left at zero; the caller computes it.
///
/// # Errors
/// If a file cannot be read.
pub fn read_attempts(
    folder: &StoreFolder,
    range: &Range<u64>,
) -> Result<BTreeMap<String, Vec<RunAttempt>>, Error> {
    let mut attempts: BTreeMap<String, Vec<RunAttempt>> = BTreeMap::new();
    let starts = range.start.saturating_sub(BEFORE_S)..range.end;
    read_events(folder, "requeue", &starts, |event| {
        let Ok(details) = serde_json::from_str::<AttemptDetails>(event.details) else { return };
        let AttemptDetails { state, exit_code, exit_signal } = details;
        let ended_unix_s = event.start_unix_s.saturating_add(event.length_s as u64);
        if ended_unix_s <= range.start || event.start_unix_s >= range.end {
            return;
        }
        attempts.entry(event.run).or_default().push(RunAttempt {
            is_failed: RunState::is_failure(&state, exit_code, exit_signal),
            started_unix_s: event.start_unix_s,
            ended_unix_s,
            state,
            exit_code,
            exit_signal,
            allocated: 0.0,
        });
    })?;
    for attempts in attempts.values_mut() {
        attempts.sort_by_key(|attempt| attempt.started_unix_s);
        // A hub that was started again may have stored an attempt twice.
        attempts.dedup_by_key(|attempt| attempt.started_unix_s);
    }
    Ok(attempts)
}
