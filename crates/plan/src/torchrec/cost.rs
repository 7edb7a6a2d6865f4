//! Prices any plan of this crate by TorchRec's cost model.

use super::cut::cut_grid;
use super::option::ShardingOption;
use super::problem::TorchrecProblem;
use super::sharding::ShardingType;
use crate::layout::Layout;
use crate::placement::{CandidatePlan, Placement};

/// Estimates the shards of a placement, one for each of its ranks, or for every rank if the table
/// is replicated.
///
/// TorchRec's formulas assume that row-wise shards are on all ranks and grids on whole hosts. They
/// are used unchanged for placements on fewer ranks.
///
/// # Panics
/// Panics if the problem has no such table.
#[must_use]
pub fn price_placement(
    table: usize,
    placement: &Placement,
    problem: &TorchrecProblem,
) -> ShardingOption {
    let sharding = match placement.layout {
        Layout::Table => ShardingType::TableWise,
        Layout::Row => ShardingType::RowWise,
        Layout::Column { .. } => ShardingType::ColumnWise,
        Layout::TableRow => ShardingType::TableRowWise,
        Layout::Grid { .. } => ShardingType::GridShard,
        Layout::Replicated => {
            let sharding = ShardingType::DataParallel;
            return ShardingOption::new(table, sharding, sharding.kernel(), problem);
        }
    };
    let parts = placement.layout.column_parts().max(1) as usize;
    let cells = cut_grid(&problem.tables[table], parts, placement.ranks.len() / parts);
    ShardingOption::estimate(table, sharding, sharding.kernel(), cells, problem)
}

/// Returns the time of each rank in milliseconds. TorchRec rates a plan by the largest.
///
/// # Panics
/// Panics if the plan names a table or a rank that the problem lacks.
/// [`CandidatePlan::to_sharding_plan`] checks plans.
#[must_use]
pub fn price_plan(plan: &CandidatePlan, problem: &TorchrecProblem) -> Vec<f64> {
    let mut times = vec![0.0; problem.setting.topology.ranks as usize];
    for (table, placement) in plan.placements.iter().enumerate() {
        let option = price_placement(table, placement, problem);
        let all = 0..times.len();
        let own: Vec<usize> = match placement.layout {
            Layout::Replicated => all.collect(),
            _ => placement.ranks.iter().map(|rank| rank.index()).collect(),
        };
        for (shard, rank) in option.shards.iter().zip(own) {
            times[rank] += shard.perf.total();
        }
    }
    times
}
