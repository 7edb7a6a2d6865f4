//! `rowmill predict step --model`: a step of a model on hardware, never run. The prices are
//! `predict::step`'s.

use std::collections::BTreeMap;
use std::path::Path;

use super::kernel::{file as kernel_file, model};
use super::learn::device;
use super::learn::folder::HARDWARE;
use super::on_cpu;
use crate::args::{PredictStep, StepRows};
use kernel_model::cpu::CpuModel;
use kernel_model::{Error as KernelError, Estimate};
use predict::step::{self, Conditions, Models, Stage, StepDomain, StepPrice, StepPricer};
use schema::TableRow;
use schema::Topology;
use serde::Serialize;
use setup::Session;
use setup::error::{Error, UsageError};
use setup::table_output::{self, TableTarget};
use setup::workload::Workload;

/// A step of `--by step`, with its bounds on the slowest rank.
#[derive(Serialize, TableRow)]
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
    /// Memory of the device; on a CPU, of the host.
    memory_bytes: u64,
    fits: bool,
    /// What takes most of the memory.
    largest: &'a str,
    /// On the rank that takes most; of a CPU, of all ranks together.
    bytes_by_kind: BTreeMap<&'a str, u64>,
    max_batch_size: Option<usize>,
    launches: u32,
    slowest_stage: &'static str,
    measured_pct: f64,
    outside_pct: f64,
    domain: StepDomain,
}

/// A row of the table of stages: predicted time with its bounds, and its share of the step.
#[derive(Serialize, TableRow)]
struct StageRow {
    stage: &'static str,
    mean_ns: f64,
    low_ns: f64,
    high_ns: f64,
    share_pct: f64,
}

/// A row of the table of ranks: predicted time of each stage on one rank.
#[derive(Serialize, TableRow)]
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

/// A row of the table of operations: predicted time of one operation with its bounds.
#[derive(Serialize, TableRow)]
struct OpRow {
    op: &'static str,
    shapes: String,
    mean_ns: f64,
    low_ns: f64,
    high_ns: f64,
    launches: u32,
    basis: predict::step::Basis,
}

/// A row of the table of memory: bytes for one purpose, and their share of all.
#[derive(Serialize, TableRow)]
struct MemoryRow<'a> {
    memory: &'a str,
    bytes: u64,
    share_pct: f64,
    /// The rank that takes most; none of a CPU, whose ranks share memory.
    rank: Option<u32>,
}

/// A priced step with its memory.
pub struct PricedStep {
    pub price: StepPrice,
    /// What memory is for, of the rank that takes most or of all together.
    memory: Vec<(String, u64)>,
    /// The rank that takes most, where each has memory of its own.
    fullest: Option<u32>,
    /// Memory of the device; on a CPU, of the host.
    memory_bytes: u64,
}

/// The devices on which a step is priced: GPUs of a data sheet, or a measured CPU.
pub enum Hardware {
    /// Devices, by their data sheets and measured kernels.
    Devices(Box<Topology>, Box<Models>),
    /// A CPU that `rowmill predict learn` measured.
    Cpu(Box<CpuModel>),
}

impl Hardware {
    /// A device by name, else a file or folder of `rowmill predict learn`.
    ///
    /// # Errors
    /// The nearest names of devices; of a file, what is wrong with it.
    pub fn from_name(text: &str, models: Option<&Path>) -> Result<Self, Error> {
        let models_of = || Models::from_loader(|kind| model(models, kind)).map(Box::new);
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
        let wrong = |source| UsageError::Kernels { path: file.clone(), source };
        let Some(spec) = device::parse(&text).map_err(wrong)? else {
            return Ok(Self::Cpu(Box::new(CpuModel::parse(&text).map_err(wrong)?)));
        };
        let topology = Topology { device: spec.clone(), ..topology(&spec.key)? };
        let beside = file.parent().unwrap_or(Path::new("."));
        let own = Models::from_loader(|kind| {
            let is_own = models.is_none() && kernel_file(beside, kind).exists();
            model(if is_own { Some(beside) } else { models }, kind)
        });
        Ok(Self::Devices(Box::new(topology), Box::new(own?)))
    }

    /// Ranks of a step, unless it says how many.
    pub fn ranks(&self) -> u64 {
        match self {
            Self::Devices(topology, _) => topology.ranks(),
            Self::Cpu(_) => 1,
        }
    }

    /// The price of a step whose bags have `pooling` ids.
    ///
    /// # Errors
    /// What no step can be made of.
    pub fn price(
        &self,
        workload: &Workload,
        pooling: u32,
        launch_ns: f64,
    ) -> Result<PricedStep, Error> {
        match self {
            Self::Devices(topology, models) => {
                let conditions = Conditions { topology, models, launch_ns };
                let price = StepPricer::new(workload.borrowed(), conditions)?.into_price();
                let fullest = price.ranks.iter().max_by_key(|rank| rank.memory.total());
                let parts = fullest.into_iter().flat_map(|rank| rank.memory.parts());
                let memory = parts.map(|(name, bytes)| (name.to_owned(), bytes)).collect();
                let fullest = fullest.map(|rank| rank.rank);
                Ok(PricedStep { memory, fullest, memory_bytes: self.memory_bytes(), price })
            }
            Self::Cpu(model) => {
                let mut price = step::cpu::price(workload.borrowed(), model)?;
                let mut memory = Vec::new();
                if let Some(peak) = on_cpu::peak(workload, pooling, &model.machine) {
                    price.cost.peak_bytes = peak.total.0;
                    price.cost.fits = peak.total.0 <= model.machine.spec.memory_bytes;
                    for part in &peak.parts {
                        // As JSON of `rowmill train --estimate` has it.
                        let name = serde_json::to_value(part.of)?;
                        let name = name.as_str().unwrap_or(part.of.name()).to_owned();
                        memory.push((name, part.bytes.0));
                    }
                }
                Ok(PricedStep { price, memory, fullest: None, memory_bytes: self.memory_bytes() })
            }
        }
    }

