//! Findings: named causes of waste in a job's traces, with evidence, cure and what a step would
//! gain.
//!
//! A rule reads shared facts of a rank or of the job and reports its finding, the graph edit that
//! models its cure, and the sum of the rows themselves. This file asks the rules, prices what they
//! found on the graph, and orders it. Knows no file and no terminal.

mod account;
mod bound;
mod c01_pageable_copies;
mod c02_blocking_copies;
mod c03_unhidden_input;
mod c04_round_trip;
mod c05_data_movement;
mod c06_gradient_zeroing;
mod finding;
mod g01_memory_ceiling;
mod g02_fragmentation;
mod guard;
mod h01_host_bound;
mod h02_data_loading;
mod h03_periodic_stall;
mod h04_one_feeder;
mod h05_scalar_reads;
mod h06_device_sync;
mod h07_driver_memory;
mod h08_pinned_memory;
mod h09_event_polling;
mod h10_tensor_moved;
mod h11_indexing_loop;
mod h12_harmless_hotspots;
mod h13_unrecorded_host;
mod hardware;
mod k01_few_blocks;
mod k02_coarse_threads;
mod k03_low_occupancy;
mod k04_wave_tail;
mod k05_slow_memory;
mod k06_tensor_cores_unused;
mod k07_misaligned_products;
mod k08_useless_bias;
mod k09_unfused_optimizer;
mod k10_separate_embeddings;
mod k11_serial_branches;
mod k12_layout_conversion;
mod k13_fusable_chain;
mod l01_tiny_kernels;
mod l02_copy_loop;
mod l03_graph_candidate;
mod l04_starved_queue;
mod l05_full_queue;
mod l06_slow_launches;
mod l07_kernel_gaps;
mod l08_stalled_queue;
mod m01_exposed_communication;
mod m02_exposed_input;
mod m03_repeated_metadata;
mod m04_small_collectives;
mod m05_low_bus_bandwidth;
mod m06_straggler;
mod m07_imbalance;
mod m08_network_skew;
mod m09_slow_backend;
mod m10_shared_stream;
mod m11_blocking_wait;
mod names;
mod own;
mod own_rule;
mod pool;
mod price;
mod product;
mod proof;
mod quality_rules;
mod rule;
mod rules;
mod settings;
mod sides;
#[cfg(test)]
mod tests;
pub(crate) mod text;

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use trace::store::EventKind;

use crate::Error;
use crate::critical_path::CategoryPart;
use crate::job::{JobFacts, RankFacts};
use crate::named::{is_named, names};
use crate::quality::QualityVerdict;
use finding::{RuleFindings, severity_of};
use price::Pricer;
use rule::{Detect, RuleLimits};

pub use crate::graph::edit::Action;
pub use finding::{
    Bound, Confidence, Finding, FindingCategory, HeldBack, Number, Proof, Remedy, RowEdit, Saving,
    SavingSource, Severity, Sides, WaitFor,
};
pub use own::Condition;
pub use own_rule::{OwnRule, TraceTable};
pub use rule::{CureSide, Limit, Rule};
pub use rules::rules;
pub use settings::{RuleSettings, Suppression};

/// Fewest steps that say how much steps differ.
const STEPS_MIN: usize = 3;

/// What was found in a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FindingReport {
    /// Trace quality first, then the most severe, then by saving, rule and key.
    pub findings: Vec<Finding>,
    /// What was found and is known.
    pub suppressed: Vec<Suppressed>,
    /// The mean step of the slowest rank; the window where there are no steps.
    pub step_ns: i64,
    /// Steps looked at, of the rank with the fewest.
    pub step_count: u64,
    /// What a step would gain from all remedies together: less than their sum. `None` where steps
    /// differ by as much anyway.
    pub joint_saving_ns: Option<i64>,
    /// What the critical path of the rank with the longest steps is spent on: all of its window.
    pub path: Vec<CategoryPart>,
    /// How that rank's steps, its window and its critical path fit together, in words.
    pub account: String,
}

/// A finding that was suppressed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suppressed {
    pub key: String,
    pub reason: String,
}

