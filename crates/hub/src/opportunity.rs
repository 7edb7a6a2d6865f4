//! What is worth mending first: workflow types by the time that they would gain if all of their
//! runs were as efficient as their better ones, and runs of which a process hangs.
//!
//! The target of a workflow type is the 75th percentile of the efficiency of its runs, weighted by
//! their observed time. Few runs do not show what is reachable, so their target is that of all runs
//! of the selection. It is a guess, and the answer names it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::api::{FleetQuery, FleetReader, SumGroup};
use crate::error::Error;
use crate::events::read_events;
use crate::grouping::SumQuery;
use crate::sums::Dimension;

/// Share of the observed time of runs that is at most as efficient as the target.
const PERCENTILE: f64 = 0.75;
/// Number of observed runs from which a workflow type has a target of its own.
const RUNS_MIN: usize = 4;
/// Seconds before a time from which hangs are read, because one that lasts is reported once.
const BEFORE_S: u64 = 7 * 86_400;

/// What is worth mending in a selection.
#[derive(Debug, Serialize)]
pub struct OpportunityAnswer {
    pub since_unix_s: u64,
    pub until_unix_s: u64,
    pub unit: &'static str,
    pub hours_missing: u64,
    /// What all workflow types would gain, including those that are left out.
    pub reachable: f64,
    /// Workflow types, those that gain most first.
    pub workflows: Vec<Opportunity>,
    /// Number of workflow types beyond the limit of the query.
    pub workflows_left_out: usize,
    /// Processes that hang, the longest hangs first.
    pub hangs: Vec<HangRow>,
}

/// What a workflow type would gain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Opportunity {
    pub workflow: String,
    pub runs: usize,
    /// Allocated time of all runs.
    pub allocated: f64,
    /// Allocated time in which SMs were seen to be inactive.
    pub lost: f64,
    /// Share of the observed time with active SMs.
    pub efficiency: f64,
    pub target: f64,
    pub target_from: TargetSource,
    /// Observed time that the runs below the target lose against it.
    pub reachable: f64,
}

/// The runs whose efficiency is the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetSource {
    /// The runs of the workflow type itself.
    Workflow,
    /// All runs of the selection, because the workflow type has too few.
    Fleet,
}

/// A process whose GPU is busy while no step completes.
#[derive(Debug, Serialize)]
pub struct HangRow {
    pub host: String,
    pub run: String,
    pub workflow: String,
    pub user: String,
    pub pid: Option<u32>,
    pub rank: Option<u32>,
    /// Time of the last step.
    pub start_unix_s: u64,
    /// Length until the end of the hang, or until the end of the time if it lasts.
    pub length_s: f64,
    pub is_over: bool,
    /// Allocated time of the run on all hosts since the last step, in the time of the query and
    /// until the end of the hang.
    pub allocated: f64,
}

/// The figures of a run.
#[derive(Debug, Clone, Default, PartialEq)]
struct RunFigures {
    workflow: String,
    allocated: f64,
    lost: f64,
    active: f64,
    observed: f64,
}

impl RunFigures {
    fn new(group: &SumGroup) -> Self {
        let [.., gpu_idle, _, sm_idle, _] = group.parts;
        Self {
            workflow: group.members.get(&Dimension::Workflow).cloned().unwrap_or_default(),
            allocated: group.sums.allocated_s,
            lost: gpu_idle + sm_idle,
            active: group.sums.sm_active_s,
            observed: group.sums.sm_observed_s,
        }
    }

    fn efficiency(&self) -> f64 {
        (self.active / self.observed).min(1.0)
    }
}

