//! Writes a checkpoint: first one file per rank, by all ranks at the same time, then the manifest,
//! then the final name.
//!
//! Values are hashed and written directly from the tables, piece by piece, without a copy.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use device::backend::TileRows;
use schema::{DataType, JobConfig, Optimizer, Rank, RowScope, ShardingPlan, TableConfig, Tile};
use serde::{Deserialize, Serialize};
use trace::file::create_anew;

use super::manifest::{
    CHUNK_BYTES, Chunk, FileRecord, Manifest, Seeds, SeenData, TablePart, TensorContent,
};
use super::{Checksum, TensorWriter, folder};
use crate::Error;
use crate::parameter::{DenseParameter, TileState, TileView};

/// Number of weights of a tile that are read at a time.
const PART_VALUES: usize = 1 << 20;
/// Number of values gathered at a time if a tensor takes only some columns of each row.
const BLOCK_VALUES: usize = 1 << 16;

/// Writes one checkpoint into a temporary folder. [`CheckpointWriter::commit`] gives the folder its
/// final name. A writer that is dropped before that deletes its files.
#[derive(Debug)]
pub struct CheckpointWriter {
    step: u64,
    tables: Vec<TableConfig>,
    chunk_bytes: usize,
    temporary: PathBuf,
    folder: PathBuf,
    role: Role,
}

/// Whether a writer is responsible for its temporary folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The writer created the folder. The writer commits the folder, or deletes it when dropped.
    Owner,
    /// Another rank created the folder and will commit it.
    Guest,
}

/// The record of one written file and its chunks. [`CheckpointWriter::commit`] takes one record per
/// call of a `write_…` method.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WrittenFile {
    pub file: FileRecord,
    pub chunks: Vec<Chunk>,
}

/// A callback that reads rows of a tile and passes them to its second argument.
pub type ReadTile<'a> = &'a mut dyn FnMut(
    TileRows,
    &mut dyn FnMut(&TileView<'_>) -> Result<(), Error>,
) -> Result<(), Error>;

/// The fields of a manifest that do not describe tensors.
#[derive(Clone, Debug)]
pub struct Meta<'a> {
    pub samples: u64,
    pub config: &'a JobConfig,
    pub plan: &'a ShardingPlan,
    /// The columns of a row over which the optimizer state of the tables was accumulated.
    pub row_scope: RowScope,
    /// The transforms fitted on the training data.
    pub fitted: serde_json::Value,
    /// The position in the training data.
    pub position: serde_json::Value,
    /// Fingerprints of the rows that the run uses.
    pub data: SeenData,
}

/// A checkpoint that is complete and has its final name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub folder: PathBuf,
    /// Bytes of all files of the checkpoint.
    pub bytes: u64,
}

impl CheckpointWriter {
    /// Creates `<run>/checkpoints/step-N.tmp`, after removing the temporary folders of writers that
    /// were killed.
    ///
    /// # Errors
    /// [`Error::Io`] names the folder that cannot be created or removed.
    pub fn begin(run_folder: &Path, step: u64, tables: &[TableConfig]) -> Result<Self, Error> {
        folder::clean(run_folder)?;
        let mut writer = Self::join(run_folder, step, tables);
        writer.role = Role::Owner;
        folder::create_temporary(&writer.temporary)?;
        Ok(writer)
    }

    /// Creates a writer for the folder that another rank has created and will commit.
    #[must_use]
    pub fn join(run_folder: &Path, step: u64, tables: &[TableConfig]) -> Self {
        let folder = folder::checkpoints(run_folder).join(folder::name(step));
        let temporary = folder::temporary_name(&folder);
        let (tables, chunk_bytes, role) = (tables.to_vec(), CHUNK_BYTES, Role::Guest);
        Self { step, tables, chunk_bytes, temporary, folder, role }
    }

    /// Returns the training step of the checkpoint.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Splits tables into chunks of at most `bytes` bytes instead of 64 MiB.
    #[must_use]
    pub fn with_chunk_bytes(mut self, bytes: usize) -> Self {
        self.chunk_bytes = bytes;
        self
    }

