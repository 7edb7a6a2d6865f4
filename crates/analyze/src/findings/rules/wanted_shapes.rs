//! Selects the operators whose tensor shapes the rules need. No column of a trace contains shapes,
//! so callers read them from the file for these rows alone.

use trace::store::EventKind;

use super::{k02_coarse_threads, k05_slow_memory, k11_serial_branches, k13_fusable_chain};
use crate::facts::job::{JobFacts, RankFacts};
use crate::facts::named::{is_named, names};
use crate::findings::product;

/// Returns the operators whose tensors make findings more precise, as one list of rows per rank.
///
/// # Cost
/// The cost is linear in the number of kernels.
pub fn rows_with_shapes(job: &JobFacts<'_>) -> Vec<Vec<u32>> {
    /// Maximum number of operators per rank. Operators with the longest kernels are taken first,
    /// and then the first ones with fusable kernels, because steps resemble each other.
    const MOST: usize = 4096;
    /// Minimum duration of a memory-bound kernel whose tensor sizes are read.
    const LONG_MOVER_NS: i64 = 20_000;
    let longest_first = |rank: &RankFacts<'_>| {
        let trace = rank.scope.trace;
        let needs_sizes = names(trace, |kernel| {
            // Names with `sgemm` or `scudnn` show float32 products without tensor cores, whose type
            // and alignment need not be looked up.
            product::is_named(kernel) && !kernel.contains("sgemm") && !kernel.contains("scudnn")
        });
        let elementwise = names(trace, k02_coarse_threads::is_elementwise);
        let fusable = names(trace, k13_fusable_chain::is_fusable);
        let mut longest = Vec::new();
        let mut rows = Vec::new();
        for (place, row) in rank.scope.device_rows.iter().enumerate() {
            let Some(owner) = rank.attribution().owner(place) else { continue };
            if trace.kind(*row) != EventKind::Kernel || trace.kind(owner) != EventKind::Operator {
                continue;
            }
            let duration = trace.slices.duration[*row as usize];
            let is_mover = is_named(trace, &elementwise, *row)
                || k05_slow_memory::MOVERS.contains(&trace.name(owner));
            let needs_sizes = match is_mover {
                true => duration >= LONG_MOVER_NS,
                false => is_named(trace, &needs_sizes, *row),
            };
            if needs_sizes {
                longest.push((std::cmp::Reverse(duration), owner));
            } else if rows.len() < MOST && is_named(trace, &fusable, *row) {
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
    job.ranks.iter().map(longest_first).collect()
}
