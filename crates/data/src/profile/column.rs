//! Running statistics of one column. Each block of rows is summarized on its own and then merged
//! with the blocks before it.

use std::collections::BTreeMap;

use schema::facts::{ColumnFacts, ListFacts, TimeFacts};
use schema::source::NumberForm;

use crate::parse::datetime;
use crate::parse::field;
use crate::parse::number_form;
use crate::parse::parsed_row::is_large;
use crate::stats::category::CategoryTally;

/// Largest number of distinct values that are kept with their counts.
const VALUES: usize = 64;
/// Longest value that is kept, in bytes.
const VALUE_BYTES: usize = 64;

/// From this number on, neighboring integers have the same `f64` value.
const EXACT_BELOW: f64 = 9_007_199_254_740_992.0;
/// Largest number of unusual spellings of integers that are tracked.
const ALIASES: usize = 1 << 16;

/// The kinds of values that a column may hold besides plain numbers, according to a sample.
#[derive(Clone, Debug, Default)]
pub(super) struct ColumnCandidates {
    /// Number formats other than plain numbers.
    pub forms: Vec<NumberForm>,
    /// Time formats; `None` is ISO 8601.
    pub times: Vec<Option<String>>,
    pub separator: Option<u8>,
    /// Whether the file format itself declares the column as a list.
    pub is_list: bool,
}

/// Statistics of one column within one block.
#[derive(Clone, Debug)]
pub(super) struct BlockColumnTally {
    hashes: Vec<i64>,
    missing: u64,
    integers: u64,
    large_integers: u64,
    integers_beyond_64_bits: u64,
    /// Hashes of unusual spellings of integers, such as `007`, with the hash of the usual spelling.
    aliases: BTreeMap<i64, i64>,
    /// The first value that is a number only in one of [`ColumnCandidates::forms`].
    example: Option<Vec<u8>>,
    /// Statistics of plain numbers, followed by one entry per form of [`ColumnCandidates::forms`].
    numbers: Vec<NumberTally>,
    times: Vec<OrderedSpan>,
    elements: Vec<i64>,
    integer_elements: u64,
    /// Distinct values with their counts; `None` once there are too many.
    values: Option<BTreeMap<Vec<u8>, u64>>,
}

/// Statistics of the values that parse in one number format.
#[derive(Clone, Copy, Debug)]
struct NumberTally {
    sum: f64,
    squares: f64,
    span: OrderedSpan,
}

impl NumberTally {
    fn new() -> Self {
        Self { sum: 0.0, squares: 0.0, span: OrderedSpan::new() }
    }

    fn add(&mut self, value: f64) {
        self.sum += value;
        self.squares += value * value;
        self.span.add(value);
    }

    /// Whether two formats gave different numbers for the same values.
    fn differs(&self, other: &Self) -> bool {
        self.sum != other.sum || self.span.differs(&other.span)
    }

    fn append(&mut self, next: &Self) {
        self.sum += next.sum;
        self.squares += next.squares;
        self.span.append(&next.span);
    }
}

/// Range of the numbers or times in a column, and whether they are in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderedSpan {
    count: u64,
    least: f64,
    greatest: f64,
    first: f64,
    last: f64,
    is_sorted: bool,
    /// Whether a value is not a whole number of days.
    has_clock: bool,
}

impl OrderedSpan {
    fn new() -> Self {
        let (least, greatest) = (f64::INFINITY, f64::NEG_INFINITY);
        let (first, last) = (f64::NAN, f64::NAN);
        Self { count: 0, least, greatest, first, last, is_sorted: true, has_clock: false }
    }

    fn add(&mut self, value: f64) {
        if self.count == 0 {
            self.first = value;
        } else if value < self.last {
            self.is_sorted = false;
        }
        self.has_clock |= value.rem_euclid(86_400.0) != 0.0;
        self.count += 1;
        self.last = value;
        self.least = self.least.min(value);
        self.greatest = self.greatest.max(value);
    }

    /// Whether two formats gave different values or a different order.
    fn differs(&self, other: &Self) -> bool {
        let bounds = |span: &Self| [span.least, span.greatest, span.first, span.last];
        bounds(self) != bounds(other) || self.is_sorted != other.is_sorted
    }

