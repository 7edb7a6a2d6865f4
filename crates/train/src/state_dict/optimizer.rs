//! Names and shapes of an optimizer's state beside a weight. Knows nothing of files.

use std::collections::BTreeMap;

use schema::{Granularity, Optimizer, Optimizers};

/// What follows a weight's name in the names of its state tensors: those of `torch.optim`.
pub(super) fn names(optimizer: Optimizer) -> &'static [&'static str] {
    match optimizer {
        Optimizer::Adagrad | Optimizer::RowwiseAdagrad => &["sum"],
        Optimizer::Sgd | Optimizer::Adam | Optimizer::SparseAdam | Optimizer::Lamb => {
            optimizer.state_names()
        }
    }
}

/// The parameters that share a rule, and the note that says which.
pub(super) const NOTES: [(&str, &str); 2] =
    [("tables", "rowmill.optimizer.sparse"), ("dense parameters", "rowmill.optimizer.dense")];

/// The rules of tables and dense parameters, in the order of [`NOTES`].
pub(super) fn kinds(rules: &Optimizers) -> [Optimizer; 2] {
    [rules.sparse.kind, rules.dense.kind]
}

/// What a file of states says of whose they are: the names of a state do not tell Adam's from
/// SparseAdam's, nor Adagrad's of tables with one column from row-wise Adagrad's.
pub(super) fn notes(rules: &Optimizers) -> BTreeMap<String, String> {
    let notes = NOTES.iter().zip(kinds(rules));
    notes.map(|(&(_, key), kind)| (key.to_owned(), kind.to_string())).collect()
}

/// Whether values of a state of this name are sums or means of squares, never below 0.
pub(super) fn is_of_squares(name: &str) -> bool {
    name == "sum" || name == "exp_avg_sq"
}

/// Shape of each state tensor beside a weight of `shape`.
pub(super) fn shape(optimizer: Optimizer, shape: &[usize]) -> Vec<usize> {
    match optimizer.granularity() {
        Granularity::Row => shape[..1].to_vec(),
        Granularity::Element | Granularity::Tensor => shape.to_vec(),
    }
}

/// Names and shapes of the state tensors of the weight called `weight`, which has the shape `of`.
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
    fn the_tensors_hold_all_of_a_row() {
        for optimizer in Optimizer::ALL {
            let tensors = tensors(optimizer, "w", &[1, 3]);
            let values = tensors.iter().map(|(_, shape)| shape.iter().product::<usize>());
            assert_eq!(values.sum::<usize>(), optimizer.state_per_row(3), "{optimizer:?}");
        }
    }
}
