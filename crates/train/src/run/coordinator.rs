//! The loop of rank 0: reads batches, sends commands to the ranks, accumulates losses, and reports
//! events.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use data::{IdsOutside, Loader, Position};
use device::Backend;
use schema::{Op, RowScope};

use super::command::TrainStep;
use super::event::{BestCheckpoint, LoggedInterval, RunEvent, RunOutcome};
use super::loaders::{first_batch, held_out, total_run_steps};
use super::ordered::OrderedTrace;
use super::request::RunRequest;
use super::sharing::RowSharer;
use super::start::{self, BestEvaluation, LossTally, RunProgress, StartState};
use super::worker::{EvaluatedBatch, RankWorker, Saved};
use crate::checkpoint::{self, CheckpointWriter, Meta};
use crate::embedding::stored_tile::CacheUse;
use crate::metric::{Accumulator, is_better};
use crate::share::ReadBatch;
use crate::timing::{self, SummedTimes};
use crate::{Error, Evaluation, RunStep, table_use};

/// The training batches of rank 0, and how ranks share the reading of further loaders. Ranks that
/// are threads share one loader instead.
pub struct RunInput {
    pub batches: Option<Loader>,
    pub sharer: Option<RowSharer>,
}

/// The state of rank 0: its worker, running loss, checkpoints and counters.
struct Coordinator<'a, 'o, B: Backend> {
    request: &'a RunRequest,
    start: &'a StartState,
    worker: RankWorker<'a, B>,
    sharer: Option<RowSharer>,
    observe: &'o mut dyn FnMut(RunEvent<'_>),
    step: u64,
    samples: u64,
    position: Position,
    tally: LossTally,
    last_loss: f64,
    ids_outside: Vec<IdsOutside>,
    /// Time and samples of this session, and of the interval since the last log line.
    session: Stopwatch,
    interval: Stopwatch,
    /// Times of all ranks in this session, up to the last log line.
    session_times: Vec<SummedTimes>,
    saved: Option<std::path::PathBuf>,
    saved_step: Option<u64>,
    /// Use of the caches of tables in files, as of the last checkpoint.
    caches: Vec<CacheUse>,
    /// The best evaluation so far, if the run keeps the best checkpoint.
    best: Option<BestEvaluation>,
    /// All metrics of the best evaluation, if this session made it.
    best_metrics: Option<Evaluation>,
    /// The step and result of the last evaluation.
    evaluated: Option<(u64, Evaluation)>,
    /// The batch of the last step, kept until the next one is read.
    last_batch: Option<ReadBatch>,
    /// Batches that all ranks will train next.
    announced: VecDeque<AnnouncedBatch>,
    /// Whether the other ranks know that no step directly follows those announced.
    is_paused: bool,
    is_out_of_data: bool,
    /// The error of the batch after those announced.
    unread_batch: Option<data::Error>,
    /// Steps whose losses have not been read yet, with their numbers of samples. Between two steps
    /// at most two losses are unread.
    unread: VecDeque<(u64, u64)>,
    traced: bool,
    /// The ordered trace that is being recorded, and its steps.
    ordered: Option<(OrderedTrace, Range<u64>)>,
}

/// A batch that all ranks will train.
struct AnnouncedBatch {
    batch: ReadBatch,
    /// Position of the loader after this batch.
    position: Position,
    /// Factor of the schedule on the learning rates.
    factor: f64,
}

/// Accumulates the time and samples of training steps, without evaluations and checkpoints.
#[derive(Clone, Copy, Default)]
struct Stopwatch {
    busy: Duration,
    input_wait: Duration,
    samples: u64,
}

impl Stopwatch {
    fn add(&mut self, busy: Duration, input_wait: Duration, samples: u64) {
        self.busy += busy;
        self.input_wait += input_wait;
        self.samples += samples;
    }

    fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.busy.as_secs_f64().max(1e-9)
    }

    fn input_wait_share(&self) -> f64 {
        self.input_wait.as_secs_f64() / self.busy.as_secs_f64().max(1e-9)
    }
}