    /// Writes and syncs the tiles of one rank, with the state of `optimizer`. Several ranks may
    /// call this at the same time.
    ///
    /// # Errors
    /// [`Error::Io`] names the file that cannot be written.
    ///
    /// # Panics
    /// Panics if a tile's values do not have the tile's shape.
    pub fn write_rank(
        &self,
        rank: Rank,
        tiles: &[TileState],
        optimizer: Optimizer,
    ) -> Result<WrittenFile, Error> {
        let rectangles: Vec<Tile> = tiles.iter().map(|state| state.tile.clone()).collect();
        self.write_tiles(rank, &rectangles, optimizer, &mut |TileRows { tile, rows }, take| {
            let TileState { tile, weight, state } = &tiles[tile];
            let (dim, width) = (tile.dim(), state.len() / tile.row_count().max(1));
            let weight = weight.view().slice(rows.start * dim..rows.end * dim);
            let (tile, state) = (tile.clone(), &state[rows.start * width..rows.end * width]);
            take(&TileView { tile, weight, state })
        })
    }

    /// Writes tiles like [`Self::write_rank`], but reads them piece by piece. `read` passes the
    /// requested rows to its second argument.
    ///
    /// # Errors
    /// [`Error::Io`] names the file that cannot be written. Errors of `read` are returned
    /// unchanged.
    ///
    /// # Panics
    /// Panics if a tile's values do not have the tile's shape.
    pub fn write_tiles(
        &self,
        rank: Rank,
        tiles: &[Tile],
        optimizer: Optimizer,
        read: ReadTile<'_>,
    ) -> Result<WrittenFile, Error> {
        let mut planned = Vec::new();
        for (i, tile) in tiles.iter().enumerate() {
            let chunks = self.plan_tile(tile, optimizer);
            planned.extend(chunks.into_iter().map(|chunk| (i, chunk)));
        }
        let (sources, chunks): (Vec<usize>, Vec<Chunk>) = planned.into_iter().unzip();
        let mut sources = sources.into_iter().map(|i| (i, &tiles[i]));
        let mut buffer = Vec::new();
        self.write_file(&rank_file(rank), chunks, |chunk, writer| {
            let (Some(source), Some(part)) = (sources.next(), chunk.content.part()) else {
                return Ok(());
            };
            let (number, tile) = source;
            let first = (part.rows.start - tile.rows.start) as usize;
            let (end, dim) = (first + chunk.shape[0], tile.dim());
            // A device or a file copies the rows, so only a part of a chunk is read at a time.
            let step = (PART_VALUES / dim).max(1);
            for start in (first..end).step_by(step) {
                let rows = start..end.min(start + step);
                let count = rows.len();
                read(TileRows { tile: number, rows }, &mut |view| {
                    let state_len = count * optimizer.state_per_row(dim);
                    assert_eq!(view.weight.len(), count * dim, "tile weights");
                    assert_eq!(view.state.len(), state_len, "tile state");
                    write_rows(writer, chunk, view, &mut buffer)
                })?;
            }
            Ok(())
        })
    }

    /// Writes and syncs the dense parameters, which are the same on every rank, with the state of
    /// `optimizer`.
    ///
    /// # Errors
    /// [`Error::Io`] names the file that cannot be written.
    pub fn write_dense(
        &self,
        parameters: &[DenseParameter],
        optimizer: Optimizer,
    ) -> Result<WrittenFile, Error> {
        let names = optimizer.state_names();
        let mut chunks = Vec::new();
        let mut values: Vec<&[f32]> = Vec::new();
        for parameter in parameters {
            let name = &parameter.name;
            let content = TensorContent::DenseWeight(name.clone());
            chunks.push(chunk(format!("dense/{name}/weight"), content, parameter.shape.clone()));
            values.push(&parameter.weight);
            let len = parameter.state.len() / names.len().max(1);
            let parts = parameter.state.chunks(len.max(1));
            for (position, (part, state)) in names.iter().zip(parts).enumerate() {
                let content = TensorContent::dense_state(position, name);
                let shape = vec![state.len()];
                chunks.push(chunk(format!("dense/{name}/{part}"), content, shape));
                values.push(state);
            }
        }
        let mut values = values.into_iter();
        self.write_file("dense.safetensors", chunks, |_, writer| {
            values.next().map_or(Ok(()), |values| writer.write(values))
        })
    }

