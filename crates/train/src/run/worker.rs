//! One rank of a run: its model, and how it carries out the commands of rank 0.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use comm::Communicator;
use device::Backend;
use device::backend::{TileRoom, TileRows};
use schema::stage::{ActionPart, Overlap};
use schema::{Batch, Rank, Schedule, Stage, StepGraph};
use serde::Serialize;
use serde::de::DeserializeOwned;
use trace::{Clock, Recorder, RunInfo};

use super::agreement;
use super::command::{Command, TrainStep};
use super::feed::Feed;
use super::request::{OpenDevice, RunRequest, TraceRequest};
use super::restore;
use super::start::StartState;
use crate::checkpoint::{CheckpointWriter, WrittenFile, dtype};
use crate::embedding::stored_tile::CacheUse;
use crate::lane::AllToAll;
use crate::metric::Groups;
use crate::model::Started;
use crate::parameter::{self, TileView};
use crate::profile::{Profiler, TimedAction};
use crate::share::{RankBatch, ReadBatch};
use crate::table_use::{self, TileUse};
use crate::timing::{self, SummedTimes};
use crate::{Error, Model, RankContext};

/// Extra time that a rank waits for commands. Rank 0 may itself be waiting for a lost rank, and its
/// error should come first because it names the lost rank.
const PRECEDENCE: Duration = Duration::from_secs(1);

/// Number of weights that are read from a file at a time for checks.
const PART_VALUES: usize = 1 << 20;

/// Bytes of a message with a loss, a number of ids left out, a stop flag and times.
const LOSS_BYTES: usize = 17 + SummedTimes::BYTES;

/// The result of saving: written files, or the reason why the parameters must not be saved.
pub enum Saved {
    /// The files written by each rank, in rank order, the change statistics of its tiles, and the
    /// use of its caches so far.
    Written(Vec<WrittenFile>, Vec<TileUse>, Vec<CacheUse>),
    /// Description of a non-finite or clamped value. Because of this value nothing was written.
    Rejected(String),
}

/// The samples of all ranks of an evaluated batch.
pub struct EvaluatedBatch {
    pub probabilities: Vec<f32>,
    pub labels: Vec<f32>,
    /// The group of each sample, or an empty list without grouping.
    pub groups: Vec<i64>,
    pub loss_sum: f64,
}

/// A training step that rank 0 has announced to all ranks.
struct AnnouncedStep {
    step: TrainStep,
    /// The samples of this rank.
    own: RankBatch,
    global_size: usize,
}

/// A training step submitted to the device, with this rank's samples.
struct PendingStep<B: Backend> {
    started: Started<B>,
    own: RankBatch,
    global_size: usize,
}

/// One rank of a run. Rank 0 calls the `lead_…` methods, each of which broadcasts a command and
/// carries it out. The other ranks call [`Self::follow`].
pub struct RankWorker<'a, B: Backend> {
    request: &'a RunRequest,
    schedule: Schedule,
    pub context: RankContext<B>,
    model: Model<B>,
    /// Steps to train, in their order.
    announced: VecDeque<AnnouncedStep>,
    /// The submitted step whose outcome has not been read yet.
    pending: Option<PendingStep<B>>,
    /// Buffers of the sum of losses.
    spare: AllToAll<u8>,
    /// Losses over all ranks that rank 0 has not counted yet, in the order of the steps.
    pub sums: VecDeque<f64>,
    /// Times of this rank that have not been sent yet.
    times: SummedTimes,
    /// Time up to which `times` counts.
    counted: Instant,
    /// Times of all ranks, on rank 0, until the coordinator takes them.
    pub rank_times: Vec<SummedTimes>,
    /// Number of ids of all ranks beyond the sequence length of their table, in the steps whose
    /// losses have arrived.
    pub ids_left_out: u64,
    groups: Groups,
    /// Channels on which rank 0 sends batches to ranks of its own process.
    handed: Vec<Sender<Arc<Batch>>>,
    /// Timeout of messages after the first step, if it differs from that of the first step.
    timeout: Option<Duration>,
    /// Reused buffer of broadcast messages.
    message_buffer: Vec<u8>,
    /// Whether some rank was asked to stop, as of the last batch.
    is_stopped: bool,
    /// Number of weights of each tile that equaled the largest value of their format when the run
    /// began.
    at_limit: Vec<usize>,
}

