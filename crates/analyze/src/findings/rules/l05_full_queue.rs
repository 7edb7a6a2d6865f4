//! Rule L05 finds full launch queues, in which the host runs so far ahead of the device that its
//! calls wait.

use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::text::{counted, time};

pub(super) const RULE: Rule = Rule {
    id: "L05",
    title: "full launch queue",
    category: FindingCategory::Launch,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[limit(
        "waited_pct",
        1.0,
        "minimum time that launches waited for room in the queue, percent of the window",
    )],
    page: page!("L05"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let waits = &rank.pressure().waits;
    let inside = || waits.iter().filter(|wait| rank.scope.starts_inside(wait.call));
    let waited: i64 = inside().map(|wait| wait.waited_ns).sum();
    let share = rank.share(waited);
    let longest = inside().map(|wait| wait.distance).max()?;
    if share < limits.value("waited_pct") {
        return None;
    }
    let count = inside().count();
    // The limit is known only if enough waits agree on it. If the limit is unknown, the longest
    // queue seen is reported.
    let depth = rank.pressure().limits.iter().map(|limit| limit.distance).max();
    let room = match depth {
        Some(depth) => format!("a queue that holds {depth} pieces of work"),
        None => format!("room in a queue of up to {longest} pieces of work"),
    };
    let what = format!(
        "{} waited for {room}, {} per step ({share:.1} % of the window): each \
         returned just after earlier work had ended. The host runs ahead and waits for the device.",
        counted(count as f64, "launch call"),
        time(rank.per_step(waited))
    );
    let advice = "Nothing to do on the host: the device decides. Long launch calls are \
                  back-pressure, not overhead; beware of memory held by work in flight.";
    let evidence = rank.collect_timed_evidence(inside().map(|wait| (wait.call, wait.waited_ns)));
    let found = RuleFindings::new(what, advice).about("queue").shown_by(evidence);
    Some(found.number("waited_pct", share).number("length_max", f64::from(longest)))
}
