//! One rank: its model, and how it carries out commands.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use comm::Communicator;
use device::Cpu;
use schema::{Batch, JobConfig, Rank, ShardingPlan};
use trace::{Clock, Recorder, RunInfo};

use super::command::{Command, TrainStep};
use super::start::State;
use super::{RunRequest, TraceRequest};
use crate::checkpoint::{Checkpoint, Writer, Written, dtype};
use crate::model::RankParameters;
use crate::parameter::{self, DenseParameter, dense_shapes};
use crate::profile::Profiler;
use crate::{Error, Model, RankContext, Share};

/// What came of saving.
pub enum Saved {
    /// What each rank wrote, in rank order.
    Written(Vec<Written>),
    /// Why nothing was written: a value that no checkpoint may hold.
    Spoilt(String),
}

/// A rank at work.
pub struct Worker<'a> {
    request: &'a RunRequest,
    /// Threads, communicator and profiler.
    pub context: RankContext,
    model: Model,
    /// Weights of each tile at the largest number of its format when the run began.
    at_limit: Vec<usize>,
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
                let parameters = read(checkpoint, &request.config, (place, &cpu))?;
                Model::restored(&cpu, &request.config, place, batch_max, parameters)?
            }
        };
        let at_limit = |tile| match &start.checkpoint {
            None => 0,
            Some(_) => parameter::count_at_limit(&cpu, tile),
        };
        let at_limit = model.tiles().iter().map(at_limit).collect();
        let profiler = match &request.trace {
            None => Profiler::off(),
            Some(_) => {
                let info = run_info(request.threads, (rank, size), start.clock);
                Profiler::new(Recorder::new(info), start.clock)
            }
        };
        Ok(Self { request, context: RankContext { cpu, comm, profiler }, model, at_limit })
    }

    /// Does what rank 0 says until it says finish. What comes of it is rank 0's to report.
    pub fn follow(mut self) -> Result<(), Error> {
        loop {
            match self.context.comm.broadcast(Rank(0), None)? {
                Command::Begin => self.begin()?,
                Command::Train(step) => {
                    if step.record {
                        self.context.profiler.begin_step(step.step.number);
                    }
                    self.train(&step)?;
                }
                Command::Evaluate { batch } => drop(self.evaluate(&batch)?),
                Command::Save { writer, probe } => drop(self.save(&writer, probe.as_ref())?),
                Command::WriteTrace => drop(self.write_trace()?),
                Command::Finish => return Ok(()),
            }
        }
    }

    /// Returns when every rank holds its weights. This and all that follow: rank 0 only.
    pub fn lead_begin(&mut self) -> Result<(), Error> {
        self.tell(Command::Begin)?;
        self.begin()
    }

    /// Takes one step; Σ of the samples' losses before it.
    pub fn lead_train(&mut self, step: TrainStep) -> Result<f64, Error> {
        self.tell(Command::Train(step.clone()))?;
        self.train(&step)
    }

    /// Probabilities of all samples, and Σ of their losses.
    pub fn lead_evaluate(&mut self, batch: &Arc<Batch>) -> Result<(Vec<f32>, f64), Error> {
        self.tell(Command::Evaluate { batch: Arc::clone(batch) })?;
        self.evaluate(batch)
    }

    /// Writes every rank's parameters, if they are fit to be saved and give a finite loss on
    /// `probe`.
    pub fn lead_save(
        &mut self,
        writer: &Arc<Writer>,
        probe: Option<&Arc<Batch>>,
    ) -> Result<Saved, Error> {
        self.tell(Command::Save { writer: Arc::clone(writer), probe: probe.cloned() })?;
        self.save(writer, probe)
    }

    /// Writes every rank's trace; the files.
    pub fn lead_write_trace(&mut self) -> Result<Vec<PathBuf>, Error> {
        self.tell(Command::WriteTrace)?;
        self.write_trace()
    }

    /// Ends the run on every rank.
    pub fn lead_finish(&mut self) -> Result<(), Error> {
        self.tell(Command::Finish)
    }

    fn tell(&mut self, command: Command) -> Result<(), Error> {
        self.context.comm.broadcast(Rank(0), Some(command))?;
        Ok(())
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.context.comm.all_gather(Vec::<u8>::new())?;
        Ok(())
    }

    fn train(&mut self, TrainStep { batch, step, .. }: &TrainStep) -> Result<f64, Error> {
        let (own, first_sample) = self.share(batch);
        let share = Share { batch: &own, first_sample, global_size: batch.size };
        let sum = self.model.train(&mut self.context, share, *step)?;
        let sum = self.sum_over_ranks(sum)?;
        self.context.profiler.end_step();
        Ok(sum)
    }

    fn evaluate(&mut self, batch: &Arc<Batch>) -> Result<(Vec<f32>, f64), Error> {
        let (own, first_sample) = self.share(batch);
        let share = Share { batch: &own, first_sample, global_size: batch.size };
        let (probabilities, sum) = self.model.evaluate(&mut self.context, share)?;
        let gathered = self.context.comm.all_gather(probabilities.to_vec())?;
        let probabilities = gathered.iter().flat_map(|part| part.iter().copied()).collect();
        Ok((probabilities, self.sum_over_ranks(sum)?))
    }

    /// The sum in rank order.
    fn sum_over_ranks(&mut self, own: f64) -> Result<f64, Error> {
        let sums = self.context.comm.all_gather(vec![own])?;
        Ok(sums.iter().flat_map(|sums| sums.iter()).sum())
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

    fn save(&mut self, writer: &Writer, probe: Option<&Arc<Batch>>) -> Result<Saved, Error> {
        let rank = self.context.comm.rank();
        // Before anything is written: a checkpoint is there to be resumed.
        if let Some(spoilt) = self.spoilt(probe)? {
            return Ok(Saved::Spoilt(spoilt));
        }
        let optimizers = &self.request.config.optimizer;
        let tiles = (self.model.tiles(), optimizers.sparse.kind);
        let mut written = vec![writer.write_rank(rank, tiles)?];
        if rank == Rank(0) {
            let dense = self.model.dense().to_parameters(&self.context.cpu)?;
            written.push(writer.write_dense(&dense, optimizers.dense.kind)?);
        }
        let all = self.context.comm.all_gather(written)?;
        Ok(Saved::Written(all.iter().flat_map(|part| part.iter().cloned()).collect()))
    }

    /// Why the parameters of some rank are not fit to be saved: a value that is no finite number, a
    /// weight that its format cut off, or a loss on `probe` that is no finite number. The loss of a
    /// step is that of the weights before it, so only such a probe sees what the last step made.
    fn spoilt(&mut self, probe: Option<&Arc<Batch>>) -> Result<Option<String>, Error> {
        let own = self.spoilt_here()?;
        let all = self.context.comm.all_gather(own.into_iter().collect())?;
        if let Some(spoilt) = all.iter().flat_map(|own| own.iter()).next() {
            return Ok(Some(spoilt.clone()));
        }
        let Some(batch) = probe else { return Ok(None) };
        let (_, sum) = self.evaluate(batch)?;
        let mean = sum / batch.size as f64;
        let text = || {
            format!("the loss on the same batch after the step is {mean}, expected a finite number")
        };
        Ok((!mean.is_finite()).then(text))
    }

    /// The first such value of this rank.
    fn spoilt_here(&self) -> Result<Option<String>, Error> {
        let (cpu, config) = (&self.context.cpu, &self.request.config);
        if let Some(spot) = self.model.dense().not_finite(cpu)? {
            return Ok(Some(format!("{spot}, expected a finite number")));
        }
        for (state, &before) in self.model.tiles().iter().zip(&self.at_limit) {
            let table = &config.model.tables[state.tile.table.index()];
            let of = (table.name.as_str(), config.optimizer.sparse.kind);
            if let Some(spot) = parameter::not_finite(cpu, state, of) {
                return Ok(Some(format!("{spot}, expected a finite number")));
            }
            if parameter::count_at_limit(cpu, state) > before
                && let Some(spot) = parameter::first_at_limit(state, &table.name)
            {
                let ends = dtype(table.data_type);
                let text = format!("{spot}: {ends} ends there, larger weights were cut off");
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    fn write_trace(&mut self) -> Result<Vec<PathBuf>, Error> {
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
        Ok(all.iter().flat_map(|part| part.iter().cloned()).collect())
    }
}

/// The parameters of one rank with their state, from any plan's checkpoint.
fn read(
    checkpoint: &Checkpoint,
    config: &JobConfig,
    ((plan, rank), cpu): ((&ShardingPlan, Rank), &Cpu),
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
    let parameters = RankParameters { dense, tiles };
    parameters.check_finite(cpu, (checkpoint.folder(), config))?;
    Ok(parameters)
}

/// What a recording of one of `size` ranks, which share `threads`, says of itself. Its main thread
/// is the one that asks.
pub fn run_info(threads: usize, (rank, size): (Rank, usize), clock: Clock) -> RunInfo {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let threads = (threads / size).max(1);
    RunInfo {
        rank: rank.0,
        world_size: size as u32,
        backend: "in_process".to_owned(),
        pid: std::process::id(),
        main_tid: thread_id(),
        host: host.trim().to_owned(),
        threads,
        device: device_name(Path::new("/proc/cpuinfo")),
        base_time_ns: clock.base_time_ns(),
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
