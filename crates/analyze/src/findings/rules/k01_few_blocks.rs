//! Rule K01 finds kernels with fewer blocks than the device has multiprocessors.

use std::collections::BTreeMap;

use crate::facts::interval::{self, Interval};
use crate::facts::job::{RankFacts, WindowKernel};
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::tables::kernels::short_name;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "K01",
    title: "kernels too small for the device",
    category: FindingCategory::Kernel,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[
        limit("blocks_per_sm", 1.0, "a kernel with fewer blocks per multiprocessor is small"),
        limit("time_pct", 20.0, "minimum time of small kernels, percent of compute"),
    ],
    page: page!("K01"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let most = limits.value("blocks_per_sm");
    let small: Vec<(&WindowKernel, f64)> = rank
        .compute_kernels()
        .filter_map(|kernel| {
            Some((kernel, kernel.blocks_per_sm().filter(|blocks| *blocks < most)?))
        })
        .collect();
    let time_ns: i64 = small.iter().map(|(kernel, _)| kernel.duration).sum();
    let share = 100.0 * time_ns as f64 / rank.compute_ns().max(1) as f64;
    if small.is_empty() || share < limits.value("time_pct") {
        return None;
    }
    let kernels: Vec<&WindowKernel> = small.iter().map(|(kernel, _)| *kernel).collect();
    let alone = alone(rank, &kernels);
    let unused = |(kernel, blocks): &(&WindowKernel, f64), alone: f64| {
        kernel.duration as f64 * (1.0 - blocks / most) * alone
    };
    let high: f64 = small.iter().zip(&alone).map(|(one, alone)| unused(one, *alone)).sum();
    let blocks: f64 = small.iter().map(|(kernel, blocks)| kernel.duration as f64 * blocks).sum();
    let blocks = blocks / time_ns.max(1) as f64;
    let rows: Vec<u32> = small.iter().map(|(kernel, _)| kernel.row).collect();
    let evidence = rank.collect_evidence(rows.iter().copied());
    let sms = rank.device_info(small[0].0.device).map_or(0, |device| device.sm_count);
    let what = format!(
        "{share:.0} % of compute time ({} per step) is spent in kernels that fill {:.0} % of the \
         multiprocessors{} on average, most in {}.",
        time(rank.per_step(time_ns)),
        100.0 * blocks,
        if sms > 0 { format!(" ({:.0} of {sms})", blocks * f64::from(sms)) } else { String::new() },
        evidence.first().map_or("", |evidence| short_name(&evidence.name))
    );
    // Several streams help only if two such kernels fit on the device at the same time.
    let streams = match 2.0 * blocks <= most {
        true => "run those that no path of operators joins on several streams; ",
        false => "",
    };
    let advice = format!(
        "Give each kernel more to do: larger batches, batched or grouped operators, split-K; \
         {streams}leave tiny work to the CPU."
    );
    let factor = 1.0 - high / time_ns.max(1) as f64;
    let edits = vec![rank.edit(rows, Action::Scale(factor.clamp(0.0, 1.0)))];
    let found = RuleFindings::new(what, advice)
        .number("time_pct_of_compute", share)
        .number("blocks_per_sm_mean", blocks);
    Some(found.shown_by(evidence).saves(high as i64, edits))
}

/// Returns, for each kernel, the share of its time in which nothing else runs on its device.
pub(super) fn alone(rank: &RankFacts<'_>, small: &[&WindowKernel]) -> Vec<f64> {
    let scope = rank.scope;
    let stream = |row: u32| (scope.trace.device(row), scope.trace.stream(row));
    let mut others: BTreeMap<(i32, i32), Vec<Interval>> = BTreeMap::new();
    for kernel in small {
        others.entry(stream(kernel.row)).or_default();
    }
    for (key, spans) in &mut others {
        let beside = |row: u32| scope.trace.device(row) == key.0 && stream(row) != *key;
        *spans = interval::union(scope.spans(|row, _| beside(row)));
    }
    let share = |kernel: &&WindowKernel| {
        let span = (rank.start(kernel.row), rank.end(kernel.row));
        let beside = interval::length_within(&others[&stream(kernel.row)], span);
        1.0 - beside as f64 / kernel.duration.max(1) as f64
    };
    small.iter().map(share).collect()
}
