//! The columns of input files: label, dense and categorical columns, and the mapping of categories
//! to ids. The files are read by `data`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The `[data]` section of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// Training files: plain, `.gz` or `.zst`, `-` for standard input. Relative to the folder in
    /// which the command runs.
    #[serde(default)]
    pub train: Vec<String>,
    /// Held-out files. If empty, `hold_out` of the training data is used.
    #[serde(default)]
    pub evaluation: Vec<String>,
    /// Share at the end of the training data that is held out if `evaluation` names no file.
    #[serde(default = "default_hold_out")]
    pub hold_out: f64,
    /// Column, usually a time, whose greatest values are held out instead of the last rows.
    /// Held-out rows are moved to the end during preparation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_out_by: Option<String>,
    pub format: DataFormat,
    /// Separator of fields in `csv`: up to four ASCII characters; a comma if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<String>,
    /// Quote of fields in `csv` that contain separators or line ends: one ASCII character or empty;
    /// `"` if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<String>,
    /// A published preparation that determines label, dense and categorical columns.
    #[serde(default)]
    pub preset: Option<Preset>,
    /// Column names in order, for files without a header.
    #[serde(default)]
    pub columns: Vec<String>,
    /// Required without a preset.
    #[serde(default)]
    pub label: Option<LabelColumn>,
    /// In the order of the model's dense input. Required without a preset.
    #[serde(default)]
    pub dense: Vec<DenseColumn>,
    /// Each model feature names one. Required without a preset.
    #[serde(default)]
    pub categorical: Vec<CategoricalColumn>,
    /// Text that represents a missing value, in addition to the empty field.
    #[serde(default)]
    pub missing: Option<String>,
    #[serde(default)]
    pub ids: IdMode,
    /// Number of rows of each categorical column's table. Set only for complete jobs, which know
    /// the model; not part of the written configuration.
    #[serde(skip)]
    pub table_rows: BTreeMap<String, u64>,
}

fn default_hold_out() -> f64 {
    0.1
}

/// The format of an input file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataFormat {
    /// Criteo's tab-separated layout: label, 13 integers, 26 hexadecimal categories; no header.
    Criteo,
    /// Text with quoted fields, separated by commas or by `delimiter`. `columns` or a header line
    /// names the columns.
    Csv,
    /// Tab-separated text. `columns` or a header line names the columns.
    Tsv,
    Parquet,
    /// NumPy arrays as in TorchRec and MLPerf: `X_dense.npy`, `X_labels.npy`, and `X_sparse.npy` or
    /// `X_sparse_multi_hot.npz`; an input names one of them. Column names are those of Criteo's
    /// layout. Dense values are already transformed, which presets take into account.
    Npy,
}

/// Properties of a format apart from its reader.
struct FormatFacts {
    name: &'static str,
    has_header_line: bool,
    holds_numbers: bool,
    has_own_columns: bool,
}

impl DataFormat {
    /// All formats, in the order of their declaration.
    pub const ALL: [Self; 5] = [Self::Criteo, Self::Csv, Self::Tsv, Self::Parquet, Self::Npy];

    const fn facts(self) -> FormatFacts {
        let (name, has_header_line, holds_numbers, has_own_columns) = match self {
            Self::Criteo => ("criteo", false, false, true),
            Self::Csv => ("csv", true, false, false),
            Self::Tsv => ("tsv", true, false, false),
            Self::Parquet => ("parquet", false, true, false),
            Self::Npy => ("npy", false, true, true),
        };
        FormatFacts { name, has_header_line, holds_numbers, has_own_columns }
    }

    /// Returns the name in configurations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// Whether the first line names the columns if the configuration does not.
    #[must_use]
    pub const fn has_header_line(self) -> bool {
        self.facts().has_header_line
    }

    /// Whether ids are stored as numbers, not as text.
    #[must_use]
    pub const fn holds_numbers(self) -> bool {
        self.facts().holds_numbers
    }

