//! Budgets of periodic traces per workflow type: what was used today, when the next trace is due,
//! and how many steps it represents. The module uses no clock, process or file; times and counts
//! are arguments.

use std::collections::BTreeMap;

use fleet::wire::PeriodicRow;
use schema::random::{CounterRng, mix};
use serde::{Deserialize, Serialize};

use super::policy::TraceBudgets;
use super::step_times::Slowdown;

const DAY_S: u64 = 86_400;
/// Shortest and longest duration of a back-off, in seconds. Each further slow trace in a row
/// doubles the duration.
const BACKED_OFF_S: (u64, u64) = (3600, DAY_S);
/// Number of consecutive slow traces after which tracing pauses for the first time. A single slow
/// trace may be chance.
const SLOW_IN_ROW: u32 = 3;
/// A trace counts as slow if its slowdown exceeds this many standard deviations of untraced
/// windows. For a job with varying steps that is not slowed down, one trace exceeds two deviations
/// with a probability of 2 to 9 %, depending on the number of windows. Three in a row exceed them
/// with a probability of less than 0.1 %.
const SPREADS: f64 = 2.0;
/// Largest number of workflow types per user. The names of workflow types come from jobs and become
/// labels of metrics, so jobs could create any number.
const WORKFLOWS_MAX: usize = 16;
/// Largest number of users that have a workflow type.
const USERS_MAX: usize = 256;
/// The name of the workflow type that all names beyond the limit share.
const OTHERS: &str = "(others)";
/// Version of the budgets file. Files of other versions are ignored.
const VERSION: u32 = 2;

/// The budgets of all workflow types of a host, by user.
#[derive(Debug, Serialize, Deserialize)]
pub struct HostBudgets {
    version: u32,
    /// Day of the usage, in days since 1970 (UTC).
    day: u64,
    /// Budgets by user and workflow type, so that no user can spend the budget of another.
    users: BTreeMap<u32, BTreeMap<String, WorkflowBudget>>,
}

/// The key of a workflow type: its user and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Workflow {
    pub uid: u32,
    pub name: String,
}

/// Today's usage of one workflow type, and the schedule of its traces.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkflowBudget {
    /// Number of traces that were kept today.
    pub traces: u32,
    /// Number of traces that were lost today.
    pub lost: u32,
    /// Bytes that the profiler has written today.
    pub bytes: u64,
    pub steps: u64,
    pub recorded: u64,
    /// Steps since the last kept trace, which the next trace represents.
    pub since: u64,
    /// Bytes of the largest trace so far. The next trace is assumed to need as many.
    pub largest: u64,
    /// Slowdown of steps during the last trace, as a share of the step time.
    pub slowdown: Option<f64>,
    /// Standard deviation of the slowdown that steps show without a trace, as a share of the step
    /// time.
    #[serde(default)]
    pub spread: Option<f64>,
    /// Number of slow traces in a row, up to the last trace.
    #[serde(default)]
    slow_in_row: u32,
    /// The second of the day at which the last trace began.
    begun_s: Option<u64>,
    not_before_unix_s: u64,
    /// The last slot without a trace so far, and the reason why.
    #[serde(skip)]
    waits: Option<(u64, SkipReason)>,
    /// The reason why the last trace was lost; `None` if it was kept.
    #[serde(skip)]
    problem: Option<String>,
    /// Totals since the agent started, for metrics.
    #[serde(skip)]
    pub totals: Totals,
}

/// Counts of one workflow type since the agent started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub written: u64,
    pub lost: u64,
    /// Bytes that the profiler wrote for periodic traces.
    pub bytes: u64,
    pub steps: u64,
    pub recorded: u64,
    /// Number of slots that ended without a trace, by reason.
    pub skipped: BTreeMap<SkipReason, u64>,
}

