//! Times preparing a Criteo file and one pass of the loader over it.
//!
//! usage: throughput TRAIN.txt OUT_FOLDER

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use data::{
    DEFAULT_ROW_GROUP_ROWS, FeaturePlan, Loader, LoaderOptions, Position, PrepareRequest, Shuffle,
    Strictness, default_threads, prepare,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: throughput TRAIN.txt OUT_FOLDER";
    let (input, out) = (arguments.next().ok_or(usage)?, arguments.next().ok_or(usage)?);
    let bytes = std::fs::metadata(&input)?.len() as f64;
    let fields = serde_json::json!({"format": "criteo", "preset": "criteo-dlrm"});
    let config = serde_json::from_value(fields)?;
    let started = Instant::now();
    let request = PrepareRequest {
        inputs: &[input],
        config: &config,
        fitted: None,
        hold_out: 0.0,
        out: Path::new(&out),
        row_group_rows: DEFAULT_ROW_GROUP_ROWS,
        strictness: Strictness::Skip,
        threads: default_threads(),
        generator: None,
    };
    let dataset = prepare(&request, &mut |_| {})?.dataset;
    let seconds = started.elapsed().as_secs_f64();
    let rows = dataset.rows() as f64;
    let written: u64 = dataset.manifest().parts.iter().map(|part| part.bytes).sum();
    println!(
        "prepare: {rows} rows in {seconds:.2} s, {:.0} MB/s of input, {:.0} rows/s, {:.1} B/row out",
        bytes / seconds / 1e6,
        rows / seconds,
        written as f64 / rows
    );
    let features = FeaturePlan { columns: (1..=26).map(|i| (format!("C{i}"), 100_003)).collect() };
    for shuffle in [None, Some(Shuffle { seed: 1, buffer_rows: 65_536 })] {
        let options = LoaderOptions {
            batch_size: 2048,
            shuffle,
            drop_last: false,
            rows: 0..dataset.rows(),
            start: Position::default(),
            epochs: Some(1),
        };
        let started = Instant::now();
        let mut samples = 0;
        for loaded in Loader::start(&dataset, &features, options)? {
            samples += loaded?.batch.size;
        }
        let seconds = started.elapsed().as_secs_f64();
        println!("load, {shuffle:?}: {samples} rows, {:.0} rows/s", samples as f64 / seconds);
    }
    Ok(())
}
