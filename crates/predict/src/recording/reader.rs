//! Inputs that all readers of one rank share: its rows, their tree, and the waits between them.

use std::collections::BTreeMap;

use analyze::Scope;
use analyze::tree::OperatorTree;
use schema::OpWork;

use super::span::Span;
use super::structure::RankWaits;

/// The inputs that are needed to read one rank's step.
pub(super) struct RankReader<'a> {
    pub scope: &'a Scope<'a>,
    pub tree: &'a OperatorTree,
    pub waits: &'a RankWaits,
    pub size_texts: &'a BTreeMap<(u32, u32), String>,
    pub work: &'a BTreeMap<(u32, u32), OpWork>,
    pub span: Span,
}

impl RankReader<'_> {
    /// Converts an absolute time to nanoseconds since the start of the step.
    pub fn since(&self, time: i64) -> i64 {
        time - self.span.start
    }

    /// Returns the tensor sizes of an operator as text, which is empty if they are unknown.
    pub fn size_text(&self, row: u32) -> &str {
        self.size_texts.get(&(self.scope.trace.rank, row)).map_or("", String::as_str)
    }
}