/// The reason why no trace can be started at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SkipReason {
    /// The scheduled time within the slot has not been reached.
    NotDue,
    /// The budget of the workflow type is zero.
    Off,
    /// The number of traces allowed today is used up.
    Traces,
    /// The bytes allowed today are used up.
    Bytes,
    /// A trace would exceed the allowed share of recorded steps.
    Steps,
    /// Recent traces slowed down the job's steps.
    BackedOff,
    /// Hardware counters are paused for other tools.
    Paused,
    /// All processes are being profiled or already have a trace request.
    Busy,
    NotTraining,
    /// The process has made too few steps for a comparison with traced ones.
    TooNew,
}

impl SkipReason {
    /// The label of the reason in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::NotDue => "not_due",
            Self::Off => "off",
            Self::Traces => "traces",
            Self::Bytes => "bytes",
            Self::Steps => "steps",
            Self::BackedOff => "backed_off",
            Self::Paused => "paused",
            Self::Busy => "busy",
            Self::NotTraining => "not_training",
            Self::TooNew => "too_new",
        }
    }

    /// The reason as a phrase for status output.
    fn words(self) -> &'static str {
        match self {
            Self::NotDue => "waits for its scheduled time",
            Self::Off => "off",
            Self::Traces => "today's traces are used up",
            Self::Bytes => "today's bytes are used up",
            Self::Steps => "needs more steps",
            Self::BackedOff => "backs off",
            Self::Paused => "counters are paused",
            Self::Busy => "profilers are busy",
            Self::NotTraining => "nobody trains",
            Self::TooNew => "too few steps yet",
        }
    }
}

/// A moment of the wall clock, with a resolution of one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallTime {
    pub unix_s: u64,
}

impl WallTime {
    fn day(self) -> u64 {
        self.unix_s / DAY_S
    }

    fn second(self) -> u64 {
        self.unix_s % DAY_S
    }
}

impl Default for HostBudgets {
    fn default() -> Self {
        Self { version: VERSION, day: 0, users: BTreeMap::new() }
    }
}

impl HostBudgets {
    /// Parses the budgets file. Returns `None` if it is damaged or of another version.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let budgets: Option<Self> = serde_json::from_slice(bytes).ok();
        budgets.filter(|budgets| budgets.version == VERSION)
    }

    /// Resets the usage of all workflow types if a new day has begun.
    pub fn start_day(&mut self, now: WallTime) {
        let day = now.day();
        // If the clock was set back slightly across midnight, today's budget must not be granted a
        // second time.
        if day == self.day || day + 1 == self.day {
            return;
        }
        self.day = day;
        // Workflow types that made no step for a day are forgotten.
        self.users.retain(|_, workflows| {
            workflows.retain(|_, budget| budget.steps > 0);
            !workflows.is_empty()
        });
        for budget in self.users.values_mut().flat_map(BTreeMap::values_mut) {
            let kept = std::mem::take(budget);
            *budget = WorkflowBudget {
                // The slowdown, the back-off and the weight continue across midnight; only the
                // daily usage restarts.
                since: kept.since,
                largest: kept.largest,
                slowdown: kept.slowdown,
                spread: kept.spread,
                slow_in_row: kept.slow_in_row,
                not_before_unix_s: kept.not_before_unix_s,
                totals: kept.totals,
                ..WorkflowBudget::default()
            };
        }
    }

    /// Maps the name that a job reports to a workflow type. Beyond the limit per user, all further
    /// names share one type. Returns `None` if too many users have workflow types.
    pub fn workflow(&self, uid: u32, name: &str) -> Option<Workflow> {
        let workflows = self.users.get(&uid);
        if workflows.is_none() && self.users.len() >= USERS_MAX {
            return None;
        }
        // A job chooses its name freely, so without the limit a user could create any number of
        // types.
        let has_room = workflows.is_none_or(|workflows| {
            workflows.contains_key(name) || workflows.len() < WORKFLOWS_MAX
        });
        let name = if has_room { name } else { OTHERS };
        Some(Workflow { uid, name: name.to_owned() })
    }

    /// Returns the budget of a workflow type, and creates it if necessary.
    pub fn budget(&mut self, workflow: &Workflow) -> &mut WorkflowBudget {
        let own = self.users.entry(workflow.uid).or_default();
        own.entry(workflow.name.clone()).or_default()
    }

    /// Iterates over all workflow types, with the user of each.
    pub fn all(&self) -> impl Iterator<Item = (u32, &String, &WorkflowBudget)> {
        self.users.iter().flat_map(|(uid, own)| own.iter().map(|(name, one)| (*uid, name, one)))
    }
}