impl<'a, B: Backend> RankWorker<'a, B> {
    /// Opens the device of this rank, to which `comm` belongs, and loads the weights of `start`.
    pub fn new(
        request: &'a RunRequest,
        start: &StartState,
        comm: Communicator,
        threads: usize,
        open: &impl OpenDevice<B>,
    ) -> Result<Self, Error> {
        let (rank, size) = (comm.rank(), comm.world_size());
        // Ordered traces are those of rank 0.
        let is_ordered = request.orders.is_open() && rank == Rank(0);
        let profiler = if request.trace.is_some() || is_ordered {
            let info = run_info(&comm, threads, start.clock);
            Profiler::new(Recorder::new(info), start.clock)
        } else {
            Profiler::off()
        };
        let mut context = RankContext::new(open(threads)?, comm, profiler)?;
        let schedule = request.schedule.for_job(&request.config, size as u32);
        context.comm.open_lanes(schedule, &request.plan)?;
        let device_queue = context.device_queue();
        let batch_max = request.config.training.batch_size.div_ceil(size);
        let (config, plan) = (&request.config, &request.plan);
        let mut model = match &start.checkpoint {
            None => Model::initial(device_queue, config, plan, rank, batch_max)?,
            Some(checkpoint) => {
                let host = device_queue.device.host();
                let parameters = restore::read_parameters(checkpoint, config, plan, rank, host)?;
                let mut model =
                    Model::restored(device_queue, config, plan, rank, batch_max, parameters)?;
                restore::restore_files(checkpoint, config, device_queue.device, &mut model)?;
                model
            }
        };
        model.set_graph(StepGraph::new(config, request.bucket_bytes, schedule, plan));
        let (mut at_limit, mut room) = (vec![0; model.tiles().len()], TileRoom::default());
        for (tile, count) in at_limit.iter_mut().enumerate() {
            // A checkpoint may already contain weights at the limit of their format. This run
            // clamped only the weights that reach the limit later.
            if start.checkpoint.is_some() {
                for rows in row_parts(&model, tile) {
                    let view = model.tile(device_queue, rows, &mut room)?;
                    *count += parameter::count_at_limit(device_queue.device.host(), view.weight);
                }
            }
        }
        let (handed, timeout, message_buffer, is_stopped) = (Vec::new(), None, Vec::new(), false);
        let pending = None;
        let (announced, spare, sums) = (VecDeque::new(), AllToAll::default(), VecDeque::new());
        Ok(Self {
            request,
            schedule,
            context,
            model,
            announced,
            pending,
            spare,
            sums,
            times: SummedTimes::default(),
            counted: Instant::now(),
            rank_times: Vec::new(),
            ids_left_out: 0,
            groups: Groups::new(config),
            handed,
            timeout,
            message_buffer,
            is_stopped,
            at_limit,
        })
    }

    /// Makes rank 0 send every batch to the channels `handed`, from which the other ranks receive
    /// them by [`Feed::Handed`].
    pub fn handing(mut self, handed: Vec<Sender<Arc<Batch>>>) -> Self {
        self.handed = handed;
        self
    }

    /// Sets the timeout of messages after the first step.
    pub fn waiting(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Lets the transport sum dense gradients itself, if it can.
    pub fn summing(mut self, native: bool) -> Self {
        self.context.comm.dense.settings().set_native(native);
        self
    }

    /// Returns whether this rank was asked to stop, or any rank was as of the last batch.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped || self.request.stop.load(Ordering::Relaxed)
    }

    /// Carries out the commands of rank 0 until the run ends. Rank 0 reports the results. Returns
    /// whether a rank was asked to stop.
    pub fn follow(mut self, mut feed: Feed<'_>) -> Result<bool, Error> {
        let mut is_training = false;
        loop {
            self.counted = Instant::now();
            let command = self.receive()?;
            if matches!(command, Command::Train(_)) && is_training {
                let waited = self.count_time();
                self.times.add_wait(Overlap::Control, waited);
            }
            is_training = matches!(command, Command::Train(_) | Command::Pause);
            if let Command::Train(step) = command {
                self.push_announced(step, &feed.train()?);
            }
            // The next command says whether a batch follows, whose ids this step distributes.
            let known = match command {
                Command::Train(_) => usize::from(self.overlaps(Overlap::Input)),
                _ => 0,
            };
            while self.announced.len() > known {
                self.train_announced()?;
            }
            match command {
                Command::Begin => self.begin()?,
                Command::Train(_) | Command::Pause => {}
                Command::ReadHeldOut => feed.read_held_out()?,
                Command::Evaluate => drop(self.evaluate(&feed.held_out()?)?),
                Command::Save { step, probe } => {
                    let tables = &self.request.config.model.tables;
                    let writer = CheckpointWriter::join(&self.request.run_folder, step, tables);
                    let probe = if probe { Some(feed.last()?) } else { None };
                    self.save(&writer, probe.as_ref())?;
                }
                Command::AverageGroups { steps } => self.average_groups(steps)?,
                Command::Settle => self.settle()?,
                Command::WriteTrace => drop(self.write_trace()?),
                Command::Finish => {
                    self.finish_losses(0)?;
                    feed.finish();
                    return Ok(self.is_stopped);
                }
            }
        }
    }

