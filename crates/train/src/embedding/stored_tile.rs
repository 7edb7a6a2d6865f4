//! Tiles whose rows are in files, and of which a device holds a cache of rows. The rows of the
//! device's tile are the slots of the cache.
//!
//! Before a lookup, the rows of the batch are copied from the file to slots, and the ids are
//! replaced by the numbers of the slots. Lookup and update do not know of the cache.

use std::ops::Range;

use device::backend::{DistributedIds, RowValues, TileRoom, TileRows};
use device::buffer::Array;
use device::cache::{CacheCounts, CacheShape, DistinctRows, RowAccess, RowCache, RowMoves};
use device::weights::WeightsView;
use device::{Backend, Weights};
use schema::random::CounterRng;
use schema::{DataType, JaggedTensor, JobConfig, Optimizer, RowScope, ShardingPlan, Tile};
use serde::{Deserialize, Serialize};

use super::row_store::{RowStore, StoreShape};
use crate::Error;
use crate::context::DeviceQueue;
use crate::parameter::TileState;

/// A tile in a file, with the cache of its rows.
pub struct StoredTile {
    /// Number of the tile among those of its group.
    pub tile: usize,
    /// Name of the tile's table.
    table: String,
    dim: usize,
    cache: RowCache,
    store: RowStore,
    distinct: DistinctRows,
    /// The slots of the batch in flight, and its moves.
    moves: RowMoves,
    /// Rows on their way between slots and the file.
    rows: Vec<u64>,
    values: Vec<f32>,
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
/// [`Error::Storage`] names the table and the reason.
pub fn check<B: Backend>(config: &JobConfig, plan: &ShardingPlan) -> Result<(), Error> {
    let Some(storage) = &config.storage else { return Ok(()) };
    let tables = &config.model.tables;
    let Some(first) = tables.iter().find(|table| storage.includes(table)) else { return Ok(()) };
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
        let store = RowStore::create(&storage.folder, &config.model, tile, optimizer)?;
        Ok(Some(Self {
            tile: number,
            table: config.model.tables[tile.table.index()].name.clone(),
            dim: tile.dim(),
            cache: RowCache::new(shape, storage.policy),
            store,
            distinct: DistinctRows::default(),
            moves: RowMoves::default(),
            rows: Vec::new(),
            values: Vec::new(),
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

    /// Copies the rows of a batch to slots, locks them, and replaces the ids of `keys` by the
    /// numbers of their slots.
    ///
    /// # Errors
    /// [`Error::CacheFull`] if the rows of the batch do not fit. [`Error::Io`] and
    /// [`Error::StoredRows`] of the file.
    pub fn fetch<B: Backend>(
        &mut self,
        device_queue: DeviceQueue<'_, B>,
        tables: &mut B::Tables,
        keys: &[usize],
        ids: &mut JaggedTensor,
    ) -> Result<(), Error> {
        let DeviceQueue { device, queue } = device_queue;
        self.distinct.clear();
        for &key in keys {
            self.distinct.add(&ids.values[ids.feature(key)]);
        }
        self.distinct.find();
        let (rows, count) = (&self.distinct.rows, self.distinct.of_id.len());
        let fetched = self.cache.fetch(device.host(), rows, count, &mut self.moves);
        fetched.map_err(|source| Error::CacheFull { table: self.table.clone(), source })?;
        self.write_back(device_queue, tables)?;
        let width = self.store.shape().width();
        self.rows.clear();
        self.rows.extend(self.moves.loaded.iter().map(|loaded| loaded.row));
        self.values.resize(self.rows.len() * width, 0.0);
        self.store.read(device.host(), &self.rows, &mut self.values)?;
        for (loaded, values) in self.moves.loaded.iter().zip(self.values.chunks_exact(width)) {
            let (weights, state) = values.split_at(self.dim);
            let rows = slot_rows(self.tile, loaded.slot);
            let values = RowValues { rows, weights, state, rounding: unused_rounding() };
            device.set_rows(queue, tables, values)?;
        }
        let mut rows_of_ids = self.distinct.of_id.iter();
        for &key in keys {
            let range = ids.feature(key);
            for (id, &row) in ids.values[range].iter_mut().zip(rows_of_ids.by_ref()) {
                *id = i64::from(self.moves.slots[row as usize]);
            }
        }
        Ok(())
    }

    /// Writes changed rows that lose their slots to the file.
    fn write_back<B: Backend>(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        tables: &B::Tables,
    ) -> Result<(), Error> {
        let width = self.store.shape().width();
        self.rows.clear();
        self.rows.extend(self.moves.written_back.iter().map(|moved| moved.row));
        self.values.resize(self.rows.len() * width, 0.0);
        let mut room = TileRoom::default();
        for (moved, to) in self.moves.written_back.iter().zip(self.values.chunks_exact_mut(width)) {
            let rows = slot_rows(self.tile, moved.slot);
            let (weights, state) = device.tile(queue, tables, rows, &mut room)?;
            copy_values(weights, state, to);
        }
        self.store.write(device.host(), &self.rows, &self.values)
    }

    /// Unlocks the slots of the batch in flight.
    pub fn release(&mut self, access: RowAccess) {
        self.cache.release(&self.moves.slots, access);
        self.moves.slots.clear();
    }

    /// Returns the weights and state of some rows of the tile, from their slots or the file.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::StoredRows`] of the file.
    pub fn read<'a, B: Backend>(
        &self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        tables: &B::Tables,
        range: Range<usize>,
        room: &'a mut TileRoom,
    ) -> Result<(WeightsView<'a>, &'a [f32]), Error> {
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
