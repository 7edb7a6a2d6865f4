//! Running facts of one column. Each block of rows is profiled alone, then merged with the blocks
//! before it.

use std::collections::BTreeMap;

use schema::facts::{ColumnFacts, ListFacts, TimeFacts};
use schema::source::NumberForm;

use crate::parse::datetime;
use crate::parse::field;
use crate::parse::number_form;
use crate::parse::parsed_row::is_large;
use crate::stats::category::CategoryTally;

/// Most values that are kept as they are.
const VALUES: usize = 64;
/// Longest value that is kept as it is.
const VALUE_BYTES: usize = 64;

/// Whole numbers from here on have neighbours that are the same number in `f64`.
const EXACT_BELOW: f64 = 9_007_199_254_740_992.0;
/// Most texts that are kept to find out which of them are the same whole number.
const ALIASES: usize = 1 << 16;

/// What besides a plain number the values of a column may be, by a sample.
#[derive(Clone, Debug, Default)]
pub(super) struct ColumnCandidates {
    /// Other forms of numbers.
    pub forms: Vec<NumberForm>,
    /// Forms of times; none is ISO 8601.
    pub times: Vec<Option<String>>,
    pub separator: Option<u8>,
    /// Whether the file has lists of its own.
    pub is_list: bool,
}

/// The values of one column in a block.
#[derive(Clone, Debug)]
pub(super) struct BlockColumnTally {
    hashes: Vec<i64>,
    missing: u64,
    integers: u64,
    large_integers: u64,
    integers_beyond_64_bits: u64,
    /// Hashes of texts that are whole numbers written otherwise than usual, such as `007`, with the
    /// hash of the usual text.
    aliases: BTreeMap<i64, i64>,
    /// The first value that is a number of [`ColumnCandidates::forms`] alone.
    example: Option<Vec<u8>>,
    /// Plain numbers, then those of [`ColumnCandidates::forms`].
    numbers: Vec<NumberTally>,
    times: Vec<OrderedSpan>,
    elements: Vec<i64>,
    integer_elements: u64,
    /// `None` once there are too many.
    values: Option<BTreeMap<Vec<u8>, u64>>,
}

/// The values that are numbers of one form.
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

    /// Whether values were read as other numbers than those of `other`.
    fn differs(&self, other: &Self) -> bool {
        self.sum != other.sum || self.span.differs(&other.span)
    }

    fn append(&mut self, next: &Self) {
        self.sum += next.sum;
        self.squares += next.squares;
        self.span.append(&next.span);
    }
}

/// Values that can be put in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderedSpan {
    count: u64,
    least: f64,
    greatest: f64,
    first: f64,
    last: f64,
    is_sorted: bool,
    /// Whether one is no whole day.
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

    /// Whether two ways to read the same values gave different values or a different order.
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

    /// Takes a trimmed value that is not missing.
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

    /// Counts a number as a whole one, if it is.
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

    /// Takes an element of a list.
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

/// A column over all blocks so far.
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

    /// Adds the next block.
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
        let values = whole.values.take().zip(block.values.as_ref());
        whole.values = values.and_then(|(mut values, block)| {
            for (text, count) in block {
                *values.entry(text.clone()).or_default() += count;
            }
            (values.len() <= VALUES).then_some(values)
        });
    }

    /// The form of numbers that the values show, where they do not leave it open.
    pub(super) fn shown_form(&self, rows: u64) -> Option<NumberForm> {
        let form = best_form(&self.whole.numbers, rows - self.whole.missing.min(rows), None);
        let is_open = self.other_form(form).is_some();
        (form > 0 && !is_open).then(|| self.candidates.forms[form - 1])
    }

    /// Another form that reads as many values as `form`, but as other numbers.
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

    /// Another form that reads as many values as form `best` of times, but as other times.
    fn other_times(&self, best: usize) -> Option<String> {
        let times = &self.whole.times;
        let is_other =
            |&at: &usize| times[at].count == times[best].count && times[at].differs(&times[best]);
        (0..times.len()).find(is_other).and_then(|at| self.candidates.times[at].clone())
    }

    /// What the column is, over `rows` rows; where its values leave open which of two marks is
    /// before the decimals, it is that of `usual`.
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
            deviation: (squares - mean * mean).max(0.0).sqrt(),
            is_sorted,
            values,
            name: distinct.column,
        }
    }
}

/// The form of numbers that reads most of `present` values: plain ones where these are nearly all,
/// and `usual` among those that read equally many.
fn best_form(numbers: &[NumberTally], present: u64, usual: Option<usize>) -> usize {
    if 100 * numbers[0].span.count >= 99 * present {
        return 0;
    }
    let rank = |&at: &usize| (numbers[at].span.count, Some(at) == usual, usize::MAX - at);
    let best = (0..numbers.len()).max_by_key(rank);
    best.unwrap_or(0)
}

/// Whether `present` values, of which those of `span` are times in `format`, are meant as times.
/// Where they are written as whole numbers, all but one of a thousand must be times of 1950 to
/// 2100.
fn is_likely(span: &OrderedSpan, format: Option<&str>, present: u64) -> bool {
    const FROM: f64 = -631_152_000.0;
    const UNTIL: f64 = 4_102_444_800.0;
    !format.is_some_and(datetime::has_digits_only)
        || span.least >= FROM && span.greatest < UNTIL && 1000 * span.count >= 999 * present
}

/// The form of times that reads most values. Of those that read equally many, as day and month can
/// change places in some files, that by which the rows are in order, then the one by which they
/// span the least time.
fn best_times(times: &[OrderedSpan]) -> Option<usize> {
    let days = |at: usize| ((times[at].greatest - times[at].least) / 86_400.0) as i64;
    let rank = |&at: &usize| (times[at].count, times[at].is_sorted, -days(at), usize::MAX - at);
    (0..times.len()).filter(|&at| times[at].count > 0).max_by_key(rank)
}

/// How many different texts are the same whole number as another text.
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
