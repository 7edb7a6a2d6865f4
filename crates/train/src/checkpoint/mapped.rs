//! Maps the tables of a checkpoint into memory and copies out the rows that are looked up.
//!
//! Every piece of a file is verified before its first use. One row of a table of any size costs a
//! page fault and the checksum of a piece of 256 KiB. Rows are copied out because kernels need
//! contiguous tables, and because a copy cannot change after it was verified. This file does not
//! depend on models or batches.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use device::buffer::Array;
use device::mapped::Mapping;
use device::{Pool, Weights};
use schema::{DataType, Rank, TableConfig, TableId, Tile};

use super::manifest::{Chunk, TablePart, TensorContent};
use super::{Checkpoint, Checksum};
use crate::Error;
use crate::parameter::{Spot, TileState};

/// Number of rows that one thread copies per chunk of work.
const ROWS_PER_CHUNK: usize = 256;

/// The weights of all tables of a checkpoint, mapped into memory and verified piece by piece.
#[derive(Debug)]
pub(crate) struct MappedTables {
    files: Vec<(PathBuf, Mapping)>,
    tables: Vec<MappedTable>,
}

/// An embedding table whose rows are read from the mapped files of a checkpoint.
#[derive(Debug)]
struct MappedTable {
    config: TableConfig,
    /// Chunks of the same columns, sorted by first row. A table has one such list unless a plan has
    /// split its columns.
    columns: Vec<Vec<MappedChunk>>,
}

/// A tile of a table, which is one tensor of a mapped file.
#[derive(Debug)]
struct MappedChunk {
    part: TablePart,
    tensor: String,
    /// Index of the chunk's file, and the range of the chunk's bytes in that file.
    file: usize,
    place: Range<usize>,
    piece_bytes: usize,
    checksums: Vec<Checksum>,
    /// Whether each piece has been verified.
    checked: Vec<AtomicBool>,
}

impl MappedTables {
    /// Maps the files that hold the tables of `checkpoint`, without reading any values.
    pub fn map(checkpoint: &Checkpoint) -> Result<Self, Error> {
        let mut places = BTreeMap::new();
        let mut files = Vec::new();
        let mut tables = Vec::new();
        for config in &checkpoint.config().model.tables {
            let mut columns: BTreeMap<(usize, usize), Vec<MappedChunk>> = BTreeMap::new();
            let mut cells = 0;
            for chunk in &checkpoint.manifest().chunks {
                let TensorContent::TableWeight(part) = &chunk.content else { continue };
                if part.table != config.name {
                    continue;
                }
                let (reader, entry) = checkpoint.checked_entry(chunk, part, config)?;
                if !places.contains_key(&chunk.file) {
                    places.insert(chunk.file.clone(), files.len());
                    files.push((reader.path().to_owned(), reader.map()?));
                }
                cells += part.cells();
                let start = reader.offset(entry) as usize;
                let mapped = MappedChunk::new(chunk, part, places[&chunk.file], start);
                let key = (part.columns.start, part.columns.end);
                columns.entry(key).or_default().push(mapped);
            }
            let (expected, table) = (config.rows * config.dim as u64, config.name.clone());
            if cells != expected {
                let path = checkpoint.folder().to_owned();
                return Err(Error::Uncovered { path, table, expected, got: cells });
            }
            let mut columns: Vec<_> = columns.into_values().collect();
            columns.iter_mut().for_each(|list| list.sort_by_key(|chunk| chunk.part.rows.start));
            tables.push(MappedTable { config: config.clone(), columns });
        }
        Ok(Self { files, tables })
    }

    /// Fails if a file was truncated after it was mapped, because reading beyond its end would kill
    /// the process with SIGBUS.
    pub fn check_lengths(&self) -> Result<(), Error> {
        for (path, mapping) in &self.files {
            let now = mapping.check_length().map_err(Error::io("look at", path))?;
            if let Err(got) = now {
                let (path, expected) = (path.clone(), mapping.len() as u64);
                return Err(Error::FileLength { path, expected, got });
            }
        }
        Ok(())
    }

    /// Copies the rows `ids` of a table, in that order, into a tile. Every id must be a row of the
    /// table.
    ///
    /// # Errors
    /// [`Error::Checksum`] if a piece that is used for the first time is damaged, and
    /// [`Error::Value`] if it contains a weight that is not finite.
    pub fn rows(&self, host: &Pool, table: usize, ids: &[i64]) -> Result<TileState, Error> {
        let mapped = &self.tables[table];
        let TableConfig { dim, data_type, .. } = mapped.config;
        let mut weight = Weights::zeroed(data_type, ids.len() * dim);
        let row_bytes = dim * data_type.bytes();
        let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
        let out = weight.view_mut().into_bytes();
        host.run_slices(out, ROWS_PER_CHUNK * row_bytes, |chunk, out| {
            let ids = &ids[chunk * ROWS_PER_CHUNK..];
            let mut rows = ids.iter().zip(out.chunks_exact_mut(row_bytes));
            let copied = rows.try_for_each(|(&id, out)| self.copy_row(mapped, id as u64, out));
            if let Err(error) = copied {
                // Report the first failure in the order of the ids, whichever thread finished
                // first.
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                if failed.as_ref().is_none_or(|(at, _)| chunk < *at) {
                    *failed = Some((chunk, error));
                }
            }
        });
        if let Some((_, error)) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let tile = Tile {
            table: TableId(table as u32),
            rows: 0..ids.len() as u64,
            columns: 0..dim,
            rank: Rank(0),
        };
        Ok(TileState { tile, weight, state: Array::zeroed(0) })
    }