    /// Whether the format determines its columns and their names.
    #[must_use]
    pub const fn has_own_columns(self) -> bool {
        self.facts().has_own_columns
    }
}

/// A published preparation of Criteo's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// facebookresearch/dlrm: negatives to 0, missing 0, `ln(x + 1)`.
    CriteoDlrm,
    /// TorchRec: missing to 0, `ln(x + 3)`.
    CriteoTorchrec,
}

/// The label column, and the values that count as a click.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelColumn {
    pub column: String,
    /// Values that mean 1; all others mean 0. If empty, the column is numeric.
    #[serde(default)]
    pub positive: Vec<String>,
    /// For counts such as clicks: the lowest integer that means 1; lower ones mean 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positive_from: Option<i64>,
    #[serde(default, skip_serializing_if = "Unlabeled::is_malformed")]
    pub unlabeled: Unlabeled,
}

impl LabelColumn {
    /// Creates a label column of numbers from 0 to 1.
    #[must_use]
    pub fn new(column: impl Into<String>) -> Self {
        let (positive, positive_from, unlabeled) = Default::default();
        Self { column: column.into(), positive, positive_from, unlabeled }
    }

    /// Whether the values themselves are the labels.
    #[must_use]
    pub fn is_number(&self) -> bool {
        self.positive.is_empty() && self.positive_from.is_none()
    }
}

/// The treatment of a row without a label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unlabeled {
    /// Counts as malformed, of which only a small share is allowed.
    #[default]
    Malformed,
    /// Skipped and counted, without a limit.
    LeaveOut,
}

impl Unlabeled {
    fn is_malformed(&self) -> bool {
        *self == Self::Malformed
    }
}

/// A dense input column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseColumn {
    /// Name of the column; `d{0..3}` defines four columns.
    pub column: String,
    #[serde(default)]
    pub transform: DenseTransform,
    /// Notation of the numbers.
    #[serde(default, skip_serializing_if = "NumberForm::is_plain")]
    pub number: NumberForm,
    /// With `transform = "datetime"`: the parts of a time, each a separate input; hour, weekday and
    /// age if omitted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<DatePart>,
    /// With `transform = "datetime"`: the format of times in strftime notation. If omitted,
    /// times are read as ISO 8601, or as a number of seconds, milliseconds, microseconds or
    /// nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date_format: Option<String>,
}

impl DenseColumn {
    /// Creates a dense column of plain numbers.
    #[must_use]
    pub fn new(column: impl Into<String>, transform: DenseTransform) -> Self {
        let (number, parts, date_format) = Default::default();
        Self { column: column.into(), transform, number, parts, date_format }
    }

    /// Returns the single part of a time that the column represents after the configuration was
    /// read.
    #[must_use]
    pub fn part(&self) -> Option<DatePart> {
        let is_time = self.transform == DenseTransform::Datetime;
        self.parts.first().copied().filter(|_| is_time)
    }

    /// Returns the name of the model's input: the column's name, and the part of a time if there is
    /// one.
    #[must_use]
    pub fn name(&self) -> String {
        match self.part() {
            Some(part) => format!("{}.{}", self.column, part.name()),
            None => self.column.clone(),
        }
    }

    /// Splits the column into one per part of a time.
    fn split(self) -> Vec<Self> {
        if self.transform != DenseTransform::Datetime {
            return vec![self];
        }
        let parts = if self.parts.is_empty() { DatePart::USUAL.to_vec() } else { self.parts };
        let (column, transform, number) = (self.column, self.transform, self.number);
        let one = |part| Self {
            column: column.clone(),
            transform,
            number,
            parts: vec![part],
            date_format: self.date_format.clone(),
        };
        parts.into_iter().map(one).collect()
    }
}

