//! The oracle of the dense update: rows of `dim` elements, one after the other.

use crate::optimizer::Rule;
use crate::real::Real;

/// Applies `rule` to every row of `dim` elements; the last may be shorter where the rule asks for
/// no state per row.
pub fn update<R: Real>(
    rule: &Rule<R>,
    [weights, state]: [&mut [R]; 2],
    (gradient, dim): (&[R], usize),
) {
    let per_row = rule.kind.state_per_row(dim);
    let rows = weights.chunks_mut(dim.max(1)).zip(gradient.chunks(dim.max(1)));
    for (row, (weights, gradient)) in rows.enumerate() {
        let end = state.len().min((row + 1) * per_row);
        rule.update_row(weights, gradient, &mut state[row * per_row..end]);
    }
}
