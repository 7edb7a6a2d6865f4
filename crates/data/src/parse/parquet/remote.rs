//! Reads a Parquet file over a network. Only the wanted columns are fetched, one row group ahead of
//! decoding.

use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::sync_channel;

use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::ArrowReaderMetadata;
use ::parquet::errors::{ParquetError, Result as ParquetResult};
use ::parquet::file::metadata::RowGroupMetaData;
use ::parquet::file::reader::{ChunkReader, Length};

use super::checked::CheckedBytes;
use super::checked::chunk_range;
use crate::error::Error;
use crate::input::remote::{Object, RemoteProblem};

/// Gap between two columns, in bytes, up to which both are fetched with one request.
const GAP: u64 = 256 << 10;

/// A Parquet file on a server that supports range requests.
pub(super) struct Remote {
    object: Object,
    bytes: u64,
}

impl Remote {
    pub(super) fn open(input: &str) -> Result<Self, Error> {
        let path = Path::new(input);
        let object = Object::open(input).map_err(Error::open(path))?;
        match object.bytes().filter(|_| object.has_ranges()) {
            Some(bytes) => Ok(Self { object, bytes }),
            None => {
                let problem = "expected a server that supports range requests, as Parquet files \
                               need, got the whole file"
                    .to_owned();
                Err(Error::open(path)(RemoteProblem::Answer(problem).into()))
            }
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn object(&self) -> &Object {
        &self.object
    }

    /// Calls `take` with the index and the columns `mask` of every row group in order, until it
    /// returns `false`. While `take` runs, the next group is fetched, so two compressed groups are
    /// in memory.
    pub(super) fn for_each_group(
        &self,
        path: &Path,
        metadata: &ArrowReaderMetadata,
        mask: &ProjectionMask,
        mut take: impl FnMut(usize, CheckedBytes) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let groups = metadata.metadata().row_groups();
        let (send, receive) = sync_channel(0);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for (number, group) in groups.iter().enumerate() {
                    let fetched = self.group(path, group, mask);
                    let failed = fetched.is_err();
                    if send.send(fetched.map(|bytes| (number, bytes))).is_err() || failed {
                        return;
                    }
                }
            });
            // Dropping the receiver at the end stops the thread.
            let receive = receive;
            for fetched in &receive {
                let (number, bytes) = fetched?;
                if !take(number, bytes)? {
                    return Ok(());
                }
            }
            Ok(())
        })
    }

    fn group(
        &self,
        path: &Path,
        group: &RowGroupMetaData,
        mask: &ProjectionMask,
    ) -> Result<CheckedBytes, Error> {
        let mut bytes = CheckedBytes::empty(self.bytes);
        let wanted = (0..group.num_columns()).filter(|&leaf| mask.leaf_included(leaf));
        let mut ranges = Vec::new();
        for leaf in wanted {
            let range = chunk_range(group, leaf).filter(|range| range.end <= self.bytes);
            let problem = || ParquetError::EOF(format!("column chunk {leaf} is outside the file"));
            ranges.push(range.ok_or_else(problem).map_err(Error::parquet(path))?);
        }
        for range in join_ranges(ranges) {
            bytes.put(range.start, self.range(range).map_err(Error::read(path))?.into());
        }
        Ok(bytes)
    }

    fn range(&self, range: Range<u64>) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        self.object.range(range).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Sorts the ranges and joins those that are close together.
fn join_ranges(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut().filter(|last| range.start <= last.end.saturating_add(GAP)) {
            Some(last) => last.end = last.end.max(range.end),
            None => joined.push(range),
        }
    }
    joined
}

impl Length for Remote {
    fn len(&self) -> u64 {
        self.bytes
    }
}

/// Gives the Parquet library access to the bytes of the footer.
impl ChunkReader for Remote {
    type T = Box<dyn Read + Send>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(self.object.read_from(start))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<bytes::Bytes> {
        let end = start.saturating_add(length as u64);
        if end > self.bytes {
            return Err(ParquetError::EOF(format!("byte {end} is outside the file")));
        }
        Ok(self.range(start..end)?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::{GAP, join_ranges};

    #[test]
    fn nearby_columns_are_fetched_with_one_request() {
        let far = 20 + 2 * GAP;
        assert_eq!(join_ranges(vec![far..far + 1, 0..10, 12..20]), [0..20, far..far + 1]);
        assert_eq!(join_ranges(Vec::new()), []);
    }
}
