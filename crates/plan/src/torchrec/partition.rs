//! TorchRec's greedy partitioner: gives the shards of a proposal their ranks.

use std::ops::Range;

use super::error::Unplaced;
use super::option::{Shard, ShardingOption};
use super::perf::ShardPerf;
use super::problem::TorchrecTable;
use super::sharding::ShardingType;
use super::topology::TorchrecTopology;

/// The rank of each shard of each option.
pub type Assignment = Vec<Vec<u32>>;

/// The tables that are placed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementOrder {
    LargestMemory,
    LongestTime,
}

/// Where a proposal is to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    pub tables: &'a [TorchrecTable],
    pub topology: &'a TorchrecTopology,
    /// Memory of each rank, in bytes.
    pub bytes_per_rank: u64,
}

/// Places the shards of a proposal. Replicated and row-wise tables come first. Then tables with the
/// most memory or time come first: shards of a table go to the rank, or the host, with the least
/// time so far that has enough memory.
///
/// # Errors
/// [`Unplaced`] names a shard that fits on no rank.
pub fn partition(
    proposal: &[&ShardingOption],
    order: PlacementOrder,
    room: Room<'_>,
) -> Result<Assignment, Unplaced> {
    let mut ranks = Ranks::new(room);
    let mut assignment = vec![Vec::new(); proposal.len()];
    let is_uniform = |option: &ShardingOption| {
        matches!(option.sharding, ShardingType::DataParallel | ShardingType::RowWise)
    };
    let all = 0..room.topology.ranks;
    for (option, assigned) in proposal.iter().zip(&mut assignment) {
        if is_uniform(option) {
            *assigned = ranks.place_on(option, all.clone())?;
        }
    }
    let mut rest: Vec<usize> = (0..proposal.len()).filter(|&i| !is_uniform(proposal[i])).collect();
    // Stable sorts keep the order of the model between equal tables, as TorchRec's do.
    match order {
        PlacementOrder::LargestMemory => {
            rest.sort_by_cached_key(|&i| std::cmp::Reverse(proposal[i].total_bytes()));
        }
        PlacementOrder::LongestTime => {
            rest.sort_by(|&a, &b| proposal[b].total_perf().total_cmp(&proposal[a].total_perf()));
        }
    }
    for i in rest {
        assignment[i] = match proposal[i].sharding {
            ShardingType::TableRowWise | ShardingType::TableColumnWise => {
                ranks.place_on_a_host(proposal[i])?
            }
            ShardingType::GridShard => ranks.place_on_hosts(proposal[i])?,
            _ => ranks.place_on_least_loaded(proposal[i], all.clone())?,
        };
    }
    Ok(assignment)
}

/// Returns the largest time of a rank in milliseconds, which is TorchRec's rating of a plan.
#[must_use]
pub fn rate(proposal: &[&ShardingOption], assignment: &Assignment, ranks: u32) -> f64 {
    let mut times = vec![0.0; ranks as usize];
    for (option, assigned) in proposal.iter().zip(assignment) {
        for (shard, &rank) in option.shards.iter().zip(assigned) {
            times[rank as usize] += shard.perf.total();
        }
    }
    times.into_iter().fold(0.0, f64::max)
}

/// The memory and time of a rank.
#[derive(Clone, Copy, Debug)]
struct RankState {
    free: u64,
    perf: ShardPerf,
    /// The total of `perf`, which is read for many ranks per shard.
    total: f64,
}

impl RankState {
    fn add(&mut self, shard: &Shard) {
        self.free -= shard.bytes;
        self.perf.add(&shard.perf);
        self.total = self.perf.total();
    }
}

/// The state of all ranks while shards are placed.
struct Ranks<'a> {
    room: Room<'a>,
    states: Vec<RankState>,
}

impl<'a> Ranks<'a> {
    fn new(room: Room<'a>) -> Self {
        let empty = RankState { free: room.bytes_per_rank, perf: ShardPerf::default(), total: 0.0 };
        Self { room, states: vec![empty; room.topology.ranks as usize] }
    }

    fn unplaced(
        &self,
        option: &ShardingOption,
        shard: &Shard,
        ranks: impl Iterator<Item = u32>,
    ) -> Unplaced {
        Unplaced {
            table: self.room.tables[option.table].name.clone(),
            sharding: option.sharding.name(),
            bytes: shard.bytes,
            free: ranks.map(|rank| self.states[rank as usize].free).max().unwrap_or(0),
        }
    }