    /// The largest batch that fits; `None` where no sample does.
    fn max_batch_size(&self, workload: &Workload, pooling: u32) -> Result<Option<usize>, Error> {
        Ok(match self {
            Self::Devices(topology, models) => {
                let conditions = Conditions { topology, models, launch_ns: 0.0 };
                StepPricer::new(workload.borrowed(), conditions)?.max_batch_size()
            }
            Self::Cpu(model) => on_cpu::max_batch_size(workload, pooling, &model.machine),
        })
    }

    /// Bytes of a device, or of a CPU's host.
    fn memory_bytes(&self) -> u64 {
        match self {
            Self::Devices(topology, _) => topology.device.memory_bytes,
            Self::Cpu(model) => model.machine.spec.memory_bytes,
        }
    }
}

fn topology(text: &str) -> Result<Topology, Error> {
    Ok(Topology::parse(text).map_err(KernelError::from)?)
}

/// Runs `predict step --model`.
/// Host time per launch is `launch_ns`.
pub fn step(args: &PredictStep, launch_ns: f64, session: &Session) -> Result<(), Error> {
    let (name, hardware) = (args.model.as_deref(), args.hardware.as_deref());
    let (name, hardware) = (name.unwrap_or_default(), hardware.unwrap_or_default());
    let on = Hardware::from_name(hardware, args.host.models.as_deref())?;
    let workload = Workload::resolve(name, &args.asked, on.ranks())?;
    let pooling = args.asked.pooling;
    let priced = on.price(&workload, pooling, launch_ns)?;
    let price = &priced.price;
    if let Hardware::Devices(topology, _) = &on {
        say_links(topology, price.ranks.len(), session);
    }
    let console = session.console;
    match args.by {
        StepRows::Step => {
            let batch_size = workload.job.config.training.batch_size;
            let most = on.max_batch_size(&workload, pooling)?;
            let row = step_row((name, hardware), (batch_size, most), &priced);
            table_output::write_rows(console, &[row], TableTarget::default())
        }
        StepRows::Stage => {
            table_output::write_rows(console, &stage_rows(price), TableTarget::default())
        }
        StepRows::Rank => {
            let rows: Vec<RankRow> = price.ranks.iter().map(rank_row).collect();
            table_output::write_rows(console, &rows, TableTarget::default())
        }
        StepRows::Op => table_output::write_rows(console, &op_rows(price), TableTarget::default()),
        StepRows::Memory => {
            table_output::write_rows(console, &memory_rows(&priced), TableTarget::default())
        }
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
    priced: &'a PricedStep,
) -> StepRow<'a> {
    let price = &priced.price;
    let slowest = Stage::ALL.into_iter().max_by(|a, b| {
        let stage_ns = |stage: &Stage| price.stages[*stage as usize].mean_ns;
        stage_ns(a).total_cmp(&stage_ns(b))
    });
    let kinds = priced.memory.iter().map(|(name, bytes)| (name.as_str(), *bytes));
    let largest = kinds.clone().max_by_key(|kind| kind.1);
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
        memory_bytes: priced.memory_bytes,
        fits: price.cost.fits,
        largest: largest.map_or("none", |kind| kind.0),
        bytes_by_kind: kinds.collect(),
        max_batch_size,
        launches: price.launches,
        slowest_stage: slowest.map_or("none", Stage::name),
        measured_pct: price.domain.measured_pct,
        outside_pct: price.domain.outside_pct(),
        domain: price.domain,
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
    let stage_ns = |stage: Stage| rank.stages[stage as usize].mean_ns;
    RankRow {
        rank: rank.rank,
        lookup_ns: stage_ns(Stage::EmbeddingForward),
        dense_ns: stage_ns(Stage::Dense),
        update_ns: stage_ns(Stage::EmbeddingBackward),
        exchange_ns: stage_ns(Stage::InputDist)
            + stage_ns(Stage::OutputDist)
            + stage_ns(Stage::GradientDist),
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

fn memory_rows(priced: &PricedStep) -> Vec<MemoryRow<'_>> {
    let all = priced.price.cost.peak_bytes.max(1) as f64;
    let parts = priced.memory.iter();
    parts
        .map(|(memory, bytes)| MemoryRow {
            memory,
            bytes: *bytes,
            share_pct: 100.0 * *bytes as f64 / all,
            rank: priced.fullest,
        })
        .collect()
}
