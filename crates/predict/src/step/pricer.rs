//! Prices a step again after a tile moved to another rank, for searches over sharding plans. A move
//! reprices only the two ranks involved, with the same result as pricing the whole step.

use schema::{HardwareSpec, Rank, RowScope};
use serde::Serialize;

use super::dense::{self, BottomMlp, DensePart};
use super::exchange::Peers;
use super::memory::{Memory, MemoryTerms, max_batch_size};
use super::{Conditions, RankPrice, RowUpdates, Stage, StepDomain, StepPrice};
use crate::Error;
use crate::workload::Workload;
use kernel_model::Estimate;
use kernel_model::exchanges::RankExchange;
use kernel_model::formula_kernels::moved;
use kernel_model::rank_load::{BACKWARD_LAUNCHES, FORWARD_LAUNCHES, RankLoad, TileTerms};

/// Bytes of an id in exchanges between ranks, followed by the bytes of a bag length and of a value
/// of a row.
const ID: f64 = 8.0;
const LENGTH: f64 = 4.0;
const VALUE: f64 = 4.0;
/// Terms of a row that ranks exchange where its columns are split.
const TERMS: f64 = 2.0;

/// Lowest and highest factor on the host's time, which hosts and versions of PyTorch change.
const HOST: (f64, f64) = (0.7, 1.4);

/// Marks the end of a rank's linked list of tiles.
const NONE: u32 = u32::MAX;

/// Time and peak memory of a step under one sharding plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepCost {
    pub step: Estimate,
    /// Memory of the rank that uses most.
    pub peak_bytes: u64,
    /// Whether every rank has at least `peak_bytes` of memory.
    pub fits: bool,
}

/// Prices a step again after a tile moved to another rank, for searches over sharding plans. After
/// a move, only the ranks between which the tile moved are priced again.
#[derive(Clone, Debug)]
pub struct StepPricer {
    device: HardwareSpec,
    peers: Peers,
    batch: usize,
    samples: Vec<usize>,
    tiles: Vec<TileTerms>,
    /// Rank that holds each tile, indexed by position in the plan.
    owner: Vec<u32>,
    /// Linked lists of the tiles of each rank, in ascending order. `first` is indexed by rank and
    /// `next` by tile.
    first: Vec<u32>,
    next: Vec<u32>,
    loads: Vec<RankLoad>,
    /// Total memory of each rank, in bytes.
    bytes: Vec<u64>,
    sizes: MemoryTerms,
    dense: DensePart,
    /// Bytes of a pooled value or of its gradient in messages.
    value_bytes: f64,
    /// Width of the bottom MLP's output, if rank 0 computes it for all ranks.
    bottom_width: f64,
    /// For each tile, the host that adds up its partial sums.
    reduced_on: Vec<Option<usize>>,
    /// For each rank, the columns whose partial sums its host adds up.
    reduced_width: Vec<f64>,
    /// Whether ranks exchange terms of rows whose columns are split.
    has_terms: bool,
    row_updates: RowUpdates,
    launch_ns: f64,
    /// The tile that moved last, with its previous rank.
    last: Option<(usize, u32)>,
}