    /// Writes the manifest, syncs it and the folder, and renames the folder to its final name.
    ///
    /// # Errors
    /// [`Error::Uncovered`] if `records` do not hold every weight of a table. [`Error::Io`] names
    /// the file that cannot be written. [`Error::Config`] if the job cannot be written as TOML.
    pub fn commit(
        &self,
        meta: &Meta<'_>,
        mut records: Vec<WrittenFile>,
    ) -> Result<Committed, Error> {
        // Ranks finish in any order. Sorting makes the manifest reproducible.
        records.sort_by(|a, b| a.file.name.cmp(&b.file.name));
        let path = self.temporary.join("manifest.json");
        let manifest = self.manifest(&path, meta, records)?;
        self.check_cover(&manifest.chunks)?;
        let text = manifest.to_text(&path)?;
        let mut file = create_anew(&path).map_err(Error::io("create", &path))?;
        file.write_all(&text).map_err(Error::io("write", &path))?;
        file.sync_all().map_err(Error::io("sync", &path))?;
        // The folder's entries must be on disk before the rename makes the checkpoint visible.
        folder::sync_folder(&self.temporary)?;
        folder::replace(&self.temporary, &self.folder)?;
        let bytes = manifest.files.iter().map(|file| file.bytes).sum::<u64>() + text.len() as u64;
        Ok(Committed { folder: self.folder.clone(), bytes })
    }

    /// Lists the chunks of one tile in file order. The checksums of the chunks are computed when
    /// the chunks are written.
    pub(crate) fn plan_tile(&self, tile: &Tile, optimizer: Optimizer) -> Vec<Chunk> {
        let table = &self.tables[tile.table.index()];
        let blocks = row_blocks(&tile.rows, table.dim, self.chunk_bytes);
        let (name, columns) = (&table.name, tile.columns.clone());
        let mut chunks = Vec::new();
        let names = optimizer.state_names();
        let state_width = optimizer.state_per_row(tile.dim()) / names.len().max(1);
        let states = names.iter().enumerate().map(|(i, &name)| (Some(i), name, state_width));
        for (state, kind, width) in std::iter::once((None, "weight", tile.dim())).chain(states) {
            for rows in &blocks {
                let shape = vec![(rows.end - rows.start) as usize, width];
                let tensor = format!(
                    "table/{name}/rows/{}-{}/columns/{}-{}/{kind}",
                    rows.start, rows.end, columns.start, columns.end
                );
                let part =
                    TablePart { table: name.clone(), rows: rows.clone(), columns: columns.clone() };
                let (content, data_type) = match state {
                    None => (TensorContent::TableWeight(part), table.data_type),
                    Some(position) => (TensorContent::table_state(position, part), DataType::F32),
                };
                chunks.push(Chunk { data_type, ..chunk(tensor, content, shape) });
            }
        }
        chunks
    }

    /// Writes one file of tensors. Calls `emit` for each chunk in turn to write the chunk's values.
    pub(crate) fn write_file(
        &self,
        name: &str,
        mut chunks: Vec<Chunk>,
        mut emit: impl FnMut(&Chunk, &mut TensorWriter) -> Result<(), Error>,
    ) -> Result<WrittenFile, Error> {
        let path = self.temporary.join(name);
        let tensors = chunks
            .iter()
            .map(|chunk| (chunk.tensor.as_str(), chunk.data_type, chunk.shape.as_slice()));
        let mut writer = TensorWriter::create(&path, &BTreeMap::new(), tensors)?;
        for chunk in &mut chunks {
            emit(chunk, &mut writer)?;
            let (checksum, pieces) = writer.end_tensor();
            chunk.checksum = checksum;
            // Only table weights are read by rows when scoring, so only they need checksums of
            // pieces.
            let is_read_by_rows = matches!(chunk.content, TensorContent::TableWeight(_));
            chunk.pieces = pieces.filter(|_| is_read_by_rows);
            chunk.file = name.to_owned();
        }
        let (bytes, header_checksum) = writer.finish()?;
        Ok(WrittenFile {
            file: FileRecord { name: name.to_owned(), bytes, header_checksum },
            chunks,
        })
    }

