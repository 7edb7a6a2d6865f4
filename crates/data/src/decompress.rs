//! Opens an input: plain, gzip (any number of members, zeros between and behind them as tapes and
//! block devices leave them), zstd; a file, an object on a network, or `-` for standard input.
//!
//! The compression is recognised by the first bytes, never by the name. Knows nothing of the
//! content.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Chain, Cursor, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use flate2::bufread::GzDecoder;

use crate::error::Error;
use crate::origin::Tap;
use crate::remote::{Object, is_remote};

/// The name of standard input.
pub(crate) const STDIN: &str = "-";

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const BUFFER: usize = 256 * 1024;

/// The decompressed content of `input`; `tap` receives the bytes taken from the file itself.
pub(crate) fn open(input: &str, tap: &Tap) -> Result<Box<dyn Read + Send>, Error> {
    let path = Path::new(input);
    if input == STDIN {
        decompressed(tap.stream(io::stdin())).map_err(Error::read(path))
    } else if is_remote(input) {
        let object = Object::open(input).map_err(Error::open(path))?;
        decompressed(tap.object(input, (&object, 0))).map_err(Error::read(path))
    } else {
        let file = File::open(path).map_err(Error::open(path))?;
        // Opening a folder succeeds; only reading it would fail, with a less helpful text.
        if file.metadata().map_err(Error::open(path))?.is_dir() {
            return Err(Error::open(path)(io::Error::new(
                io::ErrorKind::IsADirectory,
                "is a folder",
            )));
        }
        decompressed(tap.file(input, (file, 0))?).map_err(Error::read(path))
    }
}

/// Like [`open`] from byte `offset` of the decompressed content on. A plain file is not read before
/// it.
pub(crate) fn open_at(input: &str, offset: u64, tap: &Tap) -> Result<Box<dyn Read + Send>, Error> {
    let path = Path::new(input);
    if is_compressed(&start(input)?) {
        let mut read = open(input, tap)?;
        let before = &mut read.by_ref().take(offset);
        io::copy(before, &mut io::sink()).map_err(Error::read(path))?;
        return Ok(read);
    }
    if is_remote(input) {
        let object = Object::open(input).map_err(Error::open(path))?;
        tap.bytes_done.fetch_add(offset, Ordering::Relaxed);
        let tapped = tap.object(input, (&object, offset));
        return Ok(Box::new(BufReader::with_capacity(BUFFER, tapped)));
    }
    let mut file = File::open(path).map_err(Error::open(path))?;
    file.seek(SeekFrom::Start(offset)).map_err(Error::read(path))?;
    tap.bytes_done.fetch_add(offset, Ordering::Relaxed);
    let tapped = tap.file(input, (file, offset))?;
    Ok(Box::new(BufReader::with_capacity(BUFFER, tapped)))
}

/// The first four bytes of an input, or all where there are fewer.
pub(crate) fn start(input: &str) -> Result<Vec<u8>, Error> {
    let path = Path::new(input);
    let mut start = Vec::new();
    let mut read: Box<dyn Read> = match is_remote(input) {
        true => Object::open(input).map_err(Error::open(path))?.read_from(0),
        false => Box::new(File::open(path).map_err(Error::open(path))?),
    };
    read.by_ref().take(4).read_to_end(&mut start).map_err(Error::read(path))?;
    Ok(start)
}

fn is_compressed(start: &[u8]) -> bool {
    start.starts_with(GZIP) || start.starts_with(ZSTD)
}

/// Sum of the sizes of the inputs; `None` where one is standard input, or an object whose length is
/// unknown.
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

fn decompressed(mut raw: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    let mut start = [0; 4];
    let mut length = 0;
    // A line end is in none of the marks, and a stream may wait for the answer to a short line.
    while length < start.len() && !start[..length].ends_with(b"\n") {
        match raw.read(&mut start[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let whole: Chain<Cursor<Vec<u8>>, _> = Cursor::new(start[..length].to_vec()).chain(raw);
    let buffered = BufReader::with_capacity(BUFFER, whole);
    Ok(if start[..length].starts_with(GZIP) {
        Box::new(Members { current: Some(GzDecoder::new(buffered)) })
    } else if start[..length].starts_with(ZSTD) {
        Box::new(zstd::Decoder::with_buffer(buffered)?)
    } else {
        Box::new(buffered)
    })
}

/// The content of all members of a gzip file, one after the other.
struct Members<R> {
    /// `None` behind the last.
    current: Option<GzDecoder<R>>,
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.current {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            // Its checksum has been compared.
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

/// Passes over zeros; whether anything follows them.
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
