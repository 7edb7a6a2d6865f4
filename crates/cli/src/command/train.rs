//! `rowmill train`: configuration and data → a run, with its progress, its result and how to
//! resume it.

use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use data::{Begin, IdsOutside, Strictness};
use schema::source::OutOfRange;
use serde::Serialize;
use train::Evaluation;
use train::run::{Outcome, Reading, RunRequest, Start, TraceRequest};

use crate::args::Train;
use crate::error::{EXIT_INTERRUPTED, Error};
use crate::progress::{Meter, Unit};
use crate::render::{self, Console};
use crate::resolve::config::{self, Job};
use crate::resolve::memory::{self, Look, Room};
use crate::resolve::{Session, checkpoint, input, plan, synthetic};
use crate::{interrupt, output};

mod observe;
mod processes;
mod row_scope;

pub use observe::Observer;
use processes::World;

/// The last line of `--format json`.
#[derive(Debug, Serialize)]
pub struct Finished<'a> {
    event: &'static str,
    step: u64,
    samples: u64,
    samples_per_second: f64,
    input_wait_share: f64,
    loss: f64,
    ids_left_out: u64,
    ids_outside: &'a [IdsOutside],
    evaluation: Option<&'a Evaluation>,
    #[serde(serialize_with = "render::path_text_or_null")]
    checkpoint: Option<&'a Path>,
    interrupted: bool,
    seconds: f64,
}

impl<'a> Finished<'a> {
    /// What a run came to.
    pub fn of(outcome: &'a Outcome) -> Self {
        Self {
            event: "finished",
            step: outcome.step,
            samples: outcome.samples,
            samples_per_second: outcome.samples_per_second,
            input_wait_share: outcome.input_wait_share,
            loss: outcome.loss,
            ids_left_out: outcome.ids_left_out,
            ids_outside: &outcome.ids_outside,
            evaluation: outcome.evaluation.as_ref(),
            checkpoint: outcome.checkpoint.as_deref(),
            interrupted: outcome.interrupted,
            seconds: outcome.seconds,
        }
    }
}

/// Runs the command.
pub fn run(args: &Train, session: &Session) -> Result<ExitCode, Error> {
    let Some(name) = args.config.as_deref().filter(|_| !args.list) else {
        return list(session).map(|()| ExitCode::SUCCESS);
    };
    // Before anything is read or written.
    let Some(mut world) = World::join(&args.processes)? else {
        return train((args, name), session, None);
    };
    if !world.is_leader() {
        return world.follow(args, session);
    }
    let result = train((args, name), session, Some(&mut world));
    world.end(result, session)
}

