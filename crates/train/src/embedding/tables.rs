//! Tiles that a rank looks up together: their weights, their optimizer state and the device's copy
//! of their ids. Where ids and gradients come from is decided by the collection.

use device::Backend;
use device::backend::{DistributedIds, RowValues, TableValues, TileRoom, TileRows, TileValues};
use device::cache::{CacheShape, RowAccess};
use device::ops::embedding_backward::TileOrigin;
use device::ops::jagged::LocalIds;
use device::ops::{Slot, SlotOutput};
use schema::{JobConfig, TableConfig, Tile};

use super::row_io::RowIo;
use super::stored_tile::{CacheUse, FetchTime, StoredTile};
use crate::Error;
use crate::context::DeviceQueue;
use crate::memory::CountingAllocator;
use crate::parameter::{TileState, TileView};

/// Tiles of a rank that are looked up and updated in one operation.
pub struct TableGroup<B: Backend> {
    tiles: Vec<Tile>,
    /// The configuration of each tile's table.
    configs: Vec<TableConfig>,
    tables: B::Tables,
    slots: Vec<Slot>,
    output: SlotOutput,
    /// Tiles whose rows are in files, and of which the device holds the slots of a cache.
    stored: Vec<StoredTile>,
    /// Is `None` if no rows are in files.
    io: Option<RowIo>,
}

/// The amount of work of one lookup or update, which a trace records with the operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct LookupSize {
    pub bags: usize,
    pub ids: usize,
    /// Number of weights that are read. A row that several ids look up counts once for each id.
    pub elements: usize,
    pub row_bytes: usize,
}

impl std::ops::Add for LookupSize {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bags: self.bags + other.bags,
            ids: self.ids + other.ids,
            elements: self.elements + other.elements,
            row_bytes: self.row_bytes + other.row_bytes,
        }
    }
}

impl<B: Backend> TableGroup<B> {
    /// Moves `tiles` of `rectangles` to the device. While memory is only counted, there are no
    /// tiles.
    pub fn new(
        room: &mut CountingAllocator<'_, B>,
        tables: &[TableConfig],
        rectangles: Vec<Tile>,
        tiles: Vec<TileState>,
        slots: Vec<Slot>,
        output: SlotOutput,
    ) -> Self {
        let config = |tile: &Tile| tables[tile.table.index()].clone();
        let configs: Vec<TableConfig> = rectangles.iter().map(config).collect();
        let values = values(tiles, &configs, &slots, output);
        let tables = room.tables(values);
        Self { tiles: rectangles, configs, tables, slots, output, stored: Vec::new(), io: None }
    }

    /// Returns the tiles in the order of their numbers.
    #[must_use]
    pub fn tiles(&self) -> &[Tile] {
        &self.tiles
    }

    /// Whether nothing is looked up in the tiles.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Creates the files of the tiles that have a cache. `shapes` has the shape of each tile's
    /// cache.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be created.
    pub fn create_files(
        &mut self,
        config: &JobConfig,
        shapes: &[Option<CacheShape>],
    ) -> Result<(), Error> {
        for (number, (tile, shape)) in self.tiles.iter().zip(shapes).enumerate() {
            let Some(shape) = *shape else { continue };
            self.stored.extend(StoredTile::create(config, number, tile, shape)?);
        }
        self.io = if self.stored.is_empty() { None } else { Some(RowIo::start()?) };
        Ok(())
    }

    /// Brings the rows of a batch into the caches, and replaces the ids of these tiles by slots.
    /// Rows that are fetched ahead arrive later.
    ///
    /// # Errors
    /// Returns the errors of [`StoredTile::start_fetch`] and [`StoredTile::finish_fetch`].
    pub fn fetch_rows(
        &mut self,
        device_queue: DeviceQueue<'_, B>,
        ids: &mut B::Ids,
        time: FetchTime,
    ) -> Result<(), Error> {
        let Some(io) = &self.io else { return Ok(()) };
        // Rows arrive in the order of their fetches, so those that were fetched ahead come first.
        for stored in &mut self.stored {
            stored.finish_fetch(device_queue, &mut self.tables, io)?;
        }
        let Some(LocalIds { jagged, .. }) = ids.host_ids() else {
            unreachable!("`stored_tile::check` refuses devices whose ids are not in host memory")
        };
        for stored in &mut self.stored {
            let is_key = |key: &usize| self.slots[*key].tile == stored.tile;
            let keys: Vec<usize> = (0..self.slots.len()).filter(is_key).collect();
            stored.start_fetch(device_queue, &self.tables, io, time, &keys, jagged)?;
        }
        if time == FetchTime::Ahead {
            return Ok(());
        }
        for stored in &mut self.stored {
            stored.finish_fetch(device_queue, &mut self.tables, io)?;
        }
        Ok(())
    }

