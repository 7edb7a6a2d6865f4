//! The oracle of the dense update: rows of `dim` elements, one after the other.

use schema::Optimizer;

use crate::optimizer::{Rule, split_state};
use crate::real::Real;

/// Applies `rule` to every row of `dim` elements; Adam, SparseAdam and LAMB, whose state is `[2,
/// elements]`, take all elements as one row.
pub fn update<R: Real>(
    rule: &Rule<R>,
    [weights, state]: [&mut [R]; 2],
    gradient: &[R],
    dim: usize,
) {
    let dim = match rule.kind {
        Optimizer::Adam | Optimizer::SparseAdam | Optimizer::Lamb => weights.len(),
        Optimizer::Sgd | Optimizer::Adagrad | Optimizer::RowwiseAdagrad => dim,
    };
    let per_row = rule.kind.state_per_row(dim);
    let rows = weights.chunks_mut(dim.max(1)).zip(gradient.chunks(dim.max(1)));
    for (row, (weights, gradient)) in rows.enumerate() {
        let state = &mut state[row * per_row..(row + 1) * per_row];
        rule.update_row(weights, gradient, split_state(rule.kind, state));
    }
}
