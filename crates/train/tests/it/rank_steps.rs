//! Trains steps on given batches with one thread per rank, over a transport that may fail.

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use comm::{
    Communicator, Deadline, InProcess, MessageHeader, Pool, RankMessage, Transport,
    TransportFailure,
};
use device::Cpu;
use device::buffer::Counting;
use schema::stage::Overlap;
use schema::{
    Batch, HostLayout, JobConfig, Optimizer, Schedule, ShardingPlan, StepGraph, TableConfig,
};
use train::model::RankParameters;
use train::profile::Profiler;
use train::{Error, Model, RankBatch, RankContext, RunStep};

use crate::ranks;
use crate::stub::model;

pub type Make = fn(&[TableConfig], u32) -> ShardingPlan;

/// Plans for any number of ranks. The last three place ranks on hosts.
pub const PLANS: [Make; 9] = [
    ShardingPlan::table_wise,
    ShardingPlan::row_wise,
    ShardingPlan::column_wise,
    ShardingPlan::mixed,
    ShardingPlan::replicate,
    crate::checkpoint::with_replicas,
    |tables, ranks| ShardingPlan::table_row_wise(tables, &two_hosts(ranks)),
    |tables, ranks| ShardingPlan::grid(tables, &two_hosts(ranks)),
    partly_by_host,
];

/// The number of [`PLANS`] that do not name hosts.
pub const PLANS_OF_ONE_HOST: usize = 6;

/// Splits the rows of every second table over the ranks of one host, and those of the others over
/// the ranks of all hosts.
pub fn partly_by_host(tables: &[TableConfig], ranks: u32) -> ShardingPlan {
    let hosts = two_hosts(ranks);
    let by_host = ShardingPlan::table_row_wise(tables, &hosts);
    let by_rank = ShardingPlan::row_wise(tables, ranks);
    let mut tiles = by_host.tiles().to_vec();
    tiles.retain(|tile| tile.table.0.is_multiple_of(2));
    tiles.extend(by_rank.tiles().iter().filter(|tile| tile.table.0 % 2 == 1).cloned());
    ShardingPlan::new(ranks, tiles, tables).unwrap().on_hosts(hosts)
}

/// Places each half of the ranks on a host, or all ranks if their number is odd.
pub fn two_hosts(ranks: u32) -> HostLayout {
    let ranks_per_host = if ranks.is_multiple_of(2) { ranks / 2 } else { ranks };
    HostLayout::with_ranks_per_host(ranks as usize, ranks_per_host).unwrap()
}

/// Returns each overlap alone, and all together.
pub fn overlapped() -> impl Iterator<Item = Schedule> {
    let alone = Overlap::ALL.map(|overlap| Schedule::SERIAL.with(overlap));
    alone.into_iter().chain([Schedule::PIPELINED])
}

/// What happens to a message that is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SendOutcome {
    Delivered,
    Refused,
    /// The message is delivered by [`Faulty::release`].
    Held,
}

/// A transport that delays or refuses messages.
pub struct Faulty {
    inner: InProcess,
    outcome: Box<dyn Fn(&MessageHeader) -> SendOutcome + Send + Sync>,
    /// Is `None` after the release.
    held: Mutex<Option<Vec<(usize, RankMessage)>>>,
}

impl Faulty {
    pub fn new(
        inner: InProcess,
        outcome: impl Fn(&MessageHeader) -> SendOutcome + Send + Sync + 'static,
    ) -> Self {
        Self { inner, outcome: Box::new(outcome), held: Mutex::new(Some(Vec::new())) }
    }

    /// Delivers the messages that were held. Later ones are not held.
    pub fn release(&self) {
        let mut held = self.held.lock().unwrap();
        for (to, message) in held.take().into_iter().flatten() {
            self.inner.send(to, message).unwrap();
        }
    }
}

/// Creates the communicators of `ranks` ranks, of which rank 1 cannot send more than `sends`
/// messages.
pub fn failing_world(ranks: u32, sends: usize) -> Vec<Communicator> {
    let end = |(rank, inner): (usize, InProcess)| {
        let sent = AtomicUsize::new(0);
        let outcome = move |_: &_| {
            let is_last = rank == 1 && sent.fetch_add(1, Ordering::Relaxed) == sends;
            if is_last { SendOutcome::Refused } else { SendOutcome::Delivered }
        };
        Communicator::over(Arc::new(Faulty::new(inner, outcome)))
    };
    InProcess::ends(ranks).into_iter().enumerate().map(end).collect()
}

impl Transport for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    comm::pass_to_inner!();

    fn send(&self, to: usize, message: RankMessage) -> Result<(), TransportFailure> {
        match (self.outcome)(&message.header) {
            SendOutcome::Refused => return Err(TransportFailure::Left),
            SendOutcome::Held => {
                if let Some(held) = &mut *self.held.lock().unwrap() {
                    held.push((to, message));
                    return Ok(());
                }
            }
            SendOutcome::Delivered => {}
        }
        self.inner.send(to, message)
    }
}