/// Trains, as the only process or as the one that leads `world`.
fn train(
    (args, name): (&Train, &str),
    session: &Session,
    world: Option<&mut World>,
) -> Result<ExitCode, Error> {
    let mut job = config::job(name, &args.set)?;
    let tiling =
        plan::tiling(args, &job.config.model.tables, world.as_ref().map(|world| world.size()))?;
    let run_folder = args.run_folder();
    choose_inputs(args, &mut job)?;
    // Before anything is written.
    let look = Look::at(args, &job.config, session)?;
    let asked = memory::Run::of(args, (&job, &tiling), look.clone(), session);
    let room = asked.room();
    if args.estimate {
        return session.console.report(&room, Room::table).map(|()| ExitCode::SUCCESS);
    }
    session.console.detail(room.table());
    asked.check(&room)?;
    // Dropped after everything below, the inner one first: what fails leaves no empty folders.
    let _run = output::folder(&run_folder)?;
    let _trace = args.trace.as_deref().map(output::folder).transpose()?;
    let start = start(args, &run_folder, session.console)?;
    if let Some(rows) = args.synthetic {
        generate(session, &mut job, rows, &run_folder)?;
    }
    let cache = run_folder.join("data");
    let strictness = input::strictness(args.malformed);
    let inputs = input::of_job(session, &job.config.data, &cache, strictness)?;
    inputs.check_for_training(session, &job.config)?;
    // What preparation took must not add up with what training takes.
    device::buffer::return_freed_memory();
    let look = look.prepared(&inputs.train)?;
    let known = memory::Run::of(args, (&job, &tiling), look, session);
    known.check(&known.room())?;
    if job.config.data.train.iter().any(|path| path == "-") {
        job.config.data.train = input::absolute(&[inputs.train.dir().display().to_string()]);
    }
    let launched = world.as_ref().map(|world| world.size());
    let resume_command = resume_command((args, launched), name, &job, &run_folder);
    let request = RunRequest {
        plan: tiling.plan(&job.config.model.tables),
        config: job.config,
        train: Arc::clone(&inputs.train),
        train_rows: inputs.train_rows.clone(),
        evaluation: None,
        run_folder,
        threads: session.threads,
        start,
        rule_change: args.rule_change.given(),
        trace: args
            .trace
            .clone()
            .map(|folder| TraceRequest { folder, steps: args.trace_steps.clone() }),
        stop: Arc::default(),
    };
    // The first batches are put together while the evaluation files are prepared.
    let reading = Reading::begin(request)?;
    if !reading.compares_rows() {
        session.console.warn(
            "the checkpoint does not say which rows it was trained on: an earlier version wrote it, \
             or trained on data without checksums; make sure that they are the same",
        );
    }
    let data = &reading.request().config.data;
    let evaluation = inputs.evaluation(session, data, &cache, strictness)?;
    device::buffer::return_freed_memory();
    // Not before: until here Ctrl-C leaves nothing to be saved.
    let stop = interrupt::stop_flag(interrupt::SAVING);
    let mut observer = Observer::new(session.console);
    let run = reading.with_evaluation(evaluation).with_stop(stop);
    let observe = &mut |event: train::Event<'_>| observer.see(event);
    let outcome = match world {
        None => run.run(observe)?,
        Some(world) => world.lead(run, observe)?,
    };
    let recorded = observer.finish()?;
    warn_of_trace(args, (&outcome, recorded), session.console);
    report(session.console, &outcome, &resume_command)
}

