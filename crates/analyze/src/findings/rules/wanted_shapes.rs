//! Operators whose tensor shapes the rules need. Shapes fill no column of a trace: callers read
//! them from the file for these rows alone.

use trace::store::EventKind;

use super::{k02_coarse_threads, k05_slow_memory, k11_serial_branches, k13_fusable_chain};
use crate::facts::job::{JobFacts, RankFacts};
use crate::findings::product;

/// Returns the operators whose tensors sharpen findings, one list of rows per rank.
///
/// # Cost
/// Linear in the kernels.
pub fn rows_with_shapes(job: &JobFacts<'_>) -> Vec<Vec<u32>> {
    /// Maximum number of operators per rank: those with the longest kernels, and the first ones
    /// with fusable kernels, because steps are alike.
    const MOST: usize = 4096;
    let owners = |rank: &RankFacts<'_>| {
        let trace = rank.scope.trace;
        let mut longest = Vec::new();
        let mut rows = Vec::new();
        for (place, row) in rank.scope.device_rows.iter().enumerate() {
            let Some(owner) = rank.attribution().owner(place) else { continue };
            if trace.kind(*row) != EventKind::Kernel || trace.kind(owner) != EventKind::Operator {
                continue;
            }
            let duration = trace.slices.duration[*row as usize];
            if is_asked_for(trace.name(*row), trace.name(owner), duration) {
                longest.push((std::cmp::Reverse(duration), owner));
            } else if rows.len() < MOST && k13_fusable_chain::is_fusable(trace.name(*row)) {
                rows.push(owner);
            }
        }
        longest.sort_unstable();
        longest.truncate(MOST);
        rows.extend(longest.into_iter().map(|(_, owner)| owner));
        rows.extend(k11_serial_branches::operators(rank));
        rows.sort_unstable();
        rows.dedup();
        rows
    };
    job.ranks.iter().map(owners).collect()
}

/// Returns whether a rule needs the tensor sizes of a kernel: of long memory-bound kernels, and of
/// products that may use tensor cores.
fn is_asked_for(kernel: &str, operator: &str, duration: i64) -> bool {
    const LONG_NS: i64 = 20_000;
    let is_mover =
        k02_coarse_threads::is_elementwise(kernel) || k05_slow_memory::MOVERS.contains(&operator);
    let is_product = product::is_named(kernel) && !is_mover;
    let is_plain = kernel.contains("sgemm") || kernel.contains("scudnn");
    (is_mover && duration >= LONG_NS) || (is_product && !is_plain)
}
