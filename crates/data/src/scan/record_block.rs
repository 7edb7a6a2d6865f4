//! A run of records on its way from the thread that reads an input to those that convert records
//! into rows.

use std::sync::Arc;

use crate::parse::block::Records;
use crate::parse::layout::{FieldLayout, PlacedColumns, WantedColumns};
use crate::scan::limit::ReadProgress;

/// A run of whole records of one file.
pub(crate) struct RecordBlock {
    /// Index of the input.
    pub file: usize,
    pub name: Arc<str>,
    pub layout: Arc<FieldLayout>,
    pub records: Box<dyn Records>,
    /// How far reading has come at its end.
    pub progress: ReadProgress,
}

impl RecordBlock {
    pub(crate) fn place<'a>(&'a self, wanted: &'a WantedColumns) -> PlacedColumns<'a> {
        PlacedColumns { wanted, layout: &self.layout }
    }
}
