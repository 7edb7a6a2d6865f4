//! The command `rowmill train`, which trains or resumes a model, shows the progress, and prints the
//! result with commands to use it.

use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use ::device::Isa;
use ::device::cpu::Bf16Products;
use data::{IdsOutside, Strictness};
use schema::source::OutOfRange;
use schema::unit::counted;
use schema::{
    Bytes, Figure, HostLayout, Interaction, JobConfig, Precision, Schedule, ShardingPlan, Share,
    TrainingConfig,
};
use serde::Serialize;
use train::embedding::stored_tile::CacheUse;
use train::memory::WeightSource;
use train::run::{PreparedRun, RunEvent, RunOutcome, RunRequest, Start, TraceRequest, total_steps};
use train::{Evaluation, RankTiming};

use crate::args::Train;
use crate::evaluation_text::{evaluation_rows, warn_of_evaluation};
use setup::config::{self, ResolvedJob};
use setup::device::ComputeDevice;
use setup::error::{EXIT_INTERRUPTED, Error, UsageError};
use setup::memory_check::{DataSize, MemoryComparison, RunSize};
use setup::on_device;
use setup::plan::Tiling;
use setup::process_group::{Participation, World};
use setup::render::{self, Console};
use setup::shell::quoted;
use setup::{Session, checkpoint, input, record, rows};
use setup::{interrupt, output};

mod closing;
mod generated;
mod metrics;
mod observe;
mod orders;
mod processes;
mod row_scope;
mod steps;
mod tensorboard;
mod tiling;
mod timing;

pub use observe::Observer;

use closing::{ClosingFigures, FitRequest};
use orders::OrderPoll;

/// The last line of the JSON output of a run.
#[derive(Debug, Serialize)]
struct FinishedLine<'a> {
    event: &'static str,
    step: u64,
    samples: u64,
    samples_per_second: f64,
    input_wait_share: f64,
    timing: &'a [RankTiming],
    loss: f64,
    /// Use of the caches of tables in files. Empty if all tables are in memory.
    #[serde(skip_serializing_if = "<[CacheUse]>::is_empty")]
    caches: &'a [CacheUse],
    ids_left_out: u64,
    ids_outside: &'a [IdsOutside],
    evaluation: Option<&'a Evaluation>,
    #[serde(serialize_with = "render::path_text_or_null")]
    checkpoint: Option<&'a Path>,
    best: Option<BestCheckpoint<'a>>,
    /// Figures of the best checkpoint, or of the last one, with those of the baselines.
    closing: Option<&'a ClosingFigures>,
    out_of_patience: bool,
    interrupted: bool,
    seconds: f64,
}

/// Describes the use of the caches of all tables together.
fn describe_caches(caches: &[CacheUse]) -> String {
    let sum = |of: fn(&CacheUse) -> u64| caches.iter().map(of).sum::<u64>();
    let misses = Share::from_parts(sum(|cache| cache.missed), sum(|cache| cache.unique));
    let read = Bytes(sum(|cache| cache.bytes_read));
    let written = Bytes(sum(|cache| cache.bytes_written));
    format!("{misses} of the rows of batches missed, {read} read, {written} written")
}

/// The best checkpoint of a run, as a part of [`FinishedLine`].
#[derive(Debug, Serialize)]
struct BestCheckpoint<'a> {
    step: u64,
    by: Figure,
    figure: f64,
    #[serde(serialize_with = "render::path_text")]
    checkpoint: &'a Path,
}

impl<'a> FinishedLine<'a> {
    /// Collects the content of the line from the outcome of a run.
    fn new(outcome: &'a RunOutcome, closing: Option<&'a ClosingFigures>) -> Self {
        Self {
            closing,
            event: "finished",
            step: outcome.step,
            samples: outcome.samples,
            samples_per_second: outcome.samples_per_second,
            input_wait_share: outcome.input_wait_share,
            timing: &outcome.timing,
            loss: outcome.loss,
            caches: &outcome.caches,
            ids_left_out: outcome.ids_left_out,
            ids_outside: &outcome.ids_outside,
            evaluation: outcome.evaluation.as_ref(),
            checkpoint: outcome.checkpoint.as_deref(),
            best: outcome.best.as_ref().map(|best| BestCheckpoint {
                step: best.step,
                by: best.by,
                figure: best.figure,
                checkpoint: &best.folder,
            }),
            out_of_patience: outcome.out_of_patience,
            interrupted: outcome.interrupted,
            seconds: outcome.seconds,
        }
    }
}

