//! Summarizes a job on one page: what the trace contains, how long a step takes, where the time
//! goes, and how far the figures can be trusted. The page only combines results of the other
//! analyses.

mod era;
mod host;
#[cfg(test)]
mod tests;
mod top;

use std::collections::BTreeSet;

use serde::Serialize;

pub use era::Era;
pub use host::{OwnTime, ThreadTime};
pub use top::{TopKernel, TopOperator};

use crate::facts::job::{JobFacts, RankFacts};
use crate::facts::quality::{Issue, QualityVerdict};
use crate::facts::window::{StepMark, WindowRule};
use crate::percent::percent;
use crate::tables::breakdown::{self, Breakdown};
use crate::tables::steps::{self, StepSummary};

/// Summary of a job on one page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The recorded job: program, hardware and ranks.
    pub job: JobSummary,
    pub ranks: Vec<RankSummary>,
    /// The breakdown of the window of each rank.
    pub breakdowns: Vec<Breakdown>,
    /// The steps of each rank whose trace names steps.
    pub steps: Vec<StepSummary>,
    /// Parts into which the time of all windows divides; the parts add up to the windows.
    pub parts: Vec<TimePart>,
    /// The device work that takes the most time, over all ranks.
    pub kernels: Vec<TopKernel>,
    /// The outermost operators with the most device time, or with the most host time if there is no
    /// device.
    pub operators: Vec<TopOperator>,
    /// Operators with the most time of their own over all ranks, filled if no rank has device work.
    pub own_times: Vec<OwnTime>,
    /// Threads of all ranks, busiest first, filled if no rank has device work.
    pub threads: Vec<ThreadTime>,
    /// Defects of the recordings, worst first.
    pub issues: Vec<Issue>,
    /// Overall quality of the recordings, which follows from the issues.
    pub verdict: QualityVerdict,
    /// The sentence with which reports explain `verdict`.
    pub verdict_words: &'static str,
}

/// The recorded job: program, hardware and ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobSummary {
    /// The profiler version that wrote the files, as their form shows.
    pub era: Era,
    /// The program that wrote the first file, if it was not PyTorch.
    pub foreign_writer: Option<&'static str>,
    /// Whether the devices are pools of CPU threads of rowmill's own trainer.
    pub is_pool: bool,
    pub rank_count: u64,
    /// Number of ranks of the job, if the files state it.
    pub world_size: Option<u32>,
    /// The backend of the collectives, if the files name it.
    pub backend: Option<String>,
    /// Names of the devices that had work; empty if unknown.
    pub devices: String,
    pub device_count: u64,
    /// Number of events in all files, including metadata.
    pub event_count: u64,
    /// Bytes of the files' uncompressed text.
    pub text_bytes: u64,
    /// The rule that selected the window, if it is the same for all ranks.
    pub window_rule: Option<WindowRule>,
    /// Number of whole steps of the rank with the fewest.
    pub step_count: u64,
    /// The kind of annotation that delimits the steps, taken from the first rank that has steps.
    pub step_mark: Option<StepMark>,
    /// The rank with the longest median step; `None` without steps.
    pub step_rank: Option<u32>,
    /// Median step of that rank on the host.
    pub step_p50_ns: Option<i64>,
    /// Median step of the devices, if their steps are longer than the host's by more than 1 %.
    pub device_step_p50_ns: Option<i64>,
    /// Whether the recording contains no device work, so that the host counts as the device.
    pub is_of_host: bool,
    pub window_ns: i64,
    /// Share of all windows in which a device is busy, in percent.
    pub busy_pct: Option<f64>,
    /// Share of the device work that an operator owns, in percent.
    pub attributed_pct: Option<f64>,
}

/// Summary of one rank, with its steps, busy time and losses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankSummary {
    pub rank: u32,
    pub origin: String,
    /// Names and ordinals of the devices that had work.
    pub devices: String,
    pub event_count: u64,
    /// Number of events that have a duration.
    pub slice_count: u64,
    /// Number of threads with operators, annotations or calls.
    pub thread_count: u64,
    /// Number of streams with device work in the window.
    pub stream_count: u64,
    /// Start of the window, in absolute nanoseconds.
    pub start_ns: i64,
    pub window_ns: i64,
    pub step_count: u64,
    /// Median step on the host.
    pub step_p50_ns: Option<i64>,
    /// Median step of the devices, if their steps are longer than the host's by more than 1 %.
    pub device_step_p50_ns: Option<i64>,
    pub busy_pct: Option<f64>,
    /// Exposed communication as a share of the window, in percent.
    pub exposed_communication_pct: Option<f64>,
    /// Share of the device work that an operator owns, in percent.
    pub attributed_pct: Option<f64>,
    /// Number of events that the reader could not use.
    pub loss_count: u64,
}

