//! The columns of a result table: their names with units, their types, and whether values may be
//! missing.
//!
//! Columns are derived from the struct of a row, so they are known even if a table has no rows. The
//! file `setup/table_output.rs` writes tables as text, JSON and Parquet.

use std::collections::BTreeMap;

pub use table_derive::{CellType, TableRow};

/// Type of the values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// An integer of up to 64 bits with a sign, or of up to 32 bits without one.
    Integer,
    /// An integer of 64 bits without a sign.
    Unsigned,
    Float,
    Boolean,
    /// A string, or the name of an enum's variant.
    Text,
    /// A list or an object. Only JSON output contains it; other formats omit the column.
    Nested,
}

/// Unit of the numbers in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnUnit {
    Nanoseconds,
    Percent,
    Bytes,
}

/// A column of a result table. The name of a numeric column ends with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    pub value_type: ColumnType,
    /// Whether a value may be missing. Text and JSON show a non-finite float as a missing value,
    /// even if this is false.
    pub is_nullable: bool,
}

impl Column {
    /// Creates a column for values of the Rust type `T`.
    #[must_use]
    pub fn new<T: CellType>(name: &'static str) -> Self {
        Self { name, value_type: T::TYPE, is_nullable: T::IS_NULLABLE }
    }

    /// Returns the unit with which the name ends, as in `busy_ns`. The suffix `_max` may follow the
    /// unit.
    #[must_use]
    pub fn unit(&self) -> Option<ColumnUnit> {
        let name = self.name.strip_suffix("_max").unwrap_or(self.name);
        match name.rsplit('_').next() {
            _ if !self.is_number() => None,
            Some("ns") => Some(ColumnUnit::Nanoseconds),
            Some("pct") => Some(ColumnUnit::Percent),
            Some("bytes") => Some(ColumnUnit::Bytes),
            _ => None,
        }
    }

    /// Whether the values are integers or floats.
    #[must_use]
    pub fn is_number(&self) -> bool {
        matches!(self.value_type, ColumnType::Integer | ColumnType::Unsigned | ColumnType::Float)
    }
}

/// A row of a result table. `#[derive(TableRow)]` takes the columns from the fields and their serde
/// attributes, so they are the keys of the serialized row, in the same order.
pub trait TableRow {
    /// Returns the columns of a table of such rows, in the order of the fields.
    fn columns() -> Vec<Column>;
}

impl<T: TableRow> TableRow for &T {
    fn columns() -> Vec<Column> {
        T::columns()
    }
}

/// The column type of a Rust type. `#[derive(CellType)]` implements it for enums and structs.
pub trait CellType {
    const TYPE: ColumnType;
    const IS_NULLABLE: bool = false;
}

/// Implements [`CellType`] for types without type parameters.
macro_rules! cell_types {
    ($($column:ident: $($value:ty)*;)*) => {
        $($(impl CellType for $value { const TYPE: ColumnType = ColumnType::$column; })*)*
    };
}

cell_types! {
    Integer: i8 i16 i32 i64 u8 u16 u32;
    Unsigned: u64 usize;
    Float: f32 f64;
    Boolean: bool;
    Text: str String;
}

impl<T: CellType + ?Sized> CellType for &T {
    const TYPE: ColumnType = T::TYPE;
    const IS_NULLABLE: bool = T::IS_NULLABLE;
}

impl<T: CellType> CellType for Option<T> {
    const TYPE: ColumnType = T::TYPE;
    const IS_NULLABLE: bool = true;
}

impl<T> CellType for Vec<T> {
    const TYPE: ColumnType = ColumnType::Nested;
}

impl<T, const N: usize> CellType for [T; N] {
    const TYPE: ColumnType = ColumnType::Nested;
}

impl<K, V> CellType for BTreeMap<K, V> {
    const TYPE: ColumnType = ColumnType::Nested;
}

#[cfg(test)]
mod tests;
