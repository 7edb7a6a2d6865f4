//! Determines the use of a column from its values over all files. If the values are ambiguous, the
//! column's name decides.

use crate::facts::{ColumnFacts, FileFacts, KnownLayout};
use crate::source::{DatePart, DenseTransform, NumberForm};
use crate::unit::count;

/// The use of a column in a model.
#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    LeftOut(LeftOut),
    Number {
        transform: DenseTransform,
        form: NumberForm,
        is_category: bool,
    },
    /// A time, whose parts become dense inputs.
    Time {
        format: Option<String>,
        parts: Vec<DatePart>,
    },
    Category {
        is_integer: bool,
    },
    /// A list of categories, for which a table is looked up with several ids per sample.
    List {
        separator: Option<String>,
        is_integer: bool,
    },
}

/// The reason why a column is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    Empty,
    Constant,
    Unique,
    Unreadable,
}

/// Inputs for the time of day. Effects of the time of day are periodic, so that a model can use the
/// sine and the cosine without hidden layers.
const HOUR: [DatePart; 2] = [DatePart::HourSin, DatePart::HourCos];
/// Largest number of distinct integer values with which a number is also used as a category.
const FEW_VALUES: u64 = 1000;
/// Distance of the greatest value from the mean, in standard deviations, above which a number has a
/// long tail.
const TAIL: f64 = 8.0;

/// Determines the role of `column` in the model from the facts about it.
pub fn role_of(column: &ColumnFacts, facts: &FileFacts) -> Role {
    if column.unreadable.is_some() {
        return Role::LeftOut(LeftOut::Unreadable);
    }
    if column.present == 0 && column.distinct == 0 && column.missing == facts.rows {
        return Role::LeftOut(LeftOut::Empty);
    }
    if column.distinct <= 1 {
        return Role::LeftOut(LeftOut::Constant);
    }
    if matches!(facts.layout, Some(KnownLayout::Criteo | KnownLayout::Arrays)) {
        return criteo_role(column, facts);
    }
    if let Some(time) = time_of(column) {
        return time;
    }
    if let Some(list) = &column.list {
        let (separator, is_integer) = (list.separator.clone(), list.integers == list.elements);
        return Role::List { separator, is_integer };
    }
    // If 95 % of the values are distinct, a table would learn most rows from a single sample.
    let is_unique = 20 * column.distinct >= 19 * column.present && column.present > 20;
    let most = |count: u64| 100 * count >= 99 * column.present;
    let is_integer = most(column.integers);
    // Integers of 2^53 or more are identifiers. As floats, neighboring values would be equal.
    if column.large_integers > 0 && most(column.integers + column.integers_beyond_64_bits) {
        return match is_unique {
            true => Role::LeftOut(LeftOut::Unique),
            false => Role::Category { is_integer: column.integers_beyond_64_bits == 0 },
        };
    }
    if is_integer {
        return integer_role(column, is_unique);
    }
    if most(column.numbers) {
        return number(column, column.number_form);
    }
    if is_unique {
        return Role::LeftOut(LeftOut::Unique);
    }
    Role::Category { is_integer: false }
}

fn criteo_role(column: &ColumnFacts, facts: &FileFacts) -> Role {
    if column.name.starts_with('C') {
        return Role::Category { is_integer: facts.layout == Some(KnownLayout::Arrays) };
    }
    let transform = match facts.layout {
        Some(KnownLayout::Criteo) => DenseTransform::Log1p,
        _ => DenseTransform::None,
    };
    Role::Number { transform, form: NumberForm::Plain, is_category: false }
}

