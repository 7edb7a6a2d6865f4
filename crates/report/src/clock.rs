//! The page's clock: nanoseconds from the first event of any rank, ranks' clocks aligned.
//!
//! Absolute nanoseconds do not fit into the numbers of a browser; these do.

use std::collections::BTreeMap;

use analyze::clock::RankClock;
use analyze::collectives::Collectives;
use analyze::{Scope, window};

/// Where the page's time begins, and how far ranks' clocks run ahead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zero {
    /// Absolute nanoseconds on the common clock.
    pub time_ns: i64,
    /// What is known of each rank's clock.
    pub clocks: Vec<RankClock>,
    ahead: BTreeMap<u32, i64>,
}

impl Zero {
    /// The start of what the ranks recorded, clocks told by the ends of their collectives.
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

    /// A time of a rank as the page counts it.
    pub fn at(&self, rank: u32, time_ns: i64) -> i64 {
        let ahead = self.ahead.get(&rank).copied().unwrap_or(0);
        time_ns.saturating_sub(ahead).saturating_sub(self.time_ns)
    }
}
