//! The format of a file from its beginning: what parts fields, what encloses them, whether the
//! first record names the columns, and what the values may be.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use schema::source::{DataFormat, NumberForm};

use super::column::Tries;
use crate::csv::{Punctuation, Splitter};
use crate::decompress;
use crate::error::Error;
use crate::origin::Tap;
use crate::{datetime, field, number_form, text};

/// Bytes that are sampled.
const SAMPLE_BYTES: u64 = 512 << 10;
/// Records that are sampled.
const SAMPLE_ROWS: usize = 5000;
/// What may part fields, the likelier of equals first.
const DELIMITERS: [&str; 6] = ["\t", ",", ";", "|", "::", "\u{1}"];
/// What may part the elements of a list.
const SEPARATORS: [u8; 5] = [b'|', b';', b'^', b',', b' '];
/// Forms of times; the first is ISO 8601.
const TIMES: [Option<&str>; 13] = [
    None,
    Some("%d.%m.%Y"),
    Some("%d.%m.%Y %H:%M"),
    Some("%d.%m.%Y %H:%M:%S"),
    Some("%m/%d/%Y"),
    Some("%d/%m/%Y"),
    Some("%m/%d/%Y %H:%M"),
    Some("%d/%m/%Y %H:%M"),
    Some("%m/%d/%Y %I:%M:%S %p"),
    Some("%d-%m-%Y"),
    Some("%d-%b-%Y"),
    Some("%d %b %Y"),
    Some("%b %d, %Y"),
];
/// Text that stands for missing values.
pub(super) const MISSING: [&str; 10] =
    ["?", "NA", "N/A", "\\N", "NULL", "null", "None", "NaN", "nan", "-"];

/// How a text file is laid out.
#[derive(Clone, Debug)]
pub(super) struct TextForm {
    pub format: DataFormat,
    pub punctuation: Punctuation,
    /// Names of the columns.
    pub names: Vec<String>,
    pub has_header: bool,
    /// The first records behind the header.
    pub records: Vec<Vec<Vec<u8>>>,
}

/// Whether a field says that there is no value.
pub(super) fn is_missing(text: &[u8]) -> bool {
    text.is_empty() || MISSING.iter().any(|missing| missing.as_bytes() == text)
}

/// The layout of the text file `input`.
pub(super) fn text_form(input: &str, delimiter: Option<&str>) -> Result<TextForm, Error> {
    let path = Path::new(input);
    let mut sample = Vec::new();
    let read = decompress::open(input, &Tap::default())?;
    read.take(SAMPLE_BYTES).read_to_end(&mut sample).map_err(Error::read(path))?;
    let text = sample.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&sample);
    if text.trim_ascii().is_empty() {
        return Err(Error::EmptyInput { path: path.to_owned() });
    }
    if text.starts_with(b"PAR1") || text.iter().filter(|&&byte| byte == 0).count() > 8 {
        return Err(Error::NotText { path: path.to_owned() });
    }
    let is_whole = (sample.len() as u64) < SAMPLE_BYTES;
    let quote = quote_of(text);
    let (punctuation, records) = match delimiter {
        Some(delimiter) => {
            let delimiter = if ["tab", "\\t"].contains(&delimiter) { "\t" } else { delimiter };
            let punctuation = Punctuation { delimiter: delimiter.as_bytes().to_vec(), quote };
            let records = records(text, &punctuation, is_whole);
            (punctuation, records)
        }
        None => likeliest(text, quote, is_whole),
    };
    // Without quotes the faster reader of tab-separated text serves.
    let has_quotes = quote.is_some_and(|quote| text.contains(&quote));
    let format = match &punctuation.delimiter[..] {
        b"\t" if !has_quotes => DataFormat::Tsv,
        _ => DataFormat::Csv,
    };
    let Some(first) = records.first() else {
        return Err(Error::EmptyInput { path: path.to_owned() });
    };
    let has_header = is_header(first, &records[1..]);
    let names = match has_header {
        true => first.iter().map(|field| text::name(field)).collect(),
        false => (1..=first.len()).map(|at| format!("c{at}")).collect(),
    };
    let records = records[usize::from(has_header)..].to_vec();
    Ok(TextForm { format, punctuation, names, has_header, records })
}

/// The quote that encloses fields: `'` only where nothing else does.
fn quote_of(text: &[u8]) -> Option<u8> {
    let double = text.contains(&b'"');
    let encloses = |at: usize| {
        let before = if at == 0 { b'\n' } else { text[at - 1] };
        b",;\t|\n".contains(&before)
    };
    let single = (0..text.len()).filter(|&at| text[at] == b'\'' && encloses(at)).count();
    let lines = text.iter().filter(|&&byte| byte == b'\n').count();
    Some(if !double && single > lines { b'\'' } else { b'"' })
}

