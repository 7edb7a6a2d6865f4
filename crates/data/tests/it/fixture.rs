//! Shared helpers of the tests: files in a temporary folder, configurations, and datasets read back
//! as a whole.

use std::path::{Path, PathBuf};

use data::{
    Begin, Dataset, Error, FeaturePlan, Fitted, Loader, LoaderOptions, Position, PrepareRequest,
    Prepared, Strictness, prepare,
};
use schema::{Batch, DataConfig};
use serde_json::{Value, json};

/// A temporary folder that is removed when dropped.
pub struct Folder(testkit::Folder);

impl Folder {
    pub fn new() -> Self {
        Self(testkit::Folder::new())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    /// Writes a file and returns its path as an input.
    pub fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.0.write(name, content);
        path.to_str().unwrap().to_owned()
    }

    /// Prepares `inputs` without fitted state, in order, and skips malformed records.
    pub fn prepare(&self, name: &str, inputs: &[String], config: &DataConfig) -> Prepared {
        self.try_prepare(name, inputs, config, None).unwrap()
    }

    pub fn try_prepare(
        &self,
        name: &str,
        inputs: &[String],
        config: &DataConfig,
        fitted: Option<&Fitted>,
    ) -> Result<Prepared, Error> {
        let out = self.path(name);
        prepare(&request(inputs, config, fitted, &out), &mut |_| {})
    }
}

pub fn request<'a>(
    inputs: &'a [String],
    config: &'a DataConfig,
    fitted: Option<&'a Fitted>,
    out: &'a Path,
) -> PrepareRequest<'a> {
    PrepareRequest {
        inputs,
        config,
        fitted,
        hold_out: 0.0,
        out,
        row_group_rows: 64,
        strictness: Strictness::ANY,
        threads: 2,
        generator: None,
        begin: Begin::Resume,
    }
}

/// Builds a configuration from the fields of the section `[data]`.
pub fn config(fields: Value) -> DataConfig {
    serde_json::from_value(fields).unwrap()
}

pub fn criteo(preset: &str, ids: &Value) -> DataConfig {
    config(json!({"format": "criteo", "preset": preset, "ids": ids}))
}

/// Returns all categorical columns of a dataset as features with tables of `rows` rows.
pub fn all_features(dataset: &Dataset, rows: u64) -> FeaturePlan {
    let columns = &dataset.manifest().columns.categorical;
    FeaturePlan { columns: columns.iter().map(|c| (c.name.clone(), rows)).collect() }
}

pub fn in_order(dataset: &Dataset, batch_size: usize) -> LoaderOptions {
    LoaderOptions {
        batch_size,
        shuffle: None,
        drop_last: false,
        rows: 0..dataset.rows(),
        start: Position::default(),
        epochs: Some(1),
        batches: None,
    }
}

/// Loads the whole dataset as one batch in the order of the files.
pub fn whole(dataset: &Dataset, rows: u64) -> Batch {
    let options = in_order(dataset, dataset.rows() as usize);
    let mut loader = Loader::start(dataset, &all_features(dataset, rows), options).unwrap();
    let batch = loader.next().unwrap().unwrap().batch;
    assert!(loader.next().is_none());
    assert_eq!(batch.sparse.check(), Ok(()));
    batch
}

/// Returns the bags of one feature, sample by sample.
pub fn bags(batch: &Batch, feature: usize) -> Vec<Vec<i64>> {
    let bag = |sample| batch.sparse.values[batch.sparse.bag(feature, sample)].to_vec();
    (0..batch.size).map(bag).collect()
}

/// Reads every file in a dataset's folder.
pub fn bytes_of(dataset: &Dataset) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(dataset.dir())
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}
