//! The columns of input files: label, dense and categorical columns, and the mapping of categories
//! to ids. The crate `data` reads the files.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The `[data]` section of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// Training files: plain, `.gz` or `.zst`, or `-` for standard input. Paths are relative to the
    /// folder in which the command runs.
    #[serde(default)]
    pub train: Vec<String>,
    /// Held-out files. If the list is empty, the share `hold_out` of the training data is held out.
    #[serde(default)]
    pub evaluation: Vec<String>,
    /// Share of the training data that is held out for validation, before the rows of `hold_out`.
    /// If it is above 0, the run chooses its best checkpoint by these rows, and uses the other
    /// held-out rows only once, to test that checkpoint.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub validation: f64,
    /// Share at the end of the training data that is held out if `evaluation` names no file.
    #[serde(default = "default_hold_out")]
    pub hold_out: f64,
    /// Column, usually a time, whose greatest values are held out instead of the last rows.
    /// Held-out rows are moved to the end during preparation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_out_by: Option<String>,
    pub format: DataFormat,
    /// Separator of fields in `csv` files, of up to four ASCII characters; a comma if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<String>,
    /// Quote character in `csv` files for fields that contain separators or line ends. The quote is
    /// one ASCII character, or empty if fields are never quoted; `"` if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<String>,
    /// A published preparation that determines label, dense and categorical columns.
    #[serde(default)]
    pub preset: Option<Preset>,
    /// Column names in order, for files without a header.
    #[serde(default)]
    pub columns: Vec<String>,
    /// Label column, which is required without a preset.
    #[serde(default)]
    pub label: Option<LabelColumn>,
    /// Dense columns in the order of the model's dense input; required without a preset.
    #[serde(default)]
    pub dense: Vec<DenseColumn>,
    /// Categorical columns, of which each model feature names one; required without a preset.
    #[serde(default)]
    pub categorical: Vec<CategoricalColumn>,
    /// Text that represents a missing value, in addition to the empty field.
    #[serde(default)]
    pub missing: Option<String>,
    #[serde(default)]
    pub ids: IdMode,
    /// Number of rows of each categorical column's table. These numbers are set only in complete
    /// jobs, where the model is known, and are not written to the configuration file.
    #[serde(skip)]
    pub table_rows: BTreeMap<String, u64>,
}

fn default_hold_out() -> f64 {
    0.1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(share: &f64) -> bool {
    *share == 0.0
}

/// Shares of the training data that are not trained on. The rows for validation come before those
/// for the test.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HoldOut {
    pub validation: f64,
    pub test: f64,
}

impl HoldOut {
    /// Holds out a share for a test, and nothing for validation.
    #[must_use]
    pub fn for_test(share: f64) -> Self {
        Self { validation: 0.0, test: share }
    }

    /// Returns the share of all held-out rows.
    #[must_use]
    pub fn total(self) -> f64 {
        self.validation + self.test
    }
}

/// The format of an input file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataFormat {
    /// Criteo's tab-separated layout without a header: a label, 13 integers and 26 hexadecimal
    /// categories.
    Criteo,
    /// Text with quoted fields, separated by commas or by `delimiter`. `columns` or a header line
    /// names the columns.
    Csv,
    /// Tab-separated text. `columns` or a header line names the columns.
    Tsv,
    Parquet,
    /// NumPy arrays as in TorchRec and MLPerf: `X_dense.npy`, `X_labels.npy`, and `X_sparse.npy` or
    /// `X_sparse_multi_hot.npz`. An input path names one of these files. The column names are those
    /// of Criteo's layout. Dense values are already transformed, which presets take into account.
    Npy,
}

/// Properties of a file format that do not depend on its reader.
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

    /// Returns the format's name in configurations.
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
    /// Preparation of facebookresearch/dlrm: negative and missing values become 0, and then `ln(x +
    /// 1)` is applied.
    CriteoDlrm,
    /// Preparation of TorchRec: missing values become 0, and then `ln(x + 3)` is applied.
    CriteoTorchrec,
}

/// The label column, and the values that count as a click.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelColumn {
    pub column: String,
    /// Values that mean 1; all other values mean 0. If the list is empty, the column holds numbers.
    #[serde(default)]
    pub positive: Vec<String>,
    /// Lowest integer that means 1, for a column of counts such as clicks. Lower counts mean 0.
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

    /// Whether the values of the column are themselves the labels.
    #[must_use]
    pub fn is_number(&self) -> bool {
        self.positive.is_empty() && self.positive_from.is_none()
    }
}

