//! The fitted state of a dataset: means, deviations and vocabularies that were learned from the
//! training data and are needed to read any other file the same way.
//!
//! The state is saved in `dataset.json` and in checkpoints. The module `prepare::fit` computes it.

use std::hash::Hasher;

use schema::DataConfig;
use schema::source::{CategoryKind, DatePart, DenseColumn, DenseTransform, IdMode, OutOfRange};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::parse::datetime;
use crate::parse::ids;
use crate::parse::layout::{Rules, WantedColumns};

/// Version of [`Fitted`] that is written. Version 1 is still read. Version 1 had no rule for ids
/// outside their table and interpreted all ids as unsigned.
const VERSION: u32 = 2;
const FIRST_VERSION: u32 = 1;
/// Id of a missing category with `ids.mode = "exact"`.
pub(crate) const MISSING_ID: i64 = 0;
/// Id of a rare or never seen category with `ids.mode = "exact"`.
pub(crate) const RARE_ID: i64 = 1;
/// Id of the first category of a vocabulary with `ids.mode = "exact"`.
const FIRST_ID: i64 = 2;

/// The transforms and vocabularies of all columns of a dataset, in the order of the configuration.
/// Applying them to a new file gives the same inputs as in training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fitted {
    /// Format version of the state, which is 2. In version 1, ids below 0 wrapped as unsigned
    /// 64-bit numbers, and text in Parquet files lost surrounding spaces.
    pub version: u32,
    pub ids: IdMode,
    pub dense: Vec<FittedDense>,
    pub categorical: Vec<FittedCategorical>,
    /// Statistics of the rare categories, for display only. With exact ids, there is one entry per
    /// categorical column; otherwise the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rare: Vec<RareCategories>,
}

/// The transform of one dense column with the numbers that were fitted for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedDense {
    pub column: String,
    pub transform: DenseTransform,
    /// The part of a timestamp that this input represents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<DatePart>,
    /// Mean of the present values for `standardise`, the newest time for ages, and 0 for all other
    /// transforms.
    pub mean: f64,
    /// Population standard deviation of the present values for `standardise` and ages. A deviation
    /// of 0 is replaced by 1.
    pub deviation: f64,
}

impl FittedDense {
    /// Returns the name of the model input, as [`DenseColumn::name`] does.
    #[must_use]
    pub fn name(&self) -> String {
        match self.part {
            Some(part) => format!("{}.{}", self.column, part.name()),
            None => self.column.clone(),
        }
    }
}

/// Statistics of the categories of one column that were too rare to get an id of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RareCategories {
    pub categories: u64,
    /// Occurrences of the rare categories in the training data.
    pub ids: u64,
    /// Occurrences of all categories.
    pub all_ids: u64,
}

/// The rules by which one categorical column is read, with the vocabulary that maps its categories
/// to ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedCategorical {
    pub column: String,
    pub kind: CategoryKind,
    /// Categories with exact ids, as integers or as XXH3-64 hashes of the text, in the order of
    /// their ids 2, 3, …. Among `n` distinct texts, a hash collision has a probability of about `n²
    /// / 2^65`, which is 3·10⁻⁶ at 10⁷ texts.
    pub vocabulary: Option<Vec<i64>>,
    /// Rule for ids outside their table; `None` where such ids are not counted, which is the case
    /// for hashes, for exact ids, and for everything in version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_range: Option<OutOfRange>,
    /// The id that represents a missing category in the input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<i64>,
}

impl Fitted {
    /// Returns the state before fitting, which is complete if the configuration needs no fitting.
    pub(crate) fn unfitted(config: &DataConfig, wanted: &WantedColumns) -> Self {
        let dense = wanted.dense.iter().map(|column| FittedDense {
            column: column.column.clone(),
            transform: column.transform,
            part: column.part(),
            mean: 0.0,
            deviation: 1.0,
        });
        let categorical = wanted.categorical.iter().map(|column| FittedCategorical {
            column: column.column.clone(),
            kind: column.kind,
            vocabulary: None,
            out_of_range: ids::out_of_range_rule(column, config),
            missing: column.missing,
        });
        Self {
            version: VERSION,
            ids: config.ids,
            dense: dense.collect(),
            categorical: categorical.collect(),
            rare: Vec::new(),
        }
    }

    /// Returns the complete state of a configuration that learns nothing from its training data, or
    /// `None` if it has standardized columns or exact ids.
    #[must_use]
    pub fn without_data(config: &DataConfig) -> Option<Self> {
        let wanted = WantedColumns::new(config).ok()?;
        let learns =
            matches!(config.ids, IdMode::Exact { .. }) || wanted.dense.iter().any(is_fitted);
        (!learns).then(|| Self::unfitted(config, &wanted))
    }

