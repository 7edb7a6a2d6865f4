//! Reads a published reuse histogram from its file; `schema` interprets it.

use std::io::Read;
use std::path::Path;

use schema::IndexDistribution;
use schema::distribution::{ReuseError, ReuseHistogram};

use crate::error::Error;
use crate::input::decompress;
use crate::input::origin::ReadObserver;

/// Largest length of the file in bytes; published files have 30 KB.
const TEXT_BYTES: u64 = 16 << 20;

/// Reads the distribution of a section of a text with locality statistics, as `dlrm_datasets`
/// publishes them. Without a name the first section is used. The file may be plain, `.gz` or
/// `.zst`.
///
/// # Errors
/// Returns [`Error::Open`], [`Error::Read`] or [`Error::Reuse`].
pub fn reuse_histogram(file: &str, section: Option<&str>) -> Result<IndexDistribution, Error> {
    let path = Path::new(file);
    let mut text = Vec::new();
    let read = decompress::open(file, &ReadObserver::default())?;
    read.take(TEXT_BYTES).read_to_end(&mut text).map_err(Error::read(path))?;
    let text =
        String::from_utf8(text).map_err(|_| ReuseError::Format { got: "bytes that are not text" });
    let histogram = text.and_then(|text| ReuseHistogram::parse(&text, section));
    let refused = |source| Error::Reuse { path: path.to_owned(), source };
    histogram.map(IndexDistribution::Reuse).map_err(refused)
}
