//! Sums over a row in one fixed order. Column `d` is added to part `d mod 16`, and the parts are
//! then added by halving. Every vector width and the scalar code therefore round in the same way.
#![expect(unsafe_code, reason = "calls vector instructions")]

use crate::cpu::vector::Vector;
use crate::real::Real;

/// Number of partial sums of a row.
const PARTS: usize = 16;

/// The partial sums of a row in scalar code.
pub(super) struct ScalarSum<R>([R; PARTS]);

impl<R: Real> ScalarSum<R> {
    /// Creates partial sums of zero.
    pub fn new() -> Self {
        Self([R::ZERO; PARTS])
    }

    /// Adds the value of a column to its part.
    #[inline(always)]
    pub fn add(&mut self, column: usize, value: R) {
        self.0[column % PARTS] += value;
    }

    /// Adds the parts by halving, in the same order as the vector code.
    pub fn total(self) -> R {
        let mut parts = self.0;
        let mut half = PARTS / 2;
        while half > 0 {
            for part in 0..half {
                let other = parts[part + half];
                parts[part] += other;
            }
            half /= 2;
        }
        parts[0]
    }
}

/// The partial sums of a row in vector code: the parts of [`ScalarSum`] in two registers.
pub(super) struct VectorParts<V>([V; 2]);

impl<V: Vector> VectorParts<V> {
    /// # Safety
    /// The caller guarantees that the machine has the instruction set of `V`, here and in all
    /// other functions.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        // SAFETY: the caller guarantees the instruction set of `V`.
        Self([unsafe { V::splat(0.0) }; 2])
    }

    /// Adds the lanes of the columns from `column` on. Lanes past the end of the row must hold
    /// exactly 0.
    ///
    /// # Safety
    /// The caller guarantees that the machine has the instruction set of `V`.
    #[inline(always)]
    pub unsafe fn add(&mut self, column: usize, lanes: V) {
        let part = &mut self.0[column / V::LANES % (PARTS / V::LANES)];
        // SAFETY: the caller guarantees the instruction set of `V`.
        *part = unsafe { part.add(lanes) };
    }

    /// # Safety
    /// The caller guarantees that the machine has the instruction set of `V`.
    #[inline(always)]
    pub unsafe fn total(self) -> f32 {
        // SAFETY: the caller guarantees the instruction set of `V`.
        unsafe { V::sum_of_16(self.0[0], self.0[1]) }
    }
}
