//! Lists the steps of a rank and measures how steady they are.

#[cfg(test)]
mod tests;

use schema::TableRow;
use serde::Serialize;

use crate::facts::classify::WorkClass;
use crate::facts::device_step;
use crate::facts::distribution::{self, Durations, thousandths};
use crate::facts::interval::{self, Interval};
use crate::facts::scope::Scope;
use crate::facts::window;
use crate::percent::percent;

/// One step of one rank.
///
/// Device figures are of the time between the step's start and end, whatever launched the work,
/// and `None` where the scope's window does not hold the whole step. Several devices count as one:
/// busy is the time in which any works.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct StepRow {
    pub rank: u32,
    pub number: i64,
    pub start_ns: i64,
    /// Host time from its start to its end.
    pub host_ns: i64,
    /// Device time: from the end of the last work launched before the step to that of the last
    /// launched in it, if it differs from `host_ns` by more than 1 %. See
    /// [`device_step::find_device_steps`](crate::facts::device_step::find_device_steps).
    pub device_ns: Option<i64>,
    /// Time from its start to the start of the next step; `None` for the last.
    pub period_ns: Option<i64>,
    /// Whether all of it was recorded; the first and the last often are not.
    pub is_whole: bool,
    /// Time in which any device work runs.
    pub busy_ns: Option<i64>,
    pub idle_ns: Option<i64>,
    pub compute_ns: Option<i64>,
    pub communication_ns: Option<i64>,
    /// Time in which communication runs, but no compute.
    pub exposed_communication_ns: Option<i64>,
    /// Time in which copies or sets run.
    pub memory_ns: Option<i64>,
    pub busy_pct: Option<f64>,
}

/// Spread of the steps of a rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TableRow)]
pub struct StepSummary {
    pub rank: u32,
    /// Number of whole steps, or of all steps if none is whole.
    pub count: u64,
    /// Number of steps that are not whole.
    pub incomplete_count: u64,
    /// Sum of their times on the host.
    pub total_ns: i64,
    /// Median device step over the steps in which it differs from the host's by more than 1 %;
    /// `None` if it does not in most steps.
    pub device_p50_ns: Option<i64>,
    /// Host durations of single steps.
    #[serde(flatten)]
    pub durations: Durations,
    /// Coefficient of variation in percent: `std_ns` divided by `mean_ns`. `None` for fewer than
    /// two steps.
    pub cv_pct: Option<f64>,
}

/// Lists all steps of the trace, by start.
///
/// # Cost
/// `O(n log n)` in the rows of the trace.
pub fn list_steps(scope: &Scope<'_>) -> Vec<StepRow> {
    let steps = &scope.steps;
    let class_time = |class| interval::union(scope.spans(|_, found| found == class));
    let busy = interval::union(scope.spans(|_, _| true));
    let compute = class_time(WorkClass::Compute);
    let communication = class_time(WorkClass::Communication);
    let exposed = interval::difference(&communication, &compute);
    let memory = class_time(WorkClass::Memory);
    let next = steps.iter().skip(1).map(|step| Some(step.start)).chain([None]);
    let devices = device_step::find_device_steps(scope.trace, scope.links(), steps);
    let row = |((step, next), device_ns): ((&window::TrainingStep, Option<i64>), Option<i64>)| {
        let span = (step.start, step.end);
        let is_inside = scope.window.start <= step.start && step.end <= scope.window.end;
        let has_work = is_inside && !scope.device_rows.is_empty();
        let within = |union: &[Interval]| has_work.then(|| interval::length_within(union, span));
        let host_ns = step.end - step.start;
        let busy_ns = within(&busy);
        StepRow {
            rank: scope.trace.rank,
            number: step.number,
            start_ns: step.start,
            host_ns,
            device_ns,
            period_ns: next.map(|next| next - step.start),
            is_whole: step.is_whole,
            busy_ns,
            idle_ns: busy_ns.map(|busy| host_ns - busy),
            compute_ns: within(&compute),
            communication_ns: within(&communication),
            exposed_communication_ns: within(&exposed),
            memory_ns: within(&memory),
            busy_pct: busy_ns.and_then(|busy| percent(busy, host_ns)),
        }
    };
    steps.iter().zip(next).zip(devices).map(row).collect()
}

/// Summarizes the spread of the steps of one rank.
pub fn summary(rank: u32, steps: &[StepRow]) -> StepSummary {
    let whole = steps.iter().filter(|step| step.is_whole).count();
    let counts = |step: &&StepRow| step.is_whole || whole == 0;
    let mut times: Vec<i64> = steps.iter().filter(counts).map(|step| step.host_ns).collect();
    let spread = distribution::describe_values(&mut times);
    let mut devices: Vec<i64> =
        steps.iter().filter(counts).filter_map(|step| step.device_ns).collect();
    let differ = 2 * devices.len() > times.len();
    let cv_pct = 100.0 * spread.std / spread.mean;
    StepSummary {
        rank,
        count: spread.count,
        incomplete_count: (steps.len() - whole) as u64,
        total_ns: spread.total,
        device_p50_ns: differ.then(|| distribution::describe_values(&mut devices).p50),
        durations: spread.into(),
        cv_pct: (spread.count > 1 && spread.mean > 0.0).then(|| thousandths(cv_pct)),
    }
}
