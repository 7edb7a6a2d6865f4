//! Orders traces without a person: of runs that leave the band of their history, and by schedule.
//!
//! The thread looks at whole intervals of equal length. For each run it knows the step time and the
//! share in which its GPUs were busy in past intervals ([`readings`]), and [`band`] says which
//! values are usual. Budgets and pauses are counted from the orders themselves, so that they hold
//! over restarts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::active_runs::ActiveRun;
use crate::log::say;
use crate::orders::{HubOrder, OrderBoard, OrderFailure, OrderWish};
use crate::pattern::matches_pattern;
use crate::store::{HOUR_S, StoreFolder};
use crate::time::DAY_S;

pub mod band;
pub mod readings;
pub mod rules;

use band::Band;
use readings::{RunInterval, read_intervals};
use rules::WatchRules;

/// Name in orders that the watch gives.
pub const WATCH: &str = "watch";
/// Seconds after the end of an interval at which its rows have arrived.
const LAG_S: u64 = 15;
/// Largest number of intervals that are remembered of a run.
const REMEMBERED_MAX: usize = 512;
/// Interval at which the thread checks whether the hub is ending.
const TICK: Duration = Duration::from_millis(200);

/// The past intervals of all runs.
pub struct RunWatch {
    rules: WatchRules,
    folder: Arc<StoreFolder>,
    board: Arc<OrderBoard>,
    runs: BTreeMap<String, WatchedRun>,
}

/// A run with its past intervals, oldest first.
#[derive(Clone, Debug, Default)]
struct WatchedRun {
    workflow: String,
    user: String,
    /// Host with the slowest steps in the last interval.
    host: String,
    intervals: VecDeque<Reading>,
}

/// What is remembered of an interval of a run. Values are `None` if they are unknown.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reading {
    start_s: u64,
    /// Mean step time in seconds.
    step_s: Option<f64>,
    /// Share of the observed time in which GPUs were busy.
    busy_share: Option<f64>,
}

/// A run of which a trace shall be ordered, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DueTrace {
    run: String,
    why: String,
    left_band_unix_s: Option<u64>,
}

impl RunWatch {
    /// Creates a watch. Its thread reads the history of runs when it starts.
    pub fn new(rules: WatchRules, folder: Arc<StoreFolder>, board: Arc<OrderBoard>) -> Self {
        Self { rules, folder, board, runs: BTreeMap::new() }
    }

