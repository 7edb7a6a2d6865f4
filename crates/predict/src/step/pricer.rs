//! Prices a step again after a table was placed elsewhere, for searches over sharding plans. A
//! change reprices only the ranks whose tiles differ, with the same result as pricing the whole
//! step.

use schema::{HardwareSpec, Interaction, Rank, TableId};
use serde::Serialize;

use super::dense::{self, BottomMlp, DenseKernels, DensePart};
use super::exchange::{Moved, Peers};
use super::memory::{Memory, MemoryTerms, max_batch_size};
use super::placed_tiles::{PlacedTiles, TableSharding, TileSums};
use super::timeline::{RankTimes, TileTimes, TimedAction};
use super::{Conditions, RankPrice, RowUpdates, STAGES, Stage, StepDomain, StepPrice};
use crate::Error;
use crate::workload::Workload;
use kernel_model::Estimate;
use kernel_model::exchanges::RankExchange;
use kernel_model::formula_kernels::moved;
use kernel_model::host_costs::HostCosts;
use kernel_model::rank_load::{BACKWARD_LAUNCHES, FORWARD_LAUNCHES, RankLoad, RowRates};

/// Bytes of an id in exchanges between ranks, followed by the bytes of a bag length and of a value
/// of a row.
const ID: f64 = 8.0;
const LENGTH: f64 = 4.0;
const VALUE: f64 = 4.0;

/// Number of times that a CPU reads or writes each value of a sum over ranks: twice for the copy
/// into a message, twice for the copy out of it, and about twice for the addition.
const SUM_PASSES: f64 = 6.0;

/// Number of times that a GPU reads or writes each value of a sum over ranks, without those of the
/// collective: twice for the copy into its vector, and twice for the copy out of it.
const COPY_PASSES: f64 = 4.0;

/// Lowest and highest factor on the host's time, which hosts and versions of PyTorch change.
const HOST: (f64, f64) = (0.7, 1.4);

/// Time and peak memory of a step under one sharding plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepCost {
    pub step: Estimate,
    /// Mean time of the step in nanoseconds if the host took no time.
    pub device_ns: f64,
    /// Memory of the rank that uses most.
    pub peak_bytes: u64,
    /// Whether every rank has at least `peak_bytes` of memory.
    pub fits: bool,
}

/// Prices a step again after the tiles of a table changed, for searches over sharding plans. After
/// a change, only the ranks whose tiles differ are priced again, and the result is that of pricing
/// the whole step.
#[derive(Clone, Debug)]
pub struct StepPricer<'a> {
    device: HardwareSpec,
    /// Costs of a CPU, which replace the rates of the device.
    host: Option<HostCosts>,
    peers: Peers,
    batch: usize,
    samples: Vec<usize>,
    tiles: PlacedTiles<'a>,
    loads: Vec<RankLoad>,
    totals: Vec<RankTotals>,
    times: Vec<RankTimes>,
    cost: StepCost,
    sizes: MemoryTerms,
    dense: DensePart,
    /// Bytes of a pooled value or of its gradient in messages.
    value_bytes: f64,
    /// Width of the bottom MLP's output, if rank 0 computes it for all ranks.
    bottom_width: f64,
    row_updates: RowUpdates,
    launch_ns: f64,
    /// Cost before the last change, and the loads of the ranks that it touched.
    cost_before: StepCost,
    before: Vec<RankBefore>,
    /// Ranks that a change touches. The list is kept for its memory.
    touched: Vec<u32>,
}

/// Values of a rank that its load does not contain.
#[derive(Clone, Copy, Debug, Default)]
struct RankTotals {
    sums: TileSums,
    /// Total memory in bytes.
    bytes: u64,
}

/// A rank before a change of its tiles.
#[derive(Clone, Copy, Debug)]
struct RankBefore {
    rank: u32,
    load: RankLoad,
    totals: RankTotals,
    times: RankTimes,
}

