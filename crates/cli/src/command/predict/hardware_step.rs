//! The command `rowmill predict step --model` with `--hardware`, which predicts a step of a
//! configuration that was never run, on GPUs or on a measured CPU. Times are computed in
//! `predict::step`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::host_overheads::read_host;
use super::learn::device;
use super::learn::folder::HARDWARE;
use super::on_cpu;
use crate::args::{
    DenseKernelsChoice, PrecisionChoice, PredictStep, PricedHost, PricedKernels, StepRows,
};
use kernel_model::Estimate;
use kernel_model::cpu::CpuModel;
use predict::calibration::Calibration;
use predict::calibration::shipped::JobKind;
use predict::prediction::Binds;
use predict::step::host::{DenseUpdateCalls, predict_host};
use predict::step::{self, Conditions, Models, Stage, StepDomain, StepPrice, StepPricer};
use schema::topology::{ProductFormat, add_hardware};
use schema::unit::counted;
use schema::{Schedule, TableRow, Topology};
use serde::Serialize;
use setup::Session;
use setup::error::{Error, UsageError};
use setup::hardware_file::find_topology;
use setup::kernel_files::{model_path, read_model};
use setup::table_output::{self, TableTarget};
use setup::workload::{Workload, WorkloadHosts};

/// The row of `--by step`: the predicted step with its bounds, on the slowest rank.
#[derive(Serialize, TableRow)]
struct HardwareStepRow<'a> {
    model: &'a str,
    hardware: &'a str,
    ranks: usize,
    batch_size: usize,
    step_ns: f64,
    low_ns: f64,
    high_ns: f64,
    /// Host time of the step's operators; 0 if the device is a CPU.
    host_ns: f64,
    /// Time of the step if the host took no time.
    device_ns: f64,
    binds: Binds,
    samples_per_s: f64,
    peak_bytes: u64,
    /// Bytes of memory of the device. For a CPU, they are the memory of its host.
    memory_bytes: u64,
    fits: bool,
    /// The purpose that needs most of the memory.
    largest: &'a str,
    /// Bytes by purpose, on the rank that needs the most. For a CPU, they are summed over all
    /// ranks.
    bytes_by_kind: BTreeMap<&'a str, u64>,
    max_batch_size: Option<usize>,
    launches: u32,
    slowest_stage: &'static str,
    measured_pct: f64,
    outside_pct: f64,
    domain: StepDomain,
}

/// A row of the table of stages, with the predicted time, its bounds, and its share of the step.
#[derive(Serialize, TableRow)]
struct StageRow {
    stage: &'static str,
    mean_ns: f64,
    low_ns: f64,
    high_ns: f64,
    share_pct: f64,
}

/// A row of the table of ranks, with the predicted time of each stage on one rank.
#[derive(Serialize, TableRow)]
struct RankStagesRow {
    rank: u32,
    lookup_ns: f64,
    dense_ns: f64,
    embedding_update_ns: f64,
    exchange_ns: f64,
    wait_ns: f64,
    /// Bytes of weights and optimizer states.
    table_bytes: u64,
    weight_bytes: u64,
    state_bytes: u64,
    total_bytes: u64,
}

/// A row of the table of operations, with the predicted time of one operation and its bounds.
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

/// A row of the table of memory, with the bytes for one purpose and their share of the total.
#[derive(Serialize, TableRow)]
struct MemoryRow<'a> {
    memory: &'a str,
    bytes: u64,
    share_pct: f64,
    /// The rank that needs the most memory. `None` for a CPU, because its ranks share memory.
    rank: Option<u32>,
}

/// The predicted time of a step on hardware, with the memory that it needs.
pub struct HardwareStep {
    pub price: StepPrice,
    /// Bytes by purpose, of the rank that needs the most. For a CPU, they are summed over all
    /// ranks.
    memory: Vec<(String, u64)>,
    /// The rank that needs the most memory. `None` if ranks share memory.
    fullest: Option<u32>,
    /// Bytes of memory of the device. For a CPU, they are the memory of its host.
    memory_bytes: u64,
    device_ns: f64,
    /// Host time of the step's operators; 0 if the device is a CPU.
    host_ns: f64,
}

impl HardwareStep {
    /// Returns which of host and device decides the time of the step.
    pub fn binds(&self) -> Binds {
        if self.host_ns > self.device_ns { Binds::Host } else { Binds::Device }
    }
}