/// Trains to the end of the run, then ends the other ranks.
pub fn lead<'a, B: Backend>(
    request: &'a RunRequest,
    start: &'a StartState,
    worker: RankWorker<'a, B>,
    input: RunInput,
    observe: &mut dyn FnMut(RunEvent<'_>),
) -> Result<RunOutcome, Error> {
    let began = Instant::now();
    let progress = start.progress.as_ref();
    let mut coordinator = Coordinator {
        request,
        start,
        worker,
        sharer: input.sharer,
        observe,
        step: start.step,
        samples: start.samples,
        position: progress.map(|progress| progress.loader.clone()).unwrap_or_default(),
        tally: progress.map(RunProgress::tally).unwrap_or_default(),
        last_loss: progress.map_or(f64::NAN, RunProgress::last_loss),
        ids_outside: Vec::new(),
        session: Stopwatch::default(),
        interval: Stopwatch::default(),
        session_times: Vec::new(),
        saved: start.checkpoint.as_ref().map(|checkpoint| checkpoint.folder().to_owned()),
        saved_step: start.checkpoint.as_ref().map(|_| start.step),
        caches: Vec::new(),
        best: progress.and_then(RunProgress::best),
        best_metrics: None,
        evaluated: None,
        last_batch: None,
        announced: VecDeque::new(),
        is_paused: false,
        is_out_of_data: false,
        unread_batch: None,
        unread: VecDeque::new(),
        traced: false,
        ordered: None,
    };
    coordinator.begin()?;
    let mut interrupted = coordinator.train(input.batches)?;
    // The last step need not be one after which groups average their tables.
    if coordinator.step > start.step && !coordinator.are_groups_equal() {
        coordinator.worker.lead_average_groups(coordinator.step)?;
    }
    if request.config.training.keep_best.is_some() && !interrupted {
        // Evaluate before saving, because the checkpoint stores the best evaluation.
        coordinator.evaluate()?;
    }
    // Save before writing the trace, so that a failure of the trace does not lose the weights.
    coordinator.save()?;
    coordinator.write_trace()?;
    coordinator.answer_order();
    let evaluation = if interrupted { None } else { coordinator.evaluate()? };
    interrupted |= evaluation.is_none() && request.evaluation.is_some();
    coordinator.worker.lead_finish()?;
    coordinator.take_times();
    let loss = if coordinator.tally.samples > 0 {
        coordinator.tally.mean()
    } else {
        coordinator.last_loss
    };
    Ok(RunOutcome {
        step: coordinator.step,
        samples: coordinator.samples,
        samples_per_second: coordinator.session.samples_per_second(),
        input_wait_share: coordinator.session.input_wait_share(),
        timing: timing::mean_times(&coordinator.session_times),
        loss,
        evaluation,
        best: coordinator.best_checkpoint(),
        out_of_patience: coordinator.is_out_of_patience()
            && coordinator.step < total_run_steps(request),
        checkpoint: coordinator.saved,
        caches: coordinator.caches,
        ids_left_out: coordinator.worker.ids_left_out,
        ids_outside: coordinator.ids_outside,
        interrupted,
        seconds: began.elapsed().as_secs_f64(),
    })
}

impl<B: Backend> Coordinator<'_, '_, B> {
    /// Sets aside checkpoints that are newer than the starting point, once all checks have passed.
    fn begin(&mut self) -> Result<(), Error> {
        self.worker.lead_begin()?;
        if self.start.checkpoint.is_none() {
            return Ok(());
        }
        for (from, to) in checkpoint::set_aside_after(&self.request.run_folder, self.step)? {
            (self.observe)(RunEvent::SetAside { from: &from, to: &to });
        }
        // The best checkpoint may be among those that were set aside, so record the best one again.
        checkpoint::set_best(&self.request.run_folder, self.best.map(|best| best.step))
    }