impl StepPricer {
    /// Prices a workload under its plan, and prepares the prices for moves of tiles.
    ///
    /// # Errors
    /// [`Error::Workload`] for a workload that the trainer cannot run, and for more ranks than the
    /// topology has. [`Error::Hardware`] for products in a format that the device lacks.
    pub fn new(workload: Workload<'_>, conditions: Conditions<'_>) -> Result<Self, Error> {
        workload.check()?;
        let (ranks, topology) = (workload.ranks(), conditions.topology);
        if ranks as u64 > topology.ranks() {
            let expected = format!("at most the {} ranks of the topology", topology.ranks());
            return Err(Error::Workload { expected, got: format!("a plan of {ranks}") });
        }
        let samples: Vec<usize> = (0..ranks).map(|rank| workload.samples(rank)).collect();
        let peers = Peers::new(topology, samples.clone());
        let rule = workload.config.optimizer.sparse.kind;
        let described = workload.tiles();
        let mut tiles: Vec<TileTerms> = Vec::with_capacity(described.len());
        for (at, tile) in described.iter().enumerate() {
            let alike = at.checked_sub(1).map(|before| (&described[before], &tiles[before]));
            tiles.push(TileTerms::new(tile, rule, alike));
        }
        let most = samples.iter().copied().max().unwrap_or(0);
        let owner: Vec<u32> = described.iter().map(|tile| tile.rank as u32).collect();
        // Only plans that know their hosts add up partial sums on them. Replicas follow the tiles.
        let mut reduced_on = workload.plan.hosts_that_reduce();
        if workload.plan.hosts().host_count() < 2 {
            reduced_on.fill(None);
        }
        reduced_on.resize(owner.len(), None);
        let is_first = conditions.bottom_mlp == BottomMlp::FirstRank && ranks > 1;
        let bottom_width = if is_first { workload.config.model.dense_width() } else { 0 };
        let mut pricer = Self {
            device: topology.device.clone(),
            batch: workload.config.training.batch_size,
            samples,
            tiles,
            first: vec![NONE; ranks],
            next: vec![NONE; owner.len()],
            loads: vec![RankLoad::default(); ranks],
            bytes: vec![0; ranks],
            sizes: MemoryTerms::new(workload, conditions.format),
            dense: dense::price(workload, most, conditions, &peers).map_err(Error::Hardware)?,
            peers,
            value_bytes: conditions.format.bytes() as f64,
            bottom_width: bottom_width as f64,
            reduced_on,
            reduced_width: vec![0.0; ranks],
            has_terms: RowScope::exchanges_terms(&workload.config.optimizer, workload.plan),
            owner: Vec::new(),
            row_updates: conditions.row_updates,
            launch_ns: conditions.launch_ns,
            last: None,
        };
        // In reverse order, each tile goes to the front of its list, so no list is searched.
        for tile in (0..owner.len()).rev() {
            pricer.link(tile as u32, owner[tile]);
        }
        pricer.owner = owner;
        (0..ranks as u32).for_each(|rank| pricer.load(rank));
        Ok(pricer)
    }

    /// Moves a tile, given by its position in the plan, to another rank. Returns the new cost of
    /// the step.
    ///
    /// # Cost
    /// One pass over the tiles of the two ranks, and passes over all ranks and over the stages.
    /// # Panics
    /// Panics if the tile or the rank does not exist.
    pub fn move_tile(&mut self, tile: usize, to: Rank) -> StepCost {
        assert!(to.index() < self.loads.len(), "rank {to} of {}", self.loads.len());
        let from = std::mem::replace(&mut self.owner[tile], to.0);
        self.last = Some((tile, from));
        self.unlink(tile as u32, from);
        self.link(tile as u32, to.0);
        self.load(from);
        self.load(to.0);
        self.cost()
    }

    /// Reverts the last move and returns the cost. A second call in a row has no effect.
    pub fn undo(&mut self) -> StepCost {
        if let Some((tile, from)) = self.last.take() {
            self.move_tile(tile, Rank(from));
            self.last = None;
        }
        self.cost()
    }

    /// Returns the rank that currently holds a tile.
    ///
    /// # Panics
    /// Panics if the tile does not exist.
    #[must_use]
    pub fn rank_of(&self, tile: usize) -> Rank {
        Rank(self.owner[tile])
    }

    /// Returns the current load of each rank.
    #[must_use]
    pub fn loads(&self) -> &[RankLoad] {
        &self.loads
    }

    /// Returns the time and memory of the step under the current plan.
    #[must_use]
    pub fn cost(&self) -> StepCost {
        let on_device = self.simulate(|_, _| {});
        let host = Estimate::within(self.launch_ns * f64::from(self.launches()), HOST);
        let peak_bytes = self.bytes.iter().copied().max().unwrap_or(0);
        let fits = peak_bytes <= self.device.memory_bytes;
        StepCost { step: on_device.max(host), peak_bytes, fits }
    }

