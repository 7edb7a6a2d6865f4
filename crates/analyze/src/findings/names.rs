//! Selects the rows of a rank by name, with one test per distinct name.

use trace::store::EventKind;

use crate::facts::job::RankFacts;
use crate::facts::named;

impl RankFacts<'_> {
    /// Tests each string of the trace once and returns the results by string index.
    pub fn names(&self, is_meant: impl Fn(&str) -> bool) -> Vec<bool> {
        named::names(self.scope.trace, is_meant)
    }

    /// Returns whether the name of a row is marked in the result of [`RankFacts::names`].
    pub fn is_named(&self, names: &[bool], row: u32) -> bool {
        named::is_named(self.scope.trace, names, row)
    }

    /// Returns the calls whose names satisfy a test, sorted by start.
    pub fn calls_named(&self, is_meant: impl Fn(&str) -> bool) -> Vec<u32> {
        let names = self.names(is_meant);
        self.calls().iter().copied().filter(|row| self.is_named(&names, *row)).collect()
    }

    /// Returns the outermost operators and annotations whose names satisfy a test and that start in
    /// the window, thread by thread, sorted by start.
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

    /// Returns whether any row around a given row has a marked name.
    pub fn is_within(&self, names: &[bool], row: u32) -> bool {
        self.tree().ancestors(row).any(|around| self.is_named(names, around))
    }

    /// Returns whether the window contains device work of the communication class.
    pub fn has_communication(&self) -> bool {
        self.scope.classes.contains(&crate::facts::classify::WorkClass::Communication)
    }
}