    /// Compares an evaluation with the best one so far. A better one is saved as the best
    /// checkpoint.
    fn judge(&mut self, evaluation: &Evaluation) -> Result<(), Error> {
        let Some(by) = self.request.config.training.keep_best else { return Ok(()) };
        let figure = evaluation.figure(by);
        match &mut self.best {
            Some(best) if !is_better(by, figure, best.figure()) => {
                best.worse_since += 1;
                return Ok(());
            }
            // NaN compares with nothing, so it cannot become the best.
            None if figure.is_nan() => return Ok(()),
            best => *best = Some(BestEvaluation::new(self.step, figure)),
        }
        self.best_metrics = Some(*evaluation);
        self.save()?;
        // Record the best checkpoint only after it was saved, so that the record names an existing
        // one.
        checkpoint::set_best(&self.request.run_folder, Some(self.step))?;
        let keep = self.request.config.training.keep_checkpoints;
        checkpoint::retain(&self.request.run_folder, keep)?;
        Ok(())
    }

    /// Whether all replica groups hold equal tables.
    fn are_groups_equal(&self) -> bool {
        self.request.plan.groups().are_equal_after(self.step)
    }

    fn is_out_of_patience(&self) -> bool {
        let patience = self.request.config.training.patience;
        patience.zip(self.best).is_some_and(|(patience, best)| best.worse_since >= patience)
    }

    fn best_checkpoint(&self) -> Option<BestCheckpoint> {
        let by = self.request.config.training.keep_best?;
        let (best, folder) = (self.best?, checkpoint::best(&self.request.run_folder)?);
        let (figure, evaluation) = (best.figure(), self.best_metrics);
        Some(BestCheckpoint { step: best.step, by, figure, evaluation, folder })
    }

    /// Runs all remaining steps and returns whether the run was stopped.
    fn train(&mut self, batches: Option<Loader>) -> Result<bool, Error> {
        let request = self.request;
        let total_steps = total_run_steps(request);
        let samples_per_epoch = request.train_rows.end - request.train_rows.start;
        self.report_row_scope();
        (self.observe)(RunEvent::Started { step: self.step, total_steps, samples_per_epoch });
        let Some(mut loader) = batches else { return Ok(false) };
        let stopped = self.train_on(&mut loader, total_steps);
        self.ids_outside = loader.ids_outside();
        let stopped = stopped?;
        self.settle()?;
        loader.finish();
        Ok(stopped)
    }

    /// Runs the steps up to `total_steps` and returns whether the run was stopped.
    fn train_on(&mut self, loader: &mut Loader, total_steps: u64) -> Result<bool, Error> {
        let request = self.request;
        let training = &request.config.training;
        while self.step < total_steps {
            // Groups that update alone train on until they are equal.
            let may_stop = self.announced.is_empty() && self.are_groups_equal();
            if may_stop && self.worker.is_stopped() {
                return Ok(true);
            }
            if self.is_out_of_patience() || !self.step(loader, total_steps)? {
                break;
            }
            if due(training.evaluate_every, self.step) && self.step < total_steps {
                self.evaluate()?;
            }
            if due(training.checkpoint_every, self.step) {
                self.save()?;
            }
        }
        Ok(false)
    }

