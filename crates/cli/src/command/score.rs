//! The command `rowmill score`, which streams rows through a checkpoint and writes one click
//! probability per row, in the order of the rows.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use data::{BlockPace, ScoreRequest, read_for_scoring};
use device::Backend;
use schema::{Batch, DataConfig};
use serde::Serialize;
use train::Scorer;
use train::run::OpenDevice;
use train::scorer::DistributedScorer;

use crate::args::Score;
use setup::args::OutputFormat;
use setup::device::ComputeDevice;
use setup::error::{Error, RunError, UsageError};
use setup::on_device;
use setup::output;
use setup::process_group::{Participation, World};
use setup::progress::{Meter, ProgressUnit};
use setup::render;
use setup::{Session, checkpoint, input};

/// Runs `rowmill score` and prints its result.
pub fn run(args: &Score, session: &Session) -> Result<ExitCode, Error> {
    let device = || ComputeDevice::open(args.device, session);
    Participation::join(&args.processes, false)?.run(
        session,
        |world| {
            let folder = checkpoint::find_to_map(&args.checkpoint, session.console)?;
            // A missing file is reported before the device is opened.
            if args.file != "-" {
                input::is_there(&args.file)?;
            }
            on_device!(&device()?, open => score_all(open, args, folder, session, world))
        },
        |world, folder: PathBuf| {
            let (device, threads) = (device()?, world.threads(session));
            let distributed = DistributedScorer::new(world.take_comm()?);
            on_device!(&device, open => {
                distributed.follow(&mut Scorer::open(&folder, open(threads)?)?)?;
            });
            Ok(())
        },
    )
}

/// Scores all rows as the only process, or as rank 0 of the processes of `world`.
fn score_all<B: Backend>(
    open: impl OpenDevice<B>,
    args: &Score,
    folder: PathBuf,
    session: &Session,
    world: Option<&mut World>,
) -> Result<ExitCode, Error> {
    let threads = world.as_ref().map_or(session.threads, |world| world.threads(session));
    let mut scorer =
        BatchScorer { scorer: Scorer::open(&folder, open(threads)?)?, distributed: None };
    if let Some(world) = world {
        // The other processes wait for the path of the checkpoint, which they then map too.
        world.broadcast_order(std::path::absolute(&folder).unwrap_or(folder))?;
        scorer.distributed = Some(DistributedScorer::new(world.take_comm()?));
    }
    let scored = match &args.output {
        None => {
            let out = BufWriter::new(io::stdout().lock());
            score(args, session, &mut scorer, &mut ScoreTarget { out, path: None })?
        }
        Some(path) => {
            let scored = score_into(path, args, session, &mut scorer)?;
            session.console.report(&scored, |scored| {
                format!("{} scored into {}", render::counted(scored.rows, "row"), path.display())
            })?;
            scored
        }
    };
    // The other processes wait for more rows until rank 0 tells them that there are none.
    if let Some(distributed) = scorer.distributed.take() {
        distributed.end()?;
    }
    scored.check(args).map(|()| ExitCode::SUCCESS)
}

/// Computes the probabilities of batches, either with this process alone or together with the other
/// processes of a launcher.
struct BatchScorer<B: Backend> {
    scorer: Scorer<B>,
    distributed: Option<DistributedScorer>,
}

impl<B: Backend> BatchScorer<B> {
    fn score(&mut self, batch: &Batch) -> Result<Vec<f32>, train::Error> {
        match &mut self.distributed {
            None => self.scorer.score(batch),
            Some(distributed) => distributed.score(&mut self.scorer, batch),
        }
    }
}

/// Largest number of line numbers that the error about rows without a probability lists.
const LINES_NAMED: usize = 10;

