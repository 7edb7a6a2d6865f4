//! Reports findings, which are named causes of waste in a job's traces. Each has evidence, a
//! remedy, and the time that a step would save.
//!
//! A rule reads shared facts of a rank or of the job. A rule returns its finding, the graph edit
//! that models the cure, and the total time of the rows concerned. This file applies the rules,
//! prices their findings on the dependency graph, and sorts them.

mod cpu_run;
mod custom_rule;
mod custom_rules;
mod evidence;
mod finding;
mod hardware;
mod host_device_split;
mod limiting_factor;
mod names;
mod price;
mod product;
mod rule;
mod rules;
mod settings;
mod severity_caps;
mod step_summary;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde::Serialize;

use crate::error::Error;
use crate::facts::job::{JobFacts, RankFacts};
use crate::facts::quality::QualityVerdict;
use crate::graph::critical_path::{CategoryPart, RelaxedGraph};
use finding::{RuleFindings, severity_of};
use price::Pricer;
use rule::{Detect, RuleLimits};

pub use crate::graph::edit::Action;
pub use custom_rule::{CustomRule, TraceTable};
pub use custom_rules::Condition;
pub use finding::{
    Confidence, Evidence, Finding, FindingCategory, HeldBack, HostDeviceSplit, LimitingFactor,
    Number, Remedy, RowEdit, Saving, SavingSource, Severity, WaitFor,
};
pub use rule::{CureSide, Limit, Rule};
pub use rules::{rows_with_shapes, rules};
pub use settings::{RuleSettings, Suppression};

/// Minimum number of steps from which the variation of steps can be judged.
const STEPS_MIN: usize = 3;

/// All findings of a job, with the step time to which their savings refer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FindingReport {
    /// Findings in the order of the report: quality first, then by severity, saving, rule and key.
    pub findings: Vec<Finding>,
    /// Findings that the user's settings suppress.
    pub suppressed: Vec<Suppressed>,
    /// Mean step time of the slowest rank, or the length of its window if it has no steps.
    pub step_ns: i64,
    /// Number of analyzed steps of the rank with the fewest.
    pub step_count: u64,
    /// Time that a step would save with all remedies together, which is less than the sum of the
    /// savings. The saving is `None` if it is within the variation of steps.
    pub joint_saving_ns: Option<i64>,
    /// Critical path of the rank with the longest steps, summed by category over its whole window.
    pub path: Vec<CategoryPart>,
    /// One line that explains how the steps, the window and the critical path of that rank fit
    /// together.
    #[serde(rename = "account")]
    pub step_summary: String,
}

/// A finding that the user's settings suppress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suppressed {
    pub key: String,
    pub reason: String,
}

/// Applies all rules to a job, prices their findings on the dependency graph, and sorts them.
///
/// # Cost
/// The cost is `O(n log n)` in the rows of the traces, plus one pass over the graph per finding.
/// # Errors
/// Returns [`Error::Rules`] or [`Error::Pattern`] for invalid settings.
pub fn collect_findings(
    job: &JobFacts<'_>,
    settings: &RuleSettings,
) -> Result<FindingReport, Error> {
    let own = settings.conditions()?;
    // Rules read the waits of collectives through the facts of a rank, which cannot see other
    // ranks.
    job.tell_waits();
    let mut findings = apply_rules(job, settings);
    for (rule, conditions) in &own {
        findings.extend(custom_rules::find(job, rule, conditions)?);
    }
    if crate::facts::cpu_run::are_cpu_runs(job.scopes().iter().map(|scope| scope.trace)) {
        cpu_run::reword(&mut findings);
    }
    let mut report = FindingReport {
        step_ns: job.step_ns(),
        step_count: job.ranks.iter().map(|rank| rank.step_count() as u64).min().unwrap_or(1),
        ..FindingReport::default()
    };
    // Suppressed findings are removed before pricing, so that they do not contribute to the joint
    // saving.
    findings.retain(|finding| {
        let suppression = settings.suppression(&finding.rule, &finding.key);
        report.suppressed.extend(suppression.map(|suppression| Suppressed {
            key: finding.key.clone(),
            reason: suppression.reason.clone(),
        }));
        suppression.is_none()
    });
    if findings.iter().any(|finding| finding.remedy.is_some()) {
        report.joint_saving_ns = price_findings(&mut findings, job);
    }
    // Severities are lowered after pricing, because the remaining severity depends on the saving.
    findings.iter_mut().for_each(severity_caps::lower_severity);
    (report.path, report.step_summary) = step_summary::summarize_step(job);
    sort(&mut findings);
    mark_shared_time(&mut findings);
    report.findings = findings;
    Ok(report)
}

