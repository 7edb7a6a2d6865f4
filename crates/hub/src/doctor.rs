//! PerfDoctor: what is wrong with one run or one host, from its rows of GPUs, host, steps and
//! events, with what to do about it, and charts over time. [`facts`] reads the rows, [`rules`]
//! judge them by [`limits`], [`losses`] divides the lost hours among the issues, and [`charts`]
//! draws the rows.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::Serialize;

use crate::aggregate::MINUTE_S;
use crate::api::{FleetQuery, FleetReader};
use crate::columns::RowTable;
use crate::error::Error;
use crate::runs::RunState;
use crate::store::{HOUR_S, StoreFolder};
use crate::time::{describe_moment, unix_now};

pub mod charts;
pub mod facts;
pub mod finding;
pub mod limits;
pub mod losses;
pub mod rules;

use charts::DoctorChart;
use facts::{DoctorFacts, GpuFacts, StepCell, StepSource};
use finding::{DoctorFinding, DoctorNumber, DoctorSeverity, DoctorSubject};
use losses::{DoctorLosses, RuleCases};
use rules::{DoctorRule, RULES};

/// Number of places of a finding that are listed.
const PLACES_MAX: usize = 8;
/// Shares of the held GPU hours from which on a loss has a severity, as for findings of traces.
const SEVERITIES: [(f64, DoctorSeverity); 3] = [
    (0.15, DoctorSeverity::Critical),
    (0.05, DoctorSeverity::High),
    (0.01, DoctorSeverity::Medium),
];
const NO_LINK_SPEED: &str =
    "Saturated network devices are not judged, because rows have no link speed.";
const NO_GPU_MEMORY: &str = "Full memory of GPUs is not judged, because rows have no size of it.";

/// What is wrong with a run or a host.
#[derive(Debug, Serialize)]
pub struct DoctorAnswer {
    pub since_unix_s: u64,
    pub until_unix_s: u64,
    /// Empty if a host is looked at.
    pub run: String,
    /// What the reports of the run say; absent for a host, and for a run without reports.
    pub state: Option<RunState>,
    /// What this time lacks of the run or the host.
    pub notes: Vec<String>,
    /// Hosts with rows of the run, or the host.
    pub hosts: Vec<String>,
    /// Runs that have steps.
    pub runs: Vec<String>,
    pub gpus: usize,
    /// Hours in which its GPUs were held.
    pub gpu_hours: f64,
    /// Share of the CPU time of the hosts that was busy.
    pub cpu_busy: Option<f64>,
    pub steps: Vec<StepSummary>,
    /// The worst one comes first.
    pub findings: Vec<DoctorFinding>,
    pub losses: DoctorLosses,
    /// What is not judged, and why.
    pub not_judged: Vec<String>,
    pub charts: Vec<DoctorChart>,
}

/// The training steps of a run, or of a process of no run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepSummary {
    pub name: String,
    /// Steps of all processes.
    pub steps: u64,
    /// Steps per second of a process, in the mean.
    pub steps_per_s: f64,
    pub mean_step_s: Option<f64>,
}

/// The time of an answer, and what is known about its subject.
struct SubjectTime {
    range: Range<u64>,
    state: Option<RunState>,
    notes: Vec<String>,
}

impl FleetReader {
    /// Tells what is wrong with the run or host of a query. Without a begin, the time is that of
    /// the whole run.
    ///
    /// # Errors
    /// If the query selects something else or an unknown name, or if a file cannot be read.
    pub fn doctor(&self, query: &FleetQuery) -> Result<DoctorAnswer, Error> {
        let subject = DoctorSubject::from_query(query).map_err(|expected| Error::Value {
            what: "query of the doctor".to_owned(),
            expected,
            got: format!("{:?}", query.sums.selection),
        })?;
        let SubjectTime { range, state, mut notes } = self.time_of(&subject, query)?;
        let reporting = state.as_ref().map(|state| state.hosts.clone()).unwrap_or_default();
        let facts = DoctorFacts::read(self.folder(), &subject, &range, &reporting)?;
        if let (true, DoctorSubject::Host(host)) = (facts.is_empty(), &subject) {
            let last = self.find_host(host, range.end)?;
            notes.push(match last {
                Some(last) => {
                    format!(
                        "No rows of this host in this time; its last row ends at {}.",
                        describe_moment(last)
                    )
                }
                None => {
                    "The host has no rows; only its scheduler or the hub reports it.".to_owned()
                }
            });
        }
        let run = match &subject {
            DoctorSubject::Run(run) => run.clone(),
            DoctorSubject::Host(_) => String::new(),
        };
        let hosts: BTreeSet<&String> =
            facts.gpus.keys().map(|gpu| &gpu.host).chain(facts.hosts.keys()).collect();
        let (findings, losses) = judge(&facts);
        Ok(DoctorAnswer {
            since_unix_s: range.start,
            until_unix_s: range.end,
            run,
            state,
            notes,
            hosts: hosts.into_iter().cloned().collect(),
            runs: facts.steps.keys().filter_map(StepSource::run).cloned().collect(),
            gpus: facts.gpus.len(),
            gpu_hours: facts.held_s() / HOUR_S as f64,
            cpu_busy: facts.cpu_busy(),
            steps: summarize_steps(&facts),
            findings,
            losses,
            not_judged: not_judged(&facts),
            charts: charts::draw(&facts, range.end - range.start),
        })
    }