/// The resolved job, the tiling of its tables over ranks, and the device.
struct TrainRequest {
    job: ResolvedJob,
    tiling: Tiling,
    strictness: Strictness,
    device: ComputeDevice,
    schedule: Schedule,
}

impl TrainRequest {
    /// Builds the request from the named configuration, or else from the run that is resumed.
    /// `started` has the hosts of the processes that a launcher started.
    fn new(args: &Train, started: Option<&HostLayout>, console: Console) -> Result<Self, Error> {
        let set = config::overrides(args.delimiter.as_deref(), &args.set);
        let strictness = input::strictness(args.malformed);
        let Some(name) = args.config.as_deref() else {
            let run = args.run.as_deref().ok_or(UsageError::ResumeOfNothing)?;
            let resumed = record::resumed(run, args.resume_from.as_deref(), &set)?;
            let mut job = resumed.job;
            choose_inputs(args, &mut job)?;
            let tiling = tiling::choose_tiling(
                args,
                &job.config.model.tables,
                resumed.plan.as_ref(),
                started,
                console,
            )?;
            // Unless the options say otherwise, malformed rows are treated as in the run that is
            // resumed.
            let is_usual = strictness == Strictness::AtMost(Strictness::DEFAULT_MAX);
            let strictness = resumed.strictness.filter(|_| is_usual).unwrap_or(strictness);
            let schedule = args.schedule.or_else(|| record::schedule(run));
            let (device, schedule) =
                (ComputeDevice::Cpu(Isa::detect()), schedule.unwrap_or(Schedule::PIPELINED));
            return Ok(Self { job, tiling, strictness, device, schedule });
        };
        let mut job = config::job(name, &set)?;
        if args.synthetic.is_some() {
            job.config.size_tables(|_| rows::ROWS_OF_SYNTHETIC);
        }
        let tables = &job.config.model.tables;
        let tiling = tiling::choose_tiling(args, tables, None, started, console)?;
        if !args.print_config {
            choose_inputs(args, &mut job)?;
        }
        let (device, schedule) =
            (ComputeDevice::Cpu(Isa::detect()), args.schedule.unwrap_or(Schedule::PIPELINED));
        Ok(Self { job, tiling, strictness, device, schedule })
    }

    /// Collects everything on which the memory of the run depends.
    fn run_size(
        &self,
        args: &Train,
        data: DataSize,
        session: &Session,
        world: Option<&World>,
    ) -> RunSize<'_> {
        let processes = world.map(World::ranks_of_host);
        let threads_per_rank = world.map_or(session.threads, |world| world.threads(session));
        let resumed = args.resume || args.resume_from.is_some();
        let steps = &args.trace_steps;
        // All processes of a host share its memory, so their threads are counted together.
        RunSize {
            job: &self.job,
            data,
            tiling: &self.tiling,
            threads: threads_per_rank * processes.as_ref().map_or(1, Vec::len),
            processes,
            traced_steps: args.trace.as_ref().map_or(0, |_| steps.end.saturating_sub(steps.start)),
            weights: if resumed { WeightSource::Checkpoint } else { WeightSource::Initial },
            schedule: self.schedule,
        }
    }

    /// Chooses how bf16 numbers are multiplied. A resumed run keeps its method, so that results
    /// stay comparable. A new run uses the fastest method of this CPU.
    fn choose_arithmetic(
        &mut self,
        args: &Train,
        run: &Path,
        session: &Session,
    ) -> Result<(), Error> {
        if self.job.config.training.precision != Precision::Bf16 || args.estimate {
            return Ok(());
        }
        let is_resumed = args.resume || args.resume_from.is_some();
        if let Some(products) = record::bf16_products(run).filter(|_| is_resumed) {
            let device = std::mem::replace(&mut self.device, ComputeDevice::Cpu(Isa::detect()));
            self.device = device.multiplying_as(products, run)?;
        }
        match self.device.bf16_products() {
            Some(Bf16Products::Pairs) => {
                session.console.say("bf16: multiplied by the instruction VDPBF16PS");
            }
            Some(Bf16Products::Widened) => {
                session.console.say("bf16: factors are rounded to bf16 and multiplied in f32");
            }
            None => {}
        }
        Ok(())
    }

    /// Prepares the data early if it determines the number of rows of tables (`rows = "auto"`),
    /// because the memory estimate needs that number. Returns `None` if all tables have a fixed
    /// size.
    fn prepare_early(
        &mut self,
        run: &Path,
        session: &Session,
    ) -> Result<Option<input::Inputs>, Error> {
        if !self.job.config.model.has_auto_tables() {
            return Ok(None);
        }
        let cache = run.join("data");
        let inputs =
            input::prepare_training_data(session, &self.job.config.data, &cache, self.strictness)?;
        rows::size_tables(session, &mut self.job.config, &inputs.train)?;
        // Memory that the preparation freed must not add to the peak of the training, so it is
        // returned to the system.
        device::buffer::return_freed_memory();
        Ok(Some(inputs))
    }
}

