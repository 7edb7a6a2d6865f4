//! The GPU hours of runs, minute by minute or hour by hour, so that the hours of any shorter range
//! of time can be added up.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::api::FleetReader;
use crate::error::Error;
use crate::grouping::SumQuery;
use crate::rollup;
use crate::store::HOUR_S;
use crate::sums::Dimension;
use crate::time::DAY_S;

/// Length in seconds of the longest query whose GPU hours are kept by minute. For longer queries
/// they are kept by hour.
const MINUTES_MAX_S: u64 = 8 * DAY_S;

impl FleetReader {
    /// Computes the GPU hours of some runs over the time of a query, by the name of the run.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn hours_of_runs(
        &self,
        query: &SumQuery,
        runs: BTreeSet<String>,
    ) -> Result<BTreeMap<String, HoursOverTime>, Error> {
        if runs.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut by_run = query.clone();
        let is_short = query.range.end - query.range.start <= MINUTES_MAX_S;
        let step_s = if is_short { 60 } else { HOUR_S };
        by_run.step_s = Some(step_s);
        by_run.by = [Dimension::Run].into();
        by_run.selection.insert(Dimension::Run, runs);
        let mut hours: BTreeMap<String, HoursOverTime> = BTreeMap::new();
        for ((start, key), sums) in rollup::query(self.folder(), self.pools(), &by_run)?.sums {
            let of_run = hours.entry(key.member(Dimension::Run).to_owned()).or_default();
            (of_run.step_s, of_run.range) = (step_s, query.range.clone());
            of_run.parts.push((start, sums.allocated_s / HOUR_S as f64));
        }
        Ok(hours)
    }
}

/// GPU hours of a run in each minute or hour.
#[derive(Default)]
pub struct HoursOverTime {
    /// Length of a part in seconds: a minute or an hour.
    step_s: u64,
    /// The range of time of the query, in seconds since 1970. Hours outside of it do not count.
    range: Range<u64>,
    /// Start of each minute or hour, and the GPU hours in it.
    parts: Vec<(u64, f64)>,
}

impl HoursOverTime {
    /// Adds up the GPU hours within a range. Of a minute or hour that lies partly in the range, a
    /// proportional share counts.
    pub fn within(&self, range: &Range<u64>) -> f64 {
        let part = |(start, hours): &(u64, f64)| {
            let (begin, end) =
                (self.range.start.max(*start), self.range.end.min(start + self.step_s));
            let (from, to) = (range.start.max(begin), range.end.min(end));
            hours * to.saturating_sub(from) as f64 / end.saturating_sub(begin).max(1) as f64
        };
        self.parts.iter().map(part).sum()
    }

    /// Returns the share of all GPU hours that lie within a range.
    pub fn share_within(&self, range: &Range<u64>) -> f64 {
        let all: f64 = self.parts.iter().map(|(_, hours)| hours).sum();
        if all > 0.0 { (self.within(range) / all).min(1.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::HoursOverTime;

    #[test]
    fn hours_of_a_part_of_a_minute_are_divided() {
        let parts = vec![(0, 1.0), (60, 2.0), (120, 4.0)];
        let hours = HoursOverTime { step_s: 60, range: 0..150, parts };
        assert_eq!(hours.within(&(30..120)), 2.5);
        // The last minute had 30 s when the query was made.
        assert_eq!(hours.within(&(0..150)), 7.0);
        assert_eq!(hours.within(&(120..135)), 2.0);
        assert_eq!(hours.share_within(&(120..500)), 4.0 / 7.0);
    }
}
