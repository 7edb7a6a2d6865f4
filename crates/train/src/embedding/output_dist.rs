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

/// Sends each rank the rows of its samples and assembles this rank's pooled vectors.
///
/// `local` is `[B_global, width]` over this rank's slots, `pooled` is `[B, ΣD]`, overwritten.
///
/// # Errors
/// [`Error::Communication`] where a peer left.
pub fn forward(
    layout: &Layout,
    (cpu, comm): (&Cpu, &mut Communicator),
    (local, batch_sizes): (&[f32], &[usize]),
    pooled: &mut [f32],
) -> Result<(), Error> {
    let width = layout.widths[comm.rank().index()];
    let mut rest = local;
    let outgoing = batch_sizes.iter().map(|samples| {
        let (own, tail) = rest.split_at(samples * width);
        rest = tail;
        own.to_vec()
    });
    let mut received: Vec<Vec<f32>> = outgoing.collect();
    comm.all_to_all(&mut received)?;
    let row = layout.pooled_width.max(1);
    cpu.pool.run_slices(pooled, SAMPLES_PER_CHUNK * row, |chunk, rows| {
        for (i, out) in rows.chunks_exact_mut(row).enumerate() {
            let sample = chunk * SAMPLES_PER_CHUNK + i;
            for slot in &layout.in_sum_order {
                add_slot(slot, &received[slot.rank.index()], layout, sample, out);
            }
        }
    });
    Ok(())
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

/// Sends each owner its columns of the gradient and returns the gradients of this rank's slots.
///
/// `d_pooled` is `[B, ΣD]` of this rank's samples; the result is `[B_global, width]`.
///
/// # Errors
/// [`Error::Communication`] where a peer left.
pub fn backward(
    layout: &Layout,
    (cpu, comm): (&Cpu, &mut Communicator),
    d_pooled: &[f32],
) -> Result<Vec<f32>, Error> {
    let samples = d_pooled.len().checked_div(layout.pooled_width).unwrap_or(0);
    let outgoing = layout.slots.iter().zip(&layout.widths).map(|(slots, &width)| {
        let mut part = vec![0.0; samples * width];
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
        part
    });
    let mut received: Vec<Vec<f32>> = outgoing.collect();
    comm.all_to_all(&mut received)?;
    Ok(if received.len() == 1 { received.remove(0) } else { received.concat() })
}
