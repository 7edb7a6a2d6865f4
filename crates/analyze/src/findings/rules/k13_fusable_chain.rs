//! Rule K13 finds busy devices that run chains of kernels which only pass tensors on to each other.

use std::collections::BTreeMap;

use super::k05_slow_memory::{Traffic, traffic};
use crate::facts::job::{RankFacts, WindowKernel};
use crate::findings::finding::{Confidence, Evidence, FindingCategory, RuleFindings};
use crate::findings::hardware;
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::tables::kernels::short_name;
use crate::text::{bytes, counted, each, time};

pub(super) const RULE: Rule = Rule {
    id: "K13",
    title: "chains of kernels to fuse",
    category: FindingCategory::Kernel,
    side: CureSide::Device,
    confidence: Confidence::Medium,
    limits: &[
        limit(
            "busy_pct",
            70.0,
            "minimum busy time of the device, percent; a less busy one is bound by launches",
        ),
        limit("kernels", 3.0, "minimum number of kernels in a chain"),
        limit(
            "kernels_fused",
            8.0,
            "maximum number of kernels that one fused kernel is assumed to replace",
        ),
        limit("gap_ns", 10_000.0, "a longer pause between kernels ends a chain"),
        limit(
            "good_pct",
            80.0,
            "bandwidth that a fused kernel is assumed to reach, percent of the memory's peak",
        ),
        limit("kernel_ns", 3_000.0, "minimum duration that a fused kernel is assumed to have"),
        limit(
            "saved_pct",
            3.0,
            "minimum time of the chains beyond that of the fused kernels, percent of the window",
        ),
    ],
    page: page!("K13"),
    detect: Detect::Rank(detect),
};

/// Parts of the names of kernels that are element-wise, reduce tensors, or concatenate tensors.
const FUSABLE: [&str; 17] = [
    "elementwise",
    "reduce",
    "Reduce",
    "softmax",
    "Softmax",
    "SoftMax",
    "CatArrayBatchedCopy",
    "layer_norm",
    "LayerNorm",
    "layernorm",
    "GammaBeta",
    "rms_norm",
    "RMSNorm",
    "RowwiseMoments",
    "dropout",
    "batch_norm_elemt",
    "group_norm",
];

/// Parts of kernel names that are already fused by a compiler or a foreach operator, or that belong
/// to a matrix product or a collective.
const FUSED: [&str; 9] = [
    "triton_",
    "multi_tensor_apply",
    "splitK",
    "split_k",
    "nccl",
    "cross_device_reduce",
    "flash",
    "fmha",
    "mbedding",
];

/// Returns whether a kernel of this name could be fused with its neighbors.
pub(super) fn is_fusable(name: &str) -> bool {
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    has(&FUSABLE) && !has(&FUSED)
}

/// Kernels that run on one stream directly one after the other.
struct Chain<'a> {
    kernels: Vec<&'a WindowKernel>,
    time_ns: i64,
    /// Estimated time of a single kernel that replaces the whole chain.
    fused_ns: i64,
    /// Bytes that the chain reads and writes, estimated from tensor sizes or from time.
    moved: f64,
    sized: usize,
}

