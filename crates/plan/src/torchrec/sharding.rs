//! Sharding types and compute kernels of TorchRec, under the names that its plan files use.

use crate::layout::LayoutKind;

/// How TorchRec shards a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShardingType {
    /// Every rank holds the whole table.
    DataParallel,
    TableWise,
    ColumnWise,
    /// Column-wise sharding over the ranks of one host.
    TableColumnWise,
    RowWise,
    /// Row-wise sharding over the ranks of one host.
    TableRowWise,
    /// Columns are split over hosts, and the rows of each part over the ranks of its host.
    GridShard,
}

impl ShardingType {
    /// All types, in the order in which TorchRec's enumerator lists them.
    pub const ALL: [Self; 7] = [
        Self::DataParallel,
        Self::TableWise,
        Self::ColumnWise,
        Self::TableColumnWise,
        Self::RowWise,
        Self::TableRowWise,
        Self::GridShard,
    ];

    /// Returns the name in plan files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DataParallel => "data_parallel",
            Self::TableWise => "table_wise",
            Self::ColumnWise => "column_wise",
            Self::TableColumnWise => "table_column_wise",
            Self::RowWise => "row_wise",
            Self::TableRowWise => "table_row_wise",
            Self::GridShard => "grid_shard",
        }
    }

    /// Returns the layout of this crate that has the same tiles.
    #[must_use]
    pub fn layout(self) -> LayoutKind {
        match self {
            Self::DataParallel => LayoutKind::Replicated,
            Self::TableWise => LayoutKind::Table,
            Self::ColumnWise | Self::TableColumnWise => LayoutKind::Column,
            Self::RowWise => LayoutKind::Row,
            Self::TableRowWise => LayoutKind::TableRow,
            Self::GridShard => LayoutKind::Grid,
        }
    }

    /// Returns the kernel that TorchRec uses for this type, if a table is neither cached nor
    /// quantized.
    #[must_use]
    pub fn kernel(self) -> ComputeKernel {
        match self {
            Self::DataParallel => ComputeKernel::Dense,
            _ => ComputeKernel::Fused,
        }
    }
}

/// The kernel that looks up and updates the rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ComputeKernel {
    /// The optimizer updates the weights after the backward pass, as it updates dense weights.
    Dense,
    /// The backward pass updates the rows.
    Fused,
}

impl ComputeKernel {
    /// Returns the name in plan files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Fused => "fused",
        }
    }
}
