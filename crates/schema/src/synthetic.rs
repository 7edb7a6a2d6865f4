//! The `[synthetic]` section: the distribution of generated ids per table, and bag sizes per
//! feature.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config_error::ConfigError;
use crate::distribution::IdLaw;
use crate::model::TableConfig;

/// Largest bag size of a feature.
const BAG_SIZE_MAX: u32 = 100_000;

/// The ids of generated samples. Predictions of steps without data assume the same ids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyntheticConfig {
    /// Distribution of all tables; the generator's default if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<IdLaw>,
    /// Distributions of single tables, by table name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tables: BTreeMap<String, IdLaw>,
    /// Number of ids per sample, by feature name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bag_sizes: BTreeMap<String, u32>,
}

impl SyntheticConfig {
    /// Returns the configured distribution of a table's ids, if there is one.
    #[must_use]
    pub fn law(&self, table: &str) -> Option<&IdLaw> {
        self.tables.get(table).or(self.ids.as_ref())
    }

    /// Whether the section does not configure any distribution.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn check(&self, tables: &[TableConfig]) -> Result<(), ConfigError> {
        if let Some(problem) = self.ids.as_ref().and_then(IdLaw::problem) {
            return Err(ConfigError::shape("synthetic.ids", problem));
        }
        for (name, law) in &self.tables {
            let key = format!("synthetic.tables.{name}");
            // A misspelled table name would otherwise leave the table with the default
            // distribution.
            if !tables.iter().any(|table| table.name == *name) {
                let problem = format!("no such table among the {} of the model", tables.len());
                return Err(ConfigError::shape(key, problem));
            }
            if let Some(problem) = law.problem() {
                return Err(ConfigError::shape(key, problem));
            }
        }
        for (name, size) in &self.bag_sizes {
            let key = format!("synthetic.bag_sizes.{name}");
            if !tables.iter().any(|table| table.features.contains(name)) {
                let count: usize = tables.iter().map(|table| table.features.len()).sum();
                let problem = format!("no such feature among the {count} of the model");
                return Err(ConfigError::shape(key, problem));
            }
            if !(1..=BAG_SIZE_MAX).contains(size) {
                let problem = format!("expected 1 to {BAG_SIZE_MAX} ids, got {size}");
                return Err(ConfigError::shape(key, problem));
            }
        }
        Ok(())
    }
}