impl WorkflowBudget {
    /// Counts steps that processes of this workflow type made.
    pub fn add_steps(&mut self, steps: u64) {
        self.steps += steps;
        self.since += steps;
        self.totals.steps += steps;
    }

    /// Checks the time and all budgets. Returns the number of bytes that a trace started at this
    /// moment may have.
    ///
    /// A day is divided into as many equal slots as it may have traces. `seed` determines the time
    /// within the slot, so that it differs between hosts and days.
    ///
    /// # Errors
    /// Returns the reason why no trace may start.
    pub fn allowance(
        &self,
        now: WallTime,
        limits: &TraceBudgets,
        seed: u64,
    ) -> Result<u64, SkipReason> {
        if limits.traces == 0 {
            return Err(SkipReason::Off);
        }
        let slot = slot(now.second(), limits.traces);
        let is_used =
            self.begun_s.is_some_and(|begun_s| self::slot(begun_s, limits.traces) >= slot);
        if is_used || now.second() < due(now, limits, seed) {
            return Err(SkipReason::NotDue);
        }
        if self.not_before_unix_s > now.unix_s {
            return Err(SkipReason::BackedOff);
        }
        if self.traces + self.lost >= limits.traces {
            return Err(SkipReason::Traces);
        }
        let recorded = self.recorded + u64::from(limits.iterations);
        if recorded as f64 > limits.share * self.steps as f64 {
            return Err(SkipReason::Steps);
        }
        let left = limits.bytes.saturating_sub(self.bytes);
        // A trace is assumed to be as large as the largest one so far, so that it does not exceed
        // the budget.
        if left == 0 || left < self.largest { Err(SkipReason::Bytes) } else { Ok(left) }
    }

    /// Records the start of a trace. The trace uses up its slot even if it is lost later.
    pub fn begin(&mut self, now: WallTime, limits: &TraceBudgets) {
        self.pass(slot(now.second(), limits.traces));
        self.begun_s = Some(now.second());
        self.waits = None;
    }

    /// Records why no trace is started at this moment. If the slot ends without a trace, the last
    /// reason is counted.
    pub fn wait(&mut self, now: WallTime, limits: &TraceBudgets, why: SkipReason) {
        let slot = slot(now.second(), limits.traces);
        self.pass(slot);
        if why != SkipReason::NotDue {
            self.waits = Some((slot, why));
        }
    }

    fn pass(&mut self, slot: u64) {
        if let Some((_, why)) = self.waits.take_if(|(before, _)| *before != slot) {
            *self.totals.skipped.entry(why).or_default() += 1;
        }
    }

    /// The number of steps that each recorded step represents, if the trace were kept at this
    /// moment. `recorded` is the number of steps in the trace.
    pub fn weight(&self, recorded: u32) -> f64 {
        self.since as f64 / f64::from(recorded.max(1))
    }

    /// Counts a kept trace. The next trace represents the steps that are made from this moment on.
    pub fn keep(&mut self, bytes: u64, recorded: u32) {
        self.traces += 1;
        self.totals.written += 1;
        self.bytes += bytes;
        self.totals.bytes += bytes;
        self.largest = self.largest.max(bytes);
        self.recorded += u64::from(recorded);
        self.totals.recorded += u64::from(recorded);
        (self.since, self.problem) = (0, None);
    }

    /// Counts a lost trace. The next trace also represents the steps that the lost trace would have
    /// represented.
    pub fn lose(&mut self, problem: String) {
        self.lost += 1;
        self.totals.lost += 1;
        self.problem = Some(problem);
    }

