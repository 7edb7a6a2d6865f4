//! The records of a small table with a header, for tables that are no training data.

use std::path::Path;

use crate::error::Error;
use crate::input::decompress;
use crate::input::origin::ReadObserver;
use crate::parse::csv::{Punctuation, RecordSplitter, Records};

/// Calls `take(line, fields)` for each record of comma-separated text with quotes; the header is
/// the first. Plain, gzip, zstd, or `-` for standard input.
///
/// # Errors
/// What cannot be read, or what `take` refuses.
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
