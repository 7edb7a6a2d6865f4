//! The wanted columns of a configuration and their positions in one file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schema::DataConfig;
use schema::source::{CategoricalColumn, DenseColumn, DenseTransform, LabelColumn};

use crate::error::Error;
use crate::input::partition;
use crate::loss::RowRefusal;
use crate::parse::field;
use crate::parse::ids::{self, CountedColumn};

/// The columns that a configuration reads, and how their fields are interpreted.
#[derive(Clone, Debug)]
pub(crate) struct WantedColumns {
    pub label: LabelColumn,
    pub dense: Vec<DenseColumn>,
    pub categorical: Vec<CategoricalColumn>,
    pub missing: Option<Vec<u8>>,
    /// Column whose latest times are held out, and which is parsed like a dense column.
    pub time: Option<DenseColumn>,
    pub counted: Vec<CountedColumn>,
    /// Treatment of rows without a label.
    pub unlabeled_rows: UnlabeledRows,
    /// Parsing rules of the version of the fitted state.
    pub rules: Rules,
}

/// Treatment of rows without a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnlabeledRows {
    /// Rows are treated as the configuration specifies.
    AsConfigured,
    /// Rows are kept, because scoring needs no label.
    Kept,
}

/// Parsing rules that differ between versions of the fitted state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    /// Version 1 of [`crate::Fitted`]: text in Parquet files loses surrounding spaces, and negative
    /// ids wrap as unsigned ones.
    First,
    Second,
}

/// Whether a file must have a label column: training needs it, scoring does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelNeed {
    Required,
    Optional,
}

/// Positions of the wanted columns among the fields of one file. Positions past the fields of a
/// record refer to `partition`.
#[derive(Clone, Debug, Default)]
pub(crate) struct FieldLayout {
    /// Number of fields in every record.
    pub fields: usize,
    /// Fields of the header line, if there is one. Records that repeat the header are skipped.
    pub header: Vec<Vec<u8>>,
    /// Values from the path of the file, such as `phone` from `device=phone`.
    pub partition: Vec<Vec<u8>>,
    pub label: Option<usize>,
    pub dense: Vec<usize>,
    pub categorical: Vec<usize>,
    /// Position of the time column; `None` if rows are not split by time.
    pub time: Option<usize>,
}

impl WantedColumns {
    /// Reads the wanted columns from a configuration. A name may be used once as a dense and once
    /// as a categorical column.
    pub(crate) fn new(config: &DataConfig) -> Result<Self, Error> {
        let label = config.label_column().ok_or_else(|| Error::Config {
            key: "data.label",
            problem: "missing: expected a column, or data.preset".to_owned(),
        })?;
        let (dense, categorical) = (config.dense_columns(), config.categorical_columns());
        unique(dense.iter().map(DenseColumn::name))?;
        unique(categorical.iter().map(|column| column.column.clone()))?;
        for column in &categorical {
            if column.separator.as_ref().is_some_and(String::is_empty) {
                let problem = format!("column {:?}: expected text, got none", column.column);
                return Err(Error::Config { key: "data.categorical.separator", problem });
            }
        }
        let missing = config.missing.as_ref().map(|text| text.trim().as_bytes().to_vec());
        let counted = ids::find_counted(&categorical, config);
        let (time, unlabeled_rows, rules) = (None, UnlabeledRows::AsConfigured, Rules::Second);
        Ok(Self { label, dense, categorical, missing, time, counted, unlabeled_rows, rules })
    }

    /// Creates a set of categorical columns and a label, without checks.
    pub(crate) fn from_categorical(
        config: &DataConfig,
        label: LabelColumn,
        categorical: Vec<CategoricalColumn>,
    ) -> Self {
        let counted = ids::find_counted(&categorical, config);
        let (dense, missing, time, rules) = (Vec::new(), None, None, Rules::Second);
        let unlabeled_rows = UnlabeledRows::AsConfigured;
        Self { label, dense, categorical, missing, time, counted, unlabeled_rows, rules }
    }

    /// Adds the time column by which rows are held out, if `config` names one.
    #[must_use]
    pub(crate) fn split_by_time(mut self, config: &DataConfig) -> Self {
        self.time = config.hold_out_by.as_ref().map(|name| {
            let is_it = |dense: &&DenseColumn| {
                dense.column == *name && dense.transform != DenseTransform::One
            };
            let named = self.dense.iter().find(is_it);
            match named {
                // A dense column keeps its own transform, because rows can be split by any number.
                Some(dense) => dense.clone(),
                None => DenseColumn::new(name.clone(), DenseTransform::Datetime),
            }
        });
        self
    }

    /// Tells for each categorical column whether it has a separator and therefore holds lists.
    pub(crate) fn separated(&self) -> Vec<bool> {
        self.categorical.iter().map(|column| column.separator.is_some()).collect()
    }

