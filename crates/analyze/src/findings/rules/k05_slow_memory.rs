//! Rule K05 finds kernels that only move data and reach a small part of the memory bandwidth.

use super::k02_coarse_threads::is_elementwise;
use crate::facts::calls::Direction;
use crate::facts::job::{RankFacts, WindowKernel};
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::hardware;
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::tables::kernels::short_name;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "K05",
    title: "poor use of memory bandwidth",
    category: FindingCategory::Kernel,
    side: CureSide::Device,
    confidence: Confidence::Medium,
    limits: &[
        limit(
            "peak_pct",
            40.0,
            "bandwidth below which a kernel is reported, percent of the memory's peak",
        ),
        limit(
            "good_pct",
            80.0,
            "assumed bandwidth of an improved kernel, percent of the memory's peak",
        ),
        limit(
            "kernel_ns",
            20_000.0,
            "minimum duration of a kernel; shorter ones are bound by latency",
        ),
        limit(
            "time_pct",
            1.0,
            "minimum time of kernels below that bandwidth, percent of the window",
        ),
    ],
    page: page!("K05"),
    detect: Detect::Rank(detect),
};

/// A row as (row, duration, achieved memory bandwidth in GB/s).
type Achieved = (u32, i64, f64);

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let device = *rank.scope.devices().first()?;
    let peak = hardware::peak(&rank.device_info(device)?.name)?.memory_gb_per_s;
    let kernels = rank.compute_kernels().filter_map(|kernel| {
        let moved = moved_bytes(rank, kernel)?;
        Some((kernel.row, kernel.duration, moved as f64 / kernel.duration.max(1) as f64))
    });
    let copies = rank.copies().iter().filter(|copy| copy.direction == Direction::OnDevice);
    let copies = copies.filter(|copy| copy.bytes > 0).map(|copy| {
        let duration = rank.duration(copy.row);
        // A copy within a device reads and writes each byte, so its bytes count twice.
        (copy.row, duration, 2.0 * copy.bytes as f64 / duration.max(1) as f64)
    });
    let is_slow = |(_, duration, rate): &Achieved| {
        *duration >= limits.ns("kernel_ns") && *rate < limits.value("peak_pct") / 100.0 * peak
    };
    let slow: Vec<Achieved> = kernels.chain(copies).filter(is_slow).collect();
    let time_ns: i64 = slow.iter().map(|(_, duration, _)| duration).sum();
    let share = rank.share(time_ns);
    let worst = slow.iter().max_by_key(|(row, duration, _)| (*duration, *row))?;
    if share < limits.value("time_pct") {
        return None;
    }
    let good = limits.value("good_pct") / 100.0 * peak;
    let lost = |(_, duration, rate): &Achieved| *duration as f64 * (1.0 - rate / good).max(0.0);
    let high: f64 = slow.iter().map(lost).sum();
    let what = format!(
        "{} achieves {:.0} of {peak:.0} GB/s; kernels and copies that reach less than {:.0} % take {} \
         per step ({share:.1} % of the window).",
        short_name(rank.name(worst.0)),
        worst.2,
        limits.value("peak_pct"),
        time(rank.per_step(time_ns))
    );
    let advice = "Look at strides (Input Strides tells what is not contiguous), at coalescing and \
                  vector width, and at the type: half as many bytes take half as long.";
    let rows: Vec<u32> = slow.iter().map(|(row, ..)| *row).collect();
    let factor = 1.0 - high / time_ns.max(1) as f64;
    let edits = vec![rank.edit(rows.clone(), Action::Scale(factor))];
    let found = RuleFindings::new(what, advice)
        .number("worst_gb_per_s", worst.2)
        .number("peak_gb_per_s", peak)
        .number("time_per_step_ns", rank.per_step(time_ns) as f64);
    Some(found.shown_by(rank.collect_evidence(rows)).saves(high as i64, edits))
}

/// Operators that read their inputs and write as many bytes as their largest input has.
pub(super) const MOVERS: [&str; 4] =
    ["aten::copy_", "aten::cat", "aten::clone", "aten::contiguous"];

/// Returns the minimum bytes that a kernel reads and writes, if the tensors of its operator are
/// known and it only moves them.
fn moved_bytes(rank: &RankFacts<'_>, kernel: &WindowKernel) -> Option<u64> {
    let is_simple =
        is_elementwise(rank.name(kernel.row)) && !rank.name(kernel.row).contains("educe");
    if !is_simple && !MOVERS.contains(&rank.owner_name(kernel)) {
        return None;
    }
    traffic(rank, kernel).map(|traffic| traffic.read + traffic.written)
}

/// Lower bound of the bytes that a kernel moves, derived from the tensors of its operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traffic {
    pub read: u64,
    /// Bytes of the operator's largest input, which the previous kernel may have written.
    pub passed: u64,
    pub written: u64,
}

/// Returns the bytes that an element-wise, reducing or copying kernel moves, if the tensors of its
/// operator are known.
pub(super) fn traffic(rank: &RankFacts<'_>, kernel: &WindowKernel) -> Option<Traffic> {
    let tensors = rank.tensors(kernel.owner?)?;
    let sizes = tensors.dims.iter().zip(&tensors.types).filter(|(dims, _)| !dims.is_empty());
    let bytes: Vec<u64> =
        sizes.filter_map(|(dims, of)| Some(dims.iter().product::<u64>() * width(of)?)).collect();
    let (first, largest) = (*bytes.first()?, *bytes.iter().max()?);
    let operator = rank.owner_name(kernel);
    Some(match operator {
        // The destination of `copy_` is overwritten without being read.
        "aten::copy_" => {
            let read = bytes.get(1).copied().unwrap_or(first);
            Traffic { read, passed: read, written: first }
        }
        "aten::fill_" | "aten::zero_" => Traffic { read: 0, passed: 0, written: first },
        _ => {
            // In-place operators write only their first tensor, and the result of a reduction is
            // small.
            let is_reduced = rank.name(kernel.row).contains("educe");
            let written = match operator.ends_with('_') {
                true => first,
                false if is_reduced => 0,
                false => largest,
            };
            Traffic { read: bytes.iter().sum(), passed: largest, written }
        }
    })
}

/// Returns the bytes per element of a data type, given as PyTorch writes it.
fn width(of: &str) -> Option<u64> {
    match of {
        "double" | "long" | "long int" | "c10::complex<float>" => Some(8),
        "float" | "int" => Some(4),
        "c10::Half" | "c10::BFloat16" | "short" => Some(2),
        "bool" | "unsigned char" | "signed char" | "c10::Float8_e4m3fn" | "c10::Float8_e5m2" => {
            Some(1)
        }
        _ => None,
    }
}
