//! A job as one TOML text: `[model]`, `[optimizer]`, `[schedule]`, `[training]`, `[data]`,
//! `[synthetic]`.
//!
//! Parses, applies overrides, refuses unknown keys and impossible shapes. Reads no files.

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::model::ModelConfig;
use crate::optimizer::{LearningRateSchedule, OptimizerConfig};
use crate::source::{CategoryKind, DataConfig, Ids};
use crate::synthetic::SyntheticConfig;
use crate::training::TrainingConfig;

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not TOML, a key is unknown or missing, or a value has the wrong type.
    #[error("{message}")]
    Syntax {
        /// What the parser said, with the line where it is known.
        message: String,
    },
    /// An override could not be applied.
    #[error("--set {key}: {problem}")]
    Override {
        /// The key as given.
        key: String,
        /// What is wrong.
        problem: String,
    },
    /// A shape or value is impossible.
    #[error("{key}: {problem}")]
    Shape {
        /// The offending key.
        key: String,
        /// What is wrong, with the layer and both numbers.
        problem: String,
    },
}

impl ConfigError {
    pub(crate) fn shape(key: impl Into<String>, problem: String) -> Self {
        Self::Shape { key: key.into(), problem }
    }
}

/// The optimizers of tables and of dense parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizers {
    /// Fused into the embedding backward.
    pub sparse: OptimizerConfig,
    /// For MLPs and cross layers.
    pub dense: OptimizerConfig,
}

/// A whole job. Valid by construction through [`JobConfig::parse`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobConfig {
    /// What is trained.
    pub model: ModelConfig,
    /// By which rules.
    pub optimizer: Optimizers,
    /// Learning-rate schedule of both optimizers.
    #[serde(default)]
    pub schedule: LearningRateSchedule,
    /// For how long.
    pub training: TrainingConfig,
    /// On what.
    pub data: DataConfig,
    /// On what ids, where samples are made up.
    #[serde(default, skip_serializing_if = "SyntheticConfig::is_empty")]
    pub synthetic: SyntheticConfig,
}

impl JobConfig {
    /// Parses a job, with `overrides` as (key, value) pairs in their order.
    ///
    /// A key is a dotted path, or the last part of one where that is unambiguous (`batch_size` for
    /// `training.batch_size`). A value is TOML; what is not TOML is taken as text.
    ///
    /// # Errors
    /// [`ConfigError`] naming the key.
    pub fn parse(text: &str, overrides: &[(String, String)]) -> Result<Self, ConfigError> {
        let config = if overrides.is_empty() {
            toml::from_str(text).map_err(syntax)?
        } else {
            let mut table: Table = toml::from_str(text).map_err(syntax)?;
            for (key, value) in overrides {
                set(&mut table, key, value)?;
            }
            Value::Table(table).try_into::<Self>().map_err(syntax)?
        };
        Self::complete(config)
    }

    fn complete(mut config: Self) -> Result<Self, ConfigError> {
        config.model.complete();
        config.data.complete();
        config.model.check()?;
        config.check_run()?;
        config.check_columns()?;
        config.check_ids()?;
        let rows = |feature: crate::model::Feature<'_>| {
            (feature.name.to_owned(), config.model.tables[feature.table].rows)
        };
        config.data.table_rows = config.model.features().into_iter().map(rows).collect();
        Ok(config)
    }

    /// The job as TOML, overrides included; [`JobConfig::parse`] gives it back.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`] if a number cannot be written as TOML.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        toml::to_string(self).map_err(|error| ConfigError::Syntax { message: error.to_string() })
    }

    fn check_run(&self) -> Result<(), ConfigError> {
        if self.training.batch_size == 0 {
            return Err(ConfigError::shape("training.batch_size", at_least_one(0)));
        }
        for (key, every) in [
            ("model.rows_cap", self.model.rows_cap),
            ("training.log_every", Some(self.training.log_every)),
            ("training.evaluate_every", self.training.evaluate_every),
            ("training.evaluate_samples", self.training.evaluate_samples),
            ("training.checkpoint_every", self.training.checkpoint_every),
        ] {
            if every == Some(0) {
                return Err(ConfigError::shape(key, at_least_one(0)));
            }
        }
        if self.training.keep_checkpoints == 0 {
            return Err(ConfigError::shape("training.keep_checkpoints", at_least_one(0)));
        }
        self.optimizer.sparse.check("optimizer.sparse")?;
        self.optimizer.dense.check("optimizer.dense")?;
        self.synthetic.check(&self.model.tables)?;
        if !(0.0..1.0).contains(&self.data.hold_out) {
            let text = format!("expected a share in [0, 1), got {}", self.data.hold_out);
            return Err(ConfigError::shape("data.hold_out", text));
        }
        Ok(())
    }

    /// Refuses rules for ids where there is nothing to which they could apply.
    fn check_ids(&self) -> Result<(), ConfigError> {
        for column in &self.data.categorical {
            let (text, exact) = match (column.kind, self.data.ids) {
                (CategoryKind::String, _) => ("a column of kind integer or hex", false),
                (_, Ids::Exact { .. }) => ("ids.mode = \"modulo\"", true),
                (_, Ids::Modulo) => continue,
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

/// The sections and keys an override without a dot may mean.
const SHORT_KEYS: [(&str, &[&str]); 3] = [
    (
        "model",
        &["name", "rows_cap", "dense_features", "bottom", "top", "interaction", "loss", "init"],
    ),
    (
        "training",
        &[
            "batch_size",
            "precision",
            "epochs",
            "steps",
            "seed",
            "shuffle_rows",
            "drop_last",
            "log_every",
            "evaluate_every",
            "evaluate_samples",
            "checkpoint_every",
            "keep_checkpoints",
        ],
    ),
    ("data", &["train", "evaluation", "hold_out", "format", "preset", "missing", "ids"]),
];

fn set(table: &mut Table, key: &str, value: &str) -> Result<(), ConfigError> {
    let fail = |problem: String| ConfigError::Override { key: key.to_owned(), problem };
    let mut path: Vec<&str> = key.split('.').collect();
    if path.iter().any(|part| part.is_empty()) {
        return Err(fail("expected a key such as training.batch_size".to_owned()));
    }
    if path.len() == 1 && !table.contains_key(key) {
        let section = SHORT_KEYS.iter().find(|(_, keys)| keys.contains(&key));
        let Some((section, _)) = section else {
            return Err(fail(
                "no such key; give the whole path, such as optimizer.dense.kind".into(),
            ));
        };
        path.insert(0, section);
    }
    let (last, parents) = path.split_last().unwrap_or((&key, &[]));
    let mut place = table;
    for part in parents {
        let entry = place.entry(*part).or_insert_with(|| Value::Table(Table::new()));
        place = entry.as_table_mut().ok_or_else(|| fail(format!("{part} is not a section")))?;
    }
    place.insert((*last).to_owned(), value_of(value));
    Ok(())
}

fn value_of(text: &str) -> Value {
    let parsed = toml::from_str::<Table>(&format!("value = {text}"));
    let value = parsed.ok().and_then(|mut table| table.remove("value"));
    value.unwrap_or_else(|| Value::String(text.to_owned()))
}

#[cfg(test)]
mod tests;
