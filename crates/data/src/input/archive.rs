//! Reads the files of a zip archive. Each file of an archive has its own reader, so that several
//! files can be read at the same time.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::CrcReader;
use flate2::bufread::DeflateDecoder;
use zip::{CompressionMethod, ZipArchive};

use crate::error::Error;
use crate::input::origin::ReadObserver;

/// Buffer size per file in bytes. The buffer is small, because dozens of files of an archive may be
/// open.
const BUFFER: usize = 64 << 10;
/// Number of file names that an error message lists.
const SHOWN: usize = 3;

/// A compressed file within an archive: the position of its bytes and the method of compression.
pub(crate) struct ArchiveMember {
    pub name: String,
    method: CompressionMethod,
    start: u64,
    length: u64,
    checksum: u32,
}

/// Lists the files of the archive `path` in the archive's order.
pub(crate) fn list_members(path: &Path) -> Result<Vec<ArchiveMember>, Error> {
    let file = File::open(path).map_err(Error::open(path))?;
    let damaged = |error: zip::result::ZipError| Error::read(path)(io::Error::other(error));
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(damaged)?;
    let mut members = Vec::with_capacity(archive.len());
    for index in 0..archive.len() {
        let member = archive.by_index_raw(index).map_err(damaged)?;
        let name = member.name().map_err(damaged)?.into_owned();
        members.push(ArchiveMember {
            start: member.data_start().unwrap_or_default(),
            length: member.compressed_size(),
            checksum: member.crc32(),
            method: member.compression(),
            name,
        });
    }
    Ok(members)
}

/// Opens the only file in the archive `path`. Folders and hidden files are ignored.
pub(crate) fn open_only_member(
    path: &Path,
    observer: &ReadObserver,
) -> Result<Box<dyn Read + Send>, Error> {
    let mut members = list_members(path)?;
    members.retain(|member| !is_hidden(&member.name));
    match &members[..] {
        [member] => {
            // The archive is hashed as a whole, because only a part of it is read.
            observer.hash_file(&path.display().to_string())?;
            member.open(path, observer)
        }
        several => {
            let is_there = |name: &str| several.iter().any(|member| member.name == name);
            let names: Vec<&str> = several.iter().map(|member| &*member.name).collect();
            let got = match names.len() {
                // Office documents are zip archives that contain a file of this name.
                _ if is_there("[Content_Types].xml") => {
                    "an Excel workbook or another document".to_owned()
                }
                0 => "none".to_owned(),
                count if count <= SHOWN => names.join(", "),
                count => format!("{} and {} more", names[..SHOWN].join(", "), count - SHOWN),
            };
            Err(Error::Archive { path: path.to_owned(), got })
        }
    }
}

fn is_hidden(name: &str) -> bool {
    name.ends_with('/')
        || name.split('/').any(|part| part.starts_with(['.', '_']) && part.len() > 1)
}

impl ArchiveMember {
    /// Opens the decompressed content of the file, whose checksum is verified when the end is
    /// reached.
    pub(crate) fn open(
        &self,
        path: &Path,
        observer: &ReadObserver,
    ) -> Result<Box<dyn Read + Send>, Error> {
        let mut file = File::open(path).map_err(Error::open(path))?;
        file.seek(SeekFrom::Start(self.start)).map_err(Error::read(path))?;
        let packed =
            BufReader::with_capacity(BUFFER, observer.observe_stream(file.take(self.length)));
        let content: Box<dyn Read + Send> = match self.method {
            CompressionMethod::STORE => Box::new(packed),
            CompressionMethod::DEFLATE => Box::new(DeflateDecoder::new(packed)),
            _ => {
                let name = &self.name;
                let got =
                    format!("{name}, which is neither stored nor deflated: {:?}", self.method);
                return Err(Error::Archive { path: path.to_owned(), got });
            }
        };
        Ok(Box::new(ChecksumReader { content: CrcReader::new(content), sum: self.checksum }))
    }
}

/// A reader that compares the checksum once the content has been read to its end.
struct ChecksumReader {
    content: CrcReader<Box<dyn Read + Send>>,
    sum: u32,
}

impl Read for ChecksumReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer)?;
        if read == 0 && !buffer.is_empty() && self.content.crc().sum() != self.sum {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum differs"));
        }
        Ok(read)
    }
}
