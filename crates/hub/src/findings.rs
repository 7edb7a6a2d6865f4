//! The findings of all traces: how they are stored, and the GPU hours that they cost.
//!
//! A trace stands for the GPU hours of its run from its own time, or from the moment at which the
//! run left the band of its history, until the next trace. The first trace of a run also stands for
//! the time before, unless the run had left its band. What a finding costs is its saving multiplied
//! by these hours. Several findings of a trace may save the same time, so only the joint saving of
//! a trace is added up over findings.

use std::collections::BTreeMap;
use std::ops::Range;

use arrow_array::{Float64Array, StringArray, TimestampMillisecondArray, UInt64Array};
use serde::Serialize;

use crate::api::{FleetQuery, FleetReader};
use crate::columns::FINDINGS;
use crate::error::Error;
use crate::grouping::SumQuery;
use crate::rollup;
use crate::store::{HOUR_S, Partition, StoreFolder, column};
use crate::sums::Dimension;
use crate::time::DAY_S;

/// Longest time of a query whose GPU hours are divided by minutes. Those of longer ones are divided
/// by hours.
const MINUTES_MAX_S: u64 = 8 * DAY_S;

/// The findings of a time and a part of the fleet.
#[derive(Debug, Default, Serialize)]
pub struct FindingAnswer {
    pub since_unix_s: u64,
    pub until_unix_s: u64,
    /// Hours of allocated GPUs.
    pub gpu_hours: f64,
    /// Hours for which traces stand.
    pub traced_gpu_hours: f64,
    /// Hours that all remedies together would save.
    pub lost_gpu_hours: f64,
    pub traces: u64,
    /// The losses by workflow type and user, largest first.
    pub workflows: Vec<WorkflowLoss>,
    /// The losses by finding and run, largest first.
    pub findings: Vec<FindingLoss>,
    /// Number of findings beyond the limit of the query.
    pub findings_left_out: usize,
}

/// What the runs of one workflow type and user lose.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WorkflowLoss {
    pub workflow: String,
    pub user: String,
    pub gpu_hours: f64,
    pub traced_gpu_hours: f64,
    pub traces: u64,
    /// Hours that all remedies together would save.
    pub lost_gpu_hours: f64,
    /// Hours that each finding costs. They may overlap.
    pub by_rule: BTreeMap<String, f64>,
}

/// What one finding costs a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FindingLoss {
    pub rule: String,
    pub title: String,
    pub severity: String,
    pub workflow: String,
    pub user: String,
    pub run: String,
    /// Traces of the run that have the finding.
    pub traces: u64,
    /// Hours for which these traces stand.
    pub gpu_hours: f64,
    pub lost_gpu_hours: f64,
    /// Bounds of the lost hours.
    pub lost_gpu_hours_low: f64,
    pub lost_gpu_hours_high: f64,
    /// Description and advice of the newest trace.
    pub what: String,
    pub advice: String,
    /// Order of the newest trace.
    pub order: u64,
}

/// The rows of one trace.
#[derive(Clone, Debug, Default)]
struct StoredTrace {
    order: u64,
    start_s: u64,
    left_band_s: Option<u64>,
    run: String,
    workflow: String,
    user: String,
    /// Share of the step time that all remedies together save.
    joint: f64,
    findings: Vec<StoredFinding>,
}

/// A row of the table with a finding.
#[derive(Clone, Debug, Default)]
struct StoredFinding {
    rule: String,
    title: String,
    severity: String,
    what: String,
    advice: String,
    /// Shares of the step time: low, probable, high.
    saving: [f64; 3],
}