impl FleetReader {
    /// Finds what is worth mending in a selection.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn opportunities(&self, query: &FleetQuery) -> Result<OpportunityAnswer, Error> {
        let by = [Dimension::Workflow, Dimension::Run, Dimension::User].into();
        let sums = SumQuery { by, step_s: None, ..query.sums.clone() };
        let answer = self.sums(&FleetQuery { sums, limit: usize::MAX, ..*query })?;
        let is_run = |group: &&SumGroup| !group.members[&Dimension::Run].is_empty();
        let groups: Vec<&SumGroup> = answer.groups.iter().filter(is_run).collect();
        let runs: Vec<RunFigures> = groups.iter().map(|group| RunFigures::new(group)).collect();
        let allocated = groups.iter().map(|group| (&group.members, group.sums.allocated_s));
        let allocated = allocated.map(|(members, held)| (members[&Dimension::Run].as_str(), held));
        let mut workflows = rank(&runs);
        let reachable = workflows.iter().map(|one| one.reachable).sum();
        let workflows_left_out = workflows.len().saturating_sub(query.limit);
        workflows.truncate(query.limit);
        Ok(OpportunityAnswer {
            since_unix_s: answer.since_unix_s,
            until_unix_s: answer.until_unix_s,
            unit: answer.unit,
            hours_missing: answer.hours_missing,
            reachable,
            workflows,
            workflows_left_out,
            hangs: self.hangs(&query.sums, &allocated.collect())?,
        })
    }

    /// Lists the hangs that touch the time of a query and belong to its selection.
    fn hangs(
        &self,
        query: &SumQuery,
        allocated: &BTreeMap<&str, f64>,
    ) -> Result<Vec<HangRow>, Error> {
        // A hang that ends has a second event with the same start.
        let mut hangs = BTreeMap::<(String, Option<u32>, u64), HangRow>::new();
        let starts = query.range.start.saturating_sub(BEFORE_S)..query.range.end;
        read_events(self.folder(), "hang", &starts, |event| {
            let details: serde_json::Value =
                serde_json::from_str(event.details).unwrap_or_default();
            let hang = HangRow {
                host: event.host.to_owned(),
                workflow: details["workflow"].as_str().unwrap_or_default().to_owned(),
                user: event.user.to_owned(),
                pid: event.pid,
                rank: event.rank,
                start_unix_s: event.start_unix_s,
                length_s: event.length_s,
                is_over: event.is_over,
                allocated: allocated.get(event.run.as_str()).copied().unwrap_or(0.0),
                run: event.run,
            };
            let key = (hang.host.clone(), hang.pid, hang.start_unix_s);
            if hang.is_over || !hangs.contains_key(&key) {
                hangs.insert(key, hang);
            }
        })?;
        let mut hangs: Vec<HangRow> = hangs.into_values().collect();
        for hang in hangs.iter_mut().filter(|hang| !hang.is_over) {
            hang.length_s = query.range.end.saturating_sub(hang.start_unix_s) as f64;
        }
        hangs.retain(|hang| {
            let end_unix_s = hang.start_unix_s as f64 + hang.length_s;
            let members = [
                (Dimension::Host, hang.host.as_str()),
                (Dimension::Pool, self.pools().pool_of(&hang.host)),
                (Dimension::Run, hang.run.as_str()),
                (Dimension::User, hang.user.as_str()),
                (Dimension::Workflow, hang.workflow.as_str()),
            ];
            // A run that holds no GPU in the time of the query has ended without the end of its
            // hang.
            let is_there = hang.is_over || hang.allocated > 0.0;
            is_there && end_unix_s > query.range.start as f64 && query.selects(&members)
        });
        let runs = hangs.iter().map(|hang| hang.run.clone()).collect();
        let hours = self.hours_of_runs(query, runs)?;
        for hang in &mut hangs {
            let end = hang.start_unix_s.saturating_add(hang.length_s.ceil() as u64);
            let share = hours.get(&hang.run).map(|run| run.share_within(&(hang.start_unix_s..end)));
            hang.allocated *= share.unwrap_or(0.0);
        }
        hangs.sort_by(|a, b| b.length_s.total_cmp(&a.length_s));
        Ok(hangs)
    }
}