    /// Finds the time to look at: that of the query, or of the whole run.
    fn time_of(&self, subject: &DoctorSubject, query: &FleetQuery) -> Result<SubjectTime, Error> {
        let mut range = query.sums.range.clone();
        let DoctorSubject::Run(run) = subject else {
            return Ok(SubjectTime { range, state: None, notes: Vec::new() });
        };
        let known = self.find_run(run, unix_now())?;
        let life =
            known.life.start / MINUTE_S * MINUTE_S..known.life.end.next_multiple_of(MINUTE_S);
        let mut notes = Vec::new();
        if !query.has_since {
            range.start = life.start.min(range.end - MINUTE_S);
            if !query.has_until {
                range.end = life.end.max(range.start + MINUTE_S);
            }
        }
        if life.start < range.start {
            let begin = describe_moment(life.start);
            notes.push(format!("The run began at {begin}, before this time."));
        }
        if life.end > range.end {
            let end = describe_moment(life.end);
            let what =
                if known.state.ended_unix_s.is_some() { "ended" } else { "was still running" };
            notes.push(format!("The run {what} at {end}, after this time."));
        }
        if let Some(kept) = first_kept(self.folder())?.filter(|kept| *kept > range.start) {
            notes.push(format!("Rows before {} are not kept.", describe_moment(kept)));
        }
        let has_reports = known.state != RunState::default();
        Ok(SubjectTime { range, state: has_reports.then_some(known.state), notes })
    }
}

/// Returns the begin of the first hour with rows of hosts, GPUs or steps.
fn first_kept(folder: &StoreFolder) -> Result<Option<u64>, Error> {
    let mut first = None;
    for table in [RowTable::Gpu, RowTable::Host, RowTable::Step] {
        let hour = folder.hours(table.folder())?.first().map(|hour| hour * HOUR_S);
        first = [first, hour].into_iter().flatten().min();
    }
    Ok(first)
}

fn summarize_steps(facts: &DoctorFacts) -> Vec<StepSummary> {
    let summary = |(source, cells): (&StepSource, &BTreeMap<u64, StepCell>)| {
        let sum = |value: fn(&StepCell) -> f64| cells.values().map(value).sum::<f64>();
        let timed = sum(|cell| cell.steps as f64);
        StepSummary {
            name: source.name(),
            steps: cells.values().map(|cell| cell.all_steps).sum(),
            steps_per_s: sum(|cell| cell.all_steps as f64) / sum(|cell| cell.process_s).max(1.0),
            mean_step_s: (timed > 0.0).then(|| sum(|cell| cell.time_s) / timed),
        }
    };
    facts.steps.iter().map(summary).collect()
}

/// Applies all rules. The worst findings come first.
pub fn judge(facts: &DoctorFacts) -> (Vec<DoctorFinding>, DoctorLosses) {
    let found: Vec<(&DoctorRule, RuleCases)> = RULES
        .iter()
        .map(|rule| {
            let cases = RuleCases { rule: rule.id, title: rule.title, cases: (rule.find)(facts) };
            (rule, cases)
        })
        .filter(|(_, found)| !found.cases.is_empty())
        .collect();
    let (rules, cases): (Vec<&DoctorRule>, Vec<RuleCases>) = found.into_iter().unzip();
    let losses = losses::divide(facts, &cases);
    let mut findings: Vec<DoctorFinding> = rules
        .into_iter()
        .zip(cases)
        .filter_map(|(rule, found)| describe(rule, found, facts, &losses))
        .collect();
    findings.sort_by(|a, b| {
        let lost = |one: &DoctorFinding| one.lost_gpu_hours.unwrap_or(0.0);
        a.severity.cmp(&b.severity).then_with(|| lost(b).total_cmp(&lost(a)))
    });
    (findings, losses)
}