/// Reads the traces of a query's time and selection, by their run and time.
fn read(folder: &StoreFolder, query: &SumQuery) -> Result<Vec<StoredTrace>, Error> {
    let mut traces: BTreeMap<u64, StoredTrace> = BTreeMap::new();
    for hour in folder.hours(FINDINGS)? {
        if (hour + 1) * HOUR_S <= query.range.start || hour * HOUR_S >= query.range.end {
            continue;
        }
        folder.read(Partition { hour: Some(hour), table: FINDINGS }, &[], |batch, path| {
            let texts = |name| column::<StringArray>(batch, name, path);
            let times = |name| column::<TimestampMillisecondArray>(batch, name, path);
            let shares = |name| column::<Float64Array>(batch, name, path);
            let orders: &UInt64Array = column(batch, "order", path)?;
            let (starts, lefts) = (times("start")?, times("left_band")?);
            let (runs, workflows, users) = (texts("run")?, texts("workflow")?, texts("user")?);
            let (rules, titles) = (texts("rule")?, texts("title")?);
            let (severities, whats, advices) =
                (texts("severity")?, texts("what")?, texts("advice")?);
            let savings = [shares("saving_low")?, shares("saving")?, shares("saving_high")?];
            for row in 0..batch.num_rows() {
                let second = |array: &TimestampMillisecondArray| {
                    u64::try_from(array.value(row) / 1000).unwrap_or(0)
                };
                let members = [
                    (Dimension::Run, runs.value(row)),
                    (Dimension::Workflow, workflows.value(row)),
                    (Dimension::User, users.value(row)),
                ];
                let is_selected = members.iter().all(|(dimension, member)| {
                    query.selection.get(dimension).is_none_or(|names| names.contains(*member))
                });
                if !is_selected || !query.range.contains(&second(starts)) {
                    continue;
                }
                let order = orders.value(row);
                let trace = traces.entry(order).or_default();
                let saving = savings.map(|saving| saving.value(row));
                if !rules.value(row).is_empty() {
                    trace.findings.push(StoredFinding {
                        rule: rules.value(row).to_owned(),
                        title: titles.value(row).to_owned(),
                        severity: severities.value(row).to_owned(),
                        what: whats.value(row).to_owned(),
                        advice: advices.value(row).to_owned(),
                        saving,
                    });
                    continue;
                }
                trace.order = order;
                trace.start_s = second(starts);
                trace.left_band_s = Some(second(lefts)).filter(|second| *second > 0);
                trace.joint = saving[1];
                trace.run = runs.value(row).to_owned();
                trace.workflow = workflows.value(row).to_owned();
                trace.user = users.value(row).to_owned();
            }
            Ok(())
        })?;
    }
    let mut traces: Vec<StoredTrace> = traces.into_values().collect();
    traces.sort_by(|a, b| (&a.run, a.start_s).cmp(&(&b.run, b.start_s)));
    Ok(traces)
}

impl FleetReader {
    /// Adds up what findings cost in the time and the part of the fleet of a query.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn findings(&self, query: &FleetQuery) -> Result<FindingAnswer, Error> {
        let range = query.sums.range.clone();
        let traces = read(self.folder(), &query.sums)?;
        let mut answer = FindingAnswer {
            since_unix_s: range.start,
            until_unix_s: range.end,
            traces: traces.len() as u64,
            ..FindingAnswer::default()
        };
        let mut workflows: BTreeMap<(String, String), WorkflowLoss> = BTreeMap::new();
        let mut by_type = query.sums.clone();
        by_type.by = [Dimension::Workflow, Dimension::User].into();
        by_type.step_s = None;
        for ((_, key), sums) in rollup::query(self.folder(), self.pools(), &by_type)?.sums {
            let member = |dimension| key.member(dimension).to_owned();
            let (workflow, user) = (member(Dimension::Workflow), member(Dimension::User));
            answer.gpu_hours += sums.allocated_s / HOUR_S as f64;
            let loss = workflows.entry((workflow.clone(), user.clone())).or_default();
            (loss.workflow, loss.user) = (workflow, user);
            loss.gpu_hours += sums.allocated_s / HOUR_S as f64;
        }
        let hours = self.hours_of_runs(&query.sums, &traces)?;
        let mut findings: BTreeMap<(String, String), FindingLoss> = BTreeMap::new();
        for (at, trace) in traces.iter().enumerate() {
            let stands_for = time_of(&traces, at, &range);
            let gpu_hours = hours.get(&trace.run).map_or(0.0, |hours| hours.within(&stands_for));
            let key = (trace.workflow.clone(), trace.user.clone());
            let loss = workflows.entry(key).or_default();
            (loss.workflow, loss.user) = (trace.workflow.clone(), trace.user.clone());
            loss.traces += 1;
            loss.traced_gpu_hours += gpu_hours;
            loss.lost_gpu_hours += gpu_hours * trace.joint;
            answer.traced_gpu_hours += gpu_hours;
            answer.lost_gpu_hours += gpu_hours * trace.joint;
            for finding in worst_by_rule(&trace.findings) {
                *loss.by_rule.entry(finding.rule.clone()).or_default() +=
                    gpu_hours * finding.saving[1];
                let found = findings.entry((finding.rule.clone(), trace.run.clone())).or_default();
                found.add(trace, finding, gpu_hours);
            }
        }
        answer.workflows = workflows.into_values().filter(|loss| loss.traces > 0).collect();
        answer.workflows.sort_by(|a, b| b.lost_gpu_hours.total_cmp(&a.lost_gpu_hours));
        answer.findings = findings.into_values().collect();
        answer.findings.sort_by(|a, b| b.lost_gpu_hours.total_cmp(&a.lost_gpu_hours));
        answer.findings_left_out = answer.findings.len().saturating_sub(query.limit);
        answer.findings.truncate(query.limit);
        Ok(answer)
    }

    /// Computes the GPU hours of the traced runs over time.
    fn hours_of_runs(
        &self,
        query: &SumQuery,
        traces: &[StoredTrace],
    ) -> Result<BTreeMap<String, HoursOverTime>, Error> {
        if traces.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut by_run = query.clone();
        let is_short = query.range.end - query.range.start <= MINUTES_MAX_S;
        let step_s = if is_short { 60 } else { HOUR_S };
        by_run.step_s = Some(step_s);
        by_run.by = [Dimension::Run].into();
        let runs = traces.iter().map(|trace| trace.run.clone()).collect();
        by_run.selection.insert(Dimension::Run, runs);
        let mut hours: BTreeMap<String, HoursOverTime> = BTreeMap::new();
        for ((start, key), sums) in rollup::query(self.folder(), self.pools(), &by_run)?.sums {
            let of_run = hours.entry(key.member(Dimension::Run).to_owned()).or_default();
            (of_run.step_s, of_run.range) = (step_s, query.range.clone());
            of_run.parts.push((start, sums.allocated_s / HOUR_S as f64));
        }
        Ok(hours)
    }
}

