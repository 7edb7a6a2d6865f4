//! Pooled vectors to the ranks of their samples, and their gradients back.
//!
//! Partial sums of split rows are added in row order whoever owns them; split columns fall into
//! place.

use comm::Communicator;
use device::Cpu;

use super::layout::{Layout, Slot};
use crate::Error;

/// Samples handled by one chunk; fixed, so that results do not depend on the number of threads.
const SAMPLES_PER_CHUNK: usize = 64;

/// Bytes of messages where the pooled vectors of a rank's slots, or their gradients, take `bytes`:
/// gradients of several ranks are there as they came and side by side.
pub(super) fn message_bytes(bytes: usize, ranks: usize) -> usize {
    if ranks > 1 { 2 * bytes } else { bytes }
}

/// Parts to and from each rank, and the gradients of this rank's slots; their buffers are used
/// again in the next step.
#[derive(Default)]
pub struct Exchange {
    parts: Vec<Vec<f32>>,
    gradient: Vec<f32>,
}

impl Exchange {
    /// Sends each rank the rows of its samples and assembles this rank's pooled vectors.
    ///
    /// `local` is `[B_global, width]` over this rank's slots, `pooled` is `[B, ΣD]`, overwritten.
    ///
    /// # Errors
    /// [`Error::Communication`] where a peer left.
    pub fn forward(
        &mut self,
        layout: &Layout,
        (cpu, comm): (&Cpu, &mut Communicator),
        (local, batch_sizes): (&[f32], &[usize]),
        pooled: &mut [f32],
    ) -> Result<(), Error> {
        let (own, width) = (comm.rank().index(), layout.widths[comm.rank().index()]);
        let parts = &mut self.parts;
        let (mut rest, mut stays): (&[f32], &[f32]) = (local, &[]);
        parts.clear();
        for (rank, samples) in batch_sizes.iter().enumerate() {
            let (part, tail) = rest.split_at(samples * width);
            rest = tail;
            if rank == own {
                // Read where it lies.
                stays = part;
                parts.push(Vec::new());
                continue;
            }
            let mut copy = comm.buffer(part.len());
            copy.copy_from_slice(part);
            parts.push(copy);
        }
        comm.all_to_all(parts)?;
        let row = layout.pooled_width.max(1);
        cpu.pool.run_slices(pooled, SAMPLES_PER_CHUNK * row, |chunk, rows| {
            for (i, out) in rows.chunks_exact_mut(row).enumerate() {
                let sample = chunk * SAMPLES_PER_CHUNK + i;
                for slot in &layout.in_sum_order {
                    let rank = slot.rank.index();
                    let from = if rank == own { stays } else { &parts[rank] };
                    add_slot(slot, from, layout, sample, out);
                }
            }
        });
        parts.drain(..).for_each(|part| comm.keep(part));
        Ok(())
    }

    /// Sends each owner its columns of the gradient and returns the gradients of this rank's slots.
    ///
    /// `d_pooled` is `[B, ΣD]` of this rank's samples; the result is `[B_global, width]`.
    ///
    /// # Errors
    /// [`Error::Communication`] where a peer left.
    pub fn backward(
        &mut self,
        layout: &Layout,
        (cpu, comm): (&Cpu, &mut Communicator),
        d_pooled: &[f32],
    ) -> Result<&[f32], Error> {
        let samples = d_pooled.len().checked_div(layout.pooled_width).unwrap_or(0);
        let parts = &mut self.parts;
        parts.clear();
        for (slots, &width) in layout.slots.iter().zip(&layout.widths) {
            let mut part: Vec<f32> = comm.buffer(samples * width);
            cpu.pool.run_slices(&mut part, SAMPLES_PER_CHUNK * width.max(1), |chunk, rows| {
                for (i, out) in rows.chunks_exact_mut(width).enumerate() {
                    let sample = chunk * SAMPLES_PER_CHUNK + i;
                    let from = &d_pooled[sample * layout.pooled_width..][..layout.pooled_width];
                    for slot in slots {
                        out[slot.local_column..slot.local_column + slot.dim]
                            .copy_from_slice(&from[slot.column..slot.column + slot.dim]);
                    }
                }
            });
            parts.push(part);
        }
        comm.all_to_all(parts)?;
        self.gradient.clear();
        for part in parts.drain(..) {
            self.gradient.extend_from_slice(&part);
            comm.keep(part);
        }
        Ok(&self.gradient)
    }
}

fn add_slot(slot: &Slot, from: &[f32], layout: &Layout, sample: usize, out: &mut [f32]) {
    let start = sample * layout.widths[slot.rank.index()] + slot.local_column;
    let from = &from[start..start + slot.dim];
    let out = &mut out[slot.column..slot.column + slot.dim];
    if slot.first {
        out.copy_from_slice(from);
    } else {
        out.iter_mut().zip(from).for_each(|(out, from)| *out += from);
    }
}
