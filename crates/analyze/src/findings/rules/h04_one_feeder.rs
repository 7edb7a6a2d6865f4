//! Rule H04 finds a single host thread that feeds several devices in turn.

use std::collections::{BTreeMap, BTreeSet};

use trace::store::TrackId;

use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::tables::breakdown;

pub(super) const RULE: Rule = Rule {
    id: "H04",
    title: "one thread feeds several devices",
    category: FindingCategory::Host,
    side: CureSide::Host,
    confidence: Confidence::High,
    limits: &[limit(
        "apart_pct",
        30.0,
        "minimum excess of the time in which any device is busy over the mean busy time, percent of the window",
    )],
    page: page!("H04"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let mut devices: BTreeMap<TrackId, BTreeSet<i32>> = BTreeMap::new();
    for row in rank.launches() {
        let track = rank.scope.trace.slices.track[row.call_row as usize];
        devices.entry(track).or_default().insert(row.device);
    }
    let (thread, fed) = devices.into_iter().max_by_key(|(_, fed)| fed.len())?;
    let each = breakdown::by_device(rank.scope);
    let busy =
        |device: &i32| each.iter().find(|row| row.device == Some(*device)).map(|r| r.busy_ns);
    let total: i64 = fed.iter().filter_map(busy).sum();
    // If the devices worked at the same time, the time in which any is busy would equal the mean
    // busy time.
    let lost = rank.breakdown().busy_ns - total / fed.len() as i64;
    let share = rank.share(lost);
    if fed.len() < 2 || share < limits.value("apart_pct") {
        return None;
    }
    let track = &rank.scope.trace.tracks[thread.0 as usize];
    let what = format!(
        "Thread {} launches to {} devices in turn: some device works {:.0} % of the window, each \
         one only {:.0} %.",
        track.tid,
        fed.len(),
        rank.share(rank.breakdown().busy_ns),
        rank.share(total / fed.len() as i64)
    );
    let advice = "Use a process for each device (DistributedDataParallel, torchrun), or at least a \
                  thread for each.";
    let rows = rank.tree().thread(thread).map_or(&[][..], |thread| rank.tree().rows_of(thread));
    // One process per device divides the host's work by the number of devices.
    let edits = vec![rank.edit(rows.to_vec(), Action::Scale(1.0 / fed.len() as f64))];
    let found = RuleFindings::new(what, advice)
        .number("devices", fed.len() as f64)
        .number("apart_pct", share);
    Some(found.about(format!("thread {}", track.tid)).saves(lost, edits))
}
