//! The optimizer step of dense parameters, in place, from a whole gradient.
//! The rules are [`crate::optimizer`]'s; this module cuts parameters into chunks and knows no
//! layers.

pub mod scalar;
mod simd;

use schema::Optimizer;

use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::extent;
use crate::optimizer::{Rule, lamb, split_state};

/// Elements of a chunk; under row-wise Adagrad chunks hold whole rows.
const CHUNK: usize = lamb::BLOCK;

/// Arguments of [`run`].
#[derive(Debug)]
pub struct Arguments<'a> {
    /// The rule with this step's constants.
    pub rule: Rule,
    /// Parameters, `[rows, dim]`, updated in place.
    pub weights: &'a mut [f32],
    /// Gradient, `[rows, dim]`.
    pub gradient: &'a [f32],
    /// Optimizer state: nothing for SGD, `[rows, dim]` for Adagrad, `[rows]` for row-wise Adagrad,
    /// `[2, rows, dim]` (means, then mean squares) for Adam and LAMB.
    pub state: &'a mut [f32],
    /// Elements of a row. Only row-wise Adagrad asks what a row is; a bias is one row.
    pub dim: usize,
}

/// Updates every parameter once. LAMB takes the parameter as one row: one ratio per tensor.
///
/// # Cost
/// Reads 8 bytes and writes 4 per parameter, and both ways 4 per value of state: bandwidth-bound.
/// LAMB reads weights and state a second time.
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
    // Apart from row-wise Adagrad, every element is treated alike: any cut serves as rows.
    let row = if rule.kind == Optimizer::RowwiseAdagrad { dim } else { CHUNK };
    let parts = split_state(rule.kind, state);
    let mut pieces = cut(weights, gradient, parts, CHUNK.next_multiple_of(row));
    if rule.kind != Optimizer::Lamb {
        run_task(cpu, &rule, Task::Update { row }, &mut pieces);
        return Ok(());
    }
    run_task(cpu, &rule, Task::Moments, &mut pieces);
    let add = |sums: [f32; 2], piece: &Piece<'_>| {
        [sums[0] + piece.squares[0], sums[1] + piece.squares[1]]
    };
    let ratio = lamb::ratio(pieces.iter().fold([0.0; 2], add));
    run_task(cpu, &rule, Task::Apply { ratio }, &mut pieces);
    Ok(())
}

/// What is done to every piece.
#[derive(Clone, Copy)]
enum Task {
    /// The rule, on rows of so many elements.
    Update { row: usize },
    /// LAMB's moments and sums of squares.
    Moments,
    /// LAMB's step.
    Apply { ratio: f32 },
}

/// The part of a parameter that one chunk works on.
struct Piece<'a> {
    weights: &'a mut [f32],
    gradient: &'a [f32],
    state: [&'a mut [f32]; 2],
    /// `Σ w²` and `Σ r²` of LAMB.
    squares: [f32; 2],
}

/// Cuts a parameter into pieces of `len` elements, each with its share of the state.
fn cut<'a>(
    weights: &'a mut [f32],
    gradient: &'a [f32],
    state: [&'a mut [f32]; 2],
    len: usize,
) -> Vec<Piece<'a>> {
    let elements = weights.len();
    let lens = [state[0].len(), state[1].len()];
    let mut rest = state;
    let piece = |(weights, gradient): (&'a mut [f32], &'a [f32])| {
        // A state has a value per element, a value per row, or none; rows are cut whole.
        let share = |part: usize| {
            let own = weights.len() / (elements / lens[part].max(1)).max(1);
            rest[part].split_off_mut(..own.min(lens[part])).unwrap_or_default()
        };
        let state = [0, 1].map(share);
        Piece { weights, gradient, state, squares: [0.0; 2] }
    };
    weights.chunks_mut(len).zip(gradient.chunks(len)).map(piece).collect()
}

fn run_task(cpu: &Cpu, rule: &Rule, task: Task, pieces: &mut [Piece<'_>]) {
    cpu.pool.run_slices(pieces, 1, |_, pieces| {
        for piece in pieces {
            simd::run(cpu.isa, rule, task, piece);
        }
    });
}
