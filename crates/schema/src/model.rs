//! The architecture of a recommendation model: tables, dense arch, interaction, over arch and loss.
//! This module does not hold weights, and [`crate::plan`] assigns the tables to ranks.

use serde::{Deserialize, Serialize};

use crate::batch::JaggedTensor;
use crate::config_error::ConfigError;
use crate::unit::Bytes;

/// The reduction of a bag's rows to one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The sum of the bag's rows. An empty bag gives zeros.
    #[default]
    Sum,
    /// The mean of the bag's rows. An empty bag gives zeros.
    Mean,
    /// No pooling. Each of the first [`TableConfig::sequence_length`] ids gives a separate vector;
    /// shorter bags are padded with zeros, and later ids are ignored. A table without pooling
    /// corresponds to TorchRec's `EmbeddingCollection` with `JaggedTensor.to_padded_dense`.
    None,
}

/// Largest sequence length of a table without pooling.
pub const SEQUENCE_LENGTH_MAX: usize = 65_536;

/// The format of a table's weights in memory and in checkpoints. Sums, gradients and optimizer
/// state are always f32. Writing to a 16-bit table rounds stochastically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataType {
    #[default]
    F32,
    /// A 16-bit IEEE float with 11 significant bits and values up to 65504.
    F16,
    /// A bfloat16 with 8 significant bits and the range of f32.
    Bf16,
}

impl DataType {
    /// Returns the size of a weight in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Returns the name in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

/// One embedding table, possibly shared by several features.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableConfig {
    /// Unique name of the table. A range such as `t{0..7}` defines eight tables.
    pub name: String,
    /// R, the number of rows; [`AUTO_ROWS`] until the data determines it.
    #[serde(with = "rows")]
    pub rows: u64,
    /// D, the embedding dimension.
    pub dim: usize,
    /// Pooling of all features that use this table.
    #[serde(default)]
    pub pooling: Pooling,
    /// Number of vectors per bag, which is set only for a table without pooling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence_length: Option<usize>,
    #[serde(default)]
    pub data_type: DataType,
    /// The features that use this table. If the list is empty, only the feature with the table's
    /// own name uses it.
    #[serde(default)]
    pub features: Vec<String>,
}

/// Value of [`TableConfig::rows`] for `rows = "auto"`: the table gets as many rows as the ids of
/// the training data need.
pub const AUTO_ROWS: u64 = 0;

/// Serializes and deserializes `rows`, which is a number or the word `auto`.
mod rows {
    use serde::de::{Error, Unexpected, Visitor};
    use serde::{Deserializer, Serializer};

    use super::AUTO_ROWS;

    const AUTO: &str = "auto";

    /// Writes the number of rows, or the word `auto` for [`AUTO_ROWS`].
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    pub fn serialize<S: Serializer>(rows: &u64, to: S) -> Result<S::Ok, S::Error> {
        if *rows == AUTO_ROWS { to.serialize_str(AUTO) } else { to.serialize_u64(*rows) }
    }

    /// Reads a number of rows, or the word `auto` as [`AUTO_ROWS`].
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        from.deserialize_any(Rows)
    }

    /// Visitor that accepts a number or the word `auto` as a number of rows.
    struct Rows;

    impl Visitor<'_> for Rows {
        type Value = u64;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a number of rows from 1 on, or \"auto\"")
        }

        fn visit_u64<E: Error>(self, rows: u64) -> Result<u64, E> {
            let refused = || E::invalid_value(Unexpected::Unsigned(rows), &self);
            if rows == AUTO_ROWS { Err(refused()) } else { Ok(rows) }
        }

        fn visit_i64<E: Error>(self, rows: i64) -> Result<u64, E> {
            let refused = || E::invalid_value(Unexpected::Signed(rows), &self);
            u64::try_from(rows).map_err(|_| refused()).and_then(|rows| self.visit_u64(rows))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
            let refused = || E::invalid_value(Unexpected::Str(text), &self);
            if text == AUTO { Ok(AUTO_ROWS) } else { Err(refused()) }
        }
    }
}

impl TableConfig {
    /// Whether the number of rows is `auto` and still has to be determined from the data.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        self.rows == AUTO_ROWS
    }

    /// Returns the number of vectors per bag, which is 1 for a pooled table.
    #[must_use]
    pub fn vectors(&self) -> usize {
        self.sequence_length.unwrap_or(1)
    }
}

/// Order of the pairwise products in the output of the dot interaction. The matrix of products is
/// symmetric, so only one of its triangles is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TriangleOrder {
    /// Lower triangle, row-major: (1,0), (2,0), (2,1) … as in facebookresearch/dlrm.
    #[default]
    Lower,
    /// Upper triangle, row-major: (0,1), (0,2) … as in TorchRec.
    Upper,
}

