//! Averages weights and optimizer states of tiles over replica groups, so that groups that updated
//! alone are equal again.
//!
//! Sums are added in the order of groups, and have the same bytes on all of them.

use std::ops::Range;

use device::Backend;
use device::backend::{RowValues, TileRoom, TileRows};
use schema::Optimizer;
use schema::random::CounterRng;

use super::tables::TableGroup;
use crate::Error;
use crate::context::DeviceQueue;
use crate::lane::{ExchangeWait, GradientSums, Lane};

/// Number of values that groups exchange at a time.
const VALUES_PER_EXCHANGE: usize = 1 << 18;

/// The average of a rank's tiles over groups. The next one reuses its buffers.
#[derive(Default)]
pub struct GroupAverage {
    spare: GradientSums,
    /// Weights of some rows, then their states.
    values: Vec<f32>,
    room: TileRoom,
}

impl GroupAverage {
    /// Returns the bytes of the buffers, beside those of the messages.
    #[must_use]
    pub fn bytes() -> usize {
        2 * VALUES_PER_EXCHANGE * size_of::<f32>()
    }

    /// Returns the bytes of the messages under way.
    #[must_use]
    pub fn message_bytes() -> usize {
        2 * VALUES_PER_EXCHANGE * size_of::<f32>()
    }

    /// Replaces all tiles of `group` by their mean over the ranks of `lane`. Weights of 16-bit
    /// tables are rounded with the random bits of `rounding`, which must be the same on these
    /// ranks.
    ///
    /// # Errors
    /// [`Error::Communication`], or [`Error::Device`] if the device failed.
    pub fn run<B: Backend>(
        &mut self,
        device_queue: DeviceQueue<'_, B>,
        lane: &mut Lane<GradientSums>,
        group: &mut TableGroup<B>,
        optimizer: Optimizer,
        rounding: CounterRng,
    ) -> Result<(), Error> {
        let mut waited = None;
        for tile in 0..group.tiles().len() {
            let (row_count, dim) = (group.tiles()[tile].row_count(), group.tiles()[tile].dim());
            let width = dim + optimizer.state_per_row(dim);
            let step = (VALUES_PER_EXCHANGE / width).max(1);
            for first in (0..row_count).step_by(step) {
                let rows = first..row_count.min(first + step);
                self.sum_rows(device_queue, lane, group, tile, rows.clone())?;
                waited = ExchangeWait::both(waited, lane.take_wait());
                let groups = lane.settings().world_size() as f32;
                let values = &mut self.values[..rows.len() * width];
                values.iter_mut().for_each(|value| *value /= groups);
                let (weights, state) = values.split_at(rows.len() * dim);
                let rows = TileRows { tile, rows };
                group.set_rows(device_queue, RowValues { rows, weights, state, rounding })?;
            }
        }
        lane.set_wait(waited);
        Ok(())
    }

    /// Sums some rows of a tile over groups into `values`.
    fn sum_rows<B: Backend>(
        &mut self,
        device_queue: DeviceQueue<'_, B>,
        lane: &mut Lane<GradientSums>,
        group: &TableGroup<B>,
        tile: usize,
        rows: Range<usize>,
    ) -> Result<(), Error> {
        let view = group.tile(device_queue, TileRows { tile, rows }, &mut self.room)?;
        let (weights, state) = (view.weight, view.state);
        self.values.resize(weights.len() + state.len(), 0.0);
        weights.read(&mut self.values[..weights.len()]);
        self.values[weights.len()..].copy_from_slice(state);
        let mut exchange = std::mem::take(&mut self.spare);
        exchange.sums.reset(lane.settings(), self.values.len());
        exchange.sums.write(0, &self.values);
        lane.start(exchange)?;
        let mut summed = lane.finish()?;
        summed.sums.read(0, &mut self.values);
        summed.sums.clear(lane.settings());
        self.spare = summed;
        Ok(())
    }
}