impl<'a> StepPricer<'a> {
    /// Prices a workload under its plan, and prepares the prices for changes of the plan.
    ///
    /// # Errors
    /// [`Error::Workload`] for a workload that the trainer cannot run, and for more ranks than the
    /// topology has. [`Error::Hardware`] for products in a format that the device lacks.
    pub fn new(workload: Workload<'a>, conditions: Conditions<'_>) -> Result<Self, Error> {
        workload.check()?;
        let (ranks, topology) = (workload.ranks(), conditions.topology);
        if ranks as u64 > topology.ranks() {
            let expected = format!("at most the {} ranks of the topology", topology.ranks());
            return Err(Error::Workload { expected, got: format!("a plan of {ranks}") });
        }
        let interaction = &workload.config.model.interaction;
        let is_fused = conditions.kernels == DenseKernels::FusedInteraction;
        if is_fused && !matches!(interaction, Interaction::Dot { .. }) {
            let expected = "a model with a dot interaction, which one kernel computes".to_owned();
            return Err(Error::Workload {
                expected,
                got: format!("the interaction {interaction:?}"),
            });
        }
        let samples: Vec<usize> = (0..ranks).map(|rank| workload.samples(rank)).collect();
        let host = conditions.host.cloned();
        let peers = Peers::new(topology, host.as_ref(), samples.clone());
        let most = samples.iter().copied().max().unwrap_or(0);
        let is_first = conditions.bottom_mlp == BottomMlp::FirstRank && ranks > 1;
        let bottom_width = if is_first { workload.config.model.dense_width() } else { 0 };
        let per_host = topology.ranks_per_host.max(1) as usize;
        let nothing =
            StepCost { step: Estimate::default(), device_ns: 0.0, peak_bytes: 0, fits: true };
        let mut pricer = Self {
            device: topology.device.clone(),
            host,
            batch: workload.config.training.batch_size,
            samples,
            tiles: PlacedTiles::new(workload, per_host),
            loads: vec![RankLoad::default(); ranks],
            totals: vec![RankTotals::default(); ranks],
            times: vec![RankTimes::default(); ranks],
            cost: nothing,
            sizes: MemoryTerms::new(workload, conditions.format),
            dense: dense::price(workload, most, conditions, &peers).map_err(Error::Hardware)?,
            peers,
            value_bytes: conditions.format.bytes() as f64,
            bottom_width: bottom_width as f64,
            row_updates: conditions.row_updates,
            launch_ns: conditions.launch_ns,
            cost_before: nothing,
            before: Vec::with_capacity(ranks),
            touched: (0..ranks as u32).collect(),
        };
        pricer.reprice();
        pricer.before.clear();
        Ok(pricer)
    }

    /// Replaces the tiles of a table. Returns the new cost of the step.
    ///
    /// # Cost
    /// One pass over the tiles of each rank whose tiles differ, and passes over all ranks and over
    /// the stages. A tile is described when its shape occurs for the first time.
    /// # Panics
    /// Panics if the tiles do not cover the table, or if a rank does not exist.
    pub fn place_table(&mut self, table: TableId, sharding: TableSharding<'_>) -> StepCost {
        self.tiles.place(table, sharding, &mut self.touched);
        self.reprice()
    }