/// The interaction, which combines the dense vector, if there is one, with the vectors of the
/// sparse features. A feature without pooling counts as one feature per position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Interaction {
    /// The output is the dense vector, followed by the pairwise dot products of all vectors.
    /// Without dense features, the output is only the products of the pooled vectors.
    Dot {
        #[serde(default)]
        order: TriangleOrder,
        /// Whether the products of each vector with itself are kept, too.
        #[serde(default)]
        itself: bool,
    },
    Cat,
    /// A low-rank cross network, whose layers compute `x_{l+1} = x₀ ⊙ (W_l V_l x_l + b_l) + x_l`.
    DcnV2 {
        layers: usize,
        /// Rank of the product `W_l V_l` of each layer.
        rank: usize,
    },
}

/// The training objective. The loss of a batch is the mean over its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Binary cross-entropy of the last layer's logit.
    BceWithLogits,
    /// Squared error of the sigmoid of the last layer's logit.
    Mse,
}

/// The initial distribution of the dense parameters. Tables always use U(±1/√rows).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenseInit {
    /// W ~ N(0, √(2/(in+out))), b ~ N(0, √(1/out)), as in facebookresearch/dlrm.
    #[default]
    Dlrm,
    /// W and b ~ U(±1/√in), as in TorchRec's layers.
    Torchrec,
}

/// Architecture of a complete model. [`crate::JobConfig::parse`] returns a valid one; code that
/// builds a model in another way must call [`ModelConfig::check`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Name of the model, which is used for display only.
    pub name: String,
    /// Seed of the initial weights.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Largest number of rows per table. Larger ids wrap around, so that a large model can be tried
    /// on a small machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_cap: Option<u64>,
    /// Width of the dense input, which defaults to the number of dense columns in the data.
    #[serde(default = "dense_features_of_the_data")]
    pub dense_features: usize,
    /// Widths of the bottom MLP's layers, without the input.
    #[serde(default)]
    pub bottom: Vec<usize>,
    /// Widths of the top MLP's layers, without the input. The last width is 1, for the logit.
    pub top: Vec<usize>,
    pub interaction: Interaction,
    /// Whether the logit also reads the interaction's output directly, beside the top MLP.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wide: bool,
    pub loss: Loss,
    #[serde(default)]
    pub init: DenseInit,
    pub tables: Vec<TableConfig>,
}

fn default_seed() -> u64 {
    42
}

/// Placeholder for a width that [`crate::JobConfig`] takes from the data.
const DENSE_FEATURES_OF_THE_DATA: usize = usize::MAX;

fn dense_features_of_the_data() -> usize {
    DENSE_FEATURES_OF_THE_DATA
}

/// One sparse feature. Features are ordered by table, and within a table as its list names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature<'a> {
    /// Name of the feature, which is also the name of its column.
    pub name: &'a str,
    /// Index of the feature's table in [`ModelConfig::tables`].
    pub table: usize,
    /// First column of the feature's vectors in the pooled output `[B, ΣD]`.
    pub column: usize,
}

impl ModelConfig {
    /// Expands ranges of tables, applies `rows_cap` and fills in defaults.
    pub(crate) fn complete(&mut self, dense_columns: usize) {
        if self.dense_features == DENSE_FEATURES_OF_THE_DATA {
            self.dense_features = dense_columns;
        }
        let named = |table: &TableConfig| {
            let named = |name| TableConfig { name, ..table.clone() };
            crate::pattern::expand(&table.name).into_iter().map(named).collect::<Vec<_>>()
        };
        self.tables = self.tables.iter().flat_map(named).collect();
        for table in &mut self.tables {
            // A table with `rows = "auto"` keeps 0 rows here, and `size_tables` applies the cap to
            // it.
            if let Some(cap) = self.rows_cap {
                table.rows = table.rows.min(cap.max(1));
            }
            if table.features.is_empty() {
                table.features.push(table.name.clone());
            }
        }
    }

    /// Calls `rows` for every table with `rows = "auto"`, and stores the result, limited by
    /// `rows_cap`, as its number of rows.
    pub fn size_tables(&mut self, mut rows: impl FnMut(&TableConfig) -> u64) {
        for at in 0..self.tables.len() {
            if self.tables[at].is_auto() {
                // A table needs at least one row, even if the data has no ids.
                let rows = rows(&self.tables[at]).max(1);
                self.tables[at].rows = self.rows_cap.map_or(rows, |cap| rows.min(cap.max(1)));
            }
        }
    }

    /// Whether a table still has `rows = "auto"`, so that the data must determine its rows first.
    #[must_use]
    pub fn has_auto_tables(&self) -> bool {
        self.tables.iter().any(TableConfig::is_auto)
    }

