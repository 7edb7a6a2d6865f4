//! Rank 0's loop: reads batches, commands the ranks, counts, reports.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use data::{Dataset, FeaturePlan, IdsOutside, Loaded, Loader, LoaderOptions, Position, Shuffle};
use device::Backend;
use schema::{Batch, ModelConfig, Op, RowScope, TrainingConfig};

use super::command::{Held, TrainStep};
use super::start::{self, BestEvaluation, LossTally, RunProgress, StartState};
use super::worker::{RankWorker, Saved};
use super::{BestCheckpoint, LoggedInterval, RunEvent, RunOutcome, RunRequest};
use crate::checkpoint::{self, CheckpointWriter, Meta};
use crate::metric::{Accumulator, Groups, is_better};
use crate::{Error, Evaluation, RunStep, table_use};

/// Rank 0 with its counts.
struct Leader<'a, 'o, B: Backend> {
    request: &'a RunRequest,
    start: &'a StartState,
    worker: RankWorker<'a, B>,
    observe: &'o mut dyn FnMut(RunEvent<'_>),
    step: u64,
    samples: u64,
    position: Position,
    tally: LossTally,
    last_loss: f64,
    ids_left_out: u64,
    ids_outside: Vec<IdsOutside>,
    /// Time and samples of this session's steps, and since the last log line.
    session: Stopwatch,
    interval: Stopwatch,
    saved: Option<std::path::PathBuf>,
    saved_step: Option<u64>,
    /// The best evaluation so far, where the run looks for it.
    best: Option<BestEvaluation>,
    /// The step of the last evaluation, and what it gave.
    evaluated: Option<(u64, Evaluation)>,
    /// The batch of the last step, until the next one is read.
    last_batch: Option<Arc<Batch>>,
    /// Steps whose losses have not been read, with their samples: one at most between two steps.
    unread: VecDeque<(u64, u64)>,
    traced: bool,
}

/// Time spent training.
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

/// The batches that are left, on their way from now on; `None` if no step is.
pub fn batches(request: &RunRequest, start: &StartState) -> Result<Option<Loader>, Error> {
    let training = &request.config.training;
    let total_steps = steps_of(request);
    // Where an epoch has no full batch there are no steps either, and the loader says why.
    if start.step >= total_steps && total_steps > 0 {
        return Ok(None);
    }
    let shuffle = Shuffle { seed: training.seed, buffer_rows: training.shuffle_rows };
    let options = LoaderOptions {
        batch_size: training.batch_size,
        shuffle: (training.shuffle_rows > 0).then_some(shuffle),
        drop_last: training.drop_last,
        rows: request.train_rows.clone(),
        start: start.progress.as_ref().map(|saved| saved.loader.clone()).unwrap_or_default(),
        epochs: Some(training.epochs),
    };
    let features = feature_plan(&request.config.model);
    Ok(Some(Loader::start(&request.train, &features, options)?))
}

/// The first batch of this run. Where all rows have been decoded for it, the memory that took is
/// given back before the step takes its own: the allocator keeps it for the threads that decoded,
/// which have nothing more to do.
pub fn first_of(loader: &mut Loader) -> Option<Result<Loaded, data::Error>> {
    let first = loader.next();
    if loader.is_one_window() {
        device::buffer::return_freed_memory();
    }
    first
}

