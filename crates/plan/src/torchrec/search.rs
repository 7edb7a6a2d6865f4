//! TorchRec's search: proposes sharding options, places them, and keeps the plan with the best
//! rating.

use schema::Rank;

use super::error::{TorchrecError, Unplaced};
use super::option::{ShardingOption, list_options};
use super::partition::{Assignment, PlacementOrder, Room, partition, rate};
use super::problem::TorchrecProblem;
use super::proposals::for_each_proposal;
use super::sharding::ShardingType;
use super::topology::PlannedDevice;
use crate::layout::Layout;
use crate::placement::{CandidatePlan, Placement};

/// How a proposal is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitioner {
    /// Balances the times of ranks. TorchRec's default.
    GreedyPerf,
    /// Balances memory as far as the rating gets at most 2 % worse.
    MemoryBalanced,
}

/// Most plans that are tried to balance the memory of a proposal.
const MOST_BALANCED_PLANS: usize = 10;
/// Largest loss of rating for balanced memory.
const BALANCE_TOLERANCE: f64 = 0.02;
/// Bytes per rank below which a difference of memory does not count.
const BALANCE_BYTES: u64 = 10 << 20;

/// The plan that TorchRec's planner proposes.
#[derive(Clone, Debug, PartialEq)]
pub struct TorchrecResult {
    /// The chosen option of each table.
    pub options: Vec<ShardingOption>,
    /// The rank of each shard of each option.
    pub ranks: Vec<Vec<u32>>,
    /// Largest time of a rank, in milliseconds.
    pub rating_ms: f64,
    /// Number of different proposals.
    pub proposals: usize,
    /// Number of proposals that fit.
    pub plans: usize,
}

impl TorchrecResult {
    /// Converts the plan to placements of this crate.
    #[must_use]
    pub fn to_candidate(&self) -> CandidatePlan {
        let placement = |(option, ranks): (&ShardingOption, &Vec<u32>)| {
            let ranks: Vec<Rank> = ranks.iter().copied().map(Rank).collect();
            let parts = option.shards.iter().filter(|shard| shard.cell.rows.start == 0).count();
            let parts = parts as u32;
            let layout = match option.sharding {
                ShardingType::DataParallel => return Placement::replicated(),
                ShardingType::TableWise => Layout::Table,
                ShardingType::ColumnWise | ShardingType::TableColumnWise => {
                    Layout::Column { parts }
                }
                ShardingType::RowWise => Layout::Row,
                ShardingType::TableRowWise => Layout::TableRow,
                ShardingType::GridShard => Layout::Grid { columns: parts },
            };
            Placement { layout, ranks }
        };
        CandidatePlan { placements: self.options.iter().zip(&self.ranks).map(placement).collect() }
    }
}

/// Searches as TorchRec's default planner does.
///
/// # Errors
/// [`TorchrecError::NoPlan`] if no proposal fits, [`TorchrecError::Reservation`] if more memory is
/// reserved than there is, and the errors of [`list_options`].
pub fn search(
    problem: &TorchrecProblem,
    partitioner: Partitioner,
) -> Result<TorchrecResult, TorchrecError> {
    problem.setting.check()?;
    let room = Room {
        tables: &problem.tables,
        topology: &problem.setting.topology,
        bytes_per_rank: problem.bytes_for_tables()?,
    };
    let space = list_options(problem)?;
    let mut best: Option<TorchrecResult> = None;
    let (mut proposals, mut plans, mut last) = (0, 0, None);
    for_each_proposal(&space, |choice| {
        let options: Vec<&ShardingOption> = space
            .iter()
            .zip(choice)
            .map(|(options, &position)| &options[usize::from(position)])
            .collect();
        proposals += 1;
        let placed = match partitioner {
            Partitioner::GreedyPerf => partition(&options, PlacementOrder::LargestMemory, room),
            Partitioner::MemoryBalanced => partition_balanced(&options, room),
        };
        match placed {
            Ok(ranks) => {
                plans += 1;
                let rating_ms = rate(&options, &ranks, room.topology.ranks);
                if best.as_ref().is_none_or(|best| rating_ms < best.rating_ms) {
                    let options = options.into_iter().cloned().collect();
                    best = Some(TorchrecResult { options, ranks, rating_ms, proposals, plans });
                }
            }
            Err(unplaced) => last = Some(unplaced),
        }
    });
    match (best, last) {
        (Some(best), _) => Ok(TorchrecResult { proposals, plans, ..best }),
        (None, Some(last)) => Err(TorchrecError::NoPlan { proposals, last }),
        (None, None) => Ok(TorchrecResult {
            options: Vec::new(),
            ranks: Vec::new(),
            rating_ms: 0.0,
            proposals,
            plans,
        }),
    }
}

/// Places a proposal by time, then searches for the least memory per rank with which a plan is
/// hardly slower.
fn partition_balanced(options: &[&ShardingOption], room: Room<'_>) -> Result<Assignment, Unplaced> {
    let order = PlacementOrder::LongestTime;
    let mut best = partition(options, order, room)?;
    // TorchRec balances GPU memory only.
    if room.topology.device == PlannedDevice::Cpu {
        return Ok(best);
    }
    let rating = rate(options, &best, room.topology.ranks);
    let mut used = vec![0; room.topology.ranks as usize];
    for (option, ranks) in options.iter().zip(&best) {
        for (shard, &rank) in option.shards.iter().zip(ranks) {
            used[rank as usize] += shard.bytes;
        }
    }
    let mean = used.iter().sum::<u64>() / u64::from(room.topology.ranks);
    let largest_shard = options.iter().map(|option| option.largest_bytes()).max().unwrap_or(0);
    let mut least = mean.max(largest_shard);
    let mut most = used.into_iter().max().unwrap_or(0);
    for _ in 0..MOST_BALANCED_PLANS {
        if least + BALANCE_BYTES >= most {
            break;
        }
        let bytes_per_rank = least.midpoint(most);
        let plan = partition(options, order, Room { bytes_per_rank, ..room });
        match plan {
            Ok(plan)
                if rate(options, &plan, room.topology.ranks)
                    <= rating * (1.0 + BALANCE_TOLERANCE) =>
            {
                (best, most) = (plan, bytes_per_rank);
            }
            _ => least = bytes_per_rank,
        }
    }
    Ok(best)
}
