//! What the memory of a categorical column depends on.

/// A categorical column.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnShape {
    pub name: String,
    /// Mean number of ids of a row.
    pub ids_per_row: f64,
    /// Whether rows have lists of ids.
    pub is_list: bool,
}