/// Detects a time, as text or as a number with a suitable name and range.
fn time_of(column: &ColumnFacts) -> Option<Role> {
    const DAY: f64 = 86_400.0;
    if let Some(time) = column.times.as_ref().filter(|time| 100 * time.count >= 99 * column.present)
    {
        let mut parts = vec![DatePart::Weekday];
        if time.has_clock {
            parts.splice(..0, HOUR);
        }
        // The month is an input only if the times span more than a year.
        if time.greatest - time.least > 400.0 * DAY {
            parts.push(DatePart::Month);
        }
        return Some(Role::Time { format: time.format.clone(), parts });
    }
    let name = column.name.to_lowercase();
    let words = ["time", "date", "ts", "stamp", "created", "day", "when"];
    let is_named = words.iter().any(|word| name.ends_with(word) || name.starts_with(word));
    let (least, greatest) = (column.least?, column.greatest?);
    // A time lies between 1980 and 2100, in seconds to nanoseconds since 1970. A date of eight
    // digits lies between 1900 and 2100.
    let is_stamp = [1.0, 1e3, 1e6, 1e9]
        .iter()
        .any(|unit| least >= 315_532_800.0 * unit && greatest <= 4.1e9 * unit);
    let is_date = least >= 19_000_101.0 && greatest <= 21_001_231.0;
    let is_whole = column.integers == column.present;
    if !is_named || !is_whole || !(is_stamp || is_date) {
        return None;
    }
    let mut parts = vec![DatePart::Weekday];
    if is_stamp {
        parts.splice(..0, HOUR);
    }
    Some(Role::Time { format: None, parts })
}

/// Determines the role of an integer column. Identifiers become categories; counts and measurements
/// become numbers.
fn integer_role(column: &ColumnFacts, is_unique: bool) -> Role {
    if is_unique && (is_id_name(&column.name) || column.is_sorted) {
        return Role::LeftOut(LeftOut::Unique);
    }
    let (least, greatest) = (column.least.unwrap_or(0.0), column.greatest.unwrap_or(0.0));
    // Assigned identifiers fill a range from 0 or 1 almost completely; measurements leave gaps.
    let filled = column.distinct as f64 / (greatest - least + 1.0).max(1.0);
    let is_counted_through = filled > 0.9 && [0.0, 1.0].contains(&least) && column.distinct > 100;
    if is_id_name(&column.name) || is_counted_through || column.distinct <= 2 {
        return Role::Category { is_integer: true };
    }
    number(column, NumberForm::Plain)
}

/// Whether a column's name suggests identifiers.
fn is_id_name(name: &str) -> bool {
    const ENDS: [&str; 11] = [
        "id", "_no", "code", "zip", "zipcode", "key", "category", "type", "group", "region", "sku",
    ];
    const WHOLE: [&str; 10] =
        ["user", "item", "product", "movie", "customer", "ad", "site", "device", "channel", "os"];
    let name = name.to_lowercase();
    ENDS.iter().any(|end| name.ends_with(end)) || WHOLE.contains(&name.as_str())
}

fn number(column: &ColumnFacts, form: NumberForm) -> Role {
    let (least, greatest) = (column.least.unwrap_or(0.0), column.greatest.unwrap_or(0.0));
    let tail = (greatest - column.mean) / column.deviation.max(f64::MIN_POSITIVE);
    let is_long = form != NumberForm::Plain || tail > TAIL;
    // A logarithm compresses the long tail, but is not defined for negative values.
    let transform = if least >= 0.0 && is_long && greatest > 1.0 {
        DenseTransform::Log1p
    } else {
        DenseTransform::Standardise
    };
    let is_whole = form == NumberForm::Plain && column.integers == column.present;
    // A category needs about 20 rows, so that its table row can be learned.
    let is_few = column.distinct <= FEW_VALUES && 20 * column.distinct <= column.present;
    let is_category = is_whole && (is_few || tail <= TAIL && leaves_gaps(column));
    Role::Number { transform, form, is_category }
}

