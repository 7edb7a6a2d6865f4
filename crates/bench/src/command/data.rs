//! `rowmill-bench data` measures the conversion of Criteo text to columns, of text to a prepared
//! folder, and of Parquet to another prepared folder.
//!
//! Every measurement is a separate process, so that its peak memory can be measured. The stages
//! take turns, so that disturbances by other programs affect all of them equally.

mod stage;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use ::data::synthetic::SyntheticConfig;
use schema::Bytes;
use serde::Serialize;

use super::operation::per_second;
use crate::args::{BenchData, BenchStage};
use bench::sample::PATIENCE;
use bench::sample::{BenchSample, Judge, Kept, Quality};
use bench::sample::{STOPPING, conclude};
use setup::Session;
use setup::error::{Error, RunError};
use setup::generated_rows;
use setup::progress::{Meter, ProgressUnit};
use setup::{interrupt, machine, render};
use stage::Once;

const STAGES: [BenchStage; 3] = [BenchStage::Scan, BenchStage::Convert, BenchStage::Parquet];
/// Approximate length of a generated line in bytes.
const LINE_BYTES: u64 = 240;
const SEED: u64 = 1;
/// Disk space of one run divided by the size of the text. The space covers the text itself and two
/// prepared folders.
const DISK_FACTOR: f64 = 2.5;

/// Medians over the accepted samples. `mb` are millions of bytes of text. For Parquet, the text is
/// the one from which the rows of the Parquet files were made.
#[derive(Debug, Serialize)]
struct DataReport {
    text_bytes: u64,
    rows: u64,
    threads: usize,
    /// Rate of converting text to columns of integers in memory.
    scan_mb_per_s: f64,
    scan_rows_per_s: f64,
    scan_peak_bytes: u64,
    /// Rate of converting text to a prepared folder.
    convert_mb_per_s: f64,
    convert_rows_per_s: f64,
    convert_peak_bytes: u64,
    /// Rate of converting Parquet to a prepared folder.
    parquet_mb_per_s: f64,
    parquet_rows_per_s: f64,
    parquet_peak_bytes: u64,
    #[serde(flatten)]
    quality: Quality,
    interrupted: bool,
}

/// Runs `rowmill-bench data` and prints its result.
pub fn run(args: &BenchData, session: &Session) -> Result<ExitCode, Error> {
    if let (Some(stage), Some(file), Some(out)) = (args.once, &args.file, &args.out) {
        let once = stage::run(stage, file, out, session.threads)?;
        return session.console.json(&once).map(|()| ExitCode::SUCCESS);
    }
    let folder = tempfile::tempdir().map_err(Error::io(std::env::temp_dir(), "create"))?;
    let stop = interrupt::stop_flag(STOPPING);
    let file = match &args.file {
        Some(file) => file.clone(),
        None => generated(args, folder.path(), session)?,
    };
    let text_bytes = file.metadata().map_err(Error::io(&file, "read"))?.len();
    room(folder.path(), text_bytes)?;
    let (taken, interrupted) = measure(args, &file, folder.path(), session, &stop)?;
    let conditions = taken.iter().flatten().map(|sample| &sample.conditions);
    let judge = Judge::new(&args.sampling, conditions);
    let report = report(&taken, &judge, text_bytes, session.threads, interrupted);
    conclude(session, &report.quality, interrupted, &report, table)
}

fn generated(args: &BenchData, folder: &Path, session: &Session) -> Result<PathBuf, Error> {
    let bytes = args.megabytes * 1_000_000;
    room(folder, bytes)?;
    let file = folder.join("train.txt");
    let config = SyntheticConfig::criteo((bytes / LINE_BYTES).max(1), SEED);
    generated_rows::write_with_progress(&config, &file, session)?;
    Ok(file)
}

/// Returns an error if the disk has too little space for the text and the prepared folders.
fn room(folder: &Path, text_bytes: u64) -> Result<(), Error> {
    let needed = Bytes((DISK_FACTOR * text_bytes as f64) as u64);
    match machine::disk_available(folder) {
        Some(available) if available < needed => {
            Err(RunError::BenchDisk { folder: folder.to_owned(), needed, available }.into())
        }
        _ => Ok(()),
    }
}

/// Samples of each stage, in the order of [`STAGES`].
type StageSamples = [Vec<BenchSample<Once>>; STAGES.len()];