/// Runs the built-in rules on several threads. Findings are returned in the order of the rules.
///
/// One thread first computes the critical paths, which take longer than any rule, and the indexes
/// of the graph that prices need. The other threads start with the last rule, because the first
/// rules judge the quality of the recording, which with several ranks also needs the paths.
fn apply_rules(job: &JobFacts<'_>, settings: &RuleSettings) -> Vec<Finding> {
    /// With more threads than this, the additional ones only wait for the facts that the rules
    /// share.
    const MOST_THREADS: usize = 8;
    let rules: Vec<&Rule> = rules().collect();
    let results: Vec<OnceLock<Vec<Finding>>> = rules.iter().map(|_| OnceLock::new()).collect();
    let started = AtomicUsize::new(0);
    let work = || {
        while let Some(at) = rules.len().checked_sub(1 + started.fetch_add(1, Ordering::Relaxed)) {
            let (rule, result) = (rules[at], &results[at]);
            let limits = RuleLimits { rule, changed: settings.limits.get(rule.id) };
            result.get_or_init(|| apply_rule(job, &limits));
        }
    };
    std::thread::scope(|scope| {
        (1..count_threads(MOST_THREADS)).for_each(|_| drop(scope.spawn(work)));
        job.paths();
        job.row_nodes();
        job.pauses();
        work();
    });
    results.into_iter().filter_map(OnceLock::into_inner).flatten().collect()
}

/// Returns the number of threads to use: one per core, but at most `most`.
fn count_threads(most: usize) -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(most)
}

fn apply_rule(job: &JobFacts<'_>, limits: &RuleLimits<'_>) -> Vec<Finding> {
    match limits.rule.detect {
        Detect::Rank(detect) => {
            let apply = |rank: &RankFacts<'_>| Some((rank.rank(), detect(rank, limits)?));
            let found: Vec<(u32, RuleFindings)> = job.ranks.iter().filter_map(apply).collect();
            merge_ranks(job, limits, found).into_iter().collect()
        }
        Detect::Job(detect) => {
            let found = detect(job, limits);
            found
                .into_iter()
                .map(|(ranks, found)| build_finding(job, limits, ranks, found))
                .collect()
        }
    }
}

/// Merges the findings of several ranks into one, which is reported for the most affected rank and
/// cured on all ranks.
fn merge_ranks(
    job: &JobFacts<'_>,
    limits: &RuleLimits<'_>,
    mut found: Vec<(u32, RuleFindings)>,
) -> Option<Finding> {
    // If several ranks have equal savings, the lowest one is reported, so that reports are stable.
    let most = |(rank, found): &(u32, RuleFindings)| (found.high_ns, std::cmp::Reverse(*rank));
    let worst = (0..found.len()).max_by_key(|at| most(&found[*at]))?;
    let ranks: Vec<u32> = found.iter().map(|(rank, _)| *rank).collect();
    let edits = found.iter_mut().flat_map(|(_, found)| std::mem::take(&mut found.edits)).collect();
    let (rank, mut one) = found.swap_remove(worst);
    let all = job.ranks.len();
    one.what += &match ranks.len() {
        _ if all == 1 => String::new(),
        1 => {
            format!(" These are figures of rank {rank}, the only one of {all} where it was found.")
        }
        some if some == all => {
            format!(
                " These are figures of rank {rank}, which has most of it; all {all} ranks have it."
            )
        }
        some => format!(
            " These are figures of rank {rank}, which has most of it; {some} of {all} ranks have it."
        ),
    };
    one.edits = edits;
    Some(build_finding(job, limits, ranks, one))
}