    /// Tells whether the stored ids are final, rather than raw categories that are taken modulo the
    /// table's rows.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        matches!(self.ids, IdMode::Exact { .. })
    }

    /// Returns the number of exact ids of categorical column `column`, including the two reserved
    /// ones; `None` if ids are taken modulo the table's rows.
    #[must_use]
    pub fn id_count(&self, column: usize) -> Option<u64> {
        let vocabulary = self.categorical.get(column)?.vocabulary.as_ref()?;
        Some(vocabulary.len() as u64 + FIRST_ID.cast_unsigned())
    }

    /// Returns the parsing rules that belong to the state's version.
    pub(crate) fn rules(&self) -> Result<Rules, Error> {
        match self.version {
            FIRST_VERSION => Ok(Rules::First),
            VERSION => Ok(Rules::Second),
            got => Err(Error::FittedMismatch {
                what: "version",
                expected: format!("{VERSION} or before"),
                got: got.to_string(),
            }),
        }
    }

    /// Checks that the state treats missing ids and ids outside their table as `config` specifies.
    ///
    /// # Errors
    /// Returns [`Error::FittedMismatch`] with the first column whose rule differs.
    pub fn check_rules(&self, config: &DataConfig) -> Result<(), Error> {
        for expected in config.categorical_columns() {
            let got = self.categorical.iter().find(|column| column.column == expected.column);
            let Some(got) = got else { continue };
            let name = &expected.column;
            let differ = |what, expected: String, got: String| match expected == got {
                true => Ok(()),
                false => {
                    let expected = format!("{expected} for column {name:?} by the configuration");
                    Err(Error::FittedMismatch { what, expected, got })
                }
            };
            let missing = |id: Option<i64>| id.map_or("none".to_owned(), |id| id.to_string());
            differ("missing", missing(expected.missing), missing(got.missing))?;
            let rule = |rule: Option<OutOfRange>| rule.unwrap_or_default().to_string();
            differ("out_of_range", rule(expected.out_of_range), rule(got.out_of_range))?;
        }
        Ok(())
    }

    /// Tells whether ids below 0 wrap as unsigned 64-bit numbers, as in version 1.
    #[must_use]
    pub fn wraps_unsigned(&self) -> bool {
        let is_number = |column: &FittedCategorical| column.kind != CategoryKind::String;
        self.version == FIRST_VERSION && !self.is_exact() && self.categorical.iter().any(is_number)
    }

    /// Checks that the state was fitted for the columns of `config`.
    pub(crate) fn check(&self, config: &DataConfig, wanted: &WantedColumns) -> Result<(), Error> {
        let expected = Self::unfitted(config, wanted);
        self.rules()?;
        let exact = |fitted: &Self| if fitted.is_exact() { "exact" } else { "modulo" };
        differ("ids", &exact(&expected), &exact(self))?;
        let dense = |fitted: &Self| -> Vec<(String, DenseTransform)> {
            fitted.dense.iter().map(|d| (d.name(), d.transform)).collect()
        };
        differ("dense columns", &dense(&expected), &dense(self))?;
        let categorical = |fitted: &Self| -> Vec<(String, CategoryKind)> {
            fitted.categorical.iter().map(|c| (c.column.clone(), c.kind)).collect()
        };
        differ("categorical columns", &categorical(&expected), &categorical(self))?;
        self.check_rules(config)?;
        // Exact ids need a vocabulary in every column, and other ids must not have one.
        let unfitted = self.categorical.iter().find(|c| c.vocabulary.is_some() != self.is_exact());
        match unfitted {
            Some(column) => Err(Error::FittedMismatch {
                what: "vocabulary",
                expected: if self.is_exact() { "one".into() } else { "none".into() },
                got: format!("the opposite in column {:?}", column.column),
            }),
            None => Ok(()),
        }
    }
}

/// Tells whether the transform of a dense column has numbers that are fitted to the training data.
pub(crate) fn is_fitted(column: &DenseColumn) -> bool {
    column.transform == DenseTransform::Standardise || column.part() == Some(DatePart::Age)
}

fn differ<T: PartialEq + std::fmt::Debug>(
    what: &'static str,
    expected: &T,
    got: &T,
) -> Result<(), Error> {
    if expected == got {
        return Ok(());
    }
    let (expected, got) = (format!("{expected:?}"), format!("{got:?}"));
    Err(Error::FittedMismatch { what, expected, got })
}

/// Applies a [`Fitted`] to values: its vocabularies are indexed for lookup, and common logarithms
/// are tabulated.
pub(crate) struct Applier<'a> {
    dense: &'a [FittedDense],
    /// Index of each column's vocabulary; `None` for columns that keep the raw category.
    ids: Vec<Option<CategoryIndex<'a>>>,
    /// `ln(k + 1)` of small integers, which most values of Criteo are. Computing the logarithm
    /// takes longer than everything else that is done to a value.
    logarithms: Vec<f32>,
}

