//! The configuration of a job as one TOML text with the sections `[model]`, `[optimizer]`,
//! `[schedule]`, `[training]`, `[data]`, `[synthetic]`, `[plan]` and `[storage]`.
//!
//! This module parses the text, applies overrides, and rejects unknown keys and invalid shapes. The
//! module does not read files.

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::config_error::ConfigError;
use crate::model::{ModelConfig, TableConfig};
use crate::optimizer::{LearningRateSchedule, OptimizerConfig, SplitRowRule};
use crate::plan_constraints::Constraints;
use crate::reference;
use crate::source::{CategoryKind, DataConfig, DataFormat, DenseTransform, IdMode};
use crate::synthetic::SyntheticConfig;
use crate::table_storage::TableStorage;
use crate::training::TrainingConfig;

/// The optimizers of tables and of dense parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizers {
    /// The columns over which row-wise Adagrad and LAMB take the mean or the norms of a table's row
    /// where a plan splits its columns.
    #[serde(default, skip_serializing_if = "SplitRowRule::is_default")]
    pub row_scope: SplitRowRule,
    /// Optimizer of the tables, whose update is fused into the embedding backward.
    pub sparse: OptimizerConfig,
    /// Optimizer of the dense parameters, which are those of MLPs and cross layers.
    pub dense: OptimizerConfig,
}

/// Largest batch size that is accepted. No device has memory for more samples, and the byte counts
/// of smaller batches do not overflow.
const BATCH_SIZE_MAX: usize = i32::MAX as usize;

/// Configuration of a complete training job. [`JobConfig::parse`] returns only valid
/// configurations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobConfig {
    pub model: ModelConfig,
    pub optimizer: Optimizers,
    /// Learning-rate schedule, which applies to both optimizers.
    #[serde(default)]
    pub schedule: LearningRateSchedule,
    pub training: TrainingConfig,
    pub data: DataConfig,
    /// Distribution of ids for generated samples.
    #[serde(default, skip_serializing_if = "SyntheticConfig::is_empty")]
    pub synthetic: SyntheticConfig,
    /// Constraints on the plans that `rowmill plan` and `--sharding auto` make.
    #[serde(default, skip_serializing_if = "Constraints::is_empty")]
    pub plan: Constraints,
    /// Tables whose rows are kept in files with a cache in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<TableStorage>,
}

impl JobConfig {
    /// Parses the TOML text of a job, and applies `overrides` as (key, value) pairs in order.
    ///
    /// A key is a dotted path, or an unambiguous end of one (`batch_size` for
    /// `training.batch_size`). An entry of a list is addressed by its name
    /// (`model.tables.C3.rows`). A value is parsed as TOML; if that fails, the value is a text.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] that names the key.
    pub fn parse(text: &str, overrides: &[(String, String)]) -> Result<Self, ConfigError> {
        let mut table: Table = toml::from_str(text).map_err(syntax)?;
        let mut lines = reference::KeyLines::parse(text);
        for (key, value) in overrides {
            let fail = |problem| ConfigError::Override { key: key.clone(), problem };
            // An overridden value is not in the text, so an error about it must not name a line.
            lines.forget(&reference::set(&mut table, key, value).map_err(fail)?);
        }
        let problems = reference::check(&table, &lines);
        if !problems.is_empty() {
            return Err(ConfigError::Keys { problems });
        }
        Self::complete(Value::Table(table).try_into::<Self>().map_err(syntax)?)
    }

    fn complete(mut config: Self) -> Result<Self, ConfigError> {
        // The data comes first, because the model may take its dense width from the number of dense
        // columns.
        config.data.complete();
        config.model.complete(config.data.dense_columns().len());
        config.model.check()?;
        config.check_run()?;
        config.check_columns()?;
        config.check_ids()?;
        config.check_auto()?;
        config.check_text()?;
        config.note_table_rows();
        Ok(config)
    }

    /// Calls `rows` for every table with `rows = "auto"`, and stores the result as its number of
    /// rows.
    pub fn size_tables(&mut self, rows: impl FnMut(&TableConfig) -> u64) {
        self.model.size_tables(rows);
        self.note_table_rows();
    }

