//! Exports a checkpoint to another library's state dict, one block of rows at a time.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use device::Pool;
use schema::{DataType, ModelConfig, Optimizer, RowScope, ShardingPlan, TableId, Tile};

use super::optimizer;
use super::{DenseName, Dialect, dense_names, table_name};
use crate::checkpoint::{Checkpoint, TensorWriter, sync_folder};
use crate::parameter::{self, DenseParameter, Spot};
use crate::{Error, RuleChange};

/// The metadata key under which an exported file holds the model's configuration as JSON.
const MODEL_NOTE: &str = "rowmill.model";

/// Writes the weights of `checkpoint` to `out` under the names of `target`. Returns the size of the
/// file in bytes.
///
/// Every table keeps its data type. The file gets its name only when it is completely on disk.
/// Optimizer states are not included, see [`export_optimizer`].
///
/// # Errors
/// [`Error::NotExpressible`] if the other library cannot express the model. [`Error::Checksum`]
/// names a damaged file and tensor. [`Error::Value`] names a non-finite value. [`Error::Io`] names
/// the file that cannot be read or written.
pub fn export(checkpoint: &Checkpoint, target: Dialect, out: &Path) -> Result<u64, Error> {
    let names = dense_names(&checkpoint.config().model, target)?;
    replace(out, |path| write_weights(checkpoint, target, &names, path))
}

/// Writes the optimizer states of `checkpoint` to `out`. Each tensor is called `WEIGHT.STATE`,
/// where `WEIGHT` is the name of the weight in [`export`]. Returns the size of the file in bytes.
///
/// Adagrad's `sum` and the `exp_avg` and `exp_avg_sq` of Adam, SparseAdam and LAMB have the
/// weight's shape. Row-wise Adagrad's `sum` has the shape `[rows]`. A weight under SGD has no
/// state. Adam and SparseAdam have states of the same names, so the file's metadata names the
/// optimizers.
///
/// The other library assumes that states cover whole rows, but a run on column tiles has one state
/// per tile. With [`RuleChange::Accept`], each row gets the mean of its tiles' states, weighted by
/// their columns.
///
/// # Errors
/// Returns the errors of [`export`], and [`Error::OtherRowScope`] if the run used column tiles and
/// [`RuleChange::Refuse`] was given.
pub fn export_optimizer(
    checkpoint: &Checkpoint,
    target: Dialect,
    out: &Path,
    rule_change: RuleChange,
) -> Result<u64, Error> {
    if let (RowScope::ColumnTiles(_), RuleChange::Refuse) = (checkpoint.row_scope(), rule_change) {
        return Err(checkpoint.other_row_scope(&RowScope::WholeRows));
    }
    let names = dense_names(&checkpoint.config().model, target)?;
    replace(out, |path| write_states(checkpoint, target, &names, path))
}

/// Lets `write` write a temporary file next to `out`, and renames the file when it is complete.
fn replace(out: &Path, write: impl FnOnce(&Path) -> Result<u64, Error>) -> Result<u64, Error> {
    let mut temporary = out.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let bytes = write(&temporary).map_err(|error| {
        // Report the first error, and replace the temporary name in it by the requested one.
        let _ = fs::remove_file(&temporary);
        match error {
            Error::Io { action, path, source } if path == temporary => {
                Error::io(action, out)(source)
            }
            other => other,
        }
    })?;
    // A rename replaces an old file at once, so readers never see a part of the new one.
    fs::rename(&temporary, out).map_err(Error::io("rename", &temporary))?;
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync_folder(parent.unwrap_or(Path::new(".")))?;
    Ok(bytes)
}

fn write_weights(
    checkpoint: &Checkpoint,
    target: Dialect,
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
    let mut writer = TensorWriter::create(path, &model_note(model), announced)?;
    let host = Pool::new(1);
    for tile in ShardingPlan::table_wise(&model.tables, 1).tiles() {
        let table = &model.tables[tile.table.index()].name;
        // Blocks of rows end where chunks end, so that every chunk is read and verified only once.
        for cut in checkpoint.row_cuts(table).windows(2) {
            let block = Tile { rows: cut[0]..cut[1], ..tile.clone() };
            let block = checkpoint.read_tile_weights(table, &block)?;
            // Pass SGD, because only weights were read and there is no state to check.
            refuse(checkpoint, parameter::not_finite(&host, &block.view(), table, Optimizer::Sgd))?;
            writer.write_bytes(block.weight.view().bytes())?;
        }
        writer.end_tensor();
    }
    for (name, parameter) in names.iter().zip(dense_of(checkpoint, names)?) {
        match &name.columns {
            Some(columns) => writer.write(&permuted(&parameter.weight, columns))?,
            None => writer.write(&parameter.weight)?,
        }
        writer.end_tensor();
    }
    Ok(writer.finish()?.0)
}