    /// Records the slowdown of a trace. After [`SLOW_IN_ROW`] slow traces in a row, tracing backs
    /// off. A trace is slow if its slowdown exceeds the limit and the job's own spread cannot
    /// explain it. Traces whose spread is unknown do not count.
    pub fn record_slowdown(&mut self, now: WallTime, limits: &TraceBudgets, slowdown: Slowdown) {
        (self.slowdown, self.spread) = (Some(slowdown.share), slowdown.spread);
        let Some(spread) = slowdown.spread else { return };
        if slowdown.share <= limits.slowdown.max(SPREADS * spread) {
            self.slow_in_row = 0;
            return;
        }
        self.slow_in_row = self.slow_in_row.saturating_add(1);
        if let Some(doublings) = self.slow_in_row.checked_sub(SLOW_IN_ROW) {
            let (first, longest) = BACKED_OFF_S;
            let length = first.saturating_mul(1 << doublings.min(16)).min(longest);
            self.not_before_unix_s = now.unix_s + length;
        }
    }

    /// Remaining seconds of the back-off; 0 if tracing does not back off.
    pub fn backs_off(&self, now: WallTime) -> u64 {
        self.not_before_unix_s.saturating_sub(now.unix_s)
    }

    /// Summarizes the state of a workflow type for status output.
    pub fn row(&self, name: &str, now: WallTime, limits: &TraceBudgets) -> PeriodicRow {
        let wait = match (limits.traces, self.backs_off(now), self.waits) {
            (0, ..) => SkipReason::Off,
            (_, 1.., _) => SkipReason::BackedOff,
            (.., waits) => waits.map_or(SkipReason::NotDue, |(_, why)| why),
        };
        PeriodicRow {
            uid: 0,
            workflow: name.to_owned(),
            traces: self.traces,
            traces_max: limits.traces,
            lost: self.lost,
            bytes: self.bytes,
            bytes_max: limits.bytes,
            steps: self.steps,
            recorded: self.recorded,
            share_max: limits.share,
            slowdown: self.slowdown,
            spread: self.spread,
            slow_in_row: self.slow_in_row,
            backs_off_s: Some(self.backs_off(now)).filter(|left| *left > 0),
            state: wait.words().to_owned(),
            problem: self.problem.clone(),
        }
    }
}

/// The number of the slot that contains a second of the day.
fn slot(second: u64, traces: u32) -> u64 {
    second * u64::from(traces) / DAY_S
}

/// The second of the day at which the trace of the current slot is due.
fn due(now: WallTime, limits: &TraceBudgets, seed: u64) -> u64 {
    let traces = u64::from(limits.traces);
    let slot = slot(now.second(), limits.traces);
    let (begin, end) = ((slot * DAY_S).div_ceil(traces), ((slot + 1) * DAY_S).div_ceil(traces));
    let draw = CounterRng::new(seed, now.day());
    begin + draw.below(slot, (end - begin).max(1))
}

/// Hashes words to a seed, so that hosts and days get different random numbers.
pub fn seed_of(words: &[&str]) -> u64 {
    let bytes = words.iter().flat_map(|word| word.bytes().chain([0]));
    bytes.fold(0, |seed, byte| mix(seed ^ u64::from(byte)).wrapping_add(1))
}

/// Draws a process with a probability proportional to its steps since the last trace of its
/// workflow type.
pub fn choose(steps: &[(u32, u64)], draw: CounterRng, counter: u64) -> Option<u32> {
    let all: u64 = steps.iter().map(|(_, steps)| steps).sum();
    let mut left = draw.below(counter, all.max(1));
    let chosen = steps.iter().find(|(_, steps)| {
        let is_it = left < *steps;
        left = left.saturating_sub(*steps);
        is_it
    });
    chosen.or(steps.first()).map(|(pid, _)| *pid)
}

#[cfg(test)]
mod tests;