/// The treatment of a row without a label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unlabeled {
    /// The row counts as malformed, of which only a small share is allowed.
    #[default]
    Malformed,
    /// The row is skipped and counted, without a limit.
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
    /// Notation in which the numbers are written.
    #[serde(default, skip_serializing_if = "NumberForm::is_plain")]
    pub number: NumberForm,
    /// Parts of the time, each of which is a separate input, with `transform = "datetime"`. If the
    /// list is empty, hour, weekday and age are used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<DatePart>,
    /// Format of the times in strftime notation, with `transform = "datetime"`. If omitted, times
    /// are read as ISO 8601, or as a number of seconds, milliseconds, microseconds or nanoseconds
    /// since 1970.
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

    /// Returns the part of a time that the column stands for, or `None` for other columns. Reading
    /// a configuration splits a time column into one column per part.
    #[must_use]
    pub fn part(&self) -> Option<DatePart> {
        let is_time = self.transform == DenseTransform::Datetime;
        self.parts.first().copied().filter(|_| is_time)
    }

    /// Returns the name of the model's input. The name is the column's name, followed by the part
    /// of a time if the column is a time.
    #[must_use]
    pub fn name(&self) -> String {
        match self.part() {
            Some(part) => format!("{}.{}", self.column, part.name()),
            None => self.column.clone(),
        }
    }

    /// Splits a time column into one column per part. Other columns stay as they are.
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
    /// Amounts such as `$1,234.50`, `(4.21)`, `12 %` or `1 234 EUR`. The point is decimal, currency
    /// signs and thousands separators are ignored, and parentheses mean a negative amount.
    Money,
    /// Amounts such as `1.234,50 €`, which are like [`NumberForm::Money`] but with a decimal comma.
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
    /// Sine of the time of day, whose period is a day. With the cosine, times just before and just
    /// after midnight are near each other.
    HourSin,
    /// Cosine of the time of day, which is 1 at midnight and −1 at noon.
    HourCos,
    /// Day of the week, from −0.5 on Monday to 0.5 on Sunday.
    Weekday,
    /// Day of the month, from −0.5 on the first to 0.5 on the 31st.
    Day,
    /// Month, from −0.5 in January to 0.5 in December.
    Month,
    /// Years since 2000, divided by ten.
    Year,
    /// Time by which a row precedes the newest training row, in standard deviations of the column.
    /// The age is negative for rows after that time.
    Age,
}

impl DatePart {
    /// The parts that are used if a configuration does not list any.
    pub const USUAL: [Self; 3] = [Self::Hour, Self::Weekday, Self::Age];

    /// Returns the part's name in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::HourSin => "hour_sin",
            Self::HourCos => "hour_cos",
            Self::Weekday => "weekday",
            Self::Day => "day",
            Self::Month => "month",
            Self::Year => "year",
            Self::Age => "age",
        }
    }
}

/// A transform of one dense value. Unless noted otherwise, a missing value is first replaced by 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenseTransform {
    #[default]
    None,
    /// Computes `ln(max(x, 0) + 1)`.
    Log1p,
    /// Computes `ln(max(x, −2) + 3)`.
    Log3,
    /// Computes `(x − mean) / deviation`, with both constants taken from the training data. A
    /// missing value becomes the mean.
    Standardise,
    /// Extracts the parts of a time that [`DenseColumn::parts`] lists, each as a separate input. A
    /// missing time gives 0.
    Datetime,
    /// The constant 1. If there are no numbers, the bottom MLP turns it into a learned vector,
    /// whose dot products with the rows of the tables are biases of their ids.
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
    /// Separator of a list of categories (multi-hot). Without a separator, each field is one
    /// category. List columns of Parquet files do not need it.
    #[serde(default)]
    pub separator: Option<String>,
    /// Treatment of an id outside `0..rows` of its table, with `ids.mode = "modulo"`; `modulo` if
    /// omitted. This key is not allowed for hashed text, which has no range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_range: Option<OutOfRange>,
    /// Id that represents a missing category, such as −1. This key is not allowed for text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<i64>,
    /// Minimum number of occurrences for a separate row, with `ids.mode = "exact"`; the value in
    /// `ids` if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_count: Option<u64>,
}

/// The treatment of an id outside its table.
///
/// Ids of kind `integer`, and all ids of Parquet and NumPy files, are counted if they are outside
/// their table. Hexadecimal text is treated as hashes, most of which are outside, so it is not
/// counted unless the column sets `out_of_range`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutOfRange {
    /// The id becomes its remainder by the number of rows. As in Python, the remainder is never
    /// negative, so −1 becomes the last row.
    #[default]
    Modulo,
    /// The command stops with an error.
    Error,
    /// The id counts as missing: it becomes row 0 in a column of single ids, and is dropped from a
    /// list.
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

/// The notation in which categories are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CategoryKind {
    /// A decimal integer, which is the id before `ids` is applied.
    Integer,
    /// A hexadecimal integer, which is the id before `ids` is applied.
    Hex,
    /// Any text, which is hashed with XXH3.
    #[default]
    String,
}

/// The mapping of categories to rows of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "mode", deny_unknown_fields)]
pub enum IdMode {
    /// The row is the category, or its hash, modulo the number of rows. A missing category becomes
    /// row 0.
    #[default]
    Modulo,
    /// Categories that occur at least `min_count` times in the training data get the rows `2, 3, …`
    /// by first appearance. Row 0 is for missing categories, and row 1 is for rare or unseen ones.
    Exact {
        /// Minimum number of occurrences for a separate row. Earlier versions called it
        /// `threshold`.
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

/// Numbers of Criteo's dense columns, `I1` to `I13`, and categorical columns, `C1` to `C26`.
const CRITEO_DENSE: usize = 13;
const CRITEO_CATEGORICAL: usize = 26;

impl DataConfig {
    /// Creates a configuration without inputs and columns, and with defaults for everything else.
    #[must_use]
    pub fn new(format: DataFormat) -> Self {
        Self {
            train: Vec::new(),
            evaluation: Vec::new(),
            validation: 0.0,
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

    /// Returns the shares of the training data that are held out. Nothing is held out for a test if
    /// `evaluation` names files.
    #[must_use]
    pub fn held_out_shares(&self) -> HoldOut {
        let test = if self.evaluation.is_empty() { self.hold_out } else { 0.0 };
        HoldOut { validation: self.validation, test }
    }

    /// Expands ranges of column names, and splits each time column into its parts.
    pub(crate) fn complete(&mut self) {
        let dense = |column: &DenseColumn| {
            let named = |name| DenseColumn { column: name, ..column.clone() };
            crate::pattern::expand(&column.column).into_iter().map(named).collect::<Vec<_>>()
        };
        // A range may name several times, so ranges are expanded before times are split.
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

    /// Returns the preset's label column, or the configured one if there is no preset.
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