/// Finds what wastes time in a job.
///
/// # Cost
/// `O(n log n)` in the rows of the traces, and one pass over the graph per finding.
/// # Errors
/// [`Error::Rules`] and [`Error::Pattern`] for settings that are wrong.
pub fn of(job: &JobFacts<'_>, settings: &RuleSettings) -> Result<FindingReport, Error> {
    let own = settings.conditions()?;
    job.tell_waits();
    let mut findings = apply_rules(job, settings);
    for (rule, conditions) in &own {
        findings.extend(own::find(job, rule, conditions)?);
    }
    if crate::pool::are_pools(job.scopes().iter().map(|scope| scope.trace)) {
        pool::reword(&mut findings);
    }
    let mut report = FindingReport {
        step_ns: job.step_ns(),
        step_count: job.ranks.iter().map(|rank| rank.step_count() as u64).min().unwrap_or(1),
        ..FindingReport::default()
    };
    findings.retain(|finding| {
        let known = settings.suppression(&finding.rule, &finding.key);
        report.suppressed.extend(
            known
                .map(|known| Suppressed { key: finding.key.clone(), reason: known.reason.clone() }),
        );
        known.is_none()
    });
    if findings.iter().any(|finding| finding.remedy.is_some()) {
        let mut pricer = Pricer::new(job.scopes(), job.measured());
        for finding in &mut findings {
            price(finding, job, &mut pricer);
            sides::tell(finding, job, &mut pricer);
            explain(finding, job, &mut pricer);
        }
        report.joint_saving_ns = joint(&findings, job, &mut pricer);
    }
    findings.iter_mut().for_each(guard::lower);
    (report.path, report.account) = account::of(job);
    sort(&mut findings);
    relate(&mut findings);
    report.findings = findings;
    Ok(report)
}

/// The rows of operators whose tensors sharpen findings, by place of the rank.
///
/// # Cost
/// Linear in the kernels.
pub fn rows_with_shapes(job: &JobFacts<'_>) -> Vec<Vec<u32>> {
    /// Of a rank, those with the longest kernels; of those whose kernels might be fused, the first
    /// ones, because steps are alike.
    const MOST: usize = 4096;
    /// Kernels that only move data are worth their sizes from this duration on, nanoseconds.
    const LONG_MOVER_NS: i64 = 20_000;
    let longest_first = |rank: &RankFacts<'_>| {
        let trace = rank.scope.trace;
        let needs_sizes = names(trace, |kernel| {
            product::is_named(kernel) && !kernel.contains("sgemm") && !kernel.contains("scudnn")
        });
        let elementwise = names(trace, k02_coarse_threads::is_elementwise);
        let fusable = names(trace, k13_fusable_chain::is_fusable);
        let mut longest = Vec::new();
        let mut rows = Vec::new();
        for (place, row) in rank.scope.device_rows.iter().enumerate() {
            let Some(owner) = rank.attribution().owner(place) else { continue };
            if trace.kind(*row) != EventKind::Kernel || trace.kind(owner) != EventKind::Operator {
                continue;
            }
            let duration = trace.slices.duration[*row as usize];
            let is_mover = is_named(trace, &elementwise, *row)
                || k05_slow_memory::MOVERS.contains(&trace.name(owner));
            let needs_sizes = match is_mover {
                true => duration >= LONG_MOVER_NS,
                false => is_named(trace, &needs_sizes, *row),
            };
            if needs_sizes {
                longest.push((std::cmp::Reverse(duration), owner));
            } else if rows.len() < MOST && is_named(trace, &fusable, *row) {
                rows.push(owner);
            }
        }
        longest.sort_unstable();
        longest.truncate(MOST);
        rows.extend(longest.into_iter().map(|(_, owner)| owner));
        rows.extend(k11_serial_branches::operators(rank));
        rows.sort_unstable();
        rows.dedup();
        rows
    };
    job.ranks.iter().map(longest_first).collect()
}

/// Runs the built-in rules on several threads. The findings come back in the order of the rules.
///
/// One thread first computes the critical paths, which take longer than any rule. The others start
/// with the last rule, because the first ones judge the quality of the recording, which the paths
/// of several ranks wait for as well.
fn apply_rules(job: &JobFacts<'_>, settings: &RuleSettings) -> Vec<Finding> {
    /// More threads than this wait for the facts that the rules share.
    const MOST_THREADS: usize = 8;
    let rules: Vec<&Rule> = rules().collect();
    let results: Vec<OnceLock<Vec<Finding>>> = rules.iter().map(|_| OnceLock::new()).collect();
    let taken = AtomicUsize::new(0);
    let work = || {
        while let Some(at) = rules.len().checked_sub(1 + taken.fetch_add(1, Ordering::Relaxed)) {
            let (rule, result) = (rules[at], &results[at]);
            let limits = RuleLimits { rule, changed: settings.limits.get(rule.id) };
            result.get_or_init(|| found_by(job, &limits));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        (1..threads.min(MOST_THREADS)).for_each(|_| drop(scope.spawn(work)));
        job.paths();
        work();
    });
    results.into_iter().filter_map(OnceLock::into_inner).flatten().collect()
}