/// One part of the time of all windows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimePart {
    /// Name of the part: `compute`, `exposed_communication`, `exposed_memory`, `exposed_other` or
    /// `idle`.
    pub part: &'static str,
    /// Nanoseconds of the part, summed over all ranks.
    pub time_ns: i64,
    pub window_pct: Option<f64>,
}

/// Summarizes a job, naming the first `top` kernels and operators.
///
/// # Cost
/// The cost is `O(n log n)` in the rows of the traces.
pub fn summarize_job(job: &JobFacts<'_>, top: usize) -> Summary {
    let ranks = job.ranks.as_slice();
    let breakdowns: Vec<Breakdown> =
        ranks.iter().map(|rank| breakdown::compute_recorded_breakdown(rank.scope)).collect();
    let steps: Vec<StepSummary> =
        ranks.iter().map(|rank| steps::summary(rank.rank(), rank.steps())).collect();
    let verdict = job.verdict();
    let has_device = |row: &&Breakdown| row.device_count > 0;
    let busy_ns = breakdowns.iter().filter(has_device).map(|row| row.busy_ns).sum();
    let is_of_host = !ranks.is_empty() && ranks.iter().all(|r| breakdown::is_of_host(r.scope));
    let each = ranks.iter().zip(breakdowns.iter().zip(&steps));
    Summary {
        job: build_job_summary(ranks, &breakdowns, &steps),
        ranks: each
            .map(|(rank, (breakdown, steps))| build_rank_summary(rank, breakdown, steps))
            .collect(),
        parts: parts(&breakdowns),
        kernels: top::kernels(ranks, busy_ns, top),
        operators: top::operators(ranks, busy_ns, top),
        own_times: if is_of_host { host::own_times(ranks, top) } else { Vec::new() },
        threads: if is_of_host { host::threads(ranks) } else { Vec::new() },
        steps: steps.into_iter().filter(|steps| steps.count > 0).collect(),
        breakdowns,
        issues: job.issues().to_vec(),
        verdict,
        verdict_words: verdict.words(),
    }
}