    /// Whether a trimmed field represents a missing value.
    #[inline]
    pub(crate) fn is_missing(&self, field: &[u8]) -> bool {
        field.is_empty() || self.missing.as_deref() == Some(field)
    }

    /// Finds the wanted columns among `names`, the columns of the file in order, and among the
    /// columns encoded in its path.
    pub(crate) fn place_in_partition(
        &self,
        names: &[String],
        path: &Path,
        need: LabelNeed,
    ) -> Result<FieldLayout, Error> {
        let keys = partition::keys_missing_from(names, path);
        let (keys, partition): (Vec<String>, Vec<Vec<u8>>) = keys.into_iter().unzip();
        let layout = self.place(&[names, &keys[..]].concat(), path, need)?;
        Ok(FieldLayout { fields: names.len(), partition, ..layout })
    }

    /// Finds the wanted columns among `names`, the columns of the file in order.
    pub(crate) fn place(
        &self,
        names: &[String],
        path: &Path,
        need: LabelNeed,
    ) -> Result<FieldLayout, Error> {
        let label = match position(names, &self.label.column, path) {
            Err(Error::MissingColumn { .. }) if need == LabelNeed::Optional => None,
            found => Some(found?),
        };
        let dense = self.dense.iter().map(|column| position(names, &column.column, path));
        let categorical =
            self.categorical.iter().map(|column| position(names, &column.column, path));
        Ok(FieldLayout {
            fields: names.len(),
            header: Vec::new(),
            partition: Vec::new(),
            label,
            dense: dense.collect::<Result<_, _>>()?,
            categorical: categorical.collect::<Result<_, _>>()?,
            time: match &self.time {
                Some(time) => Some(position(names, &time.column, path)?),
                None => None,
            },
        })
    }

    /// Like [`WantedColumns::place`], but for a file without a header. `widths` counts the first
    /// records by their number of fields. If `need` allows it, the file has no label if records
    /// with one field less than there are columns outnumber complete records.
    pub(crate) fn place_headerless(
        &self,
        names: &[String],
        widths: &BTreeMap<usize, u64>,
        path: &Path,
        need: LabelNeed,
    ) -> Result<FieldLayout, Error> {
        let records = |fields: usize| widths.get(&fields).copied().unwrap_or(0);
        let is_short = names.len().checked_sub(1).map(records) > Some(records(names.len()));
        if need == LabelNeed::Optional && is_short {
            let without: Vec<String> =
                names.iter().filter(|name| **name != self.label.column).cloned().collect();
            return self.place_in_partition(&without, path, need);
        }
        self.place_in_partition(names, path, need)
    }
}

impl FieldLayout {
    /// Refuses a record that has the wrong number of fields or repeats the header.
    #[inline]
    pub(crate) fn check(&self, record: TextRecord<'_>) -> Result<(), RowRefusal> {
        if record.fields.len() != self.fields {
            let problem = format!("expected {} fields, got {}", self.fields, record.fields.len());
            return Err(RowRefusal::Malformed(problem));
        }
        if let Some(first) = self.header.first()
            && self.field(record, 0) == first
            && self.header.iter().enumerate().all(|(at, name)| self.field(record, at) == name)
        {
            return Err(RowRefusal::RepeatedHeader);
        }
        Ok(())
    }

    /// Returns the trimmed field at position `at` of a record.
    #[inline]
    pub(crate) fn field<'a>(&'a self, record: TextRecord<'a>, at: usize) -> &'a [u8] {
        match record.fields.get(at) {
            Some(&(start, end)) => field::trim(&record.text[start as usize..end as usize]),
            None => &self.partition[at - record.fields.len()],
        }
    }
}

/// One record of a text, given by the ranges of its fields within the whole text.
#[derive(Clone, Copy)]
pub(crate) struct TextRecord<'a> {
    pub text: &'a [u8],
    pub fields: &'a [(u32, u32)],
}

/// The wanted columns together with their positions in one file, which readers need side by side.
#[derive(Clone, Copy)]
pub(crate) struct PlacedColumns<'a> {
    pub wanted: &'a WantedColumns,
    pub layout: &'a FieldLayout,
}

fn unique(names: impl Iterator<Item = String>) -> Result<(), Error> {
    let mut names: Vec<String> = names.collect();
    names.sort();
    for same in names.chunk_by(|a, b| a == b) {
        if same.len() > 1 {
            let (path, column) = (PathBuf::from("[data]"), same[0].clone());
            return Err(Error::AmbiguousColumn { path, column, count: same.len() });
        }
    }
    Ok(())
}

fn position(names: &[String], wanted: &str, path: &Path) -> Result<usize, Error> {
    let (path, column) = (path.to_owned(), wanted.to_owned());
    match names.iter().filter(|name| *name == wanted).count() {
        0 => Err(Error::MissingColumn { path, column, available: names.to_vec() }),
        1 => Ok(names.iter().position(|name| name == wanted).unwrap_or_default()),
        count => Err(Error::AmbiguousColumn { path, column, count }),
    }
}
