//! Rule K04 finds kernels whose last wave of blocks leaves most of the device empty.

use std::collections::BTreeMap;

use crate::facts::job::{RankFacts, WindowKernel};
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::tables::kernels::short_name;
use crate::text::{agreeing, counted, time};

pub(super) const RULE: Rule = Rule {
    id: "K04",
    title: "nearly empty last wave",
    category: FindingCategory::Kernel,
    side: CureSide::Device,
    confidence: Confidence::Low,
    limits: &[
        limit(
            "waves",
            4.0,
            "maximum number of waves of a kernel; with more, the last one matters little",
        ),
        limit("tail", 0.3, "maximum filled share of the last wave"),
        limit("lost_pct", 1.0, "minimum time lost in last waves, percent of the window"),
    ],
    page: page!("K04"),
    detect: Detect::Rank(detect),
};

/// Rounding error of an occupancy, because profilers write occupancies in whole percent. Half a
/// percent may be rounded up or down.
const ROUNDING: f64 = 0.005 + 1e-9;

/// Sums over the kernels with the same name and grid. Such kernels all have the same tail.
#[derive(Default)]
struct Alike {
    count: usize,
    lost_ns: f64,
    waves: f64,
}

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let tails: Vec<(&WindowKernel, f64)> = rank
        .compute_kernels()
        .filter_map(|kernel| Some((kernel, waves(rank, kernel)?)))
        .filter(|(_, waves)| {
            let tail = waves.fract();
            *waves > 1.0
                && *waves < limits.value("waves")
                && 0.0 < tail
                && tail < limits.value("tail")
        })
        .collect();
    let lost = |(kernel, waves): &(&WindowKernel, f64)| {
        // A partly filled wave takes as long as a full one, so the rest of that wave is lost.
        kernel.duration as f64 * (1.0 - waves / waves.ceil())
    };
    let high: f64 = tails.iter().map(lost).sum();
    let share = rank.share(high as i64);
    if tails.is_empty() || share < limits.value("lost_pct") {
        return None;
    }
    let mut alike: BTreeMap<(&str, [u32; 3]), Alike> = BTreeMap::new();
    // Kernels of one name and grid have the same tail, so they are reported together.
    for tail in &tails {
        let grid = tail.0.shape.map_or([0; 3], |shape| shape.grid);
        let same = alike.entry((rank.name(tail.0.row), grid)).or_default();
        *same = Alike { count: same.count + 1, lost_ns: same.lost_ns + lost(tail), waves: tail.1 };
    }
    let most = alike.iter().max_by(|a, b| a.1.lost_ns.total_cmp(&b.1.lost_ns));
    let (&(name, [x, y, z]), worst) = most?;
    let rows: Vec<u32> = tails.iter().map(|(kernel, _)| kernel.row).collect();
    let time_ns = rank.total(&rows);
    let evidence =
        rank.collect_timed_evidence(tails.iter().map(|tail| (tail.0.row, lost(tail) as i64)));
    let per_step = rank.count_per_step(tails.len());
    let what = format!(
        "{} per step {} a nearly empty last wave. If all waves take equally long, that loses \
         {} per step ({share:.1} % of the window). {} with a grid of {x}×{y}×{z} loses most, {} in {} \
         per step: {:.2} waves, the last fills {:.0} % of the device.",
        counted(per_step, "kernel"),
        agreeing(per_step, "has", "have"),
        time(rank.per_step(high as i64)),
        short_name(name),
        time(rank.per_step(worst.lost_ns as i64)),
        counted(rank.count_per_step(worst.count), "kernel"),
        worst.waves,
        100.0 * worst.waves.fract()
    );
    let advice = "Choose the batch so that blocks fill whole waves. In kernels of your own, choose the \
                  tile, or a persistent or stream-K variant; for matrix products of a library, \
                  torch.compile(mode=\"max-autotune\") tries other tiles.";
    let edits = vec![rank.edit(rows, Action::Scale(1.0 - high / time_ns.max(1) as f64))];
    let found = RuleFindings::new(what, advice)
        .number("kernels_per_step", rank.count_per_step(tails.len()))
        .number("lost_per_step_ns", rank.per_step(high as i64) as f64)
        .about(short_name(name));
    Some(found.shown_by(evidence).saves(high as i64, edits))
}

/// Returns how many waves the blocks of a kernel need at its theoretical occupancy. The result is
/// `None` if the blocks fit into one wave, because the profiler's occupancy is then limited by the
/// number of blocks.
fn waves(rank: &RankFacts<'_>, kernel: &WindowKernel) -> Option<f64> {
    let device = rank.device_info(kernel.device).filter(|device| device.sm_count > 0)?;
    let threads_per_sm = if device.threads_per_sm > 0 { device.threads_per_sm } else { 2048 };
    let occupancy = f64::from(kernel.shape?.occupancy_pct).max(0.0) / 100.0;
    let threads = kernel.threads_per_block().max(1) as f64;
    let blocks_of = |occupancy: f64| occupancy * f64::from(threads_per_sm) / threads;
    let per_sm = kernel.blocks() as f64 / f64::from(device.sm_count);
    if (blocks_of(occupancy) - per_sm).abs() <= blocks_of(ROUNDING) {
        return None;
    }
    let resident = blocks_of(occupancy).round();
    let per_wave = resident * f64::from(device.sm_count);
    (per_wave > 0.0).then(|| kernel.blocks() as f64 / per_wave)
}