    fn append(&mut self, next: &Self) {
        if next.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = *next;
            return;
        }
        self.is_sorted &= next.is_sorted && self.last <= next.first;
        self.has_clock |= next.has_clock;
        self.count += next.count;
        self.last = next.last;
        self.least = self.least.min(next.least);
        self.greatest = self.greatest.max(next.greatest);
    }
}

impl BlockColumnTally {
    pub(super) fn new(candidates: &ColumnCandidates) -> Self {
        Self {
            hashes: Vec::new(),
            missing: 0,
            integers: 0,
            large_integers: 0,
            integers_beyond_64_bits: 0,
            aliases: BTreeMap::new(),
            example: None,
            numbers: vec![NumberTally::new(); 1 + candidates.forms.len()],
            times: vec![OrderedSpan::new(); candidates.times.len()],
            elements: Vec::new(),
            integer_elements: 0,
            values: Some(BTreeMap::new()),
        }
    }

    pub(super) fn missing(&mut self) {
        self.missing += 1;
    }

    /// Adds a trimmed value that is present.
    pub(super) fn take(&mut self, text: &[u8], candidates: &ColumnCandidates) {
        let hash = field::hash_text(text);
        self.hashes.push(hash);
        self.keep(text);
        if let Some(separator) = candidates.separator {
            for element in text.split(|&byte| byte == separator).map(field::trim) {
                self.element(element);
            }
        }
        if let Ok(value) = field::parse_number(text) {
            self.numbers[0].add(value);
            self.take_integer(text, hash, value);
        }
        for (tally, form) in self.numbers[1..].iter_mut().zip(&candidates.forms) {
            if let Ok(value) = number_form::parse_amount(*form, text)
                && !value.is_nan()
            {
                tally.add(value);
                // Only a value that is not a plain number shows the other format.
                if self.example.is_none() && field::parse_number(text).is_err() {
                    self.example = Some(text.to_vec());
                }
            }
        }
        for (span, format) in self.times.iter_mut().zip(&candidates.times) {
            if let Ok(seconds) = datetime::parse_time(text, format.as_deref()) {
                span.add(seconds);
            }
        }
    }

    /// Counts a number that is an integer.
    fn take_integer(&mut self, text: &[u8], hash: i64, value: f64) {
        let integer = field::parse_integer(text);
        if value.abs() >= EXACT_BELOW && field::has_digits_only(text) {
            self.large_integers += 1;
            self.integers_beyond_64_bits += u64::from(integer.is_err());
        }
        let Ok(integer) = integer else { return };
        self.integers += 1;
        if !field::is_usual_integer(text) && self.aliases.len() < ALIASES {
            let usual = match is_large(integer, text) {
                true => integer.cast_unsigned().to_string(),
                false => integer.to_string(),
            };
            self.aliases.insert(hash, field::hash_text(usual.as_bytes()));
        }
    }

    /// Adds an element of a list.
    pub(super) fn element(&mut self, text: &[u8]) {
        if !text.is_empty() {
            self.elements.push(field::hash_text(text));
            self.integer_elements += u64::from(field::parse_integer(text).is_ok());
        }
    }

    fn keep(&mut self, text: &[u8]) {
        let Some(values) = &mut self.values else { return };
        if let Some(count) = values.get_mut(text) {
            *count += 1;
        } else if values.len() < VALUES && text.len() <= VALUE_BYTES {
            values.insert(text.to_vec(), 1);
        } else {
            self.values = None;
        }
    }
}

/// Statistics of a column over all blocks so far, with the estimate of its distinct values.
pub(super) struct ProfiledColumn {
    whole: BlockColumnTally,
    candidates: ColumnCandidates,
    distinct: CategoryTally,
    elements: CategoryTally,
    element_count: u64,
}

impl ProfiledColumn {
    pub(super) fn new(name: &str, candidates: ColumnCandidates) -> Self {
        Self {
            whole: BlockColumnTally::new(&candidates),
            candidates,
            distinct: CategoryTally::new(name.to_owned()),
            elements: CategoryTally::new(name.to_owned()),
            element_count: 0,
        }
    }

