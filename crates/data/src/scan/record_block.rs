//! A block of records on its way from the thread that reads an input to the threads that convert it
//! into rows.

use std::sync::Arc;

use crate::parse::block::Records;
use crate::parse::layout::{FieldLayout, PlacedColumns, WantedColumns};
use crate::scan::limit::ReadProgress;

/// Consecutive whole records of one file, with the positions of the wanted columns in them.
pub(crate) struct RecordBlock {
    pub file: usize,
    pub name: Arc<str>,
    pub layout: Arc<FieldLayout>,
    pub records: Box<dyn Records>,
    /// Read progress at the end of the block.
    pub progress: ReadProgress,
}

impl RecordBlock {
    pub(crate) fn place<'a>(&'a self, wanted: &'a WantedColumns) -> PlacedColumns<'a> {
        PlacedColumns { wanted, layout: &self.layout }
    }
}
