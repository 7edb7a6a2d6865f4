//! L05: the launch queue is full: the host runs far ahead of the device.

use super::facts::Facts;
use super::finding::{Category, Confidence, Found};
use super::rule::{Detect, Limits, Rule, Side, limit, page};
use super::text::time;
use crate::queue;

pub(super) const RULE: Rule = Rule {
    id: "L05",
    title: "full launch queue",
    category: Category::Launch,
    side: Side::Device,
    confidence: Confidence::High,
    limits: &[
        limit("length", 1000.0, "launches that wait for one stream"),
        limit("time_pct", 5.0, "time with so many, percent of the window"),
    ],
    page: page!("L05"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &Facts<'_>, limits: &Limits<'_>) -> Option<Found> {
    let points = queue::series(rank.scope);
    let mut full_ns = 0;
    let mut longest = 0;
    for (at, point) in points.iter().enumerate() {
        let is_same =
            |next: &&queue::QueuePoint| (next.device, next.stream) == (point.device, point.stream);
        let next = points.get(at + 1).filter(is_same);
        let until = next.map_or(rank.scope.window.end, |next| next.time_ns);
        longest = longest.max(point.length);
        if f64::from(point.length) >= limits.of("length") {
            full_ns += until - point.time_ns;
        }
    }
    let share = rank.share(full_ns);
    if share < limits.of("time_pct") {
        return None;
    }
    let what = format!(
        "A stream's queue holds {:.0} launches or more for {share:.1} % of the window ({} per \
         step), {longest} at most: the host runs ahead and waits for the device.",
        limits.of("length"),
        time(rank.per_step(full_ns))
    );
    let advice = "Nothing to do on the host: the device decides. Long launch calls are \
                  back-pressure, not overhead; beware of memory held by work in flight.";
    let found = Found::new(what, advice).about("queue");
    Some(found.number("full_pct", share).number("length_max", f64::from(longest)))
}
