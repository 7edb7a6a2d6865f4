//! The manifest `dataset.json` of a prepared dataset: columns, parts, fitted state and losses. The
//! manifest is versioned and carries its own checksum, while the rows are in the Parquet files
//! beside it.
//!
//! Checksums form a chain: the manifest's own checksum covers the checksum of each file's footer,
//! and each footer holds the checksums of its column chunks
//! ([0023](../../../docs/decisions/0023-checksums-of-prepared-data.md)).

use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};
use trace::file::create_anew;
use xxhash_rust::xxh3::Xxh3Default;

use crate::checksum::{self, Checksum, Fingerprint, Seal};
use crate::dataset::fitted::Fitted;
use crate::error::Error;
use crate::loss::Losses;

/// File name of the manifest within the dataset's folder.
pub(crate) const FILE_NAME: &str = "dataset.json";
const VERSION: u32 = 2;
/// Format version without checksums, which is still read.
const VERSION_UNCHECKED: u32 = 1;

/// The manifest's entry for one categorical column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CategoricalEntry {
    pub name: String,
    pub is_list: bool,
    /// If true, values below 0 are the bit patterns of unsigned ids from 2^63 on; otherwise they
    /// are negative ids.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsigned: bool,
}

/// Names of the columns that a dataset stores, in the order of the model's inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetColumns {
    pub dense: Vec<String>,
    pub categorical: Vec<CategoricalEntry>,
}

/// The manifest's entry for one Parquet file of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetPart {
    pub file: String,
    pub rows: u64,
    pub bytes: u64,
    /// Length and checksum of the file's footer, which datasets of version 1 lack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub footer: Option<Footer>,
}

/// Length and checksum of a Parquet footer, which locates the column chunks and holds the checksum
/// of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footer {
    pub bytes: u64,
    pub checksum: Checksum,
}

/// The content of `dataset.json`: everything about a prepared dataset except its rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format version: 2, or 1 without checksums.
    pub version: u32,
    pub rows: u64,
    /// Number of rows in every row group but the last.
    pub row_group_rows: u64,
    pub columns: DatasetColumns,
    pub parts: Vec<DatasetPart>,
    /// Paths or URLs of the inputs as the user gave them.
    pub inputs: Vec<String>,
    pub fitted: Fitted,
    pub losses: Losses,
    /// Number of rows at the end that a split by time holds out; `None` if the rows keep the order
    /// of the inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<u64>,
    /// Number of the rows of `held_out` that come first, for validation; `None` unless a split by
    /// time also holds out rows for a test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<u64>,
    /// Report of the generator, for synthetic rows only.
    #[serde(default)]
    pub generator: Option<serde_json::Value>,
}

impl Manifest {
    /// The format version that is written.
    pub(crate) const VERSION: u32 = VERSION;

    /// Reads `dataset.json`, verifies its checksum and checks its version.
    pub(crate) fn read(dir: &Path) -> Result<Self, Error> {
        /// The only field that every version of the manifest has.
        #[derive(Deserialize)]
        struct Versioned {
            version: Option<u64>,
        }

        let path = dir.join(FILE_NAME);
        let problem = |problem: String| Error::Manifest { path: path.clone(), problem };
        let text = std::fs::read(&path).map_err(Error::open(&path))?;
        let seal = checksum::check(&text);
        if let Seal::Broken { expected, got } = seal {
            let place = "the text".to_owned();
            return Err(Error::Checksum { path, place, expected, got });
        }
        // The version is parsed first, because another version may have other fields.
        let versioned: Versioned =
            serde_json::from_slice(&text).map_err(|e| problem(e.to_string()))?;
        // Version 1 has no checksum, so a text with a checksum must have the current version.
        let readable = match seal {
            Seal::Absent => VERSION_UNCHECKED,
            _ => VERSION,
        };
        if versioned.version != Some(u64::from(readable)) {
            let got = versioned.version.map_or("none".to_owned(), |version| version.to_string());
            return Err(problem(match seal {
                Seal::Absent if versioned.version == Some(u64::from(VERSION)) => {
                    "expected a checksum first, got none".to_owned()
                }
                _ => format!("version: expected {VERSION}, got {got}"),
            }));
        }
        let manifest: Self = serde_json::from_slice(&text).map_err(|e| problem(e.to_string()))?;
        manifest.check().map_err(problem)?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), String> {
        let rows: u64 = self.parts.iter().map(|part| part.rows).sum();
        if rows != self.rows || self.row_group_rows == 0 {
            return Err(format!("rows: expected {} over all parts, got {rows}", self.rows));
        }
        let unlike = |part: &&DatasetPart| part.footer.is_some() != self.has_checksums();
        match self.parts.iter().find(unlike) {
            None => Ok(()),
            Some(part) => Err(format!(
                "{}: expected {} checksum in version {}",
                part.file,
                if self.has_checksums() { "a" } else { "no" },
                self.version
            )),
        }
    }

    /// Tells whether the parts of this dataset carry checksums.
    #[must_use]
    pub fn has_checksums(&self) -> bool {
        self.version > VERSION_UNCHECKED
    }

    /// Computes a hash of the stored rows that depends neither on the folder nor on the names of
    /// the inputs; `None` for a dataset without checksums.
    #[must_use]
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        let mut hash = Xxh3Default::new();
        for part in &self.parts {
            let Footer { bytes, checksum } = part.footer?;
            for value in [part.rows, part.bytes, bytes, checksum.0] {
                hash.update(&value.to_le_bytes());
            }
        }
        Some(Fingerprint(hash.digest128()))
    }

    pub(crate) fn write(&self, dir: &Path) -> Result<(), Error> {
        replace(&dir.join(FILE_NAME), self)
    }
}

/// Writes `content` as sealed JSON to a temporary file, syncs it and renames it to `path`, so that
/// readers never see half a file.
pub(crate) fn replace(path: &Path, content: &impl Serialize) -> Result<(), Error> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".writing");
    let write = || {
        let text = checksum::sealed(content)?;
        let mut file = create_anew(Path::new(&partial))?;
        file.write_all(&text)?;
        // The content must be on disk before the file gets its name.
        file.sync_all()?;
        std::fs::rename(&partial, path)
    };
    write().map_err(Error::write(path))
}
