//! The page's clock, which counts nanoseconds from the first event of any rank after the ranks'
//! clocks were aligned.
//!
//! Absolute nanoseconds exceed the integers that JavaScript represents exactly. Times on the page's
//! clock do not.

use std::collections::BTreeMap;

use analyze::clock::RankClock;
use analyze::collectives::Collectives;
use analyze::{Scope, window};

/// Converts times on the clocks of ranks to the page's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zero {
    /// Zero of the page's clock, in absolute nanoseconds.
    pub time_ns: i64,
    pub clocks: Vec<RankClock>,
    ahead: BTreeMap<u32, i64>,
}

impl Zero {
    /// Sets the zero of the page's clock to the earliest start of a rank's window. The offsets
    /// between the ranks' clocks are derived from the ends of collectives.
    pub fn new(scopes: &[Scope<'_>], matched: &Collectives) -> Self {
        let clocks = matched.compare_clocks(scopes);
        let ahead: BTreeMap<u32, i64> =
            clocks.iter().map(|clock| (clock.rank, clock.correction_ns)).collect();
        let first = |scope: &Scope<'_>| {
            let recorded = window::recorded(scope.trace).map_or(i64::MAX, |(start, _)| start);
            let start = recorded.min(scope.window.start);
            start.saturating_sub(ahead.get(&scope.trace.rank).copied().unwrap_or(0))
        };
        let time_ns = scopes.iter().map(first).min().unwrap_or_default();
        Self { time_ns, clocks, ahead }
    }

    /// Converts a time on the clock of a rank to the page's clock.
    pub fn at(&self, rank: u32, time_ns: i64) -> i64 {
        let ahead = self.ahead.get(&rank).copied().unwrap_or(0);
        time_ns.saturating_sub(ahead).saturating_sub(self.time_ns)
    }
}
