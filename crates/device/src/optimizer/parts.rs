//! Sums over a row in one fixed order: column `d` goes to part `d mod 16`, then the parts are added
//! by halving. So every vector width, and the scalar code, round alike.
#![expect(unsafe_code, reason = "vector instructions")]

use crate::cpu::vector::Vector;
use crate::real::Real;

/// Number of partial sums.
const PARTS: usize = 16;

/// The sum as scalar code keeps it.
pub(super) struct ScalarSum<R>([R; PARTS]);

impl<R: Real> ScalarSum<R> {
    /// Creates a sum of zero.
    pub fn new() -> Self {
        Self([R::ZERO; PARTS])
    }

    /// Adds the value of a column.
    #[inline(always)]
    pub fn add(&mut self, column: usize, value: R) {
        self.0[column % PARTS] += value;
    }

    /// Adds the parts by halving, in the order that the vector code uses too.
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

/// The sum as vector code keeps it: the parts of [`ScalarSum`] in two registers.
pub(super) struct VectorParts<V>([V; 2]);

impl<V: Vector> VectorParts<V> {
    /// # Safety
    /// All functions: the machine has the instruction set of `V`.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        // SAFETY: the caller vouches for the instruction set.
        Self([unsafe { V::splat(0.0) }; 2])
    }

    /// Adds the lanes of the columns from `column` on; lanes past the row's end hold an exact 0.
    ///
    /// # Safety
    /// The machine has the instruction set of `V`.
    #[inline(always)]
    pub unsafe fn add(&mut self, column: usize, lanes: V) {
        let part = &mut self.0[column / V::LANES % (PARTS / V::LANES)];
        // SAFETY: the caller vouches for the instruction set.
        *part = unsafe { part.add(lanes) };
    }

    /// # Safety
    /// The machine has the instruction set of `V`.
    #[inline(always)]
    pub unsafe fn total(self) -> f32 {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { V::sum_of_16(self.0[0], self.0[1]) }
    }
}