    /// Waits until every rank has loaded its weights. Only rank 0 calls this and the other `lead_…`
    /// methods.
    pub fn lead_begin(&mut self) -> Result<(), Error> {
        self.broadcast(Command::Begin, None)?;
        self.begin()
    }

    fn overlaps(&self, overlap: Overlap) -> bool {
        self.schedule.has(overlap)
    }

    /// The number of steps that rank 0 announces before it trains the one before them.
    pub fn lookahead(&self) -> usize {
        self.schedule.lookahead()
    }

    /// Announces a step to all ranks.
    pub fn lead_announce(&mut self, step: TrainStep, batch: &ReadBatch) -> Result<(), Error> {
        self.broadcast(Command::Train(step), Some(batch))?;
        self.push_announced(step, batch);
        Ok(())
    }

    fn push_announced(&mut self, step: TrainStep, batch: &ReadBatch) {
        let (own, global_size) = (self.share(batch), batch.global_size());
        self.announced.push_back(AnnouncedStep { step, own, global_size });
    }

    /// Tells all ranks that no step directly follows those announced.
    pub fn lead_pause(&mut self) -> Result<(), Error> {
        if self.overlaps(Overlap::Input) { self.broadcast(Command::Pause, None) } else { Ok(()) }
    }

    /// Runs the step that was announced first. The other ranks run it when they have received
    /// their commands. Its loss may be added to [`Self::sums`] one step later.
    pub fn lead_train(&mut self) -> Result<(), Error> {
        self.train_announced()
    }

    /// Waits for the losses of all steps. On asynchronous devices, all ranks must read the outcome
    /// of the last step.
    pub fn lead_settle(&mut self) -> Result<(), Error> {
        if self.pending.is_some() {
            self.broadcast(Command::Settle, None)?;
        }
        self.settle()
    }

    /// Averages the tables of replica groups after `steps` steps of the run.
    pub fn lead_average_groups(&mut self, steps: u64) -> Result<(), Error> {
        self.broadcast(Command::AverageGroups { steps }, None)?;
        self.average_groups(steps)
    }

    /// Makes the other ranks start reading the held-out data. Rank 0 must call it before it reads
    /// the first batch, for which it may need rows of the other ranks.
    pub fn lead_read_held_out(&mut self) -> Result<(), Error> {
        self.broadcast(Command::ReadHeldOut, None)
    }

    /// Evaluates a batch on all ranks and returns the samples of all of them.
    pub fn lead_evaluate(&mut self, batch: &ReadBatch) -> Result<EvaluatedBatch, Error> {
        self.broadcast(Command::Evaluate, Some(batch))?;
        self.evaluate(batch)
    }

    /// Writes every rank's parameters, if they are finite and give a finite loss on `probe`.
    pub fn lead_save(
        &mut self,
        writer: &CheckpointWriter,
        probe: Option<&ReadBatch>,
    ) -> Result<Saved, Error> {
        self.broadcast(Command::Save { step: writer.step(), probe: probe.is_some() }, probe)?;
        self.save(writer, probe)
    }

    /// Writes every rank's trace and returns the paths of all files.
    pub fn lead_write_trace(&mut self) -> Result<Vec<PathBuf>, Error> {
        self.broadcast(Command::WriteTrace, None)?;
        self.write_trace()
    }

    /// Ends the run on every rank. No other method may be called after it.
    pub fn lead_finish(&mut self) -> Result<(), Error> {
        self.broadcast(Command::Finish, None)
    }

    /// Broadcasts the next command, and sends its batch to ranks of the same process.
    fn broadcast(&mut self, command: Command, batch: Option<&ReadBatch>) -> Result<(), Error> {
        if let Some(ReadBatch::Whole(batch)) = batch {
            for to in &self.handed {
                // If a rank has left, the next collective reports it.
                let _ = to.send(Arc::clone(batch));
            }
        }
        self.message_buffer.clear();
        self.message_buffer.extend_from_slice(&command.to_bytes());
        self.context.comm.control.broadcast(Rank(0), &mut self.message_buffer)?;
        Ok(())
    }

