//! Reads a checkpoint: verifies its files, then assembles any tile of any plan from the saved
//! chunks.
//!
//! The reader reads ranges of files, never a whole file. Every chunk that is needed is read whole,
//! and its checksum is compared.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use device::Weights;
use device::buffer::Array;
use schema::row_scope::ScopeDifference;
use schema::{
    DataType, Granularity, JobConfig, ModelConfig, Optimizer, RowScope, TableConfig, Tile,
};

use super::manifest::{CHUNK_BYTES, Chunk, Manifest, TablePart, TensorContent};
use super::{TensorEntry, TensorReader, dtype};
use crate::Error;
use crate::parameter::{DenseParameter, TileState};

/// An open checkpoint whose manifest and file headers have been verified. Values are verified when
/// they are read. Several threads may read from it at the same time.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    manifest: Manifest,
    config: JobConfig,
    files: BTreeMap<String, TensorReader>,
    /// Chunks of each table's weights and state, sorted by first row, then by first column.
    tables: BTreeMap<String, TableChunks>,
}

/// A destination for columns of a tile. The columns begin at byte `first` of rows that are `stride`
/// bytes apart.
struct TileColumns<'a> {
    bytes: &'a mut [u8],
    data_type: DataType,
    stride: usize,
    first: usize,
}

/// The chunks that hold a table's weights and optimizer states, as indices into the checkpoint's
/// list of chunks.
#[derive(Debug, Default)]
struct TableChunks {
    weight: Vec<usize>,
    /// One list of chunks per name in [`Optimizer::state_names`].
    states: [Vec<usize>; 2],
}

/// Returns an upper bound of the bytes that reading `tile` needs besides its weights and state.
/// These bytes are one chunk of the table and, for optimizers with one value per row, the sums of
/// its rows.
#[must_use]
pub fn read_bytes(model: &ModelConfig, tile: &Tile, optimizer: Optimizer) -> u64 {
    let table = &model.tables[tile.table.index()];
    let row = table.dim.saturating_mul(size_of::<f32>()) as u64;
    let chunk = table.rows.saturating_mul(row).min(CHUNK_BYTES as u64);
    let sums = match optimizer.granularity() {
        Granularity::Row => (tile.row_count() as u64).saturating_mul(8),
        Granularity::Element | Granularity::Tensor => 0,
    };
    chunk.saturating_add(sums)
}

/// Returns an upper bound of the bytes that reading `tile` chunk by chunk needs, if its rows go to
/// a file: those of [`read_bytes`] and two copies of a chunk's weights and state.
#[must_use]
pub fn read_parts_bytes(model: &ModelConfig, tile: &Tile, optimizer: Optimizer) -> u64 {
    let table = &model.tables[tile.table.index()];
    let rows = (CHUNK_BYTES / (table.dim * size_of::<f32>())).clamp(1, tile.row_count().max(1));
    let part = Tile { rows: tile.rows.start..tile.rows.start + rows as u64, ..tile.clone() };
    let width = tile.dim() + optimizer.state_per_row(tile.dim());
    read_bytes(model, &part, optimizer) + 2 * (rows * width * size_of::<f32>()) as u64
}