    fn note_table_rows(&mut self) {
        let tables = &self.model.tables;
        let features = self.model.features().into_iter();
        // The rows of an `auto` table are noted when `size_tables` has determined them.
        let known = features.filter(|feature| !tables[feature.table].is_auto());
        let rows = |feature: crate::model::Feature<'_>| {
            (feature.name.to_owned(), tables[feature.table].rows)
        };
        self.data.table_rows = known.map(rows).collect();
    }

    /// Formats the job, overrides included, as TOML that [`JobConfig::parse`] reads back.
    ///
    /// # Errors
    /// Returns [`ConfigError::Syntax`] if a number cannot be written as TOML.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        toml::to_string(self).map_err(|error| ConfigError::Syntax { message: error.to_string() })
    }

    fn check_run(&self) -> Result<(), ConfigError> {
        let batch_size = self.training.batch_size;
        if !(1..=BATCH_SIZE_MAX).contains(&batch_size) {
            let text = format!("expected 1 to {BATCH_SIZE_MAX}, got {batch_size}");
            return Err(ConfigError::shape("training.batch_size", text));
        }
        for (key, every) in [
            ("model.rows_cap", self.model.rows_cap),
            ("training.log_every", Some(self.training.log_every)),
            ("training.evaluate_every", self.training.evaluate_every),
            ("training.evaluate_samples", self.training.evaluate_samples),
            ("training.checkpoint_every", self.training.checkpoint_every),
            ("training.patience", self.training.patience),
        ] {
            if every == Some(0) {
                return Err(ConfigError::shape(key, at_least_one(0)));
            }
        }
        if self.training.keep_checkpoints == 0 {
            return Err(ConfigError::shape("training.keep_checkpoints", at_least_one(0)));
        }
        self.check_plan()?;
        self.optimizer.sparse.check("optimizer.sparse")?;
        self.optimizer.dense.check("optimizer.dense")?;
        let sparse = self.optimizer.sparse.kind;
        if self.optimizer.row_scope == SplitRowRule::ColumnTiles && !sparse.looks_at_rows() {
            let text = format!(
                "expected \"whole_rows\" with optimizer.sparse.kind = \"{sparse}\", whose update of \
                 a weight does not depend on its row, got \"column_tiles\""
            );
            return Err(ConfigError::shape("optimizer.row_scope", text));
        }
        self.synthetic.check(&self.model.tables)?;
        if let Some(storage) = &self.storage {
            storage.check(&self.model.tables)?;
        }
        self.check_hold_out()
    }

    /// Rejects shares of held-out rows that leave no training rows.
    fn check_hold_out(&self) -> Result<(), ConfigError> {
        let data = &self.data;
        for (key, share) in [("data.hold_out", data.hold_out), ("data.validation", data.validation)]
        {
            if !(0.0..1.0).contains(&share) {
                let text = format!("expected a share in [0, 1), got {share}");
                return Err(ConfigError::shape(key, text));
            }
        }
        let total = data.held_out_shares().total();
        if total >= 1.0 {
            let text = format!(
                "expected less than 1 together with data.hold_out, because the rest is trained on, \
                 got {total}"
            );
            return Err(ConfigError::shape("data.validation", text));
        }
        Ok(())
    }

    /// Rejects constraints on unknown tables, and constraints that no plan satisfies.
    fn check_plan(&self) -> Result<(), ConfigError> {
        let names = || self.model.tables.iter().map(|table| table.name.as_str());
        if let Some(name) = self.plan.tables.keys().find(|name| !names().any(|one| one == *name)) {
            let first = names().next().unwrap_or_default();
            let text = format!("expected the name of a table, such as {first:?}");
            return Err(ConfigError::shape(format!("plan.tables.{name}"), text));
        }
        if self.plan.least_columns == Some(0) {
            return Err(ConfigError::shape("plan.least_columns", at_least_one(0)));
        }
        let single =
            self.plan.tables.iter().map(|(name, own)| (format!("plan.tables.{name}"), own));
        let every = ("plan".to_owned(), &self.plan.every_table);
        for (section, constraints) in std::iter::once(every).chain(single) {
            if constraints.most_ranks == Some(0) {
                return Err(ConfigError::shape(format!("{section}.most_ranks"), at_least_one(0)));
            }
            if constraints.layouts.as_ref().is_some_and(Vec::is_empty) {
                let text = "expected at least one layout, got none".to_owned();
                return Err(ConfigError::shape(format!("{section}.layouts"), text));
            }
        }
        Ok(())
    }

    /// Rejects `rows = "auto"` if the data cannot determine the number of rows. Also rejects a
    /// patience without evaluations, and an `auc_by` column that the model does not look up.
    fn check_auto(&self) -> Result<(), ConfigError> {
        if let Some(label) = &self.data.label
            && label.positive_from.is_some()
            && !label.positive.is_empty()
        {
            let text = "expected positive or positive_from, got both".to_owned();
            return Err(ConfigError::shape("data.label", text));
        }
        let columns = self.data.categorical_columns();
        for feature in self.model.features() {
            let table = &self.model.tables[feature.table];
            let column = columns.iter().find(|column| column.column == feature.name);
            // The hashes of texts have no greatest id from which the number of rows could follow.
            let is_number = column.is_some_and(|column| column.kind == CategoryKind::Integer);
            if table.is_auto() && self.data.ids == IdMode::Modulo && !is_number {
                let text = format!(
                    "\"auto\" needs ids.mode = \"exact\" in [data], or a column of kind integer: \
                     the hashes of column {:?} have no greatest id",
                    feature.name
                );
                return Err(ConfigError::shape(format!("model.tables.{}.rows", table.name), text));
            }
        }
        let training = &self.training;
        if training.patience.is_some()
            && (training.keep_best.is_none() || training.evaluate_every.is_none())
        {
            let text = "expected keep_best and evaluate_every, too: patience counts \
                        evaluations without a better figure";
            return Err(ConfigError::shape("training.patience", text.to_owned()));
        }
        if let Some(by) = &training.auc_by
            && !self.model.features().iter().any(|feature| feature.name == *by)
        {
            let text = format!("expected a categorical column that the model looks up, got {by:?}");
            return Err(ConfigError::shape("training.auc_by", text));
        }
        Ok(())
    }

    /// Rejects options of text files, such as delimiter, quote and date format, that the format or
    /// the column's transform does not use.
    fn check_text(&self) -> Result<(), ConfigError> {
        let data = &self.data;
        for (key, text, most) in
            [("data.delimiter", &data.delimiter, 4), ("data.quote", &data.quote, 1)]
        {
            let Some(text) = text else { continue };
            if data.format != DataFormat::Csv {
                let problem = "expected format = \"csv\" in the same section".to_owned();
                return Err(ConfigError::shape(key, problem));
            }
            // An empty quote turns quoting off, while a delimiter needs at least one character.
            let least = usize::from(most > 1);
            let is_text = text.is_ascii() && !text.contains(['\n', '\r']);
            if !is_text || !(least..=most).contains(&text.len()) {
                let problem = format!("expected {least} to {most} ASCII characters, got {text:?}");
                return Err(ConfigError::shape(key, problem));
            }
        }
        if data.hold_out_by.is_some() && data.format.has_own_columns() {
            let named = DataFormat::ALL.into_iter().filter(|format| !format.has_own_columns());
            let named: Vec<String> = named.map(|format| format.name().to_owned()).collect();
            let problem =
                format!("expected format {} in the same section", reference::listed(&named));
            return Err(ConfigError::shape("data.hold_out_by", problem));
        }
        for column in &data.dense {
            let key = format!("data.dense.{}", column.column);
            let is_time = column.transform == DenseTransform::Datetime;
            if !is_time && (column.date_format.is_some() || !column.parts.is_empty()) {
                let problem = "expected transform = \"datetime\" with parts and date_format";
                return Err(ConfigError::shape(key, problem.to_owned()));
            }
        }
        Ok(())
    }

    /// Rejects the id rules `min_count`, `out_of_range` and `missing` of columns to which they
    /// cannot apply.
    fn check_ids(&self) -> Result<(), ConfigError> {
        for column in &self.data.categorical {
            // Hashed texts and exact ids have no range, so `out_of_range` cannot apply to them.
            let (text, exact) = match (column.kind, self.data.ids) {
                (_, IdMode::Modulo) if column.min_count.is_some() => {
                    let key = format!("data.categorical {:?}: min_count", column.column);
                    let text = "expected ids.mode = \"exact\" in [data] for this key".to_owned();
                    return Err(ConfigError::shape(key, text));
                }
                (CategoryKind::String, _) => ("a column of kind integer or hex", false),
                (_, IdMode::Exact { .. }) => ("ids.mode = \"modulo\"", true),
                (_, IdMode::Modulo) => continue,
            };
            let key = match (column.out_of_range, column.missing) {
                (Some(_), _) => "out_of_range",
                (None, Some(_)) if !exact => "missing",
                _ => continue,
            };
            let got = if exact { "exact ids, which have no range" } else { "kind string" };
            let key = format!("data.categorical {:?}: {key}", column.column);
            return Err(ConfigError::shape(key, format!("expected {text}, got {got}")));
        }
        Ok(())
    }

    fn check_columns(&self) -> Result<(), ConfigError> {
        let dense = self.data.dense_columns();
        if dense.len() != self.model.dense_features {
            let text = format!(
                "the bottom MLP's input has width {}, but the data has {} dense columns",
                self.model.dense_features,
                dense.len()
            );
            return Err(ConfigError::shape("model.dense_features", text));
        }
        if self.data.preset.is_none() && self.data.label.is_none() {
            let text = "missing: expected a column, or data.preset".to_owned();
            return Err(ConfigError::shape("data.label", text));
        }
        if let Some(label) = &self.data.label
            && label.positive_from.is_some()
            && !label.positive.is_empty()
        {
            let text = "expected positive or positive_from, got both".to_owned();
            return Err(ConfigError::shape("data.label", text));
        }
        let columns = self.data.categorical_columns();
        for feature in self.model.features() {
            if !columns.iter().any(|column| column.column == feature.name) {
                let text = format!(
                    "feature {:?} is not among the {} categorical columns of [data]",
                    feature.name,
                    columns.len()
                );
                let table = &self.model.tables[feature.table].name;
                return Err(ConfigError::shape(format!("model.tables {table:?}"), text));
            }
        }
        Ok(())
    }
}

fn at_least_one(got: u64) -> String {
    format!("expected at least 1, got {got}")
}

fn syntax(error: toml::de::Error) -> ConfigError {
    ConfigError::Syntax { message: error.to_string().trim_end().to_owned() }
}

#[cfg(test)]
mod tests;
