//! Which columns are wanted and where they stand in one file. Pure; reads nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schema::DataConfig;
use schema::source::{CategoricalColumn, DenseColumn, DenseTransform, LabelColumn};

use crate::error::Error;
use crate::input::partition;
use crate::loss::RowRefusal;
use crate::parse::field;
use crate::parse::ids::{self, CountedColumn};

/// The columns a configuration asks for.
#[derive(Clone, Debug)]
pub(crate) struct WantedColumns {
    pub label: LabelColumn,
    pub dense: Vec<DenseColumn>,
    pub categorical: Vec<CategoricalColumn>,
    pub missing: Option<Vec<u8>>,
    /// The column whose greatest values are held out, read like a dense one.
    pub time: Option<DenseColumn>,
    /// Categorical columns whose ids are counted.
    pub counted: Vec<CountedColumn>,
    /// What rows without a label are.
    pub unlabeled_rows: UnlabeledRows,
    /// What the first version of fitted transforms did otherwise.
    pub rules: Rules,
}

/// What rows without a label are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnlabeledRows {
    /// What the configuration says.
    AsConfigured,
    /// Rows like any other: nobody needs the label.
    Kept,
}

/// How fields are understood where versions differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    /// As of version 1 of [`crate::Fitted`]: text of Parquet loses the spaces around it, negative
    /// ids wrap as unsigned ones.
    First,
    Second,
}

/// Whether a file must have the label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelNeed {
    Required,
    Optional,
}

/// The positions of the wanted columns among the fields of one file. Positions behind the fields of
/// a record are those of `partition`.
#[derive(Clone, Debug, Default)]
pub(crate) struct FieldLayout {
    /// Fields of every record.
    pub fields: usize,
    /// The fields of the header line, of files that have one: records that repeat it are no data.
    pub header: Vec<Vec<u8>>,
    /// Values that the path of the file gives all its rows, such as `phone` of `device=phone`.
    pub partition: Vec<Vec<u8>>,
    /// `None` in a file without labels.
    pub label: Option<usize>,
    pub dense: Vec<usize>,
    pub categorical: Vec<usize>,
    /// `None` where no time parts the rows.
    pub time: Option<usize>,
}

impl WantedColumns {
    /// The wanted columns; a name may serve once as dense and once as categorical column.
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

    /// Some categorical columns beside a label, unchecked.
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

    /// The same with the time that parts training from held-out rows, if `config` names one.
    #[must_use]
    pub(crate) fn split_by_time(mut self, config: &DataConfig) -> Self {
        self.time = config.hold_out_by.as_ref().map(|name| {
            let is_it = |dense: &&DenseColumn| {
                dense.column == *name && dense.transform != DenseTransform::One
            };
            let named = self.dense.iter().find(is_it);
            match named {
                // A number parts the rows too.
                Some(dense) => dense.clone(),
                None => DenseColumn::new(name.clone(), DenseTransform::Datetime),
            }
        });
        self
    }

    /// Which categorical columns have a separator, and so hold lists.
    pub(crate) fn separated(&self) -> Vec<bool> {
        self.categorical.iter().map(|column| column.separator.is_some()).collect()
    }

    /// Whether a trimmed field stands for a missing value.
    #[inline]
    pub(crate) fn is_missing(&self, field: &[u8]) -> bool {
        field.is_empty() || self.missing.as_deref() == Some(field)
    }

    /// Finds the wanted columns among `names`, the columns of `path` in order, and among those that
    /// its path gives all rows.
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

    /// Finds the wanted columns among `names`, the columns of `path` in order.
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

    /// Like [`WantedColumns::place`] for a headerless file of known columns, of whose first records
    /// `widths` says how many have so many fields. Where more of them have one field fewer than
    /// there are columns than have all, the label is left out, if that is allowed; what one record
    /// looks like decides nothing.
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
    /// Refuses a record of text that has another number of fields or is the header once more.
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

    /// The trimmed field at position `at` of a record of text.
    #[inline]
    pub(crate) fn field<'a>(&'a self, record: TextRecord<'a>, at: usize) -> &'a [u8] {
        match record.fields.get(at) {
            Some(&(start, end)) => field::trim(&record.text[start as usize..end as usize]),
            None => &self.partition[at - record.fields.len()],
        }
    }
}

/// One record of a text: the ranges of its fields within the whole text.
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