    /// Receives the next command of rank 0.
    fn receive(&mut self) -> Result<Command, Error> {
        let control = &mut self.context.comm.control;
        let usual = control.timeout();
        control.set_timeout(usual.map(|timeout| timeout + PRECEDENCE));
        control.broadcast(Rank(0), &mut self.message_buffer)?;
        control.set_timeout(usual);
        let bytes = self.message_buffer.len();
        let unknown = Error::Reply { rank: 0, expected: "a command", bytes };
        Command::from_bytes(&self.message_buffer).ok_or(unknown)
    }

    /// Gathers the replies of all ranks, in rank order.
    fn replies<T: Serialize + DeserializeOwned>(&mut self, own: &T) -> Result<Vec<T>, Error> {
        let defect = |rank, bytes| Error::Reply { rank, expected: "a reply", bytes };
        let rank = self.context.comm.rank().0;
        let own = serde_json::to_vec(own).map_err(|_| defect(rank, 0))?;
        let all = self.context.comm.control.all_gather(&own)?;
        let read = |(rank, reply): (u32, Vec<u8>)| {
            serde_json::from_slice(&reply).map_err(|_| defect(rank, reply.len()))
        };
        (0..).zip(all).map(read).collect()
    }

    fn begin(&mut self) -> Result<(), Error> {
        Ok(self.context.comm.control.barrier()?)
    }

    /// Trains the step that was announced first, and distributes the ids of the next one.
    fn train_announced(&mut self) -> Result<(), Error> {
        let Some(AnnouncedStep { step, own, global_size }) = self.announced.pop_front() else {
            return Ok(());
        };
        let TrainStep { step, record } = step;
        self.counted = Instant::now();
        if record && self.context.comm.rank() != Rank(0) {
            self.context.profiler.begin_step(step.number);
        }
        self.context.comm.set_step(step.number);
        if let Some(next) = self.announced.front().filter(|_| self.overlaps(Overlap::Input)) {
            self.model.set_next(next.own.clone());
        }
        let started = self.model.start(&mut self.context, own.share(global_size), step)?;
        self.times += self.model.step_times();
        let pending = PendingStep { started, own, global_size };
        // An asynchronous device computes this step while the host reads the outcome of the
        // previous one.
        let before = self.pending.replace(pending);
        let complete = if B::IS_ASYNC && !record { before } else { self.pending.take() };
        if let Some(complete) = complete {
            self.finish(complete)?;
        }
        self.count_time();
        self.finish_losses(usize::from(self.overlaps(Overlap::Control)))?;
        let waited = self.count_time();
        self.times.add_wait(Overlap::Control, waited);
        self.context.profiler.end_step()?;
        // The first step takes longest, so the shorter timeout applies only to later steps.
        if let Some(timeout) = self.timeout.take() {
            self.context.comm.set_timeout(Some(timeout));
        }
        Ok(())
    }

    /// Adds the time since the last call to that of the steps of this rank, and returns it.
    fn count_time(&mut self) -> Duration {
        let now = Instant::now();
        let elapsed = now - std::mem::replace(&mut self.counted, now);
        self.times.step_ns += timing::nanoseconds(elapsed);
        elapsed
    }

    fn settle(&mut self) -> Result<(), Error> {
        self.counted = Instant::now();
        if let Some(pending) = self.pending.take() {
            self.finish(pending)?;
        }
        self.finish_losses(0)
    }

    fn average_groups(&mut self, steps: u64) -> Result<(), Error> {
        let averaged = self.model.average_groups(&mut self.context, steps);
        averaged.map_err(Error::in_stage(Stage::GroupExchange, steps))
    }

    /// Waits for the end of a step and starts the sum of its losses over all ranks.
    fn finish(&mut self, pending: PendingStep<B>) -> Result<(), Error> {
        let PendingStep { started, own, global_size } = pending;
        let step = started.step();
        let began = Instant::now();
        let sum = self.model.finish(&mut self.context, started, own.share(global_size))?;
        if B::IS_ASYNC {
            self.times.device_ns += timing::nanoseconds(began.elapsed());
        }
        self.count_time();
        self.times.steps += 1;
        let left_out = self.request.config.model.ids_left_out(&own.batch.sparse);
        self.start_losses(sum, left_out).map_err(Error::in_stage(Stage::LossSum, step))
    }

