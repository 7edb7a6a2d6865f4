//! The command `rowmill data stats`, which describes the columns of files or of a prepared folder.

use std::path::Path;

use data::profile::{self, Profile};
use data::stats::{
    CategoricalStats, CountMethod, DenseStats, Stats, summarize_dataset, summarize_inputs,
};
use data::{Dataset, Losses, Strictness};

use schema::DataConfig;
use schema::facts::{ColumnFacts, FileFacts};
use schema::source::NumberForm;

use crate::args;
use setup::error::{Error, UsageError};
use setup::feature_stats_file;
use setup::progress::{Meter, ProgressUnit};
use setup::render;
use setup::{Session, config, input};

/// Runs `rowmill data stats` and prints its result.
pub fn run(request: &args::Stats, session: &Session) -> Result<(), Error> {
    let is_folder = matches!(&request.paths[..], [path] if is_prepared(path));
    if request.config.is_none() && !is_folder {
        if request.feature_stats.is_some() {
            return Err(UsageError::FeaturesUnknown.into());
        }
        return describe_files(request, session);
    }
    let stats = summarize(request, session)?;
    if let Some(path) = &request.feature_stats {
        feature_stats_file::write(path, &stats)?;
    }
    session.console.report(&stats, table)
}

/// Whether `path` is a folder with a prepared dataset.
fn is_prepared(path: &str) -> bool {
    Path::new(path).join("dataset.json").exists()
}

fn summarize(request: &args::Stats, session: &Session) -> Result<Stats, Error> {
    if let [path] = request.paths.as_slice()
        && is_prepared(path)
    {
        let dataset = Dataset::open(Path::new(path))?;
        input::report_losses(session, dataset.rows(), &dataset.manifest().losses);
        let rows = 0..dataset.rows();
        let mut meter =
            Meter::start(session.console, "reading", ProgressUnit::Rows, Some(rows.end));
        let threads = session.threads;
        let stats =
            summarize_dataset(&dataset, rows, threads, &mut |done| meter.advance(done, ""))?;
        meter.finish();
        return Ok(stats);
    }
    let paths = input::files_of(&request.paths)?;
    let name = request.config.as_deref().unwrap_or_default();
    let job = config::job(name, &config::overrides(request.delimiter.as_deref(), &[]))?;
    let (config, strictness) = (&job.config.data, input::strictness(request.malformed));
    let (stats, losses) = summarize_files(&paths, config, strictness, session)?;
    input::report_losses(session, stats.rows, &losses);
    input::report_ids(session, config, &losses);
    Ok(stats)
}

/// Computes the statistics of files that `config` describes, and shows the progress.
pub fn summarize_files(
    paths: &[String],
    config: &DataConfig,
    strictness: Strictness,
    session: &Session,
) -> Result<(Stats, Losses), Error> {
    let mut meter = Meter::start(session.console, "reading", ProgressUnit::Bytes, None);
    let mut show = |progress: data::DataProgress| {
        meter.set_total(progress.bytes_total);
        meter.advance(progress.bytes_done, &render::counted(progress.rows, "row"));
    };
    let summary = summarize_inputs(paths, config, strictness, session.threads, &mut show)?;
    meter.finish();
    Ok(summary)
}

/// Reads the facts of every column of the files, and shows the progress.
pub fn profile_files(
    files: &[String],
    delimiter: Option<&str>,
    session: &Session,
) -> Result<Profile, Error> {
    let mut meter = Meter::start(session.console, "reading", ProgressUnit::Bytes, None);
    let mut show = |progress: data::DataProgress| {
        meter.set_total(progress.bytes_total);
        meter.advance(progress.bytes_done, &render::counted(progress.rows, "row"));
    };
    let profile = profile::profile_files(files, delimiter, session.threads, &mut show)?;
    meter.finish();
    Ok(profile)
}