/// Returns the workflow types with what they would gain, those that gain most first. Runs that were
/// not observed are left out.
fn rank(runs: &[RunFigures]) -> Vec<Opportunity> {
    let mut by_workflow = BTreeMap::<&str, Vec<&RunFigures>>::new();
    let observed: Vec<&RunFigures> = runs.iter().filter(|run| run.observed > 0.0).collect();
    for run in &observed {
        by_workflow.entry(&run.workflow).or_default().push(run);
    }
    let fleet = target(&observed);
    let opportunity = |(workflow, runs): (&str, Vec<&RunFigures>)| {
        let (target, target_from) = match runs.len() {
            ..RUNS_MIN => (fleet, TargetSource::Fleet),
            _ => (target(&runs), TargetSource::Workflow),
        };
        let sum = |value: fn(&RunFigures) -> f64| runs.iter().map(|run| value(run)).sum::<f64>();
        let missing = |run: &&RunFigures| (target - run.efficiency()).max(0.0) * run.observed;
        Opportunity {
            workflow: workflow.to_owned(),
            runs: runs.len(),
            allocated: sum(|run| run.allocated),
            lost: sum(|run| run.lost),
            efficiency: (sum(|run| run.active) / sum(|run| run.observed)).min(1.0),
            target,
            target_from,
            reachable: runs.iter().map(missing).sum(),
        }
    };
    let mut ranked: Vec<Opportunity> = by_workflow.into_iter().map(opportunity).collect();
    ranked.sort_by(|a, b| b.reachable.total_cmp(&a.reachable));
    ranked
}

/// Returns the lowest efficiency that [`PERCENTILE`] of the observed time does not exceed.
fn target(runs: &[&RunFigures]) -> f64 {
    let mut sorted: Vec<&RunFigures> = runs.to_vec();
    sorted.sort_by(|a, b| a.efficiency().total_cmp(&b.efficiency()));
    let mut left = PERCENTILE * sorted.iter().map(|run| run.observed).sum::<f64>();
    for run in &sorted {
        left -= run.observed;
        if left <= 0.0 {
            return run.efficiency();
        }
    }
    sorted.last().map_or(0.0, |run| run.efficiency())
}

#[cfg(test)]
mod tests {
    use super::{RunFigures, TargetSource, rank};

    fn run(workflow: &str, observed: f64, efficiency: f64) -> RunFigures {
        let (active, lost) = (observed * efficiency, observed * (1.0 - efficiency));
        let (workflow, allocated) = (workflow.to_owned(), 2.0 * observed);
        RunFigures { workflow, allocated, lost, active, observed }
    }

    #[test]
    fn workflows_are_ranked_by_what_their_slow_runs_lose_against_better_ones() {
        let mut runs: Vec<RunFigures> =
            [0.25, 0.5, 0.75, 0.75].into_iter().map(|share| run("image", 100.0, share)).collect();
        // All runs of this type are equal, so nothing shows that they could be faster.
        runs.extend((0..4).map(|_| run("text", 1000.0, 0.125)));
        runs.push(run("few", 10.0, 0.0));
        runs.push(RunFigures { workflow: "unseen".to_owned(), ..RunFigures::default() });
        let ranked = rank(&runs);
        let names: Vec<&str> = ranked.iter().map(|one| one.workflow.as_str()).collect();
        assert_eq!(names, ["image", "few", "text"]);
        let image = &ranked[0];
        assert_eq!((image.target, image.target_from), (0.75, TargetSource::Workflow));
        assert!((image.reachable - (0.5 + 0.25) * 100.0).abs() < 1e-9, "{image:?}");
        assert_eq!((image.runs, image.allocated, image.efficiency), (4, 800.0, 0.5625));
        // Most of the observed time of the fleet is that of the second type.
        assert_eq!((ranked[1].target, ranked[1].target_from), (0.125, TargetSource::Fleet));
        assert_eq!((ranked[1].reachable, ranked[2].reachable), (1.25, 0.0));
    }
}
