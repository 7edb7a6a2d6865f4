//! Pooled vectors to the ranks of their samples, and their gradients back.
//!
//! Says which columns come from whom; the device puts them together and takes them apart.

use comm::Communicator;
use device::Backend;
use device::backend::{Assemble, Gather};
use device::ops::exchange::{Column, Source};

use super::layout::{Layout, Slot};
use crate::Error;
use crate::context::On;

/// Bytes of messages where the pooled vectors of a rank's slots, or their gradients, take `bytes`:
/// gradients of several ranks are there as they came and side by side.
pub(super) fn message_bytes(bytes: usize, ranks: usize) -> usize {
    if ranks > 1 { 2 * bytes } else { bytes }
}

/// Parts to and from each rank, and the gradients of this rank's slots; their buffers are used
/// again in the next step.
pub struct Exchange<B: Backend> {
    /// What makes a pooled vector, in the order of its sums.
    sources: Vec<Source>,
    /// `columns[r]`: what rank r gets of a gradient.
    columns: Vec<Vec<Column>>,
    parts: Vec<Vec<f32>>,
    gradient: B::Vector,
}

impl<B: Backend> Exchange<B> {
    /// The exchange of `layout`.
    #[must_use]
    pub fn new(layout: &Layout) -> Self {
        let source = |slot: &Slot| Source {
            rank: slot.rank.index(),
            from: slot.local_column,
            to: slot.column,
            len: slot.dim,
            first: slot.first,
        };
        let column =
            |slot: &Slot| Column { from: slot.column, to: slot.local_column, len: slot.dim };
        Self {
            sources: layout.in_sum_order.iter().map(source).collect(),
            columns: layout.slots.iter().map(|s| s.iter().map(column).collect()).collect(),
            parts: Vec::new(),
            gradient: B::Vector::default(),
        }
    }

    /// Sends each rank the rows of its samples and assembles this rank's pooled vectors.
    ///
    /// `local` is `[B_global, width]` over this rank's slots; `pooled` is `[B, ΣD]` of this rank's
    /// samples, overwritten.
    ///
    /// # Errors
    /// [`Error::Communication`] where a peer left.
    pub fn forward(
        &mut self,
        layout: &Layout,
        ((device, queue), comm): (On<'_, B>, &mut Communicator),
        (local, batch_sizes): (&B::Vector, &[usize]),
        (pooled, samples): (&mut B::Vector, usize),
    ) -> Result<(), Error> {
        let (own, width) = (comm.rank().index(), layout.widths[comm.rank().index()]);
        let parts = &mut self.parts;
        let (mut at, mut stays) = (0, 0);
        parts.clear();
        for (rank, samples) in batch_sizes.iter().enumerate() {
            let part = at..at + samples * width;
            at = part.end;
            if rank == own {
                // Read where it lies.
                stays = part.start;
                parts.push(Vec::new());
                continue;
            }
            let mut copy = comm.buffer(part.len());
            device.lend(queue, (local, part), &mut |values| copy.copy_from_slice(values))?;
            parts.push(copy);
        }
        comm.all_to_all(parts)?;
        let arguments = Assemble {
            sources: &self.sources,
            widths: &layout.widths,
            own: (own, stays),
            local,
            parts,
            shape: (samples, layout.pooled_width),
        };
        device.assemble(queue, arguments, pooled)?;
        parts.drain(..).for_each(|part| comm.keep(part));
        Ok(())
    }

    /// Sends each owner its columns of the gradient and returns the gradients of this rank's slots.
    ///
    /// `d_pooled` is `[B, ΣD]` of this rank's `samples`; the result is `[B_global, width]`.
    ///
    /// # Errors
    /// [`Error::Communication`] where a peer left.
    pub fn backward(
        &mut self,
        layout: &Layout,
        ((device, queue), comm): (On<'_, B>, &mut Communicator),
        (d_pooled, samples): (&B::Vector, usize),
    ) -> Result<&B::Vector, Error> {
        let parts = &mut self.parts;
        parts.clear();
        for (columns, &width) in self.columns.iter().zip(&layout.widths) {
            let mut part: Vec<f32> = comm.buffer(samples * width);
            let shape = [samples, layout.pooled_width, width];
            device.gather(queue, Gather { columns, from: d_pooled, shape }, &mut part)?;
            parts.push(part);
        }
        comm.all_to_all(parts)?;
        device.grow(&mut self.gradient, parts.iter().map(Vec::len).sum())?;
        let mut at = 0;
        for part in parts.drain(..) {
            device.write(queue, &part, (&mut self.gradient, at))?;
            at += part.len();
            comm.keep(part);
        }
        Ok(&self.gradient)
    }
}
