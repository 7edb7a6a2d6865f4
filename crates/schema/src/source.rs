//! What the input files contain: label, dense and categorical columns and how ids are made of them.
//! The reading itself is `data`'s.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The `[data]` section of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// Files of the training data: plain, `.gz` or `.zst`, `-` for standard input; relative to the
    /// folder the command runs in.
    #[serde(default)]
    pub train: Vec<String>,
    /// Files of the held-out data. If left out, `hold_out` of the training data serves.
    #[serde(default)]
    pub evaluation: Vec<String>,
    /// Share of the training data's end that is held out where `evaluation` names no file.
    #[serde(default = "default_hold_out")]
    pub hold_out: f64,
    /// The column whose greatest values are held out instead of the last rows: a time. The rows
    /// are prepared with the held-out ones last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_out_by: Option<String>,
    /// How the columns are found.
    pub format: DataFormat,
    /// What stands between the fields of `csv`: up to four ASCII characters; a comma if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<String>,
    /// What encloses fields of `csv` that hold delimiters or line ends: one ASCII character, or
    /// nothing; `"` if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<String>,
    /// A published preparation that fixes label, dense and categorical columns.
    #[serde(default)]
    pub preset: Option<Preset>,
    /// Column names, in order, for files without a header.
    #[serde(default)]
    pub columns: Vec<String>,
    /// The label. Required without a preset.
    #[serde(default)]
    pub label: Option<LabelColumn>,
    /// Dense columns, in the order of the model's dense input. Required without a preset.
    #[serde(default)]
    pub dense: Vec<DenseColumn>,
    /// Categorical columns; each model feature names one. Required without a preset.
    #[serde(default)]
    pub categorical: Vec<CategoricalColumn>,
    /// Text that stands for a missing value, besides the empty field.
    #[serde(default)]
    pub missing: Option<String>,
    /// How categories become ids.
    #[serde(default)]
    pub ids: IdMode,
    /// Rows of the table of each categorical column that a model looks up: of a whole job alone,
    /// which knows the model. No part of the written configuration.
    #[serde(skip)]
    pub table_rows: BTreeMap<String, u64>,
}

fn default_hold_out() -> f64 {
    0.1
}

/// The layout of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataFormat {
    /// Criteo's tab-separated layout: label, 13 integers, 26 hexadecimal categories; no header.
    Criteo,
    /// Text with quoted fields, separated by commas or by `delimiter`; `columns` or a header line
    /// names the columns.
    Csv,
    /// Tab-separated text; `columns` or a header line names the columns.
    Tsv,
    Parquet,
    /// NumPy's arrays as TorchRec and MLPerf keep them: `X_dense.npy`, `X_labels.npy`, and
    /// `X_sparse.npy` or `X_sparse_multi_hot.npz`; an input names one of them. Columns are named as
    /// in Criteo's layout; dense values are transformed already, which presets respect.
    Npy,
}

/// What the rest of rowmill knows of a format beside how it is read.
struct FormatFacts {
    name: &'static str,
    has_header_line: bool,
    holds_numbers: bool,
    has_own_columns: bool,
}

impl DataFormat {
    /// Every format.
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

    /// As in a configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// Whether a file begins with a line that names its columns, where no configuration does.
    #[must_use]
    pub const fn has_header_line(self) -> bool {
        self.facts().has_header_line
    }

    /// Whether ids come as numbers, not as text.
    #[must_use]
    pub const fn holds_numbers(self) -> bool {
        self.facts().holds_numbers
    }

    /// Whether the format itself fixes its columns and their names.
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

/// Which column is the label and what counts as a click.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelColumn {
    /// Name of the column.
    pub column: String,
    /// Values that mean 1; all others mean 0. If left out the column is numeric.
    #[serde(default)]
    pub positive: Vec<String>,
    /// Least whole number that means 1, of a column of counts such as clicks; lower ones mean 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positive_from: Option<i64>,
    /// What a row without a label does.
    #[serde(default, skip_serializing_if = "Unlabeled::is_malformed")]
    pub unlabeled: Unlabeled,
}

impl LabelColumn {
    /// A column of numbers from 0 to 1.
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

/// What a row without a label does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unlabeled {
    /// It counts as malformed, of which only a small share is allowed.
    #[default]
    Malformed,
    /// It is left out and counted, however many there are.
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
    /// Name of the column; `d{0..3}` stands for four such columns.
    pub column: String,
    /// What is done to its values.
    #[serde(default)]
    pub transform: DenseTransform,
    /// How its numbers are written.
    #[serde(default, skip_serializing_if = "NumberForm::is_plain")]
    pub number: NumberForm,
    /// Under `transform = "datetime"` what is taken of a time, an input each; hour, weekday and
    /// age if left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<DatePart>,
    /// Under `transform = "datetime"` how times are written, in the letters of strftime; ISO 8601
    /// or seconds, milliseconds … since 1970 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date_format: Option<String>,
}

impl DenseColumn {
    /// The column `column`, as plain numbers.
    #[must_use]
    pub fn new(column: impl Into<String>, transform: DenseTransform) -> Self {
        let (number, parts, date_format) = Default::default();
        Self { column: column.into(), transform, number, parts, date_format }
    }

    /// The one part of a time that it stands for in a configuration that was read.
    #[must_use]
    pub fn part(&self) -> Option<DatePart> {
        let is_time = self.transform == DenseTransform::Datetime;
        self.parts.first().copied().filter(|_| is_time)
    }