/// Describes the columns of files without a configuration. The types of the columns are inferred
/// from the values.
fn describe_files(request: &args::Stats, session: &Session) -> Result<(), Error> {
    let paths = input::files_of(&request.paths)?;
    let profile = profile_files(&paths, request.delimiter.as_deref(), session)?;
    input::report_losses(session, profile.facts.rows, &profile.losses);
    session.console.report(&profile.facts, |facts| {
        let header = [
            "column",
            "holds",
            "missing %",
            "distinct",
            "least",
            "greatest",
            "mean",
            "most frequent",
        ];
        let rows: Vec<_> = facts.columns.iter().map(|column| column_row(column, facts)).collect();
        let mut about = vec![
            ("rows", render::count(facts.rows)),
            ("columns", render::count(facts.columns.len() as u64)),
        ];
        if let Some(delimiter) = &facts.delimiter {
            about.push(("delimiter", format!("{delimiter:?}")));
        }
        if let Some(missing) = &facts.missing {
            about.push(("missing values as", format!("{missing:?}")));
        }
        if let Some(layout) = facts.layout {
            about.push(("layout", layout.name().to_owned()));
        }
        format!("{}\n\n{}", render::facts(&about), render::grid(&header, &rows))
    })
}

fn column_row(column: &ColumnFacts, facts: &FileFacts) -> Vec<String> {
    // A column has a type if 99 % of its values have it, because numeric columns often contain a
    // few texts such as `N/A`.
    let all = |count: u64| column.present > 0 && 100 * count >= 99 * column.present;
    let holds = if let Some(kind) = &column.unreadable {
        return unreadable_row(column, kind);
    } else if column.times.as_ref().is_some_and(|times| all(times.count)) {
        "times"
    } else if column.list.is_some() {
        "lists"
    } else if all(column.integers + column.integers_beyond_64_bits) {
        "integers"
    } else if all(column.numbers) {
        match column.number_form {
            NumberForm::Plain => "numbers",
            NumberForm::Money | NumberForm::DecimalComma => "amounts",
        }
    } else {
        "text"
    };
    let is_number = column.numbers > 0;
    let share = 100.0 * column.missing as f64 / facts.rows.max(1) as f64;
    let about = if column.is_counted { "" } else { "~" };
    let frequent = column.values.first().map(|(text, _)| text.clone());
    let plain = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value}"));
    vec![
        column.name.clone(),
        holds.to_owned(),
        format!("{share:.2}"),
        format!("{about}{}", render::count(column.distinct)),
        plain(column.least),
        plain(column.greatest),
        if is_number { format!("{:.4}", column.mean) } else { "-".to_owned() },
        frequent.unwrap_or_else(|| "-".to_owned()),
    ]
}

/// Returns the row of a column whose type cannot be read. The values of such a column are unknown,
/// so they are shown as `-`.
fn unreadable_row(column: &ColumnFacts, kind: &str) -> Vec<String> {
    let mut row = vec![column.name.clone(), format!("unreadable: {kind}")];
    row.resize(8, "-".to_owned());
    row
}

fn table(stats: &Stats) -> String {
    let click_rate =
        stats.click_rate.map_or("unknown".to_owned(), |rate| format!("{:.3} %", 100.0 * rate));
    let facts = [("rows", render::count(stats.rows)), ("clicks", click_rate)];
    let mut parts = vec![render::facts(&facts)];
    if !stats.dense.is_empty() {
        let header = ["dense column", "missing %", "min", "1 %", "median", "99 %", "max", "mean"];
        let rows: Vec<_> = stats.dense.iter().map(dense_row).collect();
        parts.push(render::grid(&header, &rows));
    }
    if !stats.categorical.is_empty() {
        let header = [
            "categorical column",
            "missing %",
            "bag length",
            "distinct",
            "outside table",
            "top share %",
            "zipf",
        ];
        let rows: Vec<_> = stats.categorical.iter().map(categorical_row).collect();
        parts.push(render::grid(&header, &rows));
    }
    parts.join("\n\n")
}

fn dense_row(column: &DenseStats) -> Vec<String> {
    let quantile = |i: usize| number(column.quantiles.map(|quantiles| quantiles[i]));
    vec![
        column.column.clone(),
        format!("{:.2}", 100.0 * column.missing_share),
        number(column.minimum),
        quantile(0),
        quantile(2),
        quantile(4),
        number(column.maximum),
        number(column.mean),
    ]
}

fn categorical_row(column: &CategoricalStats) -> Vec<String> {
    let about = if column.distinct_is == CountMethod::Estimate { "~" } else { "" };
    vec![
        column.column.clone(),
        format!("{:.2}", 100.0 * column.missing_share),
        format!("{:.2}", column.bag_length_mean),
        format!("{about}{}", render::count(column.distinct)),
        column.ids_outside.map_or("-".to_owned(), render::count),
        column.top_share.map_or("-".to_owned(), |share| format!("{:.2}", 100.0 * share)),
        number(column.zipf_exponent),
    ]
}

fn number(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.4}"))
}