    /// Merges the statistics of the next block.
    pub(super) fn add(&mut self, block: &BlockColumnTally) {
        self.distinct.take(&block.hashes, block.missing);
        self.elements.take(&block.elements, 0);
        self.element_count += block.elements.len() as u64;
        let whole = &mut self.whole;
        whole.missing += block.missing;
        whole.integers += block.integers;
        whole.large_integers += block.large_integers;
        whole.integers_beyond_64_bits += block.integers_beyond_64_bits;
        whole.integer_elements += block.integer_elements;
        whole.example = whole.example.take().or_else(|| block.example.clone());
        let room = ALIASES - whole.aliases.len();
        whole.aliases.extend(block.aliases.iter().take(room));
        for (whole, block) in whole.numbers.iter_mut().zip(&block.numbers) {
            whole.append(block);
        }
        for (whole, block) in whole.times.iter_mut().zip(&block.times) {
            whole.append(block);
        }
        // Once a block or the whole column has too many distinct values, they are no longer kept.
        let values = whole.values.take().zip(block.values.as_ref());
        whole.values = values.and_then(|(mut values, block)| {
            for (text, count) in block {
                *values.entry(text.clone()).or_default() += count;
            }
            (values.len() <= VALUES).then_some(values)
        });
    }

    /// Returns the number format of the values, unless it is ambiguous.
    pub(super) fn shown_form(&self, rows: u64) -> Option<NumberForm> {
        let form = best_form(&self.whole.numbers, rows - self.whole.missing.min(rows), None);
        let is_open = self.other_form(form).is_some();
        (form > 0 && !is_open).then(|| self.candidates.forms[form - 1])
    }

    /// Finds another format that reads as many values as `form`, but as different numbers.
    fn other_form(&self, form: usize) -> Option<NumberForm> {
        let numbers = &self.whole.numbers;
        let is_other = |&at: &usize| {
            let as_many = numbers[at].span.count == numbers[form].span.count;
            at != form && as_many && numbers[at].differs(&numbers[form])
        };
        (1..numbers.len())
            .filter(|_| form > 0)
            .find(is_other)
            .map(|at| self.candidates.forms[at - 1])
    }

    /// Finds another time format that reads as many values as `best`, but as different times.
    fn other_times(&self, best: usize) -> Option<String> {
        let times = &self.whole.times;
        let is_other =
            |&at: &usize| times[at].count == times[best].count && times[at].differs(&times[best]);
        (0..times.len()).find(is_other).and_then(|at| self.candidates.times[at].clone())
    }

