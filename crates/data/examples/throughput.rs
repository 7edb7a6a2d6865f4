//! Measures the throughput of the stages a Criteo file passes: scanning into columns, preparing,
//! preparing again from Parquet, and loading. CPU time is shown beside each rate, because other
//! work on the machine lengthens only the wall time.
//!
//! usage: throughput TRAIN.txt OUT_FOLDER

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use data::{
    Begin, DEFAULT_ROW_GROUP_ROWS, Dataset, FeaturePlan, Loader, LoaderOptions, Position,
    PrepareRequest, Shuffle, Strictness, default_threads, prepare, scan_criteo_files,
};
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: throughput TRAIN.txt OUT_FOLDER";
    let (input, out) = (arguments.next().ok_or(usage)?, arguments.next().ok_or(usage)?);
    let bytes = std::fs::metadata(&input)?.len();
    let inputs = [input];

    let mut blocks = Vec::new();
    timed("scan", bytes, || {
        scan_criteo_files(&inputs, default_threads(), |block| {
            blocks.push(block);
            Ok(())
        })?;
        Ok(blocks.iter().map(|block| block.len() as u64).sum())
    })?;
    drop(blocks);

    let tsv = Path::new(&out).join("tsv");
    let criteo = json!({"format": "criteo", "preset": "criteo-dlrm"});
    timed("prepare from TSV", bytes, || Ok(prepared(&inputs, criteo, &tsv)?.rows()))?;
    let dataset = Dataset::open(&tsv)?;
    let parts: Vec<String> = dataset
        .manifest()
        .parts
        .iter()
        .map(|part| tsv.join(&part.file).display().to_string())
        .collect();
    let columns = |prefix: &str, count: usize| -> Vec<Value> {
        (1..=count).map(|i| json!({"column": format!("{prefix}{i}"), "kind": "integer"})).collect()
    };
    let dense: Vec<Value> = (1..=13).map(|i| json!({"column": format!("dense_I{i}")})).collect();
    let parquet = json!({
        "format": "parquet", "label": {"column": "label"}, "dense": dense,
        "categorical": columns("categorical_C", 26),
    });
    let again = Path::new(&out).join("parquet");
    timed("prepare from Parquet", bytes, || Ok(prepared(&parts, parquet, &again)?.rows()))?;

    let features = FeaturePlan { columns: (1..=26).map(|i| (format!("C{i}"), 100_003)).collect() };
    for (name, shuffle) in
        [("load in order", None), ("load shuffled", Some(Shuffle { seed: 1, buffer_rows: 65_536 }))]
    {
        let options = LoaderOptions {
            batch_size: 2048,
            shuffle,
            drop_last: false,
            rows: 0..dataset.rows(),
            start: Position::default(),
            epochs: Some(1),
            batches: None,
        };
        timed(name, bytes, || {
            let loader = Loader::start(&dataset, &features, options)?;
            loader.map(|loaded| Ok(loaded?.batch.size as u64)).sum()
        })?;
    }
    Ok(())
}

fn prepared(inputs: &[String], config: Value, out: &Path) -> Outcome<Dataset> {
    let request = PrepareRequest {
        inputs,
        config: &serde_json::from_value(config)?,
        fitted: None,
        hold_out: 0.0,
        out,
        row_group_rows: DEFAULT_ROW_GROUP_ROWS,
        strictness: Strictness::ANY,
        threads: default_threads(),
        generator: None,
        begin: Begin::Restart,
    };
    Ok(prepare(&request, &mut |_| {})?.dataset)
}

/// Runs `work`, which returns its number of rows, and prints the rates for `bytes` of text.
fn timed(name: &str, bytes: u64, work: impl FnOnce() -> Outcome<u64>) -> Outcome<()> {
    let (started, busy) = (Instant::now(), busy_seconds());
    let rows = work()?;
    let (seconds, busy) = (started.elapsed().as_secs_f64(), busy_seconds() - busy);
    println!(
        "{name}: {rows} rows, {:.0} MB/s of text, {:.0} rows/s; {busy:.2} s of all threads, \
         {:.0} MB/s per thread",
        bytes as f64 / seconds / 1e6,
        rows as f64 / seconds,
        bytes as f64 / busy / 1e6
    );
    Ok(())
}

/// Returns the CPU time that this process has used in user and system mode, in seconds.
fn busy_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    // The kernel counts CPU time in ticks of 10 ms.
    ticks / 100.0
}