/// Runs `rowmill train` and prints its result.
pub fn run(args: &Train, session: &Session) -> Result<ExitCode, Error> {
    if args.list {
        return list_configs(session).map(|()| ExitCode::SUCCESS);
    }
    // The limit is set before any thread starts, because every thread could get an arena of its
    // own.
    device::buffer::limit_arenas(::train::memory::arenas(session.threads));
    // The rank of this process is determined before anything is read or written, so that only rank
    // 0 reads and writes.
    let alone = args.print_config || args.estimate;
    let mut world = match Participation::join(&args.processes, alone)? {
        Participation::Alone => return train(args, session, None),
        Participation::Refused(code) => return Ok(code),
        Participation::World(world) => world,
    };
    if !world.is_leader() {
        return world
            .follow(session, |world, run: processes::ProcessRun| run.follow(world, args, session));
    }
    let result = train(args, session, Some(&mut *world));
    world.end(result, session)
}

/// Trains as the only process, or as rank 0 of the processes of `world`.
fn train(args: &Train, session: &Session, world: Option<&mut World>) -> Result<ExitCode, Error> {
    let started = world.as_ref().map(|world| world.layout());
    let mut request = TrainRequest::new(args, started, session.console)?;
    if args.print_config {
        let origin = request.job.origin.clone();
        let text = request.job.config.to_toml();
        let text =
            text.map_err(|source| UsageError::Config { origin, source: Box::new(source) })?;
        return session.console.print(text.trim_end()).map(|()| ExitCode::SUCCESS);
    }
    let groups = request.tiling.groups();
    groups
        .check_intervals(&request.job.config.training)
        .map_err(|source| UsageError::ReplicaGroups { source })?;
    if args.estimate {
        rows::check_known(&request.job.config.model.tables, "--estimate")?;
    } else {
        request.device = ComputeDevice::open(args.device, session)?;
    }
    let run_folder = args.run_folder();
    request.choose_arithmetic(args, &run_folder, session)?;
    // The two guards remove the run folder and the trace folder at the end if they are still empty.
    // The guards are declared in this order because the inner folder must be removed first.
    let _run = (!args.estimate).then(|| output::folder(&run_folder)).transpose()?;
    let early = match request.job.config.model.has_auto_tables() {
        true => {
            // The start is chosen first, because a run that will be refused must not prepare data
            // for an hour.
            choose_start(args, &run_folder, session.console)?;
            request.prepare_early(&run_folder, session)?
        }
        false => None,
    };
    request.tiling =
        tiling::search_tiling(args, request.tiling, &request.job.config, &request.device, session)?;
    // The memory is checked before anything else is written.
    let mut data_size = DataSize::probe(&request.job.config, args.synthetic, session)?;
    if let Some(inputs) = &early {
        data_size = data_size.with_prepared(&inputs.train)?;
    }
    let expected = request.run_size(args, data_size.clone(), session, world.as_deref());
    let memory = expected.compare();
    if args.estimate {
        return session
            .console
            .report(&memory, MemoryComparison::table)
            .map(|()| ExitCode::SUCCESS);
    }
    session.console.detail(memory.table());
    expected.check(&memory)?;
    expected.check_device(args.device.device, &request.device)?;
    let _trace = args.trace.as_deref().map(output::folder).transpose()?;
    let start = choose_start(args, &run_folder, session.console)?;
    if let Some(rows) = args.synthetic {
        generated::write_dataset(session, &mut request.job, rows, &run_folder)?;
    }
    let cache = run_folder.join("data");
    let inputs = match early {
        Some(inputs) => inputs,
        None => input::prepare_training_data(
            session,
            &request.job.config.data,
            &cache,
            request.strictness,
        )?,
    };
    inputs.check_for_training(session, &request.job.config)?;
    report_interaction(&request.job, session.console);
    // Memory that the preparation freed must not add to the peak of the training, so it is returned
    // to the system.
    device::buffer::return_freed_memory();
    let data_size = data_size.with_prepared(&inputs.train)?;
    // The memory is checked again, with facts about the prepared data instead of estimates.
    let known = request.run_size(args, data_size, session, world.as_deref());
    known.check(&known.compare())?;
    known.check_device(args.device.device, &request.device)?;
    // Standard input cannot be read again, so the run records the folder that was prepared from it.
    let train = &mut request.job.config.data.train;
    if train.iter().any(|path| path == "-") {
        *train = input::absolute(&[inputs.train.dir().display().to_string()]);
    }
    train_on(args, request, inputs, start, session, world)
}