    fn evaluate(&mut self, batch: &ReadBatch) -> Result<EvaluatedBatch, Error> {
        self.finish_losses(0)?;
        let own = self.share(batch);
        let share = own.share(batch.global_size());
        let (probabilities, sum) = self.model.evaluate(&mut self.context, share)?;
        let control = &mut self.context.comm.control;
        let probabilities = control.all_gather(probabilities)?.concat();
        let labels = control.all_gather(&own.batch.labels)?.concat();
        let groups = control.all_gather(&self.groups.in_batch(&own.batch))?.concat();
        self.start_losses(sum, 0)?;
        Ok(EvaluatedBatch { probabilities, labels, groups, loss_sum: self.finish_loss()? })
    }

    /// Sends the loss of this rank and its number of ids left out to all ranks. The same message
    /// carries the stop flag, so all ranks stop at the same batch, and the times of this rank.
    fn start_losses(&mut self, own: f64, left_out: usize) -> Result<(), Error> {
        let (mut exchange, lane) = (std::mem::take(&mut self.spare), &mut self.context.comm.losses);
        let is_stopped = self.request.stop.load(Ordering::Relaxed);
        let times = std::mem::take(&mut self.times);
        for _ in 0..lane.settings().world_size() {
            let mut message = lane.settings().buffer(LOSS_BYTES);
            message[..8].copy_from_slice(&own.to_le_bytes());
            message[8..16].copy_from_slice(&(left_out as u64).to_le_bytes());
            message[16] = u8::from(is_stopped);
            times.write(&mut message[17..]);
            exchange.parts.push(message);
        }
        lane.start(exchange)
    }

    /// Waits for losses that were sent, except the last `late` of them.
    fn finish_losses(&mut self, late: usize) -> Result<(), Error> {
        while self.context.comm.losses.count() > late {
            let sum = self.finish_loss()?;
            if self.context.comm.rank() == Rank(0) {
                self.sums.push_back(sum);
            }
        }
        Ok(())
    }

    /// Sums the losses of all ranks, in rank order.
    fn finish_loss(&mut self) -> Result<f64, Error> {
        let began = Instant::now();
        let mut exchange = self.context.comm.losses.finish()?;
        let (stage, part, ended) = (Stage::LossSum, ActionPart::Finish, Instant::now());
        self.context.record_exchange(&TimedAction { stage, part, began, ended });
        self.is_stopped |= exchange.parts.iter().any(|message| message.get(16) == Some(&1));
        let left_out =
            |bytes: &Vec<u8>| bytes.get(8..)?.first_chunk().map(|&ids| u64::from_le_bytes(ids));
        self.ids_left_out += exchange.parts.iter().filter_map(left_out).sum::<u64>();
        let loss =
            |bytes: &Vec<u8>| bytes.first_chunk().map_or(f64::NAN, |&sum| f64::from_le_bytes(sum));
        let sum = exchange.parts.iter().map(loss).sum();
        if self.context.comm.rank() == Rank(0) {
            let times = |bytes: &Vec<u8>| SummedTimes::read(bytes.get(17..).unwrap_or_default());
            timing::add_times(&mut self.rank_times, exchange.parts.iter().map(times));
        }
        let lane = &mut self.context.comm.losses;
        exchange.parts.drain(..).for_each(|message| lane.keep(message));
        self.spare = exchange;
        Ok(sum)
    }

    /// Returns this rank's samples of `batch`.
    fn share(&self, batch: &ReadBatch) -> RankBatch {
        batch.samples_of(self.context.comm.rank(), self.context.comm.world_size())
    }

