//! Lists the methods that attribute device work to its owner, from the surest to the weakest.

use schema::CellType;
use serde::Serialize;

pub(super) const NONE: u32 = u32::MAX;

/// The method by which the owner of a device row was found. Methods are tried in the order of the
/// variants, and the first that applies decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum OwnerMethod {
    /// The launch call, found by correlation id, ran inside an operator.
    Correlation,
    /// An operator has the same external id as the device row.
    ExternalId,
    /// Other work of the same CUDA graph node is owned by an operator.
    GraphNode,
    /// An annotation, but no operator, surrounds the launch call or spans the device row on its
    /// stream.
    Annotation,
    /// The launch call is known, but no operator or annotation surrounds it.
    Call,
    /// The launch call is unknown: it came before the recording began, or its row was lost.
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
    /// Returns whether the owner that this method finds is an operator, and not only an annotation
    /// or a call.
    pub fn is_covered(self) -> bool {
        matches!(self, Self::Correlation | Self::ExternalId | Self::GraphNode)
    }
}
