//! `rowmill predict step --model` and `sweep`: steps of models on hardware, never run. The prices
//! are `predict::step`'s.

use std::path::Path;

use predict::kernel::Error as KernelError;
use predict::kernel::cpu::CpuModel;
use predict::step::{
    self, Conditions, Estimate, Models, Stage, StepPrice, StepPricer, SweepRow, mark_best,
};
use schema::Topology;
use serde::Serialize;
use train::memory::WeightSource;

use super::kernel::{file as kernel_file, model};
use super::learn::folder::HARDWARE;
use super::learn::recorded;
use crate::args::{NeverRunStep, PredictStep, PredictSweep, StepRows};
use crate::error::Error;
use crate::resolve::Session;
use crate::resolve::memory::{self, MemoryLook};
use crate::resolve::workload::Workload;
use crate::sheet::{self, SheetTarget};

/// Batches that a run has in memory.
const BATCHES: u64 = 4;

/// A step.
#[derive(Serialize)]
struct StepRow<'a> {
    model: &'a str,
    hardware: &'a str,
    ranks: usize,
    batch_size: usize,
    step_ns: f64,
    low_ns: f64,
    high_ns: f64,
    samples_per_s: f64,
    peak_bytes: u64,
    fits: bool,
    /// What takes most of the memory.
    largest: &'static str,
    max_batch_size: Option<usize>,
    launches: u32,
    slowest_stage: &'static str,
    measured_pct: f64,
    outside_pct: f64,
}

#[derive(Serialize)]
struct StageRow {
    stage: &'static str,
    mean_ns: f64,
    low_ns: f64,
    high_ns: f64,
    share_pct: f64,
}

#[derive(Serialize)]
struct RankRow {
    rank: u32,
    lookup_ns: f64,
    dense_ns: f64,
    update_ns: f64,
    exchange_ns: f64,
    wait_ns: f64,
    table_bytes: u64,
    state_bytes: u64,
    total_bytes: u64,
}

#[derive(Serialize)]
struct OpRow {
    op: &'static str,
    shapes: String,
    mean_ns: f64,
    low_ns: f64,
    high_ns: f64,
    launches: u32,
    basis: predict::step::Basis,
}

#[derive(Serialize)]
struct MemoryRow {
    memory: &'static str,
    bytes: u64,
    share_pct: f64,
    rank: u32,
}

/// Where steps run.
enum Hardware {
    /// Devices, by their data sheets and measured kernels.
    Devices(Box<Topology>, Box<Models>),
    /// A CPU that `rowmill predict learn` measured.
    Cpu(Box<CpuModel>),
}

impl Hardware {
    /// A device by name, else a file or folder of `rowmill predict learn`.
    fn of(text: &str, models: Option<&Path>) -> Result<Self, Error> {
        let models_of = || Models::of(|kind| model(models, kind)).map(Box::new);
        let unknown = match topology(text) {
            Ok(topology) => return Ok(Self::Devices(Box::new(topology), models_of()?)),
            Err(error) => error,
        };
        let path = Path::new(text);
        let file = if path.is_dir() { path.join(HARDWARE) } else { path.to_owned() };
        if !file.exists() {
            return Err(unknown);
        }
        let text = std::fs::read_to_string(&file).map_err(Error::io(&file, "read"))?;
        let wrong = |source| Error::Kernels { path: file.clone(), source };
        let Some(spec) = recorded::device(&text).map_err(wrong)? else {
            return Ok(Self::Cpu(Box::new(CpuModel::parse(&text).map_err(wrong)?)));
        };
        let topology = Topology { device: spec.clone(), ..topology(&spec.key)? };
        let beside = file.parent().unwrap_or(Path::new("."));
        let own = Models::of(|kind| {
            let is_own = models.is_none() && kernel_file(beside, kind).exists();
            model(if is_own { Some(beside) } else { models }, kind)
        });
        Ok(Self::Devices(Box::new(topology), Box::new(own?)))
    }

    /// Ranks of a step, unless it says how many.
    fn ranks(&self) -> u64 {
        match self {
            Self::Devices(topology, _) => topology.ranks(),
            Self::Cpu(_) => 1,
        }
    }

