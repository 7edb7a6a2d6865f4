//! Ranks as threads of this process, which train a job by a plan over a simulated link. The models
//! are kept between measurements.

use std::sync::Arc;
use std::time::Instant;

use comm::{Communicator, Delayed, DelayedLink, InProcess};
use device::Cpu;
use schema::{Batch, JobConfig, Rank, Schedule, ShardingPlan, StepGraph};
use train::context::Streams;
use train::profile::Profiler;
use train::{BUCKET_BYTES, Model, RankBatch, RankContext, RunStep};

use bench::steps::WARM_UP;
use setup::error::Error;

/// All ranks of a job under one plan.
pub struct BenchRanks {
    config: JobConfig,
    plan: ShardingPlan,
    ranks: Vec<BenchRank>,
    link: Option<DelayedLink>,
}

/// One rank with its model and its shares of the batches.
struct BenchRank {
    context: RankContext<Cpu>,
    model: Model<Cpu>,
    shares: Vec<RankBatch>,
    step: u64,
}

impl BenchRanks {
    /// Builds the models of all ranks of a plan, each with `threads` threads. Messages are delayed
    /// by `link` if there is one.
    pub fn new(
        config: JobConfig,
        plan: ShardingPlan,
        batches: &[Batch],
        threads: usize,
        link: Option<DelayedLink>,
    ) -> Result<Self, Error> {
        let batch_size = config.training.batch_size;
        let count = plan.world_size();
        let share = |rank: u32, batch: &Batch| {
            let cut = |rank: u32| batch.size * rank as usize / count as usize;
            let own = Arc::new(batch.slice(cut(rank)..cut(rank + 1)));
            RankBatch { batch: own, first_sample: cut(rank) }
        };
        let rank = |rank: u32| {
            let context = RankContext::alone(Cpu::open(threads)?, Profiler::off())?;
            let (queue, rank_id) = (context.device_queue(), Rank(rank));
            let model = Model::initial(queue, &config, &plan, rank_id, batch_size)?;
            let shares = batches.iter().map(|batch| share(rank, batch)).collect();
            Ok(BenchRank { context, model, shares, step: 0 })
        };
        let ranks = (0..count).map(rank).collect::<Result<_, Error>>()?;
        Ok(Self { config, plan, ranks, link })
    }

    /// Returns the number of samples of a step, over all ranks.
    pub fn batch_size(&self) -> usize {
        self.config.training.batch_size
    }

    /// Returns the number of threads of each rank.
    pub fn threads(&self) -> usize {
        self.ranks.first().map_or(0, |rank| rank.context.device.pool.threads())
    }

    /// Returns the simulated link, if there is one.
    pub fn link(&self) -> Option<DelayedLink> {
        self.link
    }

    /// Trains some steps on new communicators after a few untimed ones. `read` receives the
    /// milliseconds of each step and the model after it. Returns what it read, by rank and step.
    pub fn measure<T: Send>(
        &mut self,
        schedule: Schedule,
        steps: u64,
        read: &(dyn Fn(f64, &Model<Cpu>) -> T + Sync),
    ) -> Result<Vec<Vec<T>>, Error> {
        let graph = StepGraph::new(&self.config, BUCKET_BYTES, schedule, &self.plan);
        let ends = communicators(self.ranks.len() as u32, self.link);
        let (batch_size, plan) = (self.config.training.batch_size, &self.plan);
        std::thread::scope(|scope| {
            let mut ranks = Vec::new();
            for (rank, end) in self.ranks.iter_mut().zip(ends) {
                let graph = graph.clone();
                ranks.push(scope.spawn(move || {
                    rank.context.comm = Streams::from(end);
                    rank.context.comm.open_lanes(schedule, plan)?;
                    rank.model.set_graph(graph);
                    rank.train(steps, batch_size, read)
                }));
            }
            let join = |rank: std::thread::ScopedJoinHandle<'_, _>| {
                rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            ranks.into_iter().map(join).collect()
        })
    }
}

/// Creates the communicators of `count` ranks. Messages are delayed by `link`, or pass directly
/// between the ranks if there is none.
pub fn communicators(count: u32, link: Option<DelayedLink>) -> Vec<Communicator> {
    let communicator = |end: InProcess| match link {
        None => Communicator::over(Arc::new(end)),
        Some(link) => Communicator::over(Arc::new(Delayed::new(Arc::new(end), link))),
    };
    InProcess::ends(count).into_iter().map(communicator).collect()
}

impl BenchRank {
    /// Trains untimed steps, and then `steps` timed ones.
    fn train<T>(
        &mut self,
        steps: u64,
        batch_size: usize,
        read: &dyn Fn(f64, &Model<Cpu>) -> T,
    ) -> Result<Vec<T>, Error> {
        let mut times = Vec::with_capacity(steps as usize);
        let last = self.step + WARM_UP as u64 + steps - 1;
        for number in self.step..=last {
            let share = |number: u64| &self.shares[number as usize % self.shares.len()];
            if number < last {
                self.model.set_next(share(number + 1).clone());
            }
            self.context.comm.set_step(number);
            let began = Instant::now();
            let step = RunStep { number, factor: 1.0 };
            let loss =
                self.model.train(&mut self.context, share(number).share(batch_size), step)?;
            let elapsed = began.elapsed();
            if !loss.is_finite() {
                let what = format!("the loss is {loss}, expected a finite number");
                return Err(train::Error::Diverged { step: number, what, checkpoint: None }.into());
            }
            if number >= self.step + WARM_UP as u64 {
                times.push(read(1e3 * elapsed.as_secs_f64(), &self.model));
            }
        }
        self.step = last + 1;
        Ok(times)
    }
}
