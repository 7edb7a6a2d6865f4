//! Tiles whose rows are in files, and of which a device holds a cache of rows. The rows of the
//! device's tile are the slots of the cache.
//!
//! Before a lookup, the rows of the batch are copied from the file to slots, and the ids are
//! replaced by the numbers of the slots. Lookup and update do not know of the cache. The rows of
//! the next batch may be read while the rows of this one are in use.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use device::backend::{DistributedIds, RowValues, TileRoom, TileRows};
use device::buffer::Array;
use device::cache::{
    CacheCounts, CacheShape, DistinctRows, RowAccess, RowCache, RowMoves, RowSlot,
};
use device::weights::WeightsView;
use device::{Backend, Weights};
use schema::random::CounterRng;
use schema::{DataType, JaggedTensor, JobConfig, Optimizer, RowScope, ShardingPlan, Tile};
use serde::{Deserialize, Serialize};

use super::row_io::{RowIo, RowTransfer, RowValuesInFile};
use super::row_store::{RowStore, StoreShape};
use crate::Error;
use crate::context::DeviceQueue;
use crate::memory::Traffic;
use crate::parameter::TileState;

/// A tile in a file, with the cache of its rows.
pub struct StoredTile {
    /// Number of the tile among those of its group.
    pub tile: usize,
    /// Name of the tile's table.
    table: String,
    dim: usize,
    cache: RowCache,
    store: Arc<RowStore>,
    distinct: DistinctRows,
    /// The moves of the batch that was fetched last.
    moves: RowMoves,
    /// The slots of each batch in flight, in the order in which they were fetched.
    in_flight: VecDeque<Vec<u32>>,
    /// Rows on their way to their slots.
    arriving: Option<Vec<RowSlot>>,
    /// Whether the rows of the next training step were fetched before that step.
    is_fetched_ahead: bool,
}

/// When the rows of a batch are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchTime {
    /// While the rows of the batch before are in use. The rows are fetched later if the cache has
    /// no room for both batches.
    Ahead,
    /// In the step of the batch, unless they were fetched ahead.
    InStep,
    /// At once, for an evaluation.
    Evaluation,
}

/// How the caches of a tile, or of all tiles of a table, were used since this session of the run
/// began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheUse {
    pub table: String,
    /// Number of slots of the cache.
    pub slots: u64,
    /// Distinct rows of batches, summed over batches. Evaluations count, too.
    pub unique: u64,
    /// Number of these rows that were copied from the file.
    pub missed: u64,
    pub conflicts: u64,
    pub evicted: u64,
    pub written_back: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

impl CacheUse {
    /// Returns the share of the distinct rows of batches that were not in the cache.
    #[must_use]
    pub fn miss_ratio(&self) -> f64 {
        self.missed as f64 / self.unique.max(1) as f64
    }

    /// Adds up the tiles of each table.
    #[must_use]
    pub fn sum_tables(tiles: Vec<Self>) -> Vec<Self> {
        let mut tables: Vec<Self> = Vec::new();
        for tile in tiles {
            match tables.iter_mut().find(|table| table.table == tile.table) {
                None => tables.push(tile),
                Some(table) => table.add(&tile),
            }
        }
        tables
    }

    fn add(&mut self, other: &Self) {
        self.slots += other.slots;
        self.unique += other.unique;
        self.missed += other.missed;
        self.conflicts += other.conflicts;
        self.evicted += other.evicted;
        self.written_back += other.written_back;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
    }
}

