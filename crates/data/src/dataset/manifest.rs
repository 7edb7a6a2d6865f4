//! `dataset.json`: what a prepared dataset is. Versioned, and sealed with its own checksum; the
//! Parquet files beside it hold the rows.
//!
//! Checksums form a chain: the text's own covers that of each file's footer, which holds those of
//! the column chunks ([0023](../../../docs/decisions/0023-checksums-of-prepared-data.md)).

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
/// Version this code writes.
const VERSION: u32 = 2;
/// Version that carries no checksums; read as it is.
const VERSION_UNCHECKED: u32 = 1;

/// A categorical column of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CategoricalEntry {
    /// Name of the column.
    pub name: String,
    /// Whether a row holds a list of categories.
    pub is_list: bool,
    /// Whether values below 0 are bit patterns of ids from 2^63 on; else they are negative ids.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsigned: bool,
}

/// The columns of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetColumns {
    /// Dense columns in model order.
    pub dense: Vec<String>,
    pub categorical: Vec<CategoricalEntry>,
}

/// One Parquet file of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetPart {
    /// File name within the folder.
    pub file: String,
    pub rows: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its footer; `None` in a dataset of version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub footer: Option<Footer>,
}

/// The end of a Parquet file: where its column chunks lie, and the checksum of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footer {
    /// Its length in bytes.
    pub bytes: u64,
    /// XXH3-64 of its bytes.
    pub checksum: Checksum,
}

/// The content of `dataset.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this structure: 2, or 1 without checksums.
    pub version: u32,
    /// Rows of all parts.
    pub rows: u64,
    /// Rows of every row group but the last.
    pub row_group_rows: u64,
    pub columns: DatasetColumns,
    /// The Parquet files in order.
    pub parts: Vec<DatasetPart>,
    /// The inputs as they were named.
    pub inputs: Vec<String>,
    /// Transforms and vocabularies applied.
    pub fitted: Fitted,
    /// What was left out.
    pub losses: Losses,
    /// How many of the last rows a time has set apart to be held out; the rows are in the order of
    /// the inputs where none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<u64>,
    /// The generator's report, if the rows are synthetic.
    #[serde(default)]
    pub generator: Option<serde_json::Value>,
}

impl Manifest {
    /// The version this code writes.
    pub(crate) const VERSION: u32 = VERSION;

    /// Reads the text, compares its checksum and checks its version.
    pub(crate) fn read(dir: &Path) -> Result<Self, Error> {
        /// What every version has.
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
        // Before the fields: another version may have others.
        let versioned: Versioned =
            serde_json::from_slice(&text).map_err(|e| problem(e.to_string()))?;
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

    /// Whether the rows carry checksums.
    #[must_use]
    pub fn has_checksums(&self) -> bool {
        self.version > VERSION_UNCHECKED
    }

    /// A hash of the rows as they are stored, the same for the same rows wherever they lie and
    /// whatever their inputs were called; `None` without checksums.
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

    /// Writes to a temporary name, syncs, renames.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), Error> {
        replace(&dir.join(FILE_NAME), self)
    }
}

/// Writes sealed JSON to a temporary name, syncs, renames.
pub(crate) fn replace(path: &Path, content: &impl Serialize) -> Result<(), Error> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".writing");
    let write = || {
        let text = checksum::sealed(content)?;
        let mut file = create_anew(Path::new(&partial))?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&partial, path)
    };
    write().map_err(Error::write(path))
}