/// Trains to the end and tells the followers when it is reached.
pub fn lead<'a, B: Backend>(
    request: &'a RunRequest,
    start: &'a StartState,
    worker: RankWorker<'a, B>,
    batches: Option<Loader>,
    observe: &mut dyn FnMut(RunEvent<'_>),
) -> Result<RunOutcome, Error> {
    let began = Instant::now();
    let progress = start.progress.as_ref();
    let mut leader = Leader {
        request,
        start,
        worker,
        observe,
        step: start.step,
        samples: start.samples,
        position: progress.map(|progress| progress.loader.clone()).unwrap_or_default(),
        tally: progress.map(RunProgress::tally).unwrap_or_default(),
        last_loss: progress.map_or(f64::NAN, RunProgress::last_loss),
        ids_left_out: 0,
        ids_outside: Vec::new(),
        session: Stopwatch::default(),
        interval: Stopwatch::default(),
        saved: start.checkpoint.as_ref().map(|checkpoint| checkpoint.folder().to_owned()),
        saved_step: start.checkpoint.as_ref().map(|_| start.step),
        best: progress.and_then(RunProgress::best),
        evaluated: None,
        last_batch: None,
        unread: VecDeque::new(),
        traced: false,
    };
    leader.begin()?;
    let mut interrupted = leader.train(batches)?;
    if request.config.training.keep_best.is_some() && !interrupted {
        // Before the checkpoint, which says how the best evaluation went.
        leader.evaluate()?;
    }
    // First, so that a trace that cannot be written does not cost the weights.
    leader.save()?;
    leader.write_trace()?;
    let evaluation = if interrupted { None } else { leader.evaluate()? };
    interrupted |= evaluation.is_none() && request.evaluation.is_some();
    leader.worker.lead_finish()?;
    let loss = if leader.tally.samples > 0 { leader.tally.mean() } else { leader.last_loss };
    Ok(RunOutcome {
        step: leader.step,
        samples: leader.samples,
        samples_per_second: leader.session.samples_per_second(),
        input_wait_share: leader.session.input_wait_share(),
        loss,
        evaluation,
        best: leader.best_checkpoint(),
        out_of_patience: leader.is_out_of_patience() && leader.step < steps_of(request),
        checkpoint: leader.saved,
        ids_left_out: leader.ids_left_out,
        ids_outside: leader.ids_outside,
        interrupted,
        seconds: began.elapsed().as_secs_f64(),
    })
}

impl<B: Backend> Leader<'_, '_, B> {
    /// Makes the checkpoint the run begins at the newest of its run folder, once nothing more can
    /// refuse the run.
    fn begin(&mut self) -> Result<(), Error> {
        self.worker.lead_begin()?;
        if self.start.checkpoint.is_none() {
            return Ok(());
        }
        for (from, to) in checkpoint::set_aside_after(&self.request.run_folder, self.step)? {
            (self.observe)(RunEvent::SetAside { from: &from, to: &to });
        }
        // The best may be among those set aside.
        checkpoint::set_best(&self.request.run_folder, self.best.map(|best| best.step))
    }

    /// Compares an evaluation with the best before it; a better one is kept.
    fn judge(&mut self, evaluation: &Evaluation) -> Result<(), Error> {
        let Some(by) = self.request.config.training.keep_best else { return Ok(()) };
        let figure = evaluation.figure(by);
        match &mut self.best {
            Some(best) if !is_better(by, figure, best.figure()) => {
                best.worse_since += 1;
                return Ok(());
            }
            // Nothing is learnt from a figure that is no number.
            None if figure.is_nan() => return Ok(()),
            best => *best = Some(BestEvaluation::new(self.step, figure)),
        }
        self.save()?;
        checkpoint::set_best(&self.request.run_folder, Some(self.step))?;
        let keep = self.request.config.training.keep_checkpoints;
        checkpoint::retain(&self.request.run_folder, keep)?;
        Ok(())
    }

    fn is_out_of_patience(&self) -> bool {
        let patience = self.request.config.training.patience;
        patience.zip(self.best).is_some_and(|(patience, best)| best.worse_since >= patience)
    }

    fn best_checkpoint(&self) -> Option<BestCheckpoint> {
        let by = self.request.config.training.keep_best?;
        let (best, folder) = (self.best?, checkpoint::best(&self.request.run_folder)?);
        Some(BestCheckpoint { step: best.step, by, figure: best.figure(), folder })
    }

    /// Runs all steps; returns whether it was stopped.
    fn train(&mut self, batches: Option<Loader>) -> Result<bool, Error> {
        let request = self.request;
        let total_steps = steps_of(request);
        let samples_per_epoch = request.train_rows.end - request.train_rows.start;
        self.tell_row_scope();
        (self.observe)(RunEvent::Started { step: self.step, total_steps, samples_per_epoch });
        let Some(mut loader) = batches else { return Ok(false) };
        let stopped = self.train_on(&mut loader, total_steps);
        self.ids_outside = loader.ids_outside();
        let stopped = stopped?;
        self.settle()?;
        Ok(stopped)
    }

