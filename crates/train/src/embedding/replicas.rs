//! Sums the gradients of tables that several ranks hold, row by row, so that all of them apply the
//! same update. They are replicated tables of all ranks, or tiles that replica groups repeat.
//!
//! The rows that any rank looks up are known before the forward pass. The gradients of these rows
//! are all that ranks sum, so rules with moments leave other rows alone.

use device::Backend;
use device::backend::BatchIds;
use device::ops::embedding_backward::RowSums;

use super::tables::TableGroup;
use super::touched_rows::TouchedRows;
use crate::Error;
use crate::context::DeviceQueue;
use crate::lane::{GradientSums, Lane};

/// The sum over ranks of the gradients of rows. The next step reuses its buffers.
#[derive(Default)]
pub struct ReplicaSums {
    /// Rows that this rank looks up.
    own: RowSums,
    /// Rows that any rank looks up.
    all: RowSums,
    spare: GradientSums,
    zeros: Vec<f32>,
}

impl ReplicaSums {
    /// Returns the bytes of the sums of `rows` rows with `elements` weights, beside their message.
    #[must_use]
    pub fn bytes(rows: usize, elements: usize) -> usize {
        2 * (rows * size_of::<u64>() + elements * size_of::<f32>())
    }

    /// Sums the gradients of this rank by row, without a sum over ranks; see [`Self::sums`].
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed.
    pub fn sum_own<B: Backend>(
        &mut self,
        device_queue: DeviceQueue<'_, B>,
        group: &mut TableGroup<B>,
        given: RowGradient<'_, B>,
    ) -> Result<(), Error> {
        sum_rows(device_queue, group, given, &mut self.all)
    }

    /// Sums the gradients of this rank by row, and starts their sum over ranks.
    ///
    /// # Errors
    /// [`Error::Communication`], or [`Error::Device`] if the device failed.
    pub fn start<B: Backend>(
        &mut self,
        device_queue: DeviceQueue<'_, B>,
        lane: &mut Lane<GradientSums>,
        group: &mut TableGroup<B>,
        touched: &TouchedRows,
        given: RowGradient<'_, B>,
    ) -> Result<(), Error> {
        sum_rows(device_queue, group, given, &mut self.own)?;
        let dims = || group.tiles().iter().map(schema::Tile::dim);
        let values = dims().zip(&touched.counts).map(|(dim, count)| dim * count).sum();
        self.zeros.resize(dims().max().unwrap_or(0), 0.0);
        let mut exchange = std::mem::take(&mut self.spare);
        exchange.sums.reset(lane.settings(), values);
        let (mut own, mut at, mut from) = (self.own.rows.iter().peekable(), 0, 0);
        let mut rows = touched.rows.iter();
        for (dim, &count) in dims().zip(&touched.counts) {
            for row in rows.by_ref().take(count) {
                // A rank that does not look up the row contributes zeros.
                if own.next_if_eq(&row).is_some() {
                    exchange.sums.write(at, &self.own.sums[from..from + dim]);
                    from += dim;
                } else {
                    exchange.sums.write(at, &self.zeros[..dim]);
                }
                at += dim;
            }
        }
        self.all.rows.clone_from(&touched.rows);
        self.all.sums.resize(values, 0.0);
        lane.start(exchange)
    }

    /// Waits for the sums over ranks; see [`Self::sums`].
    ///
    /// # Errors
    /// [`Error::Communication`].
    pub fn finish(&mut self, lane: &mut Lane<GradientSums>) -> Result<(), Error> {
        let mut summed = lane.finish()?;
        summed.sums.read(0, &mut self.all.sums);
        summed.sums.clear(lane.settings());
        self.spare = summed;
        Ok(())
    }

    /// Returns the gradient sums of the exchange that ended last, or those of this rank alone.
    #[must_use]
    pub fn sums(&self) -> &RowSums {
        &self.all
    }
}

/// The ids of the last lookup in a group of tables, and the gradient of their vectors.
pub struct RowGradient<'a, B: Backend> {
    pub ids: BatchIds<'a, B>,
    /// Gradient of the output of the lookup.
    pub gradient: &'a B::Vector,
    pub scalars: &'a B::Scalars,
}

fn sum_rows<B: Backend>(
    DeviceQueue { device, queue }: DeviceQueue<'_, B>,
    group: &mut TableGroup<B>,
    given: RowGradient<'_, B>,
    sums: &mut RowSums,
) -> Result<(), Error> {
    let RowGradient { ids, gradient, scalars } = given;
    Ok(device.sum_rows(queue, group.on_device(), ids, gradient, scalars, sums)?)
}
