//! Neo's cost of a plan (arXiv:2104.05158 §4.1). It adds, for each rank, the bytes of its messages,
//! a fixed latency, and the values that it looks up. It exists for comparison with the predicted
//! step.

use schema::JobConfig;

use crate::layout::Layout;
use crate::placement::Placement;
use crate::problem::PlanProblem;

/// Bytes of an id and of a value in messages.
const ID_BYTES: f64 = 8.0;
const VALUE_BYTES: f64 = 4.0;

/// Weights of the parts of Neo's cost. The paper tunes them for each system and does not state
/// them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NeoWeights {
    /// Nanoseconds per byte that a rank sends.
    pub byte: f64,
    /// Fixed nanoseconds of a table that takes part in an exchange.
    pub latency: f64,
    /// Nanoseconds per value that a rank looks up.
    pub access: f64,
}

impl NeoWeights {
    /// Derives weights from the data sheet of the hardware: the slowest link that messages take,
    /// and three passes over the looked-up values, which are read once, and read and written by
    /// updates.
    #[must_use]
    pub fn from_topology(topology: &schema::Topology) -> Self {
        let megabyte = 1e6;
        let empty_ns = topology.between.ns(0.0);
        let byte = if topology.hosts > 1 {
            (topology.between.ns(megabyte) - empty_ns) / megabyte
        } else {
            1.0 / topology.within.all_to_all
        };
        Self { byte, latency: 0.0, access: 3.0 * VALUE_BYTES * 1e9 / topology.device.dram }
    }
}

/// Sizes of a table from which simple costs are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableSizes {
    pub rows: f64,
    pub dim: f64,
    /// Number of ids that a batch of all ranks looks up.
    pub lookups: f64,
    /// Number of pooled vectors of a batch of all ranks.
    pub vectors: f64,
    /// Bytes of weights and optimizer states.
    pub bytes: f64,
}

/// Returns the sizes of every table, in the model's order.
#[must_use]
pub fn table_sizes(problem: &PlanProblem<'_>) -> Vec<TableSizes> {
    let JobConfig { model, optimizer, training, .. } = problem.config;
    let batch = training.batch_size as f64;
    let mut features = problem.features.iter();
    let sizes = model.tables.iter().map(|table| {
        let kept = |ids: f64| table.sequence_length.map_or(ids, |length| ids.min(length as f64));
        let own = features.by_ref().take(table.features.len());
        let row = table.dim * table.data_type.bytes()
            + 4 * optimizer.sparse.kind.state_per_row(table.dim);
        TableSizes {
            rows: table.rows as f64,
            dim: table.dim as f64,
            lookups: batch * own.map(|stats| kept(stats.ids_per_bag)).sum::<f64>(),
            vectors: batch * (table.features.len() * table.vectors()) as f64,
            bytes: table.rows as f64 * row as f64,
        }
    });
    sizes.collect()
}

/// Returns the cost of one part of a table under a layout with `parts` parts in all, in
/// nanoseconds.
#[must_use]
pub fn part_cost(
    sizes: &TableSizes,
    placement: &Placement,
    ranks: u32,
    weights: NeoWeights,
) -> f64 {
    let TableSizes { rows, dim, lookups, vectors, .. } = *sizes;
    let ranks = f64::from(ranks.max(1));
    let parts = placement.ranks.len().max(1) as f64;
    let columns = f64::from(placement.layout.column_parts());
    let blocks = parts / columns;
    let (bytes, accesses) = match placement.layout {
        // An all-reduce of the whole table sends it almost twice.
        Layout::Replicated => (2.0 * VALUE_BYTES * rows * dim, lookups * dim / ranks),
        // Ids arrive once. Pooled vectors, or partial sums of a block of rows, leave, and gradients
        // arrive.
        _ => (
            ID_BYTES * lookups / blocks + 2.0 * VALUE_BYTES * vectors * dim / columns,
            lookups * dim / parts,
        ),
    };
    weights.byte * bytes + weights.latency + weights.access * accesses
}

/// Returns the cost of each rank under placements of all tables, in nanoseconds.
#[must_use]
pub fn rank_costs(
    sizes: &[TableSizes],
    placements: &[Placement],
    ranks: u32,
    weights: NeoWeights,
) -> Vec<f64> {
    let mut costs = vec![0.0; ranks as usize];
    for (table, placement) in sizes.iter().zip(placements) {
        let cost = part_cost(table, placement, ranks, weights);
        if placement.layout == Layout::Replicated {
            costs.iter_mut().for_each(|sum| *sum += cost);
        }
        placement.ranks.iter().for_each(|rank| costs[rank.index()] += cost);
    }
    costs
}
