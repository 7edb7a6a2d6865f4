//! `rowmill predict hardware | kernels | train-kernels` and `evaluate --kernels`: kernels without a
//! trace. The models are `kernel_model`'s; here are the files.

pub mod evaluate;
pub mod hardware;
pub mod price;
mod published;
mod suite;
pub mod train;

use std::path::{Path, PathBuf};

use kernel_model::measured::Table;
use kernel_model::{KernelModel, Kind, Measured, Source};

use setup::error::{Error, UsageError};

/// The measurements of tables, and where they are from.
fn read(paths: &[PathBuf]) -> Result<(Vec<Measured>, Vec<Vec<Source>>), Error> {
    let mut rows = Vec::new();
    let mut sources = vec![Vec::new(); Kind::ALL.len()];
    for path in paths {
        let found = table(path)?;
        let text = std::fs::read(path).map_err(Error::io(path, "read"))?;
        let checksum = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&text));
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for (kind, sources) in Kind::ALL.into_iter().zip(&mut sources) {
            let rows = found.iter().filter(|row| row.work.kind() == kind).count();
            if rows > 0 {
                sources.push(Source { name: name.clone(), rows, checksum: checksum.clone() });
            }
        }
        rows.extend(found);
    }
    Ok((rows, sources))
}

/// The measurements of one table.
fn table(path: &Path) -> Result<Vec<Measured>, Error> {
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

/// The file of a kind's model in a folder.
pub fn file(folder: &Path, kind: Kind) -> PathBuf {
    folder.join(format!("{}.kernels", kind.name()))
}

/// The model of a kind: that of a folder, or the one that comes with rowmill.
pub fn model(folder: Option<&Path>, kind: Kind) -> Result<KernelModel, Error> {
    let Some(folder) = folder else {
        let source = || PathBuf::from(format!("rowmill's own {}.kernels", kind.name()));
        let own = kernel_model::shipped::model(kind);
        return Ok(own.map_err(|error| UsageError::Kernels { path: source(), source: error })?);
    };
    let path = file(folder, kind);
    let bytes = std::fs::read(&path).map_err(Error::io(&path, "read"))?;
    let model = KernelModel::from_bytes(&bytes);
    Ok(model.map_err(|source| UsageError::Kernels { path, source })?)
}