/// The host and the options for which a step is predicted.
#[derive(Clone, Copy)]
pub struct StepOptions<'a> {
    /// Number of ids of bags whose features have no size of their own.
    pub pooling: u32,
    pub launch_ns: f64,
    pub kernels: &'a PricedKernels,
}

fn is_count(text: &str) -> bool {
    text.parse::<u32>().is_ok()
}

/// The hardware for which a step is predicted: GPUs with data sheets, or a measured CPU.
pub enum Hardware {
    /// GPUs, described by their data sheets and by measured kernels.
    Devices(Box<Topology>, Box<Models>),
    /// A CPU that `rowmill predict learn` measured.
    Cpu(Box<CpuModel>),
}

impl Hardware {
    /// Finds a device by its name. If there is none, reads a file or folder that
    /// `rowmill predict learn` wrote.
    ///
    /// # Errors
    /// Neither a device nor a file has this name, or the file is malformed.
    pub fn from_name(text: &str, models: Option<&Path>) -> Result<Self, Error> {
        let models_of = || Models::from_loader(|kind| read_model(models, kind)).map(Box::new);
        let unknown = match find_topology(text) {
            Ok(topology) => return Ok(Self::Devices(Box::new(topology), models_of()?)),
            // A malformed data sheet must not be read as a file of `learn`.
            Err(error) if text.contains(".toml") => return Err(error),
            Err(error) => error,
        };
        // Behind the folder of a GPU, `x8` is the number of its devices.
        let (name, count) = match text.rsplit_once('x') {
            Some((name, count)) if !Path::new(text).exists() && is_count(count) => {
                (name, &text[name.len()..])
            }
            _ => (text, ""),
        };
        let path = Path::new(name);
        let file = if path.is_dir() { path.join(HARDWARE) } else { path.to_owned() };
        if !file.exists() {
            return Err(unknown);
        }
        let text = std::fs::read_to_string(&file).map_err(Error::io(&file, "read"))?;
        let wrong = |source| UsageError::Kernels { path: file.clone(), source };
        // A file without the data of a GPU contains the learned model of a CPU.
        let Some(spec) = device::parse(&text).map_err(wrong)? else {
            if !count.is_empty() {
                return Err(unknown);
            }
            return Ok(Self::Cpu(Box::new(CpuModel::parse(&text).map_err(wrong)?)));
        };
        // The folder knows a GPU that is not built in. For a built-in one, the measured rates are
        // used although the data sheet is known.
        let _known = add_hardware(spec.clone());
        let found = find_topology(&format!("{}{count}", spec.key))?;
        let topology = Topology { device: spec, ..found };
        let beside = file.parent().unwrap_or(Path::new("."));
        // Kernel models beside the file were learned for this GPU, so they are preferred to the
        // built-in ones.
        let own = Models::from_loader(|kind| {
            let is_own = models.is_none() && model_path(beside, kind).exists();
            read_model(if is_own { Some(beside) } else { models }, kind)
        });
        Ok(Self::Devices(Box::new(topology), Box::new(own?)))
    }

    /// The default hosts of a step on this hardware.
    pub fn hosts(&self) -> WorkloadHosts {
        match self {
            Self::Devices(topology, _) => WorkloadHosts {
                ranks: topology.ranks(),
                ranks_per_host: Some(topology.ranks_per_host),
            },
            Self::Cpu(_) => WorkloadHosts::ONE_RANK,
        }
    }

    /// Predicts the time of a step.
    ///
    /// # Errors
    /// The workload or an option does not fit the hardware.
    pub fn price(
        &self,
        workload: &Workload,
        options: StepOptions<'_>,
    ) -> Result<HardwareStep, Error> {
        match self {
            Self::Devices(topology, models) => {
                let conditions = conditions(topology, models, workload, options);
                let price = StepPricer::new(workload.borrowed(), conditions)?.into_price();
                let fullest = price.ranks.iter().max_by_key(|rank| rank.memory.total());
                let parts = fullest.into_iter().flat_map(|rank| rank.memory.parts());
                let memory = parts.map(|(name, bytes)| (name.to_owned(), bytes)).collect();
                let fullest = fullest.map(|rank| rank.rank);
                let (memory_bytes, device_ns) = (self.memory_bytes(), price.cost.step.mean_ns);
                Ok(HardwareStep { memory, fullest, memory_bytes, device_ns, host_ns: 0.0, price })
            }
            Self::Cpu(model) => {
                check_cpu(options.kernels)?;
                let mut price = step::cpu::price(workload.borrowed(), model)?;
                let mut memory = Vec::new();
                if let Some(peak) = on_cpu::peak(workload, options.pooling, &model.machine) {
                    price.cost.peak_bytes = peak.total.0;
                    price.cost.fits = peak.total.0 <= model.machine.spec.memory_bytes;
                    for part in &peak.parts {
                        // The names must be the same as in the JSON of `rowmill train --estimate`.
                        let name = serde_json::to_value(part.of)?;
                        let name = name.as_str().unwrap_or(part.of.name()).to_owned();
                        memory.push((name, part.bytes.0));
                    }
                }
                let (memory_bytes, device_ns) = (self.memory_bytes(), price.cost.step.mean_ns);
                let fullest = None;
                Ok(HardwareStep { price, memory, fullest, memory_bytes, device_ns, host_ns: 0.0 })
            }
        }
    }