impl Chain<'_> {
    fn saved_ns(&self) -> i64 {
        (self.time_ns - self.fused_ns).max(0)
    }
}

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    // A device that is often idle is bound by launches, so fusing kernels would not shorten its
    // time.
    let busy = rank.share(rank.breakdown().busy_ns) / rank.scope.devices().len().max(1) as f64;
    if busy < limits.value("busy_pct") {
        return None;
    }
    let mut chains: Vec<Chain<'_>> = chains(rank, limits);
    chains.retain(|chain| chain.saved_ns() > 0);
    let high: i64 = chains.iter().map(Chain::saved_ns).sum();
    let share = rank.share(high);
    if share < limits.value("saved_pct") {
        return None;
    }
    let total = |of: fn(&Chain<'_>) -> i64| chains.iter().map(of).sum::<i64>();
    let time_ns = total(|chain| chain.time_ns);
    let kernels: usize = chains.iter().map(|chain| chain.kernels.len()).sum();
    let sized: usize = chains.iter().map(|chain| chain.sized).sum();
    let moved: f64 = chains.iter().map(|chain| chain.moved).sum();
    let what = format!(
        "{} per step of up to {:.0} element-wise, reducing and concatenating kernels run one \
         directly after the other; their {} kernels take {} per step, fused ones at least {}.{}",
        counted(rank.count_per_step(chains.len()), "chain"),
        limits.value("kernels_fused"),
        each(rank.count_per_step(kernels)),
        time(rank.per_step(time_ns)),
        time(rank.per_step(time_ns - high)),
        basis(rank, moved, sized, kernels)
    );
    let advice = "Fuse them: torch.compile, an operator that does it in one kernel \
                  (functional.layer_norm, a fused optimizer, foreach variants), or a Triton kernel \
                  that reads each tensor once.";
    // The saving of all chains is spread evenly over their kernels, because an edit has one factor.
    let rows: Vec<u32> =
        chains.iter().flat_map(|chain| &chain.kernels).map(|kernel| kernel.row).collect();
    let factor = 1.0 - high as f64 / time_ns.max(1) as f64;
    let found = RuleFindings::new(what, advice)
        .number("chains_per_step", rank.count_per_step(chains.len()))
        .number("kernels_per_step", rank.count_per_step(kernels))
        .number("time_per_step_ns", rank.per_step(time_ns) as f64)
        .number("fused_per_step_ns", rank.per_step(time_ns - high) as f64)
        .number("bytes_per_step", moved / rank.step_count() as f64)
        .number("sized_pct", 100.0 * sized as f64 / kernels.max(1) as f64);
    let edits = vec![rank.edit(rows, Action::Scale(factor))];
    let evidence = collect_evidence(rank, &chains);
    let first = evidence.first().map_or("", |evidence| short_name(&evidence.name)).to_owned();
    Some(found.about(first).shown_by(evidence).saves(high, edits))
}

/// Describes the data on which the estimates of the finding are based.
fn basis(rank: &RankFacts<'_>, moved: f64, sized: usize, kernels: usize) -> String {
    let per_step = bytes((moved / rank.step_count() as f64) as u64);
    match sized {
        _ if moved == 0.0 => {
            " Neither the sizes of their tensors nor the device's bandwidth are known, so a fused kernel is \
             assumed to take half of the first and half of the last kernel of a chain."
                .to_owned()
        }
        0 => format!(
            " {}: they move {per_step} per step if all of them \
             reach the bandwidth that a good kernel has.",
            match rank.has_tensors() {
                true => "Their operators have no sizes of tensors",
                false => "No sizes of tensors were recorded",
            }
        ),
        some if some == kernels => {
            format!(" By the sizes of their tensors they move {per_step} per step.")
        }
        some => format!(
            " They move {per_step} per step, by the sizes of tensors for {:.0} % of the kernels, by \
             time and bandwidth for the others.",
            100.0 * some as f64 / kernels as f64
        ),
    }
}

/// Returns the operators that launched the first kernel of each chain, each with the saving of its
/// chain.
fn collect_evidence(rank: &RankFacts<'_>, chains: &[Chain<'_>]) -> Vec<Evidence> {
    let first = |chain: &Chain<'_>| {
        let kernel = chain.kernels.first()?;
        Some((kernel.owner.unwrap_or(kernel.row), chain.saved_ns()))
    };
    rank.collect_timed_evidence(chains.iter().filter_map(first))
}

