//! One rank: its model, and how it carries out commands.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use comm::Communicator;
use device::Cpu;
use schema::{Batch, JobConfig, Rank, ShardingPlan};
use trace::{Recorder, RunInfo};

use super::command::Command;
use super::start::State;
use super::{RunRequest, TraceRequest};
use crate::checkpoint::{Checkpoint, Writer, Written};
use crate::model::RankParameters;
use crate::parameter::{self, DenseParameter, dense_shapes};
use crate::profile::Profiler;
use crate::{Error, Model, RankContext, Share, Step};

/// What a command gave; sums and lists are over all ranks, in rank order.
pub enum Reply {
    /// Σ of the samples' losses.
    Trained(f64),
    /// Probabilities of all samples, and Σ of their losses.
    Evaluated(Vec<f32>, f64),
    /// What each rank wrote.
    Saved(Vec<Written>),
    /// Whose weights are no finite numbers; nothing was written.
    NotFinite(String),
    /// The trace files.
    Traced(Vec<PathBuf>),
    /// Nothing more to do.
    Finished,
}

/// A rank at work.
pub struct Worker<'a> {
    request: &'a RunRequest,
    /// Threads, communicator and profiler.
    pub context: RankContext,
    model: Model,
}

impl<'a> Worker<'a> {
    /// The rank at `comm`, with the weights `start` says.
    pub fn new(request: &'a RunRequest, start: &State, comm: Communicator) -> Result<Self, Error> {
        let (rank, size) = (comm.rank(), comm.world_size());
        let cpu = Cpu::new((request.threads / size).max(1));
        let batch_max = request.config.training.batch_size.div_ceil(size);
        let place = (&request.plan, rank);
        let model = match &start.checkpoint {
            None => Model::initial(&cpu, &request.config, place, batch_max)?,
            Some(checkpoint) => {
                let parameters = read(checkpoint, &request.config, place)?;
                Model::restored(&cpu, &request.config, place, batch_max, parameters)?
            }
        };
        let profiler = match &request.trace {
            None => Profiler::off(),
            Some(_) => {
                let info = run_info(request, (rank, size), start.clock.base_time_ns());
                Profiler::new(Recorder::new(info), start.clock)
            }
        };
        Ok(Self { request, context: RankContext { cpu, comm, profiler }, model })
    }

    /// Does what rank 0 says until it says finish.
    pub fn follow(mut self) -> Result<(), Error> {
        loop {
            let command = self.context.comm.broadcast(Rank(0), None)?;
            if let Command::Train { record: true, step, .. } = &command {
                self.context.profiler.begin_step(step.number);
            }
            if let Reply::Finished = self.execute(&command)? {
                return Ok(());
            }
        }
    }

    /// Sends `command` to every rank and does this rank's part. Rank 0 only.
    pub fn lead(&mut self, command: &Command) -> Result<Reply, Error> {
        self.context.comm.broadcast(Rank(0), Some(command.clone()))?;
        self.execute(command)
    }

    fn execute(&mut self, command: &Command) -> Result<Reply, Error> {
        match command {
            Command::Train { batch, step, .. } => {
                let sum = self.train(batch, *step)?;
                self.context.profiler.end_step();
                Ok(Reply::Trained(sum))
            }
            Command::Evaluate { batch } => self.evaluate(batch),
            Command::Save { writer } => self.save(writer),
            Command::WriteTrace => self.write_trace(),
            Command::Finish => Ok(Reply::Finished),
        }
    }

    fn train(&mut self, batch: &Arc<Batch>, step: Step) -> Result<f64, Error> {
        let (own, first_sample) = self.share(batch);
        let share = Share { batch: &own, first_sample, global_size: batch.size };
        let sum = self.model.train(&mut self.context, share, step)?;
        let sums = self.context.comm.all_gather(vec![sum])?;
        Ok(sums.iter().flat_map(|sums| sums.iter()).sum())
    }

    fn evaluate(&mut self, batch: &Arc<Batch>) -> Result<Reply, Error> {
        let (own, first_sample) = self.share(batch);
        let share = Share { batch: &own, first_sample, global_size: batch.size };
        let (probabilities, sum) = self.model.evaluate(&mut self.context, share)?;
        let gathered = self.context.comm.all_gather(probabilities.to_vec())?;
        let sums = self.context.comm.all_gather(vec![sum])?;
        let probabilities = gathered.iter().flat_map(|part| part.iter().copied()).collect();
        Ok(Reply::Evaluated(probabilities, sums.iter().flat_map(|sums| sums.iter()).sum()))
    }