fn build_finding(
    job: &JobFacts<'_>,
    limits: &RuleLimits<'_>,
    ranks: Vec<u32>,
    mut found: RuleFindings,
) -> Finding {
    let rule = limits.rule;
    let affected = affected_ranks(job, &ranks, &found.evidence);
    let facts = || job.ranks[affected.clone()].iter().filter(|one| ranks.contains(&one.rank()));
    let per_step = |ns: i64| {
        let steps = facts().map(RankFacts::step_count).max().unwrap_or(1);
        ns / steps
    };
    let steps = facts().next().map_or_else(Vec::new, |one| {
        one.scope.window.steps.iter().map(|step| step.number).collect()
    });
    let is_bound = facts().count() > 0 && facts().all(RankFacts::is_device_bound);
    let is_held_back = rule.side == CureSide::Host && is_bound;
    let mut confidence = rule.confidence.max(found.confidence);
    let is_weak = steps.len() < STEPS_MIN && found.high_ns.is_some();
    if is_weak {
        confidence = confidence.max(Confidence::Medium);
    }
    // In a recording without steps, set-up cannot be distinguished from steady work.
    let is_set_up = steps.is_empty() && job.issues().iter().any(|issue| issue.id == "warm-up");
    if is_set_up && rule.side == CureSide::Host {
        confidence = Confidence::Low;
    }
    if rule.category != FindingCategory::Quality && job.verdict() >= QualityVerdict::Poor {
        confidence = Confidence::Low;
    }
    // In a recording without steps, the figures refer to the whole window.
    let adapt = |text: String| match steps.is_empty() {
        true => text.replace("per step", "in the window"),
        false => text,
    };
    let mut numbers = std::mem::take(&mut found.numbers);
    let is_advice = rule.category != FindingCategory::Quality && !is_held_back;
    let disturbed =
        if is_advice { severity_caps::find_severity_cap(&found, job, &ranks) } else { None };
    numbers.extend(disturbed.map(|(_, share)| share));
    let (advice, held_back) = if is_held_back {
        let busy = "The device is busy almost all the time: nothing the host does differently \
                    shortens a step.";
        (busy.to_owned(), Some(HeldBack::DeviceBound))
    } else {
        (adapt(found.advice), disturbed.map(|(held, _)| held))
    };
    let what = adapt(found.what);
    let reported = reported_rank(job, &ranks, &found.evidence);
    let most_ns = match (rule.side, reported) {
        (CureSide::Host, Some(at)) => most_saved_on_host(&job.ranks[at], &found.edits),
        _ => i64::MAX,
    };
    let high = found.high_ns.map(|ns| ns.min(most_ns));
    let high = high.map(|ns| Saving { high_ns: per_step(ns), ..Saving::default() });
    let remedy = (!found.edits.is_empty()).then_some(Remedy { edits: found.edits });
    Finding {
        rule: rule.id.to_owned(),
        title: found.title.unwrap_or(rule.title).to_owned(),
        category: rule.category,
        severity: if is_held_back { Severity::Info } else { found.severity },
        confidence,
        ranks,
        steps,
        what,
        advice,
        held_back,
        limiting_factor: None,
        saving: high.filter(|_| !is_held_back && remedy.is_some()),
        split: None,
        numbers,
        evidence: found.evidence,
        limits: limits.used(),
        key: match found.subject.is_empty() {
            true => rule.id.to_owned(),
            false => format!("{}:{}", rule.id, found.subject),
        },
        remedy,
    }
}

/// Returns the most that a cure on the host can save in the window of a rank, which is the idle
/// time of the devices plus the device work that the cure removes. The rest of the window is device
/// work that remains, however fast the host becomes.
fn most_saved_on_host(rank: &RankFacts<'_>, edits: &[RowEdit]) -> i64 {
    let own = edits.iter().filter(|edit| edit.rank == rank.rank());
    let rows = own.flat_map(|edit| edit.rows.iter().copied());
    let work: Vec<u32> = rows.filter(|row| rank.scope.trace.kind(*row).is_device_work()).collect();
    rank.idle_ns() + rank.total(&work)
}