    /// Returns the largest batch that fits under the current plan, or `None` if not even one sample
    /// fits.
    #[must_use]
    pub fn max_batch_size(&self) -> Option<usize> {
        max_batch_size(&self.sizes, &self.loads, self.batch, self.device.memory_bytes)
    }

    /// Adds a tile to the list of a rank, in ascending order.
    fn link(&mut self, tile: u32, rank: u32) {
        let (mut before, mut after) = (NONE, self.first[rank as usize]);
        while after < tile {
            (before, after) = (after, self.next[after as usize]);
        }
        self.next[tile as usize] = after;
        match before {
            NONE => self.first[rank as usize] = tile,
            before => self.next[before as usize] = tile,
        }
    }

    /// Removes a tile from the list of a rank.
    fn unlink(&mut self, tile: u32, rank: u32) {
        let after = self.next[tile as usize];
        let mut before = self.first[rank as usize];
        if before == tile {
            self.first[rank as usize] = after;
            return;
        }
        while self.next[before as usize] != tile {
            before = self.next[before as usize];
        }
        self.next[before as usize] = after;
    }

    fn load(&mut self, rank: u32) {
        let known = |tile: u32| (tile != NONE).then_some(tile as usize);
        let first = known(self.first[rank as usize]);
        let held = std::iter::successors(first, |tile| known(self.next[*tile]));
        let rank = rank as usize;
        let host = Some(self.peers.host(rank));
        // A tile that moved to another host is no longer part of the sum of its host.
        let reduced = held.clone().filter(|tile| self.reduced_on[*tile] == host);
        self.reduced_width[rank] = reduced.map(|tile| self.tiles[tile].width()).sum();
        self.loads[rank] = RankLoad::from_tiles(held.map(|tile| &self.tiles[tile]), &self.device);
        self.bytes[rank] = self.memory(rank).total();
    }

    fn memory(&self, rank: usize) -> Memory {
        self.sizes.memory(&self.loads[rank], self.samples[rank], self.batch, self.batch)
    }

    /// Simulates the step. `added` receives the time that each stage adds to it.
    fn simulate(&self, added: impl FnMut(schema::Stage, Estimate)) -> Estimate {
        use schema::Stage as Action;
        let batch = self.batch.max(1) as f64;
        let ids = self.peers.to_samples(|rank| {
            let load = &self.loads[rank];
            (ID * load.exchanged_uses + LENGTH * load.exchanged_bags) / batch
        });
        let plain = self.peers.to_samples(|rank| {
            let bottom = if rank == 0 { self.bottom_width } else { 0.0 };
            self.value_bytes * (self.loads[rank].width - self.reduced_width[rank] + bottom)
        });
        let by_host = |within: RankExchange| {
            self.peers.reduced_by_host(|rank| self.value_bytes * self.reduced_width[rank], within)
        };
        let [forward, backward] = self.dense.bottom;
        let slowest = |time: &dyn Fn(&RankLoad) -> Estimate| {
            self.loads.iter().map(time).fold(Estimate::default(), Estimate::max)
        };
        let lookup = slowest(&|load| self.lookup(load)).max(forward);
        let update = slowest(&|load| self.update(load)).max(backward);
        let pooled = plain.plus(by_host(RankExchange::ReduceScatter));
        let gradients = plain.plus(by_host(RankExchange::AllGather)).plus(self.replica_sums());
        let terms = self.row_terms();
        let time = |stage: Action| match stage {
            Action::InputDistribution => Some(ids),
            Action::Lookup => Some(lookup),
            Action::PooledExchange => Some(pooled),
            Action::GradientExchange => Some(gradients),
            Action::RowTerms => Some(terms),
            Action::EmbeddingUpdate => Some(update),
            _ => None,
        };
        self.dense.timeline.simulate(time, added)
    }

    /// Returns the time that each stage adds to the step.
    fn stages(&self) -> [Estimate; 6] {
        let mut stages = [Estimate::default(); 6];
        self.simulate(|stage, time| {
            let stage = &mut stages[Stage::from_action(stage) as usize];
            *stage = stage.plus(time);
        });
        // If all stages take longer, the stage beside an exchange may hide more of it.
        stages.map(|Estimate { mean_ns, low_ns, high_ns }| Estimate {
            mean_ns,
            low_ns: low_ns.min(mean_ns).min(high_ns),
            high_ns: high_ns.max(mean_ns).max(low_ns),
        })
    }

