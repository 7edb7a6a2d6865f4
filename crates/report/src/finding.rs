//! The findings tab of the page, with times converted to the page's clock.

use std::collections::BTreeMap;

use analyze::Scope;
use analyze::findings::{
    Confidence, Evidence, Finding, FindingCategory, FindingReport, HeldBack, LimitingFactor,
    Number, Saving, Severity, Suppressed,
};
use serde::Serialize;

use crate::clock::Zero;

/// The findings of a job, with the totals to which they refer.
#[derive(Clone, Debug, Serialize)]
pub struct FindingPart {
    /// Findings about the quality of the trace come first. The others are sorted by descending
    /// severity.
    pub rows: Vec<FindingView>,
    /// Findings that the user marked as known in a suppression file.
    pub suppressed: Vec<Suppressed>,
    /// Mean step time of the slowest rank, or the length of the window if there are no steps.
    pub step_ns: i64,
    /// Saving per step if the remedies of all findings are applied.
    pub joint_saving_ns: Option<i64>,
    /// One line that relates steps, window and critical path to each other.
    pub account: String,
}

/// One finding as the page shows it, which is a [`Finding`] without the edits of its remedy.
#[derive(Clone, Debug, Serialize)]
pub struct FindingView {
    pub rule: String,
    pub title: String,
    pub category: FindingCategory,
    pub severity: Severity,
    pub confidence: Confidence,
    /// Ranks that have the finding. The list is empty if the finding concerns the whole job.
    pub ranks: Vec<u32>,
    pub what: String,
    pub advice: String,
    /// The reason for which the severity is lowered, if it is.
    pub held_back: Option<HeldBack>,
    /// The limiting factor after removal of these rows, if the saving is far below their total
    /// time.
    pub bound: Option<LimitingFactor>,
    /// Estimated saving per step, if it could be computed.
    pub saving: Option<Saving>,
    pub numbers: Vec<Number>,
    pub proofs: Vec<ProofView>,
    /// Key by which a suppression refers to this finding.
    pub key: String,
}

/// Rows that support a finding, as the page shows them; see [`Evidence`].
#[derive(Clone, Debug, Serialize)]
pub struct ProofView {
    pub rank: u32,
    pub name: String,
    /// Names of the enclosing events, outermost first.
    pub within: Vec<String>,
    /// File and line of the Python code.
    pub source: Option<String>,
    /// Start on the page's clock and duration of the longest row with this name.
    pub at: Option<(i64, i64)>,
    /// Number of rows with this name.
    pub count: u64,
    /// Sum of the durations of these rows.
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
