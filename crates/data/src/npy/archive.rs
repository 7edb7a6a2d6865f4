//! The arrays of an `.npz`, each with a reader of its own, so that rows of all are read together.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::CrcReader;
use flate2::bufread::DeflateDecoder;
use zip::{CompressionMethod, ZipArchive};

use super::array::Array;
use crate::error::Error;
use crate::origin::Tap;

/// Buffer of each array, of which there are some 26.
const BUFFER: usize = 64 << 10;

/// Opens all arrays in the order of their names, numbers as numbers: `0.npy`, `1.npy`, …, `25.npy`.
pub(super) fn open(path: &Path, tap: &Tap) -> Result<Vec<Array>, Error> {
    tap.whole(&path.display().to_string())?;
    let file = File::open(path).map_err(Error::open(path))?;
    let damaged = |error: zip::result::ZipError| Error::read(path)(io::Error::other(error));
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(damaged)?;
    let mut members = Vec::with_capacity(archive.len());
    for index in 0..archive.len() {
        let member = archive.by_index_raw(index).map_err(damaged)?;
        let name = member.name().map_err(damaged)?.into_owned();
        let start = member.data_start().unwrap_or_default();
        let place = (start, member.compressed_size(), member.crc32());
        let number: Option<u64> = name.strip_suffix(".npy").and_then(|name| name.parse().ok());
        members.push((number, name, member.compression(), place));
    }
    members.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    if members.is_empty() {
        let problem = "expected arrays, got an empty archive".to_owned();
        return Err(Error::Array { path: path.to_owned(), problem });
    }
    let open = |(_, name, method, (start, length, sum)): (_, String, _, _)| {
        let mut file = File::open(path).map_err(Error::open(path))?;
        file.seek(SeekFrom::Start(start)).map_err(Error::read(path))?;
        let packed = BufReader::with_capacity(BUFFER, tap.stream(file.take(length)));
        let content: Box<dyn Read + Send> = match method {
            CompressionMethod::STORE => Box::new(packed),
            CompressionMethod::DEFLATE => Box::new(DeflateDecoder::new(packed)),
            _ => {
                let problem = format!("{name}: expected stored or deflated, got {method:?}");
                return Err(Error::Array { path: path.to_owned(), problem });
            }
        };
        let checked = Checked { content: CrcReader::new(content), sum };
        Array::new(path.join(name), Box::new(checked))
    };
    members.into_iter().map(open).collect()
}

/// Compares the checksum where the content ends.
struct Checked {
    content: CrcReader<Box<dyn Read + Send>>,
    sum: u32,
}

impl Read for Checked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer)?;
        if read == 0 && !buffer.is_empty() && self.content.crc().sum() != self.sum {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum differs"));
        }
        Ok(read)
    }
}
