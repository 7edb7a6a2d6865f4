//! Rule M09 finds devices that communicate by DataParallel or gloo, that is, through the host.

use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings, Severity};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "M09",
    title: "DataParallel or gloo with devices",
    category: FindingCategory::Communication,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[limit(
        "time_pct",
        1.0,
        "minimum time of the backend on the host, percent of the window",
    )],
    page: page!("M09"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let devices = rank.scope.devices().len();
    let parallel = rank.outermost_named(|name| name.starts_with("DataParallel"));
    let gloo = rank.outermost_named(|name| name.starts_with("gloo:"));
    let is_parallel = !parallel.is_empty() && devices > 1;
    let rows = if is_parallel { parallel } else { gloo };
    let time_ns = rank.total(&rows);
    let share = rank.share(time_ns);
    if rows.is_empty() || devices == 0 || share < limits.value("time_pct") {
        return None;
    }
    let (what, advice) = if is_parallel {
        let what = format!(
            "One process drives {devices} devices with DataParallel: it copies the model and \
             scatters and gathers batches every step, {} per step.",
            time(rank.per_step(time_ns))
        );
        (what, "Use DistributedDataParallel with one process per device (torchrun).")
    } else {
        let what = format!(
            "Collectives run over gloo although there are devices: their data goes through the host, \
             {} per step.",
            time(rank.per_step(time_ns))
        );
        (
            what,
            "Create the process group with backend=\"nccl\", or \"cpu:gloo,cuda:nccl\" for both.",
        )
    };
    // Half of the time is assumed to be saved, because the trace does not show how fast the other
    // backend would be.
    let edits = vec![rank.edit(rank.whole(&rows), Action::Scale(0.5))];
    let found = RuleFindings::new(what, advice)
        .number("time_per_step_ns", rank.per_step(time_ns) as f64)
        .at_least(Severity::Medium);
    Some(found.shown_by(rank.collect_evidence(rows)).saves(time_ns / 2, edits))
}
