//! The properties of a categorical column that decide how much memory it takes.

/// Name and mean bag length of a categorical column, from which memory estimates are computed.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnShape {
    pub name: String,
    pub ids_per_row: f64,
    pub is_list: bool,
}
