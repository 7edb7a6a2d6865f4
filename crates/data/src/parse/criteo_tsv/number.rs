//! Up to eight digits at once: a field of text in one 64-bit word to an integer.
//!
//! Says nothing of fields it does not know; those are `field`'s, which reads every form.

const ONES: u64 = 0x0101_0101_0101_0101;
const ZEROS: u64 = ONES * b'0' as u64;
const HIGH_NIBBLES: u64 = ONES * 0xf0;
/// Digits that a field has at most.
pub(super) const DIGITS_MOST: usize = 8;

/// The bytes that a field of each length takes of the eight up to its end.
const FIELD: [u64; 16] = {
    let mut bytes = [0; 16];
    let mut length = 1;
    while length <= DIGITS_MOST {
        bytes[length] = u64::MAX << (64 - 8 * length);
        length += 1;
    }
    bytes
};

/// What the bytes of the field of `length` bytes that ends before `end` have beside `'0'`, the last
/// highest, behind zeros; zeros alone where it has none, anything where more than [`DIGITS_MOST`].
#[inline(always)]
pub(super) fn digits(text: &[u8], end: usize, length: usize) -> u64 {
    let before = text.get(..end).unwrap_or_default();
    let word = match before.last_chunk() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => before.iter().fold(0, |word, &byte| word >> 8 | u64::from(byte) << 56),
    };
    // An index of four bits needs no check.
    (word ^ ZEROS) & FIELD[length & 15]
}

/// Hexadecimal digits as a number; the second is 0 if they are nothing else.
///
/// Pseudo-code: per byte, `letter = bit 6`; its low nibble, and 9 more for a letter, is the value;
/// that must be below 16, and at least 10 exactly for letters; bit 4 is a letter's alone, bit 5 its
/// case, bit 7 nobody's. Then the nibbles are joined in pairs, fours, eights. Adds, shifts and
/// masks alone, so that a compiler does several fields at once.
#[inline(always)]
pub(super) fn hex(digits: u64) -> (u32, u64) {
    let letter = digits >> 6 & ONES;
    let value = (digits & !HIGH_NIBBLES) + letter + (letter << 3);
    let is_large = (value + ONES * 6) ^ (letter << 4);
    let others = (digits & !(letter << 5) & (ONES * 0xb0)) ^ (letter << 4);
    let wrong = (value | is_large) & (ONES * 0x10) | others;
    let pairs = (value << 4 | value >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs << 8 | pairs >> 16) & 0x0000_ffff_0000_ffff;
    ((fours << 16 | fours >> 32) as u32, wrong)
}

/// Decimal digits as a number; the second is 0 if they are nothing else.
#[inline(always)]
pub(super) fn decimal(digits: u64) -> (i32, u64) {
    // A high nibble, or a low one that 6 carries out of.
    let wrong = (digits | ((digits & !HIGH_NIBBLES) + ONES * 6)) & HIGH_NIBBLES;
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    const PAIRS: u64 = 0x0000_00ff_0000_00ff;
    let high = (pairs & PAIRS).wrapping_mul(100 + (1_000_000 << 32));
    let low = (pairs >> 16 & PAIRS).wrapping_mul(1 + (10_000 << 32));
    ((high.wrapping_add(low) >> 32) as i32, wrong)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{DIGITS_MOST, decimal, digits, hex};
    use crate::parse::field;

    /// Both read the digits within a longer text, wherever they stand.
    fn check(text: &[u8]) {
        for (before, after) in [(0, 0), (3, 1), (9, 12)] {
            let padded = [&vec![b'f'; before][..], text, &vec![b'7'; after][..]].concat();
            let end = before + text.len();
            let word = digits(&padded, end, text.len());
            if text.is_empty() || text.len() > DIGITS_MOST {
                assert_eq!(word, 0, "digits of {text:?}");
                continue;
            }
            let (value, wrong) = hex(word);
            let got = (wrong == 0).then_some(i64::from(value));
            let plain = !text.starts_with(b"0x") && !text.starts_with(b"0X");
            let expected = field::parse_hex(text).ok().filter(|_| plain);
            assert_eq!(got, expected, "hex of {text:?}");
            let (value, wrong) = decimal(word);
            let got = (wrong == 0).then_some(f64::from(value));
            let plain = text.iter().all(u8::is_ascii_digit);
            let expected = field::parse_number(text).ok().filter(|_| plain);
            assert_eq!(got, expected, "decimal of {text:?}");
        }
    }

    #[test]
    fn every_byte_at_every_place() {
        for byte in 0..=255 {
            for place in 0..8 {
                let mut text = *b"68Fd1e94";
                text[place] = byte;
                check(&text);
                let mut text = *b"90817263";
                text[place] = byte;
                check(&text);
            }
            check(&[byte]);
            check(&[b'-', byte]);
        }
        for text in [&b""[..], b"-", b"--1", b"-12345678", b"123456789", b"-123456789", b"0x1f"] {
            check(text);
        }
    }

    proptest! {
        #[test]
        fn fields_are_what_the_plain_readers_say(text in "[-+0-9a-fA-Fg ]{0,10}") {
            check(text.as_bytes());
        }
    }
}
