//! Predicts a step of rowmill's own trainer on a measured CPU, operation by operation. All ranks
//! share the CPU's threads and memory.

use schema::topology::ProductFormat;
use schema::{Granularity, Op};

use super::memory::{Memory, MemoryTerms};
use super::{Basis, OpPrice, RankPrice, STAGES, Stage, StepCost, StepDomain, StepPrice};
use crate::Error;
use crate::program::from_trainer::exchange::Exchanges;
use crate::program::from_trainer::ops;
use crate::workload::Workload;
use kernel_model::Estimate;
use kernel_model::cpu::{Context, CpuModel, CpuWork, Example, MeasuredStep};
use kernel_model::rank_load::{RankLoad, RowRates, TileTerms};
use kernel_model::tile_use::TileUse;

/// Lowest and highest factor on times that are derived from bytes alone.
const BY_BYTES: (f64, f64) = (0.5, 2.0);
/// Time in nanoseconds that ranks need to synchronize, because each waits until the last one has
/// woken up.
const MEET_NS: f64 = 20_000.0;

/// Pairs a measured step with the operations that its workload implies. A [`CpuModel`] is trained
/// on such examples.
///
/// # Errors
/// [`Error::Workload`] for a workload that the trainer cannot run.
pub fn build_example<'a>(
    workload: Workload<'_>,
    measured: &'a MeasuredStep,
) -> Result<Example<'a>, Error> {
    let ops = ops::list_ops(workload)?.into_iter().next().unwrap_or_default();
    let rule = workload.config.optimizer.dense.kind;
    let updates = (rule.granularity() == Granularity::Element).then_some(rule);
    Ok(Example { measured, ops, tiles: workload.tiles(), updates })
}

/// One rank's step while its operations are priced.
struct RankStep {
    stages: [Estimate; STAGES],
    ops: Vec<OpPrice>,
    /// Evidence and time of each operation, including the gap after it.
    rests_on: Vec<(Basis, f64)>,
}

/// Predicts a step on the CPU whose measurements trained `model`.
///
/// # Errors
/// [`Error::Workload`] for a workload that the trainer cannot run, for more ranks than threads, and
/// for operations that were not measured on this CPU.
pub fn price(workload: Workload<'_>, model: &CpuModel) -> Result<StepPrice, Error> {
    let ranks = ops::list_ops(workload)?;
    let threads = model.machine.threads.max(1) as usize;
    if ranks.len() > threads {
        let expected = format!("at most a rank for each of {threads} threads");
        return Err(Error::Workload { expected, got: format!("{} ranks", ranks.len()) });
    }
    // The ranks divide the threads among themselves, but each measurement ran on all threads.
    let slowdown = threads as f64 / (threads / ranks.len()) as f64;
    let tiles = workload.tiles();
    let exchanges = Exchanges::from_ops(&ranks);
    let mut priced = Vec::new();
    for (rank, ops) in ranks.iter().enumerate() {
        let pricer = Pricer { model, slowdown, exchanges: &exchanges, rank };
        priced.push(pricer.rank(workload, &tiles, ops)?);
    }
    Ok(whole(workload, &tiles, priced, model))
}

/// Predicts the durations of one rank's operations on a CPU. All durations are multiplied by
/// `slowdown`.
struct Pricer<'a> {
    model: &'a CpuModel,
    slowdown: f64,
    exchanges: &'a Exchanges,
    rank: usize,
}

