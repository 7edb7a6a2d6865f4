//! Lists operators by name: what they cost on the host and what they launch on the device.

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

/// One row per rank and operator name: all its calls that start in the window.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct OpRow {
    pub rank: u32,
    pub name: String,
    pub count: u64,
    /// Time on the host; calls inside a call of the same name count once.
    pub host_ns: i64,
    /// Host time outside the operators and runtime calls that it called.
    pub host_self_ns: i64,
    /// Total duration of the device work launched inside. Work inside a nested call of the same
    /// name counts once.
    pub device_ns: i64,
    /// Total duration of the device work that it launched itself.
    pub device_self_ns: i64,
    /// `device_self_ns` relative to the busy time, in percent.
    pub device_self_pct: Option<f64>,
    /// Number of pieces of device work launched inside. Work inside a nested call of the same name
    /// counts once.
    pub kernel_count: u64,
    /// Pieces of device work it launched itself.
    pub kernel_self_count: u64,
    pub kernels_per_call: f64,
    /// Host durations of single calls.
    #[serde(flatten)]
    pub durations: Durations,
}

/// Running sums of one operator name.
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
    /// Number of open operators of this name around the current node.
    open: u32,
}

/// Lists the operators of a scope by name, most own device time first, then host time.
///
/// # Cost
/// `O(n log n)` in the operators.
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
    // The open operators, each with the index of its last node and of its sums.
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
