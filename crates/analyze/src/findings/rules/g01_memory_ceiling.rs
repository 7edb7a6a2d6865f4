//! Rule G01 finds devices almost all of whose memory is held by the allocator.

use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings, Severity};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::tables::memory::MemoryPeak;
use crate::text::bytes;

pub(super) const RULE: Rule = Rule {
    id: "G01",
    title: "device memory nearly full",
    category: FindingCategory::Memory,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[limit(
        "reserved_pct",
        90.0,
        "minimum memory that the allocator holds, percent of the device's memory",
    )],
    page: page!("G01"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let peak = peaks(rank).into_iter().max_by_key(|peak| peak.reserved_bytes_max)?;
    let share = peak.device_pct.filter(|share| *share > limits.value("reserved_pct"))?;
    let at = peak.operator.as_deref().unwrap_or("an operator that was not recorded");
    let what = format!(
        "The allocator holds up to {} of device {}, {share:.0} % of its memory; tensors peak at {} in \
         {at}.",
        bytes(peak.reserved_bytes_max.unsigned_abs()),
        peak.device,
        bytes(peak.allocated_bytes_max.unsigned_abs())
    );
    let advice = "Recompute activations (torch.utils.checkpoint), train under autocast, shard the \
                  optimizer's state, or make the batch smaller before it runs out of memory.";
    let found = RuleFindings::new(what, advice)
        .about(at)
        .number("reserved_pct", share)
        .number("allocated_bytes_max", peak.allocated_bytes_max as f64);
    Some(found.at_least(Severity::Medium))
}

/// Returns the peaks of allocated memory on each device of a rank.
pub(super) fn peaks(rank: &RankFacts<'_>) -> Vec<MemoryPeak> {
    rank.memory_peaks().iter().filter(|peak| peak.device >= 0).cloned().collect()
}
