//! The methods that attribute device work to its owner, from the surest to the weakest.

use schema::CellType;
use serde::Serialize;

pub(super) const NONE: u32 = u32::MAX;

/// How the owner of a device row was found. Methods are tried in this order, and the first that
/// applies decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum OwnerMethod {
    /// Its call, found by correlation id, ran inside an operator.
    Correlation,
    /// An operator has its external id.
    ExternalId,
    /// Other work of the same node of a graph has an operator.
    GraphNode,
    /// An annotation surrounds its call or spans it on its stream, but no operator does.
    Annotation,
    /// Its call is known, but no operator or annotation surrounds it.
    Call,
    /// Launched before the recording began, or its call was lost.
    Orphan,
}

impl OwnerMethod {
    /// All methods in the order in which they are tried.
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
    /// Returns whether the owner that this method finds is an operator.
    pub fn is_covered(self) -> bool {
        matches!(self, Self::Correlation | Self::ExternalId | Self::GraphNode)
    }
}