    /// This rank's samples of `batch`, and the number of the first.
    fn share<'b>(&self, batch: &'b Batch) -> (Cow<'b, Batch>, usize) {
        let (rank, size) = (self.context.comm.rank().index(), self.context.comm.world_size());
        if size == 1 {
            return (Cow::Borrowed(batch), 0);
        }
        let cut = |rank: usize| batch.size * rank / size;
        (Cow::Owned(batch.slice(cut(rank)..cut(rank + 1))), cut(rank))
    }

    fn save(&mut self, writer: &Writer) -> Result<Reply, Error> {
        let rank = self.context.comm.rank();
        // Before anything is written: a checkpoint is there to go on from.
        let spoilt = self.context.comm.all_gather(self.not_finite().into_iter().collect())?;
        if let Some(whose) = spoilt.iter().flat_map(|names| names.iter()).next() {
            return Ok(Reply::NotFinite(whose.clone()));
        }
        let optimizers = &self.request.config.optimizer;
        let tiles = (self.model.tiles(), optimizers.sparse.kind);
        let mut written = vec![writer.write_rank(rank, tiles)?];
        if rank == Rank(0) {
            let dense = self.model.dense().to_parameters(&self.context.cpu)?;
            written.push(writer.write_dense(&dense, optimizers.dense.kind)?);
        }
        let all = self.context.comm.all_gather(written)?;
        Ok(Reply::Saved(all.iter().flat_map(|part| part.iter().cloned()).collect()))
    }

    /// The first table or dense parameter of this rank with a weight that is no finite number.
    fn not_finite(&self) -> Option<String> {
        if let Some(name) = self.model.dense().not_finite() {
            return Some(name.to_owned());
        }
        let mut tiles = self.model.tiles().iter();
        let spoilt = tiles.find(|tile| !parameter::is_finite(&self.context.cpu, tile))?;
        let table = &self.request.config.model.tables[spoilt.tile.table.index()];
        Some(format!("table {:?}", table.name))
    }

    fn write_trace(&mut self) -> Result<Reply, Error> {
        let mut paths = Vec::new();
        let rank = self.context.comm.rank();
        if let (Some(TraceRequest { folder, .. }), Some(recorder)) =
            (&self.request.trace, self.context.profiler.recorder())
        {
            // Apart, because readers of a folder of traces take every file for a Kineto trace.
            let graphs = folder.join("execution_trace");
            std::fs::create_dir_all(&graphs).map_err(Error::io("create", &graphs))?;
            let kineto = folder.join(format!("kineto_rank{rank}.json"));
            recorder.write_kineto(&kineto)?;
            paths.push(kineto);
            if let Some(step) = recorder.steps().last() {
                let execution_trace = graphs.join(format!("rank{rank}.json"));
                recorder.write_execution_trace(step, &execution_trace)?;
                paths.push(execution_trace);
            }
        }
        let all = self.context.comm.all_gather(paths)?;
        Ok(Reply::Traced(all.iter().flat_map(|part| part.iter().cloned()).collect()))
    }
}

/// The parameters of one rank, from any plan's checkpoint.
pub fn read(
    checkpoint: &Checkpoint,
    config: &JobConfig,
    (plan, rank): (&ShardingPlan, Rank),
) -> Result<RankParameters, Error> {
    let (model, optimizer) = (&config.model, &config.optimizer);
    let zeros = |(name, shape): (String, Vec<usize>)| {
        DenseParameter::zeros(&name, &shape, optimizer.dense.kind)
    };
    let mut dense: Vec<_> = dense_shapes(model).into_iter().map(zeros).collect();
    checkpoint.read_dense(&mut dense)?;
    let tile = |tile: &schema::Tile| {
        let name = &model.tables[tile.table.index()].name;
        checkpoint.read_tile(name, tile, optimizer.sparse.kind)
    };
    let tiles = plan.tiles_of(rank).map(tile).collect::<Result<_, _>>()?;
    Ok(RankParameters { dense, tiles })
}

fn run_info(request: &RunRequest, (rank, size): (Rank, usize), base_time_ns: i64) -> RunInfo {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let threads = (request.threads / size).max(1);
    RunInfo {
        rank: rank.0,
        world_size: size as u32,
        backend: "in_process".to_owned(),
        pid: std::process::id(),
        main_tid: thread_id(),
        host: host.trim().to_owned(),
        threads,
        device: device_name(Path::new("/proc/cpuinfo")),
        base_time_ns,
    }
}

/// The kernel's number of this thread, or the process's where it cannot be told.
fn thread_id() -> u64 {
    let link = std::fs::read_link("/proc/thread-self").ok();
    let name = link.as_ref().and_then(|link| link.file_name()?.to_str());
    name.and_then(|name| name.parse().ok()).unwrap_or(u64::from(std::process::id()))
}

fn device_name(cpuinfo: &Path) -> String {
    let text = std::fs::read_to_string(cpuinfo).unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}