    /// Returns the number of values that a rank's lookups write.
    fn pooled_values(&self, load: &RankLoad) -> f64 {
        load.width * self.batch as f64 + load.replica_pooled
    }

    /// Returns the time of a rank's lookups, which write f32. A kernel rounds pooled vectors for
    /// products of 16 bits.
    fn lookup(&self, load: &RankLoad) -> Estimate {
        load.forward.plus(self.converted(load))
    }

    /// Returns the time of a rank's row updates. A kernel widens gradients of 16 bits, and another
    /// one scales them if the framework's updates do not.
    fn update(&self, load: &RankLoad) -> Estimate {
        let scaled = match self.row_updates {
            RowUpdates::Fused => Estimate::default(),
            RowUpdates::Scatter => self.moved(2.0 * VALUE * self.pooled_values(load)),
        };
        load.backward.plus(self.converted(load)).plus(scaled)
    }

    /// Returns the time in which a kernel converts a rank's pooled vectors between f32 and the
    /// format of the products.
    fn converted(&self, load: &RankLoad) -> Estimate {
        if self.value_bytes >= VALUE {
            return Estimate::default();
        }
        self.moved((VALUE + self.value_bytes) * self.pooled_values(load))
    }

    fn moved(&self, bytes: f64) -> Estimate {
        if bytes > 0.0 { moved(bytes, &self.device) } else { Estimate::default() }
    }

    fn sum_of_most(&self, values: impl Fn(&RankLoad) -> f64) -> Estimate {
        let most = VALUE * self.loads.iter().map(values).fold(0.0, f64::max);
        if most > 0.0 { self.peers.sum(most) } else { Estimate::default() }
    }

    /// Returns the time of the sums over ranks of the gradients of replicated tables.
    fn replica_sums(&self) -> Estimate {
        self.sum_of_most(|load| load.replica_values)
    }

    /// Returns the time of the sums over ranks of the terms of rows whose columns are split.
    fn row_terms(&self) -> Estimate {
        self.sum_of_most(|load| if self.has_terms { TERMS * load.tile_rows } else { 0.0 })
    }

    fn launches(&self) -> u32 {
        let exchanges = if self.loads.len() > 1 { 4 } else { 0 };
        self.dense.launches + FORWARD_LAUNCHES + BACKWARD_LAUNCHES + exchanges
    }

    /// Converts the pricer to the full price, with all ranks and operations.
    #[must_use]
    pub fn into_price(self) -> StepPrice {
        let (cost, stages, launches) = (self.cost(), self.stages(), self.launches());
        let rank = |rank: usize| {
            let mut own = stages;
            own[Stage::EmbeddingForward as usize] = self.lookup(&self.loads[rank]);
            own[Stage::EmbeddingBackward as usize] = self.update(&self.loads[rank]);
            if rank == 0 && self.bottom_width > 0.0 {
                let [forward, backward] = self.dense.bottom;
                own[Stage::EmbeddingForward as usize] = forward;
                own[Stage::EmbeddingBackward as usize] = backward;
            }
            let wait = |(all, own): (&Estimate, &Estimate)| all.mean_ns - own.mean_ns;
            let wait_ns = stages.iter().zip(&own).map(wait).sum();
            RankPrice { rank: rank as u32, stages: own, wait_ns, memory: self.memory(rank) }
        };
        let ranks = (0..self.loads.len()).map(rank).collect();
        let ops = self.dense.ops.iter().map(|op| (op.basis, op.time.mean_ns));
        let domain = StepDomain::from_ops(ops, cost.step.mean_ns);
        StepPrice {
            cost,
            stages,
            ranks,
            launches,
            samples_per_s: 1e9 * self.batch as f64 / cost.step.mean_ns.max(1.0),
            domain,
            ops: self.dense.ops,
        }
    }
}
