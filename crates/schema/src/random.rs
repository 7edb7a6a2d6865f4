//! A counter-based random generator. A number depends only on the key and the counter, so any rank,
//! thread or chunk can generate its own part of a random tensor without communication.
//!
//! The generator is not suited for cryptography. The mixing function is the 64-bit finalizer of
//! SplitMix64.

/// Mixes 64 bits so that similar inputs give unrelated outputs.
#[must_use]
#[inline]
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A sequence of random numbers that are addressed by a counter. The argument `stream` of
/// [`CounterRng::new`] separates independent uses of one seed.
#[derive(Clone, Copy, Debug)]
pub struct CounterRng {
    key: u64,
}

impl CounterRng {
    /// Creates the generator of `stream` under `seed`.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let key = mix(mix(seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_add(mix(stream)));
        Self { key }
    }

    /// Derives an independent generator. For example, `rng.child(table).child(row)` addresses a row
    /// of a table.
    #[must_use]
    pub fn child(self, stream: u64) -> Self {
        Self { key: mix(self.key.wrapping_add(mix(stream.wrapping_add(0x632b_e59b_d9b4_e019)))) }
    }

    /// Returns the whole state, for kernels that generate the same numbers on another device.
    #[must_use]
    pub fn key(self) -> u64 {
        self.key
    }

    /// Returns 64 uniform bits at position `counter`.
    #[must_use]
    #[inline]
    pub fn bits(self, counter: u64) -> u64 {
        mix(self.key.wrapping_add(counter.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Returns a uniform number in `[0, 1)` with 53 bits.
    #[must_use]
    #[inline]
    pub fn unit(self, counter: u64) -> f64 {
        // An f64 has 53 significant bits, so 11 of the 64 bits are dropped.
        (self.bits(counter) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Returns a uniform integer in `0..bound`; `bound` must not be 0.
    #[must_use]
    #[inline]
    pub fn below(self, counter: u64, bound: u64) -> u64 {
        // A multiplication replaces the slower remainder (Lemire, arXiv:1805.10941).
        ((u128::from(self.bits(counter)) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a standard normal deviate (Box–Muller; uses the positions `2·counter` and `2·counter
    /// + 1`).
    #[must_use]
    pub fn normal(self, counter: u64) -> f64 {
        // `1 - unit` is above 0, so its logarithm is finite.
        let radius = (-2.0 * (1.0 - self.unit(counter.wrapping_mul(2))).ln()).sqrt();
        let angle = std::f64::consts::TAU * self.unit(counter.wrapping_mul(2).wrapping_add(1));
        radius * angle.cos()
    }
}

#[cfg(test)]
mod tests {
    use super::CounterRng;

    #[test]
    fn moments_of_the_uniform_and_the_normal() {
        let rng = CounterRng::new(7, 1);
        let n = 200_000u64;
        let mean: f64 = (0..n).map(|i| rng.unit(i)).sum::<f64>() / n as f64;
        assert!((mean - 0.5).abs() < 3e-3, "mean {mean}");
        let square: f64 = (0..n).map(|i| rng.normal(i).powi(2)).sum::<f64>() / n as f64;
        assert!((square - 1.0).abs() < 2e-2, "variance {square}");
    }

    #[test]
    fn streams_of_one_seed_differ() {
        let (a, b) = (CounterRng::new(7, 1), CounterRng::new(7, 2));
        assert!((0..64).all(|i| a.bits(i) != b.bits(i)));
        assert!((0..64).all(|i| a.child(i).bits(0) != a.child(i + 1).bits(0)));
    }

    #[test]
    fn below_stays_below() {
        let rng = CounterRng::new(1, 1);
        assert!((0..1000).all(|i| rng.below(i, 3) < 3));
    }
}
