//! Rule H09 finds a caching allocator that polls events repeatedly, because tensors are used on
//! several streams.

use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{counted, time};

pub(super) const RULE: Rule = Rule {
    id: "H09",
    title: "polling of events",
    category: FindingCategory::Host,
    side: CureSide::Host,
    confidence: Confidence::Medium,
    limits: &[
        limit("queries_per_step", 200.0, "minimum number of queries per step"),
        limit(
            "time_pct",
            0.5,
            "fewer queries are reported if queries and records take this long, percent of the window",
        ),
    ],
    page: page!("H09"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    // Tensors are marked across streams mainly by communication, so other jobs are not examined.
    if !rank.has_communication() {
        return None;
    }
    let queries = rank.calls_named(|name| name.ends_with("EventQuery"));
    let records = rank.calls_named(|name| name.ends_with("EventRecord"));
    let time_ns = rank.total(&queries) + rank.total(&records);
    let share = rank.share(time_ns);
    let per_step = rank.count_per_step(queries.len());
    let is_long = share >= limits.value("time_pct") && !queries.is_empty();
    if per_step < limits.value("queries_per_step") && !is_long {
        return None;
    }
    let what = format!(
        "The host polls {} per step; with their recording that takes {} per step ({share:.2} \
         % of the window). The caching allocator polls because tensors are marked across streams.",
        counted(per_step, "event"),
        time(rank.per_step(time_ns))
    );
    let advice = "If streams are synchronized explicitly, set TORCH_NCCL_AVOID_RECORD_STREAMS=1 \
                  (the default in recent PyTorch), and prefer waiting on events to \
                  tensor.record_stream(). Memory is then reused earlier too.";
    let rows: Vec<u32> = queries.iter().chain(&records).copied().collect();
    let edits = vec![rank.edit(rows.clone(), Action::Scale(0.0))];
    let found = RuleFindings::new(what, advice)
        .number("queries_per_step", per_step)
        .number("time_pct", share);
    Some(found.shown_by(rank.collect_evidence(rows)).saves(time_ns, edits))
}