/// The notation of the numbers in a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NumberForm {
    #[default]
    Plain,
    /// `$1,234.50`, `(4.21)`, `12 %`, `1 234 EUR`: decimal point, with currency signs and thousands
    /// separators ignored, and parentheses for negative amounts.
    Money,
    /// `1.234,50 €`: the same with a decimal comma.
    DecimalComma,
}

impl NumberForm {
    fn is_plain(&self) -> bool {
        *self == Self::Plain
    }
}

/// A part of a time that is used as input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DatePart {
    /// Time of day, from −0.5 at midnight to 0.5.
    Hour,
    /// Day of the week, from −0.5 on Monday to 0.5 on Sunday.
    Weekday,
    /// Day of the month, from −0.5 on the first to 0.5 on the 31st.
    Day,
    /// Month, from −0.5 in January to 0.5 in December.
    Month,
    /// Years since 2000, divided by ten.
    Year,
    /// Time before the newest training row, in standard deviations of the column; negative after
    /// it.
    Age,
}

impl DatePart {
    /// The parts derived by default.
    pub const USUAL: [Self; 3] = [Self::Hour, Self::Weekday, Self::Age];

    /// Returns the name in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Weekday => "weekday",
            Self::Day => "day",
            Self::Month => "month",
            Self::Year => "year",
            Self::Age => "age",
        }
    }
}

/// A function of one dense value. A missing value is replaced by 0 before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenseTransform {
    #[default]
    None,
    /// `ln(max(x, 0) + 1)`.
    Log1p,
    /// `ln(max(x, −2) + 3)`.
    Log3,
    /// `(x − mean) / deviation`, both over the training data. A missing value becomes the mean.
    Standardise,
    /// Parts of a time, each a separate input; see `parts`. A missing time gives 0.
    Datetime,
    /// Always 1. If there are no numbers, the bottom MLP turns it into a learned vector, whose dot
    /// products with the rows of the tables are biases of their ids.
    One,
}

/// A categorical input column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CategoricalColumn {
    /// Name of the column and of the model's feature; `t{0..3}` defines four columns.
    pub column: String,
    #[serde(default)]
    pub kind: CategoryKind,
    /// Separator of a list of categories (multi-hot); one category if omitted. Not needed for
    /// Parquet list columns.
    #[serde(default)]
    pub separator: Option<String>,
    /// With `ids.mode = "modulo"`: the treatment of an id outside `0..rows` of its table; `modulo`
    /// if omitted. Not allowed for hashed text, which has no range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_range: Option<OutOfRange>,
    /// The id that represents a missing one, such as −1. Not allowed for text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<i64>,
    /// With `ids.mode = "exact"`: minimum number of occurrences for a separate row; that of `ids`
    /// if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_count: Option<u64>,
}

/// The treatment of an id outside its table.
///
/// Ids of kind `integer`, and all ids of Parquet and NumPy files, are counted if they are outside
/// their table. Hexadecimal text is treated as hashes, most of which are outside, so it is not
/// counted unless the column sets one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutOfRange {
    /// The remainder by the number of rows, never negative as in Python: −1 becomes the last row.
    #[default]
    Modulo,
    /// The command ends with an error.
    Error,
    /// The id counts as missing: row 0 in a column of single ids, dropped from a list.
    Missing,
}

impl fmt::Display for OutOfRange {
    /// Formats the name in configurations.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Modulo => "modulo",
            Self::Error => "error",
            Self::Missing => "missing",
        })
    }
}

/// The notation of a category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CategoryKind {
    /// A decimal integer, which is the id before `ids` is applied.
    Integer,
    /// A hexadecimal integer, which is the id before `ids` is applied.
    Hex,
    /// Any text, hashed with XXH3.
    #[default]
    String,
}