const LOGARITHMS: u32 = 4096;

impl<'a> Applier<'a> {
    pub(crate) fn new(fitted: &'a Fitted) -> Self {
        let index = |vocabulary: &'a Vec<i64>| CategoryIndex::new(vocabulary);
        let ids = fitted.categorical.iter().map(|column| column.vocabulary.as_ref().map(index));
        let logarithms = (0..LOGARITHMS).map(|k| (f64::from(k) + 1.0).ln() as f32);
        Self { dense: &fitted.dense, ids: ids.collect(), logarithms: logarithms.collect() }
    }

    /// Transforms an integer like [`Self::dense`], but looks up its logarithm in a table.
    #[inline]
    pub(crate) fn dense_integer(&self, column: usize, value: Option<i32>) -> f32 {
        let given = value.unwrap_or(0);
        let logarithm = match self.dense[column].transform {
            DenseTransform::Log1p => self.logarithms.get(given.max(0) as usize),
            DenseTransform::Log3 => self.logarithms.get((given.max(-2) + 2) as usize),
            DenseTransform::None
            | DenseTransform::Standardise
            | DenseTransform::Datetime
            | DenseTransform::One => None,
        };
        match logarithm {
            Some(&logarithm) => logarithm,
            None => self.dense(column, value.map_or(f64::NAN, f64::from)),
        }
    }

    /// Transforms a value of dense column `column` into the model's input; NaN represents a missing
    /// value.
    #[inline]
    pub(crate) fn dense(&self, column: usize, value: f64) -> f32 {
        let fitted = &self.dense[column];
        let missing = value.is_nan();
        let given = if missing { 0.0 } else { value };
        (match fitted.transform {
            DenseTransform::None => given,
            DenseTransform::One => 1.0,
            DenseTransform::Log1p => (given.max(0.0) + 1.0).ln(),
            DenseTransform::Log3 => (given.max(-2.0) + 3.0).ln(),
            DenseTransform::Standardise if missing => 0.0,
            DenseTransform::Standardise => (given - fitted.mean) / fitted.deviation,
            DenseTransform::Datetime if missing => 0.0,
            DenseTransform::Datetime => match fitted.part {
                Some(part) => datetime::time_feature(part, given, fitted.mean, fitted.deviation),
                None => given,
            },
        }) as f32
    }

    /// Maps a category of column `column` to the id that is stored.
    #[inline]
    pub(crate) fn category(&self, column: usize, category: Option<i64>) -> i64 {
        match (&self.ids[column], category) {
            (None, raw) => raw.unwrap_or(0),
            (Some(_), None) => MISSING_ID,
            (Some(ids), Some(category)) => ids.id(category),
        }
    }
}

/// Maps a category to its index in a vocabulary. A hash table with open addressing that stores only
/// indices takes a quarter of the memory of a map with keys and values.
struct CategoryIndex<'a> {
    vocabulary: &'a [i64],
    /// Indices into the vocabulary. At least a third of the slots are [`EMPTY`], and their number
    /// is a power of two.
    slots: Vec<u32>,
}

/// Marks an empty slot. A vocabulary with this many categories would take 32 GiB.
const EMPTY: u32 = u32::MAX;

impl<'a> CategoryIndex<'a> {
    fn new(vocabulary: &'a [i64]) -> Self {
        assert!(vocabulary.len() < EMPTY as usize, "a vocabulary of {}", vocabulary.len());
        let size = (vocabulary.len() * 3 / 2 + 1).next_power_of_two();
        let mut index = Self { vocabulary, slots: vec![EMPTY; size] };
        for (place, &category) in vocabulary.iter().enumerate() {
            let slot = index.slot(category);
            index.slots[slot] = place as u32;
        }
        index
    }

    /// Finds the slot that holds `category`, or the free slot where it would be inserted.
    #[inline]
    fn slot(&self, category: i64) -> usize {
        let mask = self.slots.len() - 1;
        let mut hasher = MixHasher::default();
        hasher.write_i64(category);
        let mut slot = hasher.finish() as usize & mask;
        loop {
            match self.slots[slot] {
                EMPTY => return slot,
                place if self.vocabulary[place as usize] == category => return slot,
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    #[inline]
    fn id(&self, category: i64) -> i64 {
        match self.slots[self.slot(category)] {
            EMPTY => RARE_ID,
            place => FIRST_ID + i64::from(place),
        }
    }
}

/// A fast hasher for single 64-bit keys. Categories are not adversarial, and SipHash would take
/// most of the time of a lookup.
#[derive(Default)]
pub(crate) struct MixHasher(u64);

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_i64(&mut self, key: i64) {
        self.write_u64(key.cast_unsigned());
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = schema::random::mix(self.0 ^ key ^ 0x9e37_79b9_7f4a_7c15);
    }
}
