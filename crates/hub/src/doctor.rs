//! PerfDoctor: what is wrong with one run or one host, from its rows of GPUs, host, steps and
//! events, with what to do about it, and charts over time. [`facts`] reads the rows, [`rules`]
//! judge them by [`limits`], and [`charts`] draws them.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::api::{FleetQuery, FleetReader};
use crate::error::Error;
use crate::store::HOUR_S;

pub mod charts;
pub mod facts;
pub mod finding;
pub mod limits;
pub mod rules;

use charts::DoctorChart;
use facts::{DoctorFacts, GpuFacts};
use finding::{DoctorFinding, DoctorNumber, DoctorSeverity, DoctorSubject};
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
    /// Hosts with rows of the run, or the host.
    pub hosts: Vec<String>,
    /// Runs that have steps.
    pub runs: Vec<String>,
    pub gpus: usize,
    /// Hours in which its GPUs were held.
    pub gpu_hours: f64,
    /// The worst one comes first.
    pub findings: Vec<DoctorFinding>,
    /// What is not judged, and why.
    pub not_judged: Vec<String>,
    pub charts: Vec<DoctorChart>,
}

impl FleetReader {
    /// Tells what is wrong with the run or host of a query.
    ///
    /// # Errors
    /// If the query selects something else, or if a file cannot be read.
    pub fn doctor(&self, query: &FleetQuery) -> Result<DoctorAnswer, Error> {
        let range = &query.sums.range;
        let subject = DoctorSubject::from_query(query).map_err(|expected| Error::Value {
            what: "query of the doctor".to_owned(),
            expected,
            got: format!("{:?}", query.sums.selection),
        })?;
        let facts = DoctorFacts::read(self.folder(), &subject, range)?;
        let run = match &subject {
            DoctorSubject::Run(run) => run.clone(),
            DoctorSubject::Host(_) => String::new(),
        };
        let hosts: BTreeSet<&String> =
            facts.gpus.keys().map(|gpu| &gpu.host).chain(facts.hosts.keys()).collect();
        Ok(DoctorAnswer {
            since_unix_s: range.start,
            until_unix_s: range.end,
            run,
            hosts: hosts.into_iter().cloned().collect(),
            runs: facts.runs.keys().cloned().collect(),
            gpus: facts.gpus.len(),
            gpu_hours: facts.held_s() / HOUR_S as f64,
            findings: judge(&facts),
            not_judged: not_judged(&facts),
            charts: charts::draw(&facts, range.end - range.start),
        })
    }
}

/// Applies all rules. The worst findings come first.
pub fn judge(facts: &DoctorFacts) -> Vec<DoctorFinding> {
    let mut findings: Vec<DoctorFinding> =
        RULES.iter().filter_map(|rule| find(rule, facts)).collect();
    findings.sort_by(|a, b| {
        let lost = |one: &DoctorFinding| one.lost_gpu_hours.unwrap_or(0.0);
        a.severity.cmp(&b.severity).then_with(|| lost(b).total_cmp(&lost(a)))
    });
    findings
}

fn find(rule: &DoctorRule, facts: &DoctorFacts) -> Option<DoctorFinding> {
    let mut cases = (rule.find)(facts);
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
    let share = lost_s.unwrap_or(0.0) / facts.held_s().max(1.0);
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
        ("Step times", !facts.runs.is_empty()),
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
    use super::facts::{DoctorFacts, GpuCell, GpuFacts, GpuPlace, HostCell};
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
        assert!(judge(&DoctorFacts::default()).is_empty());
        let unseen = facts(GpuCell::default(), &HostCell::default());
        assert!(judge(&unseen).is_empty());
        let notes = not_judged(&unseen).join(" ");
        assert!(notes.contains("Activity of 1 of 1 GPUs was not observed."), "{notes}");
        // A busy CPU counts only beside a GPU that was observed.
        let host = HostCell {
            observed_s: 60.0,
            cpu_busy_s: 95.0,
            cpu_all_s: 100.0,
            ..HostCell::default()
        };
        assert!(judge(&facts(GpuCell::default(), &host)).is_empty());
        let waits = GpuCell { busy_observed_s: 60.0, busy_s: 15.0, ..GpuCell::default() };
        let found = judge(&facts(waits, &host));
        let rules: Vec<_> = found.iter().map(|one| (one.rule, one.lost_gpu_hours)).collect();
        assert_eq!(rules, [("P01", Some(0.75))]);
        assert!(found[0].what.contains("CPUs busy 95.0 %, GPUs busy 25.0 %"), "{}", found[0].what);
    }
}
