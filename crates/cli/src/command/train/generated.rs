//! Writes the rows of `--synthetic` as a prepared dataset in the run folder. What the rows are is
//! decided by `setup::synthetic`.

use std::path::Path;

use data::{Begin, Strictness};

use setup::config::ResolvedJob;
use setup::error::Error;
use setup::progress::{Meter, ProgressUnit};
use setup::{Session, generated_rows, input, interrupt, output, render, synthetic};

/// Generates a prepared dataset that fits the job, unless the run folder already contains it. The
/// job then reads this dataset.
pub fn write_dataset(
    session: &Session,
    job: &mut ResolvedJob,
    rows: u64,
    run: &Path,
) -> Result<(), Error> {
    let config = synthetic::config_for(&job.config, rows, synthetic::SEED)?;
    synthetic::adapt(&mut job.config);
    let folder = run.join("data").join(synthetic::folder_name(&config, &job.config.data)?);
    job.config.data.train = input::absolute(&[folder.display().to_string()]);
    // An earlier run with the same settings may have generated the dataset already.
    if folder.join("dataset.json").exists() {
        return Ok(());
    }
    let text =
        folder.with_extension(if job.config.data.columns.is_empty() { "tsv" } else { "csv" });
    let _made = output::folder(&run.join("data"))?;
    let _interrupted = output::cleared_up_beside(text.clone());
    let notice = interrupt::nothing_kept("generating");
    let mut meter = Meter::start(session.console, "generating", ProgressUnit::Rows, Some(rows));
    let report =
        generated_rows::write(&config, &job.config.data, &text, session.threads, &mut |done| {
            meter.advance(done.rows, "");
        })?;
    let seconds = meter.finish();
    drop(notice);
    session.console.say(format_args!(
        "generated {} in {}; best possible AUC {:.4}, best linear model {:.4}",
        render::counted(report.rows, "row"),
        render::duration(seconds),
        report.ceiling_auc,
        report.linear_auc
    ));
    let paths = [text.display().to_string()];
    let generator = serde_json::to_value(&report)?;
    let source = input::InputSource {
        paths: &paths,
        config: &job.config.data,
        fitted: None,
        hold_out: job.config.data.held_out_shares().total(),
        cache: &folder,
        strictness: Strictness::Stop,
        generator: Some(&generator),
    };
    // Memory that the generation freed must not add to the peak of the preparation.
    device::buffer::return_freed_memory();
    let prepared = input::prepare(session, &source, &folder, Begin::Restart);
    // The text can be generated again, so only the prepared rows are kept.
    let removed = std::fs::remove_file(&text).map_err(Error::io(&text, "remove"));
    prepared.and(removed)
}
