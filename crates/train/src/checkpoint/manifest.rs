//! `manifest.json`: the content of a checkpoint, its files and their checksums.
//!
//! This file parses and writes the text and detects damage to it. The code of this file does not
//! open files.

use std::ops::Range;
use std::path::Path;

use data::Fingerprint;
use data::checksum::{self, Seal};
use schema::{
    DataType, Optimizer, ReplicaGroups, RowScope, SplitRowRule, TableConfig, TableId, Tile,
};
use serde::{Deserialize, Serialize};

use super::Checksum;
use crate::Error;

/// The version of the format that this program writes and reads.
pub const VERSION: u32 = 1;

/// Bytes of a full-width chunk of a table. A column tile's chunk has the same rows and is smaller.
pub(super) const CHUNK_BYTES: usize = 64 << 20;

const FORMAT: &str = "rowmill-checkpoint";

/// The content of `manifest.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// XXH3-64 of the manifest's own text with these sixteen digits replaced by zeros. The checksum
    /// must be the first field.
    pub(super) checksum: Checksum,
    pub(super) format: String,
    pub version: u32,
    /// Program and version that wrote the checkpoint.
    pub created_by: String,
    pub step: u64,
    pub samples: u64,
    /// Number of ranks of a replica group of the run that wrote the checkpoint. Any other number of
    /// ranks may read it.
    pub world_size: u32,
    /// Replica groups of the run that wrote the checkpoint. A run that loads it may have others.
    #[serde(default, skip_serializing_if = "ReplicaGroups::is_single")]
    pub groups: ReplicaGroups,
    /// Sharding plan of the run that wrote the checkpoint. A run that loads the checkpoint may have
    /// another plan.
    pub plan: Vec<Tile>,
    /// Tables that the plan replicates on every rank. The checkpoint holds them once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicated: Vec<TableId>,
    /// The optimizer whose state is stored for the tables.
    pub sparse_optimizer: Optimizer,
    /// The columns of a row over which the optimizer state was accumulated. Checkpoints of earlier
    /// versions lack it, and then [`Manifest::row_scope`] derives it from `plan`.
    #[serde(default)]
    pub(super) row_scope: Option<RowScope>,
    /// Seeds of the counter-based generators. Together with step and position they determine the
    /// state of the generators.
    pub seeds: Seeds,
    /// The job's configuration as TOML.
    pub config: String,
    /// The transforms fitted on the training data, as `data` serializes them.
    pub fitted: serde_json::Value,
    /// The position in the training data, as `run` serializes it.
    pub position: serde_json::Value,
    /// Fingerprints of the training and held-out rows. The fingerprints are missing in checkpoints
    /// of earlier versions.
    #[serde(default)]
    pub data: SeenData,
    /// Every file of the checkpoint except the manifest.
    pub files: Vec<FileRecord>,
    pub chunks: Vec<Chunk>,
}

/// Fingerprints of the rows of a run. A fingerprint is `None` if there are no such rows, or if an
/// earlier version prepared them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenData {
    pub training: Option<Fingerprint>,
    pub held_out: Option<Fingerprint>,
}

/// Seeds of a run. Generators are functions of (seed, counters) and keep no other state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seeds {
    /// Seed of the initial weights.
    pub model: u64,
    pub training: u64,
}

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// File name within the checkpoint's folder.
    pub name: String,
    pub bytes: u64,
    /// XXH3-64 of the safetensors header, which is all bytes before the tensors' values.
    pub header_checksum: Checksum,
}

/// One tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    pub file: String,
    pub tensor: String,
    pub content: TensorContent,
    pub shape: Vec<usize>,
    #[serde(default)]
    pub data_type: DataType,
    /// XXH3-64 of the tensor's bytes.
    pub checksum: Checksum,
    /// Checksums of parts of a table's weights, so that a reader of a few rows need not read the
    /// whole chunk. The checksums are absent for small chunks and in checkpoints of earlier
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pieces: Option<Pieces>,
}

/// Checksums of a tensor's pieces, which all have the same length except the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pieces {
    /// Number of bytes of a piece.
    pub bytes: u32,
    pub checksums: Vec<Checksum>,
}