    /// Places one shard on each of `ranks`, in order.
    fn place_on(
        &mut self,
        option: &ShardingOption,
        ranks: impl Iterator<Item = u32> + Clone,
    ) -> Result<Vec<u32>, Unplaced> {
        for (shard, rank) in option.shards.iter().zip(ranks.clone()) {
            if shard.bytes > self.states[rank as usize].free {
                return Err(self.unplaced(option, shard, std::iter::once(rank)));
            }
            self.states[rank as usize].add(shard);
        }
        Ok(ranks.collect())
    }

    /// Places each shard on the one of `ranks` with the least time that has enough memory. The
    /// first ranks of hosts win between equal times.
    fn place_on_least_loaded(
        &mut self,
        option: &ShardingOption,
        ranks: Range<u32>,
    ) -> Result<Vec<u32>, Unplaced> {
        let per_host = self.room.topology.ranks_per_host;
        let mut assigned = Vec::with_capacity(option.shards.len());
        for shard in &option.shards {
            let states = &self.states;
            let total = |rank: u32| states[rank as usize].total;
            let rank = ranks
                .clone()
                .filter(|&rank| shard.bytes <= states[rank as usize].free)
                .min_by(|&a, &b| {
                    let by_place = || (a % per_host, a).cmp(&(b % per_host, b));
                    total(a).total_cmp(&total(b)).then_with(by_place)
                })
                .ok_or_else(|| self.unplaced(option, shard, ranks.clone()))?;
            self.states[rank as usize].add(shard);
            assigned.push(rank);
        }
        Ok(assigned)
    }

    /// Returns the ranks of each host, beginning with the host with the least time.
    fn hosts_by_load(&self) -> Vec<Range<u32>> {
        let per_host = self.room.topology.ranks_per_host;
        let load = |ranks: &[RankState]| ranks.iter().fold(0.0, |sum, rank| sum + rank.total);
        let loads = self.states.chunks(per_host as usize).map(load);
        let mut hosts: Vec<(f64, u32)> = loads.zip(0..).collect();
        hosts.sort_by(|a, b| a.0.total_cmp(&b.0));
        hosts.iter().map(|&(_, host)| host * per_host..(host + 1) * per_host).collect()
    }

    /// Places a table on the first host, by load, on which it fits.
    fn place_on_a_host(&mut self, option: &ShardingOption) -> Result<Vec<u32>, Unplaced> {
        let bytes = u128::from(option.total_bytes());
        let mut last = None;
        for host in self.hosts_by_load() {
            let states = &self.states[host.start as usize..host.end as usize];
            if bytes > states.iter().map(|state| u128::from(state.free)).sum::<u128>() {
                last = last.or_else(|| Some(self.unplaced(option, &option.shards[0], host)));
                continue;
            }
            let placed = self.try_on(host.clone(), |ranks| match option.sharding {
                ShardingType::TableRowWise => ranks.place_on(option, host.clone()),
                _ => ranks.place_on_least_loaded(option, host.clone()),
            });
            match placed {
                Ok(assigned) => return Ok(assigned),
                Err(unplaced) => last = Some(unplaced),
            }
        }
        Err(last.unwrap_or_else(|| self.unplaced(option, &option.shards[0], std::iter::empty())))
    }

    /// Places the column parts of a table on neighboring hosts in the order of their loads. Hosts
    /// repeat if there are more parts than hosts.
    fn place_on_hosts(&mut self, option: &ShardingOption) -> Result<Vec<u32>, Unplaced> {
        let hosts = self.hosts_by_load();
        let parts = option.shards.len() / self.room.topology.ranks_per_host as usize;
        let mut last = None;
        for first in 0..=hosts.len().saturating_sub(parts) {
            let chosen = hosts.iter().cycle().skip(first).take(parts).cloned().flatten();
            match self.try_on(chosen.clone(), |ranks| ranks.place_on(option, chosen)) {
                Ok(assigned) => return Ok(assigned),
                Err(unplaced) => last = Some(unplaced),
            }
        }
        Err(last.unwrap_or_else(|| self.unplaced(option, &option.shards[0], std::iter::empty())))
    }

    /// Places shards on `ranks`, and restores their state if a shard does not fit.
    fn try_on(
        &mut self,
        ranks: impl Iterator<Item = u32> + Clone,
        place: impl FnOnce(&mut Self) -> Result<Vec<u32>, Unplaced>,
    ) -> Result<Vec<u32>, Unplaced> {
        let before: Vec<RankState> = ranks.clone().map(|rank| self.states[rank as usize]).collect();
        let placed = place(self);
        if placed.is_err() {
            for (rank, state) in ranks.zip(before) {
                self.states[rank as usize] = state;
            }
        }
        placed
    }
}