/// Checks that the tables in files can be trained under a plan on devices of type `B`.
///
/// # Errors
/// [`Error::Storage`] names the table and the reason. [`Error::StorageFolder`] if there is no such
/// folder. It is not created, because the files could then fill another disk than the one whose
/// mount point was misspelled.
pub fn check<B: Backend>(config: &JobConfig, plan: &ShardingPlan) -> Result<(), Error> {
    let Some(storage) = &config.storage else { return Ok(()) };
    let tables = &config.model.tables;
    let Some(first) = tables.iter().find(|table| storage.includes(table)) else { return Ok(()) };
    if !storage.folder.is_dir() {
        return Err(Error::StorageFolder { folder: storage.folder.clone() });
    }
    let refused = |table: &str, problem| Err(Error::Storage { table: table.to_owned(), problem });
    if B::Ids::default().host_ids().is_none() {
        return refused(&first.name, "expected training on CPUs, got another device");
    }
    if plan.groups().count.get() > 1 {
        return refused(&first.name, "expected one group of ranks, got replica groups");
    }
    let is_replicated = |tile: &Tile| {
        let table = &tables[tile.table.index()];
        (storage.includes(table) && plan.world_size() > 1).then_some(table)
    };
    if let Some(table) = plan.replicas().iter().find_map(is_replicated) {
        return refused(&table.name, "expected a plan that divides the table, got copies of it");
    }
    if RowScope::exchanges_terms(&config.optimizer, plan) {
        let problem = "expected whole rows on a rank, or row_scope = \"column_tiles\"; got a plan \
                       that splits columns under an optimizer of whole rows";
        return refused(&first.name, problem);
    }
    Ok(())
}

/// Returns the shapes of the caches of `held`, the tiles of a rank. Tiles that are in memory have
/// none. The caches divide the memory of the configuration in proportion to the sizes of the tiles.
#[must_use]
pub fn cache_shapes(config: &JobConfig, held: &[Tile]) -> Vec<Option<CacheShape>> {
    let Some(storage) = &config.storage else { return vec![None; held.len()] };
    let is_stored = |tile: &Tile| storage.includes(&config.model.tables[tile.table.index()]);
    let optimizer = config.optimizer.sparse.kind;
    let row_bytes =
        |tile: &Tile| StoreShape::new(tile, optimizer).width() as f64 * size_of::<f32>() as f64;
    let tile_bytes = |tile: &Tile| tile.row_count() as f64 * row_bytes(tile);
    let total: f64 = held.iter().filter(|tile| is_stored(tile)).map(tile_bytes).sum();
    // Tags, ranks and locks of a large cache, per slot.
    let sample = CacheShape::with_rows(1 << 16);
    let slot_bytes = sample.bytes(storage.policy) as f64 / sample.slots() as f64;
    let shape = |tile: &Tile| {
        let bytes = storage.cache_mib as f64 * f64::from(1 << 20) * tile_bytes(tile) / total;
        let rows = (bytes / (row_bytes(tile) + slot_bytes)) as usize;
        is_stored(tile).then(|| CacheShape::with_rows(rows.min(tile.row_count())))
    };
    held.iter().map(shape).collect()
}

/// Returns the slots of the cache of a tile, without rows.
#[must_use]
pub fn empty_slots(tile: &Tile, optimizer: Optimizer, shape: CacheShape) -> TileState {
    let (slots, dim) = (shape.slots(), tile.dim());
    TileState {
        tile: tile.clone(),
        weight: Weights::zeroed(DataType::F32, slots * dim),
        state: Array::zeroed(slots * optimizer.state_per_row(dim)),
    }
}

/// Returns the memory of the ids of a batch and of the rows that it moves, if it misses all of its
/// rows.
#[must_use]
pub fn transfer_bytes(
    config: &JobConfig,
    tile: &Tile,
    shape: CacheShape,
    traffic: &Traffic<'_>,
) -> usize {
    let features = config.model.features().into_iter().zip(traffic.ids_per_bag);
    let own = features.filter(|(feature, _)| feature.table == tile.table.index());
    let ids_per_sample: f64 = own.map(|(_, ids)| ids).sum();
    let ids = (ids_per_sample * traffic.batch_size as f64) as usize;
    let row_bytes = StoreShape::new(tile, config.optimizer.sparse.kind).width() * size_of::<f32>();
    // Rows that are read and rows that are written, and each id with its number and its row.
    2 * ids.min(shape.slots()) * row_bytes + ids * (2 * size_of::<u64>() + size_of::<u32>())
}

impl StoredTile {
    /// Creates the file of `tile`, which is tile number `number` of its group, with initial weights
    /// and an empty cache.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be created.
    pub fn create(
        config: &JobConfig,
        number: usize,
        tile: &Tile,
        shape: CacheShape,
    ) -> Result<Option<Self>, Error> {
        let Some(storage) = &config.storage else { return Ok(None) };
        let optimizer = config.optimizer.sparse.kind;
        let store = Arc::new(RowStore::create(&storage.folder, &config.model, tile, optimizer)?);
        Ok(Some(Self {
            tile: number,
            table: config.model.tables[tile.table.index()].name.clone(),
            dim: tile.dim(),
            cache: RowCache::new(shape, storage.policy),
            store,
            distinct: DistinctRows::default(),
            moves: RowMoves::default(),
            in_flight: VecDeque::new(),
            arriving: None,
            is_fetched_ahead: false,
        }))
    }