/// Whether the integers of a column leave gaps although there are enough rows to fill them, as
/// identifiers do. For example, Avazu's C14 has 2,626 values between 375 and 24,052.
///
/// A measurement fills the integers within two standard deviations of its mean. Of `n` rows over
/// `w` equally likely integers, `w (1 − e^(−n/w))` are expected to occur.
fn leaves_gaps(column: &ColumnFacts) -> bool {
    /// Rows per category that are needed to learn its table row.
    const ROWS_PER_CATEGORY: u64 = 10;
    let range = column.greatest.unwrap_or(0.0) - column.least.unwrap_or(0.0) + 1.0;
    let width = range.min(4.0 * column.deviation).max(1.0);
    let expected = width * (1.0 - (-(column.present as f64) / width).exp());
    let is_repeated = ROWS_PER_CATEGORY * column.distinct <= column.present;
    is_repeated && (column.distinct as f64) < 0.5 * expected
}

impl Role {
    /// Whether the model uses the column.
    pub fn is_used(&self) -> bool {
        !matches!(self, Self::LeftOut(_))
    }

    /// Whether the column is a dense input.
    pub fn is_dense(&self) -> bool {
        matches!(self, Self::Number { .. } | Self::Time { .. })
    }

    /// Whether the column holds a time, from which features such as the hour are derived.
    pub fn is_time(&self) -> bool {
        matches!(self, Self::Time { .. })
    }

    /// Whether the column has a table.
    pub fn is_category(&self) -> bool {
        match self {
            Self::Category { .. } | Self::List { .. } => true,
            Self::Number { is_category, .. } => *is_category,
            Self::LeftOut(_) | Self::Time { .. } => false,
        }
    }

    /// Whether the categories of the column are integers.
    pub fn is_integer(&self) -> bool {
        match self {
            Self::Category { is_integer } | Self::List { is_integer, .. } => *is_integer,
            Self::Number { .. } => true,
            Self::LeftOut(_) | Self::Time { .. } => false,
        }
    }

    /// Returns the number of categories; for a list, the number of distinct elements.
    pub fn categories(&self, facts: &ColumnFacts) -> u64 {
        match (self, &facts.list) {
            (Self::List { .. }, Some(list)) => list.distinct,
            _ => facts.distinct,
        }
    }

    /// Whether most of the column's categories occur once. A separate row for each of them would
    /// learn from only one sample.
    pub fn is_mostly_rare(&self, facts: &ColumnFacts) -> bool {
        let once = match (self, &facts.list) {
            (Self::List { .. }, Some(list)) => list.once,
            _ => facts.once,
        };
        2 * once > self.categories(facts)
    }

    /// Returns the name of the role for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::LeftOut(_) => "left out",
            Self::Number { is_category: true, .. } => "number and category",
            Self::Number { .. } => "number",
            Self::Time { .. } => "time",
            Self::Category { .. } => "category",
            Self::List { .. } => "list of categories",
        }
    }

    /// Returns the reason for the role as a text for the user.
    pub fn reason(&self, facts: &ColumnFacts) -> String {
        let categories = count(self.categories(facts));
        match self {
            Self::LeftOut(LeftOut::Empty) => "it has no values".to_owned(),
            Self::LeftOut(LeftOut::Constant) => "it has one value in all rows".to_owned(),
            Self::LeftOut(LeftOut::Unique) => {
                format!("{categories} different values in {} rows", count(facts.present))
            }
            Self::LeftOut(LeftOut::Unreadable) => {
                let kind = facts.unreadable.as_deref().unwrap_or("unknown");
                format!("its type {kind} is not supported")
            }
            Self::Number { form, .. } => {
                let bound = |value: Option<f64>| value.map_or("?".to_owned(), |v| format!("{v}"));
                let range = format!("{} to {}", bound(facts.least), bound(facts.greatest));
                match &facts.example {
                    Some(example) if *form != NumberForm::Plain => {
                        format!("{range}, amounts such as {example}")
                    }
                    _ => range,
                }
            }
            Self::Time { format, .. } => match format {
                Some(format) => format!("times as {format}"),
                None => "times".to_owned(),
            },
            Self::Category { .. } => format!("{categories} values"),
            Self::List { separator, .. } => {
                let parted = separator.as_ref().map(|text| format!(", separated by {text:?}"));
                format!("{categories} elements{}", parted.unwrap_or_default())
            }
        }
    }
}