    /// Copies one row, `[dim]`, from the chunks that hold its columns.
    fn copy_row(&self, table: &MappedTable, row: u64, out: &mut [u8]) -> Result<(), Error> {
        let size = table.config.data_type.bytes();
        for chunks in &table.columns {
            let after = chunks.partition_point(|chunk| chunk.part.rows.start <= row);
            let Some(chunk) = after.checked_sub(1).map(|at| &chunks[at]) else { continue };
            let TablePart { rows, columns, .. } = &chunk.part;
            if row >= rows.end {
                continue;
            }
            let bytes = columns.len() * size;
            let start = (row - rows.start) as usize * bytes;
            self.check(table, chunk, start..start + bytes)?;
            let from = &self.files[chunk.file].1[chunk.place.clone()][start..start + bytes];
            out[columns.start * size..columns.end * size].copy_from_slice(from);
        }
        Ok(())
    }

    /// Verifies the pieces of a chunk that hold `bytes` and have not been verified yet.
    fn check(
        &self,
        table: &MappedTable,
        chunk: &MappedChunk,
        bytes: Range<usize>,
    ) -> Result<(), Error> {
        for piece in bytes.start / chunk.piece_bytes..bytes.end.div_ceil(chunk.piece_bytes) {
            if !chunk.checked[piece].load(Ordering::Relaxed) {
                self.check_piece(table, chunk, piece)?;
                // Relaxed ordering suffices, because the flag does not publish writes of another
                // thread. The bytes that it guards were already in the file.
                chunk.checked[piece].store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    // A piece is verified only once, so `#[cold]` keeps this code out of the path of every row.
    #[cold]
    fn check_piece(
        &self,
        table: &MappedTable,
        chunk: &MappedChunk,
        piece: usize,
    ) -> Result<(), Error> {
        let (path, mapping) = &self.files[chunk.file];
        let start = piece * chunk.piece_bytes;
        let whole = &mapping[chunk.place.clone()];
        let bytes = &whole[start..whole.len().min(start + chunk.piece_bytes)];
        let (expected, got) = (chunk.checksums[piece], Checksum::compute(bytes));
        if expected != got {
            let (path, tensor) = (path.clone(), chunk.tensor.clone());
            return Err(Error::Checksum { path, tensor, expected, got });
        }
        let TableConfig { name, data_type, .. } = &table.config;
        let Some((at, value)) = first_not_finite(bytes, *data_type) else { return Ok(()) };
        let (at, TablePart { rows, columns, .. }) = (start / data_type.bytes() + at, &chunk.part);
        let spot = Spot {
            tensor: format!("table {name:?}"),
            row: rows.start + (at / columns.len()) as u64,
            column: columns.start + at % columns.len(),
            part: "weight",
            value,
        };
        Err(Error::Value { path: path.clone(), spot, expected: "a finite number" })
    }
}

impl MappedChunk {
    /// A chunk at a place in a file. A chunk without checksums of pieces counts as one piece.
    fn new(chunk: &Chunk, part: &TablePart, file: usize, start: usize) -> Self {
        let bytes = chunk.shape.iter().product::<usize>() * chunk.data_type.bytes();
        let whole = (bytes.max(1), vec![chunk.checksum]);
        let pieces = chunk.pieces.as_ref().map(|p| (p.bytes as usize, p.checksums.clone()));
        let fits = |&(size, ref checksums): &(usize, Vec<Checksum>)| {
            size > 0 && checksums.len() == bytes.div_ceil(size)
        };
        // If the checksums do not match the chunk's size, the whole chunk is verified instead.
        let (piece_bytes, checksums) = pieces.filter(fits).unwrap_or(whole);
        Self {
            part: part.clone(),
            tensor: chunk.tensor.clone(),
            file,
            place: start..start + bytes,
            piece_bytes,
            checked: checksums.iter().map(|_| AtomicBool::new(false)).collect(),
            checksums,
        }
    }
}

/// Finds the first non-finite value and its position. The bytes may be unaligned, so values are
/// tested as bits: an exponent of all ones means infinity or NaN.
fn first_not_finite(bytes: &[u8], data_type: DataType) -> Option<(usize, f32)> {
    let half = |mask: u16| {
        let mut values = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        values.position(|bits| bits & mask == mask)
    };
    let at = match data_type {
        DataType::F32 => {
            let mask = 0x7f80_0000;
            let mut values = bytes.as_chunks::<4>().0.iter().map(|&b| u32::from_le_bytes(b));
            values.position(|bits| bits & mask == mask)
        }
        DataType::F16 => half(0x7c00),
        DataType::Bf16 => half(0x7f80),
    }?;
    let mut value = Weights::zeroed(data_type, 1);
    let size = data_type.bytes();
    value.view_mut().into_bytes().copy_from_slice(&bytes[at * size..(at + 1) * size]);
    Some((at, value.view().to_f32()[0]))
}
