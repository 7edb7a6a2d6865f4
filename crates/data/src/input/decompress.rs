//! Opens an input, which may be a file, an object on a network, or `-` for standard input, and
//! decompresses it. The supported forms are plain text, gzip (with any number of members, and with
//! the zeros that tapes and block devices leave between them), zstd, bzip2, xz, and zip archives
//! with one file. Text in UTF-16 is converted to UTF-8.
//!
//! The form is detected from the first bytes, never from the file name.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::GzDecoder;
use lzma_rust2::XzReader;
use schema::file_format::{self, FileFormat};

use crate::error::Error;
use crate::input::archive;
use crate::input::origin::ReadObserver;
use crate::input::remote::{Object, is_remote};
use crate::input::utf16::{self, Utf16};

/// The name under which users pass standard input.
pub(crate) const STDIN: &str = "-";

const BUFFER: usize = 256 * 1024;
/// Bytes that [`read_start`] returns: enough to detect every form except tar.
const START: u64 = 16;
/// Depth to which nested forms are unpacked, such as UTF-16 within gzip.
const DEPTH: usize = 3;

/// Opens the decompressed content of `input`. The compressed bytes are reported to `observer`.
pub(crate) fn open(input: &str, observer: &ReadObserver) -> Result<Box<dyn Read + Send>, Error> {
    let path = Path::new(input);
    if input == STDIN {
        decompressed(Box::new(observer.observe_stream(io::stdin()))).map_err(Error::read(path))
    } else if is_remote(input) {
        let object = Object::open(input).map_err(Error::open(path))?;
        decompressed(Box::new(observer.observe_object(input, &object, 0)))
            .map_err(Error::read(path))
    } else {
        let file = File::open(path).map_err(Error::open(path))?;
        // Linux opens a folder without an error. A read of the folder would then fail with a less
        // helpful message.
        if file.metadata().map_err(Error::open(path))?.is_dir() {
            return Err(Error::open(path)(io::Error::new(
                io::ErrorKind::IsADirectory,
                "is a folder",
            )));
        }
        let mut head = [0; 4];
        // `read_at` fails on a pipe, whose first bytes could not be read a second time.
        let is_zip = file.read_at(&mut head, 0).is_ok()
            && file_format::detect_format(&head) == FileFormat::Zip;
        if is_zip {
            return decompressed(archive::open_only_member(path, observer)?)
                .map_err(Error::read(path));
        }
        decompressed(Box::new(observer.observe_file(input, file, 0)?)).map_err(Error::read(path))
    }
}

/// Like [`open`], but starts at byte `offset` of the decompressed content. In a plain file, the
/// bytes before `offset` are skipped without reading them.
pub(crate) fn open_at(
    input: &str,
    offset: u64,
    observer: &ReadObserver,
) -> Result<Box<dyn Read + Send>, Error> {
    let path = Path::new(input);
    let head = read_start(input)?;
    if file_format::detect_format(&head) != FileFormat::Plain
        || utf16::detect_byte_order(&head).is_some()
    {
        // A compressed or UTF-16 text has no index, so the bytes before `offset` must be decoded.
        let mut read = open(input, observer)?;
        let before = &mut read.by_ref().take(offset);
        io::copy(before, &mut io::sink()).map_err(Error::read(path))?;
        return Ok(read);
    }
    if is_remote(input) {
        let object = Object::open(input).map_err(Error::open(path))?;
        observer.bytes_done.fetch_add(offset, Ordering::Relaxed);
        let observed = observer.observe_object(input, &object, offset);
        return Ok(Box::new(BufReader::with_capacity(BUFFER, observed)));
    }
    let mut file = File::open(path).map_err(Error::open(path))?;
    file.seek(SeekFrom::Start(offset)).map_err(Error::read(path))?;
    observer.bytes_done.fetch_add(offset, Ordering::Relaxed);
    let observed = observer.observe_file(input, file, offset)?;
    Ok(Box::new(BufReader::with_capacity(BUFFER, observed)))
}

