//! How owners are found.

use serde::Serialize;

pub(super) const NONE: u32 = u32::MAX;

/// How the owner of a row of device work was found; the first that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnerMethod {
    /// Its call, by correlation id, ran inside an operator.
    Correlation,
    /// An operator has its external id.
    ExternalId,
    /// Other work of the same node of a graph has an operator.
    GraphNode,
    /// No operator, but an annotation: around its call, or spanning it on its stream.
    Annotation,
    /// Its call is known, and ran inside nothing.
    Call,
    /// Nothing is known: launched before the recording, or its call was lost.
    Orphan,
}

impl OwnerMethod {
    /// All, in the order they are tried.
    pub const ALL: [Self; 6] = [
        Self::Correlation,
        Self::ExternalId,
        Self::GraphNode,
        Self::Annotation,
        Self::Call,
        Self::Orphan,
    ];
}

impl OwnerMethod {
    /// Whether it leads to an operator.
    pub fn is_covered(self) -> bool {
        matches!(self, Self::Correlation | Self::ExternalId | Self::GraphNode)
    }
}
