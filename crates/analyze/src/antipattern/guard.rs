//! What a finding rests on that a running job does not do: then less is at stake than its rows say.
//! Knows no rule.

use super::facts::{Facts, JobFacts};
use super::finding::{Category, Finding, HeldBack, Severity};
use crate::disturbance::{DISTURBANCES, Disturbance};

/// A finding rests mostly on a disturbance from this share of its rows' time on.
const MOSTLY: f64 = 0.5;

/// Lowers the severity of a finding that rests mostly on disturbances, and says so.
pub(super) fn apply(finding: &mut Finding, job: &JobFacts<'_>) {
    let is_told = finding.held_back.is_some() || finding.category == Category::Quality;
    let Some(found) = disturbed(finding, job).filter(|_| !is_told) else { return };
    let saving = finding.saving.map(|saving| saving.mid_pct * (1.0 - found.share));
    let severity = saving.map_or(finding.severity, super::severity_of);
    let old = finding.severity;
    finding.severity = severity.max(lower(old));
    finding.held_back = Some(HeldBack::from(found.kind));
    let lowered = match old == finding.severity {
        true => String::new(),
        false => format!("; severity lowered from {} to {}", old.name(), finding.severity.name()),
    };
    let who = match found.kind {
        Disturbance::Profiler => "a job that is not profiled",
        _ => "a job that has been running for a while",
    };
    finding.what += &format!(
        " {:.0} % of this is {}: {who} does none of that{lowered}.",
        100.0 * found.share,
        words(found.kind)
    );
}

struct Disturbed {
    kind: Disturbance,
    /// Of the time of the finding's rows, all kinds together.
    share: f64,
}

fn lower(severity: Severity) -> Severity {
    match severity {
        Severity::Critical => Severity::High,
        Severity::High => Severity::Medium,
        Severity::Medium | Severity::Info => Severity::Info,
    }
}

fn words(kind: Disturbance) -> &'static str {
    match kind {
        Disturbance::WarmUp => "set-up and warm-up",
        Disturbance::FirstLaunch => "first launches of kernels, which load their code",
        Disturbance::Autotuning => "autotuning, which tries and times variants of kernels",
        Disturbance::GraphCapture => "the capture of a graph, whose launches do not run",
        Disturbance::Profiler => "the profiler's own work and its waits at start and stop",
    }
}

/// The kind that most of a finding's time is of, if most of it is disturbed.
fn disturbed(finding: &Finding, job: &JobFacts<'_>) -> Option<Disturbed> {
    let mut by_kind = [0; DISTURBANCES.len()];
    let mut total = 0;
    let mut add = |facts: &Facts<'_>, rows: &[u32]| {
        for row in rows {
            // What runs inside another row of the finding is in that one's time.
            let parent = facts.tree.parent(*row);
            if parent.is_none_or(|parent| rows.binary_search(&parent).is_err()) {
                total += time(facts, *row, &mut by_kind);
            }
        }
    };
    match &finding.remedy {
        Some(remedy) => {
            for edit in &remedy.edits {
                job.rank(edit.rank).into_iter().for_each(|facts| add(facts, &edit.rows));
            }
        }
        None => {
            for proof in &finding.proofs {
                if let (Some(facts), Some(row)) = (job.rank(proof.rank), proof.row) {
                    add(facts, &[row]);
                }
            }
        }
    }
    let share = by_kind.iter().sum::<i64>() as f64 / (total as f64).max(1.0);
    // Of equal ones the first.
    let most = (0..by_kind.len()).rev().max_by_key(|at| by_kind[*at])?;
    (share >= MOSTLY).then(|| Disturbed { kind: DISTURBANCES[most], share: share.min(1.0) })
}

/// The time of a row in the window; how much of it is disturbed is added by kind. Work of a device
/// is what the call was that launched it.
fn time(facts: &Facts<'_>, row: u32, by_kind: &mut [i64; DISTURBANCES.len()]) -> i64 {
    let trace = facts.scope.trace;
    let is_device = trace.kind(row).is_device_work();
    let (start, end) = facts.scope.clipped(row);
    let host = if is_device { facts.scope.links().call(row) } else { Some(row) };
    let Some(host) = host.filter(|_| !facts.disturbances().is_empty()) else { return end - start };
    let track = trace.slices.track[host as usize];
    let launched = facts.start(host);
    let mut rest = end - start;
    for (sum, kind) in by_kind.iter_mut().zip(DISTURBANCES) {
        let within = |span| facts.disturbances().length_within(kind, track, span);
        let ns = match is_device {
            true if within((launched, launched + 1)) > 0 => end - start,
            true => 0,
            false => within((start, end)),
        };
        // What several kinds share counts once.
        *sum += ns.min(rest);
        rest -= ns.min(rest);
    }
    end - start
}
