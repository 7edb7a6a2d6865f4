//! From a checkpoint to another library's state dict, a block of rows at a time.

use std::fs;
use std::path::Path;

use schema::{DataType, Optimizer, TableId};

use super::{DenseName, Target, dense_names, table_name};
use crate::Error;
use crate::checkpoint::{Checkpoint, Part, TensorWriter, sync_folder, temporary_name};
use crate::parameter::DenseParameter;

/// Writes the weights of `checkpoint` to `out` under the names of `target`; returns the file's
/// bytes.
///
/// Every table keeps its data type. The file appears under its name only when all of it is on disk. Optimizer states stay behind.
///
/// # Errors
/// [`Error::NotExpressible`] if the other library has no such model, [`Error::Checksum`] naming the
/// damaged file and tensor, [`Error::Io`] naming the file.
pub fn export(checkpoint: &Checkpoint, target: Target, out: &Path) -> Result<u64, Error> {
    let names = dense_names(&checkpoint.config().model, target)?;
    let temporary = temporary_name(out);
    let written = write(checkpoint, target, &names, &temporary);
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    let bytes = written?;
    fs::rename(&temporary, out).map_err(Error::io("rename", &temporary))?;
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync_folder(parent.unwrap_or(Path::new(".")))?;
    Ok(bytes)
}

fn write(
    checkpoint: &Checkpoint,
    target: Target,
    names: &[DenseName],
    path: &Path,
) -> Result<u64, Error> {
    let model = &checkpoint.config().model;
    let mut tensors: Vec<(String, DataType, Vec<usize>)> = Vec::new();
    for (id, table) in (0..).zip(&model.tables) {
        let name = table_name(model, TableId(id), target);
        tensors.push((name, table.data_type, vec![table.rows as usize, table.dim]));
    }
    let dense = |name: &DenseName| (name.external.clone(), DataType::F32, name.shape.clone());
    tensors.extend(names.iter().map(dense));
    let announced = tensors.iter().map(|(name, kind, shape)| (name.as_str(), *kind, &shape[..]));
    let mut writer = TensorWriter::create(path, announced)?;
    let mut block = Vec::new();
    for table in &model.tables {
        for cut in checkpoint.row_cuts(&table.name).windows(2) {
            let part =
                Part { table: table.name.clone(), rows: cut[0]..cut[1], columns: 0..table.dim };
            block.resize((cut[1] - cut[0]) as usize * table.dim * table.data_type.bytes(), 0);
            checkpoint.read_part(&part, &mut block)?;
            writer.write_bytes(&block)?;
        }
        writer.end_tensor();
    }
    let zeros = |name: &DenseName| DenseParameter::zeros(&name.own, &name.shape, Optimizer::Sgd);
    let mut parameters: Vec<DenseParameter> = names.iter().map(zeros).collect();
    checkpoint.read_dense(&mut parameters)?;
    for (name, parameter) in names.iter().zip(&parameters) {
        match &name.columns {
            Some(columns) => writer.write(&permuted(&parameter.weight, columns))?,
            None => writer.write(&parameter.weight)?,
        }
        writer.end_tensor();
    }
    Ok(writer.finish()?.0)
}

/// `out[row, c] = weight[row, columns[c]]`.
fn permuted(weight: &[f32], columns: &[usize]) -> Vec<f32> {
    let rows = weight.chunks_exact(columns.len());
    rows.flat_map(|row| columns.iter().map(|&column| row[column])).collect()
}