    fn manifest(
        &self,
        path: &Path,
        meta: &Meta<'_>,
        records: Vec<WrittenFile>,
    ) -> Result<Manifest, Error> {
        let (mut files, mut chunks) = (Vec::new(), Vec::new());
        for record in records {
            files.push(record.file);
            chunks.extend(record.chunks);
        }
        let config = meta.config;
        let (checksum, format, version, created_by) = Manifest::header();
        Ok(Manifest {
            checksum,
            format,
            version,
            created_by,
            step: self.step,
            samples: meta.samples,
            world_size: meta.plan.group_size(),
            groups: meta.plan.groups(),
            plan: meta.plan.tiles().to_vec(),
            replicated: meta.plan.replicated(),
            sparse_optimizer: config.optimizer.sparse.kind,
            row_scope: Some(meta.row_scope.clone()),
            seeds: Seeds { model: config.model.seed, training: config.training.seed },
            config: config
                .to_toml()
                .map_err(|source| Error::Config { path: path.to_owned(), source })?,
            fitted: meta.fitted.clone(),
            position: meta.position.clone(),
            data: meta.data,
            files,
            chunks,
        })
    }

    fn check_cover(&self, chunks: &[Chunk]) -> Result<(), Error> {
        for table in &self.tables {
            let cells = |chunk: &Chunk| match &chunk.content {
                TensorContent::TableWeight(part) if part.table == table.name => part.cells(),
                _ => 0,
            };
            let got = chunks.iter().map(cells).sum();
            let expected = table.rows * table.dim as u64;
            if got != expected {
                let (path, table) = (self.folder.clone(), table.name.clone());
                return Err(Error::Uncovered { path, table, expected, got });
            }
        }
        Ok(())
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        if self.role == Role::Guest {
            return;
        }
        // Errors of the cleanup are ignored. After a failure, which often is a full disk, the
        // cleanup frees space. After a commit the temporary name no longer exists.
        let _ = fs::remove_dir_all(&self.temporary);
    }
}

/// Returns the name of a rank's file.
pub(crate) fn rank_file(rank: Rank) -> String {
    format!("rank-{:05}.safetensors", rank.0)
}

/// Writes what a chunk holds of some rows: their weights, or a tensor of their state.
fn write_rows(
    writer: &mut TensorWriter,
    chunk: &Chunk,
    view: &TileView<'_>,
    buffer: &mut Vec<f32>,
) -> Result<(), Error> {
    if let TensorContent::TableWeight(_) = &chunk.content {
        return writer.write_bytes(view.weight.bytes());
    }
    let count = view.weight.len() / view.tile.dim();
    let stride = view.state.len() / count;
    // A row of Adam's state holds means and then mean squares, which are two tensors in the file.
    let second = matches!(chunk.content, TensorContent::TableMeanSquare(_));
    let (column, width) = (if second { stride / 2 } else { 0 }, chunk.shape[1]);
    write_columns(writer, view.state, stride, 0..count, column, width, buffer)
}

/// Writes the given columns of rows that are `stride` values apart.
fn write_columns(
    writer: &mut TensorWriter,
    values: &[f32],
    stride: usize,
    rows: Range<usize>,
    column: usize,
    width: usize,
    buffer: &mut Vec<f32>,
) -> Result<(), Error> {
    let values = &values[rows.start * stride..rows.end * stride];
    if width == stride {
        return writer.write(values);
    }
    for block in values.chunks(stride * (BLOCK_VALUES / stride).max(1)) {
        buffer.clear();
        let columns = block.chunks_exact(stride).flat_map(|row| &row[column..column + width]);
        buffer.extend(columns);
        writer.write(buffer)?;
    }
    Ok(())
}

fn chunk(tensor: String, content: TensorContent, shape: Vec<usize>) -> Chunk {
    let (file, data_type, checksum) = (String::new(), DataType::F32, Checksum(0));
    Chunk { file, tensor, content, shape, data_type, checksum, pieces: None }
}

/// Splits `rows` at multiples of the number of rows of a full-width chunk, wherever the tile
/// begins. Tiles side by side are thus split at the same rows, so a later reader finds the rows of
/// all columns together.
fn row_blocks(rows: &Range<u64>, table_dim: usize, chunk_bytes: usize) -> Vec<Range<u64>> {
    let block = (chunk_bytes / (table_dim * 4)).max(1) as u64;
    let mut blocks = Vec::new();
    let mut start = rows.start;
    while start < rows.end {
        let end = ((start / block + 1) * block).min(rows.end);
        blocks.push(start..end);
        start = end;
    }
    blocks
}
