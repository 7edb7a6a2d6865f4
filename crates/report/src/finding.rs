//! Findings, with places that the page's timeline knows.

use std::collections::BTreeMap;

use analyze::Scope;
use analyze::findings::{
    Confidence, Evidence, Finding, FindingCategory, FindingReport, HeldBack, LimitingFactor,
    Number, Saving, Severity, Suppressed,
};
use serde::Serialize;

use crate::clock::Zero;

/// What wastes time in a job.
#[derive(Clone, Debug, Serialize)]
pub struct FindingPart {
    /// In the order of the report: trace quality first, then the most severe.
    pub rows: Vec<FindingView>,
    /// What was found and is known.
    pub suppressed: Vec<Suppressed>,
    /// Mean step time of the slowest rank; the length of the window if it has no steps.
    pub step_ns: i64,
    /// What a step would gain from all remedies together.
    pub joint_saving_ns: Option<i64>,
    /// How steps, window and critical path fit together.
    pub account: String,
}

/// One finding, without its edit of the graph; see [`Finding`].
#[derive(Clone, Debug, Serialize)]
pub struct FindingView {
    pub rule: String,
    pub title: String,
    /// What it is about.
    pub category: FindingCategory,
    /// How much is at stake.
    pub severity: Severity,
    /// How sure it is.
    pub confidence: Confidence,
    /// The ranks that have it; empty where it is the job's.
    pub ranks: Vec<u32>,
    pub what: String,
    pub advice: String,
    /// Why the advice is held back.
    pub held_back: Option<HeldBack>,
    /// What would decide without its rows, where the saving is far below what they add up to.
    pub bound: Option<LimitingFactor>,
    /// What a step would gain.
    pub saving: Option<Saving>,
    pub numbers: Vec<Number>,
    /// The rows that show it.
    pub proofs: Vec<ProofView>,
    /// What a suppression names.
    pub key: String,
}

/// A row that shows it; see [`Evidence`].
#[derive(Clone, Debug, Serialize)]
pub struct ProofView {
    pub rank: u32,
    pub name: String,
    /// What runs around it, outermost first.
    pub within: Vec<String>,
    /// The line of Python.
    pub source: Option<String>,
    /// The longest such row: start on the page's clock and duration.
    pub at: Option<(i64, i64)>,
    /// How many rows of this name.
    pub count: u64,
    /// Nanoseconds of them.
    pub total_ns: i64,
}

pub(crate) fn of(scopes: &[Scope<'_>], found: &FindingReport, zero: &Zero) -> FindingPart {
    let by_rank: BTreeMap<u32, &Scope<'_>> =
        scopes.iter().map(|scope| (scope.trace.rank, scope)).collect();
    let view = |finding: &Finding| FindingView {
        rule: finding.rule.clone(),
        title: finding.title.clone(),
        category: finding.category,
        severity: finding.severity,
        confidence: finding.confidence,
        ranks: finding.ranks.clone(),
        what: finding.what.clone(),
        advice: finding.advice.clone(),
        held_back: finding.held_back,
        bound: finding.limiting_factor.clone(),
        saving: finding.saving,
        numbers: finding.numbers.clone(),
        proofs: finding
            .evidence
            .iter()
            .map(|proof| proof_view(proof, by_rank.get(&proof.rank).copied(), zero))
            .collect(),
        key: finding.key.clone(),
    };
    FindingPart {
        rows: found.findings.iter().map(view).collect(),
        suppressed: found.suppressed.clone(),
        step_ns: found.step_ns,
        joint_saving_ns: found.joint_saving_ns,
        account: found.step_summary.clone(),
    }
}

fn proof_view(evidence: &Evidence, scope: Option<&Scope<'_>>, zero: &Zero) -> ProofView {
    let at = evidence.row.zip(scope).map(|(row, scope)| {
        let slices = &scope.trace.slices;
        (zero.at(evidence.rank, slices.start(row)), slices.duration[row as usize])
    });
    ProofView {
        rank: evidence.rank,
        name: evidence.name.clone(),
        within: evidence.within.clone(),
        source: evidence.source.clone(),
        at,
        count: evidence.count,
        total_ns: evidence.total_ns,
    }
}
