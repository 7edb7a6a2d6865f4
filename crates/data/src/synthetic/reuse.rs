//! A published histogram of reuse, read from its file. What it means is `schema`'s.

use std::io::Read;
use std::path::Path;

use schema::IndexDistribution;
use schema::distribution::{ReuseError, ReuseHistogram};

use crate::error::Error;
use crate::input::decompress;
use crate::input::origin::ReadObserver;

/// Longest text: the published ones have 30 KB.
const TEXT_BYTES: u64 = 16 << 20;

/// The distribution of a section (the first, if none is named) of a text of locality statistics as
/// `dlrm_datasets` publishes them; plain, `.gz` or `.zst`.
///
/// # Errors
/// [`Error::Open`], [`Error::Read`], [`Error::Reuse`].
pub fn reuse_histogram(file: &str, section: Option<&str>) -> Result<IndexDistribution, Error> {
    let path = Path::new(file);
    let mut text = Vec::new();
    let read = decompress::open(file, &ReadObserver::default())?;
    read.take(TEXT_BYTES).read_to_end(&mut text).map_err(Error::read(path))?;
    let text =
        String::from_utf8(text).map_err(|_| ReuseError::Format { got: "bytes that are no text" });
    let histogram = text.and_then(|text| ReuseHistogram::parse(&text, section));
    let refused = |source| Error::Reuse { path: path.to_owned(), source };
    histogram.map(IndexDistribution::Reuse).map_err(refused)
}
