//! Collects the rows that support a finding, grouped by name, with the longest row of each name and
//! its surroundings.

use std::collections::BTreeMap;

use trace::store::{EventKind, StringId, TrackId};

use super::finding::{Evidence, RowEdit};
use crate::facts::interval::Interval;
use crate::facts::job::RankFacts;
use crate::graph::edit::Action;

/// Maximum number of names in the evidence of a finding.
const SHOWN: usize = 5;

impl RankFacts<'_> {
    /// Creates an edit of rows of this rank.
    pub fn edit(&self, rows: Vec<u32>, action: Action) -> RowEdit {
        RowEdit::new(self.rank(), rows, action)
    }

    /// Creates an edit of rows of this rank and of thread time outside operators and calls.
    pub fn edit_with_spans(
        &self,
        rows: Vec<u32>,
        spans: Vec<(TrackId, Interval)>,
        action: Action,
    ) -> RowEdit {
        RowEdit { spans, ..self.edit(rows, action) }
    }

    /// Returns the names that take the most time, each with its longest row.
    pub fn collect_evidence(&self, rows: impl IntoIterator<Item = u32>) -> Vec<Evidence> {
        self.collect_timed_evidence(rows.into_iter().map(|row| (row, self.duration(row))))
    }

    /// Returns evidence like [`Self::collect_evidence`], with a given time for each row instead of
    /// its duration.
    pub fn collect_timed_evidence(
        &self,
        rows: impl IntoIterator<Item = (u32, i64)>,
    ) -> Vec<Evidence> {
        // For each name, the number of rows, their total time, the longest row and its time.
        let mut named: BTreeMap<StringId, (u64, i64, u32, i64)> = BTreeMap::new();
        for (row, ns) in rows {
            let name = self.scope.trace.slices.name[row as usize];
            let one = named.entry(name).or_insert((0, 0, row, i64::MIN));
            let longest = if ns > one.3 { (row, ns) } else { (one.2, one.3) };
            *one = (one.0 + 1, one.1 + ns, longest.0, longest.1);
        }
        let mut named: Vec<_> = named.into_values().collect();
        named.sort_by_key(|(_, total, row, _)| (std::cmp::Reverse(*total), *row));
        named.truncate(SHOWN);
        named
            .into_iter()
            .map(|(count, total, row, _)| self.build_evidence(row, count, total))
            .collect()
    }

    fn build_evidence(&self, row: u32, count: u64, total_ns: i64) -> Evidence {
        let trace = self.scope.trace;
        let host =
            if trace.kind(row).is_device_work() { self.scope.links().call(row) } else { Some(row) };
        let around = host.map_or_else(Vec::new, |host| self.tree().ancestors(host).collect());
        let mut within: Vec<String> =
            around.iter().map(|around| trace.name(*around).to_owned()).collect();
        within.reverse();
        Evidence {
            rank: self.rank(),
            row: Some(row),
            name: trace.name(row).to_owned(),
            within,
            source: host.and_then(|host| self.source(host)),
            start_ns: Some(self.start(row) - self.scope.window.start),
            count,
            total_ns,
        }
    }

    /// Returns the line of Python around a host row, preferably a line of the user's own code.
    fn source(&self, row: u32) -> Option<String> {
        let frames = self.scope.frames();
        let strings = &self.scope.trace.strings;
        let track = self.scope.trace.slices.track[row as usize];
        let innermost = frames.at(track, self.start(row))?;
        let is_line = |name: &str| name.contains(".py(");
        let is_users = |name: &&str| {
            is_line(name) && !name.contains("torch/") && !name.contains("site-packages/")
        };
        let names = || frames.stack(innermost).map(|frame| strings.get(frame.name));
        names().find(is_users).or_else(|| names().find(|name| is_line(name))).map(str::to_owned)
    }

    /// Returns the innermost operator or annotation around a host row.
    pub fn range_around(&self, row: u32) -> Option<u32> {
        let trace = self.scope.trace;
        let is_range =
            |row: &u32| matches!(trace.kind(*row), EventKind::Operator | EventKind::Annotation);
        self.tree().ancestors(row).find(is_range)
    }
}
