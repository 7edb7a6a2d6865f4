//! Random numbers that are equal in every run of a test.

/// A linear congruential generator. This generator is good enough to vary the inputs of tests.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// Draws a number from 0 up to but not including `bound`, which must be positive.
    pub fn below<T: TryFrom<u64> + TryInto<u64>>(&mut self, bound: T) -> T {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bound: u64 = bound.try_into().ok().unwrap();
        T::try_from((self.0 >> 33) % bound).ok().unwrap()
    }
}