    /// The price of a step; on devices also the largest batch that fits.
    fn price(
        &self,
        workload: &Workload,
        pooling: u32,
        launch_ns: f64,
    ) -> Result<(StepPrice, Option<usize>), Error> {
        match self {
            Self::Devices(topology, models) => {
                let conditions = Conditions { topology, models, launch_ns };
                let pricer = StepPricer::new(workload.borrowed(), conditions)?;
                let max_batch_size = pricer.max_batch_size();
                Ok((pricer.into_price(), max_batch_size))
            }
            Self::Cpu(model) => {
                let mut price = step::cpu::price(workload.borrowed(), model)?;
                // What the trainer's own constructors count.
                let config = &workload.job.config;
                let rows = BATCHES * config.training.batch_size as u64;
                let run = memory::RunSize {
                    job: &workload.job,
                    look: MemoryLook::of_batches(config, rows, pooling as usize),
                    tiling: &workload.tiling,
                    threads: model.machine.threads as usize,
                    processes: None,
                    traced_steps: 0,
                    weights: WeightSource::Initial,
                };
                if let Some(peak) = run.room().estimate.peak() {
                    price.cost.peak_bytes = peak.total.0;
                    price.cost.fits = peak.total.0 <= model.machine.spec.memory_bytes;
                }
                Ok((price, None))
            }
        }
    }
}

fn topology(text: &str) -> Result<Topology, Error> {
    Ok(Topology::parse(text).map_err(KernelError::from)?)
}

/// Runs `predict step --model`.
pub fn step(args: &PredictStep, session: &Session) -> Result<(), Error> {
    let (name, hardware) = (args.model.as_deref(), args.hardware.as_deref());
    let (name, hardware) = (name.unwrap_or_default(), hardware.unwrap_or_default());
    let on = Hardware::of(hardware, args.host.models.as_deref())?;
    let workload = Workload::resolve(name, &args.asked, on.ranks())?;
    let (pooling, launch_ns) = (args.asked.pooling, 1e3 * args.host.launch_us);
    let (price, max_batch_size) = on.price(&workload, pooling, launch_ns)?;
    if let Hardware::Devices(topology, _) = &on {
        say_links(topology, price.ranks.len(), session);
    }
    let console = session.console;
    match args.by {
        StepRows::Step => {
            let batch_size = workload.job.config.training.batch_size;
            let row = step_row((name, hardware), (batch_size, max_batch_size), &price);
            sheet::put(console, &[row], SheetTarget::default())
        }
        StepRows::Stage => sheet::put(console, &stage_rows(&price), SheetTarget::default()),
        StepRows::Rank => {
            let rows: Vec<RankRow> = price.ranks.iter().map(rank_row).collect();
            sheet::put(console, &rows, SheetTarget::default())
        }
        StepRows::Op => sheet::put(console, &op_rows(&price), SheetTarget::default()),
        StepRows::Memory => sheet::put(console, &memory_rows(&price), SheetTarget::default()),
    }
}

fn say_links(topology: &Topology, ranks: usize, session: &Session) {
    if ranks > 1 {
        session.console.detail(format_args!("within a host: {}", topology.within.source()));
    }
    if ranks > topology.ranks_per_host as usize {
        session.console.detail(format_args!("between hosts: {}", topology.between.source()));
    }
}

fn step_row<'a>(
    (model, hardware): (&'a str, &'a str),
    (batch_size, max_batch_size): (usize, Option<usize>),
    price: &StepPrice,
) -> StepRow<'a> {
    let fullest = price.ranks.iter().max_by_key(|rank| rank.memory.total());
    let slowest = Stage::ALL.into_iter().max_by(|a, b| {
        let of = |stage: &Stage| price.stages[*stage as usize].mean_ns;
        of(a).total_cmp(&of(b))
    });
    let Estimate { mean_ns, low_ns, high_ns } = price.cost.step;
    StepRow {
        model,
        hardware,
        ranks: price.ranks.len(),
        batch_size,
        step_ns: mean_ns,
        low_ns,
        high_ns,
        samples_per_s: price.samples_per_s,
        peak_bytes: price.cost.peak_bytes,
        fits: price.cost.fits,
        largest: fullest.map_or("none", |rank| rank.memory.largest().0),
        max_batch_size,
        launches: price.launches,
        slowest_stage: slowest.map_or("none", Stage::name),
        measured_pct: price.measured_pct,
        outside_pct: 100.0 - price.measured_pct,
    }
}

