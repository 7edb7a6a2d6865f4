//! Decompresses gzip streams with several members. Zeros between and after members are skipped,
//! because tapes and block devices add them as padding.

use std::fmt;
use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

const MAGIC: u8 = 0x1f;

/// Reads the decompressed content of all gzip members in a stream.
pub struct Gunzip<R> {
    member: Option<GzDecoder<R>>,
}

/// The error for bytes after the last gzip member that are neither zeros nor another member.
#[derive(Debug)]
pub struct Trailing;

impl fmt::Display for Trailing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected the end of the gzip data, got other bytes")
    }
}

impl std::error::Error for Trailing {}

impl<R: BufRead> Gunzip<R> {
    /// Creates a reader that starts at the first byte of the first gzip member.
    pub fn new(packed: R) -> Self {
        Self { member: Some(GzDecoder::new(packed)) }
    }
}

impl<R: BufRead> Read for Gunzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(member) = &mut self.member else { return Ok(0) };
            let count = member.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            let Some(member) = self.member.take() else { return Ok(0) };
            let mut packed = member.into_inner();
            match skip_zeros(&mut packed)? {
                None => return Ok(0),
                Some(MAGIC) => self.member = Some(GzDecoder::new(packed)),
                Some(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, Trailing)),
            }
        }
    }
}

/// Skips zeros, and returns the next byte without consuming it.
fn skip_zeros(packed: &mut impl BufRead) -> io::Result<Option<u8>> {
    loop {
        let ahead = packed.fill_buf()?;
        if ahead.is_empty() {
            return Ok(None);
        }
        let zeros = ahead.iter().take_while(|byte| **byte == 0).count();
        let next = ahead.get(zeros).copied();
        packed.consume(zeros);
        if next.is_some() {
            return Ok(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::{Gunzip, Trailing};

    fn packed(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    fn unpacked(bytes: &[u8]) -> (String, std::io::Result<usize>) {
        let mut text = Vec::new();
        let result = Gunzip::new(bytes).read_to_end(&mut text);
        (String::from_utf8(text).unwrap(), result)
    }

    #[test]
    fn zeros_between_and_after_members_are_padding() {
        let (one, two) = (packed("one "), packed("two"));
        for padding in [0, 1, 511, 70_000] {
            let zeros = vec![0; padding];
            let bytes = [&one[..], &zeros, &two, &zeros].concat();
            let (text, result) = unpacked(&bytes);
            assert_eq!((text.as_str(), result.unwrap()), ("one two", 7), "{padding}");
        }
    }

    #[test]
    fn trailing_bytes_are_distinguished_from_a_truncated_member() {
        let mut bytes = packed("one");
        bytes.extend_from_slice(b"\0\0rest");
        let (text, result) = unpacked(&bytes);
        assert!(
            result
                .unwrap_err()
                .get_ref()
                .is_some_and(<dyn std::error::Error + Send + Sync>::is::<Trailing>)
        );
        assert_eq!(text, "one");
        let whole = packed("one");
        let error = unpacked(&whole[..whole.len() - 9]).1.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
