//! The command `rowmill quickstart`, which runs every part of rowmill once on generated data,
//! scaled to this machine.
//!
//! A quickstart generates rows, converts them, measures the machine, and trains with evaluation,
//! checkpoint and trace. A quickstart then predicts the effect of a change, makes the change and
//! measures it. At the end it prints the results, and where the time of the recorded steps went.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use data::Begin;
use data::synthetic::{SyntheticConfig, ceiling_auc};
use schema::{Bytes, JobConfig, Schedule, ShardingPlan};
use train::run::{RuleChange, RunEvent, RunOutcome, RunRequest, Start, TraceInbox, TraceRequest};

use super::train::Observer;
use crate::args::Quickstart;
use crate::trace_page::{open_folder, write_folder_page};
use crate::trace_summary::short_summary;
use setup::args::OutputFormat;
use setup::device::ComputeDevice;
use setup::error::{EXIT_INTERRUPTED, Error, RunError, UsageError};
use setup::generated_rows;
use setup::on_device;
use setup::shell::quoted;
use setup::{Session, config, input};
use setup::{interrupt, machine, output, render};

mod change;
mod folder;
mod scale;
mod summary;

use folder::{GeneratedRows, QuickstartFolder};
use scale::Scale;

/// Free disk space that is sufficient for a quickstart on any machine.
const DISK_NEEDED: Bytes = Bytes(3 << 30);
/// The ready-made configuration that a quickstart trains, scaled to the machine.
const MODEL: &str = "dlrm-criteo-kaggle";
/// Seed of the random generator of the rows.
const SEED: u64 = 1;
/// The range of recorded steps. The steps before them warm up the caches.
const TRACED_STEPS: Range<u64> = 20..24;

/// Runs `rowmill quickstart` and prints its result.
pub fn run(args: &Quickstart, session: &Session) -> Result<ExitCode, Error> {
    let started = Instant::now();
    let folder = QuickstartFolder { root: args.folder.clone() };
    let (device, size) =
        (ComputeDevice::open(args.device, session)?, Scale::for_device(args.device.device));
    greet(&folder, session);
    check_disk(&folder)?;
    let _made = output::folder(&folder.root)?;
    clear(&folder)?;
    let rows = generate(&folder, args, session)?;
    let stop = interrupt::stop_flag(interrupt::SAVING);
    let mut job = config::job(MODEL, &size.overrides())?.config;
    let request = |job: &JobConfig, run: PathBuf| RunRequest {
        bucket_bytes: train::BUCKET_BYTES,
        schedule: Schedule::SERIAL,
        config: job.clone(),
        plan: ShardingPlan::table_wise(&job.model.tables, 1),
        train: Arc::clone(&rows.dataset),
        train_rows: rows.train.clone(),
        evaluation: None,
        run_folder: run,
        threads: session.threads,
        start: Start::Fresh,
        rule_change: RuleChange::Refuse,
        trace: None,
        orders: TraceInbox::default(),
        stop: Arc::clone(&stop),
    };
    say(session, 3, "measuring this machine");
    let measured = measure_speed(&request(&size.trial(&job), folder.root.join("trial")), &device)?;
    let seconds = scale::training_seconds(args.seconds, started.elapsed().as_secs_f64());
    scale::fit_steps(size, &mut job, rows.train.end, measured * seconds);
    // The configuration is written for the user to copy. The file contains the job as it is
    // trained, with the path of its data.
    job.data.train = input::absolute(&[folder.prepared().display().to_string()]);
    fs::write(folder.config(), toml_of(&job)?).map_err(Error::io(folder.config(), "write"))?;
    say(session, 4, &scale::describe(&job, measured));
    let outcome = train(
        &RunRequest {
            evaluation: Some((Arc::clone(&rows.dataset), rows.held_out.clone())),
            trace: Some(TraceRequest { folder: folder.trace(), steps: TRACED_STEPS }),
            ..request(&job, folder.run())
        },
        session,
        &device,
    )?;
    if outcome.interrupted {
        let (folder, seconds) = (quoted(&folder.root.display().to_string()), args.seconds);
        session.console.say(format_args!(
            "interrupted; start again with: rowmill quickstart --folder {folder} --seconds {seconds}"
        ));
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    }
    let recorded = open_folder(&folder.trace(), session)?;
    let title = Some("rowmill quickstart".to_owned());
    write_folder_page(&recorded, &folder.trace(), title, &folder.report(), session)?;
    let curves = super::report::write_run_report(&folder.run())?;
    say(session, 5, "predicting the step time of twice the batch, then measuring it");
    let short = |job: &JobConfig, run: PathBuf, trace: TraceRequest| {
        let request = RunRequest { trace: Some(trace), ..request(job, run) };
        Ok(run_on(&device, &request, &mut |_| {})?)
    };
    let change = change::try_change(&job, &folder.changes(), session, &short)?;
    let summary = summary::summarize(
        &rows,
        &outcome,
        change,
        curves,
        &folder,
        started.elapsed().as_secs_f64(),
    );
    session.console.report(&summary, summary::table)?;
    if session.console.format == OutputFormat::Table {
        let page = short_summary(&recorded)?;
        session.console.print(&format!("\nthe recorded steps:\n\n{page}\n"))?;
    }
    session.console.say(summary::next_steps(&summary));
    Ok(ExitCode::SUCCESS)
}