    /// Runs one training step. Returns false if there are no more batches.
    fn step(&mut self, loader: &mut Loader, total_steps: u64) -> Result<bool, Error> {
        let config = &self.request.config;
        self.take_order();
        if self.is_recorded(self.step) {
            // Wait for the previous step first, so that a recorded step starts on an idle device.
            self.settle()?;
            self.worker.context.profiler.begin_step(self.step);
        }
        // Drop the last batch before the next is read, to save the memory of one batch.
        self.last_batch = None;
        let began = Instant::now();
        let waited = self.announce(loader, total_steps)?;
        let Some(AnnouncedBatch { batch, position, factor }) = self.announced.pop_front() else {
            // If an earlier step diverged, report the divergence before this error.
            self.settle()?;
            return self.unread_batch.take().map_or(Ok(false), |error| Err(error.into()));
        };
        let size = batch.global_size() as u64;
        self.worker.lead_train()?;
        self.step += 1;
        self.unread.push_back((self.step, size));
        self.count()?;
        self.last_batch = Some(batch);
        self.samples += size;
        self.position = position;
        self.session.add(began.elapsed(), waited, size);
        self.interval.add(began.elapsed(), waited, size);
        (self.observe)(RunEvent::Stepped { step: self.step, samples: self.samples });
        if due(Some(config.training.log_every), self.step) {
            self.settle()?;
            self.log(factor);
        }
        if self.trace_end() == Some(self.step) {
            self.write_trace()?;
            self.answer_order();
        }
        Ok(true)
    }

    /// Reads batches and announces their steps, as far ahead as the schedule asks for and nothing
    /// but training steps follows. Returns the time spent waiting for input.
    fn announce(&mut self, loader: &mut Loader, total_steps: u64) -> Result<Duration, Error> {
        let (config, ahead) = (&self.request.config, self.worker.lookahead());
        let mut waited = Duration::ZERO;
        while self.announced.len() <= ahead && self.may_announce(total_steps) {
            let number = self.step + self.announced.len() as u64;
            let began = Instant::now();
            let op = Op::InputWait { batch_size: config.training.batch_size };
            // All rows may have been decoded for the first batch, and `first_batch` frees that
            // memory.
            let next = if number == self.start.step { first_batch } else { Loader::next };
            let loaded = self.worker.context.profiler.op(op, || next(loader));
            waited += began.elapsed();
            let loaded = match loaded {
                Some(Ok(loaded)) => loaded,
                Some(Err(error)) => {
                    self.unread_batch = Some(error);
                    break;
                }
                None => {
                    self.is_out_of_data = true;
                    break;
                }
            };
            let (position, factor) = (loaded.position.clone(), config.schedule.factor(number));
            let batch = ReadBatch::from(loaded);
            let (step, record) = (RunStep { number, factor }, self.is_recorded(number));
            self.worker.lead_announce(TrainStep { step, record }, &batch)?;
            self.announced.push_back(AnnouncedBatch { batch, position, factor });
            self.is_paused = false;
        }
        if !self.announced.is_empty() && self.announced.len() <= ahead && !self.is_paused {
            self.worker.lead_pause()?;
            self.is_paused = true;
        }
        Ok(waited)
    }

    /// Whether another step may be announced: the first one, or one that directly follows those
    /// announced.
    fn may_announce(&self, total_steps: u64) -> bool {
        let number = self.step + self.announced.len() as u64;
        if number >= total_steps || self.is_out_of_data || self.unread_batch.is_some() {
            return false;
        }
        let training = &self.request.config.training;
        // Reading the last outcome of an asynchronous device needs all ranks.
        let is_settled = self.is_recorded(number) || due(Some(training.log_every), number);
        let is_interrupted = due(training.evaluate_every, number)
            || due(training.checkpoint_every, number)
            || self.trace_end() == Some(number)
            || B::IS_ASYNC && is_settled
            || self.worker.is_stopped();
        self.announced.is_empty() || !is_interrupted
    }

    fn is_recorded(&self, step: u64) -> bool {
        self.recorded_steps().is_some_and(|steps| steps.contains(&step))
    }

    fn trace_end(&self) -> Option<u64> {
        self.recorded_steps().map(|steps| steps.end)
    }

    fn recorded_steps(&self) -> Option<&Range<u64>> {
        let requested = self.request.trace.as_ref().map(|trace| &trace.steps);
        requested.or_else(|| self.ordered.as_ref().map(|(_, steps)| steps))
    }

