//! Detects the layout of a text file from its start: delimiter, quote, header, and the kinds of
//! values.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use schema::source::{DataFormat, NumberForm};

use super::column::ColumnCandidates;
use crate::error::Error;
use crate::input::origin::ReadObserver;
use crate::parse::csv::{Punctuation, RecordSplitter};
use crate::parse::datetime;
use crate::parse::field;
use crate::parse::header;
use crate::parse::number_form;
use crate::parse::text;

const SAMPLE_BYTES: u64 = 512 << 10;
const SAMPLE_ROWS: usize = 5000;
/// Candidate delimiters, the more likely first.
const DELIMITERS: [&str; 6] = ["\t", ",", ";", "|", "::", "\u{1}"];
/// Candidate separators of list elements.
const SEPARATORS: [u8; 5] = [b'|', b';', b'^', b',', b' '];
/// Date formats; `/` is replaced by each of [`DATE_MARKS`].
const DATES: [&str; 5] = ["%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%m/%d/%y", "%d/%m/%y"];
/// Separators between the numbers of a date.
const DATE_MARKS: [&str; 4] = ["/", ".", "-", " "];
/// Date formats with a name of the month.
const NAMED_DATES: [&str; 9] = [
    "%d-%b-%Y",
    "%d %b %Y",
    "%d/%b/%Y",
    "%b %d, %Y",
    "%b %d %Y",
    "%d-%b-%y",
    "%d%b%Y",
    "%a, %d %b %Y",
    "%a %b %d %Y",
];
/// Formats of the time of day after a date. A space matches any number of spaces.
const CLOCKS: [&str; 13] = [
    "",
    " %H:%M",
    " %H:%M:%S",
    " %H:%M:%S.%f",
    " %I:%M %p",
    " %I:%M:%S %p",
    " %I %p",
    "T%H:%M:%S",
    ", %H:%M",
    ", %I:%M %p",
    ", %I:%M:%S %p",
    ":%H:%M:%S",
    " %H.%M",
];
/// Complete formats whose date and time have their own order or zone: logs, C's ctime, RFC 2822,
/// HTTP, and ISO 8601 without separators.
const WHOLE_TIMES: [&str; 13] = [
    "%d/%b/%Y:%H:%M:%S %z",
    "[%d/%b/%Y:%H:%M:%S %z]",
    "[%d/%b/%Y:%H:%M:%S]",
    "%a %b %d %H:%M:%S %Y",
    "%a %b %d %H:%M:%S %z %Y",
    "%a, %d %b %Y %H:%M:%S %z",
    "%d %b %Y %H:%M:%S %z",
    "%a, %d-%b-%y %H:%M:%S %z",
    "%Y%m%dT%H%M%S%z",
    "%Y%m%dT%H%M%S.%f%z",
    "%Y%m%dT%H%M%S",
    "%Y%m%dT%H%M%z",
    "%Y%m%dT%H%M",
];
/// Formats of digits alone. Integers may match by chance, so every value of a column has to match.
const PACKED_TIMES: [&str; 5] = ["%Y%m%d", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S", "%y%m%d%H"];
/// Texts that represent missing values.
pub(super) const MISSING: [&str; 10] =
    ["?", "NA", "N/A", "\\N", "NULL", "null", "None", "NaN", "nan", "-"];

/// The detected layout of a text file, with its first records.
#[derive(Clone, Debug)]
pub(super) struct TextForm {
    pub format: DataFormat,
    pub punctuation: Punctuation,
    pub names: Vec<String>,
    pub has_header: bool,
    /// The first records after the header.
    pub records: Vec<Vec<Vec<u8>>>,
}

/// Whether a field represents a missing value.
pub(super) fn is_missing(text: &[u8]) -> bool {
    text.is_empty() || MISSING.iter().any(|missing| missing.as_bytes() == text)
}

/// Detects the layout of the text file `input`.
pub(super) fn text_form(input: &str, delimiter: Option<&str>) -> Result<TextForm, Error> {
    let path = Path::new(input);
    let mut sample = Vec::new();
    let (read, _) = text::open(input, &ReadObserver::default())?;
    read.take(SAMPLE_BYTES).read_to_end(&mut sample).map_err(Error::read(path))?;
    let text = &sample[..];
    if text.trim_ascii().is_empty() {
        return Err(Error::EmptyInput { path: path.to_owned() });
    }
    text::check_line_ends(path, text)?;
    // Some exporters leave a few zero bytes in text, so a few of them are accepted.
    if text.iter().filter(|&&byte| byte == 0).count() > 8 {
        return Err(Error::OtherForm { path: path.to_owned(), form: "binary data" });
    }
    // In a longer file, the last record of the sample may be truncated and is dropped.
    let is_whole = (sample.len() as u64) < SAMPLE_BYTES;
    let quote = choose_quote(text);
    let (punctuation, records) = match delimiter {
        Some(delimiter) => {
            let delimiter = if ["tab", "\\t"].contains(&delimiter) { "\t" } else { delimiter };
            let punctuation = Punctuation { delimiter: delimiter.as_bytes().to_vec(), quote };
            let records = split_records(text, &punctuation, is_whole);
            (punctuation, records)
        }
        None => choose_delimiter(text, quote, is_whole),
    };
    // Without quotes, the faster reader of tab-separated text can be used.
    let has_quotes = quote.is_some_and(|quote| text.contains(&quote));
    let format = match &punctuation.delimiter[..] {
        b"\t" if !has_quotes => DataFormat::Tsv,
        _ => DataFormat::Csv,
    };
    let Some(first) = records.first() else {
        return Err(Error::EmptyInput { path: path.to_owned() });
    };
    if is_whole && records.len() == 1 && names_columns(first) {
        let columns = first.len();
        return Err(Error::HeaderOnly { path: path.to_owned(), columns });
    }
    let has_header = is_header(first, &records[1..]);
    let names = match has_header {
        true => header::column_names(first),
        false => (1..=first.len()).map(|at| format!("c{at}")).collect(),
    };
    let records = records[usize::from(has_header)..].to_vec();
    Ok(TextForm { format, punctuation, names, has_header, records })
}

/// Chooses the quote character: `'` only if it clearly encloses fields and `"` does not occur.
fn choose_quote(text: &[u8]) -> Option<u8> {
    let double = text.contains(&b'"');
    let encloses = |at: usize| {
        let before = if at == 0 { b'\n' } else { text[at - 1] };
        b",;\t|\n".contains(&before)
    };
    let single = (0..text.len()).filter(|&at| text[at] == b'\'' && encloses(at)).count();
    let lines = text.iter().filter(|&&byte| byte == b'\n').count();
    // Apostrophes are common in text. As quotes, they must occur at more than one field border per
    // line on average.
    Some(if !double && single > lines { b'\'' } else { b'"' })
}

/// Records of a sample, each a list of trimmed fields.
type TrimmedRecords = Vec<Vec<Vec<u8>>>;

/// Chooses the delimiter that gives the most regular records, then the most fields.
fn choose_delimiter(
    text: &[u8],
    quote: Option<u8>,
    is_whole: bool,
) -> (Punctuation, TrimmedRecords) {
    let mut best: Option<((u64, usize), Punctuation, TrimmedRecords)> = None;
    for delimiter in DELIMITERS {
        let punctuation = Punctuation { delimiter: delimiter.as_bytes().to_vec(), quote };
        let records = split_records(text, &punctuation, is_whole);
        let width = records.first().map_or(0, Vec::len);
        let same = records.iter().filter(|record| record.len() == width).count();
        let share = (100 * same / records.len().max(1)) as u64;
        // In such files, decimal commas are as regular as the semicolons, so semicolons count
        // double.
        let width = if delimiter == ";" && width > 1 { 2 * width } else { width };
        // Shares are compared in steps of 5 %, so that a few odd records do not outweigh the number
        // of fields.
        let score = if width > 1 { (share / 5, width) } else { (0, width) };
        if best.as_ref().is_none_or(|(best_score, ..)| score > *best_score) {
            best = Some((score, punctuation, records));
        }
    }
    let comma = Punctuation { delimiter: b",".to_vec(), quote };
    best.map_or((comma, Vec::new()), |(_, punctuation, records)| (punctuation, records))
}

fn split_records(text: &[u8], punctuation: &Punctuation, is_whole: bool) -> TrimmedRecords {
    let mut splitter = RecordSplitter::new(punctuation.clone());
    splitter.split(text);
    if is_whole {
        splitter.end();
    }
    let mut records = Vec::new();
    splitter.take().for_each(|_, text, fields| {
        if records.len() < SAMPLE_ROWS {
            let field = |&(start, end): &(u32, u32)| {
                field::trim(&text[start as usize..end as usize]).to_vec()
            };
            records.push(fields.iter().map(field).collect());
        }
    });
    records
}

/// Whether the only record of a file is a header, because its fields are neither missing nor
/// values.
fn names_columns(first: &[Vec<u8>]) -> bool {
    first.len() > 1 && first.iter().all(|field| !is_missing(field) && !is_value(field))
}

fn is_value(field: &[u8]) -> bool {
    field::parse_number(field).is_ok() || datetime::parse_time(field, None).is_ok()
}

/// Whether the first record names the columns.
///
/// The record is a header if a name is above numbers or times, or if none of its fields occurs
/// again in its column. A numeric field speaks against a header, unless the numbers count columns,
/// as in `label,0,1,2`. Empty fields and missing values are ignored.
fn is_header(first: &[Vec<u8>], rest: &[Vec<Vec<u8>>]) -> bool {
    let present_fields: Vec<usize> =
        (0..first.len()).filter(|&at| !is_missing(&first[at])).collect();
    let (values, names): (Vec<usize>, Vec<usize>) =
        present_fields.into_iter().partition(|&at| is_value(&first[at]));
    let counts = |pair: &[usize]| {
        let number = |at: usize| field::parse_integer(&first[at]).ok();
        number(pair[0]).zip(number(pair[1])).is_some_and(|(low, high)| high == low + 1)
    };
    let are_columns = values.len() > 1 && values.windows(2).all(counts);
    if names.is_empty() || rest.is_empty() || !(values.is_empty() || are_columns) {
        return false;
    }
    let column = |at: usize| rest.iter().filter_map(move |record| record.get(at));
    let is_above_values = |&at: &usize| {
        let present = column(at).filter(|value| !is_missing(value)).count();
        let values = column(at).filter(|value| !is_missing(value) && is_value(value)).count();
        // More than half of the values below a name must be numbers or times.
        2 * values > present
    };
    let is_new = |at: usize| !column(at).any(|value| *value == first[at]);
    names.iter().any(is_above_values) || values.is_empty() && (0..first.len()).all(is_new)
}

/// Finds the kinds of values of a column besides plain numbers. Number and time formats take
/// precedence over lists, because they may contain the separators of lists.
pub(super) fn find_candidates(sample: &[&[u8]]) -> ColumnCandidates {
    let present: Vec<&[u8]> = sample.iter().copied().filter(|text| !is_missing(text)).collect();
    let others: Vec<&[u8]> =
        present.iter().copied().filter(|text| field::parse_number(text).is_err()).collect();
    if others.is_empty() {
        let is_every = |format: &&str| {
            present.iter().all(|text| datetime::parse_time(text, Some(format)).is_ok())
        };
        let packed = PACKED_TIMES.into_iter().filter(|_| !present.is_empty());
        let times = packed.filter(is_every).map(|format| Some(format.to_owned())).collect();
        return ColumnCandidates { times, ..ColumnCandidates::default() };
    }
    let has_digits = |text: &&&[u8]| text.iter().any(u8::is_ascii_digit);
    let digits = others.iter().filter(has_digits).count();
    let most = |reads: &dyn Fn(&[u8]) -> bool| {
        // One value in ten may be malformed. Without any digit, a match would be meaningless.
        digits > 0 && 10 * others.iter().filter(|text| reads(text)).count() >= 9 * others.len()
    };
    let reads_number = |form| move |text: &[u8]| number_form::parse_amount(form, text).is_ok();
    let forms = [NumberForm::Money, NumberForm::DecimalComma].into_iter();
    let forms: Vec<NumberForm> = forms.filter(|&form| most(&reads_number(form))).collect();
    let reads_time = |format: &Option<String>| {
        let format = format.as_deref();
        // A few values are checked first, because most formats already fail there.
        others.iter().take(3).any(|text| datetime::parse_time(text, format).is_ok())
            && most(&|text| datetime::parse_time(text, format).is_ok())
    };
    let times: Vec<_> = time_forms().filter(reads_time).collect();
    let is_list = |separator: &u8| separates_lists(&others, *separator);
    let separator = SEPARATORS.into_iter().find(is_list);
    let separator = separator.filter(|_| forms.is_empty() && times.is_empty());
    ColumnCandidates { forms, times, separator, is_list: false }
}

/// Iterates over all time formats, the more likely first, starting with ISO 8601.
fn time_forms() -> impl Iterator<Item = Option<String>> {
    let marked = DATES.iter().flat_map(|date| DATE_MARKS.map(|mark| date.replace('/', mark)));
    let dates = marked.chain(NAMED_DATES.map(ToOwned::to_owned));
    let with_clocks = dates.flat_map(|date| CLOCKS.map(|clock| Some(format!("{date}{clock}"))));
    let whole = WHOLE_TIMES.iter().map(|&format| Some(format.to_owned()));
    std::iter::once(None).chain(with_clocks).chain(whole)
}

/// Whether values are lists with this separator. The separator must be frequent, and elements must
/// recur more often than whole values.
fn separates_lists(values: &[&[u8]], separator: u8) -> bool {
    let has = values.iter().filter(|text| text.contains(&separator)).count();
    // A separator that occurs in less than a fifth of the values is ordinary text.
    if 5 * has < values.len() || values.len() < 5 {
        return false;
    }
    let whole: BTreeSet<&[u8]> = values.iter().copied().collect();
    let elements = values.iter().flat_map(|text| text.split(|&byte| byte == separator));
    let elements: Vec<&[u8]> = elements.map(field::trim).filter(|text| !text.is_empty()).collect();
    let distinct: BTreeSet<&[u8]> = elements.iter().copied().collect();
    // Names of two words recur as a whole, while bars occur only in lists.
    let recur = match separator {
        b'|' | b'^' => distinct.len() <= whole.len(),
        // Commas and spaces also occur in ordinary text, so the evidence must be stronger.
        _ => 2 * distinct.len() < whole.len(),
    };
    whole.len() > 10 && recur && elements.len() > values.len()
}
