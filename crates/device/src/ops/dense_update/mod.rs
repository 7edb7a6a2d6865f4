//! The optimizer step of dense parameters, in place, from a whole gradient.
//! The rules are [`crate::optimizer`]'s; this module cuts parameters into chunks and knows no
//! layers.

pub mod scalar;
mod simd;

use schema::Optimizer;

use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::extent;
use crate::optimizer::Rule;

/// Elements of a chunk; under row-wise Adagrad chunks hold whole rows.
const CHUNK: usize = 16_384;

/// Arguments of [`run`].
#[derive(Debug)]
pub struct Arguments<'a> {
    /// The rule with this step's constants.
    pub rule: Rule,
    /// Parameters, `[rows, dim]`, updated in place.
    pub weights: &'a mut [f32],
    /// Gradient, `[rows, dim]`.
    pub gradient: &'a [f32],
    /// Optimizer state: nothing for SGD, `[rows, dim]` for Adagrad, `[rows]` for row-wise Adagrad.
    pub state: &'a mut [f32],
    /// Elements of a row. Only row-wise Adagrad asks what a row is; a bias is one row.
    pub dim: usize,
}

/// Updates every parameter once.
///
/// # Cost
/// Reads 8 bytes and writes 4 per parameter (16 and 8 with Adagrad): bandwidth-bound.
/// # Numerics
/// The bytes of [`scalar::update`] on every instruction set and for any thread count.
/// # Errors
/// [`Error::Shape`] before any work.
pub fn run(cpu: &Cpu, arguments: Arguments<'_>) -> Result<(), Error> {
    const OP: &str = "dense_update";
    let Arguments { rule, weights, gradient, state, dim } = arguments;
    let rows = weights.len().checked_div(dim).unwrap_or(0);
    extent::check(OP, "weights [rows, dim]", rows * dim, weights.len())?;
    extent::check(OP, "gradient [rows, dim]", weights.len(), gradient.len())?;
    extent::check(OP, "state", rows * rule.kind.state_per_row(dim), state.len())?;
    if weights.is_empty() {
        return Ok(());
    }
    // SGD and Adagrad treat every element alike: any cut of the flat parameters serves as rows.
    let row = if rule.kind == Optimizer::RowwiseAdagrad { dim } else { CHUNK };
    let chunk_len = CHUNK.next_multiple_of(row);
    let state_len = chunk_len / row * rule.kind.state_per_row(row);
    let update = |chunk: usize, weights: &mut [f32], state: &mut [f32]| {
        let gradient = &gradient[chunk * chunk_len..][..weights.len()];
        simd::update(cpu.isa, &rule, [weights, state], (gradient, row));
    };
    if state.is_empty() {
        cpu.pool.run_slices(weights, chunk_len, |chunk, weights| update(chunk, weights, &mut []));
    } else {
        cpu.pool.run_zipped((weights, state), (chunk_len, state_len), update);
    }
    Ok(())
}
