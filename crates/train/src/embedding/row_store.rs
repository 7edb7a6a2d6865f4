//! The rows of one tile in a file, in blocks with checksums. Which rows are also in memory is
//! decided by `stored_tile`.
//!
//! The file has no name after it was opened, so it vanishes with the process, and a run resumes
//! from its checkpoints alone. A block that was never written takes no space and is never read,
//! because the initial weights of a row are a function of its position, and its state is zero. The
//! checksums are in memory. They therefore also detect a block that the disk has silently not
//! written.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use device::Pool;
use device::buffer::Array;
use schema::{ModelConfig, Optimizer, Tile};
use trace::file::create_anew;

use crate::Error;
use crate::checkpoint::Checksum;
use crate::initial::Draw;

/// Least number of bytes of a block, which is the least that an SSD reads.
const BLOCK_BYTES: usize = 4096;
/// Bytes of a value. Rows are f32.
const VALUE_BYTES: usize = size_of::<f32>();
/// Checksum of a block that was never written.
const NEVER_WRITTEN: Checksum = Checksum(0);

/// The rows of a tile in a file. A row is its weights followed by its optimizer state.
pub struct RowStore {
    file: File,
    /// Table and folder of the file, for messages.
    table: String,
    folder: PathBuf,
    draw: Draw,
    shape: StoreShape,
    /// Checksum of each block. Atomic, so that threads can write different blocks.
    checksums: Vec<AtomicU64>,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

/// The division of a tile's rows into blocks.
#[derive(Clone, Copy, Debug)]
pub struct StoreShape {
    /// First row of the tile, and the number of its rows.
    first_row: u64,
    rows: u64,
    dim: usize,
    /// Number of values of a row, weights and state.
    width: usize,
    rows_per_block: usize,
}

/// The bytes that a store has read and written so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreTraffic {
    pub bytes_read: u64,
    pub bytes_written: u64,
}

/// Rows of one block, each with the place of its values.
struct BlockWork<'a, T> {
    block: usize,
    rows: &'a mut [(u64, T)],
    result: Result<(), Error>,
}

impl StoreShape {
    /// Returns the shape of the store of `tile`.
    #[must_use]
    pub fn new(tile: &Tile, optimizer: Optimizer) -> Self {
        let dim = tile.dim();
        let width = dim + optimizer.state_per_row(dim);
        let rows_per_block = (BLOCK_BYTES / (width * VALUE_BYTES)).max(1);
        let rows = tile.rows.end - tile.rows.start;
        Self { first_row: tile.rows.start, rows, dim, width, rows_per_block }
    }

    /// Returns the number of values of a row, weights and state.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the memory of the checksums in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.blocks().saturating_mul(size_of::<Checksum>())
    }

    fn blocks(&self) -> usize {
        usize::try_from(self.rows).unwrap_or(usize::MAX).div_ceil(self.rows_per_block)
    }

    fn block_of(&self, row: u64) -> usize {
        row as usize / self.rows_per_block
    }

    /// Returns the rows of a block. The last block may have fewer.
    fn rows_of(&self, block: usize) -> Range<u64> {
        let first = (block * self.rows_per_block) as u64;
        first..self.rows.min(first + self.rows_per_block as u64)
    }

    /// Returns the position of a block in the file. Blocks begin at multiples of the bytes that an
    /// SSD reads at once.
    fn offset(&self, block: usize) -> u64 {
        let stride = (self.rows_per_block * self.width * VALUE_BYTES).next_multiple_of(BLOCK_BYTES);
        block as u64 * stride as u64
    }
}

impl RowStore {
    /// Creates the store of `tile` in a new file in `folder`. All rows have their initial weights.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be created.
    pub fn create(
        folder: &Path,
        model: &ModelConfig,
        tile: &Tile,
        optimizer: Optimizer,
    ) -> Result<Self, Error> {
        let (table, columns) = (&model.tables[tile.table.index()].name, &tile.columns);
        // The process number keeps the files of several runs and ranks in one folder apart.
        let name = format!(
            ".rowmill-{}-{}-{}-{}",
            std::process::id(),
            table.replace('/', "_"),
            tile.rows.start,
            columns.start
        );
        let path = folder.join(name);
        let file = create_anew(&path).map_err(Error::io("create", &path))?;
        fs::remove_file(&path).map_err(Error::io("remove the name of", &path))?;
        let shape = StoreShape::new(tile, optimizer);
        let never_written = || AtomicU64::new(NEVER_WRITTEN.0);
        let checksums = std::iter::repeat_with(never_written).take(shape.blocks()).collect();
        let (bytes_read, bytes_written) = (AtomicU64::new(0), AtomicU64::new(0));
        let draw = Draw::new(model, tile);
        let (table, folder) = (table.clone(), folder.to_owned());
        Ok(Self { file, table, folder, draw, shape, checksums, bytes_read, bytes_written })
    }

    /// Returns the bytes that were read and written so far.
    #[must_use]
    pub fn traffic(&self) -> StoreTraffic {
        StoreTraffic {
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            bytes_written: self.bytes_written.load(Ordering::Relaxed),
        }
    }

    /// Returns the division of the rows into blocks.
    #[must_use]
    pub fn shape(&self) -> StoreShape {
        self.shape
    }

