//! Where the tabs and line ends of a text are, 64 bytes at a time.
//!
//! SSE2 where it is the machine's least, a plain loop elsewhere; both give the same bits.

/// Bytes looked at together.
const WIDTH: usize = 64;

/// The positions of all tabs and line ends of a text, in order.
pub(super) struct Separators<'a> {
    text: &'a [u8],
    /// Start of the bytes that `left` is of.
    base: usize,
    /// A bit for each separator not yet given.
    left: u64,
}

impl<'a> Separators<'a> {
    pub(super) fn of(text: &'a [u8]) -> Self {
        Self { text, base: 0, left: mask_at(text, 0) }
    }

    /// The next position; the text's length behind the last.
    #[inline(always)]
    pub(super) fn next(&mut self) -> usize {
        while self.left == 0 {
            self.base += WIDTH;
            if self.base >= self.text.len() {
                // Stays there, however often it is asked.
                self.base = self.text.len();
                return self.text.len();
            }
            self.left = mask_at(self.text, self.base);
        }
        let at = self.base + self.left.trailing_zeros() as usize;
        self.left &= self.left - 1;
        at
    }
}

#[inline(always)]
fn mask_at(text: &[u8], base: usize) -> u64 {
    let rest = text.get(base..).unwrap_or_default();
    if let Some(bytes) = rest.first_chunk() {
        return vector::mask(bytes);
    }
    let mut padded = [0; WIDTH];
    padded[..rest.len()].copy_from_slice(rest);
    vector::mask(&padded)
}

#[cfg(target_feature = "sse2")]
mod vector {
    use safe_arch::{
        bitor_m128i, cmp_eq_mask_i8_m128i, load_unaligned_m128i, move_mask_i8_m128i,
        set_splat_i8_m128i,
    };

    use super::WIDTH;

    #[inline(always)]
    pub fn mask(bytes: &[u8; WIDTH]) -> u64 {
        let (tab, line) = (set_splat_i8_m128i(b'\t' as i8), set_splat_i8_m128i(b'\n' as i8));
        let mut all = 0;
        for (index, part) in bytes.as_chunks::<16>().0.iter().enumerate() {
            let lane = load_unaligned_m128i(part);
            let found =
                bitor_m128i(cmp_eq_mask_i8_m128i(lane, tab), cmp_eq_mask_i8_m128i(lane, line));
            all |= u64::from(move_mask_i8_m128i(found) as u32) << (16 * index);
        }
        all
    }
}

#[cfg(not(target_feature = "sse2"))]
use portable as vector;

#[cfg(any(test, not(target_feature = "sse2")))]
mod portable {
    use super::WIDTH;

    pub fn mask(bytes: &[u8; WIDTH]) -> u64 {
        let is = |byte: u8| u64::from(byte == b'\t' || byte == b'\n');
        bytes.iter().rev().fold(0, |all, &byte| all << 1 | is(byte))
    }
}

#[cfg(test)]
mod tests {
    use super::{Separators, portable, vector};

    #[test]
    fn both_masks_are_the_same() {
        for shift in 0..64u8 {
            let bytes = std::array::from_fn(|at| (at as u8 * 7 + shift) % 14);
            assert_eq!(vector::mask(&bytes), portable::mask(&bytes));
        }
    }

    #[test]
    fn positions_are_those_of_a_plain_search() {
        for length in [0, 1, 63, 64, 65, 128, 200] {
            let text: Vec<u8> = (0..length).map(|at| b"\t0\n12"[at * at % 5]).collect();
            let separator = |&at: &usize| matches!(text[at], b'\t' | b'\n');
            let expected: Vec<usize> = (0..length).filter(separator).collect();
            let mut found = Separators::of(&text);
            let got: Vec<usize> = expected.iter().map(|_| found.next()).collect();
            assert_eq!(got, expected);
            assert_eq!([found.next(), found.next()], [length; 2]);
        }
    }
}
