//! Splits the time of each unit into the parts of a breakdown.

use super::change::{PartChange, Shift, lengths};
use super::unit::RankUnits;
use crate::facts::classify::WorkClass;
use crate::facts::distribution;
use crate::facts::interval::{self, Interval};
use crate::percent::percent;

/// Names of the parts that add up to the unit, in the order of the breakdown.
const PARTS: [&str; 5] =
    ["compute", "exposed_communication", "exposed_memory", "exposed_other", "idle"];
/// Names of the totals, which overlap with other parts.
const TOTALS: [&str; 3] = ["busy", "communication", "memory"];

/// Nanoseconds of each part, with one entry per unit.
#[derive(Default)]
struct UnitParts {
    /// Time from the first to the last device work, summed over the ranks.
    span_ns: i64,
    parts: [Vec<i64>; PARTS.len()],
    totals: [Vec<i64>; TOTALS.len()],
}

/// Compares the parts of the units on both sides. The first result lists the parts that add up to
/// the unit, and the second lists the totals that overlap them.
pub fn compare_parts(
    before: &[RankUnits<'_>],
    after: &[RankUnits<'_>],
) -> (Vec<PartChange>, Vec<PartChange>) {
    let sides = [parts(before), parts(after)];
    let units = [lengths(before), lengths(after)];
    let windows = units.each_ref().map(|units| units.iter().sum::<i64>());
    let delta_ns = Shift::new(&units[0], &units[1]).delta_ns;
    let spans = sides.each_ref().map(|parts| parts.span_ns);
    let change = |part, before: &[i64], after: &[i64]| {
        let shift = Shift::new(before, after);
        let [before_ns, after_ns] = [before, after]
            .map(|side| distribution::integer_median(&mut side.to_vec()).unwrap_or_default());
        PartChange {
            part,
            before_ns,
            after_ns,
            delta_ns: after_ns - before_ns,
            before_mean_ns: shift.before_ns,
            after_mean_ns: shift.after_ns,
            mean_delta_ns: shift.delta_ns,
            before_pct: percent(before.iter().sum(), windows[0]),
            after_pct: percent(after.iter().sum(), windows[1]),
            before_span_pct: percent(before.iter().sum(), spans[0]),
            after_span_pct: percent(after.iter().sum(), spans[1]),
            explained_pct: percent(shift.delta_ns, delta_ns),
            noise_ns: shift.noise_ns,
            is_noise: shift.is_noise_of(after_ns - before_ns),
        }
    };
    let [before, after] = &sides;
    let both = |at: usize| (&before.parts[at], &after.parts[at]);
    let parts = PARTS.iter().enumerate().map(|(at, part)| change(part, both(at).0, both(at).1));
    let totals = TOTALS.iter().enumerate();
    let totals = totals.map(|(at, part)| change(part, &before.totals[at], &after.totals[at]));
    (parts.collect(), totals.collect())
}

fn parts(samples: &[RankUnits<'_>]) -> UnitParts {
    let mut parts = UnitParts::default();
    for sample in samples {
        let scope = sample.scope;
        let class_spans = |class| interval::union(scope.spans(|_, found| found == class));
        let busy = interval::union(scope.spans(|_, _| true));
        let [compute, communication, memory, other] =
            [WorkClass::Compute, WorkClass::Communication, WorkClass::Memory, WorkClass::Other]
                .map(class_spans);
        let exposed_communication = interval::difference(&communication, &compute);
        let rest = interval::difference(&memory, &compute);
        let exposed_memory = interval::difference(&rest, &communication);
        let mut exposed_other = other;
        for class in [&compute, &communication, &memory] {
            exposed_other = interval::difference(&exposed_other, class);
        }
        let ends = busy.first().zip(busy.last());
        parts.span_ns += ends.map_or(0, |((start, _), (_, end))| end - start);
        // Later classes count only where no earlier class runs, so that the parts and idle time add
        // up to the unit.
        let exposed = [&compute, &exposed_communication, &exposed_memory, &exposed_other];
        for unit in &sample.units {
            let within = |union: &[Interval]| interval::length_within(union, *unit);
            for (values, union) in parts.parts.iter_mut().zip(exposed) {
                values.push(within(union));
            }
            parts.parts[PARTS.len() - 1].push(unit.1 - unit.0 - within(&busy));
            for (values, union) in parts.totals.iter_mut().zip([&busy, &communication, &memory]) {
                values.push(within(union));
            }
        }
    }
    parts
}
