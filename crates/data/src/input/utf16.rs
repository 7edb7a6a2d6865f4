//! Converts text in UTF-16 to UTF-8 while it is read.

use std::io::{self, Read};

const PIECE: usize = 64 << 10;

/// Byte order of the 16-bit units of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteOrder {
    Little,
    Big,
}

/// Detects UTF-16 and its byte order from the start of a text: by the byte-order mark, or by ASCII
/// characters that alternate with zeros. Returns `None` for any other text.
pub(crate) fn detect_byte_order(head: &[u8]) -> Option<ByteOrder> {
    let is_letter = |byte: u8| (b' '..0x7f).contains(&byte);
    match *head {
        [0xff, 0xfe, 0, 0, ..] => None,
        [0xff, 0xfe, ..] => Some(ByteOrder::Little),
        [0xfe, 0xff, ..] => Some(ByteOrder::Big),
        [a, 0, b, 0, ..] if is_letter(a) && is_letter(b) => Some(ByteOrder::Little),
        [0, a, 0, b, ..] if is_letter(a) && is_letter(b) => Some(ByteOrder::Big),
        _ => None,
    }
}

/// A reader that decodes UTF-16. Invalid units become U+FFFD.
pub(crate) struct Utf16<R> {
    inner: R,
    order: ByteOrder,
    /// Bytes that were read but not decoded, because they are less than a character.
    rest: Vec<u8>,
    text: Vec<u8>,
    /// Bytes of `text` that were already returned.
    used: usize,
}

impl<R: Read> Utf16<R> {
    pub(crate) fn new(inner: R, order: ByteOrder) -> Self {
        Self { inner, order, rest: Vec::new(), text: Vec::new(), used: 0 }
    }

    /// Decodes the next block into `text`, which is empty afterwards only at the end of the input.
    fn decode(&mut self) -> io::Result<()> {
        self.text.clear();
        self.used = 0;
        while self.text.is_empty() {
            let got = self.inner.by_ref().take(PIECE as u64).read_to_end(&mut self.rest)?;
            let is_end = got == 0;
            if is_end && self.rest.is_empty() {
                return Ok(());
            }
            self.decode_rest(is_end);
        }
        Ok(())
    }

    fn decode_rest(&mut self, is_end: bool) {
        let order = self.order;
        let mut units: Vec<u16> = self.rest.chunks_exact(2).map(|unit| order.unit(unit)).collect();
        // A leading surrogate has to wait for the trailing one, which comes with the next bytes.
        if !is_end && units.last().is_some_and(|unit| (0xd800..0xdc00).contains(unit)) {
            units.pop();
        }
        let used = if is_end { self.rest.len() } else { 2 * units.len() };
        self.rest.drain(..used);
        for letter in char::decode_utf16(units) {
            let letter = letter.unwrap_or(char::REPLACEMENT_CHARACTER);
            self.text.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
}

impl ByteOrder {
    fn unit(self, bytes: &[u8]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes([bytes[0], bytes[1]]),
            Self::Big => u16::from_be_bytes([bytes[0], bytes[1]]),
        }
    }
}

impl<R: Read> Read for Utf16<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.used == self.text.len() {
            self.decode()?;
        }
        let count = buffer.len().min(self.text.len() - self.used);
        buffer[..count].copy_from_slice(&self.text[self.used..self.used + count]);
        self.used += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::{ByteOrder, Utf16, detect_byte_order};

    #[test]
    fn both_byte_orders_decode_to_the_same_text() {
        let text = "\u{feff}Straße,\u{1f600},−1\n";
        let little: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
        for (bytes, expected) in [(little, ByteOrder::Little), (big, ByteOrder::Big)] {
            assert_eq!(
                (detect_byte_order(&bytes), detect_byte_order(&bytes[2..])),
                (Some(expected), Some(expected))
            );
            let mut decoded = Vec::new();
            let mut reader = Utf16::new(&bytes[..], expected);
            let mut byte = [0];
            while reader.read(&mut byte).unwrap() > 0 {
                decoded.push(byte[0]);
            }
            assert_eq!(String::from_utf8(decoded).unwrap(), text);
        }
        for other in [&b"label,shop"[..], b"\xff\xfe\0\0", b"\0\0\0\0", b"a\0", b"\x93NUMPY"] {
            assert_eq!(detect_byte_order(other), None, "{other:?}");
        }
    }
}
