//! The oracle of the dense update: rows of `dim` elements, one after the other.

use schema::Granularity;

use crate::optimizer::{UpdateRule, split_state};
use crate::real::Real;

/// Applies `rule` row by row to rows of `dim` elements if the rule depends on rows, otherwise to
/// all elements as one row with a state of `[parts, elements]`.
pub fn update<R: Real>(
    rule: &UpdateRule<R>,
    [weights, state]: [&mut [R]; 2],
    gradient: &[R],
    dim: usize,
) {
    let dim = if rule.kind.granularity() == Granularity::Row { dim } else { weights.len() };
    let per_row = rule.kind.state_per_row(dim);
    let rows = weights.chunks_mut(dim.max(1)).zip(gradient.chunks(dim.max(1)));
    for (row, (weights, gradient)) in rows.enumerate() {
        let state = &mut state[row * per_row..(row + 1) * per_row];
        rule.update_row(weights, gradient, split_state(rule.kind, state));
    }
}