    /// Starts the thread, which first reads the history. It ends when `stop` is set.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub fn start(mut self, stop: Arc<AtomicBool>) -> std::io::Result<JoinHandle<()>> {
        thread::Builder::new().name("watch".to_owned()).spawn(move || {
            let interval_s = self.rules.interval_s;
            let mut from = unix_s().saturating_sub(self.rules.history.as_secs());
            from = from / interval_s * interval_s;
            while !stop.load(Ordering::SeqCst) {
                let last = (unix_s() - LAG_S) / interval_s * interval_s;
                // The history is read by the hour, as the files have it.
                let until = last.min((from / HOUR_S + 1) * HOUR_S);
                if until <= from {
                    thread::sleep(TICK);
                    continue;
                }
                match read_intervals(&self.folder, from..until, interval_s) {
                    Ok(intervals) => self.add(intervals, until),
                    Err(error) => say(&format!("note: runs are not watched: {error}")),
                }
                if until == last {
                    self.order_traces(until, unix_s());
                }
                from = until;
            }
        })
    }

    /// Adds intervals, which are later than those that are known, and forgets old ones.
    fn add(&mut self, intervals: Vec<RunInterval>, now_unix_s: u64) {
        for interval in intervals {
            let reading = Reading {
                start_s: interval.start_s,
                step_s: interval.step_time_s(),
                busy_share: interval.busy_share(),
            };
            let host = interval.host().unwrap_or_default().to_owned();
            let run = self.runs.entry(interval.run).or_default();
            (run.workflow, run.user, run.host) = (interval.workflow, interval.user, host);
            run.intervals.push_back(reading);
            if run.intervals.len() > REMEMBERED_MAX {
                run.intervals.pop_front();
            }
        }
        let oldest = now_unix_s.saturating_sub(self.rules.history.as_secs());
        for run in self.runs.values_mut() {
            while run.intervals.front().is_some_and(|interval| interval.start_s < oldest) {
                run.intervals.pop_front();
            }
        }
        self.runs.retain(|_, run| !run.intervals.is_empty());
    }

    /// Orders traces of the runs that left their band or are due, within the budget. The last
    /// interval ended at `until_unix_s`.
    fn order_traces(&self, until_unix_s: u64, now_unix_s: u64) {
        let orders = self.board.list(now_unix_s.saturating_sub(self.longest_pause_s()));
        let own: Vec<&HubOrder> = orders.iter().filter(|order| order.by == WATCH).collect();
        let lately = own.iter().filter(|order| order.created_unix_s + DAY_S > now_unix_s).count();
        let mut left = self.rules.per_day.saturating_sub(lately);
        let mut ordered = BTreeSet::new();
        for due in self.due_traces(until_unix_s, now_unix_s, &own) {
            let Some(run) = self.runs.get(&due.run) else { continue };
            // Several runs of a workflow mostly leave the band for the same reason.
            if left == 0 || !ordered.insert((run.workflow.clone(), run.user.clone())) {
                continue;
            }
            let active = ActiveRun {
                run: due.run.clone(),
                workflow: run.workflow.clone(),
                user: run.user.clone(),
                hosts: BTreeSet::from([run.host.clone()]),
            };
            let wish = OrderWish {
                steps: Some(self.rules.steps),
                why: due.why,
                left_band_unix_s: due.left_band_unix_s,
                ..OrderWish::default()
            };
            match self.board.create(&wish, active, WATCH, now_unix_s) {
                Ok(_) => left -= 1,
                Err(OrderFailure::Refused(_, reason)) => {
                    say(&format!("note: no trace of {} is ordered: {reason}", due.run));
                    return;
                }
                Err(OrderFailure::Store(error)) => {
                    say(&format!("error: no trace of {} is ordered: {error}", due.run));
                    return;
                }
            }
        }
    }

    fn longest_pause_s(&self) -> u64 {
        let every = self.rules.schedules.iter().map(|schedule| schedule.every);
        every
            .chain([self.rules.cool_down, Duration::from_secs(DAY_S)])
            .max()
            .map_or(0, |pause| pause.as_secs())
    }

    /// Lists the runs of which a trace shall be ordered now. `own` are the orders of the watch.
    fn due_traces(&self, until_unix_s: u64, now_unix_s: u64, own: &[&HubOrder]) -> Vec<DueTrace> {
        let last_s = until_unix_s.saturating_sub(self.rules.interval_s);
        let mut due_traces = Vec::new();
        for (name, run) in &self.runs {
            if run.intervals.back().is_none_or(|interval| interval.start_s < last_s) {
                continue;
            }
            let of_workflow = own
                .iter()
                .filter(|order| order.workflow == run.workflow && order.user == run.user)
                .map(|order| order.created_unix_s)
                .max();
            let is_due = |pause: Duration| {
                of_workflow.is_none_or(|last_s| last_s + pause.as_secs() <= now_unix_s)
            };
            if is_due(self.rules.cool_down)
                && let Some((why, left_s)) = self.leaves_band(name, run)
            {
                let (run, left_band_unix_s) = (name.clone(), Some(left_s));
                due_traces.push(DueTrace { run, why, left_band_unix_s });
                continue;
            }
            let scheduled = self.rules.schedules.iter().find(|schedule| {
                matches_pattern(&schedule.workflow, &run.workflow) && is_due(schedule.every)
            });
            if let Some(schedule) = scheduled {
                let why = format!("schedule: every {} s", schedule.every.as_secs());
                due_traces.push(DueTrace { run: name.clone(), why, left_band_unix_s: None });
            }
        }
        due_traces
    }

    /// Decides whether the last intervals of a run are outside of its band. Returns the reason, and
    /// the start of the first of these intervals.
    fn leaves_band(&self, name: &str, run: &WatchedRun) -> Option<(String, u64)> {
        let before = run.intervals.len().checked_sub(self.rules.intervals)?;
        let last = run.intervals.range(before..);
        // The intervals must be consecutive, because a run may have paused.
        let first_s = run.intervals.get(before)?.start_s;
        let length_s = self.rules.interval_s * (self.rules.intervals as u64 - 1);
        if run.intervals.back()?.start_s != first_s + length_s {
            return None;
        }
        let own: Vec<&Reading> = run.intervals.range(..before).collect();
        let earlier = || {
            let is_like = |(other, one): &(&String, &WatchedRun)| {
                *other != name && one.workflow == run.workflow && one.user == run.user
            };
            let runs = self.runs.iter().filter(is_like);
            let intervals = runs.flat_map(|(_, run)| run.intervals.iter());
            intervals.filter(|interval| interval.start_s < first_s).collect::<Vec<_>>()
        };
        let measures: [WatchedValue; 2] = [
            ("step time in s", |reading| reading.step_s, true),
            ("share of busy GPUs", |reading| reading.busy_share, false),
        ];
        for (what, value, is_more_worse) in measures {
            let values = |of: &[&Reading]| of.iter().filter_map(|one| value(one)).collect();
            let (mut history, mut whose): (Vec<f64>, _) = (values(&own), "of the run itself");
            if history.len() < self.rules.history_min {
                (history, whose) = (values(&earlier()), "of earlier runs of this workflow");
            }
            let now: Vec<f64> = last.clone().filter_map(value).collect();
            if history.len() < self.rules.history_min || now.len() < self.rules.intervals {
                continue;
            }
            let Some(band) = Band::new(&mut history, self.rules.deviations, self.rules.share_min)
            else {
                continue;
            };
            let is_outside = |value: &f64| {
                if is_more_worse { *value > band.high } else { *value < band.low }
            };
            if now.iter().all(is_outside) {
                let least = now.iter().copied().fold(f64::INFINITY, f64::min);
                let most = now.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let why = format!(
                    "{what}: {least:.4} to {most:.4} in {} intervals of {} s, outside of the band \
                     {:.4} to {:.4} (median {:.4} of {} intervals {whose})",
                    now.len(),
                    self.rules.interval_s,
                    band.low,
                    band.high,
                    band.median,
                    history.len(),
                );
                return Some((why, first_s));
            }
        }
        None
    }
}

/// The name of a measured value, the function that reads it, and whether more of it is worse.
type WatchedValue = (&'static str, fn(&Reading) -> Option<f64>, bool);

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests;
