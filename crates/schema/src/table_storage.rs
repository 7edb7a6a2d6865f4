//! How the rows of tables that are larger than memory are kept.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config_error::ConfigError;
use crate::model::{DataType, TableConfig};

/// The rule by which a cache of table rows chooses the row that it evicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CachePolicy {
    /// Evicts the row that was used least recently, and admits every row.
    #[default]
    Lru,
    /// Evicts the row that the fewest recent batches used, and admits only rows that at least as
    /// many batches used. Other rows take a scratch slot for a while.
    Lfu,
}

/// Tables whose rows are kept in files, with a cache of rows in memory. Training gives the same
/// weights as without this section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableStorage {
    /// Names of the tables, or an empty list for all tables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<String>,
    /// Folder of the files, which exist only while the program runs.
    pub folder: PathBuf,
    /// Memory of the caches on each rank, in MiB. It includes optimizer state.
    pub cache_mib: u64,
    #[serde(default)]
    pub policy: CachePolicy,
}

impl TableStorage {
    /// Whether the rows of a table are kept in files.
    #[must_use]
    pub fn includes(&self, table: &TableConfig) -> bool {
        self.tables.is_empty() || self.tables.contains(&table.name)
    }

    /// Checks the section against the tables of the model.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] that names the key.
    pub(crate) fn check(&self, tables: &[TableConfig]) -> Result<(), ConfigError> {
        let named = |name: &&String| !tables.iter().any(|table| table.name == **name);
        if let Some(name) = self.tables.iter().find(named) {
            let text = format!("expected the names of tables, got {name:?}");
            return Err(ConfigError::shape("storage.tables", text));
        }
        if self.cache_mib == 0 {
            let text = "expected at least 1, got 0".to_owned();
            return Err(ConfigError::shape("storage.cache_mib", text));
        }
        if self.folder.as_os_str().is_empty() {
            let text = "expected a folder, got an empty text".to_owned();
            return Err(ConfigError::shape("storage.folder", text));
        }
        let is_narrow =
            |table: &&TableConfig| self.includes(table) && table.data_type != DataType::F32;
        if let Some(table) = tables.iter().find(is_narrow) {
            let text = format!(
                "expected tables of data_type \"f32\", got {:?} with data_type \"{}\"",
                table.name,
                table.data_type.name()
            );
            return Err(ConfigError::shape("storage.tables", text));
        }
        Ok(())
    }
}
