//! The type of a file by its first bytes: compressed, an archive, or something else.
//!
//! Ignores file names, which are often wrong.

/// Bytes that decide: a tar header.
pub const HEAD: usize = 512;

/// What first bytes announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileForm {
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
    /// tar.
    Tar,
    /// Anything else, a text at best.
    Plain,
}

/// Where the checksum of a tar header stands.
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// First bytes of formats that are no traces.
const KNOWN: [(&[u8], &str); 20] = [
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a zip archive"),
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\0", "xz data"),
    (b"\x04\x22\x4d\x18", "lz4 data"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
    (b"<!", "an HTML or XML page"),
    (b"<html", "an HTML page"),
];

/// What the first bytes announce.
pub fn recognise(head: &[u8]) -> FileForm {
    // RFC 1952; its only method is 8.
    if head.starts_with(&[0x1f, 0x8b, 8]) || matches!(head, [0x1f, 0x8b]) {
        FileForm::Gzip
    } else if is_zstd(head) {
        FileForm::Zstd
    } else if is_tar(head) {
        FileForm::Tar
    } else {
        FileForm::Plain
    }
}

/// The name of what a file is that is neither compressed nor JSON, if we know it.
pub fn name(head: &[u8]) -> Option<&'static str> {
    match recognise(head) {
        FileForm::Gzip => return Some("gzip data"),
        FileForm::Zstd => return Some("Zstandard data"),
        FileForm::Tar => return Some("a tar archive"),
        FileForm::Plain => {}
    }
    if head.iter().all(u8::is_ascii_whitespace) {
        return Some(if head.is_empty() { "an empty file" } else { "white space only" });
    }
    if head.iter().all(|byte| *byte == 0) {
        return Some("zero bytes only");
    }
    let known = KNOWN.iter().find(|(magic, _)| head.starts_with(magic));
    known.map(|(_, name)| *name)
}

/// RFC 8878: a frame, or one that is to be skipped.
fn is_zstd(head: &[u8]) -> bool {
    head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
        || matches!(head, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// A header of any tar is right by its own checksum; a cut one is known by its name.
fn is_tar(head: &[u8]) -> bool {
    let Some(header) = head.get(..HEAD) else {
        return head.get(257..262) == Some(b"ustar");
    };
    let digits = String::from_utf8_lossy(&header[CHECKSUM]);
    let digits = digits.trim_matches(|c: char| c == '\0' || c.is_whitespace());
    let Ok(stated) = u32::from_str_radix(digits, 8) else { return false };
    let sum =
        |(at, byte): (usize, &u8)| u32::from(if CHECKSUM.contains(&at) { b' ' } else { *byte });
    header[0] != 0 && header.iter().enumerate().map(sum).sum::<u32>() == stated
}

#[cfg(test)]
mod tests {
    use super::{FileForm, name, recognise};

    #[test]
    fn first_bytes_tell() {
        let check =
            |head: &[u8], form, called| assert_eq!((recognise(head), name(head)), (form, called));
        check(b"", FileForm::Plain, Some("an empty file"));
        check(b" \n", FileForm::Plain, Some("white space only"));
        check(&[0; 600], FileForm::Plain, Some("zero bytes only"));
        check(b"\x89PNG\r\n\x1a\n....", FileForm::Plain, Some("a PNG image"));
        check(b"\x1f\x8b\x08\0", FileForm::Gzip, Some("gzip data"));
        check(b"\x28\xb5\x2f\xfd\0", FileForm::Zstd, Some("Zstandard data"));
        check(b"{\"traceEvents\": []}", FileForm::Plain, None);
    }

    #[test]
    fn a_tar_header_is_known_by_its_checksum() {
        let mut header = tar::Header::new_old();
        header.set_path("x.json").unwrap();
        header.set_size(3);
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        assert_eq!(recognise(&bytes), FileForm::Tar);
        bytes[3] ^= 1;
        assert_eq!(recognise(&bytes), FileForm::Plain);
    }
}
