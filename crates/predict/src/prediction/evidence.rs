//! Computes which shares of a predicted step are based on measurements, models and unknown costs.

use crate::cost::{RankCosts, Source};

/// Shares of a rank's actions and works by the source of their cost, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct EvidenceShares {
    pub measured_pct: f64,
    pub modeled_pct: f64,
    pub unknown_pct: f64,
}

impl EvidenceShares {
    /// Counts the actions and works of a rank by source. Actions and works without a cost are not
    /// counted.
    pub fn from_costs(costs: &RankCosts) -> Self {
        let all = costs.actions.iter().flatten().chain(&costs.works);
        let mut counts = [0u32; 3];
        for cost in all {
            match cost.source {
                Some(Source::Measured) => counts[0] += 1,
                Some(Source::Modeled) => counts[1] += 1,
                Some(Source::Unknown) => counts[2] += 1,
                None => {}
            }
        }
        let total = counts.iter().sum::<u32>().max(1);
        let [measured_pct, modeled_pct, unknown_pct] =
            counts.map(|count| 100.0 * f64::from(count) / f64::from(total));
        Self { measured_pct, modeled_pct, unknown_pct }
    }
}
