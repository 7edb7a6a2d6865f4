//! Stochastic rounding of f32 to the 16-bit formats of tables, and its random bits.
//!
//! A value between two neighboring numbers of a format is rounded up with a probability
//! proportional to its distance from the lower number. The mean over many updates is then exact,
//! whereas rounding to nearest would lose every update smaller than half a unit. Values beyond
//! the largest finite number become that number, so that one overflow does not spoil a table.
//! Infinities and NaNs do not change.
//!
//! The random bits depend only on (seed, step, table, row, column). Threads, vectors and the
//! division of a table into tiles therefore do not change a byte. This module does not depend on
//! the optimizers.

use half::{bf16, f16};
use schema::random::CounterRng;

const SIGN: u32 = 0x8000_0000;
pub(crate) const INFINITY: u32 = 0x7f80_0000;
pub(crate) const NAN: u32 = 0x7fc0_0000;

/// The smallest normal number of f16, `2⁻¹⁴`, as bits of an f32.
pub(crate) const F16_NORMAL: u32 = 0x3880_0000;
/// The largest finite number of f16, 65504, as bits of an f32.
pub(crate) const F16_MAX: u32 = 0x477f_e000;
/// The bits of an f32 mantissa that f16 does not have.
pub(crate) const F16_DROPPED: u32 = 0x1fff;
/// Number of the smallest subnormal f16, `2⁻²⁴`, in 1. Subnormal f16 are multiples of it.
pub(crate) const F16_UNITS: f32 = 16_777_216.0;
/// The largest finite number of bf16, as bits of an f32.
pub(crate) const BF16_MAX: u32 = 0x7f7f_0000;
/// The bits of an f32 mantissa that bf16 does not have.
pub(crate) const BF16_DROPPED: u32 = 0xffff;

/// The multipliers of the hash function [`noise`].
pub(crate) const MULTIPLIERS: [u32; 3] = [0x9e37_79b9, 0x7feb_352d, 0x846c_a68b];

/// The random bits of one row of a table, whose columns are counted over the whole table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowNoise {
    pub key: u64,
    /// Number of the tile's first column in the whole table.
    pub column: u32,
}

impl RowNoise {
    /// Derives the bits of `row`, which is counted over the whole table. `table` is the generator
    /// of (seed, step, table).
    #[inline(always)]
    pub fn new(table: CounterRng, row: u64, column: u32) -> Self {
        Self { key: table.bits(row), column }
    }

    /// Returns 32 random bits for column `column` of the tile.
    #[inline(always)]
    pub fn at(self, column: usize) -> u32 {
        noise(self.key, self.column.wrapping_add(column as u32))
    }
}

/// Returns 32 random bits for a column of the row with this key, by a multiplicative hash of
/// both.
#[inline(always)]
fn noise(key: u64, column: u32) -> u32 {
    let mut x = (key as u32).wrapping_add(column.wrapping_mul(MULTIPLIERS[0]));
    x = (x ^ (x >> 16)).wrapping_mul(MULTIPLIERS[1]).wrapping_add((key >> 32) as u32);
    x = (x ^ (x >> 15)).wrapping_mul(MULTIPLIERS[2]);
    x ^ (x >> 16)
}

/// Rounds `value` to f16, up or down depending on the random bits `noise`.
#[inline]
pub fn to_f16(value: f32, noise: u32) -> f16 {
    let magnitude = value.to_bits() & !SIGN;
    let rounded = if magnitude >= INFINITY {
        if magnitude > INFINITY { NAN } else { INFINITY }
    } else if magnitude < F16_NORMAL {
        // In units of `2⁻²⁴`, the value is below 2¹⁰, so 14 bits of its fraction are exact in
        // f32.
        let fraction = (noise >> 18) as f32 * (1.0 / 16_384.0);
        let units = (f32::from_bits(magnitude) * F16_UNITS + fraction) as i32;
        (units as f32 * (1.0 / F16_UNITS)).to_bits()
    } else {
        ((magnitude + (noise >> 19)) & !F16_DROPPED).min(F16_MAX)
    };
    f16::from_f32(f32::from_bits(rounded | value.to_bits() & SIGN))
}

/// Rounds `value` to bf16, up or down depending on the random bits `noise`.
#[inline]
pub fn to_bf16(value: f32, noise: u32) -> bf16 {
    let magnitude = value.to_bits() & !SIGN;
    let rounded = if magnitude >= INFINITY {
        if magnitude > INFINITY { NAN } else { INFINITY }
    } else {
        ((magnitude + (noise >> 16)) & !BF16_DROPPED).min(BF16_MAX)
    };
    bf16::from_bits(((rounded | value.to_bits() & SIGN) >> 16) as u16)
}

#[cfg(test)]
mod tests;