    /// Returns how the cache was used so far.
    #[must_use]
    pub fn cache_use(&self) -> CacheUse {
        let counts: CacheCounts = self.cache.counts();
        let traffic = self.store.traffic();
        CacheUse {
            table: self.table.clone(),
            slots: self.cache.slots() as u64,
            unique: counts.unique,
            missed: counts.missed,
            conflicts: counts.conflicts,
            evicted: counts.evicted,
            written_back: counts.written_back,
            bytes_read: traffic.bytes_read,
            bytes_written: traffic.bytes_written,
        }
    }

    /// Makes room in the cache for the rows of a batch and begins to read the missing ones from the
    /// file. Each row gets a slot of the cache, which stays locked until the batch is released.
    /// In `keys`, the number of the slot replaces the row's id.
    ///
    /// # Errors
    /// [`Error::CacheFull`] if the rows of the batch do not fit.
    pub fn start_fetch<B: Backend>(
        &mut self,
        device_queue: DeviceQueue<'_, B>,
        tables: &B::Tables,
        io: &RowIo,
        time: FetchTime,
        keys: &[usize],
        ids: &mut JaggedTensor,
    ) -> Result<(), Error> {
        if time == FetchTime::InStep && std::mem::take(&mut self.is_fetched_ahead) {
            return Ok(());
        }
        self.distinct.clear();
        for &key in keys {
            self.distinct.add(&ids.values[ids.feature(key)]);
        }
        self.distinct.find();
        let (rows, count) = (&self.distinct.rows, self.distinct.of_id.len());
        match self.cache.fetch(device_queue.device.host(), rows, count, &mut self.moves) {
            Ok(()) => {}
            Err(_) if time == FetchTime::Ahead && !self.in_flight.is_empty() => return Ok(()),
            Err(source) => return Err(Error::CacheFull { table: self.table.clone(), source }),
        }
        self.is_fetched_ahead |= time == FetchTime::Ahead;
        self.start_transfer(device_queue, tables, io)?;
        let mut rows_of_ids = self.distinct.of_id.iter();
        for &key in keys {
            let range = ids.feature(key);
            for (id, &row) in ids.values[range].iter_mut().zip(rows_of_ids.by_ref()) {
                *id = i64::from(self.moves.slots[row as usize]);
            }
        }
        self.in_flight.push_back(std::mem::take(&mut self.moves.slots));
        Ok(())
    }

    /// Begins to read the loaded rows of the last fetch, and to write the rows that lost their
    /// slots.
    fn start_transfer<B: Backend>(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        tables: &B::Tables,
        io: &RowIo,
    ) -> Result<(), Error> {
        let RowMoves { loaded, written_back, .. } = &self.moves;
        if loaded.is_empty() {
            return Ok(());
        }
        let width = self.store.shape().width();
        let transfer = |moved: &[RowSlot]| RowValuesInFile {
            rows: moved.iter().map(|moved| moved.row).collect(),
            values: vec![0.0; moved.len() * width],
        };
        let mut to_write = transfer(written_back);
        let mut room = TileRoom::default();
        for (moved, to) in written_back.iter().zip(to_write.values.chunks_exact_mut(width)) {
            let rows = slot_rows(self.tile, moved.slot);
            let (weights, state) = device.tile(queue, tables, rows, &mut room)?;
            copy_values(weights, state, to);
        }
        let store = Arc::clone(&self.store);
        io.submit(RowTransfer { store, loaded: transfer(loaded), written_back: to_write });
        self.arriving = Some(std::mem::take(&mut self.moves.loaded));
        Ok(())
    }

