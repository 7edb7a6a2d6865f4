//! Rule K03 finds kernels whose use of registers or shared memory keeps the multiprocessors from
//! holding more threads.

use crate::facts::job::{RankFacts, WindowKernel};
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::product::Products;
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::tables::kernels::short_name;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "K03",
    title: "occupancy limited by resources",
    category: FindingCategory::Kernel,
    side: CureSide::Device,
    confidence: Confidence::Low,
    limits: &[
        limit("occupancy_pct", 25.0, "estimated occupancy below which a kernel has low occupancy"),
        limit(
            "blocks_per_sm",
            2.0,
            "minimum blocks per multiprocessor; with fewer, the grid limits the occupancy",
        ),
        limit("registers", 128.0, "registers per thread from which they limit the occupancy"),
        limit(
            "shared_bytes",
            49_152.0,
            "shared memory per block from which it limits the occupancy",
        ),
        limit("time_pct", 10.0, "minimum time of kernels with low occupancy, percent of compute"),
        limit(
            "gain_pct",
            20.0,
            "assumed time that a higher occupancy saves, percent of the kernels' time",
        ),
    ],
    page: page!("K03"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let is_limited = |kernel: &&WindowKernel| {
        let Some(shape) = kernel.shape else { return false };
        let is_low = f64::from(shape.occupancy_pct) < limits.value("occupancy_pct");
        let is_large = kernel.blocks_per_sm().is_some_and(|b| b >= limits.value("blocks_per_sm"));
        let by_registers = f64::from(shape.registers) >= limits.value("registers");
        let by_memory = f64::from(shape.shared_memory) >= limits.value("shared_bytes");
        // An occupancy of 0 means that the profiler did not compute it.
        shape.occupancy_pct > 0.0 && is_low && is_large && (by_registers || by_memory)
    };
    let products = Products::new(rank);
    let limited: Vec<&WindowKernel> = rank
        .compute_kernels()
        .filter(is_limited)
        // Matrix products keep tiles in registers on purpose, so low occupancy does not hurt them.
        .filter(|kernel| !products.contains(kernel))
        .collect();
    let time_ns: i64 = limited.iter().map(|kernel| kernel.duration).sum();
    let share = 100.0 * time_ns as f64 / rank.compute_ns().max(1) as f64;
    let worst = limited.iter().max_by_key(|kernel| (kernel.duration, kernel.row))?;
    let shape = worst.shape?;
    if share < limits.value("time_pct") {
        return None;
    }
    let by_registers = f64::from(shape.registers) >= limits.value("registers");
    let what = format!(
        "{share:.0} % of compute time ({} per step) is spent below {:.0} % occupancy, most in {}, \
         limited by its {}.",
        time(rank.per_step(time_ns)),
        limits.value("occupancy_pct"),
        short_name(rank.name(worst.row)),
        if by_registers {
            format!("{} registers per thread", shape.registers)
        } else {
            format!("{} KiB of shared memory per block", shape.shared_memory / 1024)
        }
    );
    let advice = "Tune its launch bounds, tile or num_stages, and measure: low occupancy hurts only \
                  kernels that wait for memory.";
    let gain = (limits.value("gain_pct") / 100.0).min(1.0);
    let rows: Vec<u32> = limited.iter().map(|kernel| kernel.row).collect();
    let edits = vec![rank.edit(rows.clone(), Action::Scale(1.0 - gain))];
    let found = RuleFindings::new(what, advice)
        .number("time_pct_of_compute", share)
        .number("registers", f64::from(shape.registers))
        .number("shared_bytes", f64::from(shape.shared_memory));
    Some(found.shown_by(rank.collect_evidence(rows)).saves((time_ns as f64 * gain) as i64, edits))
}