    /// Replaces the tiles of several tables, and prices the step once. Returns its new cost. There
    /// is nothing to undo after it.
    ///
    /// # Cost
    /// One pass over the tiles of all ranks.
    /// # Panics
    /// Panics if the tiles do not cover a table, or if a rank does not exist.
    pub fn place_tables(&mut self, shardings: &[(TableId, TableSharding<'_>)]) -> StepCost {
        self.tiles.place_several(shardings);
        self.touched.extend(0..self.loads.len() as u32);
        self.reprice()
    }

    /// Moves a tile, given by its position among the tiles of its table, to another rank. Returns
    /// the new cost of the step. A move allocates nothing.
    ///
    /// # Cost
    /// One pass over the tiles of the two ranks, and passes over all ranks and over the stages.
    /// # Panics
    /// Panics if the tile or the rank does not exist, or if the table is replicated.
    pub fn move_tile(&mut self, table: TableId, part: usize, to: Rank) -> StepCost {
        self.tiles.move_tile(table, part, to, &mut self.touched);
        self.reprice()
    }

    /// Reverts the last change and returns the cost. A second call in a row has no effect.
    pub fn undo(&mut self) -> StepCost {
        self.tiles.undo(&mut self.touched);
        if !self.touched.is_empty() {
            self.touched.clear();
            for RankBefore { rank, load, totals, times } in self.before.drain(..) {
                let rank = rank as usize;
                (self.loads[rank], self.totals[rank], self.times[rank]) = (load, totals, times);
            }
            self.cost = self.cost_before;
        }
        self.cost
    }

    /// Returns the current load of each rank.
    #[must_use]
    pub fn loads(&self) -> &[RankLoad] {
        &self.loads
    }

    /// Returns the time and memory of the step under the current plan.
    #[must_use]
    pub fn cost(&self) -> StepCost {
        self.cost
    }

    /// Returns the tables of a rank's tiles in plan order, one entry per tile, then the replicated
    /// tables.
    ///
    /// # Panics
    /// Panics if the rank does not exist.
    pub fn tables_on(&self, rank: Rank) -> impl ExactSizeIterator<Item = TableId> {
        self.tiles.tables_on(rank.index())
    }

    /// Returns the bytes of memory that a rank uses.
    ///
    /// # Panics
    /// Panics if the rank does not exist.
    #[must_use]
    pub fn rank_bytes(&self, rank: Rank) -> u64 {
        self.totals[rank.index()].bytes
    }

    /// Returns the memory of a rank by purpose.
    ///
    /// # Panics
    /// Panics if the rank does not exist.
    #[must_use]
    pub fn rank_memory(&self, rank: Rank) -> Memory {
        self.memory(rank.index())
    }

    /// Prices the touched ranks and the step again.
    fn reprice(&mut self) -> StepCost {
        self.touched.sort_unstable();
        self.touched.dedup();
        self.before.clear();
        self.cost_before = self.cost;
        for at in 0..self.touched.len() {
            let number = self.touched[at];
            let rank = number as usize;
            let (load, totals, times) = (self.loads[rank], self.totals[rank], self.times[rank]);
            self.before.push(RankBefore { rank: number, load, totals, times });
            let rates = self.host.as_ref().map_or(RowRates::Gpu(&self.device), RowRates::Host);
            self.loads[rank] = RankLoad::from_tiles(self.tiles.terms_on(rank), rates);
            let bytes = self.memory(rank).total();
            self.totals[rank] = RankTotals { sums: self.tiles.sums(rank), bytes };
            self.times[rank] = self.rank_times(rank);
        }
        self.touched.clear();
        let on_device = self.simulate(&|_, time| time, |_, _| {});
        let host = Estimate::within(self.launch_ns * f64::from(self.launches()), HOST);
        let peak_bytes = self.totals.iter().map(|rank| rank.bytes).max().unwrap_or(0);
        let fits = peak_bytes <= self.device.memory_bytes;
        let (step, device_ns) = (on_device.max(host), on_device.mean_ns);
        self.cost = StepCost { step, device_ns, peak_bytes, fits };
        self.cost
    }

    /// Returns the largest batch that fits into `capacity` bytes of each rank under the current
    /// plan, or `None` if not even one sample fits.
    #[must_use]
    pub fn max_batch_size(&self, capacity: u64) -> Option<usize> {
        max_batch_size(&self.sizes, &self.loads, self.batch, capacity)
    }

    fn memory(&self, rank: usize) -> Memory {
        self.sizes.memory(&self.loads[rank], self.samples[rank], self.batch, self.batch)
    }

    /// Simulates the step. `changed` may replace the time of a stage, and `added` receives the time
    /// that each stage adds to the step.
    fn simulate(
        &self,
        changed: &impl Fn(schema::Stage, Estimate) -> Estimate,
        added: impl FnMut(schema::Stage, Estimate),
    ) -> Estimate {
        self.dense.timeline.simulate(&self.tile_times(), changed, added)
    }

    /// Returns the actions of the step in order, with their times on the slowest rank.
    #[must_use]
    pub fn timed_actions(&self) -> Vec<TimedAction> {
        let times = self.tile_times();
        let mut actions = self.dense.timeline.actions().to_vec();
        for action in &mut actions {
            action.time = times.time_of(action.stage).unwrap_or(action.time);
        }
        actions
    }

    /// Returns the times of the three exchanges of an input distribution: the sizes of messages,
    /// the lengths of bags, and the ids.
    #[must_use]
    pub fn input_rounds(&self) -> [Estimate; 3] {
        let batch = self.batch.max(1) as f64;
        // Each rank tells each other rank how many bags and how many ids it will send.
        let sizes = self.peers.to_samples(|_| 2.0 * ID * self.loads.len() as f64 / batch);
        let lengths =
            self.peers.to_samples(|rank| LENGTH * self.loads[rank].distributed.bags / batch);
        let ids = self.peers.to_samples(|rank| {
            ID * self.loads[rank].distributed.ids / batch + self.replica_list(rank)
        });
        [sizes, lengths, ids]
    }

    /// Returns the bytes in which a rank lists its rows of replicated tables, per sample of the
    /// receiver. Every other rank receives the whole list.
    fn replica_list(&self, rank: usize) -> f64 {
        self.loads[rank].replica_list_bytes / self.samples[rank].max(1) as f64
    }

    /// Computes the times of the stages that depend on tiles.
    fn tile_times(&self) -> TileTimes<'_> {
        let batch = self.batch.max(1) as f64;
        let ids = match self.host {
            // rowmill sends the lengths of bags, then the ids.
            Some(_) => {
                let [_, lengths, ids] = self.input_rounds();
                lengths.plus(ids)
            }
            None => self.peers.to_samples(|rank| {
                let load = &self.loads[rank];
                let ids = ID * load.distributed.ids + LENGTH * load.distributed.bags;
                ids / batch + self.replica_list(rank)
            }),
        };
        let plain = self.peers.to_samples(|rank| {
            let bottom = if rank == 0 { self.bottom_width } else { 0.0 };
            let reduced = self.totals[rank].sums.reduced_width;
            self.value_bytes * (self.loads[rank].width - reduced + bottom)
        });
        let by_host = |within: RankExchange| {
            let reduced = |rank: usize| self.totals[rank].sums.reduced_width;
            self.peers.reduced_by_host(|rank| self.value_bytes * reduced(rank), within)
        };
        TileTimes {
            ids,
            pooled: plain.plus(by_host(RankExchange::ReduceScatter)),
            gradients: plain.plus(by_host(RankExchange::AllGather)).plus(self.replica_sums()),
            terms: self.row_terms(),
            copies: self.sample_copies(),
            replicas: self.replica_gradients(),
            ranks: &self.times,
        }
    }

    /// Computes the times of a rank's own stages.
    fn rank_times(&self, rank: usize) -> RankTimes {
        let load = &self.loads[rank];
        let [forward, backward] = match rank {
            0 => self.dense.bottom,
            _ => [Estimate::default(); 2],
        };
        let mut times = RankTimes {
            lookup: self.lookup(load).max(forward),
            update: self.update(load).max(backward),
            lane: Estimate::default(),
        };
        // Vectors for other ranks are copied into messages behind the lookup, and gradients out of
        // messages before the update.
        let [sent, received] = self.message_copies(rank);
        times.lookup = times.lookup.plus(sent);
        times.update = times.update.plus(received);
        if let (Some(host), true) = (&self.host, self.loads.len() > 1) {
            times.lane = host
                .price_distribution(&load.distributed)
                .plus(host.price_distribution(&load.replica_ids));
        }
        times
    }

    /// Returns the times in which a rank copies vectors for other ranks into messages, and
    /// gradients out of messages.
    fn message_copies(&self, rank: usize) -> [Estimate; 2] {
        if self.loads.len() < 2 {
            return [Estimate::default(); 2];
        }
        let copied = |samples: usize| self.copied(self.loads[rank].width * samples as f64);
        [copied(self.batch - self.samples[rank]), copied(self.batch)]
    }

    /// Returns the time in which a rank copies its samples' vectors of all tiles out of messages.
    fn sample_copies(&self) -> Estimate {
        if self.host.is_none() || self.loads.len() < 2 {
            return Estimate::default();
        }
        let width: f64 = self.loads.iter().map(|load| load.width).sum();
        let samples = self.samples.iter().copied().max().unwrap_or(0);
        self.copied(width * samples as f64)
    }

    /// Returns the time in which a CPU copies values.
    fn copied(&self, values: f64) -> Estimate {
        let price = |host: &HostCosts| host.price_copy(2.0 * VALUE * values);
        self.host.as_ref().map_or_else(Estimate::default, price)
    }

    /// Returns the times for which a rank computes within its exchanges of pooled vectors and of
    /// gradients: it copies messages, and sums gradients of replicated tables. Waits are left out.
    ///
    /// # Panics
    /// Panics if the rank does not exist.
    #[must_use]
    pub fn exchange_copies(&self, rank: Rank) -> [Estimate; 2] {
        let [sent, received] = self.message_copies(rank.index());
        let copies = self.sample_copies();
        [sent.plus(copies), received.plus(copies).plus(self.replica_gradients())]
    }

    /// Returns the time by which each stage lengthens the step, in the order of [`Stage::ALL`].
    #[must_use]
    pub fn stages(&self) -> [Estimate; STAGES] {
        let mut stages = [Estimate::default(); STAGES];
        self.simulate(&|_, time| time, |stage, time| {
            let stage = &mut stages[Stage::from_action(stage) as usize];
            *stage = stage.plus(time);
        });
        let step_ns = self.simulate(&|_, time| time, |_, _| {}).mean_ns;
        // If all stages take longer, the stage beside an exchange may hide more of it. The highest
        // time is therefore at least the one by which this stage alone lengthens the step.
        for (at, Estimate { mean_ns, low_ns, high_ns }) in stages.iter_mut().enumerate() {
            let slow = |stage, time: Estimate| {
                let depends_on_tiles =
                    !matches!(Stage::from_action(stage), Stage::Dense | Stage::AllReduce);
                let is_slow = depends_on_tiles && Stage::from_action(stage) as usize == at;
                if is_slow { Estimate { mean_ns: time.high_ns, ..time } } else { time }
            };
            let longer_ns = self.simulate(&slow, |_, _| {}).mean_ns - step_ns;
            *low_ns = low_ns.min(*mean_ns).min(*high_ns);
            *high_ns = high_ns.max(*mean_ns + longer_ns.max(0.0)).max(*low_ns);
        }
        stages
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
        match &self.host {
            _ if bytes <= 0.0 => Estimate::default(),
            Some(host) => host.price_bytes(bytes),
            None => moved(bytes, &self.device),
        }
    }

    /// Returns the time of the sums over ranks of the gradients of replicated tables.
    fn replica_sums(&self) -> Estimate {
        let values = self.loads.iter().map(|load| load.replica_values).fold(0.0, f64::max);
        self.peers.sum(VALUE * values)
    }

    /// Returns the time for which a rank computes around the sums over ranks of the gradients of
    /// replicated tables. It sums the gradients of its own samples by row, copies them into a
    /// vector of the rows of all ranks, and copies the sums out.
    fn replica_gradients(&self) -> Estimate {
        let time = |load: &RankLoad| {
            let bytes = VALUE * load.replica_values;
            let copied = match &self.host {
                // The rank also adds up its part of the vector.
                Some(host) => host
                    .price_copy(SUM_PASSES * bytes)
                    .plus(host.price_summed_rows(load.replica_rows)),
                None => self.moved(COPY_PASSES * bytes),
            };
            load.replica_backward.plus(copied)
        };
        self.loads.iter().map(time).fold(Estimate::default(), Estimate::max)
    }

    /// Returns the time of the exchange of the terms of rows whose columns are split.
    fn row_terms(&self) -> Estimate {
        let all = self.totals.iter().map(|rank| rank.sums.row_terms);
        self.peers.between_pairs(all.fold(Moved::default(), Moved::max))
    }

    /// Returns the number of kernel launches of a rank, which does not depend on the plan.
    #[must_use]
    pub fn launches(&self) -> u32 {
        let exchanges = if self.loads.len() > 1 { 4 } else { 0 };
        self.dense.launches + FORWARD_LAUNCHES + BACKWARD_LAUNCHES + exchanges
    }

    /// Converts the pricer to the full price, with all ranks and operations.
    #[must_use]
    pub fn into_price(self) -> StepPrice {
        let (cost, stages, launches) = (self.cost, self.stages(), self.launches());
        let rank = |rank: usize| {
            let mut own = stages;
            // Copies into and out of messages belong to the exchanges.
            let [sent, received] = self.message_copies(rank);
            let RankTimes { lookup, update, .. } = self.times[rank];
            for (stage, copies) in
                [(Stage::PooledExchange, sent), (Stage::GradientExchange, received)]
            {
                own[stage as usize] = own[stage as usize].plus(copies);
            }
            own[Stage::Lookup as usize] = lookup.beyond(sent);
            own[Stage::EmbeddingUpdate as usize] = update.beyond(received);
            if rank == 0 && self.bottom_width > 0.0 {
                let [forward, backward] = self.dense.bottom;
                own[Stage::Lookup as usize] = forward;
                own[Stage::EmbeddingUpdate as usize] = backward;
            }
            let busy_ns: f64 = own.iter().map(|time| time.mean_ns).sum();
            let wait_ns = (cost.step.mean_ns - busy_ns).max(0.0);
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