/// Records of trimmed fields.
type TrimmedRecords = Vec<Vec<Vec<u8>>>;

/// The delimiter by which records have the same number of fields, and most of them.
fn likeliest(text: &[u8], quote: Option<u8>, is_whole: bool) -> (Punctuation, TrimmedRecords) {
    let mut best: Option<((u64, usize), Punctuation, TrimmedRecords)> = None;
    for delimiter in DELIMITERS {
        let punctuation = Punctuation { delimiter: delimiter.as_bytes().to_vec(), quote };
        let records = records(text, &punctuation, is_whole);
        let width = records.first().map_or(0, Vec::len);
        let same = records.iter().filter(|record| record.len() == width).count();
        let share = (100 * same / records.len().max(1)) as u64;
        // Decimal commas part as regularly as the semicolons between them.
        let width = if delimiter == ";" && width > 1 { 2 * width } else { width };
        let score = if width > 1 { (share / 5, width) } else { (0, width) };
        if best.as_ref().is_none_or(|(known, ..)| score > *known) {
            best = Some((score, punctuation, records));
        }
    }
    let comma = Punctuation { delimiter: b",".to_vec(), quote };
    best.map_or((comma, Vec::new()), |(_, punctuation, records)| (punctuation, records))
}

fn records(text: &[u8], punctuation: &Punctuation, is_whole: bool) -> TrimmedRecords {
    let mut splitter = Splitter::new(punctuation.clone());
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

/// Whether the first record names the columns: no field is a number or empty, no name occurs twice,
/// and columns hold something else than their name.
fn is_header(first: &[Vec<u8>], rest: &[Vec<Vec<u8>>]) -> bool {
    let is_name = |field: &Vec<u8>| {
        !field.is_empty() && field::number(field).is_err() && datetime::read(field, None).is_err()
    };
    let names: BTreeSet<&Vec<u8>> = first.iter().collect();
    if !first.iter().all(is_name) || names.len() != first.len() || rest.is_empty() {
        return false;
    }
    let differs = |at: usize| {
        let column = || rest.iter().filter_map(|record| record.get(at));
        let values = column().filter(|value| !is_missing(value)).count();
        let other = column().filter(|value| !is_missing(value) && !is_name(value)).count();
        let has_numbers = values > 0 && 2 * other > values;
        (has_numbers, column().any(|value| *value == first[at]))
    };
    let columns: Vec<(bool, bool)> = (0..first.len()).map(differs).collect();
    columns.iter().any(|(numbers, _)| *numbers) || columns.iter().all(|(_, again)| !again)
}

/// What besides a number the values `sample` of a column may be.
pub(super) fn tries(sample: &[&[u8]]) -> Tries {
    let present: Vec<&[u8]> = sample.iter().copied().filter(|text| !is_missing(text)).collect();
    let others: Vec<&[u8]> =
        present.iter().copied().filter(|text| field::number(text).is_err()).collect();
    if others.is_empty() {
        return Tries::default();
    }
    let has_digits = |text: &&&[u8]| text.iter().any(u8::is_ascii_digit);
    let digits = others.iter().filter(has_digits).count();
    let most = |reads: &dyn Fn(&[u8]) -> bool| {
        10 * others.iter().filter(|text| reads(text)).count() >= 9 * others.len()
    };
    let amount = |form| move |text: &[u8]| number_form::read(form, text).is_ok();
    let times = TIMES
        .into_iter()
        .filter(|format| digits > 0 && most(&|text| datetime::read(text, *format).is_ok()));
    Tries {
        amounts: digits > 0 && most(&amount(NumberForm::Money)),
        comma_amounts: digits > 0 && most(&amount(NumberForm::DecimalComma)),
        times: times.collect(),
        separator: SEPARATORS.into_iter().find(|&separator| parts_lists(&others, separator)),
        is_list: false,
    }
}

/// Whether values are lists with this separator: many have it, and their elements recur more often
/// than the values do.
fn parts_lists(values: &[&[u8]], separator: u8) -> bool {
    let has = values.iter().filter(|text| text.contains(&separator)).count();
    if 5 * has < values.len() || values.len() < 5 {
        return false;
    }
    let whole: BTreeSet<&[u8]> = values.iter().copied().collect();
    let elements = values.iter().flat_map(|text| text.split(|&byte| byte == separator));
    let elements: Vec<&[u8]> = elements.map(field::trim).filter(|text| !text.is_empty()).collect();
    let distinct: BTreeSet<&[u8]> = elements.iter().copied().collect();
    // Names of two words recur as a whole; bars stand in lists alone.
    let recur = match separator {
        b'|' | b'^' => distinct.len() <= whole.len(),
        _ => 2 * distinct.len() < whole.len(),
    };
    whole.len() > 10 && recur && elements.len() > values.len()
}