fn report(console: Console, outcome: &Outcome, resume_command: &str) -> Result<ExitCode, Error> {
    console.report(&Finished::of(outcome), |_| summary(outcome))?;
    warn(console, outcome.evaluation.as_ref());
    if outcome.interrupted {
        console.say(format_args!("interrupted; go on with:\n  {resume_command}"));
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    }
    if let Some(path) = &outcome.checkpoint {
        let path = path.display();
        console.say(format_args!("score new rows with:\n  rowmill score {path} FILE"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Says where an interrupted run recorded less than was asked for; takes an empty folder away.
fn warn_of_trace(args: &Train, (outcome, recorded): (&Outcome, u64), console: Console) {
    let Some(folder) = &args.trace else { return };
    let Range { start, end } = args.trace_steps;
    if recorded == 0 {
        // Fails where something else is in it, as it should.
        drop(std::fs::remove_dir(folder));
    }
    if recorded < end - start {
        console.warn(format_args!(
            "{recorded} of {} steps were recorded: the run ended at step {}, --trace-steps is \
             {start}..{end}",
            end - start,
            outcome.step
        ));
    }
}

/// Says what numbers alone might hide: figures that mean nothing, or a model worth nothing.
pub fn warn(console: Console, evaluation: Option<&Evaluation>) {
    let Some(evaluation) = evaluation else { return };
    // A model that gives no probabilities has ended the run before.
    let entropy = evaluation.normalized_entropy;
    if entropy.is_nan() {
        console.warn(
            "all held-out labels are the same, so that AUC and normalized entropy mean nothing; \
             see data.label, data.hold_out",
        );
    } else if entropy > 1.0 {
        console.warn(format_args!(
            "normalized entropy {entropy:.4} is above 1: the model predicts worse than the mean \
             label of these rows would; try lower learning rates, more data or fewer epochs"
        ));
    }
}

fn summary(outcome: &Outcome) -> String {
    let mut rows = vec![
        ("steps", render::count(outcome.step)),
        ("samples", render::count(outcome.samples)),
        ("samples per second", render::count(outcome.samples_per_second.round() as u64)),
        ("input wait", format!("{:.2} % of the step", 100.0 * outcome.input_wait_share)),
        ("training loss", format!("{:.6}", outcome.loss)),
    ];
    if outcome.ids_left_out > 0 {
        let count = render::count(outcome.ids_left_out);
        rows.push(("ids left out", format!("{count}, beyond the sequence_length of their tables")));
    }
    if let Some(outside) = ids_outside(&outcome.ids_outside) {
        rows.push(("ids outside their tables", outside));
    }
    if let Some(evaluation) = &outcome.evaluation {
        rows.extend(evaluation_rows(evaluation));
    }
    if let Some(path) = &outcome.checkpoint {
        rows.push(("checkpoint", path.display().to_string()));
    }
    render::facts(&rows)
}

/// How many ids were no row of their table, and what became of them; `None` where there are none.
fn ids_outside(columns: &[IdsOutside]) -> Option<String> {
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

/// The lines of an evaluation in a table of facts.
pub fn evaluation_rows(evaluation: &Evaluation) -> Vec<(&'static str, String)> {
    vec![
        ("held-out samples", render::count(evaluation.samples)),
        ("held-out loss", format!("{:.6}", evaluation.loss)),
        ("AUC", format!("{:.6}", evaluation.auc)),
        ("normalized entropy", format!("{:.6}", evaluation.normalized_entropy)),
        ("calibration", format!("{:.4}", evaluation.calibration)),
        ("accuracy", format!("{:.4}", evaluation.accuracy)),
    ]
}

/// One line of `train --list`.
#[derive(Serialize)]
struct Listed {
    name: String,
    tables: usize,
    rows: u64,
    table_bytes: u64,
    batch_size: usize,
}

fn list(session: &Session) -> Result<(), Error> {
    let listed: Vec<Listed> = config::ready_made()?
        .into_iter()
        .map(|job| {
            let model = &job.config.model;
            Listed {
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

/// Puts the paths of the command line over those of the configuration.
fn choose_inputs(args: &Train, job: &mut Job) -> Result<(), Error> {
    let data = &mut job.config.data;
    if !args.train.is_empty() {
        data.train.clone_from(&args.train);
        // The configuration's evaluation files belong to its own training files.
        data.evaluation.clear();
    }
    if !args.evaluation.is_empty() {
        data.evaluation.clone_from(&args.evaluation);
    }
    if data.train.is_empty() && args.synthetic.is_none() {
        return Err(Error::NoData { config: job.origin.clone() });
    }
    data.train = input::absolute(&data.train);
    data.evaluation = input::absolute(&data.evaluation);
    Ok(())
}

/// Where the run begins; refuses to overwrite checkpoints and to go on from a damaged one. Changes
/// nothing: what `--resume-from` leaves behind is set aside when the run begins.
fn start(args: &Train, run: &Path, console: Console) -> Result<Start, Error> {
    if let Some(chosen) = &args.resume_from {
        checkpoint::check_chosen(run, chosen)?;
        return Ok(Start::Checkpoint(chosen.clone()));
    }
    if args.resume {
        for folder in train::checkpoint::list_aside(run)? {
            console.say(format_args!(
                "set aside by an earlier --resume-from, not used: {}",
                folder.display()
            ));
        }
    }
    let Some(newest) = train::checkpoint::list(run)?.pop() else { return Ok(Start::Fresh) };
    if args.resume {
        checkpoint::check_newest(run)?;
        return Ok(Start::Checkpoint(newest));
    }
    Err(Error::RunExists { run: run.to_owned(), newest: step_name(&newest) })
}

fn step_name(checkpoint: &Path) -> String {
    checkpoint.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Generates a prepared dataset that fits the job, once per run folder, and makes the job read it.
fn generate(session: &Session, job: &mut Job, rows: u64, run: &Path) -> Result<(), Error> {
    let config = synthetic::config_for(&job.config, rows, synthetic::SEED)?;
    synthetic::adapt(&mut job.config);
    let folder = run.join("data").join(synthetic::folder_name(&config, &job.config.data)?);
    job.config.data.train = input::absolute(&[folder.display().to_string()]);
    if folder.join("dataset.json").exists() {
        return Ok(());
    }
    let text =
        folder.with_extension(if job.config.data.columns.is_empty() { "tsv" } else { "csv" });
    let _made = output::folder(&run.join("data"))?;
    let _interrupted = output::cleared_up_beside(text.clone());
    let said = interrupt::nothing_kept("generating");
    let mut meter = Meter::start(session.console, "generating", Unit::Rows, Some(rows));
    let report =
        synthetic::write(&config, &job.config.data, &text, session.threads, &mut |done| {
            meter.advance(done.rows, "");
        })?;
    let seconds = meter.finish();
    drop(said);
    session.console.say(format_args!(
        "generated {} rows in {}; the ceiling's AUC is {:.4}, the best linear model's {:.4}",
        render::count(report.rows),
        render::duration(seconds),
        report.ceiling_auc,
        report.linear_auc
    ));
    let paths = [text.display().to_string()];
    let generator = serde_json::to_value(&report).map_err(Error::Json)?;
    let source = input::Source {
        paths: &paths,
        config: &job.config.data,
        fitted: None,
        hold_out: job.config.data.hold_out,
        cache: &folder,
        strictness: Strictness::Stop,
        generator: Some(&generator),
    };
    device::buffer::return_freed_memory();
    input::prepare(session, &source, &folder, Begin::Restart)?;
    std::fs::remove_file(&text).map_err(Error::io(&text, "remove"))
}

/// The command that goes on where this run stops.
fn resume_command(
    (args, launched): (&Train, Option<u32>),
    name: &str,
    job: &Job,
    run: &Path,
) -> String {
    let mut words: Vec<String> = match launched {
        None => Vec::new(),
        Some(ranks) => vec!["mpirun".into(), "-n".into(), ranks.to_string()],
    };
    words.extend(["rowmill".into(), "train".into(), name.to_owned()]);
    for (key, value) in &args.set {
        words.extend(["--set".into(), format!("{key}={value}")]);
    }
    match args.synthetic {
        Some(rows) => words.extend(["--synthetic".into(), rows.to_string()]),
        None => {
            words.push("--train".into());
            words.extend(job.config.data.train.iter().cloned());
            if !job.config.data.evaluation.is_empty() {
                words.push("--evaluation".into());
                words.extend(job.config.data.evaluation.iter().cloned());
            }
        }
    }
    words.extend(["--run".into(), run.display().to_string(), "--resume".into()]);
    if args.malformed.strict {
        words.push("--strict".into());
    } else if args.malformed.malformed_max != Strictness::DEFAULT_MAX {
        words.extend(["--malformed-max".into(), args.malformed.malformed_max.0.to_string()]);
    }
    match (&args.plan, args.ranks) {
        (Some(plan), _) => words.extend(["--plan".into(), plan.display().to_string()]),
        (None, Some(ranks)) => {
            let sharding = clap::ValueEnum::to_possible_value(&args.sharding);
            let sharding = sharding.map(|value| value.get_name().to_owned()).unwrap_or_default();
            words.extend(["--ranks".into(), ranks.to_string(), "--sharding".into(), sharding]);
        }
        (None, None) => {}
    }
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// A word a POSIX shell reads back as it is.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn words_survive_the_shell() {
        assert_eq!(quoted("a/b-c.toml"), "a/b-c.toml");
        assert_eq!(quoted("bottom=[8, 4]"), "'bottom=[8, 4]'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
