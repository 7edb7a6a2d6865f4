//! Finds quotes, brackets and other structural characters in sixteen bytes at a time.
//!
//! SSE2 is used if every machine of the target has it. Other machines use plain loops, which return
//! the same bits.

/// Number of bytes that are classified together.
pub const WIDTH: usize = 16;

/// Marks quotes and backslashes. Bit i of the result stands for byte i.
#[inline(always)]
pub fn quotes(bytes: &[u8; WIDTH]) -> u32 {
    vector::quotes(bytes)
}

/// Marks quotes, backslashes, control characters and non-ASCII bytes. Bit i of the result stands
/// for byte i.
#[inline(always)]
pub fn marks(bytes: &[u8; WIDTH]) -> u32 {
    vector::marks(bytes)
}

/// Whether the first `length` bytes are equal. `length` is at most 32.
#[inline(always)]
pub fn same_start(left: &[u8; 32], right: &[u8; 32], length: u32) -> bool {
    let wanted = ((1u64 << length) - 1) as u32;
    vector::equal(left, right) & wanted == wanted
}

/// Positions of structural characters in 64 bytes, with one bit per byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkBits {
    pub quote: u64,
    pub backslash: u64,
    /// Opening brackets `[` of arrays.
    pub open: u64,
    /// Closing brackets `]` of arrays.
    pub close: u64,
    /// Blanks and the characters of numbers, which are the bytes up to 0x20, and `+` to `:`.
    pub plain: u64,
}

/// Finds the structural characters in 64 bytes.
#[inline(always)]
pub fn places(bytes: &[u8; 64]) -> MarkBits {
    let mut all = MarkBits::default();
    for (index, part) in bytes.as_chunks::<WIDTH>().0.iter().enumerate() {
        let at = index * WIDTH;
        let part = vector::places(part);
        all.quote |= part.quote << at;
        all.backslash |= part.backslash << at;
        all.open |= part.open << at;
        all.close |= part.close << at;
        all.plain |= part.plain << at;
    }
    all
}

/// Computes prefix parities: bit i of the result is the parity of bits 0 to i. The prefix parities
/// of quotes mark the bytes inside strings.
#[inline(always)]
pub fn parity(mut bits: u64) -> u64 {
    for shift in [1, 2, 4, 8, 16, 32] {
        bits ^= bits << shift;
    }
    bits
}

#[cfg(target_feature = "sse2")]
mod vector {
    use safe_arch::{
        bitor_m128i, cmp_eq_mask_i8_m128i, cmp_lt_mask_i8_m128i, load_unaligned_m128i, m128i,
        min_u8_m128i, move_mask_i8_m128i, set_splat_i8_m128i, sub_i8_m128i,
    };

    use super::{MarkBits, WIDTH};

    #[inline(always)]
    fn load(bytes: &[u8; WIDTH]) -> m128i {
        load_unaligned_m128i(bytes)
    }

    #[inline(always)]
    fn bits(lane: m128i) -> u32 {
        move_mask_i8_m128i(lane) as u32
    }

    #[inline(always)]
    fn is(lane: m128i, byte: u8) -> m128i {
        cmp_eq_mask_i8_m128i(lane, set_splat_i8_m128i(byte as i8))
    }

    #[inline(always)]
    fn at_most(lane: m128i, byte: u8) -> m128i {
        cmp_eq_mask_i8_m128i(min_u8_m128i(lane, set_splat_i8_m128i(byte as i8)), lane)
    }

    /// Finds quotes and backslashes. Bit i of the result stands for byte i.
    #[inline(always)]
    pub fn quotes(bytes: &[u8; WIDTH]) -> u32 {
        let lane = load(bytes);
        bits(bitor_m128i(is(lane, b'"'), is(lane, b'\\')))
    }

    /// Finds the bytes that end the plain part of a string: quotes, backslashes, control characters
    /// and non-ASCII bytes.
    #[inline(always)]
    pub fn marks(bytes: &[u8; WIDTH]) -> u32 {
        let lane = load(bytes);
        // Seen as signed bytes, control characters and non-ASCII bytes are less than a blank.
        let odd = cmp_lt_mask_i8_m128i(lane, set_splat_i8_m128i(0x20));
        bits(bitor_m128i(odd, bitor_m128i(is(lane, b'"'), is(lane, b'\\'))))
    }