    fn save(
        &mut self,
        writer: &CheckpointWriter,
        probe: Option<&ReadBatch>,
    ) -> Result<Saved, Error> {
        let rank = self.context.comm.rank();
        // Check before writing anything, because a run must be able to resume from every
        // checkpoint.
        if let Some(defect) = self.find_defect(probe)? {
            return Ok(Saved::Rejected(defect));
        }
        let optimizers = &self.request.config.optimizer;
        let (tiles, kind) = (self.model.tiles(), optimizers.sparse.kind);
        let (device_queue, mut room) = (self.context.device_queue(), TileRoom::default());
        let mut written = Vec::new();
        // All replica groups hold the same tables, and the first group saves them.
        if self.request.plan.place(rank) == rank {
            written.push(writer.write_tiles(rank, tiles, kind, &mut |rows, take| {
                take(&self.model.tile(device_queue, rows, &mut room)?)
            })?);
        }
        if rank == Rank(0) {
            let dense = self.model.dense().to_parameters(device_queue)?;
            written.push(writer.write_dense(&dense, optimizers.dense.kind)?);
        }
        let mut used = Vec::new();
        let tiles = 0..self.model.tiles().len();
        for rows in tiles.flat_map(|tile| row_parts(&self.model, tile)) {
            let view = self.model.tile(device_queue, rows, &mut room)?;
            used.push(table_use::measure_tile(
                device_queue.device.host(),
                &self.request.config.model,
                &view,
            ));
        }
        let reply = (written, used, self.model.cache_uses());
        let (mut written, mut used, mut caches) = (Vec::new(), Vec::new(), Vec::new());
        for (files, tiles, uses) in self.replies(&reply)? {
            written.extend(files);
            used.extend(tiles);
            caches.extend(uses);
        }
        Ok(Saved::Written(written, used, caches))
    }

    /// Finds the reason why some rank's parameters must not be saved: a non-finite value, a weight
    /// clamped by its format, or a non-finite loss on `probe`. The loss of a step is computed
    /// before its update, so only the probe detects the effect of the last update.
    fn find_defect(&mut self, probe: Option<&ReadBatch>) -> Result<Option<String>, Error> {
        let own = self.find_local_defect()?;
        // All ranks receive the same replies, so all of them return the same defect.
        if let Some(defect) = self.replies(&own)?.into_iter().flatten().next() {
            return Ok(Some(defect));
        }
        let Some(batch) = probe else { return Ok(None) };
        let mean = self.evaluate(batch)?.loss_sum / batch.global_size() as f64;
        let text = || {
            format!("the loss on the same batch after the step is {mean}, expected a finite number")
        };
        Ok((!mean.is_finite()).then(text))
    }

    /// Finds the first non-finite or clamped value of this rank.
    fn find_local_defect(&self) -> Result<Option<String>, Error> {
        let (device_queue, config) = (self.context.device_queue(), &self.request.config);
        if let Some(spot) = self.model.dense().not_finite(device_queue)? {
            return Ok(Some(format!("{spot}, expected a finite number")));
        }
        let (host, mut room) = (device_queue.device.host(), TileRoom::default());
        let kind = config.optimizer.sparse.kind;
        for (tile, &before) in self.at_limit.iter().enumerate() {
            let (mut count, mut first) = (0, None);
            let table = &config.model.tables[self.model.tiles()[tile].table.index()];
            for rows in row_parts(&self.model, tile) {
                let view: TileView<'_> = self.model.tile(device_queue, rows, &mut room)?;
                if let Some(spot) = parameter::not_finite(host, &view, &table.name, kind) {
                    return Ok(Some(format!("{spot}, expected a finite number")));
                }
                let at_limit = parameter::count_at_limit(host, view.weight);
                count += at_limit;
                if at_limit > 0 && first.is_none() {
                    first = parameter::first_at_limit(&view, &table.name);
                }
            }
            if count > before
                && let Some(spot) = first
            {
                let ends = dtype(table.data_type);
                let text =
                    format!("{spot}, the largest {ends} number; larger weights were clamped");
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
            // Execution traces have their own folder, because readers of a trace folder take every
            // file for a Kineto trace.
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
        Ok(self.replies(&paths)?.concat())
    }
}

/// Returns the ranges in which the rows of a tile are read: all at once, unless they are in a file.
fn row_parts<B: Backend>(model: &Model<B>, tile: usize) -> impl Iterator<Item = TileRows> + use<B> {
    let (count, dim) = (model.tiles()[tile].row_count(), model.tiles()[tile].dim());
    let step = if model.is_stored(tile) { (PART_VALUES / dim).max(1) } else { count.max(1) };
    let starts = (0..count).step_by(step);
    starts.map(move |start| TileRows { tile, rows: start..count.min(start + step) })
}

/// Describes this rank for its trace. The calling thread becomes the trace's main thread.
pub fn run_info(comm: &Communicator, threads: usize, clock: Clock) -> RunInfo {
    RunInfo {
        rank: comm.rank().0,
        world_size: comm.world_size() as u32,
        backend: comm.transport().to_owned(),
        pid: std::process::id(),
        main_tid: thread_id(),
        host: agreement::host(),
        threads,
        device: device_name(Path::new("/proc/cpuinfo")),
        base_time_ns: clock.base_time_ns(),
    }
}

/// Returns the thread id in the operating system, or the process id if the thread id is
/// unavailable.
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