/// Trains the model of a request on prepared data.
fn train_on(
    args: &Train,
    request: TrainRequest,
    inputs: input::Inputs,
    start: Start,
    session: &Session,
    world: Option<&mut World>,
) -> Result<ExitCode, Error> {
    let TrainRequest { job, tiling, strictness, device, schedule } = request;
    let run_folder = args.run_folder();
    let cache = run_folder.join("data");
    let plan = tiling.plan(&job.config.model.tables);
    let rows = &inputs.train_rows;
    let steps = total_steps(&job.config.training, rows.end.saturating_sub(rows.start));
    report_groups(&plan, steps, session.console);
    let threads_per_rank = match &world {
        None => (session.threads / plan.world_size().max(1) as usize).max(1),
        Some(world) => world.threads(session),
    };
    let launched = world.as_ref().map(|world| world.start());
    let (orders, _polling) = OrderPoll::start(args.trace.is_some());
    let request = RunRequest {
        plan,
        config: job.config,
        train: Arc::clone(&inputs.train),
        train_rows: inputs.train_rows.clone(),
        evaluation: None,
        run_folder: run_folder.clone(),
        threads: world.as_ref().map_or(session.threads, |world| world.threads(session)),
        start,
        rule_change: args.rule_change.rule_change(),
        bucket_bytes: args.bucket.unwrap_or(train::BUCKET_BYTES),
        schedule,
        trace: args
            .trace
            .clone()
            .map(|folder| TraceRequest { folder, steps: args.trace_steps.clone() }),
        orders,
        stop: Arc::default(),
    };
    let prepared = match world {
        // Reading begins at this point, so that the first batches are ready when the evaluation
        // files have been prepared.
        None => PreparedRun::begin(request)?,
        Some(_) => PreparedRun::begin_processes(request)?,
    };
    if !prepared.compares_rows() {
        session.console.warn(
            "the checkpoint does not record its training data, because an earlier version wrote it or the \
             data had no checksums; make sure that the data are the same",
        );
    }
    let data = &prepared.request().config.data;
    let held_out = inputs.held_out(session, data, &cache, strictness)?;
    if prepared.request().config.training.baselines && held_out.validation.is_none() {
        session.console.warn(
            "training.baselines: no rows are held out on which baselines could be compared; set \
             data.validation",
        );
    }
    device::buffer::return_freed_memory();
    // Before this point, Ctrl-C ends the program at once, because there is nothing to save.
    let stop = match &world {
        None => interrupt::stop_flag(interrupt::SAVING),
        Some(_) => interrupt::stop_flag_of_ranks(Some(interrupt::SAVING)),
    };
    let mut observer = Observer::new(session.console).with_metrics_of(&run_folder);
    let run = prepared.with_evaluation(held_out.validation.clone()).with_stop(stop);
    let products = device
        .bf16_products()
        .filter(|_| run.request().config.training.precision == Precision::Bf16);
    let mut written = Ok(());
    let resolved = ResolvedJob { origin: job.origin, config: run.request().config.clone() };
    let observe = &mut |event: RunEvent<'_>| {
        // The record is written only when training starts, so that a refused run leaves no record.
        if matches!(event, RunEvent::Started { .. }) {
            written = record::write(
                &run_folder,
                &resolved,
                &tiling,
                strictness,
                products,
                schedule,
                threads_per_rank,
            );
        }
        observer.handle(event);
    };
    let outcome = match world {
        None => on_device!(&device, open => run.run(open, observe))?,
        Some(world) => processes::lead(world, run, session, &device, observe)?,
    };
    written?;
    let fit = FitRequest {
        config: &resolved.config,
        train: &inputs.train,
        train_rows: &inputs.train_rows,
    };
    observer.pause();
    let closing =
        on_device!(&device, open => closing::evaluate(open, &outcome, &held_out, fit, session))?;
    observer.close(closing.as_ref());
    let recorded = observer.finish()?;
    warn_of_trace(args, &outcome, recorded, session.console);
    let ended = EndedRun {
        outcome: &outcome,
        closing: closing.as_ref(),
        config: &resolved.config,
        folder: &run_folder,
        launched: launched.as_deref(),
    };
    ended.report(args, session.console)
}

