//! Measures the apparent clock of the cores by a chain of dependent operations of known latency.

use std::hint::black_box;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Instant;

use crate::cpu::Pool;

/// Cycles of one link: a multiplication and an exclusive-or that depend on each other take 3 + 1
/// cycles on current cores.
const CYCLES: f64 = 4.0;
/// Number of links in one chain, which takes about 0.2 ms.
const LINKS: u64 = 200_000;
/// Number of measured chains per thread. The same number of chains runs before them without being
/// measured, because a core that has lowered its clock for wide registers keeps the low clock for
/// about 0.7 ms after the last wide instruction.
const CHAINS: usize = 3;

/// Returns the median clock over a few short chains on every thread of `pool`.
///
/// The figure is low for a throttled core and for a core that a hypervisor shares with other
/// machines. On cores with another latency it is wrong by a constant factor, but still comparable
/// over time.
#[must_use]
pub fn apparent_ghz(pool: &Pool) -> f64 {
    let clocks = Mutex::new(Vec::new());
    pool.run(CHAINS * pool.threads(), |_| _ = chain_ghz());
    pool.run(CHAINS * pool.threads(), |_| {
        let clock = chain_ghz();
        clocks.lock().unwrap_or_else(PoisonError::into_inner).push(clock);
    });
    let mut clocks = clocks.into_inner().unwrap_or_else(PoisonError::into_inner);
    clocks.sort_by(f64::total_cmp);
    clocks[clocks.len() / 2]
}

fn chain_ghz() -> f64 {
    let factor = black_box(0x9E37_79B9_7F4A_7C15_u64);
    let start = Instant::now();
    let mut state = black_box(1_u64);
    for _ in 0..LINKS {
        state = (state ^ factor).wrapping_mul(factor);
    }
    black_box(state);
    LINKS as f64 * CYCLES / start.elapsed().as_nanos().max(1) as f64
}
