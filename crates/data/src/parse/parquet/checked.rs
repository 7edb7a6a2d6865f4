//! Byte ranges of a file that were verified against their checksums before they are decoded. The
//! Parquet reader of a dataset sees only such ranges. Ranges of objects on a network have no
//! checksums.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::bytes::Buf;
use ::parquet::errors::{ParquetError, Result as ParquetResult};
use ::parquet::file::metadata::RowGroupMetaData;
use ::parquet::file::reader::{ChunkReader, Length};

use crate::checksum::Checksum;
use crate::error::Error;

/// Verified byte ranges of one file, in the form that the Parquet library reads from.
pub(crate) struct CheckedBytes {
    /// Length of the whole file.
    length: u64,
    /// The ranges, each with the position of its first byte in the file.
    ranges: Vec<(u64, ::bytes::Bytes)>,
    /// Number of pages that the Parquet library has read.
    pages: Arc<AtomicU64>,
}

/// Reads `range` and verifies it against `checksum`, if there is one. Errors name `place`.
pub(crate) fn read_range(
    file: &File,
    path: &Path,
    range: Range<u64>,
    checksum: Option<Checksum>,
    place: impl FnOnce() -> String,
) -> Result<CheckedBytes, Error> {
    let length = file.metadata().map_err(Error::read(path))?.len();
    // The length is checked before the allocation, because the range may come from a damaged
    // footer.
    if range.end > length {
        return Err(Error::PartSize { path: path.to_owned(), expected: range.end, got: length });
    }
    let mut bytes = vec![0; range.end.saturating_sub(range.start) as usize];
    file.read_exact_at(&mut bytes, range.start).map_err(Error::read(path))?;
    if let Some(expected) = checksum {
        let got = Checksum::compute(&bytes);
        if got != expected {
            let (path, place) = (path.to_owned(), place());
            return Err(Error::Checksum { path, place, expected, got });
        }
    }
    let mut checked = CheckedBytes::empty(length);
    checked.put(range.start, bytes.into());
    Ok(checked)
}

/// Returns the byte range of a column chunk; `None` if its metadata is invalid.
pub(crate) fn chunk_range(group: &RowGroupMetaData, column: usize) -> Option<Range<u64>> {
    let chunk = group.columns().get(column)?;
    let start = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
    let start = u64::try_from(start).ok()?;
    Some(start..start.checked_add(u64::try_from(chunk.compressed_size()).ok()?)?)
}

impl CheckedBytes {
    /// Creates an empty set of ranges for a file of `length` bytes.
    pub(crate) fn empty(length: u64) -> Self {
        Self { length, ranges: Vec::new(), pages: Arc::default() }
    }

    /// Counts the pages that are read in `pages`.
    pub(crate) fn counting(self, pages: &Arc<AtomicU64>) -> Self {
        Self { pages: Arc::clone(pages), ..self }
    }

    /// Adds the ranges of `more`, which belong to the same file.
    pub(crate) fn add(&mut self, mut more: Self) {
        self.ranges.append(&mut more.ranges);
    }

    /// Adds a range that starts at byte `start` of the file.
    pub(crate) fn put(&mut self, start: u64, bytes: ::bytes::Bytes) {
        self.ranges.push((start, bytes));
    }

    /// Returns the bytes from `start` to the end of the range that contains it.
    fn from(&self, start: u64) -> ParquetResult<::bytes::Bytes> {
        let holds = |&&(first, ref bytes): &&(u64, ::bytes::Bytes)| {
            start >= first && start - first < bytes.len() as u64
        };
        match self.ranges.iter().find(holds) {
            Some((first, bytes)) => Ok(bytes.slice((start - first) as usize..)),
            None => Err(ParquetError::EOF(format!("byte {start} is outside its column"))),
        }
    }
}

impl Length for CheckedBytes {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for CheckedBytes {
    type T = ::bytes::buf::Reader<::bytes::Bytes>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        self.from(start).map(Buf::reader)
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<::bytes::Bytes> {
        let bytes = self.from(start)?;
        if bytes.len() < length {
            let end = start.saturating_add(length as u64);
            return Err(ParquetError::EOF(format!("byte {end} is outside its column")));
        }
        // The library reads the content of a page by one call, and headers by `get_read`.
        self.pages.fetch_add(1, Ordering::Relaxed);
        Ok(bytes.slice(..length))
    }
}
