//! The clock one core seems to run at, from a chain of dependent operations of known latency.

use std::hint::black_box;
use std::time::Instant;

const ITERATIONS: u64 = 20_000_000;

/// A multiplication and an exclusive-or, each waiting for the other: 3 + 1 cycles on current cores.
const CYCLES: f64 = 4.0;

/// The best of three windows of some 20 ms. A shared or throttled core shows as a low figure; on
/// cores with another latency it is off by a constant factor and still comparable with itself.
pub fn apparent_ghz() -> f64 {
    (0..3).map(|_| window_ghz()).fold(0.0, f64::max)
}

fn window_ghz() -> f64 {
    let factor = black_box(0x9E37_79B9_7F4A_7C15_u64);
    let start = Instant::now();
    let mut state = black_box(1_u64);
    for _ in 0..ITERATIONS {
        state = (state ^ factor).wrapping_mul(factor);
    }
    black_box(state);
    ITERATIONS as f64 * CYCLES / start.elapsed().as_nanos() as f64
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clock_is_that_of_a_processor() {
        let ghz = super::apparent_ghz();
        assert!((0.05..20.0).contains(&ghz), "{ghz}");
    }
}