fn describe(
    rule: &DoctorRule,
    found: RuleCases,
    facts: &DoctorFacts,
    losses: &DoctorLosses,
) -> Option<DoctorFinding> {
    let mut cases = found.cases;
    cases.sort_by(|a, b| b.lost_s.unwrap_or(0.0).total_cmp(&a.lost_s.unwrap_or(0.0)));
    let worst = cases.first()?;
    let numbers: Vec<String> = worst.numbers.iter().map(DoctorNumber::describe).collect();
    let others = match cases.len() - 1 {
        0 => String::new(),
        count => format!(" (and {count} more)"),
    };
    let what = format!("{}{others}: {}", worst.place, numbers.join(", "));
    let lost_s: Vec<f64> = cases.iter().filter_map(|case| case.lost_s).collect();
    let lost_s = (!lost_s.is_empty()).then(|| lost_s.iter().sum::<f64>());
    let held_s = facts.held_s();
    let share = if held_s > 0.0 {
        lost_s.unwrap_or(0.0) / held_s
    } else {
        // Without GPUs, steps that take longer are the only known loss.
        cases.iter().filter_map(|case| case.lost_share).fold(0.0, f64::max)
    };
    let by_loss = SEVERITIES.iter().find(|(least, _)| share >= *least);
    let severity = by_loss.map_or(DoctorSeverity::Info, |(_, severity)| *severity).min(rule.least);
    let place_count = cases.len();
    cases.truncate(PLACES_MAX);
    Some(DoctorFinding {
        rule: rule.id,
        tab: rule.tab,
        title: rule.title,
        severity,
        what,
        advice: rule.advice,
        lost_gpu_hours: lost_s.map(|seconds| seconds / HOUR_S as f64),
        explained_gpu_hours: losses.explained_by(rule.id),
        place_count,
        places: cases,
        limits: rule.limits,
    })
}

/// Lists what no rule could judge.
fn not_judged(facts: &DoctorFacts) -> Vec<String> {
    let mut texts = Vec::new();
    let lacking = |is_known: fn(&GpuFacts) -> bool| {
        facts.gpus.values().filter(|gpu| gpu.held_s() > 0.0 && !is_known(gpu)).count()
    };
    let count = facts.gpus.len();
    if count == 0 {
        texts.push("No rows of GPUs in this time.".to_owned());
    }
    for (what, missing) in [
        ("Activity", lacking(|gpu| gpu.sum(|cell| cell.busy_observed_s) > 0.0)),
        ("SM activity", lacking(|gpu| gpu.sum(|cell| cell.sm_observed_s) > 0.0)),
    ] {
        if missing > 0 {
            texts.push(format!("{what} of {missing} of {count} GPUs was not observed."));
        }
    }
    let cells = || facts.hosts.values().flat_map(|cells| cells.values());
    for (what, is_known) in [
        ("CPUs", cells().any(|cell| cell.cpu_all_s > 0.0)),
        ("Memory of hosts", cells().any(|cell| cell.memory_available.is_some())),
        ("Waits for memory", cells().any(|cell| cell.pressure_s.contains_key("memory"))),
        ("Waits for disks", cells().any(|cell| cell.pressure_s.contains_key("io"))),
        ("Step times", !facts.steps.is_empty()),
    ] {
        if !is_known {
            texts.push(format!("{what}: no rows have them."));
        }
    }
    texts.extend([NO_GPU_MEMORY, NO_LINK_SPEED].map(str::to_owned));
    texts
}

#[cfg(test)]
mod tests {
    use super::facts::{DoctorFacts, GpuCell, GpuFacts, HostCell, StepCell, StepSource};
    use super::finding::{DoctorSeverity, GpuPlace};
    use super::{judge, not_judged};

    /// A held GPU and its host for an hour.
    fn facts(gpu: GpuCell, host: &HostCell) -> DoctorFacts {
        let mut facts = DoctorFacts { is_run: true, cell_s: 60, ..DoctorFacts::default() };
        let starts = || (0..60).map(|minute| minute * 60);
        let gpu = GpuCell { held_s: 60.0, ..gpu };
        let cells =
            GpuFacts { cells: starts().map(|start| (start, gpu)).collect(), ..GpuFacts::default() };
        facts.gpus.insert(GpuPlace { host: "a".to_owned(), index: 0 }, cells);
        facts.hosts.insert("a".to_owned(), starts().map(|start| (start, host.clone())).collect());
        facts
    }