/// Reads the first [`START`] bytes of an input, or fewer if the input is shorter.
pub(crate) fn read_start(input: &str) -> Result<Vec<u8>, Error> {
    let path = Path::new(input);
    let mut start = Vec::new();
    let mut read: Box<dyn Read> = match is_remote(input) {
        true => Object::open(input).map_err(Error::open(path))?.read_from(0),
        false => Box::new(File::open(path).map_err(Error::open(path))?),
    };
    read.by_ref().take(START).read_to_end(&mut start).map_err(Error::read(path))?;
    Ok(start)
}

/// Sums the sizes of the inputs; `None` if one is standard input or an object of unknown length.
pub(crate) fn total_bytes(inputs: &[String]) -> Result<Option<u64>, Error> {
    let mut total = 0;
    for input in inputs {
        if input == STDIN {
            return Ok(None);
        }
        let path = PathBuf::from(input);
        if is_remote(input) {
            let object = Object::open(input).map_err(Error::open(&path))?;
            let Some(bytes) = object.bytes() else { return Ok(None) };
            total += bytes;
            continue;
        }
        total += std::fs::metadata(&path).map_err(Error::open(&path))?.len();
    }
    Ok(Some(total))
}

fn decompressed(raw: Box<dyn Read + Send>) -> io::Result<Box<dyn Read + Send>> {
    unpack(raw, 0)
}

/// Unpacks `raw`, which is nested in `depth` other forms.
fn unpack(mut raw: Box<dyn Read + Send>, depth: usize) -> io::Result<Box<dyn Read + Send>> {
    let head = read_head(&mut raw, file_format::HEAD_BYTES)?;
    let order = utf16::detect_byte_order(&head);
    let form = if depth < DEPTH { file_format::detect_format(&head) } else { FileFormat::Plain };
    let whole = Cursor::new(head).chain(raw);
    let content: Box<dyn Read + Send> = match (form, order) {
        (FileFormat::Gzip, _) => {
            Box::new(GzipMembers { current: Some(GzDecoder::new(buffered(whole))) })
        }
        (FileFormat::Zstd, _) => Box::new(zstd::Decoder::with_buffer(buffered(whole))?),
        (FileFormat::Bzip2, _) => Box::new(MultiBzDecoder::new(buffered(whole))),
        (FileFormat::Xz, _) => Box::new(XzReader::new(buffered(whole), true)),
        (_, Some(order)) => return Ok(Box::new(Utf16::new(buffered(whole), order))),
        // Decompressors already deliver large blocks, so no buffer is needed.
        _ if depth > 0 => return Ok(Box::new(whole)),
        _ => return Ok(Box::new(buffered(whole))),
    };
    unpack(content, depth + 1)
}

fn buffered<R: Read>(read: R) -> BufReader<R> {
    BufReader::with_capacity(BUFFER, read)
}

/// Reads the first bytes of `read`, up to `most`, but does not wait for more once a line end has
/// arrived. No magic number has a line end after its fourth byte, and the writer of a stream may
/// wait for an answer before it sends more.
pub(crate) fn read_head(read: &mut impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut head = vec![0; most];
    let mut length = 0;
    while length < most && !(length >= 4 && head[..length].contains(&b'\n')) {
        match read.read(&mut head[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        // A complete line may have fewer than four bytes, such as a label alone.
        if head[..length].ends_with(b"\n") {
            break;
        }
    }
    head.truncate(length);
    Ok(head)
}

/// A reader that concatenates all members of a gzip file.
struct GzipMembers<R> {
    /// Decoder of the current member; `None` after the last member.
    current: Option<GzDecoder<R>>,
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.current {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            // The decoder has verified the checksum of this member.
            let rest = self.current.take().map(GzDecoder::into_inner);
            if let Some(mut rest) = rest
                && skip_zeros(&mut rest)?
            {
                self.current = Some(GzDecoder::new(rest));
            }
        }
        Ok(0)
    }
}

/// Skips zeros and tells whether anything follows them.
fn skip_zeros(read: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = match read.fill_buf() {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        let zeros = bytes.iter().position(|&byte| byte != 0);
        let (passed, ends) = (zeros.unwrap_or(bytes.len()), bytes.is_empty());
        read.consume(passed);
        if ends || zeros.is_some() {
            return Ok(!ends);
        }
    }
}
