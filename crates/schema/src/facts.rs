//! Statistics of a file's columns, from which a configuration is proposed. `data` computes them,
//! and `proposal` decides.

use serde::Serialize;

use crate::source::{DataFormat, NumberForm};

/// The facts of one file, or of several files with the same layout.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileFacts {
    pub format: DataFormat,
    /// Separator of fields; `None` for a comma.
    pub delimiter: Option<String>,
    /// Quote character of fields; `None` for `"`.
    pub quote: Option<String>,
    /// Whether the file names its columns.
    pub has_names: bool,
    /// The published layout that the file has, if any.
    pub layout: Option<KnownLayout>,
    /// Number of rows over all files.
    pub rows: u64,
    /// Text that represents missing values.
    pub missing: Option<String>,
    pub columns: Vec<ColumnFacts>,
}

/// A published layout of data files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KnownLayout {
    /// Criteo's label, 13 integers and 26 hexadecimal categories.
    Criteo,
    /// MovieLens' user, item, rating and time.
    MovieLens,
    Avazu,
    /// Criteo's days as arrays, in the format of TorchRec and MLPerf.
    Arrays,
}

impl KnownLayout {
    /// Returns the layout's name for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Criteo => "Criteo",
            Self::MovieLens => "MovieLens ratings",
            Self::Avazu => "Avazu",
            Self::Arrays => "TorchRec/MLPerf arrays",
        }
    }
}

/// Statistics of one column over all rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ColumnFacts {
    pub name: String,
    /// Type in the file, if no reader supports it.
    pub unreadable: Option<String>,
    /// Number of rows with a value.
    pub present: u64,
    pub missing: u64,
    /// Number of distinct values. For lists, whole lists are compared.
    pub distinct: u64,
    /// Whether `distinct` is exact rather than estimated.
    pub is_counted: bool,
    /// Number of values that occur once; 0 if unknown.
    pub once: u64,
    /// Number of values that are 64-bit integers.
    pub integers: u64,
    /// Number of integers, written with digits only, that are 2^53 or more. A 64-bit float cannot
    /// distinguish them.
    pub large_integers: u64,
    /// Number of integers that do not fit 64 bits. They also count in `large_integers`.
    pub integers_beyond_64_bits: u64,
    /// Number of texts that equal another text as an integer, such as `007` and `7`.
    pub merged_texts: u64,
    /// The number format that most values match.
    pub number_form: NumberForm,
    /// The first value in a number format other than plain.
    pub example: Option<String>,
    /// Another format that matches as many values but gives other numbers: 1,002 has two readings.
    pub other_form: Option<NumberForm>,
    /// Number of values that match `number_form`.
    pub numbers: u64,
    /// Statistics of the values as times, if most values are times.
    pub times: Option<TimeFacts>,
    /// Statistics of the values as lists, if they may be lists.
    pub list: Option<ListFacts>,
    pub least: Option<f64>,
    pub greatest: Option<f64>,
    /// Mean of the numeric values.
    pub mean: f64,
    pub deviation: f64,
    /// Whether the values are ascending, as numbers or as times.
    pub is_sorted: bool,
    /// All values with their counts, most frequent first, if there are at most 64.
    pub values: Vec<(String, u64)>,
}

/// Statistics of a column's values as times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimeFacts {
    /// Format in strftime notation; `None` for ISO 8601.
    pub format: Option<String>,
    /// Another format that matches as many values but gives other times: day and month may be
    /// swapped.
    pub other_format: Option<String>,
    /// Number of values in this format.
    pub count: u64,
    /// Earliest time, in seconds since 1970.
    pub least: f64,
    pub greatest: f64,
    /// Whether some values have a time of day.
    pub has_clock: bool,
}

/// Statistics of a column's values as lists.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ListFacts {
    /// Separator of elements; `None` if the file format has lists.
    pub separator: Option<String>,
    /// Number of elements over all lists.
    pub elements: u64,
    pub distinct: u64,
    /// Number of elements that are integers.
    pub integers: u64,
    /// Number of elements that occur once; 0 if unknown.
    pub once: u64,
}