    #[test]
    fn nothing_is_found_in_what_was_not_observed() {
        assert!(judge(&DoctorFacts::default()).0.is_empty());
        let unseen = facts(GpuCell::default(), &HostCell::default());
        assert!(judge(&unseen).0.is_empty());
        let notes = not_judged(&unseen).join(" ");
        assert!(notes.contains("Activity of 1 of 1 GPUs was not observed."), "{notes}");
        // A busy CPU counts only beside a GPU that was observed.
        let host = HostCell {
            observed_s: 60.0,
            cpu_busy_s: 95.0,
            cpu_all_s: 100.0,
            ..HostCell::default()
        };
        assert!(judge(&facts(GpuCell::default(), &host)).0.is_empty());
        let waits = GpuCell { busy_observed_s: 60.0, busy_s: 15.0, ..GpuCell::default() };
        let (found, _) = judge(&facts(waits, &host));
        let rules: Vec<_> = found.iter().map(|one| (one.rule, one.lost_gpu_hours)).collect();
        assert_eq!(rules, [("P01", Some(0.75))]);
        assert!(found[0].what.contains("CPUs busy 95.0 %, GPUs busy 25.0 %"), "{}", found[0].what);
    }

    #[test]
    fn each_lost_hour_has_one_cause_or_none_and_the_parts_add_up() {
        // Of each minute, 45 s are idle, 5 s are busy without multiprocessors, and 10 s are active.
        let gpu = GpuCell {
            busy_observed_s: 60.0,
            busy_s: 15.0,
            sm_observed_s: 60.0,
            sm_busy_s: 15.0,
            sm_active_s: 10.0,
            ..GpuCell::default()
        };
        let parts = |facts: &DoctorFacts| {
            let (findings, losses) = judge(facts);
            let sum: f64 = losses.parts.iter().map(|part| part.gpu_hours).sum();
            assert!((sum - losses.lost_gpu_hours).abs() < 1e-9, "{losses:?}");
            for finding in &findings {
                let explained = finding.explained_gpu_hours;
                assert!(explained <= finding.lost_gpu_hours.unwrap_or(0.0) + 1e-9, "{finding:?}");
            }
            let hours = |hours: f64| (hours * 600.0).round() / 600.0;
            let part = |one: &super::losses::LossPart| (one.rule, hours(one.gpu_hours));
            (losses.lost_gpu_hours, losses.parts.iter().map(part).collect::<Vec<_>>())
        };
        let quiet = HostCell { observed_s: 60.0, cpu_all_s: 100.0, ..HostCell::default() };
        let unexplained = (50.0 / 60.0, vec![(None, 0.75), (None, 50.0 / 600.0)]);
        assert_eq!(parts(&facts(gpu, &quiet)), unexplained);
        // Busy CPUs explain the idle time, and an estimate takes a part of the rest.
        let busy = HostCell { cpu_busy_s: 95.0, ..quiet };
        let mut known = facts(gpu, &busy);
        let cell = |minute: u64| StepCell {
            steps: 10,
            time_s: if minute < 20 { 10.0 } else { 20.0 },
            ..StepCell::default()
        };
        let steps = (0..60).map(|minute| (minute * 60, cell(minute))).collect();
        known.steps.insert(StepSource::Run("slurm/7".to_owned()), steps);
        known.held_by_run_s.insert("slurm/7".to_owned(), 3600.0);
        let causes = (50.0 / 60.0, vec![(Some("P01"), 0.75), (Some("P12"), 50.0 / 600.0)]);
        assert_eq!(parts(&known), causes);
        // The same rule has the same severity for the host of the run.
        let severity = |facts: &DoctorFacts| {
            let (findings, _) = judge(facts);
            findings.iter().find(|one| one.rule == "P12").map(|one| one.severity)
        };
        let of_run = severity(&known);
        known.is_run = false;
        assert_eq!((severity(&known), of_run), (of_run, Some(DoctorSeverity::Critical)));
        // A run without GPUs is judged by the time of its steps.
        (known.gpus, known.held_by_run_s) = Default::default();
        assert_eq!(severity(&known), of_run);
    }
}
