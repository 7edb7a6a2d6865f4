//! Sends pooled vectors to the ranks of their samples, and sends the gradients of these vectors
//! back.
//!
//! This file maps columns to ranks, and the device assembles and splits the vectors.

use comm::Communicator;
use device::Backend;
use device::backend::{Assemble, ExchangeLayout, Gather};
use device::ops::exchange::{OwnedColumns, PooledColumns};

use super::layout::{Slot, SlotLayout};
use crate::Error;
use crate::context::DeviceQueue;

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
    parts: Vec<Vec<f32>>,
    gradient: B::Vector,
}

impl<B: Backend> PooledExchange<B> {
    /// Wraps the device's part of the exchange, which was created from [`layout_of`].
    #[must_use]
    pub fn new(on_device: B::Exchange) -> Self {
        Self { on_device, parts: Vec::new(), gradient: B::Vector::default() }
    }

    /// Sends each rank the rows of its samples and assembles this rank's pooled vectors.
    ///
    /// `local` is `[B_global, width]` over this rank's slots. `pooled` is `[B, ΣD]` of this rank's
    /// samples and is overwritten.
    ///
    /// # Errors
    /// [`Error::Communication`] if a peer left.
    pub fn forward(
        &mut self,
        layout: &SlotLayout,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        comm: &mut Communicator,
        local: &B::Vector,
        batch_sizes: &[usize],
        pooled: &mut B::Vector,
        samples: usize,
    ) -> Result<(), Error> {
        let (own, width) = (comm.rank().index(), layout.widths[comm.rank().index()]);
        let parts = &mut self.parts;
        let (mut at, mut stays) = (0, 0);
        parts.clear();
        for (rank, samples) in batch_sizes.iter().enumerate() {
            let part = at..at + samples * width;
            at = part.end;
            if rank == own {
                // This rank's own part is read in place.
                stays = part.start;
                parts.push(Vec::new());
                continue;
            }
            let mut copy = comm.buffer(part.len());
            device.lend(queue, local, part, &mut |values| copy.copy_from_slice(values))?;
            parts.push(copy);
        }
        comm.all_to_all(parts)?;
        let arguments = Assemble { own: (own, stays), local, parts, samples };
        device.assemble(queue, &mut self.on_device, arguments, pooled)?;
        parts.drain(..).for_each(|part| comm.keep(part));
        Ok(())
    }

    /// Sends each owner its columns of the gradient and returns the gradients of this rank's slots.
    ///
    /// `d_pooled` is `[B, ΣD]` of this rank's `samples`. The result is `[B_global, width]`.
    ///
    /// # Errors
    /// [`Error::Communication`] if a peer left.
    pub fn backward(
        &mut self,
        layout: &SlotLayout,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        comm: &mut Communicator,
        d_pooled: &B::Vector,
        samples: usize,
    ) -> Result<&B::Vector, Error> {
        let Self { on_device, parts, .. } = self;
        parts.clear();
        for (rank, &width) in layout.widths.iter().enumerate() {
            let mut part: Vec<f32> = comm.buffer(samples * width);
            let arguments = Gather { rank, from: d_pooled, samples };
            device.gather(queue, on_device, arguments, &mut part)?;
            parts.push(part);
        }
        comm.all_to_all(parts)?;
        device.grow(&mut self.gradient, parts.iter().map(Vec::len).sum())?;
        let mut at = 0;
        for part in parts.drain(..) {
            device.write(queue, &part, &mut self.gradient, at)?;
            at += part.len();
            // Return the buffer to the pool, so that the next step allocates nothing.
            comm.keep(part);
        }
        Ok(&self.gradient)
    }
}