fn found_by(job: &JobFacts<'_>, limits: &RuleLimits<'_>) -> Vec<Finding> {
    match limits.rule.detect {
        Detect::Rank(detect) => {
            let of = |rank: &RankFacts<'_>| Some((rank.rank(), detect(rank, limits)?));
            let found: Vec<(u32, RuleFindings)> = job.ranks.iter().filter_map(of).collect();
            together(job, limits, found).into_iter().collect()
        }
        Detect::Job(detect) => {
            let found = detect(job, limits);
            found.into_iter().map(|(ranks, found)| finding(job, limits, ranks, found)).collect()
        }
    }
}

/// Merges a finding of several ranks: reported for the rank with most of it, cured on all.
fn together(
    job: &JobFacts<'_>,
    limits: &RuleLimits<'_>,
    mut found: Vec<(u32, RuleFindings)>,
) -> Option<Finding> {
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
    Some(finding(job, limits, ranks, one))
}

fn finding(
    job: &JobFacts<'_>,
    limits: &RuleLimits<'_>,
    ranks: Vec<u32>,
    mut found: RuleFindings,
) -> Finding {
    let rule = limits.rule;
    let told = told(job, &ranks, &found.proofs);
    let facts = || job.ranks[told.clone()].iter().filter(|one| ranks.contains(&one.rank()));
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
    // Without steps, set-up cannot be told from what a running job does.
    let is_set_up = steps.is_empty() && job.issues().iter().any(|issue| issue.id == "warm-up");
    if is_set_up && rule.side == CureSide::Host {
        confidence = Confidence::Low;
    }
    if rule.category != FindingCategory::Quality && job.verdict() >= QualityVerdict::Poor {
        confidence = Confidence::Low;
    }
    // Without steps, what a text says of each is of the whole window.
    let said = |text: String| match steps.is_empty() {
        true => text.replace("per step", "in the window"),
        false => text,
    };
    let mut numbers = std::mem::take(&mut found.numbers);
    let is_advice = rule.category != FindingCategory::Quality && !is_held_back;
    let disturbed = if is_advice { guard::of(&found, job, &ranks) } else { None };
    numbers.extend(disturbed.map(|(_, share)| share));
    let (advice, held_back) = if is_held_back {
        let busy = "The device is busy almost all the time: nothing the host does differently \
                    shortens a step.";
        (busy.to_owned(), Some(HeldBack::DeviceBound))
    } else {
        (said(found.advice), disturbed.map(|(held, _)| held))
    };
    let what = said(found.what);
    let high = found.high_ns.map(|ns| Saving { high_ns: per_step(ns), ..Saving::default() });
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
        bound: None,
        saving: high.filter(|_| !is_held_back && remedy.is_some()),
        sides: None,
        numbers,
        proofs: found.proofs,
        limits: limits.used(),
        key: match found.subject.is_empty() {
            true => rule.id.to_owned(),
            false => format!("{}:{}", rule.id, found.subject),
        },
        remedy,
    }
}

/// Prices a finding on the graph, never above what its rows add up to.
fn price(finding: &mut Finding, job: &JobFacts<'_>, pricer: &mut Pricer<'_>) {
    let told = told(job, &finding.ranks, &finding.proofs);
    let (Some(saving), Some(remedy)) = (&mut finding.saving, &finding.remedy) else { return };
    let ranks = &job.ranks[told.clone()];
    let steps = ranks.iter().map(RankFacts::step_count).max().unwrap_or(1);
    let priced = pricer.saving_of(&remedy.edits, told) / steps;
    saving.mid_ns = priced.clamp(0, saving.high_ns);
    saving.low_ns = (saving.mid_ns - noise(ranks)).max(0);
    let step_ns = ranks.iter().map(RankFacts::step_ns).max().unwrap_or_default();
    let share = 100.0 * saving.mid_ns as f64 / step_ns.max(1) as f64;
    saving.mid_pct = (share * 1e3).round() / 1e3;
    finding.severity = finding.severity.min(severity_of(share));
}

/// Says why a remedy brings far less than its rows add up to.
fn explain(finding: &mut Finding, job: &JobFacts<'_>, pricer: &mut Pricer<'_>) {
    let Some(remedy) = finding.remedy.as_ref() else { return };
    let told = finding.proofs.first().map(|proof| proof.rank).or(finding.ranks.first().copied());
    let at = job.ranks.iter().position(|rank| Some(rank.rank()) == told);
    let Some(at) = at.filter(|_| bound::contradicts(finding, job.step_ns())) else { return };
    let measured = pricer.measured();
    let bound =
        pricer.after(&remedy.edits, |graph, times| bound::of(job, measured, (graph, times), at));
    bound::explain(finding, job, bound);
}