/// The role of a tensor in the model: which parameter or rectangle of a table it belongs to, and
/// whether it holds weights or optimizer state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorContent {
    /// Values of the dense parameter with this name.
    DenseWeight(String),
    /// Optimizer state of the dense parameter with this name. For optimizers with two states it
    /// holds the running means.
    DenseState(String),
    /// Running mean squares of the dense parameter with this name.
    DenseMeanSquare(String),
    /// Weights of a rectangle of a table.
    TableWeight(TablePart),
    /// Optimizer state of a rectangle of a table. For optimizers with two states it holds the
    /// running means.
    TableState(TablePart),
    /// Running mean squares of a rectangle of a table.
    TableMeanSquare(TablePart),
}

impl TensorContent {
    /// Creates the content of a part of a dense parameter's state, given its position among
    /// [`schema::Optimizer::state_names`].
    pub(super) fn dense_state(position: usize, name: &str) -> Self {
        let name = name.to_owned();
        if position == 0 { Self::DenseState(name) } else { Self::DenseMeanSquare(name) }
    }

    /// Creates the content of a part of a rectangle's state, given its position among
    /// [`schema::Optimizer::state_names`].
    pub(super) fn table_state(position: usize, part: TablePart) -> Self {
        if position == 0 { Self::TableState(part) } else { Self::TableMeanSquare(part) }
    }

    /// Returns the rectangle of a table's weights or state, or `None` for dense parameters.
    pub(crate) fn part(&self) -> Option<&TablePart> {
        match self {
            Self::TableWeight(part) | Self::TableState(part) | Self::TableMeanSquare(part) => {
                Some(part)
            }
            Self::DenseWeight(_) | Self::DenseState(_) | Self::DenseMeanSquare(_) => None,
        }
    }
}

/// A rectangle of a table: the rows and columns that one chunk covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TablePart {
    pub table: String,
    pub rows: Range<u64>,
    pub columns: Range<usize>,
}

impl TablePart {
    /// Returns the number of weights in the rectangle.
    pub(crate) fn cells(&self) -> u64 {
        (self.rows.end - self.rows.start) * self.columns.len() as u64
    }
}

impl Manifest {
    /// Returns the fixed fields of a new manifest.
    pub(super) fn header() -> (Checksum, String, u32, String) {
        let created_by = format!("rowmill {}", env!("CARGO_PKG_VERSION"));
        (Checksum(0), FORMAT.to_owned(), VERSION, created_by)
    }

    /// Returns the columns of a row over which the optimizer state of `tables` was accumulated.
    #[must_use]
    pub fn row_scope(&self, tables: &[TableConfig]) -> RowScope {
        // The versions that did not record it knew only the rule of column tiles.
        let rule = SplitRowRule::ColumnTiles;
        let plan_scope = || RowScope::new(self.sparse_optimizer, rule, &self.plan, tables);
        self.row_scope.clone().unwrap_or_else(plan_scope)
    }

    /// Serializes the manifest and inserts its checksum.
    pub(super) fn to_text(&self, path: &Path) -> Result<Vec<u8>, Error> {
        let blank = Self { checksum: Checksum(0), ..self.clone() };
        let mut text = serde_json::to_vec_pretty(&blank).map_err(|error| problem(path, &error))?;
        text.push(b'\n');
        checksum::fill(&mut text);
        Ok(text)
    }

    /// Parses a manifest: verifies its checksum, then its version, then every field.
    pub(super) fn parse(path: &Path, text: &[u8]) -> Result<Self, Error> {
        /// The fields that every version of the manifest has. These fields are read first, so that
        /// the error for another version can name the version.
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u64,
        }
        match checksum::check(text) {
            Seal::Whole => {}
            Seal::Absent => return Err(problem(path, &"no checksum at its beginning")),
            Seal::Broken { expected, got } => {
                let tensor = "manifest".to_owned();
                return Err(Error::Checksum { path: path.into(), tensor, expected, got });
            }
        }
        let head: Head = serde_json::from_slice(text).map_err(|error| problem(path, &error))?;
        if head.format != FORMAT {
            return Err(problem(path, &format!("expected {FORMAT:?}, got {:?}", head.format)));
        }
        if head.version != u64::from(VERSION) {
            let got = head.version;
            return Err(Error::ManifestVersion { path: path.into(), expected: VERSION, got });
        }
        serde_json::from_slice(text).map_err(|error| problem(path, &error))
    }
}

fn problem(path: &Path, problem: &dyn std::fmt::Display) -> Error {
    Error::Manifest { path: path.to_owned(), problem: problem.to_string() }
}
