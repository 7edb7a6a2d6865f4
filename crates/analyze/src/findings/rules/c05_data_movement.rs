//! Rule C05 finds devices that spend much of their time on moving data, with operators such as cat,
//! contiguous, transpose and copy.

use crate::facts::calls::Direction;
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "C05",
    title: "device time spent moving data",
    category: FindingCategory::Copy,
    side: CureSide::Device,
    confidence: Confidence::Medium,
    limits: &[
        limit(
            "time_pct",
            15.0,
            "minimum time of data movement, percent of the time of compute and copies",
        ),
        limit("window_pct", 5.0, "minimum time of data movement, percent of the window"),
        limit(
            "avoidable_pct",
            50.0,
            "assumed avoidable share of the time of data movement, percent",
        ),
    ],
    page: page!("C05"),
    detect: Detect::Rank(detect),
};

/// Operators that only move data and compute nothing.
const MOVERS: [&str; 8] = [
    "aten::copy_",
    "aten::cat",
    "aten::_cat",
    "aten::contiguous",
    "aten::clone",
    "aten::stack",
    "aten::_to_copy",
    "aten::transpose_copy",
];
/// Parts of the names of kernels that only move data.
const KERNELS: [&str; 7] = [
    "CatArrayBatchedCopy",
    "direct_copy_kernel",
    "copy_device_to_device",
    "transpose",
    "nchwToNhwc",
    "nhwcToNchw",
    "permute_2D",
];

const USUAL: &str = "Write results where they are needed (out=, preallocated slices instead of cat), \
                     drop needless .contiguous() and .clone(), keep one layout (channels_last) from \
                     end to end, and let torch.compile fuse what remains.";
const OF_GRAPHS: &str = "Let the graphs read inputs where they are: mark those that keep their address \
                         (torch._dynamo.mark_static_address), compile larger regions with fewer \
                         inputs and outputs, or compile without CUDA graphs (mode=\"default\") where \
                         launching is not what takes long.";

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let movers = rank.names(|name| KERNELS.iter().any(|part| name.contains(part)));
    let mut rows: Vec<u32> = rank
        .compute_kernels()
        .filter(|kernel| {
            rank.is_named(&movers, kernel.row) || MOVERS.contains(&rank.owner_name(kernel))
        })
        .map(|kernel| kernel.row)
        .collect();
    let copies = || rank.copies().iter().filter(|copy| copy.direction == Direction::OnDevice);
    rows.extend(copies().map(|copy| copy.row));
    let moving = rank.total(&rows);
    let all = rank.compute_ns() + copies().map(|copy| rank.duration(copy.row)).sum::<i64>();
    let share = 100.0 * moving as f64 / all.max(1) as f64;
    let is_small = rank.share(moving) < limits.value("window_pct");
    if moving == 0 || share < limits.value("time_pct") || is_small {
        return None;
    }
    let avoidable = (limits.value("avoidable_pct") / 100.0).min(1.0);
    let mut what = format!(
        "{share:.0} % of the time of compute and copies on the device ({} per step) moves data without \
         computing: {} kernels and copies per step.",
        time(rank.per_step(moving)),
        (rows.len() as i64) / rank.step_count()
    );
    let of_graphs = copies_of_compiled(rank, copies().map(|copy| copy.row));
    // Compiling again does not remove these copies, so a majority of them needs other advice.
    let is_compiled = 2 * of_graphs > moving;
    if is_compiled {
        what += &format!(
            " {} of it are copies that compiled functions make of inputs and outputs of CUDA graphs.",
            time(rank.per_step(of_graphs))
        );
    }
    let advice = if is_compiled { OF_GRAPHS } else { USUAL };
    let edits = vec![rank.edit(rows.clone(), Action::Scale(1.0 - avoidable))];
    let found = RuleFindings::new(what, advice)
        .number("moving_per_step_ns", rank.per_step(moving) as f64)
        .number("moving_pct", share);
    let high = (moving as f64 * avoidable) as i64;
    Some(found.shown_by(rank.collect_evidence(rows)).saves(high, edits))
}

/// Returns the time of the copies that compiled functions make around graph replays.
fn copies_of_compiled(rank: &RankFacts<'_>, copies: impl Iterator<Item = u32>) -> i64 {
    let compiled = rank.names(|name| name.starts_with("CompiledFunction"));
    let has_graphs = rank.calls().iter().any(|call| rank.name(*call).contains("GraphLaunch"));
    let is_of_compiled = |row: &u32| {
        let call = rank.scope.links().call(*row).filter(|_| has_graphs);
        call.is_some_and(|call| rank.is_within(&compiled, call))
    };
    copies.filter(is_of_compiled).map(|row| rank.duration(row)).sum()
}
