//! Caps the severity of findings that rest mostly on set-up, autotuning or the profiler, which a
//! job in steady state does not repeat.

use super::finding::{Finding, HeldBack, Number, RuleFindings, Severity, severity_of};
use crate::facts::disturbance::{DISTURBANCES, Disturbance};
use crate::facts::interval::Interval;
use crate::facts::job::{JobFacts, RankFacts};
use trace::store::TrackId;

/// Minimum share of disturbed time from which the severity of a finding is lowered.
const MOSTLY: f64 = 0.5;
/// Name of the figure of a finding that contains the disturbed share.
const SHARE: &str = "disturbed_pct";

/// Nanoseconds of each kind of disturbance, in the order of [`DISTURBANCES`].
type ByKind = [i64; DISTURBANCES.len()];

/// Returns the dominant disturbance of a finding if disturbances make up most of its time, and
/// their total share.
pub(super) fn find_severity_cap(
    found: &RuleFindings,
    job: &JobFacts<'_>,
    ranks: &[u32],
) -> Option<(HeldBack, Number)> {
    let mut by_kind = ByKind::default();
    let total = if found.spans.is_empty() {
        rows(found, job, &mut by_kind)
    } else {
        // The thread spans of a finding belong to the rank of its first evidence.
        let rank = found.evidence.first().map(|evidence| evidence.rank).or(ranks.first().copied());
        let facts = rank.and_then(|rank| job.rank(rank))?;
        found.spans.iter().map(|(track, span)| host_time(facts, *track, *span, &mut by_kind)).sum()
    };
    let share = by_kind.iter().sum::<i64>() as f64 / (total as f64).max(1.0);
    // If two kinds of disturbance have equal time, the first one is taken.
    let most = (0..by_kind.len()).rev().max_by_key(|at| by_kind[*at])?;
    let value = (1e3 * share.min(1.0)).round() / 10.0;
    let number = Number { name: SHARE, value };
    (share >= MOSTLY).then(|| (HeldBack::from(DISTURBANCES[most]), number))
}

/// Lowers the severity of a finding that rests mostly on disturbances, and adds the reason to its
/// text.
pub(super) fn lower_severity(finding: &mut Finding) {
    let share = finding.numbers.iter().find(|number| number.name == SHARE);
    let Some((share, held)) = share.map(|number| number.value).zip(finding.held_back) else {
        return;
    };
    // The part of the saving that is not disturbed decides, but the severity falls by one level at
    // most.
    let saving = finding.saving.map(|saving| saving.mid_pct * (1.0 - share / 100.0));
    let rest = saving.map_or(finding.severity, severity_of);
    let old = finding.severity;
    finding.severity = rest.max(one_less(old));
    let lowered = match old == finding.severity {
        true => String::new(),
        false => format!("; severity lowered from {} to {}", old.name(), finding.severity.name()),
    };
    let (what, who) = match held {
        HeldBack::DeviceBound => return,
        HeldBack::WarmUp => ("set-up and warm-up", RUNNING),
        HeldBack::FirstLaunch => ("first launches of kernels, which load their code", RUNNING),
        HeldBack::Autotuning => ("autotuning, which tries and times variants of kernels", RUNNING),
        HeldBack::GraphCapture => ("the capture of a graph, whose launches do not run", RUNNING),
        HeldBack::Profiler => {
            ("the profiler's own work and its waits at start and stop", "a job without a profiler")
        }
    };
    finding.what += &format!(" {share:.0} % of this is {what}: {who} does none of that{lowered}.");
}

const RUNNING: &str = "a job that has been running for a while";

fn one_less(severity: Severity) -> Severity {
    match severity {
        Severity::Critical => Severity::High,
        Severity::High => Severity::Medium,
        Severity::Medium | Severity::Info => Severity::Info,
    }
}

/// Returns the total time of a finding's rows, which are the rows of its edits, or those of its
/// evidence if it has no edits.
fn rows(found: &RuleFindings, job: &JobFacts<'_>, by_kind: &mut ByKind) -> i64 {
    let mut total = 0;
    let mut add = |facts: &RankFacts<'_>, rows: &[u32]| {
        for row in rows {
            // A row inside another row of the finding is already counted.
            let parent = facts.tree().parent(*row);
            if parent.is_none_or(|parent| rows.binary_search(&parent).is_err()) {
                total += row_time(facts, *row, by_kind);
            }
        }
    };
    for edit in &found.edits {
        job.rank(edit.rank).into_iter().for_each(|facts| add(facts, &edit.rows));
    }
    for evidence in found.evidence.iter().filter(|_| found.edits.is_empty()) {
        if let (Some(facts), Some(row)) = (job.rank(evidence.rank), evidence.row) {
            add(facts, &[row]);
        }
    }
    total
}

/// Returns the time of a row within the window, and adds its disturbed time to `by_kind`. Device
/// work counts as disturbed if its launch was disturbed.
fn row_time(facts: &RankFacts<'_>, row: u32, by_kind: &mut ByKind) -> i64 {
    let trace = facts.scope.trace;
    let is_device = trace.kind(row).is_device_work();
    let span = facts.scope.clipped(row);
    let host = if is_device { facts.scope.links().call(row) } else { Some(row) };
    let Some(host) = host else { return span.1 - span.0 };
    let track = trace.slices.track[host as usize];
    if !is_device {
        return host_time(facts, track, span, by_kind);
    }
    let launched = (facts.start(host), facts.start(host) + 1);
    let is_in = |kind: &Disturbance| facts.disturbances().length_within(*kind, track, launched) > 0;
    if let Some(at) = DISTURBANCES.iter().position(is_in) {
        by_kind[at] += span.1 - span.0;
    }
    span.1 - span.0
}

/// Returns the length of a thread's span and adds its disturbed time by kind. Time with several
/// kinds of disturbance counts only once.
fn host_time(facts: &RankFacts<'_>, track: TrackId, span: Interval, by_kind: &mut ByKind) -> i64 {
    let mut rest = span.1 - span.0;
    if !facts.disturbances().is_empty() {
        for (sum, kind) in by_kind.iter_mut().zip(DISTURBANCES) {
            let ns = facts.disturbances().length_within(kind, track, span).min(rest);
            *sum += ns;
            rest -= ns;
        }
    }
    span.1 - span.0
}
