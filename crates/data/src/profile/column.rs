//! Running facts of one column. Each block of rows is profiled alone, then merged with the blocks
//! before it.

use std::collections::BTreeMap;

use schema::facts::{ColumnFacts, ListFacts, TimeFacts};
use schema::source::NumberForm;

use crate::datetime;
use crate::field;
use crate::number_form;
use crate::stats::category::CategoryTally;

/// Most values that are kept as they are.
const VALUES: usize = 64;
/// Longest value that is kept as it is.
const VALUE_BYTES: usize = 64;

/// What besides a number the values of a column may be, by a sample.
#[derive(Clone, Debug, Default)]
pub(super) struct Tries {
    pub amounts: bool,
    pub comma_amounts: bool,
    /// Forms of times; `None` is ISO 8601.
    pub times: Vec<Option<&'static str>>,
    pub separator: Option<u8>,
    /// Whether the file has lists of its own.
    pub is_list: bool,
}

/// The values of one column in a block.
#[derive(Clone, Debug)]
pub(super) struct ColumnLook {
    hashes: Vec<i64>,
    missing: u64,
    integers: u64,
    numbers: u64,
    amounts: u64,
    comma_amounts: u64,
    times: Vec<OrderedSpan>,
    elements: Vec<i64>,
    integer_elements: u64,
    sum: f64,
    squares: f64,
    numbers_span: OrderedSpan,
    /// `None` once there are too many.
    values: Option<BTreeMap<Vec<u8>, u64>>,
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

impl ColumnLook {
    pub(super) fn new(tries: &Tries) -> Self {
        Self {
            hashes: Vec::new(),
            missing: 0,
            integers: 0,
            numbers: 0,
            amounts: 0,
            comma_amounts: 0,
            times: vec![OrderedSpan::new(); tries.times.len()],
            elements: Vec::new(),
            integer_elements: 0,
            sum: 0.0,
            squares: 0.0,
            numbers_span: OrderedSpan::new(),
            values: Some(BTreeMap::new()),
        }
    }

    pub(super) fn missing(&mut self) {
        self.missing += 1;
    }

    /// Takes a trimmed value that is not missing.
    pub(super) fn take(&mut self, text: &[u8], tries: &Tries) {
        self.hashes.push(field::hash(text));
        self.keep(text);
        if let Some(separator) = tries.separator {
            for element in text.split(|&byte| byte == separator).map(field::trim) {
                self.element(element);
            }
        }
        if let Ok(value) = field::number(text) {
            self.numbers += 1;
            self.integers += u64::from(field::integer(text).is_ok());
            self.sum += value;
            self.squares += value * value;
            self.numbers_span.add(value);
        } else {
            let reads = |form| number_form::read(form, text).is_ok();
            self.amounts += u64::from(tries.amounts && reads(NumberForm::Money));
            self.comma_amounts += u64::from(tries.comma_amounts && reads(NumberForm::DecimalComma));
        }
        for (span, format) in self.times.iter_mut().zip(&tries.times) {
            if let Ok(seconds) = datetime::read(text, *format) {
                span.add(seconds);
            }
        }
    }

    /// Takes an element of a list.
    pub(super) fn element(&mut self, text: &[u8]) {
        if !text.is_empty() {
            self.elements.push(field::hash(text));
            self.integer_elements += u64::from(field::integer(text).is_ok());
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
    whole: ColumnLook,
    tries: Tries,
    distinct: CategoryTally,
    elements: CategoryTally,
    element_count: u64,
}

impl ProfiledColumn {
    pub(super) fn new(name: &str, tries: Tries) -> Self {
        Self {
            whole: ColumnLook::new(&tries),
            tries,
            distinct: CategoryTally::new(name.to_owned()),
            elements: CategoryTally::new(name.to_owned()),
            element_count: 0,
        }
    }

    /// Adds the next block.
    pub(super) fn add(&mut self, block: &ColumnLook) {
        self.distinct.take(&block.hashes, block.missing);
        self.elements.take(&block.elements, 0);
        self.element_count += block.elements.len() as u64;
        let whole = &mut self.whole;
        whole.missing += block.missing;
        whole.integers += block.integers;
        whole.numbers += block.numbers;
        whole.amounts += block.amounts;
        whole.comma_amounts += block.comma_amounts;
        whole.integer_elements += block.integer_elements;
        whole.sum += block.sum;
        whole.squares += block.squares;
        whole.numbers_span.append(&block.numbers_span);
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

    /// What the column is, over `rows` rows.
    pub(super) fn finish(self, rows: u64) -> ColumnFacts {
        let whole = self.whole;
        let once = self.distinct.once();
        let distinct = self.distinct.finish(rows);
        let numbers = whole.numbers.max(1) as f64;
        let mean = whole.sum / numbers;
        let best =
            (0..whole.times.len()).max_by_key(|&at| (whole.times[at].count, usize::MAX - at));
        let best = best.filter(|&at| whole.times[at].count > 0);
        let times = best.map(|at| TimeFacts {
            format: self.tries.times[at].map(ToOwned::to_owned),
            count: whole.times[at].count,
            least: whole.times[at].least,
            greatest: whole.times[at].greatest,
            has_clock: whole.times[at].has_clock,
        });
        let is_sorted = match best {
            Some(at) => whole.times[at].is_sorted,
            None => whole.numbers > 0 && whole.numbers_span.is_sorted,
        };
        let may_be_list = self.tries.is_list || self.tries.separator.is_some();
        let once_elements = self.elements.once();
        let list = may_be_list.then(|| ListFacts {
            separator: self.tries.separator.map(|byte| char::from(byte).to_string()),
            elements: self.element_count,
            distinct: self.elements.finish(rows).distinct,
            integers: whole.integer_elements,
            once: once_elements,
        });
        let mut values: Vec<(String, u64)> = whole.values.into_iter().flatten().map(kept).collect();
        values.sort_by(|left, right| right.1.cmp(&left.1).then_with(|| left.0.cmp(&right.0)));
        let has_numbers = whole.numbers > 0;
        ColumnFacts {
            is_unreadable: false,
            present: rows - whole.missing.min(rows),
            missing: whole.missing,
            distinct: distinct.distinct,
            is_counted: distinct.distinct_is == crate::stats::CountMethod::Exact,
            once,
            integers: whole.integers,
            numbers: whole.numbers,
            amounts: whole.amounts,
            comma_amounts: whole.comma_amounts,
            times,
            list,
            least: has_numbers.then_some(whole.numbers_span.least),
            greatest: has_numbers.then_some(whole.numbers_span.greatest),
            mean,
            deviation: (whole.squares / numbers - mean * mean).max(0.0).sqrt(),
            is_sorted,
            values,
            name: distinct.column,
        }
    }
}

fn kept((text, count): (Vec<u8>, u64)) -> (String, u64) {
    (String::from_utf8_lossy(&text).into_owned(), count)
}