impl Checkpoint {
    /// Opens a checkpoint's folder and verifies the manifest and every file's length and header.
    /// Values are verified when they are read, or all at once by [`Checkpoint::verify`].
    ///
    /// # Errors
    /// Names the file that is missing, truncated or damaged, with the expected and the actual
    /// number.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("manifest.json");
        let text = fs::read(&path).map_err(Error::io("read", &path))?;
        let manifest = Manifest::parse(&path, &text)?;
        let config = JobConfig::parse(&manifest.config, &[])
            .map_err(|source| Error::Config { path: path.clone(), source })?;
        let mut files = BTreeMap::new();
        for record in &manifest.files {
            let path = folder.join(&record.name);
            let got = fs::metadata(&path).map_err(Error::io("open", &path))?.len();
            if got != record.bytes {
                return Err(Error::FileLength { path, expected: record.bytes, got });
            }
            let reader = TensorReader::open(&path)?;
            let (expected, got) = (record.header_checksum, reader.header_checksum());
            if expected != got {
                return Err(Error::Checksum { path, tensor: "header".into(), expected, got });
            }
            files.insert(record.name.clone(), reader);
        }
        let tables = index(&manifest.chunks);
        let checkpoint = Self { folder: folder.to_owned(), manifest, config, files, tables };
        for chunk in &checkpoint.manifest.chunks {
            // Fail when the checkpoint is opened if a file lacks a tensor that the manifest lists.
            checkpoint.entry(chunk)?;
        }
        Ok(checkpoint)
    }

    /// Returns the folder that contains the manifest and the tensor files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the parsed `manifest.json`: step, plan, files and chunks.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the columns of a row over which the optimizer state of the tables was accumulated.
    #[must_use]
    pub fn row_scope(&self) -> RowScope {
        self.manifest.row_scope(&self.config.model.tables)
    }

    /// Creates the error for a plan or reader that needs the optimizer state over the columns
    /// `wanted`, which differ from the checkpoint's.
    pub(crate) fn other_row_scope(&self, wanted: &RowScope) -> Error {
        let saved = self.row_scope();
        let same = || ScopeDifference {
            table: String::new(),
            before: saved.to_string(),
            after: wanted.to_string(),
        };
        Error::OtherRowScope {
            path: self.folder.clone(),
            optimizer: self.manifest.sparse_optimizer,
            difference: saved.first_difference(wanted).unwrap_or_else(same),
        }
    }

    /// Returns the configuration of the job that wrote the checkpoint.
    #[must_use]
    pub fn config(&self) -> &JobConfig {
        &self.config
    }

    /// Returns the number of training steps taken when the checkpoint was written.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// Returns the bytes of all files including the manifest. The sum equals
    /// [`super::Committed::bytes`] at the time of writing.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let tensors: u64 = self.manifest.files.iter().map(|file| file.bytes).sum();
        let manifest = fs::metadata(self.folder.join("manifest.json"));
        tensors + manifest.map_or(0, |manifest| manifest.len())
    }

    /// Reads every value and compares every checksum. Returns all damage, with file and tensor. An
    /// empty list means that every byte is as it was written.
    #[must_use]
    pub fn verify(&self) -> Vec<Error> {
        let mut buffer = Vec::new();
        let chunks = self.manifest.chunks.iter();
        chunks.filter_map(|chunk| self.read_chunk(chunk, &mut buffer).err()).collect()
    }

    /// Reads every value and returns the first damage.
    pub(super) fn first_damage(&self) -> Result<(), Error> {
        let mut buffer = Vec::new();
        let mut chunks = self.manifest.chunks.iter();
        chunks.try_for_each(|chunk| self.read_chunk(chunk, &mut buffer))
    }

    /// Reads weights and states of the dense parameters into `parameters`, which must have the
    /// state of the checkpoint's optimizer.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::read_dense_weights`].
    /// # Panics
    /// Panics if the length of a state differs from that optimizer's.
    pub fn read_dense(&self, parameters: &mut [DenseParameter]) -> Result<(), Error> {
        self.read_dense_weights(parameters)?;
        let optimizer = self.config.optimizer.dense.kind;
        let names = optimizer.state_names();
        for DenseParameter { name, shape, state, .. } in parameters {
            let dim = shape.get(1..).unwrap_or_default().iter().product();
            let values = shape.first().copied().unwrap_or(1) * optimizer.state_per_row(dim);
            assert_eq!(state.len(), values, "state of {name} under {optimizer}");
            let len = state.len() / names.len().max(1);
            let states = state.chunks_mut(len.max(1));
            for (position, (kind, state)) in names.iter().zip(states).enumerate() {
                let tensor = format!("dense/{name}/{kind}");
                let content = TensorContent::dense_state(position, name);
                self.read_parameter(&content, tensor, &[state.len()], state)?;
            }
        }
        Ok(())
    }

    /// Reads the weights of the dense parameters into `parameters` and leaves their states
    /// unchanged.
    ///
    /// # Errors
    /// [`Error::TensorMissing`], [`Error::TensorShape`] or [`Error::TensorUnexpected`] if the model
    /// and the checkpoint differ. [`Error::Checksum`] names a damaged file and tensor.
    pub fn read_dense_weights(&self, parameters: &mut [DenseParameter]) -> Result<(), Error> {
        for chunk in &self.manifest.chunks {
            if let TensorContent::DenseWeight(name) = &chunk.content
                && !parameters.iter().any(|parameter| &parameter.name == name)
            {
                let (path, tensor) = (self.folder.clone(), name.clone());
                return Err(Error::TensorUnexpected { path, tensor, got: chunk.shape.clone() });
            }
        }
        for DenseParameter { name, shape, weight, .. } in parameters {
            let content = TensorContent::DenseWeight(name.clone());
            self.read_parameter(&content, format!("dense/{name}/weight"), shape, weight)?;
        }
        Ok(())
    }

    fn read_parameter(
        &self,
        content: &TensorContent,
        tensor: String,
        shape: &[usize],
        out: &mut [f32],
    ) -> Result<(), Error> {
        let path = self.folder.clone();
        let expected = shape.to_vec();
        let found = self.manifest.chunks.iter().find(|chunk| &chunk.content == content);
        let Some(chunk) = found else {
            return Err(Error::TensorMissing { path, tensor, expected });
        };
        if chunk.shape != shape {
            let got = chunk.shape.clone();
            return Err(Error::TensorShape { path, tensor, expected, got });
        }
        self.check_data_type(chunk, DataType::F32)?;
        self.read_chunk_into(chunk, bytemuck::cast_slice_mut(out))
    }

    /// Assembles one tile of `table` with the state of `optimizer` from the saved chunks, whatever
    /// their tiling.
    ///
    /// The result is bitwise equal to the saved values, with one exception: row-wise Adagrad's
    /// state under another column tiling, which changes the update rule ([`RowScope`]). A saved
    /// value is the running sum of a row's mean squared gradient over its tile's columns. If tiles
    /// are merged, the result is the average of their values, weighted by columns. For the same
    /// gradients this is the value of an unsplit tile, up to f32 rounding. If a tile is split, each
    /// part gets its value.
    ///
    /// # Errors
    /// [`Error::Uncovered`] if the saved table is smaller. [`Error::StateKind`] if another
    /// optimizer wrote the state. [`Error::Checksum`] names a damaged file and tensor.
    pub fn read_tile(
        &self,
        table: &str,
        tile: &Tile,
        optimizer: Optimizer,
    ) -> Result<TileState, Error> {
        let saved = self.manifest.sparse_optimizer;
        if optimizer != saved {
            let (path, table) = (self.folder.clone(), table.to_owned());
            return Err(Error::StateKind { path, table, expected: optimizer, got: saved });
        }
        let TileState { weight, .. } = self.read_tile_weights(table, tile)?;
        let part = part_of(table, tile);
        let state_per_row = optimizer.state_per_row(tile.dim());
        let mut state = Array::zeroed(tile.row_count() * state_per_row);
        let states = &self.chunks_of(table).states;
        match optimizer.granularity() {
            Granularity::Row => state = self.average_rows(&part)?,
            Granularity::Element | Granularity::Tensor => {
                for (position, chunks) in states[..state_per_row / tile.dim()].iter().enumerate() {
                    let out = TileColumns {
                        bytes: bytemuck::cast_slice_mut(&mut state),
                        data_type: DataType::F32,
                        stride: 4 * state_per_row,
                        first: 4 * position * tile.dim(),
                    };
                    self.gather(&part, chunks, out)?;
                }
            }
        }
        Ok(TileState { tile: tile.clone(), weight, state })
    }

    /// Assembles the weights of one tile of `table` and leaves its state empty.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::read_tile`].
    pub fn read_tile_weights(&self, table: &str, tile: &Tile) -> Result<TileState, Error> {
        let mut weight = Weights::zeroed(self.data_type(table), tile.row_count() * tile.dim());
        self.read_part(&part_of(table, tile), weight.view_mut().into_bytes())?;
        Ok(TileState { tile: tile.clone(), weight, state: Array::zeroed(0) })
    }

    /// Returns the number format of a table's weights.
    fn data_type(&self, table: &str) -> DataType {
        let mut tables = self.config.model.tables.iter();
        tables
            .find(|config| config.name == table)
            .map(|config| config.data_type)
            .unwrap_or_default()
    }

    /// Reads the weights of a rectangle, `[rows, columns]`, in the table's data type.
    pub(crate) fn read_part(&self, part: &TablePart, out: &mut [u8]) -> Result<(), Error> {
        let data_type = self.data_type(&part.table);
        let stride = part.columns.len() * data_type.bytes();
        let out = TileColumns { bytes: out, data_type, stride, first: 0 };
        self.gather(part, &self.chunks_of(&part.table).weight, out)
    }

    /// Returns the rows at which chunks of a table begin or end, in ascending order. No chunk
    /// crosses any of these rows.
    pub(crate) fn row_cuts(&self, table: &str) -> Vec<u64> {
        let chunks = &self.chunks_of(table).weight;
        let rows = chunks.iter().filter_map(|&chunk| self.manifest.chunks[chunk].content.part());
        let mut cuts: Vec<u64> = rows.flat_map(|part| [part.rows.start, part.rows.end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    fn chunks_of(&self, table: &str) -> &TableChunks {
        const NONE: &TableChunks =
            &TableChunks { weight: Vec::new(), states: [Vec::new(), Vec::new()] };
        self.tables.get(table).unwrap_or(NONE)
    }

    /// Copies the cells of `wanted` from chunks that have one value per cell.
    fn gather(
        &self,
        wanted: &TablePart,
        chunks: &[usize],
        out: TileColumns<'_>,
    ) -> Result<(), Error> {
        let (mut buffer, size) = (Vec::new(), out.data_type.bytes());
        let mut covered = 0;
        for (chunk, part) in self.overlapping(chunks, wanted) {
            self.check_data_type(chunk, out.data_type)?;
            let rows = overlap(&part.rows, &wanted.rows);
            let columns = overlap_columns(&part.columns, &wanted.columns);
            covered += (rows.end - rows.start) * columns.len() as u64;
            let width = wanted.columns.len();
            let first = (rows.start - wanted.rows.start) as usize * out.stride;
            // A chunk whose cells are contiguous in the destination is read in place, without a
            // second copy.
            if part.rows == rows && part.columns == wanted.columns && width * size == out.stride {
                let bytes = chunk.shape[0] * out.stride;
                self.read_chunk_into(chunk, &mut out.bytes[first..first + bytes])?;
                continue;
            }
            self.read_chunk(chunk, &mut buffer)?;
            let row_bytes = part.columns.len() * size;
            let skipped = (rows.start - part.rows.start) as usize * row_bytes;
            let within = |column: usize| (column - part.columns.start) * size;
            let from = within(columns.start)..within(columns.end);
            let shift = |column: usize| (column - wanted.columns.start) * size + out.first;
            let to = shift(columns.start)..shift(columns.end);
            let sources = buffer[skipped..].chunks(row_bytes);
            let rows = (rows.end - rows.start) as usize;
            for (source, target) in
                sources.zip(out.bytes[first..].chunks_mut(out.stride)).take(rows)
            {
                target[to.clone()].copy_from_slice(&source[from.clone()]);
            }
        }
        self.check_covered(wanted, wanted.cells(), covered)
    }

    /// Computes the row-wise state of `wanted`. For each row it averages the saved values, weighted
    /// by the columns that each of them shares with `wanted`. The sum is in f64, so that a single
    /// value is returned unchanged.
    fn average_rows(&self, wanted: &TablePart) -> Result<Array<f32>, Error> {
        let rows = (wanted.rows.end - wanted.rows.start) as usize;
        let mut sums = vec![0.0f64; rows];
        let mut buffer = Vec::new();
        let mut covered = 0;
        for (chunk, part) in self.overlapping(&self.chunks_of(&wanted.table).states[0], wanted) {
            let rows = overlap(&part.rows, &wanted.rows);
            let columns = overlap_columns(&part.columns, &wanted.columns).len();
            covered += (rows.end - rows.start) * columns as u64;
            self.check_data_type(chunk, DataType::F32)?;
            buffer.resize(chunk.shape.iter().product(), 0.0f32);
            self.read_chunk_into(chunk, bytemuck::cast_slice_mut(&mut buffer))?;
            let sources = &buffer[(rows.start - part.rows.start) as usize..];
            let targets = &mut sums[(rows.start - wanted.rows.start) as usize..];
            let count = (rows.end - rows.start) as usize;
            for (sum, &value) in targets[..count].iter_mut().zip(&sources[..count]) {
                *sum += f64::from(value) * columns as f64;
            }
        }
        self.check_covered(wanted, wanted.cells(), covered)?;
        let width = wanted.columns.len() as f64;
        let mut state = Array::zeroed(rows);
        state.iter_mut().zip(sums).for_each(|(state, sum)| *state = (sum / width) as f32);
        Ok(state)
    }

    fn check_covered(&self, wanted: &TablePart, expected: u64, got: u64) -> Result<(), Error> {
        if expected == got {
            return Ok(());
        }
        let (path, table) = (self.folder.clone(), wanted.table.clone());
        Err(Error::Uncovered { path, table, expected, got })
    }

    fn overlapping<'a>(
        &'a self,
        chunks: &'a [usize],
        wanted: &'a TablePart,
    ) -> impl Iterator<Item = (&'a Chunk, &'a TablePart)> {
        let chunks = chunks.iter().map(|&chunk| &self.manifest.chunks[chunk]);
        let parts = chunks.filter_map(|chunk| Some((chunk, chunk.content.part()?)));
        parts.filter(|(_, part)| {
            !overlap(&part.rows, &wanted.rows).is_empty()
                && !overlap_columns(&part.columns, &wanted.columns).is_empty()
        })
    }

    /// Reads a whole chunk into `buffer`, which grows to the largest chunk and is reused.
    fn read_chunk(&self, chunk: &Chunk, buffer: &mut Vec<u8>) -> Result<(), Error> {
        buffer.resize(chunk.shape.iter().product::<usize>() * chunk.data_type.bytes(), 0);
        self.read_chunk_into(chunk, buffer)
    }

    fn check_data_type(&self, chunk: &Chunk, expected: DataType) -> Result<(), Error> {
        if chunk.data_type == expected {
            return Ok(());
        }
        let problem = format!(
            "{}: expected dtype {}, got {}",
            chunk.tensor,
            dtype(expected),
            dtype(chunk.data_type)
        );
        Err(Error::TensorFile { path: self.folder.join(&chunk.file), problem })
    }

    fn read_chunk_into(&self, chunk: &Chunk, out: &mut [u8]) -> Result<(), Error> {
        let (reader, entry) = self.entry(chunk)?;
        let got = reader.read_hashed(entry, out)?;
        if got == chunk.checksum {
            return Ok(());
        }
        let (path, tensor) = (reader.path().to_owned(), chunk.tensor.clone());
        Err(Error::Checksum { path, tensor, expected: chunk.checksum, got })
    }

    /// Finds the tensor of a chunk of a table's weights. The chunk must lie within the table and
    /// have its data type.
    pub(super) fn checked_entry(
        &self,
        chunk: &Chunk,
        part: &TablePart,
        table: &TableConfig,
    ) -> Result<(&TensorReader, &TensorEntry), Error> {
        self.check_data_type(chunk, table.data_type)?;
        let rows = part.rows.end.saturating_sub(part.rows.start) as usize;
        let expected = vec![rows, part.columns.len()];
        if chunk.shape != expected || part.rows.end > table.rows || part.columns.end > table.dim {
            let (path, tensor) = (self.folder.clone(), chunk.tensor.clone());
            return Err(Error::TensorShape { path, tensor, expected, got: chunk.shape.clone() });
        }
        self.entry(chunk)
    }

    /// Finds the tensor of a chunk in its file. The shape of the tensor must be the one that the
    /// manifest lists.
    fn entry(&self, chunk: &Chunk) -> Result<(&TensorReader, &TensorEntry), Error> {
        let path = self.folder.join(&chunk.file);
        let (tensor, expected) = (chunk.tensor.clone(), chunk.shape.clone());
        let found = self.files.get(&chunk.file);
        let Some((reader, entry)) = found.and_then(|file| Some((file, file.entry(&tensor)?)))
        else {
            return Err(Error::TensorMissing { path, tensor, expected });
        };
        if entry.shape != expected || entry.dtype != dtype(chunk.data_type) {
            let got = entry.shape.clone();
            return Err(Error::TensorShape { path, tensor, expected, got });
        }
        Ok((reader, entry))
    }
}

fn part_of(table: &str, tile: &Tile) -> TablePart {
    let (rows, columns) = (tile.rows.clone(), tile.columns.clone());
    TablePart { table: table.to_owned(), rows, columns }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.max(b.start)..a.end.min(b.end)
}

fn overlap_columns(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

fn index(chunks: &[Chunk]) -> BTreeMap<String, TableChunks> {
    let mut tables: BTreeMap<String, TableChunks> = BTreeMap::new();
    for (i, chunk) in chunks.iter().enumerate() {
        let Some(part) = chunk.content.part() else { continue };
        let table = tables.entry(part.table.clone()).or_default();
        match &chunk.content {
            TensorContent::TableWeight(_) => table.weight.push(i),
            TensorContent::TableState(_) => table.states[0].push(i),
            TensorContent::TableMeanSquare(_) => table.states[1].push(i),
            TensorContent::DenseWeight(_)
            | TensorContent::DenseState(_)
            | TensorContent::DenseMeanSquare(_) => {}
        }
    }
    let place =
        |&i: &usize| chunks[i].content.part().map(|part| (part.rows.start, part.columns.start));
    for TableChunks { weight, states: [first, second] } in tables.values_mut() {
        [weight, first, second].into_iter().for_each(|list| list.sort_by_key(place));
    }
    tables
}
