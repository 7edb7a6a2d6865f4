//! The oracle of the dense update, which processes rows of `dim` elements one after the other.

use schema::Granularity;

use crate::optimizer::{UpdateRule, split_state};
use crate::real::Real;

/// Applies `rule` to a parameter. A rule that depends on rows is applied to each row of `dim`
/// elements. Any other rule is applied to all elements as one row, with a state of `[parts,
/// elements]`.
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
