//! Detects compressed streams by their first bytes, compresses them and decompresses them.

use std::io::{self, BufReader, Cursor, Read, Write};

use crate::open::Gunzip;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Compression level for gzip. Level 3 is three times as fast as the default level 6, and the files
/// are 5 % larger.
const GZIP_LEVEL: u32 = 3;

/// Decompresses gzip or Zstandard data. All other data pass through unchanged.
///
/// # Errors
/// Returns the error of reading the first bytes.
pub fn unpacked<'a>(mut packed: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut head = Vec::new();
    packed.by_ref().take(ZSTD.len() as u64).read_to_end(&mut head)?;
    let (is_gzip, is_zstd) = (head.starts_with(&GZIP), head == ZSTD);
    let whole = Cursor::new(head).chain(packed);
    Ok(if is_gzip {
        Box::new(Gunzip::new(BufReader::new(whole)))
    } else if is_zstd {
        Box::new(zstd::stream::read::Decoder::new(whole)?)
    } else {
        Box::new(whole)
    })
}

/// Compresses everything that `fill` writes as gzip.
///
/// # Errors
/// Returns the errors of writing to `out`.
pub fn gzip<W: Write>(
    out: W,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<W> {
    let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::new(GZIP_LEVEL));
    fill(&mut encoder)?;
    encoder.finish()
}
