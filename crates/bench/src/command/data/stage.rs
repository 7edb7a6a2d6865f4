//! Runs one stage of data preparation on one file, in this process or in a separate one.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use ::data::{
    DEFAULT_ROW_GROUP_ROWS, Dataset, PrepareRequest, Strictness, criteo_tsv, prepare,
    scan_criteo_files,
};
use device::Pool;
use schema::DataConfig;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::alone;
use crate::args::BenchStage;
use bench::sample::{BenchSample, Conditions, Watch};
use setup::error::Error;

/// The measurements of one process that ran one stage.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Once {
    pub rows: u64,
    pub seconds: f64,
    /// Peak of anonymous memory, in bytes.
    pub peak_bytes: u64,
    conditions: Conditions,
}

/// Runs `stage` in a separate process, which creates its output folders in `folder`.
pub fn alone(
    stage: BenchStage,
    file: &Path,
    folder: &Path,
    threads: usize,
) -> Result<BenchSample<Once>, Error> {
    let name = stage.name();
    let words: [&OsStr; 7] = [
        "data".as_ref(),
        "--once".as_ref(),
        name.as_ref(),
        "--file".as_ref(),
        file.as_ref(),
        "--out".as_ref(),
        folder.as_ref(),
    ];
    let once: Once = alone::run(threads, &words)?;
    Ok(BenchSample { value: once, conditions: once.conditions })
}

/// Removes the output folders that the stages of one turn created.
pub fn clear(folder: &Path) -> Result<(), Error> {
    for stage in [BenchStage::Convert, BenchStage::Parquet] {
        let made = folder.join(stage.name());
        fs::remove_dir_all(&made).map_err(Error::io(&made, "remove"))?;
    }
    Ok(())
}

/// Runs `stage` in this process and measures its time and its memory.
pub fn run(stage: BenchStage, file: &Path, folder: &Path, threads: usize) -> Result<Once, Error> {
    let pool = Pool::new(threads);
    let inputs = match stage {
        BenchStage::Scan | BenchStage::Convert => vec![file.display().to_string()],
        BenchStage::Parquet => parts(&folder.join(BenchStage::Convert.name()))?,
    };
    let watch = Watch::start_crowded(&pool);
    let rows = match stage {
        BenchStage::Scan => scanned(&inputs, threads)?,
        BenchStage::Convert => {
            let criteo = json!({"format": "criteo", "preset": "criteo-dlrm"});
            prepared(&inputs, criteo, &folder.join(stage.name()), threads)?
        }
        BenchStage::Parquet => prepared(&inputs, columns(), &folder.join(stage.name()), threads)?,
    };
    let (seconds, conditions) = watch.stop(&pool);
    Ok(Once { rows, seconds, peak_bytes: alone::peak_anonymous(), conditions })
}

/// Reads all columns of the text and keeps them in memory until the end. Returns the number of
/// rows.
fn scanned(inputs: &[String], threads: usize) -> Result<u64, Error> {
    let mut blocks = Vec::new();
    scan_criteo_files(inputs, threads, |block| {
        blocks.push(block);
        Ok(())
    })?;
    Ok(blocks.iter().map(|block| block.len() as u64).sum())
}

fn prepared(inputs: &[String], config: Value, out: &Path, threads: usize) -> Result<u64, Error> {
    let config: DataConfig = serde_json::from_value(config)?;
    let request = PrepareRequest {
        inputs,
        config: &config,
        fitted: None,
        hold_out: 0.0,
        out,
        row_group_rows: DEFAULT_ROW_GROUP_ROWS,
        strictness: Strictness::ANY,
        threads,
        generator: None,
        begin: data::Begin::Restart,
    };
    Ok(prepare(&request, &mut |_| {})?.dataset.rows())
}

/// Lists the paths of the Parquet files of a prepared folder.
fn parts(folder: &Path) -> Result<Vec<String>, Error> {
    let dataset = Dataset::open(folder)?;
    let path = |part: &::data::DatasetPart| folder.join(&part.file).display().to_string();
    Ok(dataset.manifest().parts.iter().map(path).collect())
}

/// Builds the configuration that reads a prepared Parquet file without transforms.
fn columns() -> Value {
    let named = |prefix: &str, kind: &str, count: usize| -> Vec<Value> {
        let column = |i: usize| match kind {
            "" => json!({"column": format!("{prefix}{i}")}),
            kind => json!({"column": format!("{prefix}{i}"), "kind": kind}),
        };
        (1..=count).map(column).collect()
    };
    json!({
        "format": "parquet",
        "label": {"column": "label"},
        "dense": named("dense_I", "", criteo_tsv::DENSE),
        "categorical": named("categorical_C", "integer", criteo_tsv::CATEGORICAL),
    })
}
