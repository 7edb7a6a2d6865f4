//! What a look at a file found, column by column: what a configuration is proposed from. Reading is
//! `data`'s, deciding is `proposal`'s.

use serde::Serialize;

use crate::source::{DataFormat, NumberForm};

/// A file, or several of the same layout.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileFacts {
    pub format: DataFormat,
    /// What stands between fields, where that is no comma.
    pub delimiter: Option<String>,
    /// What encloses fields, where that is no `"`.
    pub quote: Option<String>,
    /// Whether the columns are named by the file.
    pub has_names: bool,
    /// A published layout, if it is one.
    pub layout: Option<KnownLayout>,
    /// Rows of all files.
    pub rows: u64,
    /// Text that stands for missing values.
    pub missing: Option<String>,
    /// The columns in order.
    pub columns: Vec<ColumnFacts>,
}

/// A published layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KnownLayout {
    /// Criteo's label, 13 integers and 26 hexadecimal categories.
    Criteo,
    /// MovieLens' user, item, rating and time.
    MovieLens,
    Avazu,
    /// Criteo's days as the arrays of TorchRec and MLPerf.
    Arrays,
}

impl KnownLayout {
    /// As people call it.
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

/// One column, over all rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ColumnFacts {
    pub name: String,
    /// The type in the file, if no reader handles it.
    pub unreadable: Option<String>,
    /// Rows with a value.
    pub present: u64,
    pub missing: u64,
    /// Different values; of a list, of whole lists.
    pub distinct: u64,
    /// Whether that was counted, not estimated.
    pub is_counted: bool,
    /// Values that occur once; 0 where that is not known.
    pub once: u64,
    /// Values that are whole numbers of 64 bits.
    pub integers: u64,
    /// Values that are whole numbers written with digits alone, of 2^53 or more: a number of 64
    /// bits with a fraction cannot tell them apart.
    pub large_integers: u64,
    /// Whole numbers that do not fit in 64 bits. `large_integers` counts them too.
    pub integers_beyond_64_bits: u64,
    /// Different texts that are the same whole number as another text, such as `007` and `7`.
    pub merged_texts: u64,
    /// The form in which most values are numbers.
    pub number_form: NumberForm,
    /// The first value that is a number in another form than plain ones.
    pub example: Option<String>,
    /// Another form in which as many values are numbers, but other ones: 1,002 may be either.
    pub other_form: Option<NumberForm>,
    /// Values that are numbers in that form.
    pub numbers: u64,
    /// The form in which most values are times, if they are any.
    pub times: Option<TimeFacts>,
    /// What the values are as lists, if they may be lists.
    pub list: Option<ListFacts>,
    pub least: Option<f64>,
    pub greatest: Option<f64>,
    /// Mean of the numbers.
    pub mean: f64,
    pub deviation: f64,
    /// Whether no value, as a number or as a time, is less than the one before.
    pub is_sorted: bool,
    /// All values with their counts, the most frequent first, where there are no more than 64.
    pub values: Vec<(String, u64)>,
}

/// Values as times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimeFacts {
    /// In the letters of strftime; ISO 8601 if none.
    pub format: Option<String>,
    /// Another form in which as many values are times, but other ones: day and month may change
    /// places.
    pub other_format: Option<String>,
    /// Values that are times of this form.
    pub count: u64,
    /// The first, in seconds since 1970.
    pub least: f64,
    pub greatest: f64,
    /// Whether some have a time of the day.
    pub has_clock: bool,
}

/// Values as lists.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ListFacts {
    /// What stands between the elements; none where the file has lists of its own.
    pub separator: Option<String>,
    /// Elements of all lists.
    pub elements: u64,
    pub distinct: u64,
    /// Elements that are whole numbers.
    pub integers: u64,
    /// Elements that occur once; 0 where that is not known.
    pub once: u64,
}