    /// The name of the model's input: the column's, and of a part of a time also the part's.
    #[must_use]
    pub fn name(&self) -> String {
        match self.part() {
            Some(part) => format!("{}.{}", self.column, part.name()),
            None => self.column.clone(),
        }
    }

    /// One column for each part of a time.
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

/// How the numbers of a column are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NumberForm {
    #[default]
    Plain,
    /// `$1,234.50`, `(4.21)`, `12 %`, `1 234 EUR`: a point before the decimals, currency signs and
    /// separators of thousands left out, parentheses for amounts below 0.
    Money,
    /// `1.234,50 €`: likewise with a comma before the decimals.
    DecimalComma,
}

impl NumberForm {
    fn is_plain(&self) -> bool {
        *self == Self::Plain
    }
}

/// What is taken of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DatePart {
    /// The time of the day, from −0.5 at midnight to 0.5.
    Hour,
    /// The day of the week, from −0.5 on Monday to 0.5 on Sunday.
    Weekday,
    /// The day of the month, from −0.5 on the first to 0.5 on the 31st.
    Day,
    /// The month, from −0.5 in January to 0.5 in December.
    Month,
    /// Years since 2000, in tens.
    Year,
    /// Time before the newest training row, in standard deviations of the column; below 0 after it.
    Age,
}

impl DatePart {
    /// What is taken where a configuration does not say.
    pub const USUAL: [Self; 3] = [Self::Hour, Self::Weekday, Self::Age];

    /// As in a configuration.
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

/// A function of one dense value. A missing value is 0 before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenseTransform {
    #[default]
    None,
    /// `ln(max(x, 0) + 1)`.
    Log1p,
    /// `ln(max(x, −2) + 3)`.
    Log3,
    /// `(x − mean) / deviation`, both over the training data; a missing value becomes the mean.
    Standardise,
    /// Parts of a time, an input each: see `parts`. A missing one gives 0.
    Datetime,
    /// 1, whatever the value. Where there are no numbers, the bottom MLP makes a learnt vector of
    /// it, whose dot products with the rows of the tables are biases of their ids.
    One,
}

/// A categorical input column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CategoricalColumn {
    /// Name of the column and of the model's feature; `t{0..3}` stands for four such columns.
    pub column: String,
    /// How a field is read.
    #[serde(default)]
    pub kind: CategoryKind,
    /// Separator of a list of categories (multi-hot); one category if left out.
    /// A Parquet list column needs none.
    #[serde(default)]
    pub separator: Option<String>,
    /// What an id outside `0..rows` of its table becomes, under `ids.mode = "modulo"`; `modulo` if
    /// left out. No key for hashed text, which has no range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_range: Option<OutOfRange>,
    /// The id that stands for a missing one, such as −1; no key for text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<i64>,
    /// Under `ids.mode = "exact"`, least number of occurrences of a category that gets a row of its
    /// own; that of `ids` if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_count: Option<u64>,
}

/// What an id becomes that is no row of its table.
///
/// Ids of kind `integer`, and all of Parquet and NumPy, are counted where they are outside their
/// table. Hexadecimal text is taken for hashes, of which most are outside and none is counted,
/// unless the column names one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutOfRange {
    /// The remainder by the table's rows, from 0 on as in Python: −1 becomes the last row.
    #[default]
    Modulo,
    /// Nothing: the command ends with an error.
    Error,
    /// What a missing id becomes: row 0 in a column of single ids; in a list it is left out.
    Missing,
}

impl fmt::Display for OutOfRange {
    /// As in a configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Modulo => "modulo",
            Self::Error => "error",
            Self::Missing => "missing",
        })
    }
}

/// How one category is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CategoryKind {
    /// A decimal integer, which is the id before `ids` is applied.
    Integer,
    /// A hexadecimal integer, likewise.
    Hex,
    /// Any text; hashed with XXH3.
    #[default]
    String,
}

/// How categories become rows of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "mode", deny_unknown_fields)]
pub enum IdMode {
    /// The category, or its hash, modulo the table's rows; a missing one is row 0.
    #[default]
    Modulo,
    /// Ids `2, 3, …` by first appearance among categories seen at least `min_count` times in the
    /// training data; 0 is missing, 1 is rare or unseen.
    Exact {
        /// Least number of occurrences; `threshold` in earlier versions.
        #[serde(default, alias = "threshold")]
        min_count: u64,
        /// Memory the counting may use, in MiB.
        #[serde(default = "default_memory_mib")]
        memory_mib: u64,
    },
}

fn default_memory_mib() -> u64 {
    1024
}

/// Criteo's column names: `label`, `I1`…`I13`, `C1`…`C26`.
const CRITEO_DENSE: usize = 13;
const CRITEO_CATEGORICAL: usize = 26;

impl DataConfig {
    /// No inputs and no columns; all else as a configuration that leaves it out.
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

    /// Dense columns in model order, those of the preset included.
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

    /// Categorical columns, those of the preset included.
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

    /// The label column, that of the preset included.
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
    fn every_format_is_listed_by_the_name_that_configurations_use() {
        for format in DataFormat::ALL {
            assert_eq!(toml::Value::try_from(format).unwrap().as_str(), Some(format.name()));
        }
        let refused = toml::Value::from("?").try_into::<DataFormat>().unwrap_err().to_string();
        let names = DataFormat::ALL.map(|format| format!("`{}`", format.name())).join(", ");
        assert!(refused.contains(&format!("expected one of {names}\n")), "{refused}");
    }
}
