//! Attributes each piece of device work to the operator that launched it, and records which method
//! found the operator.

mod external;
mod method;
#[cfg(test)]
mod tests;

use std::ops::Range;

use schema::TableRow;
use serde::Serialize;
use trace::store::EventKind;

use crate::facts::scope::Scope;
use crate::facts::tree::OperatorTree;
use crate::percent::percent;
use method::NONE;

pub use method::OwnerMethod;

/// Owners of a scope's device rows, and the sums of device work per operator.
#[derive(Clone, Debug)]
pub struct Attribution {
    /// The method that found each device row's owner, with one entry per device row of the scope.
    pub methods: Vec<OwnerMethod>,
    /// The operator or annotation that owns each device row of the scope.
    owners: Vec<u32>,
    /// Owned rows, stored at the tree node from which they were launched, sorted by node, then
    /// start.
    launched: PlacedRows,
    /// Owned rows, stored at the tree node of their owner, sorted by node, then start.
    owned: PlacedRows,
}

/// Device rows sorted by the tree node that they belong to.
#[derive(Clone, Debug, Default)]
struct PlacedRows {
    /// Index in `rows` of each node's first row, with one entry more than there are nodes.
    first: Vec<u32>,
    rows: Vec<u32>,
    /// Running sum of durations in nanoseconds: entry `i` is the total of the first `i` rows.
    before: Vec<i64>,
}

/// Number and total duration of the device rows that an operator launched or owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OperatorWork {
    pub count: u64,
    /// Sum of the full durations of the rows, including time after the window ends.
    pub device_ns: i64,
}

/// Share of a rank's device work whose owners were found by one particular [`OwnerMethod`].
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct Coverage {
    pub rank: u32,
    pub method: OwnerMethod,
    pub count: u64,
    /// Sum of the durations of the rows whose owner this method found.
    pub device_ns: i64,
    pub count_pct: Option<f64>,
    /// `device_ns` relative to the duration of all device rows, in percent.
    pub device_pct: Option<f64>,
}

/// Finds the operator or annotation that owns each device row of the scope. The first of these
/// rules that applies decides:
///
/// 1. the innermost operator around the row's launch call, on the thread of the call;
///
/// 2. the operator with the same external id as the row;
///
/// 3. the owner of other work of the same graph node;
///
/// 4. the annotation around the launch call, or around the row on its stream.
///
/// External ids are ignored in files where they only repeat the correlation ids, as profilers wrote
/// them up to 2023.
///
/// # Cost
/// The search is linear in host and device rows, and `O(n log n)` where external ids are needed.
pub fn attribute_device_work(scope: &Scope<'_>, tree: &OperatorTree) -> Attribution {
    let trace = scope.trace;
    let rows = &scope.device_rows;
    let mut methods = vec![OwnerMethod::Orphan; rows.len()];
    let mut owners = vec![NONE; rows.len()];
    for (at, row) in rows.iter().enumerate() {
        let Some(call) = scope.links().call(*row) else { continue };
        methods[at] = OwnerMethod::Call;
        if let Some(operator) = tree.operator(trace, call) {
            (methods[at], owners[at]) = (OwnerMethod::Correlation, operator);
        }
    }
    // Annotations are tried only after external ids and graph nodes, because both of these name an
    // operator.
    external::by_external_id(trace, rows, (&mut methods, &mut owners));
    external::by_graph_node(trace, rows, (&mut methods, &mut owners));
    let is_annotation = |row: &u32| trace.kind(*row) == EventKind::Annotation;
    for (at, row) in rows.iter().enumerate() {
        let call = scope.links().call(*row).filter(|_| methods[at] == OwnerMethod::Call);
        if let Some(around) = call.and_then(|call| tree.ancestors(call).find(is_annotation)) {
            (methods[at], owners[at]) = (OwnerMethod::Annotation, around);
        }
    }
    external::by_span_on_stream(trace, rows, (&mut methods, &mut owners));
    let launched_by = |at: usize| match methods[at] {
        OwnerMethod::Correlation | OwnerMethod::Annotation | OwnerMethod::Call => {
            scope.links().call(rows[at])
        }
        _ => None,
    };
    let owner = |at: usize| Some(owners[at]).filter(|owner| *owner != NONE);
    let node_of = |row: Option<u32>| row.and_then(|row| tree.position(row));
    // Work whose launch call is unknown is stored under its owner, so that the sums of the tree
    // still include it.
    let launched = |at: usize| node_of(launched_by(at)).or_else(|| node_of(owner(at)));
    let launched = PlacedRows::new(scope, tree, launched);
    let owned = PlacedRows::new(scope, tree, |at| node_of(owner(at)));
    Attribution { methods, owners, launched, owned }
}