    /// Takes the next order of a trace, and decides which steps it records.
    fn take_order(&mut self) {
        if self.ordered.is_some() || self.request.trace.is_some() {
            return;
        }
        let Some(order) = self.request.orders.take() else { return };
        let trained = (self.step - self.start.step).max(1);
        let step_s = self.session.busy.as_secs_f64() / trained as f64;
        // Steps that were announced are not recorded, nor is the first one, which takes longest.
        let next = (self.step + self.announced.len() as u64).max(self.start.step + 1);
        let steps = order.extent.steps(next, step_s);
        self.ordered = Some((order, steps));
    }

    /// Writes the steps that were recorded for an order. A trace that cannot be written does not
    /// end the run.
    fn answer_order(&mut self) {
        let Some((order, _)) = self.ordered.take() else { return };
        if let Some(recorder) = self.worker.context.profiler.recorder_mut() {
            let steps = recorder.steps().count() as u64;
            let problem = recorder.write_ordered(&order.id, &order.path).err();
            let problem = problem.map(|error| error.to_string());
            (self.observe)(RunEvent::Answered { path: &order.path, steps, problem });
        }
        self.request.orders.clear();
    }

    /// Adds the losses that were read to the tally. The first one belongs to the oldest unread
    /// step.
    fn count(&mut self) -> Result<(), Error> {
        while let Some(sum) = self.worker.sums.pop_front() {
            let Some((step, samples)) = self.unread.pop_front() else { return Ok(()) };
            if !sum.is_finite() {
                let what = format!("the loss is {sum}, expected a finite number");
                return Err(Error::Diverged { step, what, checkpoint: self.saved.clone() });
            }
            self.tally.sum += sum;
            self.tally.samples += samples;
        }
        Ok(())
    }

    /// Reads the outcomes of steps that are still pending. The coordinator must call this before it
    /// logs, evaluates or saves.
    fn settle(&mut self) -> Result<(), Error> {
        self.worker.lead_settle()?;
        self.count()
    }

    /// Reports if the optimizer's row scope is not whole rows, or differs from that of the
    /// checkpoint.
    fn report_row_scope(&mut self) {
        let StartState { row_scope: scope, row_scope_before, .. } = self.start;
        let before = row_scope_before.as_ref();
        if matches!(scope, RowScope::ColumnTiles(_)) || before.is_some() {
            let optimizer = self.request.config.optimizer.sparse.kind;
            (self.observe)(RunEvent::RowScope { optimizer, scope, before });
        }
    }

    /// Returns the times of all ranks since the last call.
    fn take_times(&mut self) -> Vec<SummedTimes> {
        let times = std::mem::take(&mut self.worker.rank_times);
        timing::add_times(&mut self.session_times, times.iter().copied());
        times
    }

    fn log(&mut self, factor: f64) {
        let (watch, times) = (self.interval, self.take_times());
        self.last_loss = self.tally.mean();
        let interval = LoggedInterval {
            step: self.step,
            epoch: self.position.epoch,
            samples: self.samples,
            loss: self.last_loss,
            samples_per_second: watch.samples_per_second(),
            learning_rate: self.request.config.optimizer.dense.learning_rate * factor,
            input_wait_share: watch.input_wait_share(),
            exchange_wait_share: timing::exposed_share(&times),
            timing: timing::mean_times(&times),
        };
        (self.observe)(RunEvent::Interval(&interval));
        self.tally = LossTally::default();
        self.interval = Stopwatch::default();
    }