    /// The largest batch size whose step fits into memory. `None` if even one sample needs too
    /// much.
    fn max_batch_size(
        &self,
        workload: &Workload,
        options: StepOptions<'_>,
    ) -> Result<Option<usize>, Error> {
        Ok(match self {
            Self::Devices(topology, models) => {
                let conditions = conditions(topology, models, workload, options);
                StepPricer::new(workload.borrowed(), conditions)?
                    .max_batch_size(topology.device.memory_bytes)
            }
            Self::Cpu(model) => on_cpu::max_batch_size(workload, options.pooling, &model.machine),
        })
    }

    /// Bytes of memory of the device. For a CPU, they are the memory of its host.
    fn memory_bytes(&self) -> u64 {
        match self {
            Self::Devices(topology, _) => topology.device.memory_bytes,
            Self::Cpu(model) => model.machine.spec.memory_bytes,
        }
    }
}

/// Returns the conditions of a step on GPUs. Products have the precision of the configuration
/// unless an option names another one.
pub fn conditions<'a>(
    topology: &'a Topology,
    models: &'a Models,
    workload: &Workload,
    options: StepOptions<'_>,
) -> Conditions<'a> {
    let asked = options.kernels;
    let of_config = ProductFormat::from(workload.job.config.training.precision);
    Conditions {
        launch_ns: options.launch_ns,
        format: asked.precision.map_or(of_config, PrecisionChoice::format),
        schedule: asked.schedule.unwrap_or(Schedule::PIPELINED),
        kernels: asked.dense_kernels.map(DenseKernelsChoice::kernels).unwrap_or_default(),
        ..Conditions::new(topology, models)
    }
}

/// Refuses options of GPUs for a measured CPU, on which rowmill's own trainer runs.
fn check_cpu(asked: &PricedKernels) -> Result<(), Error> {
    let named = [
        ("--precision", asked.precision.is_some()),
        ("--schedule", asked.schedule.is_some()),
        ("--dense-kernels", asked.dense_kernels.is_some()),
    ];
    match named.into_iter().find(|option| option.1) {
        None => Ok(()),
        Some((option, _)) => Err(predict::Error::Workload {
            expected: format!("a GPU with {option}; on a CPU, use --set training.precision=bf16"),
            got: "a measured CPU".to_owned(),
        }
        .into()),
    }
}

/// Predicts a step of a configuration on the given hardware, and prints it.
pub fn run(
    config: &str,
    hardware_name: &str,
    args: &PredictStep,
    session: &Session,
) -> Result<(), Error> {
    let hardware = Hardware::from_name(hardware_name, args.host.models.as_deref())?;
    let workload = Workload::resolve(config, &args.workload, hardware.hosts())?;
    let pooling = args.workload.pooling;
    let options = StepOptions { pooling, launch_ns: 0.0, kernels: &args.kernels };
    let (file, overheads) = (args.calibration.as_deref(), args.overheads.as_deref());
    if let Hardware::Devices(topology, _) = &hardware {
        report_hardware(topology, workload.plan.world_size() as usize, session);
    }
    let host = StepHost::read(&hardware, &args.host, file, overheads, session)?;
    StepHost::report(&host, session);
    let priced = price_with_host(&hardware, &workload, options, host.as_ref(), session)?;
    let price = &priced.price;
    if let Hardware::Devices(topology, _) = &hardware {
        report_links(topology, price.ranks.len(), session);
    }
    let console = session.console;
    if !price.cost.fits {
        let largest = priced.memory.iter().max_by_key(|part| part.1).map_or("", |part| &part.0);
        console.warn(format_args!(
            "the step does not fit: it needs {}, most of it {largest}, and there are {}\n\
             hint: --by memory lists all; use more ranks, another --sharding or a smaller batch",
            schema::Bytes(price.cost.peak_bytes),
            schema::Bytes(priced.memory_bytes),
        ));
    }
    match args.by {
        StepRows::Step => {
            let batch_size = workload.job.config.training.batch_size;
            let max_batch_size = hardware.max_batch_size(&workload, options)?;
            let row = step_row(config, hardware_name, batch_size, max_batch_size, &priced);
            table_output::write_rows(console, &[row], TableTarget::default())
        }
        StepRows::Stage => {
            table_output::write_rows(console, &stage_rows(&priced), TableTarget::default())
        }
        StepRows::Rank => {
            let rows: Vec<RankStagesRow> = price.ranks.iter().map(rank_row).collect();
            table_output::write_rows(console, &rows, TableTarget::default())
        }
        StepRows::Op => table_output::write_rows(console, &op_rows(price), TableTarget::default()),
        StepRows::Memory => {
            table_output::write_rows(console, &memory_rows(&priced), TableTarget::default())
        }
    }
}

