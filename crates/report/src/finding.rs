//! The findings tab, with times converted to the page's clock.

use std::collections::BTreeMap;

use analyze::Scope;
use analyze::findings::{
    Confidence, Evidence, Finding, FindingCategory, FindingReport, HeldBack, LimitingFactor,
    Number, Saving, Severity, Suppressed,
};
use serde::Serialize;

use crate::clock::Zero;

/// The findings of a job, with the totals they refer to.
#[derive(Clone, Debug, Serialize)]
pub struct FindingPart {
    /// Findings about trace quality come first, then the most severe.
    pub rows: Vec<FindingView>,
    /// Findings that the user marked as known.
    pub suppressed: Vec<Suppressed>,
    /// Mean step time of the slowest rank. Without steps, the length of the window.
    pub step_ns: i64,
    /// Saving per step if all findings are fixed.
    pub joint_saving_ns: Option<i64>,
    /// One line that relates steps, window and critical path.
    pub account: String,
}

/// One finding without its edit of the graph; see [`Finding`].
#[derive(Clone, Debug, Serialize)]
pub struct FindingView {
    pub rule: String,
    pub title: String,
    pub category: FindingCategory,
    pub severity: Severity,
    pub confidence: Confidence,
    /// Ranks that have the finding; empty if it concerns the whole job.
    pub ranks: Vec<u32>,
    pub what: String,
    pub advice: String,
    /// The reason why advice is withheld.
    pub held_back: Option<HeldBack>,
    /// The limiting factor without these rows, if the saving is far below their sum.
    pub bound: Option<LimitingFactor>,
    /// Estimated saving per step.
    pub saving: Option<Saving>,
    pub numbers: Vec<Number>,
    pub proofs: Vec<ProofView>,
    /// Key that a suppression refers to.
    pub key: String,
}

/// A row that supports the finding; see [`Evidence`].
#[derive(Clone, Debug, Serialize)]
pub struct ProofView {
    pub rank: u32,
    pub name: String,
    /// Enclosing events, outermost first.
    pub within: Vec<String>,
    /// File and line in Python.
    pub source: Option<String>,
    /// The longest row with this name: start on the page's clock, and duration.
    pub at: Option<(i64, i64)>,
    /// Number of rows with this name.
    pub count: u64,
    /// Sum of the rows' durations.
    pub total_ns: i64,
}

pub(crate) fn build_part(scopes: &[Scope<'_>], found: &FindingReport, zero: &Zero) -> FindingPart {
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

fn proof_view(proof: &Evidence, scope: Option<&Scope<'_>>, zero: &Zero) -> ProofView {
    let at = proof.row.zip(scope).map(|(row, scope)| {
        let slices = &scope.trace.slices;
        (zero.at(proof.rank, slices.start(row)), slices.duration[row as usize])
    });
    ProofView {
        rank: proof.rank,
        name: proof.name.clone(),
        within: proof.within.clone(),
        source: proof.source.clone(),
        at,
        count: proof.count,
        total_ns: proof.total_ns,
    }
}