/// Prices all findings on several threads, and returns the saving of all remedies together.
fn price_findings(findings: &mut [Finding], job: &JobFacts<'_>) -> Option<i64> {
    /// Each thread holds a copy of the weights and times of the graph.
    const MOST_THREADS: usize = 4;
    let joint_edits = joint_edits(findings, job);
    let threads = count_threads(MOST_THREADS).min(findings.len());
    // Findings with much time at stake tend to change much of the graph. They come first, so that
    // all threads end at about the same time.
    let mut waiting: Vec<&mut Finding> = findings.iter_mut().collect();
    waiting.sort_by_key(|one| std::cmp::Reverse(one.saving.map(|saving| saving.high_ns)));
    let waiting = Mutex::new(waiting.into_iter());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    let price_rest = |mut pricer: Pricer<'_>| {
        while let Some(finding) = next() {
            price(finding, job, &mut pricer);
            host_device_split::add_split(finding, job, &mut pricer);
            explain(finding, job, &mut pricer);
        }
    };
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(|| price_rest(Pricer::new(job)))));
        let mut pricer = Pricer::new(job);
        let joint = joint_edits.and_then(|edits| price_jointly(&edits, job, &mut pricer));
        price_rest(pricer);
        joint
    })
}

/// Prices a finding on the dependency graph. The saving never exceeds the total time of the
/// finding's rows.
fn price(finding: &mut Finding, job: &JobFacts<'_>, pricer: &mut Pricer<'_>) {
    let affected = affected_ranks(job, &finding.ranks, &finding.evidence);
    let (Some(saving), Some(remedy)) = (&mut finding.saving, &finding.remedy) else { return };
    let ranks = &job.ranks[affected.clone()];
    let steps = ranks.iter().map(RankFacts::step_count).max().unwrap_or(1);
    let priced = pricer.saving_of(&remedy.edits, affected) / steps;
    saving.mid_ns = priced.clamp(0, saving.high_ns);
    saving.low_ns = (saving.mid_ns - measure_noise(ranks)).max(0);
    let step_ns = ranks.iter().map(RankFacts::step_ns).max().unwrap_or_default();
    let share = 100.0 * saving.mid_ns as f64 / step_ns.max(1) as f64;
    saving.mid_pct = (share * 1e3).round() / 1e3;
    finding.severity = finding.severity.min(severity_of(share));
}

/// Adds the limiting factor to a finding whose remedy saves far less than the time of its rows.
fn explain(finding: &mut Finding, job: &JobFacts<'_>, pricer: &mut Pricer<'_>) {
    let Some(remedy) = finding.remedy.as_ref() else { return };
    let at = reported_rank(job, &finding.ranks, &finding.evidence);
    let Some(at) = at.filter(|_| limiting_factor::contradicts(finding, job.step_ns())) else {
        return;
    };
    let measured = pricer.measured();
    let bound = pricer.after(&remedy.edits, |graph, times| {
        limiting_factor::find_limiting_factor(job, RelaxedGraph { measured, graph, times }, at)
    });
    limiting_factor::explain(finding, job, bound);
}

/// Returns the indices of the ranks whose step time a finding affects, which are all ranks of one
/// job. Ranks of different jobs do not affect each other, so only the reported rank counts then.
fn affected_ranks(job: &JobFacts<'_>, ranks: &[u32], evidence: &[Evidence]) -> Range<usize> {
    match reported_rank(job, ranks, evidence).filter(|_| !job.is_one_job()) {
        Some(at) => at..at + 1,
        None => 0..job.ranks.len(),
    }
}

/// Returns the index in the job of the rank whose figures a finding reports.
fn reported_rank(job: &JobFacts<'_>, ranks: &[u32], evidence: &[Evidence]) -> Option<usize> {
    let rank = evidence.first().map(|evidence| evidence.rank).or(ranks.first().copied())?;
    job.ranks.iter().position(|facts| facts.rank() == rank)
}

/// Returns the variation of steps (95th percentile − median) of the rank whose steps vary most.
fn measure_noise(ranks: &[RankFacts<'_>]) -> i64 {
    let spread_ns = |rank: &RankFacts<'_>| {
        let steps = &rank.scope.window.steps;
        let mut lengths: Vec<i64> = steps.iter().map(|step| step.end - step.start).collect();
        let spread = crate::facts::distribution::describe_values(&mut lengths);
        spread.p95 - spread.p50
    };
    ranks.iter().map(spread_ns).max().unwrap_or_default()
}

