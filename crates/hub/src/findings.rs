//! The findings of all traces: how they are stored, and the GPU hours that they cost.
//!
//! A trace stands for the GPU hours of its run from its own time, or from the moment at which the
//! run left the band of its history, until the next trace. The first trace of a run also stands for
//! the time before, unless the run had left its band. What a finding costs is its saving multiplied
//! by these hours. Several findings of a trace may save the same time, so only the joint saving of
//! a trace is added up over findings.
//!
//! Periodic traces are samples of a workflow type. Together they stand for the time that all
//! samples of the type represent, at most for the hours for which no ordered trace stands. Each
//! fetched one has a part of it in proportion to the time that it represents itself.

use std::collections::BTreeMap;
use std::ops::Range;

use arrow_array::{Float64Array, StringArray, TimestampMillisecondArray, UInt64Array};
use serde::Serialize;

use crate::api::{FleetQuery, FleetReader};
use crate::columns::FINDINGS;
use crate::error::Error;
use crate::grouping::SumQuery;
use crate::orders::samples::read_represented;
use crate::rollup;
use crate::store::{HOUR_S, Partition, StoreFolder, column};
use crate::sums::Dimension;

/// The findings of a time and a part of the fleet.
#[derive(Debug, Default, Serialize)]
pub struct FindingAnswer {
    pub since_unix_s: u64,
    pub until_unix_s: u64,
    /// Hours of allocated GPUs.
    pub gpu_hours: f64,
    /// Hours for which traces stand.
    pub traced_gpu_hours: f64,
    /// The part of these hours for which periodic traces stand.
    pub sampled_gpu_hours: f64,
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
    /// The part of these hours for which periodic traces stand.
    pub sampled_gpu_hours: f64,
    pub traces: u64,
    /// Hours that all remedies together would save.
    pub lost_gpu_hours: f64,
    /// Hours that each finding costs. They may overlap.
    pub by_rule: BTreeMap<String, f64>,
}

/// What one finding costs a run, or a workflow type of which periodic traces have it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FindingLoss {
    pub rule: String,
    pub title: String,
    pub severity: String,
    pub workflow: String,
    pub user: String,
    /// Empty if periodic traces have the finding, which stand for all runs of the workflow type.
    pub run: String,
    /// Traces that have the finding.
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
    /// Time that a periodic trace represents; 0 for an ordered one.
    represents_s: f64,
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
            // Earlier versions had ordered traces only.
            let represents = shares("represents_s").ok();
            for row in 0..batch.num_rows() {
                let second = |array: &TimestampMillisecondArray| {
                    u64::try_from(array.value(row) / 1000).unwrap_or(0)
                };
                let members = [
                    (Dimension::Run, runs.value(row)),
                    (Dimension::Workflow, workflows.value(row)),
                    (Dimension::User, users.value(row)),
                ];
                if !query.selects(&members) || !query.range.contains(&second(starts)) {
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
                trace.represents_s = represents.map_or(0.0, |represents| represents.value(row));
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
        let (sampled, traces): (Vec<StoredTrace>, Vec<StoredTrace>) =
            traces.into_iter().partition(|trace| trace.represents_s > 0.0);
        let runs = traces.iter().map(|trace| trace.run.clone()).collect();
        let hours = self.hours_of_runs(&query.sums, runs)?;
        let mut losses = LossSums { answer: &mut answer, workflows, findings: BTreeMap::new() };
        for (at, trace) in traces.iter().enumerate() {
            let stands_for = time_of(&traces, at, &range);
            let gpu_hours = hours.get(&trace.run).map_or(0.0, |hours| hours.within(&stands_for));
            losses.add(trace, &trace.run, gpu_hours);
        }
        if !sampled.is_empty() {
            let represented = read_represented(self.folder(), &query.sums)?;
            losses.add_sampled(&sampled, &represented);
        }
        let LossSums { workflows, findings, .. } = losses;
        answer.workflows = workflows.into_values().filter(|loss| loss.traces > 0).collect();
        answer.workflows.sort_by(|a, b| b.lost_gpu_hours.total_cmp(&a.lost_gpu_hours));
        answer.findings = findings.into_values().collect();
        answer.findings.sort_by(|a, b| b.lost_gpu_hours.total_cmp(&a.lost_gpu_hours));
        answer.findings_left_out = answer.findings.len().saturating_sub(query.limit);
        answer.findings.truncate(query.limit);
        Ok(answer)
    }
}

/// The losses of an answer while they are added up.
struct LossSums<'a> {
    answer: &'a mut FindingAnswer,
    /// By workflow type and user.
    workflows: BTreeMap<(String, String), WorkflowLoss>,
    /// By rule, workflow type, user and run.
    findings: BTreeMap<[String; 4], FindingLoss>,
}