/// Finds the chains of element-wise kernels on all streams.
fn chains<'a>(rank: &'a RankFacts<'_>, limits: &RuleLimits<'_>) -> Vec<Chain<'a>> {
    let named = rank.names(is_fusable);
    let mut kernels: BTreeMap<u32, &WindowKernel> = BTreeMap::new();
    for kernel in rank.compute_kernels().filter(|kernel| rank.is_named(&named, kernel.row)) {
        kernels.insert(kernel.row, kernel);
    }
    let mut streams: BTreeMap<(i32, i32), Vec<u32>> = BTreeMap::new();
    for row in &rank.scope.device_rows {
        let stream = (rank.scope.trace.device(*row), rank.scope.trace.stream(*row));
        streams.entry(stream).or_default().push(*row);
    }
    let follows = |a: &u32, b: &u32| {
        let pause = rank.start(*b) - rank.end(*a);
        let are_fusable = kernels.contains_key(a) && kernels.contains_key(b);
        are_fusable && pause <= limits.ns("gap_ns") && is_queued(rank, *a, *b)
    };
    let mut found = Vec::new();
    for rows in streams.values() {
        for run in rows.chunk_by(follows) {
            let run: Vec<&WindowKernel> =
                run.iter().filter_map(|row| kernels.get(row).copied()).collect();
            // A tensor of another size does not come from the previous kernel, so fusing across it
            // saves nothing.
            for part in keep_one_size(rank, &run) {
                let most = (limits.value("kernels_fused") as usize).max(1);
                let parts = part.chunks(most);
                let parts = parts.filter(|part| operators(part) as f64 >= limits.value("kernels"));
                found.extend(parts.map(|part| chain(rank, part.to_vec(), limits)));
            }
        }
    }
    found
}

/// Counts the distinct operators of a chain. Each kernel without an operator counts as an operator
/// of its own.
fn operators(part: &[&WindowKernel]) -> usize {
    let is_same = |a: &&WindowKernel, b: &&WindowKernel| a.owner.is_some() && a.owner == b.owner;
    part.chunk_by(is_same).count()
}

/// Returns whether the second kernel was launched before the first one ended. Only then does fusing
/// the two shorten the time of the device.
fn is_queued(rank: &RankFacts<'_>, first: u32, second: u32) -> bool {
    let links = rank.scope.links();
    let launch = links.call(second);
    let is_one_launch = launch.is_some() && launch == links.call(first);
    is_one_launch || launch.is_none_or(|call| rank.start(call) <= rank.end(first))
}

/// Splits a run of kernels where the size of the largest tensor changes, as far as sizes are known.
fn keep_one_size<'a, 'b>(
    rank: &RankFacts<'_>,
    run: &'b [&'a WindowKernel],
) -> Vec<&'b [&'a WindowKernel]> {
    let size = |kernel: &WindowKernel| super::k02_coarse_threads::elements(rank, kernel);
    let is_same = |a: &&WindowKernel, b: &&WindowKernel| match (size(a), size(b)) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    };
    run.chunk_by(is_same).collect()
}

/// Compares the time of a chain with the estimated time of one fused kernel.
fn chain<'a>(
    rank: &RankFacts<'_>,
    kernels: Vec<&'a WindowKernel>,
    limits: &RuleLimits<'_>,
) -> Chain<'a> {
    let time_ns: i64 = kernels.iter().map(|kernel| kernel.duration).sum();
    let good = kernels.first().and_then(|kernel| rank.device_info(kernel.device));
    let good = good.and_then(|device| hardware::peak(&device.name));
    let good = good.map(|peak| peak.memory_gb_per_s * limits.value("good_pct") / 100.0);
    let last = kernels.len() - 1;
    let (mut moved, mut sized, mut fused) = (0.0, 0, 0.0);
    // If tensor sizes are unknown, at least one tensor must still be read or written.
    let mut half_longest = limits.ns("kernel_ns");
    for (at, kernel) in kernels.iter().enumerate() {
        // An operator moves its tensors only once, however many kernels it launches.
        let is_second = at > 0 && kernel.owner == kernels[at - 1].owner;
        let measured = if is_second { None } else { traffic(rank, kernel).zip(good) };
        let Some((Traffic { read, passed, written }, good)) = measured else {
            // Without sizes, half of the moved bytes are assumed to be reads and half writes.
            moved += kernel.duration as f64 * good.unwrap_or_default();
            let ends = i32::from(at == 0) + i32::from(at == last);
            fused += kernel.duration as f64 * f64::from(ends) / 2.0;
            half_longest = half_longest.max(kernel.duration / 2);
            continue;
        };
        sized += 1;
        moved += (read + written) as f64;
        // A fused kernel does not read what the previous kernel of the chain has written.
        let needed = if at == 0 { read } else { read - passed };
        let left = if at == last { written } else { 0 };
        fused += (needed + left) as f64 / good;
    }
    let fused_ns = (fused as i64).max(half_longest).min(time_ns);
    Chain { kernels, time_ns, fused_ns, moved, sized }
}