/// Returns the edits of all remedies with a saving; `None` if there are fewer than two.
fn joint_edits(findings: &[Finding], job: &JobFacts<'_>) -> Option<Vec<RowEdit>> {
    let priced = findings.iter().filter(|finding| finding.saving.is_some());
    let remedies: Vec<&Remedy> = priced.filter_map(|one| one.remedy.as_ref()).collect();
    let is_joint = remedies.len() >= 2 && job.is_one_job();
    is_joint.then(|| remedies.iter().flat_map(|one| one.edits.iter().cloned()).collect())
}

fn price_jointly(edits: &[RowEdit], job: &JobFacts<'_>, pricer: &mut Pricer<'_>) -> Option<i64> {
    let steps = job.ranks.iter().map(RankFacts::step_count).max().unwrap_or(1);
    let joint_ns = (pricer.saving(edits) / steps).max(0);
    Some(joint_ns).filter(|ns| *ns == 0 || *ns > measure_noise(&job.ranks))
}

/// Replaces the saving of a finding by a saving that was simulated. The severity is updated too, if
/// it followed from the old saving. A finding keeps the saving of its recording if the simulated
/// one is below the interval that the recording supports. Returns whether it was replaced.
pub fn reprice(finding: &mut Finding, saved_ns: i64, step_ns: i64) -> bool {
    let Some(saving) = finding.saving.as_mut().filter(|saving| saved_ns >= saving.low_ns) else {
        return false;
    };
    let noise = saving.mid_ns - saving.low_ns;
    let was = severity_of(saving.mid_pct);
    saving.mid_ns = saved_ns.clamp(0, saving.high_ns);
    saving.low_ns = (saving.mid_ns - noise).max(0);
    saving.mid_pct = (1e5 * saving.mid_ns as f64 / step_ns.max(1) as f64).round() / 1e3;
    saving.source = SavingSource::Simulation;
    if finding.severity == was {
        finding.severity = severity_of(saving.mid_pct);
    }
    true
}

/// Marks findings whose rows mostly belong to an earlier finding, because both would save the same
/// time.
fn mark_shared_time(findings: &mut [Finding]) {
    /// Maximum number of rows of a finding that are compared with those of other findings.
    const LOOKED_AT: usize = 1024;
    for at in 1..findings.len() {
        let own = promised_edits(&findings[at]);
        let count: usize = own.iter().map(|edit| edit.rows.len()).sum();
        let all = own.iter().flat_map(|edit| edit.rows.iter().map(|row| (edit.rank, *row)));
        let some: Vec<(u32, u32)> = all.step_by(count.div_ceil(LOOKED_AT).max(1)).collect();
        let has = |edit: &RowEdit, (rank, row)| {
            edit.rank == rank && edit.rows.binary_search(&row).is_ok()
        };
        let is_wider = |before: &&Finding| {
            let edits = promised_edits(before);
            let shared = some.iter().filter(|row| edits.iter().any(|edit| has(edit, **row)));
            2 * shared.count() > some.len()
        };
        if let Some(rule) = findings[..at].iter().find(is_wider).map(|one| one.rule.clone()) {
            findings[at].advice +=
                &format!(" {rule} also reports most of this time, so the savings do not add up.");
        }
    }
}

/// Returns the graph edits of a finding that promises a saving.
fn promised_edits(finding: &Finding) -> &[RowEdit] {
    let has_saving = finding.saving.is_some() && finding.severity < Severity::Info;
    match &finding.remedy {
        Some(remedy) if has_saving => &remedy.edits,
        _ => &[],
    }
}

/// Sorts findings in the order of the report. Within a severity, simulated savings come before
/// savings from the recording, because the two cannot be compared.
pub fn sort(findings: &mut [Finding]) {
    findings.sort_by(|a, b| sort_key(a).cmp(&sort_key(b)));
}

fn sort_key(finding: &Finding) -> impl Ord + '_ {
    let saving = finding.saving.map_or(0, |saving| saving.mid_ns);
    let source = finding.saving.map_or(SavingSource::Recording, |saving| saving.source);
    let is_quality = finding.category == FindingCategory::Quality;
    let (severity, saving) = (finding.severity, std::cmp::Reverse(saving));
    (!is_quality, severity, source, saving, &finding.rule, &finding.key)
}