fn build_job_summary(
    ranks: &[RankFacts<'_>],
    breakdowns: &[Breakdown],
    steps: &[StepSummary],
) -> JobSummary {
    let traces = || ranks.iter().map(|rank| rank.scope.trace);
    let distributed = || traces().filter_map(|trace| trace.header.distributed.as_ref());
    let names: BTreeSet<String> =
        ranks.iter().flat_map(device_names).map(|(_, name)| name).collect();
    let names: Vec<String> = names.into_iter().filter(|name| !name.is_empty()).collect();
    let rules: Vec<WindowRule> = ranks.iter().map(|rank| rank.scope.window.rule).collect();
    let same_rule = rules.windows(2).all(|pair| pair[0] == pair[1]);
    let window_ns = breakdowns.iter().map(|row| row.window_ns).sum();
    let has_device = |row: &&Breakdown| row.device_count > 0;
    let busy_ns = breakdowns.iter().filter(has_device).map(|row| row.busy_ns).sum();
    let methods = || ranks.iter().map(|rank| rank.attribution().methods.len() as i64);
    let covered = ranks.iter().map(|rank| rank.attribution().covered_count() as i64);
    let step = |(rank, steps): (&RankFacts<'_>, &StepSummary)| {
        // A job waits for its slowest rank, and a device that lags behind makes a step longer than
        // the host's.
        let (host, device) = (median_step(steps)?, device_step(rank, steps));
        Some((host.max(device.unwrap_or_default()), std::cmp::Reverse(steps.rank), host, device))
    };
    let slowest = ranks.iter().zip(steps).filter_map(step).max();
    JobSummary {
        era: Era::new(traces()),
        foreign_writer: traces().find_map(crate::facts::writer::foreign),
        is_pool: crate::facts::cpu_run::are_cpu_runs(traces()),
        rank_count: ranks.len() as u64,
        world_size: distributed().filter_map(|job| job.world_size).max(),
        backend: distributed().map(|job| job.backend.clone()).find(|backend| !backend.is_empty()),
        devices: names.join(", "),
        device_count: breakdowns.iter().map(|row| u64::from(row.device_count)).sum(),
        event_count: traces().map(trace::store::Trace::event_count).sum(),
        text_bytes: traces().map(|trace| trace.origin.text_bytes).sum(),
        window_rule: rules.first().copied().filter(|_| same_rule),
        step_count: steps.iter().map(whole_steps).min().unwrap_or(0),
        step_mark: ranks.iter().find_map(|rank| rank.scope.step_mark),
        step_rank: slowest.map(|(_, rank, ..)| rank.0),
        step_p50_ns: slowest.map(|(.., host, _)| host),
        device_step_p50_ns: slowest.and_then(|(.., device)| device),
        is_of_host: !ranks.is_empty() && ranks.iter().all(|r| breakdown::is_of_host(r.scope)),
        window_ns,
        busy_pct: percent(busy_ns, window_ns).filter(|_| methods().sum::<i64>() > 0),
        attributed_pct: percent(covered.sum(), methods().sum()),
    }
}

fn build_rank_summary(
    rank: &RankFacts<'_>,
    breakdown: &Breakdown,
    steps: &StepSummary,
) -> RankSummary {
    let trace = rank.scope.trace;
    let name = |(device, name): (i32, String)| {
        if name.is_empty() { device.to_string() } else { format!("{name} ({device})") }
    };
    let streams: BTreeSet<(i32, i32)> =
        rank.scope.device_rows.iter().map(|row| (trace.device(*row), trace.stream(*row))).collect();
    let path = trace.origin.path.display();
    let has_work = !rank.scope.device_rows.is_empty();
    let window_pct_of = |part| percent(part, breakdown.window_ns).filter(|_| has_work);
    RankSummary {
        rank: trace.rank,
        origin: match &trace.origin.member {
            Some(member) => format!("{path}: {member}"),
            None => path.to_string(),
        },
        devices: device_names(rank).into_iter().map(name).collect::<Vec<_>>().join(", "),
        event_count: trace.event_count(),
        slice_count: trace.slices.len() as u64,
        thread_count: rank.tree().threads.len() as u64,
        stream_count: streams.len() as u64,
        start_ns: rank.scope.window.start,
        window_ns: breakdown.window_ns,
        step_count: whole_steps(steps),
        step_p50_ns: median_step(steps),
        device_step_p50_ns: device_step(rank, steps),
        busy_pct: window_pct_of(breakdown.busy_ns),
        exposed_communication_pct: window_pct_of(breakdown.exposed_communication_ns),
        attributed_pct: rank.attribution().covered_pct(),
        loss_count: trace.losses.iter().map(|(_, counted)| counted.count).sum(),
    }
}

/// Returns the devices that had work, with their names from the header, or with empty names.
fn device_names(rank: &RankFacts<'_>) -> Vec<(i32, String)> {
    let header = &rank.scope.trace.header;
    let name = |device: i32| {
        header.device(i64::from(device)).map(|known| known.name.clone()).unwrap_or_default()
    };
    rank.scope.devices().into_iter().map(|device| (device, name(device))).collect()
}

fn whole_steps(steps: &StepSummary) -> u64 {
    // If no step is whole, `steps.count` counts incomplete steps.
    if steps.count == steps.incomplete_count { 0 } else { steps.count }
}

fn median_step(steps: &StepSummary) -> Option<i64> {
    (steps.count > 0).then_some(steps.durations.p50_ns)
}

/// Returns the median device step, if the devices' steps are longer than the host's over the whole
/// window.
fn device_step(rank: &RankFacts<'_>, steps: &StepSummary) -> Option<i64> {
    steps.device_p50_ns.filter(|_| rank.scope.device_span.is_some())
}

fn parts(breakdowns: &[Breakdown]) -> Vec<TimePart> {
    const NAMES: [&str; 5] =
        ["compute", "exposed_communication", "exposed_memory", "exposed_other", "idle"];
    let mut sums = [0; NAMES.len()];
    let mut window_ns = 0;
    for row in breakdowns {
        let exposed = [row.exposed_communication_ns, row.exposed_memory_ns, row.exposed_other_ns];
        let times = std::iter::once(row.compute_ns).chain(exposed).chain([row.idle_ns]);
        sums.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
        window_ns += row.window_ns;
    }
    let part =
        |(part, time_ns)| TimePart { part, time_ns, window_pct: percent(time_ns, window_ns) };
    NAMES.into_iter().zip(sums).map(part).collect()
}