fn greet(folder: &QuickstartFolder, session: &Session) {
    let memory = machine::available_memory::read()
        .map_or("unknown".to_owned(), |available| available.bytes.to_string());
    session.console.say(format_args!(
        "rowmill quickstart: training a DLRM from Criteo-format text, in {} \
         ({} threads, {memory} memory free)",
        folder.root.display(),
        session.threads
    ));
}

fn say(session: &Session, step: u32, text: &str) {
    session.console.say(format_args!("[{step}/5] {text}"));
}

fn check_disk(folder: &QuickstartFolder) -> Result<(), Error> {
    let Some(available) = machine::disk_available(&folder.root) else { return Ok(()) };
    if available < DISK_NEEDED {
        let folder = folder.root.clone();
        return Err(RunError::Disk { folder, needed: DISK_NEEDED, available }.into());
    }
    Ok(())
}

/// Removes the files of an earlier quickstart from the folder, and marks the folder as belonging to
/// a quickstart.
///
/// # Errors
/// The folder contains files of something else, which are not touched.
fn clear(folder: &QuickstartFolder) -> Result<(), Error> {
    let root = &folder.root;
    let occupied = match fs::read_dir(root) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => false,
    };
    if occupied && !folder.config().exists() {
        return Err(UsageError::ForeignFolder { folder: root.clone() }.into());
    }
    // The marker is written before anything is removed, so that an interrupted removal can be
    // repeated.
    fs::write(folder.config(), "").map_err(Error::io(folder.config(), "write"))?;
    for path in
        [folder.prepared(), folder.run(), folder.trace(), folder.changes(), root.join("trial")]
    {
        if path.exists() {
            fs::remove_dir_all(&path).map_err(Error::io(&path, "remove"))?;
        }
    }
    remove_partial_text(folder)
}

/// Removes the partly written file `train.txt.….partial` that an interrupted quickstart left
/// behind.
fn remove_partial_text(folder: &QuickstartFolder) -> Result<(), Error> {
    let root = &folder.root;
    for entry in fs::read_dir(root).map_err(Error::io(root, "list"))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("train.txt.") && name.ends_with(".partial") {
            fs::remove_file(entry.path()).map_err(Error::io(entry.path(), "remove"))?;
        }
    }
    Ok(())
}

fn generate(
    folder: &QuickstartFolder,
    args: &Quickstart,
    session: &Session,
) -> Result<GeneratedRows, Error> {
    let config =
        SyntheticConfig::criteo(Scale::for_device(args.device.device).rows(args.seconds), SEED);
    let rows = render::count(config.rows);
    say(session, 1, &format!("generating {rows} rows in Criteo's format"));
    let _interrupted = output::cleared_up_beside(folder.text());
    let notice = interrupt::nothing_kept("generating");
    let (report, seconds) = generated_rows::write_with_progress(&config, &folder.text(), session)?;
    // From this point, Ctrl-C no longer loses the generated text.
    drop(notice);
    session.console.say(format_args!(
        "      {} in {} ({}/s); best possible AUC {:.4}, best linear model {:.4}",
        Bytes(report.bytes_text),
        render::duration(seconds),
        Bytes((report.bytes_text as f64 / seconds.max(1e-9)) as u64),
        report.ceiling_auc,
        report.linear_auc
    ));
    say(session, 2, "converting the text to a prepared dataset");
    let mut data = config::job(MODEL, &[])?.config.data;
    data.hold_out = scale::HOLD_OUT;
    let generator = serde_json::to_value(&report)?;
    let source = input::InputSource {
        paths: &[folder.text().display().to_string()],
        config: &data,
        fitted: None,
        hold_out: data.hold_out,
        cache: &folder.root,
        strictness: data::Strictness::Stop,
        generator: Some(&generator),
    };
    let prepared = input::prepare(session, &source, &folder.prepared(), Begin::Restart)?;
    let dataset = Arc::new(prepared.dataset);
    let (train, held_out) = dataset.split(data.hold_out);
    let ceiling_auc = ceiling_auc(&config, held_out.clone(), session.threads)?;
    Ok(GeneratedRows { report, dataset, train, held_out, ceiling_auc })
}

/// Measures the samples per second in a short trial run, and removes the files of the trial.
fn measure_speed(trial: &RunRequest, device: &ComputeDevice) -> Result<f64, Error> {
    let outcome = run_on(device, trial, &mut |_| {})?;
    fs::remove_dir_all(&trial.run_folder).map_err(Error::io(&trial.run_folder, "remove"))?;
    Ok(outcome.samples_per_second)
}

fn train(
    request: &RunRequest,
    session: &Session,
    device: &ComputeDevice,
) -> Result<RunOutcome, Error> {
    let mut observer = Observer::new(session.console).with_metrics_of(&request.run_folder);
    let outcome = run_on(device, request, &mut |event| observer.handle(event))?;
    observer.finish()?;
    Ok(outcome)
}

fn run_on(
    device: &ComputeDevice,
    request: &RunRequest,
    observe: &mut dyn FnMut(RunEvent<'_>),
) -> Result<RunOutcome, train::Error> {
    on_device!(device, open => train::run::run(request, open, observe))
}

fn toml_of(job: &JobConfig) -> Result<String, Error> {
    let text = job.to_toml();
    Ok(text.map_err(|source| UsageError::Config {
        origin: MODEL.to_owned(),
        source: Box::new(source),
    })?)
}
