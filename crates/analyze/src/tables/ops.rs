//! Lists operators by name, with their time on the host and the device work that they launch.

use schema::TableRow;
use serde::Serialize;
use trace::store::EventKind;

use crate::facts::attribution::Attribution;
use crate::facts::distribution::{self, Durations, thousandths};
use crate::facts::scope::Scope;
use crate::facts::tree::OperatorTree;
use crate::percent::percent;
use crate::tables::breakdown;

const NONE: u32 = u32::MAX;

/// All calls of one operator name on one rank that start in the window.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct OpRow {
    pub rank: u32,
    pub name: String,
    pub count: u64,
    /// Time on the host, where calls inside a call of the same name count only once.
    pub host_ns: i64,
    /// Time on the host outside the operators and runtime calls inside the operator.
    pub host_self_ns: i64,
    /// Total duration of the device work launched inside the operator. Work launched inside a
    /// nested call of the same name counts only once.
    pub device_ns: i64,
    /// Total duration of the device work that the operator launched itself.
    pub device_self_ns: i64,
    /// `device_self_ns` relative to the busy time, in percent.
    pub device_self_pct: Option<f64>,
    /// Number of pieces of device work launched inside the operator. Work launched inside a nested
    /// call of the same name counts only once.
    pub kernel_count: u64,
    /// Number of pieces of device work that the operator launched itself.
    pub kernel_self_count: u64,
    pub kernels_per_call: f64,
    /// Distribution of the durations of single calls on the host.
    #[serde(flatten)]
    pub durations: Durations,
}

/// Running sums over the calls of one operator name.
#[derive(Clone, Debug, Default)]
struct OperatorSums {
    name: u32,
    durations: Vec<i64>,
    host_ns: i64,
    self_ns: i64,
    device_ns: i64,
    device_self_ns: i64,
    kernels: u64,
    kernels_self: u64,
    /// Number of operators of this name that are open around the current node.
    open: u32,
}

/// Lists the operators of a scope by name, sorted by own device time, then by host time, both in
/// descending order.
///
/// # Cost
/// The cost is `O(n log n)` in the operators.
pub fn list_operators(
    scope: &Scope<'_>,
    tree: &OperatorTree,
    attribution: &Attribution,
) -> Vec<OpRow> {
    let trace = scope.trace;
    let busy_ns = breakdown::compute_breakdown(scope).busy_ns;
    let sums = sums(scope, tree, attribution);
    let mut rows: Vec<OpRow> = sums
        .into_iter()
        .map(|mut sums| {
            let spread = distribution::describe_values(&mut sums.durations);
            OpRow {
                rank: trace.rank,
                name: trace.strings.get(trace::store::StringId(sums.name)).to_owned(),
                count: spread.count,
                host_ns: sums.host_ns,
                host_self_ns: sums.self_ns,
                device_ns: sums.device_ns,
                device_self_ns: sums.device_self_ns,
                device_self_pct: percent(sums.device_self_ns, busy_ns),
                kernel_count: sums.kernels,
                kernel_self_count: sums.kernels_self,
                kernels_per_call: thousandths(sums.kernels as f64 / spread.count as f64),
                durations: spread.into(),
            }
        })
        .collect();
    rows.sort_by(|a, b| {
        let key = |row: &OpRow| (row.device_self_ns, row.host_self_ns);
        key(b).cmp(&key(a)).then_with(|| a.name.cmp(&b.name))
    });
    rows
}

fn sums(scope: &Scope<'_>, tree: &OperatorTree, attribution: &Attribution) -> Vec<OperatorSums> {
    let slices = &scope.trace.slices;
    let mut place = vec![NONE; scope.trace.strings.len()];
    let mut sums: Vec<OperatorSums> = Vec::new();
    // The open operators, each with the index of its last node and the index of its sums.
    let mut open: Vec<(u32, usize)> = Vec::new();
    for (node, &row) in tree.nodes.iter().enumerate() {
        while let Some((_, at)) = open.pop_if(|(behind, _)| *behind <= node as u32) {
            sums[at].open -= 1;
        }
        if scope.trace.kind(row) != EventKind::Operator || !scope.starts_inside(row) {
            continue;
        }
        let name = slices.name[row as usize].0;
        let at = &mut place[name as usize];
        if *at == NONE {
            *at = sums.len() as u32;
            sums.push(OperatorSums { name, ..OperatorSums::default() });
        }
        let at = *at as usize;
        let sum = &mut sums[at];
        let length = tree.length(scope.trace, row);
        sum.durations.push(length);
        sum.self_ns += tree.own_length(scope.trace, row);
        let own = attribution.exclusive(tree, row);
        sum.device_self_ns += own.device_ns;
        sum.kernels_self += own.count;
        if sum.open == 0 {
            let inside = attribution.inclusive(tree, row);
            sum.host_ns += length;
            sum.device_ns += inside.device_ns;
            sum.kernels += inside.count;
        }
        sum.open += 1;
        open.push((tree.range(row).end, at));
    }
    sums
}
