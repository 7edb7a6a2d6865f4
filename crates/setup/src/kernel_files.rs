//! Reads the files of kernel models, from a folder or from those shipped with rowmill, and tables
//! of measured latencies. The models themselves are in `kernel_model`.

use std::path::{Path, PathBuf};

use kernel_model::measured::Table;
use kernel_model::{KernelModel, Kind, Measured};

use crate::error::{Error, UsageError};

/// Reads a table of measured latencies.
///
/// # Errors
/// Returns an error if the file cannot be read, or is not a table of latencies.
pub fn read_table(path: &Path) -> Result<Vec<Measured>, Error> {
    let wrong = |source| Error::from(UsageError::Kernels { path: path.to_owned(), source });
    let mut table: Option<Table> = None;
    data::small_table::for_each_record(path, |line, fields| {
        match &mut table {
            None => {
                let header = fields.iter().map(|field| (*field).to_owned()).collect();
                table = Some(Table::new(header).map_err(wrong)?);
            }
            Some(table) => table.add(line, fields).map_err(wrong)?,
        }
        Ok::<(), Error>(())
    })?;
    let empty = kernel_model::Error::Column { column: "OPName", got: vec!["no text".to_owned()] };
    table.ok_or(empty).and_then(Table::finish).map_err(wrong)
}

/// Returns the path of the file with the model of a kind of kernel.
pub fn model_path(folder: &Path, kind: Kind) -> PathBuf {
    folder.join(format!("{}.kernels", kind.name()))
}

/// Reads the model of a kind of kernel from a folder, or the model that is shipped with rowmill.
///
/// # Errors
/// Returns an error if the file cannot be read, or is not a kernel model.
pub fn read_model(folder: Option<&Path>, kind: Kind) -> Result<KernelModel, Error> {
    let Some(folder) = folder else {
        let source = || PathBuf::from(format!("rowmill's own {}.kernels", kind.name()));
        let own = kernel_model::shipped::model(kind);
        return Ok(own.map_err(|error| UsageError::Kernels { path: source(), source: error })?);
    };
    let path = model_path(folder, kind);
    let bytes = std::fs::read(&path).map_err(Error::io(&path, "read"))?;
    let model = KernelModel::from_bytes(&bytes);
    Ok(model.map_err(|source| UsageError::Kernels { path, source })?)
}