/// The host of a step on GPUs.
pub struct StepHost {
    times: HostTimes,
    /// Where the times come from, unless that was already said.
    origin: Option<String>,
}

/// Times of a host's launches.
enum HostTimes {
    /// Nanoseconds of each launch.
    Launches(f64),
    /// Overheads that price PyTorch's operators.
    Operators { overheads: Box<Calibration>, updates: DenseUpdateCalls },
}

impl StepHost {
    /// Returns the host that launches the kernels of GPUs: by microseconds per launch, or else by
    /// the overheads of a calibration, of a name, or of the nearest GPU. A CPU has no other host.
    ///
    /// # Errors
    /// A file cannot be read, or the recorded host launched no kernels.
    pub fn read(
        hardware: &Hardware,
        priced: &PricedHost,
        calibration: Option<&Path>,
        overheads: Option<&str>,
        session: &Session,
    ) -> Result<Option<Self>, Error> {
        let Hardware::Devices(topology, _) = hardware else { return Ok(None) };
        if let Some(us) = priced.launch_us {
            let text =
                if us > 0.0 { format!("{us} µs per launch") } else { "left out".to_owned() };
            let origin = Some(format!("{text}, by --launch-us"));
            return Ok(Some(Self { times: HostTimes::Launches(1e3 * us), origin }));
        }
        let host = read_host(calibration, overheads, topology, JobKind::Recommendation, session)?;
        if !host.calibration.launches.has_device() {
            let expected = "recorded launches of GPU kernels".to_owned();
            return Err(predict::Error::Calibration { expected, got: "none".to_owned() }.into());
        }
        let overheads = Box::new(host.calibration);
        let times = HostTimes::Operators { overheads, updates: priced.dense_updates() };
        Ok(Some(Self { times, origin: host.origin }))
    }

    /// Says where the times of hosts come from.
    pub fn report<'a>(hosts: impl IntoIterator<Item = &'a Self>, session: &Session) {
        let origins: BTreeSet<_> =
            hosts.into_iter().filter_map(|host| host.origin.as_ref()).collect();
        for origin in origins {
            session.console.say(format_args!("host: {origin}"));
        }
    }

    /// Returns the host's nanoseconds per launch in a step with so many launches.
    pub fn launch_ns(&self, workload: &Workload, launches: f64, session: &Session) -> f64 {
        let (host, updates) = match &self.times {
            HostTimes::Launches(ns) => return *ns,
            HostTimes::Operators { overheads, updates } => (overheads, *updates),
        };
        let time = predict_host(workload.borrowed(), host, updates);
        if time.modeled > 0 {
            session.console.detail(format_args!(
                "{} of {} calls of operators are not among the overheads and take a typical time",
                time.modeled, time.operators
            ));
        }
        time.ns / launches
    }
}

/// Predicts a step on the device and on its host. The learned model of a CPU contains the time of
/// its host.
///
/// # Errors
/// As of [`Hardware::price`].
pub fn price_with_host(
    hardware: &Hardware,
    workload: &Workload,
    options: StepOptions<'_>,
    host: Option<&StepHost>,
    session: &Session,
) -> Result<HardwareStep, Error> {
    let alone = hardware.price(workload, options)?;
    let Some(host) = host else { return Ok(alone) };
    let launches = f64::from(alone.price.launches.max(1));
    let launch_ns = host.launch_ns(workload, launches, session);
    let priced = hardware.price(workload, StepOptions { launch_ns, ..options })?;
    Ok(HardwareStep { device_ns: alone.device_ns, host_ns: launch_ns * launches, ..priced })
}