    /// Summarizes the column over `rows` rows. If the decimal separator is ambiguous, `usual` is
    /// assumed.
    pub(super) fn finish(self, rows: u64, usual: NumberForm) -> ColumnFacts {
        let present = rows - self.whole.missing.min(rows);
        let usual = self.candidates.forms.iter().position(|form| *form == usual).map(|at| 1 + at);
        let form = best_form(&self.whole.numbers, present, usual);
        let other_form = self.other_form(form);
        let best = best_times(&self.whole.times).filter(|&at| {
            is_likely(&self.whole.times[at], self.candidates.times[at].as_deref(), present)
        });
        let other_format = best.and_then(|best| self.other_times(best));
        let whole = self.whole;
        // `finish` consumes the tally, so other results are read from it first.
        let once = self.distinct.once();
        let merged_texts = merged_texts(&whole.aliases, &self.distinct);
        let distinct = self.distinct.finish(rows);
        let numbers = whole.numbers[form];
        let count = numbers.span.count;
        let mean = numbers.sum / count.max(1) as f64;
        let squares = numbers.squares / count.max(1) as f64;
        let times = best.map(|at| TimeFacts {
            format: self.candidates.times[at].clone(),
            other_format,
            count: whole.times[at].count,
            least: whole.times[at].least,
            greatest: whole.times[at].greatest,
            has_clock: whole.times[at].has_clock,
        });
        let is_sorted = match best {
            Some(at) => whole.times[at].is_sorted,
            None => count > 0 && numbers.span.is_sorted,
        };
        let may_be_list = self.candidates.is_list || self.candidates.separator.is_some();
        let once_elements = self.elements.once();
        let list = may_be_list.then(|| ListFacts {
            separator: self.candidates.separator.map(|byte| char::from(byte).to_string()),
            elements: self.element_count,
            distinct: self.elements.finish(rows).distinct,
            integers: whole.integer_elements,
            once: once_elements,
        });
        let values = most_frequent_first(whole.values.unwrap_or_default());
        ColumnFacts {
            unreadable: None,
            present,
            missing: whole.missing,
            distinct: distinct.distinct,
            is_counted: distinct.distinct_is == crate::stats::CountMethod::Exact,
            once,
            integers: whole.integers,
            large_integers: whole.large_integers,
            integers_beyond_64_bits: whole.integers_beyond_64_bits,
            merged_texts,
            number_form: match form {
                0 => NumberForm::Plain,
                other => self.candidates.forms[other - 1],
            },
            example: whole.example.map(|text| String::from_utf8_lossy(&text).into_owned()),
            other_form,
            numbers: count,
            times,
            list,
            least: (count > 0).then_some(numbers.span.least),
            greatest: (count > 0).then_some(numbers.span.greatest),
            mean,
            // Rounding can make the difference slightly negative for a constant column.
            deviation: (squares - mean * mean).max(0.0).sqrt(),
            is_sorted,
            values,
            name: distinct.column,
        }
    }
}

/// Chooses the number format: plain if nearly all of the `present` values are plain numbers,
/// otherwise the format that reads most values. `usual` decides between equally good formats.
fn best_form(numbers: &[NumberTally], present: u64, usual: Option<usize>) -> usize {
    if 100 * numbers[0].span.count >= 99 * present {
        return 0;
    }
    let rank = |&at: &usize| (numbers[at].span.count, Some(at) == usual, usize::MAX - at);
    let best = (0..numbers.len()).max_by_key(rank);
    best.unwrap_or(0)
}

/// Whether values that parse as times in `format` are meant as times. If the format consists of
/// digits alone, at least 999 of 1000 values must be times from 1950 to 2100.
fn is_likely(span: &OrderedSpan, format: Option<&str>, present: u64) -> bool {
    const FROM: f64 = -631_152_000.0;
    const UNTIL: f64 = 4_102_444_800.0;
    !format.is_some_and(datetime::has_digits_only)
        || span.least >= FROM && span.greatest < UNTIL && 1000 * span.count >= 999 * present
}

/// Chooses the time format that reads most values. Between equals, such as swapped days and months,
/// it prefers the one in which rows are sorted, then the one with the shorter span.
fn best_times(times: &[OrderedSpan]) -> Option<usize> {
    let days = |at: usize| ((times[at].greatest - times[at].least) / 86_400.0) as i64;
    let rank = |&at: &usize| (times[at].count, times[at].is_sorted, -days(at), usize::MAX - at);
    (0..times.len()).filter(|&at| times[at].count > 0).max_by_key(rank)
}

/// Counts the distinct texts that are the same integer as another text.
fn merged_texts(aliases: &BTreeMap<i64, i64>, texts: &CategoryTally) -> u64 {
    let mut by_number: BTreeMap<i64, u64> = BTreeMap::new();
    for usual in aliases.values() {
        *by_number.entry(*usual).or_default() += 1;
    }
    let merged = |(usual, count): (&i64, &u64)| {
        let all = count + u64::from(texts.has(*usual));
        if all > 1 { all } else { 0 }
    };
    by_number.iter().map(merged).sum()
}

fn most_frequent_first(counts: BTreeMap<Vec<u8>, u64>) -> Vec<(String, u64)> {
    let text = |(text, count): (Vec<u8>, u64)| (String::from_utf8_lossy(&text).into_owned(), count);
    let mut values: Vec<(String, u64)> = counts.into_iter().map(text).collect();
    values.sort_by(|left, right| right.1.cmp(&left.1).then_with(|| left.0.cmp(&right.0)));
    values
}
