//! Detects from the first bytes of a file whether it is compressed, an archive, or other content.
//! The readers of data and of traces share this list.
//!
//! File names are ignored, because they are often wrong.

/// Number of bytes that detection needs at most, which is the size of a tar header.
pub const HEAD_BYTES: usize = 512;

/// The compression or archive format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    Gzip,
    Zstd,
    Bzip2,
    Xz,
    Zip,
    Tar,
    /// Any other content, possibly text.
    Plain,
}

/// Byte range of the checksum in a tar header.
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// Signatures of file types, with the names by which error messages describe them.
const SIGNATURES: [(&[u8], &str); 35] = [
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF", "a PDF document"),
    (b"PAR1", "a Parquet file"),
    (b"PARE", "an encrypted Parquet file"),
    (b"ARROW1", "an Arrow or Feather file"),
    (b"\xff\xff\xff\xff", "an Arrow stream"),
    (b"FEA1", "a Feather file"),
    (b"ORC", "an ORC file"),
    (b"Obj\x01", "an Avro file"),
    (b"SEQ\x06", "a Hadoop sequence file"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
    (b"RDX2\n", "an R data file"),
    (b"RDX3\n", "an R data file"),
    (b"MATLAB 5.0 MAT-file", "a MATLAB file"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Excel workbook or another OLE file"),
    (b"\x04\x22\x4d\x18", "lz4 data"),
    (b"\xff\x06\0\0sNaPpY", "Snappy data"),
    (b"\x1f\x9d", "data of Unix compress"),
    (b"\x5d\0\0", "lzma data"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"Rar!", "a RAR archive"),
    (b"\xff\xfe\0\0", "UTF-32 text"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
    (b"<!", "an HTML or XML page"),
    (b"<html", "an HTML page"),
];

/// Detects the container format from the first bytes of a file.
#[must_use]
pub fn detect_format(head: &[u8]) -> FileFormat {
    // RFC 1952 defines two magic bytes and then the compression method, which is always 8.
    if head.starts_with(&[0x1f, 0x8b, 8]) || matches!(head, [0x1f, 0x8b]) {
        FileFormat::Gzip
    } else if is_zstd(head) {
        FileFormat::Zstd
    } else if matches!(head, [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, ..]) {
        // The signature of a block must follow the digit for the block size, so that a text such as
        // `BZhang` is not taken for bzip2.
        FileFormat::Bzip2
    } else if head.starts_with(b"\xfd7zXZ\0") {
        FileFormat::Xz
    } else if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") {
        FileFormat::Zip
    } else if is_tar(head) {
        FileFormat::Tar
    } else {
        FileFormat::Plain
    }
}

/// Describes the content of a file that is not text, such as `a PNG image`; `None` if its
/// signature is unknown.
#[must_use]
pub fn describe_format(head: &[u8]) -> Option<&'static str> {
    match detect_format(head) {
        FileFormat::Gzip => return Some("gzip data"),
        FileFormat::Zstd => return Some("Zstandard data"),
        FileFormat::Bzip2 => return Some("bzip2 data"),
        FileFormat::Xz => return Some("xz data"),
        FileFormat::Zip => return Some("a zip archive"),
        FileFormat::Tar => return Some("a tar archive"),
        FileFormat::Plain => {}
    }
    if head.iter().all(u8::is_ascii_whitespace) {
        return Some(if head.is_empty() { "an empty file" } else { "white space only" });
    }
    if head.iter().all(|byte| *byte == 0) {
        return Some("zero bytes only");
    }
    SIGNATURES.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, name)| *name)
}

/// Detects a Zstandard frame or a skippable frame, as RFC 8878 defines them.
fn is_zstd(head: &[u8]) -> bool {
    head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
        || matches!(head, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// Detects a complete tar header by its checksum, and a truncated one by its signature.
fn is_tar(head: &[u8]) -> bool {
    let Some(header) = head.get(..HEAD_BYTES) else {
        return head.get(257..262) == Some(b"ustar");
    };
    let digits = String::from_utf8_lossy(&header[CHECKSUM]);
    let digits = digits.trim_matches(|c: char| c == '\0' || c.is_whitespace());
    let Ok(stated) = u32::from_str_radix(digits, 8) else { return false };
    // The checksum is computed as if its own bytes were spaces.
    let sum =
        |(at, byte): (usize, &u8)| u32::from(if CHECKSUM.contains(&at) { b' ' } else { *byte });
    header[0] != 0 && header.iter().enumerate().map(sum).sum::<u32>() == stated
}

#[cfg(test)]
mod tests {
    use super::{FileFormat, describe_format, detect_format};

    #[test]
    fn formats_are_detected_by_first_bytes() {
        let check = |head: &[u8], format, description| {
            assert_eq!((detect_format(head), describe_format(head)), (format, description));
        };
        check(b"", FileFormat::Plain, Some("an empty file"));
        check(b" \n", FileFormat::Plain, Some("white space only"));
        check(&[0; 600], FileFormat::Plain, Some("zero bytes only"));
        check(b"\x89PNG\r\n\x1a\n....", FileFormat::Plain, Some("a PNG image"));
        check(b"\x1f\x8b\x08\0", FileFormat::Gzip, Some("gzip data"));
        check(b"\x28\xb5\x2f\xfd\0", FileFormat::Zstd, Some("Zstandard data"));
        check(b"BZh91AY&SY", FileFormat::Bzip2, Some("bzip2 data"));
        check(b"BZhang,1,2", FileFormat::Plain, None);
        check(b"\xfd7zXZ\0\0\x04", FileFormat::Xz, Some("xz data"));
        check(b"PK\x03\x04\x14", FileFormat::Zip, Some("a zip archive"));
        check(b"ORC\n\0\0", FileFormat::Plain, Some("an ORC file"));
        check(b"\xff\xfel\0", FileFormat::Plain, Some("UTF-16 text"));
        check(b"{\"traceEvents\": []}", FileFormat::Plain, None);
    }

    #[test]
    fn tar_header_is_detected_by_its_checksum() {
        let mut bytes = vec![0; super::HEAD_BYTES];
        bytes[..6].copy_from_slice(b"x.json");
        let sum = 8 * 32 + b"x.json".iter().map(|&byte| u32::from(byte)).sum::<u32>();
        bytes[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        assert_eq!(detect_format(&bytes), FileFormat::Tar);
        bytes[3] ^= 1;
        assert_eq!(detect_format(&bytes), FileFormat::Plain);
    }
}
