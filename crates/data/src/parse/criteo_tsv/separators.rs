//! Finds the tabs and line ends of a text, 64 bytes at a time.
//!
//! The search uses SSE2 if the target always has it, and a plain loop otherwise. SSE2 and the loop
//! give the same bits.

/// Number of bytes that one mask covers.
const WIDTH: usize = 64;

/// Number of tabs whose positions are stored. A line with more tabs has too many fields anyway.
pub(super) const TABS_MOST: usize = 64;

/// Iterates over the lines of a text with the positions of their tabs.
pub(super) struct Separators<'a> {
    text: &'a [u8],
    /// Position in the text of the first byte that the masks cover.
    base: usize,
    /// Bits of the separators that were not returned yet.
    left: Masks,
}

/// Masks with one bit for each of 64 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Masks {
    tabs: u64,
    line_ends: u64,
}

impl<'a> Separators<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { text, base: 0, left: masks_at(text, 0) }
    }

    /// Writes the positions of the next line's tabs and returns their number and the end of the
    /// line. The last line may end with the text.
    #[inline(always)]
    pub(super) fn next_line(&mut self, tabs: &mut [usize; TABS_MOST]) -> (usize, usize) {
        let mut tab_count = 0;
        loop {
            let Masks { line_ends, .. } = self.left;
            // This mask selects the bits below the first line end, or all bits if there is none.
            let before = line_ends.wrapping_sub(1) & !line_ends;
            let mut left = self.left.tabs & before;
            while left != 0 {
                tabs[tab_count % TABS_MOST] = self.base + left.trailing_zeros() as usize;
                tab_count += 1;
                left &= left - 1;
            }
            if line_ends != 0 {
                let end = self.base + line_ends.trailing_zeros() as usize;
                self.left.tabs &= !before;
                self.left.line_ends &= line_ends - 1;
                return (tab_count, end);
            }
            self.base += WIDTH;
            if self.base >= self.text.len() {
                // Further calls keep returning the end.
                (self.base, self.left) = (self.text.len(), Masks::default());
                return (tab_count, self.text.len());
            }
            self.left = masks_at(self.text, self.base);
        }
    }
}

#[inline(always)]
fn masks_at(text: &[u8], base: usize) -> Masks {
    let rest = text.get(base..).unwrap_or_default();
    if let Some(bytes) = rest.first_chunk() {
        return vector::masks(bytes);
    }
    let mut padded = [0; WIDTH];
    padded[..rest.len()].copy_from_slice(rest);
    vector::masks(&padded)
}

#[cfg(target_feature = "sse2")]
mod vector {
    use safe_arch::{
        cmp_eq_mask_i8_m128i, load_unaligned_m128i, m128i, move_mask_i8_m128i, set_splat_i8_m128i,
    };

    use super::{Masks, WIDTH};

    /// Compares 16 bytes at a time with SSE2.
    #[inline(always)]
    pub fn masks(bytes: &[u8; WIDTH]) -> Masks {
        let (tab, line_end) = (set_splat_i8_m128i(b'\t' as i8), set_splat_i8_m128i(b'\n' as i8));
        let mut all = Masks::default();
        for (index, part) in bytes.as_chunks::<16>().0.iter().enumerate() {
            let lane = load_unaligned_m128i(part);
            let found = |byte: m128i| {
                u64::from(move_mask_i8_m128i(cmp_eq_mask_i8_m128i(lane, byte)) as u32)
            };
            all.tabs |= found(tab) << (16 * index);
            all.line_ends |= found(line_end) << (16 * index);
        }
        all
    }
}

#[cfg(not(target_feature = "sse2"))]
use portable as vector;

#[cfg(any(test, not(target_feature = "sse2")))]
mod portable {
    use super::{Masks, WIDTH};

    /// Compares one byte at a time, on any target.
    pub fn masks(bytes: &[u8; WIDTH]) -> Masks {
        let mask = |wanted: u8| {
            bytes.iter().rev().fold(0, |all, &byte| all << 1 | u64::from(byte == wanted))
        };
        Masks { tabs: mask(b'\t'), line_ends: mask(b'\n') }
    }
}

#[cfg(test)]
mod tests {
    use super::{Separators, TABS_MOST, portable, vector};

    #[test]
    fn simd_and_portable_masks_are_equal() {
        for shift in 0..64u8 {
            let bytes = std::array::from_fn(|at| (at as u8 * 7 + shift) % 14);
            assert_eq!(vector::masks(&bytes), portable::masks(&bytes));
        }
    }

    #[test]
    fn positions_are_those_of_a_plain_search() {
        for length in [0, 1, 63, 64, 65, 128, 200, 1000] {
            for pattern in [&b"\t0\n12"[..], b"\t0\t12345", b"0\t\t\t\n", b"0123456"] {
                let text: Vec<u8> =
                    (0..length).map(|at| pattern[at * at % pattern.len()]).collect();
                let mut found = Separators::new(&text);
                let mut start = 0;
                for line in text.split_inclusive(|&byte| byte == b'\n') {
                    let expected: Vec<usize> =
                        (start..start + line.len()).filter(|&at| text[at] == b'\t').collect();
                    let end = start + line.len() - usize::from(line.ends_with(b"\n"));
                    let mut tabs = [0; TABS_MOST];
                    assert_eq!(found.next_line(&mut tabs), (expected.len(), end));
                    if expected.len() <= TABS_MOST {
                        assert_eq!(tabs[..expected.len()], expected);
                    }
                    start += line.len();
                }
                for _ in 0..2 {
                    assert_eq!(found.next_line(&mut [0; TABS_MOST]), (0, length));
                }
            }
        }
    }
}
