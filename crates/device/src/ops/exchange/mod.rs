//! The local halves of an exchange of pooled vectors: what arrived from all ranks is put together,
//! and a gradient is taken apart for the ranks that own its columns.
//!
//! Partial sums of split rows are added in the order of the sources, whoever owns them; split
//! columns fall into place. Knows no messages.

pub mod cuda;
pub mod scalar;

use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::extent;

/// Samples handled by one chunk; fixed, so that results do not depend on the number of threads.
const SAMPLES_PER_CHUNK: usize = 64;

/// Columns of a pooled vector that one rank looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The rank.
    pub rank: usize,
    /// First column in what that rank gives.
    pub from: usize,
    /// First column of the pooled vector.
    pub to: usize,
    /// Number of columns.
    pub len: usize,
    /// Whether this is the first partial sum of these columns: it is written, later ones are added.
    pub first: bool,
}

/// Columns of a gradient that one rank owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// First column of the gradient.
    pub from: usize,
    /// First column of what that rank gets.
    pub to: usize,
    /// Number of columns.
    pub len: usize,
}

impl Column {
    /// The same as what a gather's only matrix gives.
    #[must_use]
    pub fn as_source(&self) -> Source {
        let Self { from, to, len } = *self;
        Source { rank: 0, from, to, len, first: true }
    }
}

/// What the ranks give: a matrix each, `[B, width]`.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// This rank, and its own matrix.
    pub own: (usize, &'a [f32]),
    /// Those of the others; unused in this rank's place.
    pub others: &'a [Vec<f32>],
    /// The width of each.
    pub widths: &'a [usize],
}

impl<'a> Given<'a> {
    /// The matrix of `rank`.
    #[inline]
    #[must_use]
    pub fn of(&self, rank: usize) -> &'a [f32] {
        if rank == self.own.0 { self.own.1 } else { &self.others[rank] }
    }
}

/// `pooled[b, to..] = Σ given[rank][b, from..]` over the sources in order, `pooled` `[B, row]`.
///
/// # Cost
/// Reads `4·B·Σ len` bytes and writes `4·B·row`: bandwidth-bound.
/// # Numerics
/// The bytes of [`scalar::assemble`] for any number of threads.
/// # Errors
/// [`Error::Shape`] before any work.
pub fn assemble(
    cpu: &Cpu,
    sources: &[Source],
    given: Given<'_>,
    (row, pooled): (usize, &mut [f32]),
) -> Result<(), Error> {
    const OP: &str = "assemble";
    let row = row.max(1);
    let samples = pooled.len() / row;
    extent::check(OP, "pooled [B, row], whole rows", samples * row, pooled.len())?;
    extent::check(OP, "matrices of other ranks", given.widths.len(), given.others.len())?;
    for (rank, &width) in given.widths.iter().enumerate() {
        extent::check(OP, "what a rank gives [B, width]", samples * width, given.of(rank).len())?;
    }
    cpu.pool.run_slices(pooled, SAMPLES_PER_CHUNK * row, |chunk, rows| {
        for (sample, out) in (chunk * SAMPLES_PER_CHUNK..).zip(rows.chunks_exact_mut(row)) {
            scalar::assemble(sources, &given, sample, out);
        }
    });
    Ok(())
}

/// `to[b, to..] = gradient[b, from..]` for all columns; `gradient` `[B, row]`, `to` `[B, width]`.
///
/// # Cost
/// Reads and writes `4·B·width` bytes: bandwidth-bound.
/// # Errors
/// [`Error::Shape`] before any work.
pub fn gather(
    cpu: &Cpu,
    columns: &[Column],
    (gradient, row): (&[f32], usize),
    (to, width): (&mut [f32], usize),
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