/// A run that has ended, with everything that its summary shows.
struct EndedRun<'a> {
    outcome: &'a RunOutcome,
    closing: Option<&'a ClosingFigures>,
    config: &'a JobConfig,
    folder: &'a Path,
    /// The command of the launcher, if the ranks are processes.
    launched: Option<&'a str>,
}

/// Prints the replica groups of a run and how often they average their tables. Warns if the run of
/// `run_steps` steps ends before the first average is due.
fn report_groups(plan: &ShardingPlan, run_steps: u64, console: Console) {
    let groups = plan.groups();
    if groups.is_single() {
        return;
    }
    let (count, size) = (groups.count, counted(u64::from(plan.group_size()), "rank"));
    match groups.sync_every.get() {
        1 => console.say(format_args!("{count} replica groups of {size} sum their gradients")),
        steps if steps > run_steps => console.warn(format_args!(
            "{count} replica groups of {size} average their tables once, at the end, because \
             --sync-every {steps} is more than the {} of the run",
            counted(run_steps, "step")
        )),
        steps => console.say(format_args!(
            "{count} replica groups of {size} average their tables every {steps} steps; after \
             Ctrl-C, training goes on to the next average before it saves"
        )),
    }
}

/// Reports the size of the dot interaction if the model has no dense inputs, because the
/// interaction then combines only embeddings.
fn report_interaction(job: &ResolvedJob, console: Console) {
    let model = &job.config.model;
    if !model.has_dense() && matches!(model.interaction, Interaction::Dot { .. }) {
        console.say(format_args!(
            "no dense inputs: the dot interaction combines the embeddings only, in {} products",
            render::count(model.interaction_width() as u64)
        ));
    }
}