/// Says which devices a step uses, by the full name, because a short one may name several.
pub fn report_hardware(topology: &Topology, ranks: usize, session: &Session) {
    let Topology { device, hosts, ranks_per_host, .. } = topology;
    let used = match topology.ranks() {
        all if all > ranks as u64 => format!(", of which {ranks} are used"),
        _ => String::new(),
    };
    session.console.say(format_args!(
        "hardware: {}, {} x {}{used}",
        device.name,
        counted(u64::from(*hosts), "host"),
        counted(u64::from(*ranks_per_host), "device")
    ));
}

fn report_links(topology: &Topology, ranks: usize, session: &Session) {
    if ranks > 1 {
        let within = &topology.within;
        session.console.detail(format_args!(
            "within a host: {}, {} GB/s per device around a ring, {} GB/s in an all-to-all",
            within.name, within.ring, within.all_to_all
        ));
    }
    if ranks > topology.ranks_per_host as usize {
        session.console.detail(format_args!("between hosts: {}", topology.between.source()));
    }
}

fn step_row<'a>(
    model: &'a str,
    hardware: &'a str,
    batch_size: usize,
    max_batch_size: Option<usize>,
    priced: &'a HardwareStep,
) -> HardwareStepRow<'a> {
    let price = &priced.price;
    let slowest = Stage::ALL.into_iter().max_by(|a, b| {
        let stage_ns = |stage: &Stage| price.stages[*stage as usize].mean_ns;
        stage_ns(a).total_cmp(&stage_ns(b))
    });
    let kinds = priced.memory.iter().map(|(name, bytes)| (name.as_str(), *bytes));
    let largest = kinds.clone().max_by_key(|kind| kind.1);
    let Estimate { mean_ns, low_ns, high_ns } = price.cost.step;
    HardwareStepRow {
        model,
        hardware,
        ranks: price.ranks.len(),
        batch_size,
        step_ns: mean_ns,
        low_ns,
        high_ns,
        host_ns: priced.host_ns,
        device_ns: priced.device_ns,
        binds: priced.binds(),
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

/// Returns the time by which each stage lengthens the step, and then the time by which the host
/// does. All rows add up to the step.
fn stage_rows(priced: &HardwareStep) -> Vec<StageRow> {
    let price = &priced.price;
    let all_ns = price.cost.step.mean_ns.max(1.0);
    let row = |stage: &'static str, time: Estimate| {
        let Estimate { mean_ns, low_ns, high_ns } = time;
        StageRow { stage, mean_ns, low_ns, high_ns, share_pct: 100.0 * mean_ns / all_ns }
    };
    let mut rows: Vec<StageRow> = Stage::ALL
        .into_iter()
        .map(|stage| row(stage.name(), price.stages[stage as usize]))
        .collect();
    if priced.host_ns > 0.0 {
        let beyond = |ns: f64| (ns - priced.device_ns).max(0.0);
        let Estimate { mean_ns, low_ns, high_ns } = price.cost.step;
        let [mean_ns, low_ns, high_ns] = [mean_ns, low_ns, high_ns].map(beyond);
        let waits = matches!(priced.binds(), Binds::Host);
        let time = if waits { Estimate { mean_ns, low_ns, high_ns } } else { Estimate::default() };
        rows.push(row("waiting_for_host", time));
    }
    rows
}

fn rank_row(rank: &predict::step::RankPrice) -> RankStagesRow {
    let stage_ns = |stage: Stage| rank.stages[stage as usize].mean_ns;
    RankStagesRow {
        rank: rank.rank,
        lookup_ns: stage_ns(Stage::Lookup),
        dense_ns: stage_ns(Stage::Dense),
        embedding_update_ns: stage_ns(Stage::EmbeddingUpdate),
        exchange_ns: Stage::EXCHANGES.into_iter().map(stage_ns).sum(),
        wait_ns: rank.wait_ns,
        table_bytes: rank.memory.table_weights + rank.memory.table_states,
        weight_bytes: rank.memory.table_weights,
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

fn memory_rows(priced: &HardwareStep) -> Vec<MemoryRow<'_>> {
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
