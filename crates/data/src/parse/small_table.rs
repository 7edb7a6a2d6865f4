//! Reads small tables with a header, such as lists of measurements, that are not training data.

use std::path::Path;

use crate::error::Error;
use crate::input::decompress;
use crate::input::origin::ReadObserver;
use crate::parse::csv::{Punctuation, RecordSplitter, Records};

/// Calls `take(line, fields)` for each record of a CSV file, the header included. The file may be
/// plain or compressed; `-` is standard input.
///
/// # Errors
/// Returns any [`Error`] of reading the file, or the first error of `take`.
pub fn for_each_record<E: From<Error>>(
    path: &Path,
    mut take: impl FnMut(u64, &[&str]) -> Result<(), E>,
) -> Result<(), E> {
    let mut text = Vec::new();
    let mut input = decompress::open(&path.to_string_lossy(), &ReadObserver::default())?;
    std::io::Read::read_to_end(&mut input, &mut text).map_err(Error::read(path))?;
    let mut splitter =
        RecordSplitter::new(Punctuation { delimiter: b",".to_vec(), quote: Some(b'"') });
    splitter.split(&text);
    splitter.end();
    let records: Records = splitter.take();
    let mut result = Ok(());
    records.for_each(|line, text, fields| {
        if result.is_err() {
            return;
        }
        let field = |&(start, end): &(u32, u32)| {
            String::from_utf8_lossy(&text[start as usize..end as usize]).trim().to_owned()
        };
        let fields: Vec<String> = fields.iter().map(field).collect();
        result = take(line, &fields.iter().map(String::as_str).collect::<Vec<_>>());
    });
    result
}
