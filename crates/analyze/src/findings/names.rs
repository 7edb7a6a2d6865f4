//! Rows grouped by name; each name is tested once.

use trace::store::EventKind;

use crate::facts::job::RankFacts;
use crate::facts::named;

impl RankFacts<'_> {
    /// Tests each name of the trace once; returns one result per string.
    pub fn names(&self, is_meant: impl Fn(&str) -> bool) -> Vec<bool> {
        named::names(self.scope.trace, is_meant)
    }

    /// Whether the name of a row is marked in [`RankFacts::names`].
    pub fn is_named(&self, names: &[bool], row: u32) -> bool {
        named::is_named(self.scope.trace, names, row)
    }

    /// The calls of some names, by start.
    pub fn calls_named(&self, is_meant: impl Fn(&str) -> bool) -> Vec<u32> {
        let names = self.names(is_meant);
        self.calls().iter().copied().filter(|row| self.is_named(&names, *row)).collect()
    }

    /// The outermost operators and annotations of some names that start in the window, thread by
    /// thread, by start.
    pub fn outermost_named(&self, is_meant: impl Fn(&str) -> bool) -> Vec<u32> {
        let names = self.names(is_meant);
        let trace = self.scope.trace;
        let mut found = Vec::new();
        let mut behind = 0;
        for (node, row) in self.tree().nodes.iter().enumerate() {
            let is_range = matches!(trace.kind(*row), EventKind::Operator | EventKind::Annotation);
            let is_one = is_range && self.is_named(&names, *row) && self.scope.starts_inside(*row);
            if is_one && node >= behind {
                behind = self.tree().range(*row).end as usize;
                found.push(*row);
            }
        }
        found
    }

    /// Whether anything around a row has one of some names.
    pub fn is_within(&self, names: &[bool], row: u32) -> bool {
        self.tree().ancestors(row).any(|around| self.is_named(names, around))
    }

    /// Whether device work of some class is in the window.
    pub fn has_communication(&self) -> bool {
        self.scope.classes.contains(&crate::facts::classify::WorkClass::Communication)
    }
}
