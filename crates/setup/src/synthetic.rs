//! Describes generated data that fits a model. The data has a column for each dense input and each
//! feature, with ids within the tables. [`crate::generated_rows`] writes the data.

use std::collections::HashSet;

use data::synthetic::{
    Hotness, PlantedConfig, RowLayout, SyntheticConfig, SyntheticFeature, reuse_histogram,
};
use schema::source::{CategoryKind, DataFormat, DenseTransform, IdMode};
use schema::{DataConfig, IdLaw, IndexDistribution, JobConfig};
use xxhash_rust::xxh3::Xxh3;

use crate::error::Error;
use crate::rows::ROWS_OF_SYNTHETIC;

/// Seed of the rows that `--synthetic` generates.
pub const SEED: u64 = 1;
/// Exponent of the Zipf distribution of ids, which is typical of production tables.
const ZIPF: f64 = 1.05;
/// Share of generated rows whose label is a click.
const CLICK_RATE: f64 = 0.25;
/// Length of the longest bag of a pooled multi-hot feature.
const BAG_MAX: u32 = 4;

/// Describes the rows to generate for the columns of a job, with the distributions and bag sizes of
/// `[synthetic]`.
pub fn config_for(job: &JobConfig, rows: u64, seed: u64) -> Result<SyntheticConfig, Error> {
    let mut config = columns_for(job, rows, seed);
    let mut laws = Laws::default();
    let model_features = job.model.features();
    for made in &mut config.features {
        let feature = model_features.iter().find(|feature| feature.name == made.name);
        let table = feature.map_or("", |feature| &*job.model.tables[feature.table].name);
        if let Some(law) = job.synthetic.law(table) {
            made.distribution = laws.distribution(law)?;
        }
    }
    Ok(config)
}

/// Resolves the laws of `[synthetic]` to distributions, and reads each file only once.
#[derive(Default)]
pub struct Laws {
    known: Vec<(IdLaw, IndexDistribution)>,
}

impl Laws {
    /// Returns the distribution that a law describes.
    ///
    /// # Errors
    /// Returns an error if the file of the law cannot be read.
    pub fn distribution(&mut self, law: &IdLaw) -> Result<IndexDistribution, Error> {
        if let Some((_, distribution)) = self.known.iter().find(|(known, _)| known == law) {
            return Ok(*distribution);
        }
        let distribution = match law {
            IdLaw::Uniform => IndexDistribution::Uniform,
            IdLaw::Zipf { exponent } => IndexDistribution::Zipf { exponent: *exponent },
            IdLaw::Reuse { file, section } => reuse_histogram(file, section.as_deref())?,
        };
        self.known.push((law.clone(), distribution));
        Ok(distribution)
    }
}

fn columns_for(job: &JobConfig, rows: u64, seed: u64) -> SyntheticConfig {
    if is_criteo(job) {
        return SyntheticConfig::criteo(rows, seed);
    }
    let model_features = job.model.features();
    let features: Vec<SyntheticFeature> = job
        .data
        .categorical_columns()
        .into_iter()
        .map(|column| {
            let feature = model_features.iter().find(|feature| feature.name == column.column);
            let table = feature.map(|feature| &job.model.tables[feature.table]);
            let sized = table.filter(|table| !table.is_auto());
            let cardinality =
                sized.map_or(ROWS_OF_SYNTHETIC, |table| reserved(job.data.ids, table.rows));
            let length = table.and_then(|table| table.sequence_length);
            // The cast cannot truncate, because lengths are at most `SEQUENCE_LENGTH_MAX`.
            let many = Hotness { min: 1, max: length.map_or(BAG_MAX, |length| length as u32) };
            let size = job.synthetic.bag_sizes.get(&column.column);
            let hotness = match size {
                Some(&size) => Hotness { min: size, max: size },
                None if column.separator.is_some() => many,
                None => Hotness::ONE,
            };
            let distribution = IndexDistribution::Zipf { exponent: ZIPF };
            SyntheticFeature { name: column.column, cardinality, distribution, hotness }
        })
        .collect();
    SyntheticConfig {
        rows,
        seed,
        dense: job.data.dense_columns().len(),
        planted: PlantedConfig::pair_neighbors(features.len()),
        features,
        missing_share: 0.0,
        click_rate: CLICK_RATE,
        layout: RowLayout::Csv,
    }
}

/// Returns the name of the folder for rows of `config` that are prepared with the columns of
/// `data`. The name contains a hash of all settings that change the prepared bytes.
pub fn folder_name(config: &SyntheticConfig, data: &DataConfig) -> Result<String, Error> {
    let columns = DataConfig { train: Vec::new(), evaluation: Vec::new(), ..data.clone() };
    let mut hash = Xxh3::new();
    // `config` contains the content of reuse histograms, rather than only the names of their files.
    hash.update(format!("{config:?}").as_bytes());
    hash.update(&serde_json::to_vec(&columns)?);
    Ok(format!("synthetic-{}-{:016x}", config.rows, hash.digest()))
}

/// Computes the number of distinct ids for a table. Exact ids reserve two rows, for missing ids and
/// for rare categories.
fn reserved(ids: IdMode, rows: u64) -> u64 {
    match ids {
        IdMode::Modulo => rows,
        IdMode::Exact { .. } => rows.saturating_sub(2).max(1),
    }
}

/// Whether rows are generated in Criteo's format, which has one id per feature.
fn is_criteo(job: &JobConfig) -> bool {
    let is_criteo = job.data.format == DataFormat::Criteo || job.data.preset.is_some();
    is_criteo && job.synthetic.bag_sizes.values().all(|size| *size == 1)
}

/// Changes the job so that it reads rows of [`config_for`]. Ids are integers, labels are 0 or 1,
/// counts are transformed to logarithms, and each column has a distinct name.
pub fn adapt(job: &mut JobConfig) {
    let is_criteo = is_criteo(job);
    let bag_sizes = &job.synthetic.bag_sizes;
    let data = &mut job.data;
    data.evaluation.clear();
    if is_criteo {
        data.format = DataFormat::Criteo;
        return;
    }
    data.format = DataFormat::Csv;
    // A preset's columns are written down, because its format has no lists of ids.
    data.dense = data.dense_columns();
    data.categorical = data.categorical_columns();
    data.label = data.label_column();
    data.preset = None;
    let label = data.label.as_ref().map_or("label", |label| &label.column).to_owned();
    // A column may be both a dense input and a categorical feature. Generated data has a separate
    // column for each, so the dense one is renamed.
    let mut names: HashSet<_> = data.categorical.iter().map(|one| one.column.clone()).collect();
    names.insert(label.clone());
    for dense in &mut data.dense {
        while !names.insert(dense.column.clone()) {
            dense.column.push_str("_value");
        }
    }
    data.columns = std::iter::once(label)
        .chain(data.dense.iter().map(|dense| dense.column.clone()))
        .chain(data.categorical.iter().map(|categorical| categorical.column.clone()))
        .collect();
    if let Some(label) = &mut data.label {
        label.positive.clear();
    }
    for dense in &mut data.dense {
        if dense.transform == DenseTransform::None {
            dense.transform = DenseTransform::Log1p;
        }
    }
    for column in &mut data.categorical {
        column.kind = CategoryKind::Integer;
        let is_list = match bag_sizes.get(&column.column) {
            Some(size) => *size > 1,
            None => column.separator.is_some(),
        };
        column.separator = is_list.then(|| "|".to_owned());
    }
}
