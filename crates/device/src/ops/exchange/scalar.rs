//! The oracle of the exchange, which processes one sample at a time.

use super::column::{GivenMatrices, OwnedColumns, PooledColumns};

/// Assembles the pooled vector `out` `[row]` of one sample.
pub fn assemble(
    sources: &[PooledColumns],
    given: &GivenMatrices<'_>,
    sample: usize,
    out: &mut [f32],
) {
    for &PooledColumns { rank, from, to, len, first } in sources {
        let start = sample * given.widths[rank] + from;
        let from = &given.from_rank(rank)[start..start + len];
        let out = &mut out[to..to + len];
        if first {
            out.copy_from_slice(from);
        } else {
            out.iter_mut().zip(from).for_each(|(out, from)| *out += from);
        }
    }
}

/// Gathers one rank's columns of the gradient of one sample.
pub fn gather(columns: &[OwnedColumns], gradient: &[f32], out: &mut [f32]) {
    for &OwnedColumns { from, to, len } in columns {
        out[to..to + len].copy_from_slice(&gradient[from..from + len]);
    }
}
