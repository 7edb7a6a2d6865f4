//! The page's clock: nanoseconds since the first event of any rank, with aligned clocks.
//!
//! Absolute nanoseconds exceed the exact integers of JavaScript; these do not.

use std::collections::BTreeMap;

use analyze::clock::RankClock;
use analyze::collectives::Collectives;
use analyze::{Scope, window};

/// Converts times of ranks to the page's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zero {
    /// Zero of the page's clock, in absolute nanoseconds.
    pub time_ns: i64,
    pub clocks: Vec<RankClock>,
    ahead: BTreeMap<u32, i64>,
}

impl Zero {
    /// Determines the zero from the start of the ranks' windows. Clock offsets are derived from the
    /// ends of collectives.
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

    /// Converts a time of a rank.
    pub fn at(&self, rank: u32, time_ns: i64) -> i64 {
        let ahead = self.ahead.get(&rank).copied().unwrap_or(0);
        time_ns.saturating_sub(ahead).saturating_sub(self.time_ns)
    }
}