    /// Evaluates the held-out samples. Returns `None` if there are no such samples, or if the run
    /// is stopped during the evaluation.
    fn evaluate(&mut self) -> Result<Option<Evaluation>, Error> {
        if let Some((_, evaluation)) = self.evaluated.filter(|(step, _)| *step == self.step) {
            return Ok(Some(evaluation));
        }
        self.settle()?;
        let sharing = self.sharer.as_ref().and_then(RowSharer::share);
        let Some((mut loader, total)) = held_out(self.request, sharing)? else { return Ok(None) };
        self.worker.lead_read_held_out()?;
        let mut accumulator = Accumulator::new();
        loop {
            // Stop before a batch is taken, because all ranks must take the same batches.
            if self.worker.is_stopped() {
                loader.finish();
                return Ok(None);
            }
            let Some(loaded) = loader.next() else { break };
            let EvaluatedBatch { probabilities, labels, groups, loss_sum } =
                self.worker.lead_evaluate(&ReadBatch::from(loaded?))?;
            accumulator.push(&probabilities, &labels, loss_sum);
            accumulator.push_groups(&groups);
            (self.observe)(RunEvent::Evaluating { samples: accumulator.samples(), total });
        }
        loader.finish();
        if let Some(problem) = accumulator.not_finite() {
            return Err(self.diverged(format!("held-out data: {problem}")));
        }
        let evaluation = accumulator.finish();
        (self.observe)(RunEvent::Evaluated { step: self.step, evaluation: &evaluation });
        self.evaluated = Some((self.step, evaluation));
        self.judge(&evaluation)?;
        Ok(Some(evaluation))
    }

    fn diverged(&self, what: String) -> Error {
        Error::Diverged { step: self.step, what, checkpoint: self.saved.clone() }
    }

    /// Writes a checkpoint of this step, unless it is already saved.
    fn save(&mut self) -> Result<(), Error> {
        if self.saved_step == Some(self.step) {
            return Ok(());
        }
        let began = Instant::now();
        self.settle()?;
        (self.observe)(RunEvent::Saving);
        let (request, config) = (self.request, &self.request.config);
        let writer = CheckpointWriter::begin(&request.run_folder, self.step, &config.model.tables)?;
        let (records, used, caches) =
            match self.worker.lead_save(&writer, self.last_batch.as_ref())? {
                Saved::Written(records, used, caches) => (records, used, caches),
                Saved::Rejected(what) => return Err(self.diverged(what)),
            };
        let progress =
            RunProgress::new(self.position.clone(), self.tally, self.last_loss, self.best);
        let meta = Meta {
            samples: self.samples,
            config,
            plan: &request.plan,
            row_scope: self.start.row_scope.clone(),
            fitted: json(&request.run_folder, request.train.fitted())?,
            position: json(&request.run_folder, &progress)?,
            data: start::seen_data(request),
        };
        let committed = writer.commit(&meta, records)?;
        checkpoint::retain(&request.run_folder, config.training.keep_checkpoints)?;
        self.caches = CacheUse::sum_tables(caches);
        let tables = table_use::sum_tiles(&config.model, &used);
        (self.observe)(RunEvent::Tables { step: self.step, tables: &tables });
        (self.observe)(RunEvent::Saved {
            step: self.step,
            path: &committed.folder,
            bytes: committed.bytes,
            seconds: began.elapsed().as_secs_f64(),
        });
        self.saved = Some(committed.folder);
        self.saved_step = Some(self.step);
        Ok(())
    }

    /// Writes the requested trace if a step was recorded and the trace has not been written yet.
    fn write_trace(&mut self) -> Result<(), Error> {
        if self.request.trace.is_none() {
            return Ok(());
        }
        let recorder = self.worker.context.profiler.recorder();
        let steps = recorder.map_or(0, |recorder| recorder.steps().count() as u64);
        if steps == 0 || self.traced {
            return Ok(());
        }
        self.traced = true;
        let paths = self.worker.lead_write_trace()?;
        (self.observe)(RunEvent::Traced { paths: &paths, steps });
        Ok(())
    }
}

/// Serializes a value for the manifest. A failure must not become null, because null marks an
/// imported checkpoint, and a resumed run would then start its data from the beginning.
fn json(run_folder: &Path, value: &impl serde::Serialize) -> Result<serde_json::Value, Error> {
    serde_json::to_value(value).map_err(|error| Error::Manifest {
        path: run_folder.to_owned(),
        problem: error.to_string(),
    })
}

fn due(every: Option<u64>, step: u64) -> bool {
    every.is_some_and(|every| step.is_multiple_of(every))
}