/// The mapping of categories to rows of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "mode", deny_unknown_fields)]
pub enum IdMode {
    /// The category or its hash modulo the number of rows. A missing category is row 0.
    #[default]
    Modulo,
    /// Ids `2, 3, …` by first appearance among categories that occur at least `min_count` times in
    /// the training data; 0 is missing, 1 is rare or unseen.
    Exact {
        /// Minimum number of occurrences; called `threshold` in earlier versions.
        #[serde(default, alias = "threshold")]
        min_count: u64,
        /// Memory limit of the counting, in MiB.
        #[serde(default = "default_memory_mib")]
        memory_mib: u64,
    },
}

fn default_memory_mib() -> u64 {
    1024
}

/// Numbers of Criteo's columns `I1`…`I13` and `C1`…`C26`.
const CRITEO_DENSE: usize = 13;
const CRITEO_CATEGORICAL: usize = 26;

impl DataConfig {
    /// Creates a configuration without inputs and columns, and with defaults for everything else.
    #[must_use]
    pub fn new(format: DataFormat) -> Self {
        Self {
            train: Vec::new(),
            evaluation: Vec::new(),
            hold_out: default_hold_out(),
            hold_out_by: None,
            format,
            delimiter: None,
            quote: None,
            preset: None,
            columns: Vec::new(),
            label: None,
            dense: Vec::new(),
            categorical: Vec::new(),
            missing: None,
            ids: IdMode::Modulo,
            table_rows: BTreeMap::new(),
        }
    }

    /// Expands ranges of columns.
    pub(crate) fn complete(&mut self) {
        let dense = |column: &DenseColumn| {
            let named = |name| DenseColumn { column: name, ..column.clone() };
            crate::pattern::expand(&column.column).into_iter().map(named).collect::<Vec<_>>()
        };
        let dense = self.dense.iter().flat_map(dense).flat_map(DenseColumn::split);
        self.dense = dense.collect();
        let categorical = |column: &CategoricalColumn| {
            let named = |name| CategoricalColumn { column: name, ..column.clone() };
            crate::pattern::expand(&column.column).into_iter().map(named).collect::<Vec<_>>()
        };
        self.categorical = self.categorical.iter().flat_map(categorical).collect();
    }

    /// Returns the dense columns in model order, including those of the preset.
    #[must_use]
    pub fn dense_columns(&self) -> Vec<DenseColumn> {
        let Some(preset) = self.preset else { return self.dense.clone() };
        let transform = match (self.format, preset) {
            (DataFormat::Npy, _) => DenseTransform::None,
            (_, Preset::CriteoDlrm) => DenseTransform::Log1p,
            (_, Preset::CriteoTorchrec) => DenseTransform::Log3,
        };
        (1..=CRITEO_DENSE).map(|i| DenseColumn::new(format!("I{i}"), transform)).collect()
    }

    /// Returns the categorical columns, including those of the preset.
    #[must_use]
    pub fn categorical_columns(&self) -> Vec<CategoricalColumn> {
        if self.preset.is_none() {
            return self.categorical.clone();
        }
        (1..=CRITEO_CATEGORICAL)
            .map(|i| CategoricalColumn {
                column: format!("C{i}"),
                kind: CategoryKind::Hex,
                separator: None,
                out_of_range: None,
                missing: None,
                min_count: None,
            })
            .collect()
    }

    /// Returns the label column, or that of the preset.
    #[must_use]
    pub fn label_column(&self) -> Option<LabelColumn> {
        match self.preset {
            Some(_) => Some(LabelColumn::new("label")),
            None => self.label.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DataFormat;

    #[test]
    fn every_format_has_its_configuration_name() {
        for format in DataFormat::ALL {
            assert_eq!(toml::Value::try_from(format).unwrap().as_str(), Some(format.name()));
        }
        let refused = toml::Value::from("?").try_into::<DataFormat>().unwrap_err().to_string();
        let names = DataFormat::ALL.map(|format| format!("`{}`", format.name())).join(", ");
        assert!(refused.contains(&format!("expected one of {names}\n")), "{refused}");
    }
}
