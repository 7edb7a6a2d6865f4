//! Names and shapes of the state tensors that an optimizer keeps for a weight.
//!
//! This file does not depend on file formats.

use std::collections::BTreeMap;

use schema::{Granularity, Optimizer, Optimizers};

/// Returns the suffixes of a weight's state tensors, with the names of `torch.optim`.
pub(super) fn names(optimizer: Optimizer) -> &'static [&'static str] {
    match optimizer {
        Optimizer::Adagrad | Optimizer::RowwiseAdagrad => &["sum"],
        Optimizer::Sgd | Optimizer::Adam | Optimizer::SparseAdam | Optimizer::Lamb => {
            optimizer.state_names()
        }
    }
}

/// The two groups of parameters with their own optimizer, and the metadata key that names the
/// optimizer of each.
pub(super) const NOTES: [(&str, &str); 2] =
    [("tables", "rowmill.optimizer.sparse"), ("dense parameters", "rowmill.optimizer.dense")];

/// Returns the optimizers of tables and of dense parameters, in the order of [`NOTES`].
pub(super) fn kinds(rules: &Optimizers) -> [Optimizer; 2] {
    [rules.sparse.kind, rules.dense.kind]
}

/// Creates the metadata that names the optimizers of a file of states. Names of state tensors do
/// not distinguish Adam from SparseAdam, nor Adagrad from row-wise Adagrad on tables with one
/// column.
pub(super) fn notes(rules: &Optimizers) -> BTreeMap<String, String> {
    let notes = NOTES.iter().zip(kinds(rules));
    notes.map(|(&(_, key), kind)| (key.to_owned(), kind.to_string())).collect()
}

/// Returns whether a state contains sums or means of squares, whose values are never negative.
pub(super) fn is_of_squares(name: &str) -> bool {
    name == "sum" || name == "exp_avg_sq"
}

/// Returns the shape of a state tensor for a weight of the given shape.
pub(super) fn shape(optimizer: Optimizer, shape: &[usize]) -> Vec<usize> {
    match optimizer.granularity() {
        Granularity::Row => shape[..1].to_vec(),
        Granularity::Element | Granularity::Tensor => shape.to_vec(),
    }
}

/// Lists the names and shapes of the state tensors of `weight`.
pub(super) fn tensors(
    optimizer: Optimizer,
    weight: &str,
    of: &[usize],
) -> Vec<(String, Vec<usize>)> {
    let named = |name: &&str| (format!("{weight}.{name}"), shape(optimizer, of));
    names(optimizer).iter().map(named).collect()
}

#[cfg(test)]
mod tests {
    use schema::Optimizer;

    use super::tensors;

    #[test]
    fn state_tensors_have_the_state_values_of_a_row() {
        for optimizer in Optimizer::ALL {
            let tensors = tensors(optimizer, "w", &[1, 3]);
            let values = tensors.iter().map(|(_, shape)| shape.iter().product::<usize>());
            assert_eq!(values.sum::<usize>(), optimizer.state_per_row(3), "{optimizer:?}");
        }
    }
}
