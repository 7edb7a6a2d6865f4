//! The command `rowmill data`, which generates, converts and describes data, and simulates caches
//! of the rows that it looks up.

use std::path::PathBuf;

use data::Begin;
use data::synthetic::{self, SyntheticConfig, SyntheticReport};
use schema::Bytes;
use schema::source::IdMode;
use serde::Serialize;

use crate::args::{Convert, Data, Synth, TextLayout};
use setup::error::{Error, UsageError};
use setup::generated_rows;
use setup::synthetic::Laws;
use setup::{Session, config, input};
use setup::{output, render};

mod cache;
mod cache_drawing;
pub mod stats;

/// Number of features that `--layout csv` generates without a configuration.
const CSV_FEATURES: usize = 8;

/// Runs `rowmill data` and prints its result.
pub fn run(command: Data, session: &Session) -> Result<(), Error> {
    match command {
        Data::Synth(synth) => generate(&synth, session),
        Data::Convert(request) => convert(&request, session),
        Data::Stats(request) => stats::run(&request, session),
        Data::Cache(request) => cache::run(&request, session),
    }
}

/// The result of `rowmill data synth`, in the form in which it is printed.
#[derive(Serialize)]
struct SynthResult<'a> {
    #[serde(serialize_with = "render::path_text")]
    file: &'a PathBuf,
    #[serde(flatten)]
    report: SyntheticReport,
    seconds: f64,
}

fn generate(synth: &Synth, session: &Session) -> Result<(), Error> {
    let config = synthetic_config(synth)?;
    output::clear_up_beside(vec![synth.out.clone()]);
    let (report, seconds) = generated_rows::write_with_progress(&config, &synth.out, session)?;
    let synthesized = SynthResult { file: &synth.out, report, seconds };
    session.console.report(&synthesized, |made| {
        render::facts(&[
            ("file", made.file.display().to_string()),
            ("rows", render::count(made.report.rows)),
            ("size", Bytes(made.report.bytes_text).to_string()),
            ("clicks", format!("{:.2} %", 100.0 * made.report.click_rate)),
            ("ceiling AUC (true probabilities)", format!("{:.4}", made.report.ceiling_auc)),
            ("best linear model's AUC", format!("{:.4}", made.report.linear_auc)),
            ("time", render::duration(made.seconds)),
        ])
    })
}

fn synthetic_config(synth: &Synth) -> Result<SyntheticConfig, Error> {
    let mut config = base_config(synth)?;
    let Some(law) = &synth.distribution else { return Ok(config) };
    let distribution = Laws::default().distribution(law)?;
    for feature in &mut config.features {
        feature.distribution = distribution;
    }
    Ok(config)
}

/// The configuration of generated rows, to which `--distribution` is then applied.
fn base_config(synth: &Synth) -> Result<SyntheticConfig, Error> {
    if let Some(name) = &synth.config {
        let job = config::job(name, &[])?;
        return setup::synthetic::config_for(&job.config, synth.rows, synth.seed);
    }
    let mut config = SyntheticConfig::criteo(synth.rows, synth.seed);
    if synth.layout == TextLayout::Csv {
        config.layout = synthetic::RowLayout::Csv;
        config.features.truncate(CSV_FEATURES);
        config.planted = synthetic::PlantedConfig::pair_neighbors(CSV_FEATURES);
    }
    Ok(config)
}

/// The result of `rowmill data convert`, in the form in which it is printed.
#[derive(Serialize)]
struct ConvertResult<'a> {
    #[serde(serialize_with = "render::path_text")]
    folder: &'a PathBuf,
    rows: u64,
    seconds: f64,
}

fn convert(request: &Convert, session: &Session) -> Result<(), Error> {
    let overrides = config::overrides(request.delimiter.as_deref(), &request.set);
    let mut job = config::job(&request.config, &overrides)?;
    if let (Some(memory), IdMode::Exact { memory_mib, .. }) =
        (request.memory, &mut job.config.data.ids)
    {
        *memory_mib = memory;
    }
    if request.out.exists() {
        return Err(UsageError::Exists { path: request.out.clone() }.into());
    }
    let begin = if request.restart { Begin::Restart } else { Begin::Resume };
    let started = std::time::Instant::now();
    let source = input::InputSource {
        paths: &request.inputs,
        config: &job.config.data,
        fitted: None,
        hold_out: job.config.data.held_out_shares().total(),
        cache: &request.out,
        strictness: input::strictness(request.malformed),
        generator: None,
    };
    let dataset = input::prepare(session, &source, &request.out, begin)?.dataset;
    let seconds = started.elapsed().as_secs_f64();
    let converted = ConvertResult { folder: &request.out, rows: dataset.rows(), seconds };
    session.console.report(&converted, |converted| {
        format!(
            "{} in {}; train on them with:\n  rowmill train {} --train {}",
            render::counted(converted.rows, "row"),
            converted.folder.display(),
            request.config,
            converted.folder.display()
        )
    })
}