    /// Runs the steps up to `total_steps`; returns whether it was stopped.
    fn train_on(&mut self, loader: &mut Loader, total_steps: u64) -> Result<bool, Error> {
        let request = self.request;
        let training = &request.config.training;
        while self.step < total_steps {
            if self.worker.is_stopped() {
                return Ok(true);
            }
            if self.is_out_of_patience() || !self.step(loader)? {
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

    /// One step; returns whether there was a batch.
    fn step(&mut self, loader: &mut Loader) -> Result<bool, Error> {
        let config = &self.request.config;
        let steps = self.request.trace.as_ref().map(|trace| &trace.steps);
        let record = steps.is_some_and(|steps| steps.contains(&self.step));
        if record {
            // A recorded step is read at its end, so that its operations are known.
            self.settle()?;
            self.worker.context.profiler.begin_step(self.step);
        }
        // Not kept beside the batch to come, which would be memory for one more.
        self.last_batch = None;
        let began = Instant::now();
        let op = Op::InputWait { batch_size: config.training.batch_size };
        let is_first = self.step == self.start.step;
        let next = if is_first { first_of } else { Loader::next };
        let loaded = self.worker.context.profiler.op(op, || next(loader));
        let waited = began.elapsed();
        let Some(loaded) = loaded else { return Ok(false) };
        if loaded.is_err() {
            // Where an earlier step diverged, that is the reason to tell.
            self.settle()?;
        }
        let Loaded { batch, position } = loaded?;
        let batch = Arc::new(batch);
        let (size, factor) = (batch.size as u64, config.schedule.factor(self.step));
        self.ids_left_out += config.model.ids_left_out(&batch.sparse) as u64;
        let step = RunStep { number: self.step, factor };
        let sum = self.worker.lead_train(TrainStep { step, record }, &batch)?;
        self.step += 1;
        self.unread.push_back((self.step, size));
        self.count(sum)?;
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
        if steps.is_some_and(|steps| steps.end == self.step) {
            self.write_trace()?;
        }
        Ok(true)
    }

    /// Counts the loss of the first step that has not been counted, where it was read.
    fn count(&mut self, sum: Option<f64>) -> Result<(), Error> {
        let Some(sum) = sum else { return Ok(()) };
        let Some((step, samples)) = self.unread.pop_front() else { return Ok(()) };
        if !sum.is_finite() {
            let what = format!("the loss is {sum}, expected a finite number");
            return Err(Error::Diverged { step, what, checkpoint: self.saved.clone() });
        }
        self.tally.sum += sum;
        self.tally.samples += samples;
        Ok(())
    }

    /// Reads the outcome of the last step, if that is still to be done: nothing is logged,
    /// evaluated or saved before.
    fn settle(&mut self) -> Result<(), Error> {
        let sum = self.worker.lead_settle()?;
        self.count(sum)
    }

    /// Reports a rule that is another than on whole rows, or than before this run.
    fn tell_row_scope(&mut self) {
        let StartState { row_scope: scope, row_scope_before, .. } = self.start;
        let before = row_scope_before.as_ref();
        if matches!(scope, RowScope::ColumnTiles(_)) || before.is_some() {
            let optimizer = self.request.config.optimizer.sparse.kind;
            (self.observe)(RunEvent::RowScope { optimizer, scope, before });
        }
    }

    fn log(&mut self, factor: f64) {
        let watch = self.interval;
        self.last_loss = self.tally.mean();
        let interval = LoggedInterval {
            step: self.step,
            epoch: self.position.epoch,
            samples: self.samples,
            loss: self.last_loss,
            samples_per_second: watch.samples_per_second(),
            learning_rate: self.request.config.optimizer.dense.learning_rate * factor,
            input_wait_share: watch.input_wait_share(),
        };
        (self.observe)(RunEvent::Interval(&interval));
        self.tally = LossTally::default();
        self.interval = Stopwatch::default();
    }

    /// The held-out samples' figures; none without such samples, or if stopped on the way.
    fn evaluate(&mut self) -> Result<Option<Evaluation>, Error> {
        if let Some((_, evaluation)) = self.evaluated.filter(|(step, _)| *step == self.step) {
            return Ok(Some(evaluation));
        }
        self.settle()?;
        let Some((loader, total)) = held_out(self.request)? else { return Ok(None) };
        let (mut accumulator, groups) = (Accumulator::new(), Groups::new(&self.request.config));
        let mut held = Held::First;
        for loaded in loader {
            if self.worker.is_stopped() {
                return Ok(None);
            }
            let batch = Arc::new(loaded?.batch);
            let (probabilities, sum) = self.worker.lead_evaluate(held, &batch)?;
            held = Held::Next;
            accumulator.push(&probabilities, &batch.labels, sum);
            accumulator.push_groups(&groups.in_batch(&batch));
            (self.observe)(RunEvent::Evaluating { samples: accumulator.samples(), total });
        }
        if let Some(spoilt) = accumulator.not_finite() {
            return Err(self.diverged(format!("held-out data: {spoilt}")));
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

    /// Writes a checkpoint of this step, unless there is one.
    fn save(&mut self) -> Result<(), Error> {
        if self.saved_step == Some(self.step) {
            return Ok(());
        }
        let began = Instant::now();
        self.settle()?;
        (self.observe)(RunEvent::Saving);
        let (request, config) = (self.request, &self.request.config);
        let writer = CheckpointWriter::begin(&request.run_folder, self.step, &config.model.tables)?;
        let (records, used) = match self.worker.lead_save(&writer, self.last_batch.as_ref())? {
            Saved::Written(records, used) => (records, used),
            Saved::Spoilt(what) => return Err(self.diverged(what)),
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
        let tables = table_use::of_tables(&config.model, &used);
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

    /// Writes the trace, once, if any step was recorded.
    fn write_trace(&mut self) -> Result<(), Error> {
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

/// A null in its place would be an import's: a resumed run would start its data again.
fn json(run_folder: &Path, value: &impl serde::Serialize) -> Result<serde_json::Value, Error> {
    serde_json::to_value(value).map_err(|error| Error::Manifest {
        path: run_folder.to_owned(),
        problem: error.to_string(),
    })
}

/// The model's features as the loader needs them.
#[must_use]
pub fn feature_plan(model: &ModelConfig) -> FeaturePlan {
    let column = |feature: &schema::model::Feature<'_>| {
        (feature.name.to_owned(), model.tables[feature.table].rows)
    };
    FeaturePlan { columns: model.features().iter().map(column).collect() }
}

/// The batches of the held-out samples, and how many samples there are; none without such data.
pub fn held_out(request: &RunRequest) -> Result<Option<(Loader, u64)>, Error> {
    let Some((dataset, rows)) = &request.evaluation else { return Ok(None) };
    let training = &request.config.training;
    let most = training.evaluate_samples.unwrap_or(u64::MAX);
    let rows = rows.start..rows.end.min(rows.start.saturating_add(most));
    let total = rows.end - rows.start;
    let loader = in_order(dataset, &request.config.model, training.batch_size, rows)?;
    Ok(Some((loader, total)))
}

/// Refuses held-out data that does not fit the model now rather than after hours of training.
pub fn check_evaluation(request: &RunRequest) -> Result<(), Error> {
    let Some((dataset, rows)) = &request.evaluation else { return Ok(()) };
    if rows.is_empty() {
        return Ok(());
    }
    let first = rows.start..rows.start + 1;
    in_order(dataset, &request.config.model, 1, first).map(drop)
}

/// A loader of `rows` in the order of the file, once.
pub fn in_order(
    dataset: &Dataset,
    model: &ModelConfig,
    batch_size: usize,
    rows: std::ops::Range<u64>,
) -> Result<Loader, Error> {
    let options = LoaderOptions {
        batch_size,
        shuffle: None,
        drop_last: false,
        rows,
        start: Position::default(),
        epochs: Some(1),
    };
    Ok(Loader::start(dataset, &feature_plan(model), options)?)
}

fn due(every: Option<u64>, step: u64) -> bool {
    every.is_some_and(|every| step.is_multiple_of(every))
}

/// Steps of the whole run.
pub(super) fn steps_of(request: &RunRequest) -> u64 {
    let rows = &request.train_rows;
    total_steps(&request.config.training, rows.end.saturating_sub(rows.start))
}

/// Steps of the whole run on `rows` rows per epoch.
#[must_use]
pub fn total_steps(training: &TrainingConfig, rows: u64) -> u64 {
    let batch = training.batch_size as u64;
    let per_epoch = if training.drop_last { rows / batch } else { rows.div_ceil(batch) };
    let all = per_epoch.saturating_mul(training.epochs);
    training.steps.map_or(all, |steps| steps.min(all))
}
