//! `rowmill predict step --model` and `sweep`: steps of models on hardware that nobody ran. The
//! prices are `predict::step`'s.

use predict::kernel::Error as KernelError;
use predict::step::{
    Conditions, Estimate, Models, Stage, StepPrice, StepPricer, SweepRow, mark_best,
};
use schema::Topology;
use serde::Serialize;

use super::kernel::model;
use crate::args::{NeverRunStep, PredictStep, PredictSweep, PricedHost, StepRows};
use crate::error::Error;
use crate::resolve::Session;
use crate::resolve::workload::Workload;
use crate::sheet::{self, Target};

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

/// The models that price steps.
fn models(host: &PricedHost) -> Result<Models, Error> {
    Models::of(|kind| model(host.models.as_deref(), kind))
}

fn topology(text: &str) -> Result<Topology, Error> {
    Ok(Topology::parse(text).map_err(KernelError::from)?)
}

/// Runs `predict step --model`.
pub fn step(args: &PredictStep, session: &Session) -> Result<(), Error> {
    let (name, hardware) = (args.model.as_deref(), args.hardware.as_deref());
    let (name, hardware) = (name.unwrap_or_default(), hardware.unwrap_or_default());
    let topology = topology(hardware)?;
    let workload = Workload::of(name, &args.asked, topology.ranks())?;
    let models = models(&args.host)?;
    let launch_ns = 1e3 * args.host.launch_us;
    let conditions = Conditions { topology: &topology, models: &models, launch_ns };
    let pricer = StepPricer::new(workload.borrowed(), conditions)?;
    let max_batch_size = pricer.max_batch_size();
    let price = pricer.into_price();
    say_links(&topology, price.ranks.len(), session);
    let console = session.console;
    match args.by {
        StepRows::Step => {
            let batch_size = workload.job.config.training.batch_size;
            let row = step_row((name, hardware), (batch_size, max_batch_size), &price);
            sheet::put(console, &[row], Target::default())
        }
        StepRows::Stage => sheet::put(console, &stage_rows(&price), Target::default()),
        StepRows::Rank => {
            let rows: Vec<RankRow> = price.ranks.iter().map(rank_row).collect();
            sheet::put(console, &rows, Target::default())
        }
        StepRows::Op => sheet::put(console, &op_rows(&price), Target::default()),
        StepRows::Memory => sheet::put(console, &memory_rows(&price), Target::default()),
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
    let models = models(&args.host)?;
    let launch_ns = 1e3 * args.host.launch_us;
    let topologies: Vec<Topology> =
        args.hardware.iter().map(|text| topology(text)).collect::<Result<_, _>>()?;
    let mut all = Vec::new();
    for &pooling in &args.pooling {
        let mut rows = Vec::new();
        for name in &args.model {
            for (hardware, topology) in args.hardware.iter().zip(&topologies) {
                let conditions = Conditions { topology, models: &models, launch_ns };
                for &batch_size in &args.batch_size {
                    let asked = NeverRunStep {
                        set: args.set.clone(),
                        batch_size: Some(batch_size),
                        pooling,
                        ranks: None,
                        sharding: args.sharding,
                        plan: None,
                    };
                    let workload = Workload::of(name, &asked, topology.ranks())?;
                    let price = predict::step::price(workload.borrowed(), conditions)?;
                    rows.push(SweepRow::new((name, hardware), batch_size, &price));
                }
            }
        }
        mark_best(&mut rows);
        all.extend(rows.into_iter().map(|step| PooledRow { pooling, step }));
    }
    let rows = all.len();
    let target = Target { output: args.output.as_deref(), top: Some(rows) };
    sheet::put(session.console, &all, target)
}
