//! Names and shapes of an optimizer's state beside a weight. Knows nothing of files.

use schema::Optimizer;

/// What follows a weight's name in the names of its state tensors: those of `torch.optim`.
pub(super) fn names(optimizer: Optimizer) -> &'static [&'static str] {
    match optimizer {
        Optimizer::Adagrad | Optimizer::RowwiseAdagrad => &["sum"],
        Optimizer::Sgd | Optimizer::Adam | Optimizer::Lamb => optimizer.state_names(),
    }
}

/// Shape of each state tensor beside a weight of `shape`.
pub(super) fn shape(optimizer: Optimizer, shape: &[usize]) -> Vec<usize> {
    match optimizer {
        Optimizer::RowwiseAdagrad => shape[..1].to_vec(),
        _ => shape.to_vec(),
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
