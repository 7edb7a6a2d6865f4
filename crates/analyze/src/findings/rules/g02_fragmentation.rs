//! Rule G02 finds fragmentation: at the peak, no tensor uses much of the memory that the allocator
//! holds.

use super::g01_memory_ceiling::peaks;
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::text::bytes;

pub(super) const RULE: Rule = Rule {
    id: "G02",
    title: "fragmented device memory",
    category: FindingCategory::Memory,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[
        limit(
            "unused_pct",
            20.0,
            "minimum unused memory at the peak, percent of what the allocator holds",
        ),
        limit(
            "reserved_bytes",
            1_073_741_824.0,
            "minimum size of the memory that the allocator holds",
        ),
    ],
    page: page!("G02"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let peak = peaks(rank).into_iter().max_by_key(|peak| peak.reserved_bytes)?;
    let share = peak.unused_pct.filter(|share| *share > limits.value("unused_pct"))?;
    if (peak.reserved_bytes as f64) < limits.value("reserved_bytes") {
        return None;
    }
    let what = format!(
        "When tensors use most of device {}, {}, the allocator holds {}: {share:.0} % of it lies in \
         pieces nobody uses.",
        peak.device,
        bytes(peak.allocated_bytes_max.unsigned_abs()),
        bytes(peak.reserved_bytes.unsigned_abs())
    );
    let advice = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (or max_split_size_mb), keep \
                  shapes steady, and allocate what lives long first.";
    let found = RuleFindings::new(what, advice).about(format!("device {}", peak.device));
    Some(found.number("unused_pct", share))
}