    /// Lets the caches evict the rows of a batch, see [`StoredTile::release`].
    pub fn release_rows(&mut self, access: RowAccess) {
        self.stored.iter_mut().for_each(|stored| stored.release(access));
    }

    /// Returns how the caches were used so far.
    pub fn cache_uses(&self) -> impl Iterator<Item = CacheUse> {
        self.stored.iter().map(StoredTile::cache_use)
    }

    /// Whether a tile's rows are in a file.
    #[must_use]
    pub fn is_stored(&self, tile: usize) -> bool {
        self.stored.iter().any(|stored| stored.tile == tile)
    }

    /// Overwrites the rows of a tile in a file before the first step.
    ///
    /// # Errors
    /// [`Error::Io`] of the file.
    pub fn restore_rows(
        &mut self,
        device: &B,
        tile: usize,
        state: &TileState,
    ) -> Result<(), Error> {
        let first = state.tile.rows.start - self.tiles[tile].rows.start;
        let mut stored = self.stored.iter_mut();
        let stored = stored.find(|stored| stored.tile == tile);
        stored.map_or(Ok(()), |stored| stored.restore(device, first, state))
    }

    /// Returns the weights and state of some rows of a tile.
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed. [`Error::Io`] and [`Error::StoredRows`] of a file.
    pub fn tile<'a>(
        &'a self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        rows: TileRows,
        room: &'a mut TileRoom,
    ) -> Result<TileView<'a>, Error> {
        let whole = &self.tiles[rows.tile];
        let first = whole.rows.start;
        let range = first + rows.rows.start as u64..first + rows.rows.end as u64;
        let tile = Tile { rows: range, ..whole.clone() };
        let mut stored = self.stored.iter();
        let (weight, state) = match stored.find(|stored| stored.tile == rows.tile) {
            None => device.tile(queue, &self.tables, rows, room)?,
            Some(stored) => {
                self.io.as_ref().map_or(Ok(()), RowIo::flush)?;
                stored.read(DeviceQueue { device, queue }, &self.tables, rows.rows, room)?
            }
        };
        Ok(TileView { tile, weight, state })
    }

    /// Overwrites some rows of a tile and their optimizer state.
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed.
    pub fn set_rows(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        values: RowValues<'_>,
    ) -> Result<(), Error> {
        Ok(device.set_rows(queue, &mut self.tables, values)?)
    }

    /// Replaces the tiles by other tiles of the same tables, which contain the rows of the next
    /// batch's ids.
    ///
    /// # Errors
    /// [`Error::Device`] if the device has not enough memory.
    pub fn replace(&mut self, device: &B, tiles: Vec<TileState>) -> Result<(), Error> {
        assert_eq!(tiles.len(), self.tiles.len(), "the new tiles belong to the same tables");
        self.tiles = tiles.iter().map(|state| state.tile.clone()).collect();
        self.tables = device.tables(values(tiles, &self.configs, &self.slots, self.output))?;
        Ok(())
    }

    /// Returns the tiles on the device.
    pub fn on_device(&mut self) -> &mut B::Tables {
        &mut self.tables
    }

    /// Returns the sizes of a lookup of `samples` samples, of which `ids` ids are looked up in each
    /// slot.
    #[must_use]
    pub fn lookup_size(&self, samples: usize, ids: impl Fn(usize) -> usize) -> LookupSize {
        let slot_size = |(key, slot): (usize, &Slot)| {
            let ids = ids(key);
            let elements = ids * self.tiles[slot.tile].dim();
            let row_bytes = elements * self.configs[slot.tile].data_type.bytes();
            LookupSize { bags: samples, ids, elements, row_bytes }
        };
        let sizes = self.slots.iter().enumerate().map(slot_size);
        sizes.fold(LookupSize::default(), std::ops::Add::add)
    }
}

/// Converts tiles to the form in which a device takes ownership of them.
fn values(
    tiles: Vec<TileState>,
    configs: &[TableConfig],
    slots: &[Slot],
    output: SlotOutput,
) -> TableValues {
    let value = |(TileState { tile, weight, state }, config): (TileState, &TableConfig)| {
        // The rows of a tile in a file are the slots of its cache.
        let (rows, dim, name) = (weight.len() / tile.dim(), tile.dim(), config.name.clone());
        let origin = TileOrigin {
            table: tile.table.0,
            row: tile.rows.start,
            column: tile.columns.start as u32,
        };
        TileValues { weights: weight, state, rows, dim, name, origin }
    };
    let tiles = tiles.into_iter().zip(configs).map(value).collect();
    TableValues { tiles, slots: slots.to_vec(), output }
}