/// Steps on given batches, with one thread per rank.
pub struct Steps<'a> {
    /// Names the run if it hangs.
    pub name: String,
    pub config: &'a JobConfig,
    pub plan: &'a ShardingPlan,
    pub schedule: Schedule,
    pub batches: &'a [Batch],
    /// Number of the first step.
    pub first: u64,
    /// Called by every rank after each of its steps.
    pub after_step: &'a (dyn Fn() + Sync),
}

/// A rank after the last batch.
pub struct Ended {
    pub parameters: RankParameters,
    pub losses: Vec<u64>,
    /// Allocations of the compute thread in the second half of the steps.
    pub allocations: u64,
}

/// The part of [`Ended`] that may not depend on the schedule.
pub type TrainedRank =
    (Vec<train::parameter::DenseParameter>, Vec<train::parameter::TileState>, Vec<u64>);

impl Ended {
    pub fn trained(self) -> TrainedRank {
        (self.parameters.dense, self.parameters.tiles, self.losses)
    }
}

impl<'a> Steps<'a> {
    /// Creates the steps under the serial schedule.
    pub fn serial(config: &'a JobConfig, plan: &'a ShardingPlan, batches: &'a [Batch]) -> Self {
        let (name, schedule) = (String::new(), Schedule::SERIAL);
        Self { name, config, plan, schedule, batches, first: 0, after_step: &|| {} }
    }

    pub fn run_rank(&self, comm: Communicator) -> Result<Ended, Error> {
        let Self { config, plan, schedule, batches, first, .. } = *self;
        let (rank, size) = (comm.rank(), comm.world_size());
        let mut context = RankContext::new(Cpu::new(1), comm, Profiler::off())?;
        context.comm.open_lanes(schedule, plan)?;
        let batch_max = config.training.batch_size;
        let mut model = Model::initial(context.device_queue(), config, plan, rank, batch_max)?;
        model.set_graph(StepGraph::new(config, 64, schedule, plan));
        let cut = |batch: &Batch| {
            let at = |rank: usize| batch.size * rank / size;
            let (first_sample, end) = (at(rank.index()), at(rank.index() + 1));
            RankBatch { batch: Arc::new(batch.slice(first_sample..end)), first_sample }
        };
        let shares: Vec<RankBatch> = batches.iter().map(cut).collect();
        let mut losses = Vec::with_capacity(shares.len());
        let mut allocations = 0;
        for (at, (own, batch)) in shares.iter().zip(batches).enumerate() {
            if at == batches.len() / 2 {
                allocations = Counting::allocations();
            }
            if let Some(next) = shares.get(at + 1) {
                model.set_next(next.clone());
            }
            let number = first + at as u64;
            context.comm.set_step(number);
            let step = RunStep { number, factor: 1.0 };
            losses.push(model.train(&mut context, own.share(batch.size), step)?.to_bits());
            (self.after_step)();
        }
        allocations = Counting::allocations() - allocations;
        Ok(Ended { parameters: ranks::parameters_of(&model), losses, allocations })
    }

    /// Runs all ranks on `ends`. Ends the process if they hang.
    pub fn run(&self, ends: Vec<Communicator>) -> Vec<Result<Ended, Error>> {
        let (done, all_done) = mpsc::channel();
        std::thread::scope(|scope| {
            let run = |end| scope.spawn(|| self.run_rank(end));
            let ranks: Vec<_> = ends.into_iter().map(run).collect();
            scope.spawn(move || {
                if all_done.recv_timeout(Duration::from_secs(60)).is_err() {
                    // The test harness captures what `eprintln!` prints, and would lose it here.
                    let _ = writeln!(std::io::stderr(), "the ranks hang: {}", self.name);
                    std::process::abort();
                }
            });
            let results = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
            done.send(()).unwrap();
            results
        })
    }

    /// Runs all ranks without failures, and returns what each has trained.
    pub fn train(&self, ends: Vec<Communicator>) -> Vec<TrainedRank> {
        self.run(ends).into_iter().map(|ended| ended.unwrap().trained()).collect()
    }
}

pub fn config() -> JobConfig {
    let cross = schema::Interaction::DcnV2 { layers: 2, rank: 3 };
    let kinds = (Optimizer::RowwiseAdagrad, Optimizer::Lamb);
    ranks::job(model(cross, schema::Pooling::Mean), kinds, 0.1, 8)
}

/// A batch of `size` samples, whose bags have 0 to 2 ids.
pub fn batch(number: usize, size: usize) -> Batch {
    let lengths: Vec<usize> = (0..3 * size).map(|bag| (bag + number) % 3).collect();
    let values = (0..lengths.iter().sum()).map(|i| ((i * 7 + number) % 10) as i64).collect();
    let sparse = schema::JaggedTensor::from_lengths(3, &lengths, values);
    let dense = (0..3 * size).map(|i| ((i + number) % 5) as f32 - 2.0).collect();
    let labels = (0..size).map(|i| ((i + number) % 2) as f32).collect();
    Batch { size, dense, sparse, labels }
}