    /// Waits until all rows that were fetched are in their slots. Tiles must be called in the order
    /// in which they began to fetch.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::StoredRows`] of the files.
    pub fn finish_fetch<B: Backend>(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        tables: &mut B::Tables,
        io: &RowIo,
    ) -> Result<(), Error> {
        let Some(arriving) = self.arriving.take() else { return Ok(()) };
        let RowValuesInFile { values, .. } = io.wait_for_rows()?;
        let width = self.store.shape().width();
        for (loaded, values) in arriving.iter().zip(values.chunks_exact(width)) {
            let (weights, state) = values.split_at(self.dim);
            let rows = slot_rows(self.tile, loaded.slot);
            let values = RowValues { rows, weights, state, rounding: unused_rounding() };
            device.set_rows(queue, tables, values)?;
        }
        Ok(())
    }

    /// Unlocks the slots of the batch that has used its rows: the oldest one after an update, and
    /// the last one after an evaluation.
    pub fn release(&mut self, access: RowAccess) {
        let slots = match access {
            RowAccess::Updated => self.in_flight.pop_front(),
            RowAccess::Read => self.in_flight.pop_back(),
        };
        self.cache.release(&slots.unwrap_or_default(), access);
    }

    /// Returns the weights and state of some rows of the tile, from their slots or the file. Rows
    /// that lost their slots must have been written.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::StoredRows`] of the file.
    /// # Panics
    /// Panics while rows are on their way to their slots.
    pub fn read<'a, B: Backend>(
        &self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        tables: &B::Tables,
        range: Range<usize>,
        room: &'a mut TileRoom,
    ) -> Result<(WeightsView<'a>, &'a [f32]), Error> {
        assert!(self.arriving.is_none(), "no step follows directly when tables are read");
        let width = self.store.shape().width();
        let rows: Vec<u64> = (range.start as u64..range.end as u64).collect();
        let mut values = vec![0.0; rows.len() * width];
        self.store.read(device.host(), &rows, &mut values)?;
        let mut slot_room = TileRoom::default();
        for (&row, to) in rows.iter().zip(values.chunks_exact_mut(width)) {
            let Some(slot) = self.cache.slot(row) else { continue };
            let rows = slot_rows(self.tile, slot);
            let (weights, state) = device.tile(queue, tables, rows, &mut slot_room)?;
            copy_values(weights, state, to);
        }
        let mut weights = Weights::zeroed(DataType::F32, rows.len() * self.dim);
        let Weights::F32(to) = &mut weights else { unreachable!("rows in files are f32") };
        room.state.clear();
        for (values, to) in values.chunks_exact(width).zip(to.chunks_exact_mut(self.dim)) {
            let (weights, state) = values.split_at(self.dim);
            to.copy_from_slice(weights);
            room.state.extend_from_slice(state);
        }
        let weights = room.weights.insert(weights);
        Ok((weights.view(), &room.state))
    }

    /// Overwrites consecutive rows from `first` on, counted from the tile's first row. None of them
    /// may be in the cache, as before the first step.
    ///
    /// # Errors
    /// [`Error::Io`] of the file.
    pub fn restore<B: Backend>(
        &mut self,
        device: &B,
        first: u64,
        state: &TileState,
    ) -> Result<(), Error> {
        let width = self.store.shape().width();
        let TileState { tile, weight, state } = state;
        let rows: Vec<u64> = (first..first + tile.row_count() as u64).collect();
        debug_assert!(rows.iter().all(|&row| self.cache.slot(row).is_none()), "an empty cache");
        let mut values = vec![0.0; rows.len() * width];
        let state_width = width - self.dim;
        for (row, to) in values.chunks_exact_mut(width).enumerate() {
            let weight = weight.view().slice(row * self.dim..(row + 1) * self.dim);
            copy_values(weight, &state[row * state_width..(row + 1) * state_width], to);
        }
        self.store.write(device.host(), &rows, &values)
    }
}

/// Returns the place of a slot of tile number `tile` of its group.
fn slot_rows(tile: usize, slot: u32) -> TileRows {
    TileRows { tile, rows: slot as usize..slot as usize + 1 }
}

/// Copies weights and then state to `to`.
fn copy_values(weights: WeightsView<'_>, state: &[f32], to: &mut [f32]) {
    let (to_weights, to_state) = to.split_at_mut(weights.len());
    weights.read(to_weights);
    to_state.copy_from_slice(state);
}

/// Returns random bits that are not used, because f32 weights are not rounded.
fn unused_rounding() -> CounterRng {
    CounterRng::new(0, 0)
}
