//! `dataset.json`: what a prepared dataset is. Versioned; the Parquet files beside it hold the
//! rows.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::fitted::Fitted;
use crate::loss::Losses;

/// File name of the manifest within the dataset's folder.
pub(crate) const FILE_NAME: &str = "dataset.json";
/// Version this code writes and reads.
const VERSION: u32 = 1;

/// A categorical column of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CategoricalEntry {
    /// Name of the column.
    pub name: String,
    /// Whether a row holds a list of categories.
    pub is_list: bool,
}

/// The columns of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Columns {
    /// Dense columns in model order.
    pub dense: Vec<String>,
    /// Categorical columns.
    pub categorical: Vec<CategoricalEntry>,
}

/// One Parquet file of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// File name within the folder.
    pub file: String,
    /// Its rows.
    pub rows: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// The content of `dataset.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this structure, 1.
    pub version: u32,
    /// Rows of all parts.
    pub rows: u64,
    /// Rows of every row group but the last.
    pub row_group_rows: u64,
    /// Columns beside `label`.
    pub columns: Columns,
    /// The Parquet files in order.
    pub parts: Vec<Part>,
    /// The inputs as they were named.
    pub inputs: Vec<String>,
    /// Transforms and vocabularies applied.
    pub fitted: Fitted,
    /// What was left out.
    pub losses: Losses,
    /// The generator's report, if the rows are synthetic.
    #[serde(default)]
    pub generator: Option<serde_json::Value>,
}

impl Manifest {
    /// The version this code writes.
    pub(crate) const VERSION: u32 = VERSION;

    pub(crate) fn read(dir: &Path) -> Result<Self, Error> {
        /// What every version has.
        #[derive(Deserialize)]
        struct Versioned {
            version: Option<u64>,
        }

        let path = dir.join(FILE_NAME);
        let open = || File::open(&path).map(BufReader::new).map_err(Error::open(&path));
        let problem = |problem: String| Error::Manifest { path: path.clone(), problem };
        // Read twice rather than held as a tree: vocabularies may be large.
        let versioned: Versioned =
            serde_json::from_reader(open()?).map_err(|e| problem(e.to_string()))?;
        if versioned.version != Some(u64::from(VERSION)) {
            let got = versioned.version.map_or("none".to_owned(), |version| version.to_string());
            return Err(problem(format!("version: expected {VERSION}, got {got}")));
        }
        let manifest: Self =
            serde_json::from_reader(open()?).map_err(|e| problem(e.to_string()))?;
        let rows: u64 = manifest.parts.iter().map(|part| part.rows).sum();
        if rows != manifest.rows || manifest.row_group_rows == 0 {
            let text = format!("rows: expected {} over all parts, got {rows}", manifest.rows);
            return Err(problem(text));
        }
        Ok(manifest)
    }

    /// Writes to a temporary name, syncs, renames.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), Error> {
        let path = dir.join(FILE_NAME);
        let partial = dir.join(format!("{FILE_NAME}.partial"));
        let write = || {
            let mut file = BufWriter::new(File::create(&partial)?);
            serde_json::to_writer(&mut file, self)?;
            file.write_all(b"\n")?;
            file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
            std::fs::rename(&partial, &path)
        };
        write().map_err(Error::write(&path))
    }
}
