//! Lists the steps of a rank and measures how much their lengths vary.

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

/// One training step of one rank, with its time on the host and on the devices.
///
/// Device figures refer to the time between the start and the end of the step, whatever launched
/// the work. Device figures are `None` if the scope's window does not contain the whole step.
/// Several devices count as one, so busy time is the time in which at least one of them works.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct StepRow {
    pub rank: u32,
    pub number: i64,
    pub start_ns: i64,
    /// Host time from the start to the end of the step.
    pub host_ns: i64,
    /// Device time from the end of the last work launched before the step to the end of the last
    /// work launched in it, if it differs from `host_ns` by more than 1 %; see
    /// [`device_step::find_device_steps`](crate::facts::device_step::find_device_steps).
    pub device_ns: Option<i64>,
    /// Time from the start of this step to the start of the next one; `None` for the last step.
    pub period_ns: Option<i64>,
    /// Whether the whole step was recorded, which is often not true for the first and the last
    /// step.
    pub is_whole: bool,
    /// Time in which any device work runs during the step.
    pub busy_ns: Option<i64>,
    pub idle_ns: Option<i64>,
    pub compute_ns: Option<i64>,
    pub communication_ns: Option<i64>,
    /// Time in which communication runs, but no compute.
    pub exposed_communication_ns: Option<i64>,
    /// Time in which copies or memsets run.
    pub memory_ns: Option<i64>,
    pub busy_pct: Option<f64>,
}

/// Number of steps of a rank and the spread of their lengths.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TableRow)]
pub struct StepSummary {
    pub rank: u32,
    /// Number of whole steps, or of all steps if none is whole.
    pub count: u64,
    /// Number of steps that are not whole.
    pub incomplete_count: u64,
    /// Total time of the counted steps on the host.
    pub total_ns: i64,
    /// Median device step, over the steps in which it differs from the host's step by more than 1
    /// %. The median is `None` if the two steps do not differ in most cases.
    pub device_p50_ns: Option<i64>,
    /// Distribution of the durations of single steps on the host.
    #[serde(flatten)]
    pub durations: Durations,
    /// Coefficient of variation in percent, which is `std_ns` divided by `mean_ns`. The coefficient
    /// is `None` for fewer than two steps.
    pub cv_pct: Option<f64>,
}

/// Lists all steps of the trace, sorted by start.
///
/// # Cost
/// The cost is `O(n log n)` in the rows of the trace.
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
        // A step that reaches beyond the window lacks device rows, so its device figures would be
        // too small.
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
