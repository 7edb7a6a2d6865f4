//! Finds sequences of kernels that an operator launches repeatedly, which are candidates for
//! fusion.

use std::collections::BTreeMap;

use schema::TableRow;
use serde::Serialize;
use trace::store::{EventKind, StringId};

use crate::facts::attribution::Attribution;
use crate::facts::scope::Scope;
use crate::facts::tree::OperatorTree;
use crate::percent::percent;
use crate::tables::kernels::labels;

/// One sequence of kernels that operators of one name launch on one rank.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct SequenceRow {
    pub rank: u32,
    pub operator: String,
    /// Number of times that an operator of this name launched exactly this sequence.
    pub count: u64,
    /// Number of pieces of device work in the sequence.
    pub kernel_count: u64,
    /// Total duration of the device work over all repetitions.
    pub device_ns: i64,
    /// Total host time of the operators over all repetitions.
    pub host_ns: i64,
    /// Share of all device time in the window, in percent.
    pub device_pct: Option<f64>,
    /// Short names in order of launch, joined by ` | `; `name ×n` stands for n kernels of that name
    /// in a row.
    pub sequence: String,
}

/// Selects the operators and sequences to analyze.
#[derive(Clone, Copy, Debug)]
pub struct SequenceRequest<'a> {
    /// Text that the operator's name must contain; if empty, all outermost operators are analyzed.
    pub operator: &'a str,
    pub kernels_min: usize,
}

/// Running sums over all repetitions of one sequence of kernels.
#[derive(Default)]
struct SequenceSums {
    count: u64,
    device_ns: i64,
    host_ns: i64,
}

/// Finds the sequences of a scope, sorted by frequency, then by device time, both in descending
/// order.
///
/// If an operator that matches contains another one that matches, only the outermost counts.
///
/// # Cost
/// The cost is linear in operators and device rows, times the logarithm of the number of sequences.
/// # Source
/// Holistic Trace Analysis calls this table frequent CUDA kernel sequences. Holistic Trace Analysis
/// loses operators that are deeper in the tree than the shallowest match.
pub fn find_sequences(
    scope: &Scope<'_>,
    tree: &OperatorTree,
    attribution: &Attribution,
    request: SequenceRequest<'_>,
) -> Vec<SequenceRow> {
    let slices = &scope.trace.slices;
    let mut found: BTreeMap<(StringId, Vec<StringId>), SequenceSums> = BTreeMap::new();
    for row in outermost(scope, tree, request.operator) {
        let launched = attribution.rows(tree, row);
        if launched.len() < request.kernels_min.max(1) {
            continue;
        }
        let names = launched.iter().map(|row| slices.name[*row as usize]).collect();
        let sums = found.entry((slices.name[row as usize], names)).or_default();
        sums.count += 1;
        sums.device_ns += attribution.inclusive(tree, row).device_ns;
        sums.host_ns += slices.duration[row as usize];
    }
    let total = scope.device_rows.iter().map(|row| slices.duration[*row as usize]).sum();
    // Labels must distinguish only the kernels that occur in the table, so they are made after
    // counting.
    let text = |id: StringId| scope.trace.strings.get(id);
    let mut ids: Vec<StringId> = found.keys().flat_map(|(_, names)| names).copied().collect();
    ids.sort_unstable();
    ids.dedup();
    let labels = labels(ids.iter().map(|id| text(*id)));
    let label =
        |id: &StringId| ids.binary_search(id).map_or_else(|_| text(*id), |at| labels[at].as_str());
    let mut rows: Vec<SequenceRow> = found
        .into_iter()
        .map(|((operator, names), sums)| SequenceRow {
            rank: scope.trace.rank,
            operator: text(operator).to_owned(),
            count: sums.count,
            kernel_count: names.len() as u64,
            device_ns: sums.device_ns,
            host_ns: sums.host_ns,
            device_pct: percent(sums.device_ns, total),
            sequence: written(names.iter().map(label)),
        })
        .collect();
    rows.sort_by(|a, b| {
        let key = |row: &SequenceRow| (row.count, row.device_ns);
        key(b)
            .cmp(&key(a))
            .then_with(|| (&a.operator, &a.sequence).cmp(&(&b.operator, &b.sequence)))
    });
    rows
}

/// Returns the outermost operators of the window whose name contains a text.
fn outermost(scope: &Scope<'_>, tree: &OperatorTree, part: &str) -> Vec<u32> {
    if part.is_empty() {
        let top = tree.top_operators(scope.trace).into_iter();
        return top.filter(|row| scope.starts_inside(*row)).collect();
    }
    let mut behind = 0;
    let mut found = Vec::new();
    for (node, &row) in tree.nodes.iter().enumerate() {
        let is_candidate = node >= behind
            && scope.trace.kind(row) == EventKind::Operator
            && scope.starts_inside(row)
            && scope.trace.name(row).contains(part);
        if is_candidate {
            found.push(row);
            behind = tree.range(row).end as usize;
        }
    }
    found
}

fn written<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut runs: Vec<(&str, u64)> = Vec::new();
    for name in names {
        match runs.last_mut() {
            Some((last, count)) if *last == name => *count += 1,
            _ => runs.push((name, 1)),
        }
    }
    let text = |(name, count): &(&str, u64)| {
        if *count == 1 { (*name).to_owned() } else { format!("{name} ×{count}") }
    };
    runs.iter().map(text).collect::<Vec<_>>().join(" | ")
}
