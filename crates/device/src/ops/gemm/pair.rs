//! Two bf16 values in a word of 32 bits. The first value is in the low half.

use half::bf16;

/// Returns one value of a word as f32; `place` is 0 for the low half.
#[inline(always)]
pub(super) fn value(word: u32, place: usize) -> f32 {
    f32::from_bits(if place == 0 { word << 16 } else { word & 0xffff_0000 })
}

/// Packs two values into a word, each rounded to the nearest bf16, ties to even.
#[inline(always)]
pub(super) fn word(first: f32, second: f32) -> u32 {
    let bits = |value| u32::from(bf16::from_f32(value).to_bits());
    bits(first) | bits(second) << 16
}