fn measure(
    args: &BenchData,
    file: &Path,
    folder: &Path,
    session: &Session,
    stop: &AtomicBool,
) -> Result<(StageSamples, bool), Error> {
    let mut samples = StageSamples::default();
    let stages = STAGES.len() as u64;
    let repeats = args.sampling.repeats;
    let mut meter = Meter::start(session.console, "measuring", ProgressUnit::Steps, None);
    for turn in 0..PATIENCE * repeats {
        let all = || samples.iter().flatten().map(|sample| &sample.conditions);
        let judge = Judge::new(&args.sampling, all());
        let good = all().filter(|conditions| judge.accepts(conditions)).count() as u64;
        // Disturbed samples are repeated until at least half of the requested number is
        // undisturbed.
        if turn >= repeats && 2 * good >= stages * repeats {
            break;
        }
        meter.set_total(Some(stages * (turn + 1).max(repeats)));
        // The stages take turns, so that a disturbance affects all of them equally.
        for (at, stage) in STAGES.into_iter().enumerate() {
            // The first turn is always completed, so that each stage has a sample to report.
            if turn > 0 && stop.load(Ordering::SeqCst) {
                return Ok((samples, true));
            }
            samples[at].push(stage::alone(stage, file, folder, session.threads)?);
            meter.advance(turn * stages + at as u64 + 1, "");
        }
        // Prepared folders of earlier turns would fill the disk, and their pages the page cache.
        stage::clear(folder)?;
    }
    meter.finish();
    Ok((samples, false))
}

fn report(
    taken: &StageSamples,
    judge: &Judge,
    text_bytes: u64,
    threads: usize,
    interrupted: bool,
) -> DataReport {
    let [scan, convert, parquet] = [0, 1, 2].map(|stage: usize| judge.kept(&taken[stage]));
    // All runs read the same rows, so the number of any run is valid.
    let rows = scan.values().map(|once| once.rows).max().unwrap_or_default();
    let mb = |kept: &Kept<'_, Once>| {
        kept.median(|once| per_second(text_bytes as f64 / 1e6, 1e3 * once.seconds))
    };
    let rows_per_s =
        |kept: &Kept<'_, Once>| kept.median(|once| per_second(rows as f64, 1e3 * once.seconds));
    let peak =
        |kept: &Kept<'_, Once>| kept.values().map(|once| once.peak_bytes).max().unwrap_or_default();
    let stages = [&scan, &convert, &parquet];
    let quality = judge.quality(
        taken.iter().flatten().map(|sample| &sample.conditions),
        stages.into_iter().flat_map(Kept::conditions),
        stages.iter().all(|kept| kept.is_trusted),
    );
    DataReport {
        text_bytes,
        rows,
        threads,
        scan_mb_per_s: mb(&scan),
        scan_rows_per_s: rows_per_s(&scan),
        scan_peak_bytes: peak(&scan),
        convert_mb_per_s: mb(&convert),
        convert_rows_per_s: rows_per_s(&convert),
        convert_peak_bytes: peak(&convert),
        parquet_mb_per_s: mb(&parquet),
        parquet_rows_per_s: rows_per_s(&parquet),
        parquet_peak_bytes: peak(&parquet),
        quality,
        interrupted,
    }
}

fn table(report: &DataReport) -> String {
    let stage = |mb: f64, rows: f64, peak: u64| {
        format!("{mb:.0} MB/s, {:.2} M rows/s, at most {} of memory", rows / 1e6, Bytes(peak))
    };
    let rows = render::counted(report.rows, "row");
    let threads = render::counted(report.threads as u64, "thread");
    let mut facts = vec![
        ("text", format!("{}, {rows}, {threads}", Bytes(report.text_bytes))),
        (
            "text to columns",
            stage(report.scan_mb_per_s, report.scan_rows_per_s, report.scan_peak_bytes),
        ),
        (
            "text to a prepared folder",
            stage(report.convert_mb_per_s, report.convert_rows_per_s, report.convert_peak_bytes),
        ),
        (
            "Parquet to a prepared folder (MB of the text)",
            stage(report.parquet_mb_per_s, report.parquet_rows_per_s, report.parquet_peak_bytes),
        ),
    ];
    facts.extend(report.quality.rows());
    render::facts(&facts)
}
