//! The command `rowmill eval`, which evaluates a checkpoint on labeled rows.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use data::Dataset;
use device::Backend;
use serde::{Deserialize, Serialize};
use train::run::OpenDevice;
use train::{Evaluation, Scorer};

use crate::args::Eval;
use crate::evaluation_text::{evaluation_rows, warn_of_evaluation};
use setup::device::ComputeDevice;
use setup::error::{Error, UsageError};
use setup::on_device;
use setup::process_group::{Participation, World};
use setup::progress::{Meter, ProgressUnit};
use setup::{Session, checkpoint, input};
use setup::{interrupt, render};

/// The result of `rowmill eval`, in the form in which it is printed.
#[derive(Serialize)]
struct EvalResult {
    #[serde(serialize_with = "render::path_text")]
    checkpoint: PathBuf,
    step: u64,
    evaluation: Evaluation,
    samples_per_second: f64,
}

/// The checkpoint and the rows to evaluate, as rank 0 sends them to the other ranks.
#[derive(Serialize, Deserialize)]
struct EvaluationTask {
    checkpoint: PathBuf,
    data: PathBuf,
    rows: Range<u64>,
}

/// Runs `rowmill eval` and prints its result.
pub fn run(args: &Eval, session: &Session) -> Result<ExitCode, Error> {
    let device = || ComputeDevice::open(args.device, session);
    Participation::join(&args.processes, false)?.run(
        session,
        |world| {
            let folder = checkpoint::find_for_rows(&args.checkpoint, session.console)?;
            on_device!(&device()?, open => evaluate(open, args, folder, session, world))
        },
        |world, task: EvaluationTask| {
            on_device!(&device()?, open => follow(open, world, session, task))
        },
    )
}

/// Takes part in an evaluation as a rank other than rank 0.
fn follow<B: Backend>(
    open: impl OpenDevice<B>,
    world: &mut World,
    session: &Session,
    task: EvaluationTask,
) -> Result<(), Error> {
    let device = open(world.threads(session))?;
    let mut scorer = Scorer::join(&task.checkpoint, device, world.stream()?)?;
    let dataset = Dataset::open(&task.data)?;
    scorer.evaluate(&dataset, task.rows, &mut |_, _| {})?;
    Ok(())
}

/// Evaluates the checkpoint as the only process, or as rank 0 of the processes of `world`.
fn evaluate<B: Backend>(
    open: impl OpenDevice<B>,
    args: &Eval,
    folder: PathBuf,
    session: &Session,
    world: Option<&mut World>,
) -> Result<ExitCode, Error> {
    let mut scorer = match &world {
        None => Scorer::load(&folder, open(session.threads)?)?,
        Some(world) => Scorer::join(&folder, open(world.threads(session))?, world.stream()?)?,
    };
    // A checkpoint that was copied out of its run has no run folder in which data can be prepared.
    let temporary = tempfile::tempdir().map_err(Error::io(std::env::temp_dir(), "create"))?;
    let prepared = temporary.path().to_owned();
    interrupt::clear_up(move || {
        // The process is about to end, so an error can no longer be reported.
        let _ = fs::remove_dir_all(&prepared);
    });
    let cache = checkpoint::run_of(&folder)
        .map_or_else(|| temporary.path().to_owned(), |run| run.join("data"));
    let (dataset, rows) = prepare_held_out(args, &scorer, session, cache)?;
    // The other ranks start after the data is prepared, because they open the prepared data.
    if let Some(world) = world {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let (checkpoint, data) = (absolute(&folder), absolute(dataset.dir()));
        world.broadcast_order(EvaluationTask { checkpoint, data, rows: rows.clone() })?;
    }
    let total = rows.end - rows.start;
    let mut meter = Meter::start(session.console, "evaluating", ProgressUnit::Rows, Some(total));
    let evaluation = scorer.evaluate(&dataset, rows, &mut |done, _| meter.advance(done, ""))?;
    let seconds = meter.finish();
    let samples_per_second = evaluation.samples as f64 / seconds.max(1e-9);
    let evaluated =
        EvalResult { checkpoint: folder, step: scorer.step(), evaluation, samples_per_second };
    session.console.report(&evaluated, |evaluated| {
        let mut rows = vec![
            ("checkpoint", evaluated.checkpoint.display().to_string()),
            ("steps", render::count(evaluated.step)),
        ];
        rows.extend(evaluation_rows(&evaluated.evaluation));
        rows.push(("speed", render::rate(evaluated.samples_per_second)));
        render::facts(&rows)
    })?;
    warn_of_evaluation(session.console, Some(&evaluated.evaluation), &scorer.config().training);
    Ok(ExitCode::SUCCESS)
}

/// Prepares the rows of `--data`. Without that option, prepares the rows that the run held out.
fn prepare_held_out<B: Backend>(
    args: &Eval,
    scorer: &Scorer<B>,
    session: &Session,
    cache: PathBuf,
) -> Result<(Arc<Dataset>, Range<u64>), Error> {
    let config = &scorer.config().data;
    let strictness = input::strictness(args.malformed);
    if args.data.is_empty() {
        if config.train.is_empty() {
            return Err(UsageError::NoEvaluation.into());
        }
        let inputs = input::prepare_training_data(session, config, &cache, strictness)?;
        let evaluation = inputs.evaluation(session, config, &cache, strictness)?;
        let (dataset, rows) = evaluation.ok_or(UsageError::NoEvaluation)?;
        // Only a checkpoint that has a fingerprint of its held-out rows can be compared with the
        // present rows. With rows for validation, the fingerprint is theirs.
        let is_recorded = config.validation == 0.0 || config.evaluation.is_empty();
        let (trained, now) = (scorer.data().held_out, dataset.manifest().fingerprint());
        if is_recorded && trained.is_some() && trained != now {
            session.console.warn(
                "the held-out rows have changed since the training run, so the figures cannot be \
                 compared with those of the run",
            );
        }
        return Ok((dataset, rows));
    }
    let source = input::InputSource {
        paths: &args.data,
        config,
        fitted: Some(scorer.fitted()),
        hold_out: 0.0,
        cache: &cache,
        strictness,
        generator: None,
    };
    let dataset = Arc::new(input::dataset(session, &source)?);
    let rows = 0..dataset.rows();
    Ok((dataset, rows))
}
