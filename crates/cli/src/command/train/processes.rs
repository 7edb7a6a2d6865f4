//! Trains with ranks that are processes. Rank 0 broadcasts the resolved run, and the other ranks
//! take part.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data::Dataset;
use device::cpu::Bf16Products;
use schema::{HostLayout, JobConfig, Precision, ReplicaGroups, Schedule};
use serde::{Deserialize, Serialize};
use train::run::{
    PreparedRun, Processes, RunEvent, RunOutcome, RunRequest, Start, TraceInbox, TraceRequest,
    check_shared, follow,
};

use crate::args::Train;
use setup::device::ComputeDevice;
use setup::error::{Error, UsageError};
use setup::interrupt;
use setup::on_device;
use setup::process_group::World;
use setup::{Session, plan};

/// The resolved run that rank 0 broadcasts. The other ranks ignore their own configuration, so that
/// all ranks train the same model.
#[derive(Serialize, Deserialize)]
pub struct ProcessRun {
    config: String,
    /// The sharding plan of a replica group, encoded as the JSON of a plan file.
    plan: String,
    /// The host of each rank of a group.
    hosts: Vec<usize>,
    groups: ReplicaGroups,
    train: PathBuf,
    train_rows: Range<u64>,
    evaluation: Option<(PathBuf, Range<u64>)>,
    run_folder: PathBuf,
    checkpoint: Option<PathBuf>,
    bucket_bytes: usize,
    schedule: Schedule,
    /// Whether the MPI library sums gradients, instead of rowmill's own algorithms.
    native: bool,
    /// The method of rank 0 for products of bf16 numbers. `None` if it does not multiply them on a
    /// CPU.
    bf16_products: Option<String>,
    trace: Option<(PathBuf, Range<u64>)>,
}

/// Trains on all ranks of `world`. This process is rank 0.
pub fn lead(
    world: &mut World,
    prepared: PreparedRun,
    session: &Session,
    device: &ComputeDevice,
    observe: &mut dyn FnMut(RunEvent<'_>),
) -> Result<RunOutcome, Error> {
    let (native, notice) = world.sums();
    session.console.say(notice);
    let is_bf16 = prepared.request().config.training.precision == Precision::Bf16;
    let products = device.bf16_products().filter(|_| is_bf16);
    let bf16_products = products.map(|products| products.name().to_owned());
    let run = ProcessRun { native, bf16_products, ..ProcessRun::new(prepared.request())? };
    world.fail_into(&run.run_folder);
    world.broadcast_order(run)?;
    let mut comm = world.take_comm()?;
    // Every rank writes its part of a checkpoint, so all ranks must see the same run folder.
    check_shared(&mut comm, &prepared.request().run_folder)?;
    let processes = Processes { comm, timeout: world.timeout(), native };
    Ok(on_device!(device, open => prepared.lead(open, processes, observe))?)
}

impl ProcessRun {
    fn new(request: &RunRequest) -> Result<Self, Error> {
        // The other ranks may have another working folder, so all paths must be absolute.
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let evaluation = request.evaluation.as_ref();
        let checkpoint = match &request.start {
            Start::Fresh => None,
            Start::Checkpoint(folder) => Some(absolute(folder)),
        };
        let trace = request.trace.as_ref();
        let origin = || "the run of rank 0".to_owned();
        let config = request.config.to_toml();
        Ok(Self {
            config: config.map_err(|source| UsageError::Config {
                origin: origin(),
                source: Box::new(source),
            })?,
            plan: serde_json::to_string(&request.plan)?,
            hosts: request.plan.hosts().hosts().to_vec(),
            groups: request.plan.groups(),
            train: absolute(request.train.dir()),
            train_rows: request.train_rows.clone(),
            evaluation: evaluation.map(|(data, rows)| (absolute(data.dir()), rows.clone())),
            run_folder: absolute(&request.run_folder),
            checkpoint,
            bucket_bytes: request.bucket_bytes,
            schedule: request.schedule,
            native: false,
            bf16_products: None,
            trace: trace.map(|trace| (absolute(&trace.folder), trace.steps.clone())),
        })
    }

    /// Takes part in the training as a rank other than rank 0. Returns whether the run was
    /// interrupted.
    pub fn follow(self, world: &mut World, args: &Train, session: &Session) -> Result<bool, Error> {
        world.fail_into(&self.run_folder);
        let native = self.native;
        let mut device = ComputeDevice::open(args.device, session)?;
        if let Some(products) = self.bf16_products.as_deref().and_then(Bf16Products::from_name) {
            device = device.multiplying_as(products, &self.run_folder)?;
        }
        let mut comm = world.take_comm()?;
        // The folder is checked before the data is opened, because the prepared data may be in the
        // run folder.
        check_shared(&mut comm, &self.run_folder)?;
        let request = self.into_request(args, world.threads(session))?;
        let processes = Processes { comm, timeout: world.timeout(), native };
        Ok(on_device!(&device, open => follow(&request, open, processes))?)
    }

    /// Opens the data and builds the run request of this rank.
    fn into_request(self, args: &Train, threads: usize) -> Result<RunRequest, Error> {
        let origin = "the run of rank 0";
        let config = JobConfig::parse(&self.config, &[]).map_err(|source| UsageError::Config {
            origin: origin.to_owned(),
            source: Box::new(source),
        })?;
        let plan = plan::parse(Path::new(origin), &self.plan, &config.model.tables)?;
        let plan = plan.on_hosts(HostLayout::from_hosts(&self.hosts)).in_groups(self.groups);
        let train = Arc::new(Dataset::open(&self.train)?);
        let evaluation = match self.evaluation {
            None => None,
            // If held-out rows are part of the training dataset, the dataset is not opened a second
            // time.
            Some((dir, rows)) if dir == self.train => Some((Arc::clone(&train), rows)),
            Some((dir, rows)) => Some((Arc::new(Dataset::open(&dir)?), rows)),
        };
        Ok(RunRequest {
            config,
            plan,
            train,
            train_rows: self.train_rows,
            evaluation,
            run_folder: self.run_folder,
            threads,
            start: self.checkpoint.map_or(Start::Fresh, Start::Checkpoint),
            rule_change: args.rule_change.rule_change(),
            bucket_bytes: self.bucket_bytes,
            schedule: self.schedule,
            trace: self.trace.map(|(folder, steps)| TraceRequest { folder, steps }),
            // Ordered traces are those of rank 0.
            orders: TraceInbox::default(),
            stop: interrupt::stop_flag_of_ranks(None),
        })
    }
}