/// The places of the ranks whose steps a finding is a part of: all of a job. Ranks that are no job
/// gain nothing from each other: then the one that is told of.
fn told(job: &JobFacts<'_>, ranks: &[u32], proofs: &[Proof]) -> Range<usize> {
    let rank = proofs.first().map(|proof| proof.rank).or(ranks.first().copied());
    let at = job.ranks.iter().position(|facts| Some(facts.rank()) == rank);
    match at.filter(|_| !job.is_one_job()) {
        Some(at) => at..at + 1,
        None => 0..job.ranks.len(),
    }
}

/// How much longer a slow step is than a usual one, of the unsteadiest rank.
fn noise(ranks: &[RankFacts<'_>]) -> i64 {
    let of = |rank: &RankFacts<'_>| {
        let steps = &rank.scope.window.steps;
        let mut lengths: Vec<i64> = steps.iter().map(|step| step.end - step.start).collect();
        let spread = crate::distribution::of(&mut lengths);
        spread.p95 - spread.p50
    };
    ranks.iter().map(of).max().unwrap_or_default()
}

fn joint(findings: &[Finding], job: &JobFacts<'_>, pricer: &mut Pricer<'_>) -> Option<i64> {
    let priced = findings.iter().filter(|finding| finding.saving.is_some());
    let remedies: Vec<&Remedy> = priced.filter_map(|one| one.remedy.as_ref()).collect();
    let edits: Vec<RowEdit> = remedies.iter().flat_map(|one| one.edits.iter().cloned()).collect();
    let steps = job.ranks.iter().map(RankFacts::step_count).max().unwrap_or(1);
    if remedies.len() < 2 || !job.is_one_job() {
        return None;
    }
    let joint_ns = (pricer.saving(&edits) / steps).max(0);
    Some(joint_ns).filter(|ns| *ns == 0 || *ns > noise(&job.ranks))
}

/// Sets what a finding saves of a step to what a simulation says; its severity follows where it was
/// that of the saving before.
pub fn reprice(finding: &mut Finding, saved_ns: i64, step_ns: i64) {
    let Some(saving) = &mut finding.saving else { return };
    let noise = saving.mid_ns - saving.low_ns;
    let was = severity_of(saving.mid_pct);
    saving.mid_ns = saved_ns.clamp(0, saving.high_ns);
    saving.low_ns = (saving.mid_ns - noise).max(0);
    saving.mid_pct = (1e5 * saving.mid_ns as f64 / step_ns.max(1) as f64).round() / 1e3;
    saving.source = SavingSource::Simulation;
    if finding.severity == was {
        finding.severity = severity_of(saving.mid_pct);
    }
}

/// Says of findings whose rows are mostly those of one before them that they save the same time.
fn relate(findings: &mut [Finding]) {
    /// Of each finding, so many rows are looked for.
    const LOOKED_AT: usize = 1024;
    for at in 1..findings.len() {
        let own = told_edits(&findings[at]);
        let count: usize = own.iter().map(|edit| edit.rows.len()).sum();
        let all = own.iter().flat_map(|edit| edit.rows.iter().map(|row| (edit.rank, *row)));
        let some: Vec<(u32, u32)> = all.step_by(count.div_ceil(LOOKED_AT).max(1)).collect();
        let has = |edit: &RowEdit, (rank, row)| {
            edit.rank == rank && edit.rows.binary_search(&row).is_ok()
        };
        let is_wider = |before: &&Finding| {
            let edits = told_edits(before);
            let shared = some.iter().filter(|row| edits.iter().any(|edit| has(edit, **row)));
            2 * shared.count() > some.len()
        };
        if let Some(rule) = findings[..at].iter().find(is_wider).map(|one| one.rule.clone()) {
            findings[at].advice +=
                &format!(" Most of this time is {rule}'s, too: their savings do not add up.");
        }
    }
}

/// The edits of a finding that promises a saving.
fn told_edits(finding: &Finding) -> &[RowEdit] {
    let is_told = finding.saving.is_some() && finding.severity < Severity::Info;
    match &finding.remedy {
        Some(remedy) if is_told => &remedy.edits,
        _ => &[],
    }
}

/// Sorts findings in the order of the report. Within a severity, savings of a simulation come
/// before those of the recording: the two are not compared.
pub fn sort(findings: &mut [Finding]) {
    findings.sort_by(|a, b| order(a).cmp(&order(b)));
}

fn order(finding: &Finding) -> impl Ord + '_ {
    let saving = finding.saving.map_or(0, |saving| saving.mid_ns);
    let source = finding.saving.map_or(SavingSource::Recording, |saving| saving.source);
    let is_quality = finding.category == FindingCategory::Quality;
    let (severity, saving) = (finding.severity, std::cmp::Reverse(saving));
    (!is_quality, severity, source, saving, &finding.rule, &finding.key)
}