    /// Lists all sparse features in the order of a batch's [`crate::JaggedTensor`].
    #[must_use]
    pub fn features(&self) -> Vec<Feature<'_>> {
        let mut column = 0;
        let mut features = Vec::new();
        for (table, config) in self.tables.iter().enumerate() {
            for name in &config.features {
                features.push(Feature { name, table, column });
                // A feature without pooling has one vector per position, and its vectors are
                // adjacent.
                column += config.dim * config.vectors();
            }
        }
        features
    }

    /// Counts the vectors of all sparse features. A pooled feature has one vector, and any other
    /// feature has one per position of its sequence.
    #[must_use]
    pub fn sparse_vectors(&self) -> usize {
        self.tables.iter().map(|table| table.vectors() * table.features.len()).sum()
    }

    /// Returns ΣD, the total width of the vectors of all sparse features.
    #[must_use]
    pub fn pooled_width(&self) -> usize {
        self.tables.iter().map(|table| table.dim * table.vectors() * table.features.len()).sum()
    }

    /// Counts the ids of a batch that are beyond their table's sequence length and therefore not
    /// looked up.
    #[must_use]
    pub fn ids_left_out(&self, sparse: &JaggedTensor) -> usize {
        let lengths = self
            .tables
            .iter()
            .flat_map(|table| std::iter::repeat_n(table.sequence_length, table.features.len()));
        let left_out_of_feature = |(feature, length): (usize, Option<usize>)| -> usize {
            let Some(length) = length else { return 0 };
            let beyond = |sample| sparse.bag(feature, sample).len().saturating_sub(length);
            (0..sparse.batch_size).map(beyond).sum()
        };
        lengths.enumerate().map(left_out_of_feature).sum()
    }

    /// Returns the width of the bottom MLP's output, or of the dense input if there is no bottom
    /// MLP.
    #[must_use]
    pub fn dense_width(&self) -> usize {
        self.bottom.last().copied().unwrap_or(self.dense_features)
    }

    /// Whether samples have a dense vector in addition to sparse features.
    #[must_use]
    pub fn has_dense(&self) -> bool {
        self.dense_width() > 0
    }

    /// Counts the vectors that enter the interaction: the dense vector, if there is one, and all
    /// vectors of the sparse features.
    #[must_use]
    pub fn vectors(&self) -> usize {
        self.sparse_vectors() + usize::from(self.has_dense())
    }

    /// Returns the dimension of the vectors in the dot interaction. All vectors have the width of
    /// the dense vector, or the dimension of the tables without a dense vector.
    #[must_use]
    pub fn dot_dim(&self) -> usize {
        match self.tables.first() {
            Some(table) if !self.has_dense() => table.dim,
            _ => self.dense_width(),
        }
    }

    /// Returns the width of the interaction's output, which is the input of the top MLP.
    #[must_use]
    pub fn interaction_width(&self) -> usize {
        let vectors = self.vectors();
        match self.interaction {
            Interaction::Dot { itself, .. } => {
                // With v vectors, a triangle of the products has v(v − 1)/2 entries, or v(v + 1)/2
                // with its diagonal.
                let partners = if itself { vectors + 1 } else { vectors.saturating_sub(1) };
                self.dense_width() + vectors * partners / 2
            }
            Interaction::Cat | Interaction::DcnV2 { .. } => {
                self.dense_width() + self.pooled_width()
            }
        }
    }

    /// Returns the number of weights of the wide term, which are 0 without it.
    #[must_use]
    pub fn wide_width(&self) -> usize {
        if self.wide { self.interaction_width() } else { 0 }
    }

    /// Returns the bytes of all tables: weights in their data types, and optimizer state in f32.
    #[must_use]
    pub fn table_bytes(&self, optimizer: crate::Optimizer) -> Bytes {
        let bytes = |table: &TableConfig| {
            let weights = table.dim * table.data_type.bytes();
            let row = weights + 4 * optimizer.state_per_row(table.dim);
            table.rows.saturating_mul(row as u64)
        };
        Bytes(self.tables.iter().map(bytes).fold(0, u64::saturating_add))
    }

    /// Checks that the widths of layers, tables and interaction fit together.
    ///
    /// # Errors
    /// Returns [`ConfigError::Shape`] with the key, the layer and the two numbers that disagree.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_widths()?;
        self.check_tables()?;
        if let Interaction::Dot { .. } = self.interaction {
            self.check_dot()?;
        }
        if let Interaction::DcnV2 { layers, rank } = self.interaction
            && (layers == 0 || rank == 0)
        {
            return Err(ConfigError::shape(
                "model.interaction",
                format!("dcn_v2 needs at least 1 layer and rank 1, got {layers} and {rank}"),
            ));
        }
        Ok(())
    }

    fn check_widths(&self) -> Result<(), ConfigError> {
        for (key, widths) in [("model.bottom", &self.bottom), ("model.top", &self.top)] {
            if let Some(layer) = widths.iter().position(|&width| width == 0) {
                let text = format!("layer {layer} has width 0, expected at least 1");
                return Err(ConfigError::shape(key, text));
            }
        }
        let last = self.top.last().copied();
        if last != Some(1) {
            let got = last.map_or("no layer".to_owned(), |width| format!("width {width}"));
            let layer = self.top.len().saturating_sub(1);
            let text = format!("layer {layer} gives the one logit, expected width 1, got {got}");
            return Err(ConfigError::shape("model.top", text));
        }
        if self.wide && self.top.len() == 1 {
            let text = "expected false, or a hidden layer in model.top: without one, the logit \
                        already reads the interaction's output";
            return Err(ConfigError::shape("model.wide", text.to_owned()));
        }
        if self.dense_features == 0 && !self.bottom.is_empty() {
            let text = format!(
                "expected an empty bottom MLP because dense_features is 0, got {} layers",
                self.bottom.len()
            );
            return Err(ConfigError::shape("model.bottom", text));
        }
        if self.vectors() == 0 {
            let text = "the model has neither dense features nor tables".to_owned();
            return Err(ConfigError::shape("model.tables", text));
        }
        // Without dense features, the only vector of a sample has no other vector to be multiplied
        // with.
        if self.interaction_width() == 0 {
            let text = "the dot interaction of a single vector gives nothing: expected another \
                        table, dense features, or kind = \"cat\"";
            return Err(ConfigError::shape("model.interaction", text.to_owned()));
        }
        Ok(())
    }

    fn check_tables(&self) -> Result<(), ConfigError> {
        let mut seen = std::collections::BTreeSet::new();
        let mut seen_features = std::collections::BTreeSet::new();
        for (i, table) in self.tables.iter().enumerate() {
            let key = format!("model.tables[{i}] {:?}", table.name);
            if table.dim == 0 {
                let text = "expected a dim of at least 1, got 0".to_owned();
                return Err(ConfigError::shape(key, text));
            }
            // Ids are i64, so the rows of a larger table could not all be addressed.
            if table.rows > i64::MAX as u64 {
                let text = format!("expected at most {} rows, got {}", i64::MAX, table.rows);
                return Err(ConfigError::shape(key, text));
            }
            check_sequence(&key, table)?;
            if !seen.insert(&table.name) {
                return Err(ConfigError::shape(
                    key,
                    "a table with this name already exists".into(),
                ));
            }
            for feature in &table.features {
                if !seen_features.insert(feature) {
                    let text = format!("feature {feature:?} already belongs to a table");
                    return Err(ConfigError::shape(key, text));
                }
            }
        }
        Ok(())
    }

    fn check_dot(&self) -> Result<(), ConfigError> {
        let dense = self.dot_dim();
        let layer = self.bottom.len().saturating_sub(1);
        for (i, table) in self.tables.iter().enumerate() {
            // Without a dense vector, all tables are compared with the first one.
            if table.dim != dense && !self.has_dense() {
                let text = format!(
                    "the dot interaction needs all tables to be equally wide: table {:?} has dim \
                     {dense}, table {:?} (model.tables[{i}]) has dim {}",
                    self.tables[0].name, table.name, table.dim
                );
                return Err(ConfigError::shape("model.tables", text));
            }
            if table.dim != dense {
                let text = format!(
                    "the dot interaction needs the bottom MLP's last layer (layer {layer}, width \
                     {dense}) to be as wide as table {:?} (model.tables[{i}].dim = {})",
                    table.name, table.dim
                );
                return Err(ConfigError::shape("model.bottom", text));
            }
        }
        Ok(())
    }
}

fn check_sequence(key: &str, table: &TableConfig) -> Result<(), ConfigError> {
    let fail = |problem: String| Err(ConfigError::shape(format!("{key}.sequence_length"), problem));
    match (table.pooling, table.sequence_length) {
        (Pooling::None, None) => fail(
            "missing: expected the number of ids of a bag to look up, because pooling is \"none\""
                .to_owned(),
        ),
        (Pooling::None, Some(length)) if !(1..=SEQUENCE_LENGTH_MAX).contains(&length) => {
            fail(format!("expected 1 to {SEQUENCE_LENGTH_MAX}, got {length}"))
        }
        (Pooling::Sum | Pooling::Mean, Some(length)) => fail(format!(
            "expected pooling = \"none\" beside it, because a pooled bag may have any length, \
             got {length}"
        )),
        _ => Ok(()),
    }
}