    /// Reads rows, counted from the tile's first row, into `values [rows, width]`. Each block is
    /// read once, on all threads of `host`.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::StoredRows`] if the disk returned other bytes than were written.
    pub fn read(&self, host: &Pool, rows: &[u64], values: &mut [f32]) -> Result<(), Error> {
        let places = values.chunks_exact_mut(self.shape.width);
        let mut places: Vec<(u64, &mut [f32])> = rows.iter().copied().zip(places).collect();
        self.each_block(host, &mut places, |block, rows| {
            if self.checksum_of(block) == NEVER_WRITTEN {
                rows.iter_mut().for_each(|(row, to)| self.fill_initial(*row, to));
                return Ok(());
            }
            let values = self.read_block(block)?;
            for (row, to) in rows {
                to.copy_from_slice(self.row_in(&values, *row));
            }
            Ok(())
        })
    }

    /// Overwrites distinct rows, counted from the tile's first row, with `values [rows, width]`.
    /// Each block is written once, on all threads of `host`. No other call may read or write the
    /// same blocks meanwhile.
    ///
    /// # Errors
    /// Returns the errors of [`Self::read`], because the other rows of a block are read first.
    pub fn write(&self, host: &Pool, rows: &[u64], values: &[f32]) -> Result<(), Error> {
        let values = values.chunks_exact(self.shape.width);
        let mut values: Vec<(u64, &[f32])> = rows.iter().copied().zip(values).collect();
        self.each_block(host, &mut values, |block, rows| {
            let all = self.shape.rows_of(block);
            let is_whole = rows.len() as u64 == all.end - all.start;
            let mut values =
                if is_whole { self.block_values(block) } else { self.read_block(block)? };
            for (row, from) in &*rows {
                let at = (row - all.start) as usize * self.shape.width;
                values[at..at + self.shape.width].copy_from_slice(from);
            }
            let bytes = bytemuck::cast_slice(&values);
            let written = self.file.write_all_at(bytes, self.shape.offset(block));
            written.map_err(Error::io("write rows in", &self.folder))?;
            self.bytes_written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            self.checksums[block].store(checksum(bytes).0, Ordering::Relaxed);
            Ok(())
        })
    }

    /// Calls `run` for each block of `rows`, on all threads of `host`. Returns the error of the
    /// first block that has one.
    fn each_block<T: Send>(
        &self,
        host: &Pool,
        rows: &mut [(u64, T)],
        run: impl Fn(usize, &mut [(u64, T)]) -> Result<(), Error> + Sync,
    ) -> Result<(), Error> {
        rows.sort_unstable_by_key(|(row, _)| *row);
        let shape = self.shape;
        let same_block = |a: &(u64, T), b: &(u64, T)| shape.block_of(a.0) == shape.block_of(b.0);
        let mut works: Vec<BlockWork<'_, T>> = Vec::new();
        for rows in rows.chunk_by_mut(same_block) {
            let block = shape.block_of(rows[0].0);
            works.push(BlockWork { block, rows, result: Ok(()) });
        }
        host.run_slices(&mut works, 1, |_, works| {
            works.iter_mut().for_each(|work| work.result = run(work.block, work.rows));
        });
        works.into_iter().try_for_each(|work| work.result)
    }

    /// Reads a block and compares its checksum. A block that was never written has its initial
    /// values.
    fn read_block(&self, block: usize) -> Result<Array<f32>, Error> {
        let mut values = self.block_values(block);
        let expected = self.checksum_of(block);
        if expected == NEVER_WRITTEN {
            let rows = self.shape.rows_of(block);
            for (row, values) in rows.zip(values.chunks_exact_mut(self.shape.width)) {
                self.fill_initial(row, values);
            }
            return Ok(values);
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        let read = self.file.read_exact_at(bytes, self.shape.offset(block));
        read.map_err(Error::io("read rows in", &self.folder))?;
        let got = checksum(bytes);
        if got != expected {
            let (rows, first) = (self.shape.rows_of(block), self.shape.first_row);
            let rows = first + rows.start..first + rows.end;
            let (table, folder) = (self.table.clone(), self.folder.clone());
            return Err(Error::StoredRows { table, rows, folder, expected, got });
        }
        self.bytes_read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(values)
    }

    fn checksum_of(&self, block: usize) -> Checksum {
        Checksum(self.checksums[block].load(Ordering::Relaxed))
    }

    /// Writes the initial weights and state of a row to `values`.
    fn fill_initial(&self, row: u64, values: &mut [f32]) {
        let (weights, state) = values.split_at_mut(self.shape.dim);
        self.draw.fill(self.shape.first_row + row, weights);
        state.fill(0.0);
    }

    /// Returns zeros for all values of a block.
    fn block_values(&self, block: usize) -> Array<f32> {
        let rows = self.shape.rows_of(block);
        Array::zeroed((rows.end - rows.start) as usize * self.shape.width)
    }

    /// Returns the values of a row in those of its block.
    fn row_in<'a>(&self, values: &'a [f32], row: u64) -> &'a [f32] {
        let at = row as usize % self.shape.rows_per_block * self.shape.width;
        &values[at..at + self.shape.width]
    }
}

/// Returns the checksum of a written block, which is never [`NEVER_WRITTEN`].
fn checksum(bytes: &[u8]) -> Checksum {
    Checksum(Checksum::compute(bytes).0.max(1))
}

#[cfg(test)]
mod tests;