impl Attribution {
    /// Returns the operator or annotation that owns the device row at an index of the scope.
    pub fn owner(&self, place: usize) -> Option<u32> {
        Some(self.owners[place]).filter(|owner| *owner != NONE)
    }

    /// Returns the device work launched inside a host row, including the rows nested inside it.
    pub fn inclusive(&self, tree: &OperatorTree, row: u32) -> OperatorWork {
        self.launched.work(tree.range(row))
    }

    /// Returns the device work that a host row owns itself, without its children.
    pub fn exclusive(&self, tree: &OperatorTree, row: u32) -> OperatorWork {
        let node = tree.range(row).start;
        self.owned.work(node..node + u32::from(tree.contains(row)))
    }

    /// Returns the device rows launched inside a host row, in launch order.
    pub fn rows(&self, tree: &OperatorTree, row: u32) -> &[u32] {
        &self.launched.rows[self.launched.places(tree.range(row))]
    }

    /// Returns the share of device work per method, for the methods that occur, in the order in
    /// which they are tried.
    pub fn coverage(&self, scope: &Scope<'_>) -> Vec<Coverage> {
        let duration =
            |place: usize| scope.trace.slices.duration[scope.device_rows[place] as usize];
        let mut sums = OwnerMethod::ALL.map(|method| (method, OperatorWork::default()));
        for (place, method) in self.methods.iter().enumerate() {
            let sum = &mut sums[*method as usize].1;
            sum.count += 1;
            sum.device_ns += duration(place);
        }
        let total: i64 = sums.iter().map(|(_, work)| work.device_ns).sum();
        let rows = self.methods.len() as i64;
        let occurring = sums.into_iter().filter(|(_, work)| work.count > 0);
        occurring
            .map(|(method, work)| Coverage {
                rank: scope.trace.rank,
                method,
                count: work.count,
                device_ns: work.device_ns,
                count_pct: percent(work.count as i64, rows),
                device_pct: percent(work.device_ns, total),
            })
            .collect()
    }

    /// Returns the number of device rows that an operator owns.
    pub fn covered_count(&self) -> u64 {
        self.methods.iter().filter(|method| method.is_covered()).count() as u64
    }

    /// Returns the share of device rows that an operator owns, in percent, or `None` without device
    /// work.
    pub fn covered_pct(&self) -> Option<f64> {
        percent(self.covered_count() as i64, self.methods.len() as i64)
    }
}

impl PlacedRows {
    /// Groups the device rows by the node that `node` returns for each; rows of one node keep their
    /// order.
    fn new(scope: &Scope<'_>, tree: &OperatorTree, node: impl Fn(usize) -> Option<u32>) -> Self {
        let nodes: Vec<u32> =
            (0..scope.device_rows.len()).map(|at| node(at).unwrap_or(NONE)).collect();
        // Count the rows of each node, turn the counts into offsets, then place the rows: a stable
        // counting sort in linear time.
        let mut first = vec![0u32; tree.nodes.len() + 1];
        for node in nodes.iter().filter(|node| **node != NONE) {
            first[*node as usize + 1] += 1;
        }
        for node in 0..tree.nodes.len() {
            first[node + 1] += first[node];
        }
        let mut next = first.clone();
        let mut rows = vec![0; first.last().map_or(0, |count| *count as usize)];
        let placed = nodes.iter().zip(&scope.device_rows).filter(|(node, _)| **node != NONE);
        for (node, row) in placed {
            let place = &mut next[*node as usize];
            rows[*place as usize] = *row;
            *place += 1;
        }
        // Prefix sums give the device time of a whole subtree by one subtraction.
        let mut before = vec![0];
        let mut sum = 0;
        for row in &rows {
            sum += scope.trace.slices.duration[*row as usize];
            before.push(sum);
        }
        Self { first, rows, before }
    }

    fn places(&self, nodes: Range<u32>) -> Range<usize> {
        self.first[nodes.start as usize] as usize..self.first[nodes.end as usize] as usize
    }

    fn work(&self, nodes: Range<u32>) -> OperatorWork {
        let places = self.places(nodes);
        let device_ns = self.before[places.end] - self.before[places.start];
        OperatorWork { count: places.len() as u64, device_ns }
    }
}
