//! Rule M05 finds large collectives that move their data far slower than the links allow.

use crate::facts::collectives::Matched;
use crate::facts::job::JobFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::hardware;
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{bytes, time};

pub(super) const RULE: Rule = Rule {
    id: "M05",
    title: "low bus bandwidth",
    category: FindingCategory::Communication,
    side: CureSide::Device,
    confidence: Confidence::Medium,
    limits: &[
        limit("bytes", 4_194_304.0, "minimum size of a message; smaller ones are bound by latency"),
        limit(
            "share_pct",
            50.0,
            "bandwidth below which a collective is reported, percent of the links' peak",
        ),
        limit(
            "node_ranks",
            8.0,
            "largest group that uses only the fast links of a node; larger ones use the network",
        ),
        limit("network_gb_per_s", 25.0, "assumed bandwidth of the network per rank, GB/s"),
    ],
    page: page!("M05"),
    detect: Detect::Job(detect),
};

fn detect(job: &JobFacts<'_>, limits: &RuleLimits<'_>) -> Vec<(Vec<u32>, RuleFindings)> {
    if !job.is_one_job() {
        return Vec::new();
    }
    let slow: Vec<(&Matched, f64, f64)> =
        job.collectives().matched.iter().filter_map(|one| slow(job, one, limits)).collect();
    let lost = |(one, reached, link): &(&Matched, f64, f64)| {
        (one.transfer_ns as f64 * (1.0 - reached / link)) as i64
    };
    let lost_ns: i64 = slow.iter().map(lost).sum();
    let Some((worst, reached, link)) = slow.iter().max_by_key(|one| lost(one)) else {
        return Vec::new();
    };
    let what = format!(
        "{} large collectives reach less than half of the links; the worst, {} of {}, moves {reached:.1} \
         GB/s where {link:.0} are possible and takes {}.",
        slow.len(),
        worst.name,
        bytes(worst.bytes.unwrap_or_default()),
        time(worst.transfer_ns)
    );
    let advice = "Check which links NCCL uses (NCCL_DEBUG=INFO, nvidia-smi topo -m), GPUDirect RDMA, \
                  the algorithm and the channels; a group over several nodes may be better split.";
    let mut ranks: Vec<u32> =
        slow.iter().flat_map(|(one, ..)| one.participants.iter().map(|p| p.rank)).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let mut edits = Vec::new();
    let mut evidence = Vec::new();
    for rank in ranks.iter().filter_map(|rank| job.rank(*rank)) {
        let rows = |one: &Matched| {
            let own = one.participants.iter().filter(|p| p.rank == rank.rank());
            own.map(|p| p.row).collect::<Vec<u32>>()
        };
        let all: Vec<u32> = slow.iter().flat_map(|(one, ..)| rows(one)).collect();
        for (one, reached, link) in &slow {
            edits.push(rank.edit(rows(one), Action::Scale(reached / link)));
        }
        evidence.extend(rank.collect_evidence(all));
    }
    evidence.truncate(5);
    let found = RuleFindings::new(what, advice)
        .number("collectives", slow.len() as f64)
        .number("worst_gb_per_s", *reached)
        .number("link_gb_per_s", *link);
    vec![(ranks, found.shown_by(evidence).saves(lost_ns, edits))]
}

/// Returns the achieved and the available bandwidth of a collective, if the two differ much.
fn slow<'a>(
    job: &JobFacts<'_>,
    one: &'a Matched,
    limits: &RuleLimits<'_>,
) -> Option<(&'a Matched, f64, f64)> {
    let reached = one.bus_bandwidth_gb_per_s?;
    // If only one rank was recorded, most of the duration may be waiting for other ranks.
    let is_seen = one.ranks_seen > 1 && one.bytes? as f64 >= limits.value("bytes");
    let first = one.participants.first()?;
    let device = job.rank(first.rank)?.device_info(first.device)?;
    let is_near = f64::from(one.group_size) <= limits.value("node_ranks");
    let link = match hardware::peak(&device.name) {
        Some(known) if is_near => known.link_gb_per_s,
        _ => limits.value("network_gb_per_s"),
    };
    let is_slow = reached < link * limits.value("share_pct") / 100.0;
    (is_seen && is_slow).then_some((one, reached, link))
}