/// Creates the metadata from which a loader in another language builds the model: pooling, shared
/// tables, interaction.
fn model_note(model: &ModelConfig) -> BTreeMap<String, String> {
    // Serialization cannot fail, because every configuration was parsed from a format as general as
    // JSON.
    let text = serde_json::to_string(model).unwrap_or_default();
    BTreeMap::from([(MODEL_NOTE.to_owned(), text)])
}

fn write_states(
    checkpoint: &Checkpoint,
    target: Dialect,
    dense_names: &[DenseName],
    path: &Path,
) -> Result<u64, Error> {
    let (model, rules) = (&checkpoint.config().model, &checkpoint.config().optimizer);
    let (sparse, dense) = (rules.sparse.kind, rules.dense.kind);
    let whole = ShardingPlan::table_wise(&model.tables, 1);
    let mut tensors = Vec::new();
    for tile in whole.tiles() {
        let name = table_name(model, tile.table, target);
        tensors.extend(optimizer::tensors(sparse, &name, &[tile.row_count(), tile.dim()]));
    }
    for name in dense_names {
        tensors.extend(optimizer::tensors(dense, &name.external, &name.shape));
    }
    let announced = tensors.iter().map(|(name, shape)| (name.as_str(), DataType::F32, &shape[..]));
    let mut writer = TensorWriter::create(path, &optimizer::notes(rules), announced)?;
    let host = Pool::new(1);
    for tile in whole.tiles() {
        let table = &model.tables[tile.table.index()].name;
        let parts = optimizer::names(sparse).len();
        for part in 0..parts {
            for cut in checkpoint.row_cuts(table).windows(2) {
                let block = Tile { rows: cut[0]..cut[1], ..tile.clone() };
                let block_state = checkpoint.read_tile(table, &block, sparse)?;
                refuse(
                    checkpoint,
                    parameter::not_finite(&host, &block_state.view(), table, sparse),
                )?;
                let state = block_state.state;
                let width = state.len() / block.row_count() / parts;
                let rows = state.chunks_exact(width * parts);
                let values = rows.flat_map(|row| &row[part * width..(part + 1) * width]);
                writer.write(&values.copied().collect::<Vec<f32>>())?;
            }
            writer.end_tensor();
        }
    }
    for (name, parameter) in dense_names.iter().zip(dense_of(checkpoint, dense_names)?) {
        let parts = optimizer::names(dense).len().max(1);
        for state in parameter.state.chunks_exact((parameter.state.len() / parts).max(1)) {
            match &name.columns {
                Some(columns) if state.len() == parameter.weight.len() => {
                    writer.write(&permuted(state, columns))?;
                }
                _ => writer.write(state)?,
            }
            writer.end_tensor();
        }
    }
    Ok(writer.finish()?.0)
}

/// Reads the dense parameters and their state, in the order of `names`.
fn dense_of(checkpoint: &Checkpoint, names: &[DenseName]) -> Result<Vec<DenseParameter>, Error> {
    let kind = checkpoint.config().optimizer.dense.kind;
    let zeros = |name: &DenseName| DenseParameter::zeros(&name.own, &name.shape, kind);
    let mut parameters: Vec<DenseParameter> = names.iter().map(zeros).collect();
    checkpoint.read_dense(&mut parameters)?;
    let mut spots = parameters.iter().map(|parameter| parameter.not_finite(kind));
    refuse(checkpoint, spots.find_map(|spot| spot))?;
    Ok(parameters)
}

/// Fails if a non-finite value was found in `checkpoint`.
fn refuse(checkpoint: &Checkpoint, spot: Option<Spot>) -> Result<(), Error> {
    let Some(spot) = spot else { return Ok(()) };
    Err(Error::Value { path: checkpoint.folder().to_owned(), spot, expected: "a finite number" })
}

/// Permutes columns: `out[row, c] = weight[row, columns[c]]`.
fn permuted(weight: &[f32], columns: &[usize]) -> Vec<f32> {
    let rows = weight.chunks_exact(columns.len());
    rows.flat_map(|row| columns.iter().map(|&column| row[column])).collect()
}