    /// Compares 32 bytes. Bit i of the result is set if byte i is equal on both sides.
    #[inline(always)]
    pub fn equal(left: &[u8; 32], right: &[u8; 32]) -> u32 {
        let [left, right] = [left, right].map(|bytes| bytes.as_chunks::<WIDTH>().0);
        let half = |i: usize| bits(cmp_eq_mask_i8_m128i(load(&left[i]), load(&right[i])));
        half(0) | half(1) << WIDTH
    }

    /// Finds the structural characters of JSON, and the bytes of numbers and blanks (`plain`).
    #[inline(always)]
    pub fn places(bytes: &[u8; WIDTH]) -> MarkBits {
        let lane = load(bytes);
        let number = at_most(sub_i8_m128i(lane, set_splat_i8_m128i(b'+' as i8)), b':' - b'+');
        let bits = |lane| u64::from(bits(lane));
        MarkBits {
            quote: bits(is(lane, b'"')),
            backslash: bits(is(lane, b'\\')),
            open: bits(is(lane, b'[')),
            close: bits(is(lane, b']')),
            plain: bits(bitor_m128i(number, at_most(lane, b' '))),
        }
    }
}

#[cfg(not(target_feature = "sse2"))]
use portable as vector;

#[cfg(any(test, not(target_feature = "sse2")))]
mod portable {
    use super::{MarkBits, WIDTH};

    fn bits(bytes: &[u8; WIDTH], is: impl Fn(u8) -> bool) -> u32 {
        bytes.iter().enumerate().map(|(at, byte)| u32::from(is(*byte)) << at).sum()
    }

    /// Finds quotes and backslashes. Bit i of the result stands for byte i.
    pub fn quotes(bytes: &[u8; WIDTH]) -> u32 {
        bits(bytes, |byte| matches!(byte, b'"' | b'\\'))
    }

    /// Finds the bytes that end the plain part of a string: quotes, backslashes, control characters
    /// and non-ASCII bytes.
    pub fn marks(bytes: &[u8; WIDTH]) -> u32 {
        bits(bytes, |byte| matches!(byte, b'"' | b'\\' | 0..0x20 | 0x80..))
    }

    /// Compares 32 bytes. Bit i of the result is set if byte i is equal on both sides.
    pub fn equal(left: &[u8; 32], right: &[u8; 32]) -> u32 {
        (0..32).map(|at| u32::from(left[at] == right[at]) << at).sum()
    }

    /// Finds the structural characters of JSON, and the bytes of numbers and blanks (`plain`).
    pub fn places(bytes: &[u8; WIDTH]) -> MarkBits {
        let mask = |is: fn(u8) -> bool| u64::from(bits(bytes, is));
        MarkBits {
            quote: mask(|byte| byte == b'"'),
            backslash: mask(|byte| byte == b'\\'),
            open: mask(|byte| byte == b'['),
            close: mask(|byte| byte == b']'),
            plain: mask(|byte| matches!(byte, 0..=b' ' | b'+'..=b':')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{portable, vector};

    #[test]
    fn vector_version_matches_the_portable_one() {
        for start in 0..=u8::MAX {
            let bytes: [u8; 16] = std::array::from_fn(|i| start.wrapping_add(i as u8 * 7));
            assert_eq!(vector::quotes(&bytes), portable::quotes(&bytes));
            assert_eq!(vector::marks(&bytes), portable::marks(&bytes));
            assert_eq!(vector::places(&bytes), portable::places(&bytes));
            let left: [u8; 32] = std::array::from_fn(|i| bytes[i % 16]);
            let right: [u8; 32] = std::array::from_fn(|i| bytes[i % 13]);
            assert_eq!(vector::equal(&left, &right), portable::equal(&left, &right));
        }
    }

    #[test]
    fn parity_counts_from_the_first_bit() {
        assert_eq!(super::parity(0b0010_0100), 0b0001_1100);
        assert_eq!(super::parity(1), u64::MAX);
    }
}