impl Pricer<'_> {
    fn rank(
        &self,
        workload: Workload<'_>,
        tiles: &[TileUse],
        ops: &[Op],
    ) -> Result<RankStep, Error> {
        let rule = workload.config.optimizer.dense.kind;
        let is_fused = rule.granularity() == Granularity::Element;
        let context = Context {
            tiles: tiles.iter().filter(|tile| tile.rank == self.rank).collect(),
            cores: self.model.machine.cores(),
            updates: (is_fused && workload.ranks() == 1).then_some(rule),
        };
        let mut step = RankStep {
            stages: <[Estimate; STAGES]>::default(),
            ops: Vec::new(),
            rests_on: Vec::new(),
        };
        for op in ops {
            let priced = self.op(op, &context)?;
            let between = Estimate::within(self.model.between_ns(), (1.0, 1.0));
            let stage = &mut step.stages[stage(op) as usize];
            *stage = stage.plus(priced.time).plus(between);
            step.rests_on.push((priced.basis, priced.time.mean_ns + between.mean_ns));
            step.ops.push(priced);
        }
        Ok(step)
    }

    fn op(&self, op: &Op, context: &Context<'_>) -> Result<OpPrice, Error> {
        let (time, basis) = match CpuWork::from_op(op, context) {
            None => (self.exchange(op), Basis::Formula),
            Some(work) => {
                let price = self.model.price(&work).ok_or_else(|| Error::Workload {
                    expected: "operations that were measured on this CPU".to_owned(),
                    got: work.kind.clone(),
                })?;
                let [mean_ns, low_ns, high_ns] =
                    [price.mean_ns, price.low_ns, price.high_ns].map(|ns| self.slowdown * ns);
                let basis = if price.is_inside { Basis::Measured } else { Basis::Extended };
                (Estimate { mean_ns, low_ns, high_ns }, basis)
            }
        };
        Ok(OpPrice { op: op.name(), shapes: op.shapes(), launches: 1, time, basis })
    }

    /// Predicts an exchange through memory, in which each rank moves its bytes at its share of the
    /// memory bandwidth.
    fn exchange(&self, op: &Op) -> Estimate {
        let bytes = self.exchanges.work(self.rank, op).bytes as f64;
        let ns = MEET_NS + self.slowdown * bytes / self.model.stream_gb_per_s.max(0.1);
        Estimate::within(ns, BY_BYTES)
    }
}

fn stage(op: &Op) -> Stage {
    match op {
        Op::InputDist { .. } | Op::InputWait { .. } => Stage::InputDistribution,
        Op::EmbeddingForward { .. } => Stage::Lookup,
        Op::OutputDist { .. } => Stage::PooledExchange,
        Op::GradientDist { .. } => Stage::GradientExchange,
        Op::EmbeddingBackward { .. } => Stage::EmbeddingUpdate,
        Op::AllReduce { .. } => Stage::AllReduce,
        _ => Stage::Dense,
    }
}

fn whole(
    workload: Workload<'_>,
    tiles: &[TileUse],
    ranks: Vec<RankStep>,
    model: &CpuModel,
) -> StepPrice {
    let slowest = |stage: usize| {
        ranks.iter().map(|rank| rank.stages[stage]).fold(Estimate::default(), Estimate::max)
    };
    let stages: [Estimate; STAGES] = std::array::from_fn(slowest);
    let step = stages.iter().fold(Estimate::default(), |sum, one| sum.plus(*one));
    let sizes = MemoryTerms::new(workload, ProductFormat::F32);
    let rule = workload.config.optimizer.sparse.kind;
    let batch = workload.config.training.batch_size;
    let terms: Vec<TileTerms> = tiles.iter().map(|tile| TileTerms::new(tile, rule, None)).collect();
    let one = |(number, rank): (usize, &RankStep)| {
        let held = tiles.iter().zip(&terms).filter(|(tile, _)| tile.rank == number);
        let load =
            RankLoad::from_tiles(held.map(|(_, terms)| terms), RowRates::Gpu(&model.machine.spec));
        let wait = |(all, own): (&Estimate, &Estimate)| all.mean_ns - own.mean_ns;
        // A CPU needs no driver context and no buffers for collectives, so the reserve is 0.
        let memory = sizes.memory(&load, workload.samples(number), batch, batch);
        RankPrice {
            rank: number as u32,
            stages: rank.stages,
            wait_ns: stages.iter().zip(&rank.stages).map(wait).sum(),
            memory: Memory { reserve: 0, ..memory },
        }
    };
    let priced: Vec<RankPrice> = ranks.iter().enumerate().map(one).collect();
    let peak_bytes = priced.iter().map(|rank| rank.memory.total()).sum();
    let fits = peak_bytes <= model.machine.spec.memory_bytes;
    let step_ns = |rank: &RankStep| rank.stages.iter().map(|stage| stage.mean_ns).sum::<f64>();
    let slow = ranks.iter().max_by(|a, b| step_ns(a).total_cmp(&step_ns(b)));
    let rests_on = slow.into_iter().flat_map(|rank| rank.rests_on.iter().copied());
    let domain = StepDomain::from_ops(rests_on, step.mean_ns);
    StepPrice {
        cost: StepCost { step, device_ns: step.mean_ns, peak_bytes, fits },
        stages,
        ranks: priced,
        launches: 0,
        samples_per_s: 1e9 * batch as f64 / step.mean_ns.max(1.0),
        domain,
        ops: ranks.into_iter().next().map(|rank| rank.ops).unwrap_or_default(),
    }
}
