//! Sends pooled vectors to the ranks of their samples, and sends the gradients of these vectors
//! back.
//!
//! This file maps columns to ranks, and the device assembles and splits the vectors.

use device::Backend;
use device::backend::{Assemble, ExchangeLayout, Gather};
use device::ops::exchange::{OwnedColumns, PooledColumns};

use super::layout::{Slot, SlotLayout};
use crate::Error;
use crate::context::DeviceQueue;
use crate::lane::{AllToAll, Lane};

/// Computes the size of the messages of an exchange. `bytes` is the size of the pooled vectors of a
/// rank's slots. With several ranks, gradients exist twice: as received and concatenated.
pub(super) fn message_bytes(bytes: usize, ranks: usize) -> usize {
    if ranks > 1 { 2 * bytes } else { bytes }
}

/// Computes the layout of the exchange: the source and the destination of every column.
pub(super) fn layout_of(layout: &SlotLayout) -> ExchangeLayout {
    let source = |slot: &Slot| PooledColumns {
        rank: slot.rank.index(),
        from: slot.local_column,
        to: slot.column,
        len: slot.dim,
        first: slot.first,
    };
    let column =
        |slot: &Slot| OwnedColumns { from: slot.column, to: slot.local_column, len: slot.dim };
    ExchangeLayout {
        sources: layout.in_sum_order.iter().map(source).collect(),
        columns: layout.slots.iter().map(|slots| slots.iter().map(column).collect()).collect(),
        widths: layout.widths.clone(),
        row: layout.pooled_width,
    }
}

/// The exchange of pooled vectors and of their gradients. The next step reuses its buffers.
pub struct PooledExchange<B: Backend> {
    on_device: B::Exchange,
    /// Buffers while no exchange is under way.
    spare: AllToAll<f32>,
    gradient: B::Vector,
}

/// The gradient of the pooled vectors of this rank's samples.
pub struct PooledGradient<'a, B: Backend> {
    /// `[B, ΣD]`
    pub d_pooled: &'a B::Vector,
    pub samples: usize,
    /// Factor of the gradients of tiles, if they are those of another loss than `d_pooled`.
    pub factor: Option<f32>,
}

/// A reference to the pooled vectors that a rank looked up for the samples of all ranks.
pub struct LocalVectors<'a, B: Backend> {
    /// `[B_global, width]` over this rank's slots.
    pub vectors: &'a B::Vector,
    /// Samples of each rank.
    pub batch_sizes: &'a [usize],
    pub width: usize,
}

// Derived impls would demand `B: Clone`, which devices are not.
impl<B: Backend> Clone for LocalVectors<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for LocalVectors<'_, B> {}

impl<B: Backend> PooledExchange<B> {
    /// Wraps the device's part of the exchange, which was created from [`layout_of`].
    #[must_use]
    pub fn new(on_device: B::Exchange) -> Self {
        Self { on_device, spare: AllToAll::default(), gradient: B::Vector::default() }
    }

    /// Sends each rank the rows of its samples. This rank's own part is not copied.
    ///
    /// # Errors
    /// [`Error::Communication`] if a peer left.
    pub fn send_vectors(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        lane: &mut Lane<AllToAll<f32>>,
        local: LocalVectors<'_, B>,
    ) -> Result<(), Error> {
        let mut exchange = std::mem::take(&mut self.spare);
        let (own, mut at) = (lane.settings().rank().index(), 0);
        for (rank, samples) in local.batch_sizes.iter().enumerate() {
            let part = at..at + samples * local.width;
            at = part.end;
            if rank == own {
                // This rank's own part is read in place.
                exchange.parts.push(Vec::new());
                continue;
            }
            let mut copy = lane.settings().buffer(part.len());
            device.lend(queue, local.vectors, part, &mut |values| copy.copy_from_slice(values))?;
            exchange.parts.push(copy);
        }
        lane.start(exchange)
    }

    /// Receives what the peers sent and assembles the pooled vectors `[B, ΣD]` of this rank's
    /// `samples`, which are overwritten.
    ///
    /// # Errors
    /// [`Error::Communication`] if a peer left.
    pub fn receive_vectors(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        lane: &mut Lane<AllToAll<f32>>,
        local: LocalVectors<'_, B>,
        pooled: &mut B::Vector,
        samples: usize,
    ) -> Result<(), Error> {
        let mut exchange = lane.finish()?;
        let own = lane.settings().rank().index();
        let stays = local.batch_sizes[..own].iter().sum::<usize>() * local.width;
        let (parts, local) = (&exchange.parts[..], local.vectors);
        let arguments = Assemble { own: (own, stays), local, parts, samples };
        device.assemble(queue, &mut self.on_device, arguments, pooled)?;
        exchange.parts.drain(..).for_each(|part| lane.keep(part));
        self.spare = exchange;
        Ok(())
    }

    /// Sends each owner its columns of a gradient.
    ///
    /// # Errors
    /// [`Error::Communication`] if a peer left.
    pub fn send_gradient(
        &mut self,
        layout: &SlotLayout,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        lane: &mut Lane<AllToAll<f32>>,
        given: PooledGradient<'_, B>,
    ) -> Result<(), Error> {
        let PooledGradient { d_pooled, samples, factor } = given;
        let mut exchange = std::mem::take(&mut self.spare);
        for (rank, &width) in layout.widths.iter().enumerate() {
            let mut part: Vec<f32> = lane.settings().buffer(samples * width);
            let arguments = Gather { rank, from: d_pooled, samples };
            device.gather(queue, &mut self.on_device, arguments, &mut part)?;
            if let Some(factor) = factor {
                part.iter_mut().for_each(|value| *value *= factor);
            }
            exchange.parts.push(part);
        }
        lane.start(exchange)
    }

    /// Receives the gradients of this rank's slots, `[B_global, width]`; see [`Self::gradient`].
    ///
    /// # Errors
    /// [`Error::Communication`] if a peer left.
    pub fn receive_gradient(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        lane: &mut Lane<AllToAll<f32>>,
    ) -> Result<(), Error> {
        let mut exchange = lane.finish()?;
        device.grow(&mut self.gradient, exchange.parts.iter().map(Vec::len).sum())?;
        let mut at = 0;
        for part in exchange.parts.drain(..) {
            device.write(queue, &part, &mut self.gradient, at)?;
            at += part.len();
            // Return the buffer to the pool, so that the next step allocates nothing.
            lane.keep(part);
        }
        self.spare = exchange;
        Ok(())
    }

    /// The gradients that were received last.
    #[must_use]
    pub fn gradient(&self) -> &B::Vector {
        &self.gradient
    }
}