impl EndedRun<'_> {
    /// Prints the outcome of the run and commands to run next.
    fn report(&self, args: &Train, console: Console) -> Result<ExitCode, Error> {
        let Self { outcome, closing, config, .. } = *self;
        console.report(&FinishedLine::new(outcome, closing), |_| {
            let timing = args.timing.then(|| timing::format_table(&outcome.timing));
            let figures = closing.and_then(closing::format_table);
            [Some(outcome_table(outcome, closing, &config.training)), timing, figures]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join("\n\n")
        })?;
        let shown = closing.map(|closing| closing.shown().0);
        warn_of_evaluation(console, shown.as_ref(), &config.training);
        if let Some(closing) = closing {
            closing::warn_of_baselines(console, closing, config);
        }
        if outcome.interrupted {
            let command = resume_command(self.folder, self.launched);
            console.say(format_args!("interrupted; resume with:\n  {command}"));
            return Ok(ExitCode::from(EXIT_INTERRUPTED));
        }
        if let Some(path) = closing::chosen_checkpoint(outcome) {
            let (path, run) = (path.display(), quoted(&self.folder.display().to_string()));
            console.say(format_args!("plot its curves with:\n  rowmill report {run}"));
            console.say(format_args!("score new rows with:\n  rowmill score {path} FILE"));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Warns if the run ended before all requested steps were recorded. Removes the folder of traces if
/// it is empty.
fn warn_of_trace(args: &Train, outcome: &RunOutcome, recorded: u64, console: Console) {
    let Some(folder) = &args.trace else { return };
    let Range { start, end } = args.trace_steps;
    if recorded == 0 {
        // Removing the folder fails if it contains other files, which must stay.
        drop(std::fs::remove_dir(folder));
    }
    if recorded < end - start {
        console.warn(format_args!(
            "{recorded} of {} recorded: the run ended at step {}, but --trace-steps is {start}..{end}",
            render::counted(end - start, "step"),
            outcome.step
        ));
    }
}

fn outcome_table(
    outcome: &RunOutcome,
    closing: Option<&ClosingFigures>,
    training: &TrainingConfig,
) -> String {
    let mut rows = vec![
        ("steps", render::count(outcome.step)),
        ("samples", render::count(outcome.samples)),
        ("samples per second", render::count(outcome.samples_per_second.round() as u64)),
        ("input wait", format!("{:.2} % of the step", 100.0 * outcome.input_wait_share)),
        ("training loss", format!("{:.6}", outcome.loss)),
    ];
    if !outcome.caches.is_empty() {
        rows.push(("cached tables", describe_caches(&outcome.caches)));
    }
    if outcome.ids_left_out > 0 {
        let count = render::count(outcome.ids_left_out);
        rows.push(("ids left out", format!("{count}, beyond the sequence_length of their tables")));
    }
    if let Some(outside) = describe_ids_outside(&outcome.ids_outside) {
        rows.push(("ids outside their tables", outside));
    }
    // The figures of the checkpoint to use, which need not be those of the last evaluation.
    let shown = closing.map(ClosingFigures::shown);
    if let Some((evaluation, what)) = &shown {
        rows.push(("evaluated", what.clone()));
        rows.extend(evaluation_rows(evaluation));
    }
    if let Some(best) = &outcome.best {
        let (step, by) = (render::count(best.step), best.by.name());
        rows.push((
            "best",
            format!("{by} {:.6} at step {step}: {}", best.figure, best.folder.display()),
        ));
    }
    if outcome.out_of_patience {
        let reason = "evaluations did not improve (training.patience)";
        rows.push(("ended early", reason.to_owned()));
    } else if let Some(steps) = training.steps.filter(|&steps| steps > outcome.step)
        && !outcome.interrupted
    {
        let (steps, epochs) = (counted(steps, "step"), counted(training.epochs, "epoch"));
        rows.push(("ended early", format!("after {epochs} (training.epochs), before {steps}")));
    }
    if let Some(path) = &outcome.checkpoint {
        rows.push(("checkpoint", path.display().to_string()));
    }
    render::facts(&rows)
}

/// Describes for each column how many ids were outside their table, and how these ids were treated.
/// Returns `None` if all ids were inside.
fn describe_ids_outside(columns: &[IdsOutside]) -> Option<String> {
    const SHOWN: usize = 3;
    let some: Vec<&IdsOutside> = columns.iter().filter(|column| column.outside > 0).collect();
    let column = |column: &&IdsOutside| {
        let (outside, ids) = (render::count(column.outside), render::count(column.ids));
        let became = match column.rule {
            OutOfRange::Missing => "taken as missing",
            OutOfRange::Modulo | OutOfRange::Error => "wrapped",
        };
        format!("{}: {outside} of {ids} in the first epoch {became}", column.column)
    };
    let mut text = some.iter().take(SHOWN).map(column).collect::<Vec<_>>().join("; ");
    if some.len() > SHOWN {
        text += &format!("; and {} more columns", some.len() - SHOWN);
    }
    (!some.is_empty()).then_some(text)
}

/// A ready-made configuration, in the form in which `train --list` prints it.
#[derive(Serialize)]
struct ConfigRow {
    name: String,
    tables: usize,
    rows: u64,
    table_bytes: u64,
    batch_size: usize,
}

fn list_configs(session: &Session) -> Result<(), Error> {
    let listed: Vec<ConfigRow> = config::ready_made()?
        .into_iter()
        .map(|job| {
            let model = &job.config.model;
            ConfigRow {
                tables: model.tables.len(),
                rows: model.tables.iter().map(|table| table.rows).sum(),
                table_bytes: model.table_bytes(job.config.optimizer.sparse.kind).0,
                batch_size: job.config.training.batch_size,
                name: job.origin,
            }
        })
        .collect();
    session.console.report(&listed, |listed| {
        let rows: Vec<Vec<String>> = listed
            .iter()
            .map(|listed| {
                vec![
                    listed.name.clone(),
                    listed.tables.to_string(),
                    render::count(listed.rows),
                    schema::Bytes(listed.table_bytes).to_string(),
                    render::count(listed.batch_size as u64),
                ]
            })
            .collect();
        render::grid(&["configuration", "tables", "rows", "tables and state", "batch"], &rows)
    })
}

/// Replaces the data paths of the configuration by the paths on the command line.
fn choose_inputs(args: &Train, job: &mut ResolvedJob) -> Result<(), Error> {
    let data = &mut job.config.data;
    if !args.train.is_empty() {
        data.train.clone_from(&args.train);
        // The configuration's evaluation files belong to its own training files, so they are not
        // used with other ones.
        data.evaluation.clear();
    }
    if !args.evaluation.is_empty() {
        data.evaluation.clone_from(&args.evaluation);
    }
    if data.train.is_empty() && args.synthetic.is_none() {
        return Err(UsageError::NoData { config: job.origin.clone() }.into());
    }
    data.train = input::absolute(&data.train);
    data.evaluation = input::absolute(&data.evaluation);
    Ok(())
}

/// Chooses the checkpoint from which the run starts. No files are changed. Checkpoints later than
/// the one of `--resume-from` are renamed only when the run begins.
///
/// # Errors
/// The run has checkpoints and is not resumed, or the chosen checkpoint is damaged.
fn choose_start(args: &Train, run: &Path, console: Console) -> Result<Start, Error> {
    if let Some(chosen) = &args.resume_from {
        checkpoint::check_chosen(run, chosen)?;
        return Ok(Start::Checkpoint(chosen.clone()));
    }
    if args.resume {
        for folder in train::checkpoint::list_aside(run)? {
            console.say(format_args!(
                "not used, because an earlier --resume-from set it aside: {}",
                folder.display()
            ));
        }
    }
    let Some(newest) = train::checkpoint::list(run)?.pop() else { return Ok(Start::Fresh) };
    if args.resume {
        checkpoint::check_newest(run)?;
        return Ok(Start::Checkpoint(newest));
    }
    Err(UsageError::RunExists { run: run.to_owned(), newest: step_name(&newest) }.into())
}

fn step_name(checkpoint: &Path) -> String {
    checkpoint.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Formats the command that resumes an interrupted run, under the same launcher.
fn resume_command(run: &Path, launched: Option<&str>) -> String {
    let launcher = launched.map_or_else(String::new, |start| format!("{start} "));
    let run = quoted(&run.display().to_string());
    format!("{launcher}rowmill train --resume --run {run}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn advice_against_overfitting_skips_settings_in_use() {
        let advice = |set: &[(&str, &str)]| {
            let set: Vec<_> = set.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            let job = setup::config::job("dlrm-ddp", &set).unwrap();
            crate::evaluation_text::against_overfitting(&job.config.training)
        };
        let (best, every) = (("training.keep_best", "auc"), ("training.evaluate_every", "10"));
        assert!(advice(&[]).contains("keep_best"));
        assert_eq!(advice(&[best, every]), ", training.patience");
        assert_eq!(advice(&[best, every, ("training.patience", "3")]), "");
    }
}
