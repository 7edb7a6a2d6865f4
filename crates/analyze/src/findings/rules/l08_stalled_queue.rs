//! Rule L08 finds idle time of a device although its next work was launched long before.

use std::collections::BTreeMap;

use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::tables::kernels::short_name;
use crate::text::{counted, time};

pub(super) const RULE: Rule = Rule {
    id: "L08",
    title: "idle with work queued",
    category: FindingCategory::Launch,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[
        limit(
            "idle_pct",
            5.0,
            "minimum sum of the gaps before launched work, percent of the window",
        ),
        limit(
            "start_ns",
            1_000_000.0,
            "gaps this near to the start are skipped, because earlier work may lie in them",
        ),
    ],
    page: page!("L08"),
    detect: Detect::Rank(detect),
};

const WAITS: &str = "Faster launches do not help: find what holds the queued work back. Look for waits \
                     on events of other streams and on other ranks, copies that block, memory that \
                     is freed or mapped, and work of another process on the device.";

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let stalls = rank.stalls(limits.ns("start_ns"));
    // The profiler may have dropped graph work in such gaps, which rule Q10 reports.
    if stalls.is_doubtful() || stalls.gaps.is_empty() {
        return None;
    }
    let (gaps, idle_ns, devices) = (&stalls.gaps, stalls.idle_ns, stalls.device_count);
    let share = rank.share(idle_ns);
    if share < limits.value("idle_pct") {
        return None;
    }
    let ending = || gaps.iter().filter_map(|gap| Some((gap.ending_row?, gap.idle_ns)));
    let mut named: BTreeMap<&str, i64> = BTreeMap::new();
    for (row, idle) in ending() {
        let name = short_name(rank.name(row));
        *named.entry(name).or_default() += idle / devices;
    }
    let mut named: Vec<(&str, i64)> = named.into_iter().collect();
    named.sort_by_key(|(_, idle)| std::cmp::Reverse(*idle));
    let first: Vec<String> = named
        .iter()
        .take(3)
        .map(|(name, idle)| format!("{name} ({})", time(rank.per_step(*idle))))
        .collect();
    let mut what = format!(
        "The device idles {} per step ({share:.1} % of the window) in {} although its next work was \
         launched before: most of it before {}.",
        time(rank.per_step(idle_ns)),
        counted(rank.count_per_step(gaps.len()), "gap"),
        first.join(", ")
    );
    if stalls.left_out_ns > 0 {
        what += &format!(
            " Another {} directly behind the start of the recording are left out: work launched \
             before it, which no recording shows, may have run then.",
            time(stalls.left_out_ns)
        );
    }
    let rows: Vec<u32> = ending().map(|(row, _)| row).collect();
    let evidence = rank.collect_timed_evidence(ending());
    let found = RuleFindings::new(what, WAITS)
        .number("gaps_per_step", rank.count_per_step(gaps.len()))
        .number("idle_per_step_ns", rank.per_step(idle_ns) as f64)
        .about(named.first().map_or("", |(name, _)| name));
    let found = found.shown_by(evidence);
    Some(found.saves(idle_ns, vec![rank.edit(rows, Action::CloseGap)]))
}
