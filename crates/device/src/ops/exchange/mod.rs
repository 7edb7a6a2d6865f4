//! The local halves of an exchange of pooled vectors: one assembles the parts received from all
//! ranks, and the other splits a gradient for the ranks that own its columns.
//!
//! Partial sums of split rows are added in source order, whichever rank owns them, and split
//! columns are concatenated. Other code sends the messages.

mod column;
pub mod cuda;
pub mod scalar;

pub use column::{GivenMatrices, OwnedColumns, PooledColumns};

use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::extent;

/// Number of samples in a chunk. The number is fixed, so that results do not depend on the number
/// of threads.
const SAMPLES_PER_CHUNK: usize = 64;

/// Assembles pooled vectors: `pooled[b, to..] = Σ given[rank][b, from..]` over the sources in
/// order.
///
/// # Cost
/// Bandwidth-bound: reads `4·B·Σ len` bytes and writes `4·B·row`.
/// # Numerics
/// The result is bit-identical to that of [`scalar::assemble`] for any number of threads.
/// # Errors
/// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
pub fn assemble(
    cpu: &Cpu,
    sources: &[PooledColumns],
    given: GivenMatrices<'_>,
    row: usize,
    pooled: &mut [f32],
) -> Result<(), Error> {
    const OP: &str = "assemble";
    let row = row.max(1);
    let samples = pooled.len() / row;
    extent::check(OP, "pooled [B, row], whole rows", samples * row, pooled.len())?;
    extent::check(OP, "matrices of other ranks", given.widths.len(), given.others.len())?;
    for (rank, &width) in given.widths.iter().enumerate() {
        extent::check(
            OP,
            "matrix of a rank [B, width]",
            samples * width,
            given.from_rank(rank).len(),
        )?;
    }
    cpu.pool.run_slices(pooled, SAMPLES_PER_CHUNK * row, |chunk, rows| {
        for (sample, out) in (chunk * SAMPLES_PER_CHUNK..).zip(rows.chunks_exact_mut(row)) {
            scalar::assemble(sources, &given, sample, out);
        }
    });
    Ok(())
}

/// Gathers one rank's gradient columns, `to[b, to..] = gradient[b, from..]`, where `gradient` is
/// `[B, row]` and `to` is `[B, width]`.
///
/// # Cost
/// Bandwidth-bound: reads and writes `4·B·width` bytes.
/// # Errors
/// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
pub fn gather(
    cpu: &Cpu,
    columns: &[OwnedColumns],
    gradient: &[f32],
    row: usize,
    to: &mut [f32],
    width: usize,
) -> Result<(), Error> {
    const OP: &str = "gather";
    let samples = gradient.len().checked_div(row).unwrap_or(0);
    extent::check(OP, "gradient [B, row], whole rows", samples * row, gradient.len())?;
    extent::check(OP, "to [B, width]", samples * width, to.len())?;
    cpu.pool.run_slices(to, SAMPLES_PER_CHUNK * width.max(1), |chunk, rows| {
        for (sample, out) in (chunk * SAMPLES_PER_CHUNK..).zip(rows.chunks_exact_mut(width)) {
            scalar::gather(columns, &gradient[sample * row..][..row], out);
        }
    });
    Ok(())
}
