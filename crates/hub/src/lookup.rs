//! Looks up one run or one host by its name: when the run began and ended, and whether the store
//! has anything of the host. Unknown names are errors with similar names.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

use crate::aggregate::MINUTE_S;
use crate::api::FleetReader;
use crate::attempts::read_attempts;
use crate::error::Error;
use crate::grouping::SumQuery;
use crate::rollup;
use crate::run_reports;
use crate::runs::RunState;
use crate::similar::similar_names;
use crate::status::read_status;
use crate::store::HOUR_S;
use crate::sums::Dimension;
use crate::time::DAY_S;

/// Seconds since its last report for which a run without an end counts as lasting. Runs are
/// reported once an hour.
const REPORTED_S: u64 = 2 * HOUR_S;

/// Longest time without GPUs within a run of which no report is known, or between two attempts.
const GAP_S: u64 = DAY_S;

/// A run that the store knows.
#[derive(Clone, Debug)]
pub struct KnownRun {
    /// From its begin to its end, or to the present, in seconds since 1970.
    pub life: Range<u64>,
    /// What its reports say, if there are any.
    pub state: RunState,
}

impl FleetReader {
    /// Looks up a run such as `slurm/7`, of whatever age.
    ///
    /// # Errors
    /// If the store knows no such run, or if a file cannot be read.
    pub fn find_run(&self, run: &str, now_unix_s: u64) -> Result<KnownRun, Error> {
        let (reports, mut names) = run_reports::find_last(self.folder(), run)?;
        if let Some(state) = RunState::merge(reports) {
            let start = state.started_unix_s.unwrap_or(state.seen_unix_s);
            let start = self.first_attempt_s(run, &state, start)?;
            // A run whose agent has gone lasts as long as rows of it may exist.
            let last = (state.seen_unix_s + REPORTED_S).min(now_unix_s);
            let end = state.ended_unix_s.unwrap_or(last).max(start + MINUTE_S);
            return Ok(KnownRun { life: start..end, state });
        }
        // Agents of old versions, and tests, send rows of GPUs alone.
        let mut query = SumQuery::group(&[Dimension::Run], Some(HOUR_S));
        query.selection.insert(Dimension::Run, [run.to_owned()].into());
        let hours = rollup::query(self.folder(), self.pools(), &query)?.sums;
        let mut hours = hours.keys().rev().map(|(hour, _)| *hour);
        if let Some(last) = hours.next() {
            // After a long gap, another run had the same number.
            let first = hours.try_fold(last, |first, hour| match first - hour {
                0..=GAP_S => ControlFlow::Continue(hour),
                _ => ControlFlow::Break(first),
            });
            let (ControlFlow::Continue(first) | ControlFlow::Break(first)) = first;
            let life = first..(last + HOUR_S).min(now_unix_s.max(first + MINUTE_S));
            return Ok(KnownRun { life, state: RunState::default() });
        }
        let query = SumQuery::group(&[Dimension::Run], None);
        let sums = rollup::query(self.folder(), self.pools(), &query)?.sums;
        names.extend(sums.keys().map(|(_, key)| key.member(Dimension::Run).to_owned()));
        Err(unknown("run", run, &names))
    }

    /// Returns the begin of the first attempt of a run that began last at `start`. Only schedulers
    /// start jobs again, and only they tell states.
    fn first_attempt_s(&self, run: &str, state: &RunState, start: u64) -> Result<u64, Error> {
        if state.state.is_empty() {
            return Ok(start);
        }
        let attempts = read_attempts(self.folder(), &(start.saturating_sub(GAP_S)..start))?;
        let first = attempts.get(run).and_then(|attempts| attempts.first());
        Ok(first.map_or(start, |first| first.started_unix_s.min(start)))
    }

    /// Checks that the store has something of a host until a time. Returns the end of its last row.
    ///
    /// # Errors
    /// If the store knows no such host, or if a file cannot be read.
    pub fn find_host(&self, host: &str, until_unix_s: u64) -> Result<Option<u64>, Error> {
        let statuses = read_status(self.folder(), &(0..until_unix_s))?;
        if let Some(status) = statuses.get(host) {
            return Ok(status.last_row_unix_s);
        }
        let query = SumQuery::group(&[Dimension::Host], Some(HOUR_S));
        let sums = rollup::query(self.folder(), self.pools(), &query)?.sums;
        let own = sums.keys().filter(|(_, key)| key.member(Dimension::Host) == host);
        if let Some(last) = own.map(|(hour, _)| hour + HOUR_S).max() {
            return Ok(Some(last));
        }
        let named = sums.keys().map(|(_, key)| key.member(Dimension::Host).to_owned());
        Err(unknown("host", host, &statuses.into_keys().chain(named).collect()))
    }
}

fn unknown(kind: &'static str, name: &str, known: &BTreeSet<String>) -> Error {
    Error::UnknownName { kind, name: name.to_owned(), similar: similar_names(name, known) }
}