/// Writes the scores into the file `path`. An existing file is replaced only when the new one is
/// complete.
fn score_into<B: Backend>(
    path: &Path,
    args: &Score,
    session: &Session,
    scorer: &mut BatchScorer<B>,
) -> Result<ScoreResult, Error> {
    // Links are resolved, because the input could also be overwritten through a link.
    let input = fs::canonicalize(&args.file).ok();
    let existing = fs::canonicalize(path).ok();
    if existing.is_some() && existing == input {
        return Err(UsageError::OutputIsInput { path: path.to_owned() }.into());
    }
    output::clear_up_beside(vec![existing.unwrap_or_else(|| path.to_owned())]);
    output::put(path, |file| {
        let mut target = ScoreTarget { out: BufWriter::new(file), path: Some(path) };
        score(args, session, scorer, &mut target)
    })
}

/// The result of `rowmill score`, which is printed if the probabilities go to a file.
#[derive(Serialize)]
struct ScoreResult {
    rows: u64,
    unreadable_rows: u64,
    not_finite_rows: u64,
    seconds: f64,
    /// Line numbers of the first rows whose probability is not finite.
    #[serde(skip)]
    not_finite_lines: Vec<u64>,
}

impl ScoreResult {
    /// Fails if the model gave some rows a probability that is not finite. The check is made after
    /// all rows are written.
    fn check(&self, args: &Score) -> Result<(), Error> {
        match self.not_finite_rows {
            0 => Ok(()),
            count => Err(RunError::NotScored {
                path: args.file.clone().into(),
                count,
                rows: self.rows,
                first: self.not_finite_lines.clone(),
            }
            .into()),
        }
    }
}

fn score<B: Backend, W: Write>(
    args: &Score,
    session: &Session,
    scores: &mut BatchScorer<B>,
    target: &mut ScoreTarget<'_, W>,
) -> Result<ScoreResult, Error> {
    let json = args.output.is_none() && session.console.format == OutputFormat::Json;
    let scorer = &scores.scorer;
    let mut placed = PlacedScores::starting_at(first_line(&scorer.config().data), json);
    let pace = if args.follow { BlockPace::AsItComes } else { BlockPace::FullBlocks };
    let mut reader = read_for_scoring(ScoreRequest {
        inputs: vec![args.file.clone()],
        config: scorer.config().data.clone(),
        fitted: scorer.fitted().clone(),
        features: scorer.features(),
        batch_size: scorer.batch_size(),
        pace,
        strictness: input::strictness(args.malformed),
        threads: session.threads,
    })?;
    let mut meter = Meter::start(session.console, "scoring", ProgressUnit::Rows, None);
    let mut rows = 0;
    for batch in reader.by_ref() {
        let batch = batch?;
        let probabilities = scores.score(&batch.batch)?;
        target.write(&placed.align_batch(&batch.lines, &probabilities))?;
        rows += probabilities.len() as u64;
        if args.follow {
            target.write(&placed.pad_to(batch.malformed, args, rows)?)?;
            // With --follow, the reader of the output must see the score of each row at once.
            target.flush()?;
        }
        meter.advance(rows, "");
    }
    let losses = reader.losses();
    target.write(&placed.pad_to(losses.records(), args, rows)?)?;
    target.flush()?;
    let seconds = meter.finish();
    let unreadable_rows = losses.records();
    input::report_ids(session, &scores.scorer.config().data, losses);
    if unreadable_rows > 0 {
        session.console.warn(format_args!(
            "{} could not be read and got nan, the first of them:",
            render::counted(unreadable_rows, "row")
        ));
        for malformed in &losses.first {
            session.console.say(format_args!("  {malformed}"));
        }
    }
    Ok(ScoreResult {
        rows: rows + unreadable_rows,
        unreadable_rows,
        not_finite_rows: placed.not_finite,
        seconds,
        not_finite_lines: placed.not_finite_lines,
    })
}

/// Returns the line number of the first row, which is 2 if the file has a header, and 1 otherwise.
fn first_line(config: &DataConfig) -> u64 {
    let has_header = config.format.has_header_line() && config.columns.is_empty();
    if has_header { 2 } else { 1 }
}