/// GPU hours of a run by the start of times of equal length.
#[derive(Default)]
struct HoursOverTime {
    step_s: u64,
    /// The time of the query, outside of which there are no hours.
    range: Range<u64>,
    parts: Vec<(u64, f64)>,
}

impl HoursOverTime {
    /// Adds up the hours of a time. Parts at its ends are divided evenly.
    fn within(&self, range: &Range<u64>) -> f64 {
        let part = |(start, hours): &(u64, f64)| {
            let (begin, end) =
                (self.range.start.max(*start), self.range.end.min(start + self.step_s));
            let (from, to) = (range.start.max(begin), range.end.min(end));
            hours * to.saturating_sub(from) as f64 / end.saturating_sub(begin).max(1) as f64
        };
        self.parts.iter().map(part).sum()
    }
}

/// Returns the time for which a trace stands. `traces` are sorted by run and time.
fn time_of(traces: &[StoredTrace], at: usize, range: &Range<u64>) -> Range<u64> {
    let begin = |trace: &StoredTrace| trace.left_band_s.unwrap_or(trace.start_s);
    let (trace, next) = (&traces[at], traces.get(at + 1));
    let is_first = at == 0 || traces[at - 1].run != trace.run;
    let start = match trace.left_band_s {
        None if is_first => range.start,
        _ => begin(trace).max(range.start),
    };
    let end = next.filter(|next| next.run == trace.run).map_or(range.end, begin);
    start..end.max(start)
}

/// Returns the finding of each rule that saves most. Several findings of one rule may save the same
/// time.
fn worst_by_rule(findings: &[StoredFinding]) -> Vec<&StoredFinding> {
    let mut worst: BTreeMap<&str, &StoredFinding> = BTreeMap::new();
    for finding in findings {
        let known = worst.entry(&finding.rule).or_insert(finding);
        if finding.saving[1] > known.saving[1] {
            *known = finding;
        }
    }
    worst.into_values().collect()
}

impl FindingLoss {
    /// Adds the finding of a trace that stands for some hours. Traces come in the order of time.
    fn add(&mut self, trace: &StoredTrace, finding: &StoredFinding, gpu_hours: f64) {
        self.traces += 1;
        self.gpu_hours += gpu_hours;
        self.lost_gpu_hours_low += gpu_hours * finding.saving[0];
        self.lost_gpu_hours += gpu_hours * finding.saving[1];
        self.lost_gpu_hours_high += gpu_hours * finding.saving[2];
        let StoredFinding { rule, title, severity, what, advice, .. } = finding.clone();
        (self.rule, self.title, self.severity) = (rule, title, severity);
        (self.what, self.advice, self.order) = (what, advice, trace.order);
        (self.workflow, self.user) = (trace.workflow.clone(), trace.user.clone());
        self.run.clone_from(&trace.run);
    }
}

#[cfg(test)]
mod tests {
    use super::{HoursOverTime, StoredTrace, time_of};

    fn trace(run: &str, start_s: u64, left_band_s: Option<u64>) -> StoredTrace {
        StoredTrace { run: run.to_owned(), start_s, left_band_s, ..StoredTrace::default() }
    }

    #[test]
    fn each_time_of_a_run_belongs_to_one_trace_at_most() {
        let traces = [
            trace("a", 100, None),
            trace("a", 300, Some(250)),
            trace("a", 400, None),
            trace("b", 200, Some(150)),
        ];
        let times: Vec<_> = (0..4).map(|at| time_of(&traces, at, &(50..500))).collect();
        assert_eq!(times, [50..250, 250..400, 400..500, 150..500]);
    }

    #[test]
    fn hours_of_a_part_of_a_minute_are_divided() {
        let parts = vec![(0, 1.0), (60, 2.0), (120, 4.0)];
        let hours = HoursOverTime { step_s: 60, range: 0..150, parts };
        assert_eq!(hours.within(&(30..120)), 2.5);
        // The last minute had 30 s when the query was made.
        assert_eq!(hours.within(&(0..150)), 7.0);
        assert_eq!(hours.within(&(120..135)), 2.0);
    }
}
