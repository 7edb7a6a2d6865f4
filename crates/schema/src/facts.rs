//! Statistics of a file's columns, from which a configuration is proposed. The crate `data`
//! computes them, and [`crate::proposal`] derives the configuration.

use serde::Serialize;

use crate::source::{DataFormat, NumberForm};

/// Facts about one file, or about several files with the same layout.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileFacts {
    pub format: DataFormat,
    /// Separator of fields in a text file; `None` for a comma.
    pub delimiter: Option<String>,
    /// Quote character of fields in a text file; `None` for `"`.
    pub quote: Option<String>,
    /// Whether the file names its columns.
    pub has_names: bool,
    /// The published layout that the file matches, if it matches one.
    pub layout: Option<KnownLayout>,
    /// Number of rows over all files.
    pub rows: u64,
    /// Text that represents a missing value, such as `?`.
    pub missing: Option<String>,
    pub columns: Vec<ColumnFacts>,
}

/// A published layout of data files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KnownLayout {
    /// Criteo's layout: a label, 13 integers and 26 hexadecimal categories.
    Criteo,
    /// MovieLens' layout: user, item, rating and time.
    MovieLens,
    Avazu,
    /// Criteo's days as NumPy arrays, in the format of TorchRec and MLPerf.
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
    /// Name of the column's type in the file if no reader supports that type; otherwise `None`.
    pub unreadable: Option<String>,
    /// Number of rows with a value.
    pub present: u64,
    pub missing: u64,
    /// Number of distinct values. Two lists are equal only if all their elements are equal.
    pub distinct: u64,
    /// Whether `distinct` is exact rather than estimated.
    pub is_counted: bool,
    /// Number of values that occur exactly once in the column; 0 if unknown.
    pub once: u64,
    /// Number of values that are 64-bit integers.
    pub integers: u64,
    /// Number of integers, written with digits only, that are 2^53 or more. A 64-bit float cannot
    /// distinguish them.
    pub large_integers: u64,
    /// Number of integers that do not fit 64 bits. These integers also count in `large_integers`.
    pub integers_beyond_64_bits: u64,
    /// Number of distinct texts that have the same integer value as another text, such as `007` and
    /// `7`.
    pub merged_texts: u64,
    /// The number format that matches most values.
    pub number_form: NumberForm,
    /// The first value that is written in a number format other than plain.
    pub example: Option<String>,
    /// Another number format that matches as many values but gives different numbers. For example,
    /// `1,002` can be read as 1002 or as 1.002.
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
    /// Format of the times in strftime notation; `None` for ISO 8601.
    pub format: Option<String>,
    /// Another format that matches as many values but gives different times, for example because
    /// day and month may be swapped.
    pub other_format: Option<String>,
    /// Number of values that are times in this format.
    pub count: u64,
    /// Earliest time, in seconds since 1970.
    pub least: f64,
    pub greatest: f64,
    /// Whether at least one value has a time of day in addition to a date.
    pub has_clock: bool,
}

/// Statistics of a column's values as lists.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ListFacts {
    /// Separator of the elements in a text file; `None` if the file format itself has lists.
    pub separator: Option<String>,
    /// Number of elements over all lists.
    pub elements: u64,
    pub distinct: u64,
    /// Number of elements that are integers.
    pub integers: u64,
    /// Number of elements that occur once; 0 if unknown.
    pub once: u64,
}