/// Aligns probabilities with the lines of the input. The reader leaves out unreadable rows, so a
/// skipped line number means an unreadable row. The probability of an unreadable row is written as
/// `nan`, and so is a probability that is not finite.
struct PlacedScores {
    next_line: u64,
    unreadable: u64,
    not_finite: u64,
    not_finite_lines: Vec<u64>,
    json: bool,
}

impl PlacedScores {
    fn starting_at(line: u64, json: bool) -> Self {
        let not_finite_lines = Vec::new();
        Self { next_line: line, unreadable: 0, not_finite: 0, not_finite_lines, json }
    }

    fn align_batch(&mut self, lines: &[u64], probabilities: &[f32]) -> String {
        let mut text = String::with_capacity(12 * lines.len());
        for (&line, probability) in lines.iter().zip(probabilities) {
            let skipped = line.saturating_sub(self.next_line);
            text += &self.unreadable_lines(skipped);
            self.next_line = line + 1;
            if !probability.is_finite() {
                text += self.missing_line();
                self.not_finite += 1;
                if self.not_finite_lines.len() < LINES_NAMED {
                    self.not_finite_lines.push(line);
                }
                continue;
            }
            let end = if self.json { "}\n" } else { "\n" };
            text += &format!("{}{probability}{end}", self.line_start());
        }
        text
    }

    /// Writes `nan` for the unreadable rows that follow the last readable row. `malformed` is the
    /// number of unreadable rows so far.
    ///
    /// # Errors
    /// More line numbers were skipped than rows were malformed, so the alignment is wrong.
    fn pad_to(&mut self, malformed: u64, args: &Score, rows: u64) -> Result<String, Error> {
        let Some(missing) = malformed.checked_sub(self.unreadable) else {
            return Err(RunError::Alignment { path: args.file.clone().into(), rows }.into());
        };
        self.next_line += missing;
        Ok(self.unreadable_lines(missing))
    }

    fn unreadable_lines(&mut self, rows: u64) -> String {
        self.unreadable += rows;
        self.missing_line().repeat(rows as usize)
    }

    /// The output line of a row that has no finite probability.
    fn missing_line(&self) -> &'static str {
        if self.json { "{\"probability\":null}\n" } else { "nan\n" }
    }

    fn line_start(&self) -> &'static str {
        if self.json { "{\"probability\":" } else { "" }
    }
}

/// The destination of the probabilities: a file or stdout.
struct ScoreTarget<'a, W> {
    out: W,
    /// The path of the file, for error messages. `None` for stdout.
    path: Option<&'a Path>,
}

impl<W: Write> ScoreTarget<'_, W> {
    fn write(&mut self, text: &str) -> Result<(), Error> {
        let written = self.out.write_all(text.as_bytes());
        written.map_err(|source| self.write_error(source))
    }

    fn flush(&mut self) -> Result<(), Error> {
        let flushed = self.out.flush();
        flushed.map_err(|source| self.write_error(source))
    }

    fn write_error(&self, source: io::Error) -> Error {
        match self.path {
            Some(path) => Error::io(path, "write")(source),
            None => Error::output(source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PlacedScores;

    #[test]
    fn unreadable_rows_get_nan_on_their_own_line() {
        let mut placed = PlacedScores::starting_at(2, false);
        assert_eq!(placed.align_batch(&[2, 4], &[0.5, 0.25]), "0.5\nnan\n0.25\n");
        assert_eq!(placed.align_batch(&[5, 8], &[0.5, 1.0]), "0.5\nnan\nnan\n1\n");
        assert_eq!(placed.unreadable, 3);
        assert_eq!(placed.align_batch(&[9, 10], &[f32::NAN, 0.5]), "nan\n0.5\n");
        assert_eq!((placed.unreadable, placed.not_finite), (3, 1));
        assert_eq!(placed.not_finite_lines, [9]);
        let mut json = PlacedScores::starting_at(1, true);
        assert_eq!(
            json.align_batch(&[2], &[0.5]),
            "{\"probability\":null}\n{\"probability\":0.5}\n"
        );
    }
}
