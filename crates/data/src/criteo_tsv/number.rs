//! Up to eight digits at once: a field of text in one 64-bit word to an integer.
//!
//! Says nothing of fields it does not know; those are `field`'s, which reads every form.

const ONES: u64 = 0x0101_0101_0101_0101;
const ZEROS: u64 = ONES * b'0' as u64;
const HIGH_NIBBLES: u64 = ONES * 0xf0;

/// The eight bytes from `at`, the first lowest; zeros behind the end of the text.
#[inline(always)]
fn load(text: &[u8], at: usize) -> u64 {
    let rest = text.get(at..).unwrap_or_default();
    match rest.first_chunk() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    }
}

/// The field of 1 to 8 bytes from `at`, with zeros put before it.
#[inline(always)]
fn aligned(text: &[u8], at: usize, length: usize) -> u64 {
    let unused = 64 - 8 * length as u32;
    // The first digit is the lowest byte: leading zeros come in below it.
    load(text, at) << unused | ZEROS & !(u64::MAX << unused)
}

/// 1 to 8 hexadecimal digits; `None` for anything else.
///
/// Pseudo-code: per byte, `letter = bit 6`; digits lose 0x30, letters 0x40 and their case; letters
/// gain 9; the result must be below 16, and at least 10 exactly for letters. Then the nibbles are
/// joined in pairs, fours, eights.
#[inline(always)]
pub(super) fn hex(text: &[u8], at: usize, length: usize) -> Option<u32> {
    if length.wrapping_sub(1) >= 8 {
        return None;
    }
    let word = aligned(text, at, length);
    let letter = word >> 6 & ONES;
    let value = ((word & !(letter << 5)) ^ ZEROS ^ (letter * 0x70)) + letter * 9;
    let is_large = (value & !HIGH_NIBBLES) + ONES * 6;
    let wrong = value & HIGH_NIBBLES | (is_large >> 4 & ONES) ^ letter;
    let mut joined = value.swap_bytes();
    joined = (joined | joined >> 4) & 0x00ff_00ff_00ff_00ff;
    joined = (joined | joined >> 8) & 0x0000_ffff_0000_ffff;
    (wrong == 0).then_some((joined | joined >> 16) as u32)
}

/// 1 to 8 decimal digits, perhaps behind a minus; `None` for anything else.
#[inline(always)]
pub(super) fn decimal(text: &[u8], at: usize, length: usize) -> Option<i32> {
    let negative = text.get(at) == Some(&b'-');
    let (at, length) = (at + usize::from(negative), length - usize::from(negative));
    if length.wrapping_sub(1) >= 8 {
        return None;
    }
    let digits = aligned(text, at, length) ^ ZEROS;
    // A high nibble, or a low one that 6 carries out of.
    let wrong = (digits | ((digits & !HIGH_NIBBLES) + ONES * 6)) & HIGH_NIBBLES;
    let pairs = digits * 10 + (digits >> 8);
    const PAIRS: u64 = 0x0000_00ff_0000_00ff;
    let high = (pairs & PAIRS).wrapping_mul(100 + (1_000_000 << 32));
    let low = (pairs >> 16 & PAIRS).wrapping_mul(1 + (10_000 << 32));
    let value = (high.wrapping_add(low) >> 32) as i32;
    (wrong == 0).then_some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{decimal, hex};
    use crate::field;

    /// Both read the field within a longer text, wherever it stands.
    fn check(text: &[u8]) {
        for (before, after) in [(0, 0), (3, 1), (9, 12)] {
            let padded = [&vec![b'f'; before][..], text, &vec![b'7'; after][..]].concat();
            let got = hex(&padded, before, text.len()).map(i64::from);
            let expected = field::hex(text).ok().filter(|_| text.len() <= 8);
            let plain = !text.starts_with(b"0x") && !text.starts_with(b"0X");
            assert_eq!(got, expected.filter(|_| plain), "hex of {text:?}");
            let got = decimal(&padded, before, text.len()).map(f64::from);
            let digits = text.strip_prefix(b"-").unwrap_or(text);
            let plain = (1..=8).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
            let expected = field::number(text).ok().filter(|_| plain);
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
