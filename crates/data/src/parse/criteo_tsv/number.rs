//! Parses a field of up to eight digits at once, as one 64-bit word.
//!
//! Fields of any other form are reported as such. The module `field` parses every form.

const ONES: u64 = 0x0101_0101_0101_0101;
const ZEROS: u64 = ONES * b'0' as u64;
const HIGH_NIBBLES: u64 = ONES * 0xf0;
/// Largest number of digits that this parser accepts in a field.
pub(super) const DIGITS_MOST: usize = 8;

/// Mask of the bytes that a field of each length occupies in the eight bytes up to its end.
const FIELD: [u64; 16] = {
    let mut bytes = [0; 16];
    let mut length = 1;
    while length <= DIGITS_MOST {
        bytes[length] = u64::MAX << (64 - 8 * length);
        length += 1;
    }
    bytes
};

/// Returns the digits of the field of `length` bytes that ends before `end`, each XORed with `'0'`.
/// The last digit is in the highest byte, unused bytes are zero. The result is meaningless for
/// fields longer than [`DIGITS_MOST`].
#[inline(always)]
pub(super) fn digits(text: &[u8], end: usize, length: usize) -> u64 {
    let before = text.get(..end).unwrap_or_default();
    let word = match before.last_chunk() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => before.iter().fold(0, |word, &byte| word >> 8 | u64::from(byte) << 56),
    };
    // A 4-bit index needs no bounds check.
    (word ^ ZEROS) & FIELD[length & 15]
}

/// Converts hexadecimal digits to a number. The second value is 0 if all characters were digits.
///
/// Pseudo-code per byte: `letter = bit 6`. The value is the low nibble, plus 9 for a letter. It
/// must be below 16, and at least 10 exactly for letters. Bit 4 is allowed for letters only, bit 5
/// is their case, and bit 7 is never set. Then nibbles are joined in pairs, fours and eights. There
/// are only additions, shifts and masks, so that the compiler vectorizes over fields.
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

/// Converts decimal digits to a number. The second value is 0 if all characters were digits.
#[inline(always)]
pub(super) fn decimal(digits: u64) -> (i32, u64) {
    // A byte is not a digit if its high nibble is set or adding 6 to its low nibble overflows.
    let wrong = (digits | ((digits & !HIGH_NIBBLES) + ONES * 6)) & HIGH_NIBBLES;
    // Multiplications join the digits in pairs, then in fours, and then in eights.
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

    /// Places the field within a longer text, because the parsers read the bytes around it.
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
        fn fields_match_the_general_parsers(text in "[-+0-9a-fA-Fg ]{0,10}") {
            check(text.as_bytes());
        }
    }
}