fn stage_rows(price: &StepPrice) -> Vec<StageRow> {
    let all = price.cost.step.mean_ns.max(1.0);
    let row = |stage: Stage| {
        let Estimate { mean_ns, low_ns, high_ns } = price.stages[stage as usize];
        StageRow { stage: stage.name(), mean_ns, low_ns, high_ns, share_pct: 100.0 * mean_ns / all }
    };
    Stage::ALL.into_iter().map(row).collect()
}

fn rank_row(rank: &predict::step::RankPrice) -> RankRow {
    let of = |stage: Stage| rank.stages[stage as usize].mean_ns;
    RankRow {
        rank: rank.rank,
        lookup_ns: of(Stage::EmbeddingForward),
        dense_ns: of(Stage::Dense),
        update_ns: of(Stage::EmbeddingBackward),
        exchange_ns: of(Stage::InputDist) + of(Stage::OutputDist) + of(Stage::GradientDist),
        wait_ns: rank.wait_ns,
        table_bytes: rank.memory.table_weights,
        state_bytes: rank.memory.table_states,
        total_bytes: rank.memory.total(),
    }
}

fn op_rows(price: &StepPrice) -> Vec<OpRow> {
    let sizes = |shapes: &[Vec<usize>]| {
        let one =
            |dims: &Vec<usize>| dims.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
        shapes.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    let row = |op: &predict::step::OpPrice| OpRow {
        op: op.op,
        shapes: sizes(&op.shapes),
        mean_ns: op.time.mean_ns,
        low_ns: op.time.low_ns,
        high_ns: op.time.high_ns,
        launches: op.launches,
        basis: op.basis,
    };
    price.ops.iter().map(row).collect()
}

fn memory_rows(price: &StepPrice) -> Vec<MemoryRow> {
    let Some(rank) = price.ranks.iter().max_by_key(|rank| rank.memory.total()) else {
        return Vec::new();
    };
    let all = rank.memory.total().max(1) as f64;
    let row = |(memory, bytes): (&'static str, u64)| MemoryRow {
        memory,
        bytes,
        share_pct: 100.0 * bytes as f64 / all,
        rank: rank.rank,
    };
    rank.memory.parts().into_iter().map(row).collect()
}

/// A row of a sweep with what is swept beside model, device and batch.
#[derive(Serialize)]
struct PooledRow {
    pooling: u32,
    #[serde(flatten)]
    step: SweepRow,
}

/// Runs `predict sweep`.
pub fn sweep(args: &PredictSweep, session: &Session) -> Result<(), Error> {
    let launch_ns = 1e3 * args.host.launch_us;
    let models = args.host.models.as_deref();
    let all_hardware: Vec<Hardware> =
        args.hardware.iter().map(|text| Hardware::of(text, models)).collect::<Result<_, _>>()?;
    let mut all = Vec::new();
    for &pooling in &args.pooling {
        let mut rows = Vec::new();
        for name in &args.model {
            for (hardware, on) in args.hardware.iter().zip(&all_hardware) {
                for &batch_size in &args.batch_size {
                    let asked = NeverRunStep {
                        set: args.set.clone(),
                        batch_size: Some(batch_size),
                        pooling,
                        ranks: None,
                        sharding: args.sharding,
                        plan: None,
                    };
                    let workload = Workload::resolve(name, &asked, on.ranks())?;
                    let (price, _) = on.price(&workload, pooling, launch_ns)?;
                    rows.push(SweepRow::new((name, hardware), batch_size, &price));
                }
            }
        }
        mark_best(&mut rows);
        all.extend(rows.into_iter().map(|step| PooledRow { pooling, step }));
    }
    let rows = all.len();
    let target = SheetTarget { output: args.output.as_deref(), top: Some(rows) };
    sheet::put(session.console, &all, target)
}
