//! The user's constraints on a plan, for all tables and for single ones.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::layout::{LayoutKind, Placement};

/// Constraints on the placement of a table. An absent value does not constrain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableConstraints {
    /// Layouts that the table may have.
    pub layouts: Option<Vec<LayoutKind>>,
    /// Most ranks on which the table may lie. It does not apply to replicated tables.
    pub most_ranks: Option<u32>,
    /// Placement that the table keeps.
    pub pinned: Option<Placement>,
}

/// The section `[plan]` of the configuration: constraints on a plan, and a file of statistics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Constraints {
    /// Constraints on every table. A value of `tables` replaces the one given here.
    #[serde(flatten)]
    pub every_table: TableConstraints,
    /// Constraints on single tables, by name.
    pub tables: BTreeMap<String, TableConstraints>,
    /// Memory of each rank that plans leave free, in bytes.
    pub reserve_bytes: u64,
    /// Least number of columns of a column part, or of the whole table if it has fewer.
    pub least_columns: Option<usize>,
    /// File of feature statistics that plans use instead of `[synthetic]`.
    pub stats: Option<String>,
}

impl Constraints {
    /// Returns whether the section is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the constraints on a table. Its own ones replace those on every table.
    #[must_use]
    pub fn for_table(&self, name: &str) -> TableConstraints {
        let every = self.every_table.clone();
        let Some(own) = self.tables.get(name).cloned() else { return every };
        TableConstraints {
            layouts: own.layouts.or(every.layouts),
            most_ranks: own.most_ranks.or(every.most_ranks),
            pinned: own.pinned.or(every.pinned),
        }
    }
}