impl LossSums<'_> {
    /// Adds the findings of a trace that stands for some hours, of one run or of no single one.
    fn add(&mut self, trace: &StoredTrace, run: &str, gpu_hours: f64) {
        let key = (trace.workflow.clone(), trace.user.clone());
        let loss = self.workflows.entry(key).or_default();
        (loss.workflow, loss.user) = (trace.workflow.clone(), trace.user.clone());
        loss.traces += 1;
        loss.traced_gpu_hours += gpu_hours;
        loss.lost_gpu_hours += gpu_hours * trace.joint;
        self.answer.traced_gpu_hours += gpu_hours;
        self.answer.lost_gpu_hours += gpu_hours * trace.joint;
        if trace.represents_s > 0.0 {
            loss.sampled_gpu_hours += gpu_hours;
            self.answer.sampled_gpu_hours += gpu_hours;
        }
        for finding in worst_by_rule(&trace.findings) {
            *loss.by_rule.entry(finding.rule.clone()).or_default() += gpu_hours * finding.saving[1];
            let key = [&finding.rule, &trace.workflow, &trace.user, run].map(str::to_owned);
            self.findings.entry(key).or_default().add(trace, finding, run, gpu_hours);
        }
    }

    /// Adds the findings of periodic traces. `represented` has the time that all periodic traces
    /// represent, including those that were not fetched, by workflow type and user.
    fn add_sampled(
        &mut self,
        sampled: &[StoredTrace],
        represented: &BTreeMap<(String, String), f64>,
    ) {
        let mut fetched: BTreeMap<(String, String), f64> = BTreeMap::new();
        for trace in sampled {
            let key = (trace.workflow.clone(), trace.user.clone());
            *fetched.entry(key).or_default() += trace.represents_s;
        }
        let mut hours_per_second = BTreeMap::new();
        for (key, fetched_s) in fetched {
            let all_s = represented.get(&key).copied().unwrap_or(0.0).max(fetched_s);
            let left = self
                .workflows
                .get(&key)
                .map_or(0.0, |loss| (loss.gpu_hours - loss.traced_gpu_hours).max(0.0));
            hours_per_second.insert(key, (all_s / HOUR_S as f64).min(left) / fetched_s);
        }
        for trace in sampled {
            let factor = hours_per_second[&(trace.workflow.clone(), trace.user.clone())];
            self.add(trace, "", trace.represents_s * factor);
        }
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
    fn add(&mut self, trace: &StoredTrace, finding: &StoredFinding, run: &str, gpu_hours: f64) {
        self.traces += 1;
        self.gpu_hours += gpu_hours;
        self.lost_gpu_hours_low += gpu_hours * finding.saving[0];
        self.lost_gpu_hours += gpu_hours * finding.saving[1];
        self.lost_gpu_hours_high += gpu_hours * finding.saving[2];
        let StoredFinding { rule, title, severity, what, advice, .. } = finding.clone();
        (self.rule, self.title, self.severity) = (rule, title, severity);
        (self.what, self.advice, self.order) = (what, advice, trace.order);
        (self.workflow, self.user) = (trace.workflow.clone(), trace.user.clone());
        run.clone_into(&mut self.run);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{FindingAnswer, LossSums, StoredFinding, StoredTrace, WorkflowLoss, time_of};

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
    fn samples_stand_for_all_announced_time_that_no_ordered_trace_stands_for() {
        let key = || ("w".to_owned(), "u".to_owned());
        let sample = |represents_s, joint| StoredTrace {
            workflow: "w".to_owned(),
            user: "u".to_owned(),
            joint,
            represents_s,
            findings: vec![StoredFinding { saving: [0.0, joint, 1.0], ..StoredFinding::default() }],
            ..StoredTrace::default()
        };
        // One of the two samples weighs three times the other one, and half of the announced time
        // was not fetched.
        let sampled = [sample(3600.0, 0.5), sample(10_800.0, 0.1)];
        for (gpu_hours, stands_for) in [(100.0, 8.0), (9.0, 6.0)] {
            let known =
                WorkflowLoss { gpu_hours, traced_gpu_hours: 3.0, ..WorkflowLoss::default() };
            let mut answer = FindingAnswer::default();
            let workflows = BTreeMap::from([(key(), known)]);
            let mut losses = LossSums { answer: &mut answer, workflows, findings: BTreeMap::new() };
            losses.add_sampled(&sampled, &BTreeMap::from([(key(), 8.0 * 3600.0)]));
            let lost = stands_for * (0.25 * 0.5 + 0.75 * 0.1);
            let found = losses.findings.into_values().next().unwrap();
            assert!((found.lost_gpu_hours - lost).abs() < 1e-9, "{found:?}");
            assert_eq!((found.gpu_hours, found.traces, found.run.as_str()), (stands_for, 2, ""));
            assert_eq!(losses.workflows[&key()].traced_gpu_hours, 3.0 + stands_for);
            assert!((answer.lost_gpu_hours - lost).abs() < 1e-9, "{answer:?}");
        }
    }
}
