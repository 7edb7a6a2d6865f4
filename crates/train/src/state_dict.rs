//! Exports and imports state dicts of facebookresearch/dlrm and TorchRec.
//!
//! An export is one safetensors file. An import reads such a file, or a file of `torch.save`. This
//! module owns the names, shapes and column orders of both libraries ([`dense_names`],
//! [`table_name`]). Tables are copied in blocks, so they need not fit in memory.

use schema::{Interaction, ModelConfig, Pooling, TableConfig, TableId, TriangleOrder};

use crate::Error;
use crate::parameter::dense_shapes;

mod archive;
mod dialect;
mod export;
mod import;
mod mismatch;
mod optimizer;
mod pickle;

pub use dialect::Dialect;
pub use export::{export, export_optimizer};
pub use import::{ImportRequest, import};
pub use mismatch::Mismatch;

/// The correspondence of one dense parameter between rowmill and the other library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseName {
    /// The parameter's name in rowmill.
    pub own: String,
    /// The parameter's name in the other library's state dict.
    pub external: String,
    /// The parameter's shape, which is the same in both libraries.
    pub shape: Vec<usize>,
    /// Column permutation, needed if the other library orders the pairs of the dot interaction
    /// differently. Column `c` of the other library is column `columns[c]` of rowmill.
    pub columns: Option<Vec<usize>>,
}

/// Lists the names and column orders of all dense parameters, in the order of [`dense_shapes`].
///
/// # Errors
/// [`Error::NotExpressible`] if the other library cannot express the model.
pub fn dense_names(model: &ModelConfig, target: Dialect) -> Result<Vec<DenseName>, Error> {
    check(model, target)?;
    let columns = column_order(model, target);
    let name = |(own, shape): (String, Vec<usize>)| {
        let columns = if own == "top.0.weight" { columns.clone() } else { None };
        DenseName { external: external_name(&own, model, target), own, shape, columns }
    };
    Ok(dense_shapes(model).into_iter().map(name).collect())
}

/// Returns the name of a table's weights in the other library's state dict. TorchRec's `DLRM` pools
/// every table. A table without pooling gets the name that it would have in an
/// `EmbeddingCollection` called `sparse_arch.embedding_collection`.
#[must_use]
pub fn table_name(model: &ModelConfig, table: TableId, target: Dialect) -> String {
    match target {
        Dialect::Torch => format!("emb_l.{}.weight", table.0),
        Dialect::Torchrec => {
            let TableConfig { name, pooling, .. } = &model.tables[table.index()];
            match pooling {
                Pooling::None => {
                    format!("sparse_arch.embedding_collection.embeddings.{name}.weight")
                }
                Pooling::Sum | Pooling::Mean => {
                    format!("sparse_arch.embedding_bag_collection.embedding_bags.{name}.weight")
                }
            }
        }
    }
}

/// Returns the order in which a library lists the pairs of the dot interaction.
fn order_of(target: Dialect) -> TriangleOrder {
    match target {
        Dialect::Torch => TriangleOrder::Lower,
        Dialect::Torchrec => TriangleOrder::Upper,
    }
}

fn external_name(own: &str, model: &ModelConfig, target: Dialect) -> String {
    let mut parts = own.split('.');
    let (Some(arch), Some(layer), Some(kind)) = (parts.next(), parts.next(), parts.next()) else {
        return own.to_owned();
    };
    let layer: usize = layer.parse().unwrap_or_default();
    match (target, arch) {
        // Layers alternate with activations in the modules of facebookresearch/dlrm, so their
        // indices are even.
        (Dialect::Torch, "bottom") => format!("bot_l.{}.{kind}", 2 * layer),
        (Dialect::Torch, _) => format!("top_l.{}.{kind}", 2 * layer),
        (Dialect::Torchrec, "bottom") => {
            format!("dense_arch.model._mlp.{layer}._linear.{kind}")
        }
        (Dialect::Torchrec, "cross") => match kind {
            "v" => format!("inter_arch.crossnet.V_kernels.{layer}"),
            "w" => format!("inter_arch.crossnet.W_kernels.{layer}"),
            _ => format!("inter_arch.crossnet.bias.{layer}"),
        },
        (Dialect::Torchrec, _) if layer + 1 == model.top.len() => {
            format!("over_arch.model.1.{kind}")
        }
        (Dialect::Torchrec, _) => format!("over_arch.model.0._mlp.{layer}._linear.{kind}"),
    }
}

fn check(model: &ModelConfig, target: Dialect) -> Result<(), Error> {
    let fail = |problem: String| Err(Error::NotExpressible { target, problem });
    if model.bottom.is_empty() {
        return fail("the bottom MLP is empty, expected at least 1 layer".to_owned());
    }
    if model.wide {
        return fail("the model has a wide term, expected model.wide = false".to_owned());
    }
    match target {
        Dialect::Torch => {
            if let Interaction::DcnV2 { .. } = model.interaction {
                return fail("interaction dcn_v2, expected dot or cat".to_owned());
            }
            for table in &model.tables {
                let (name, count) = (&table.name, table.features.len());
                let pooling = match table.pooling {
                    Pooling::Sum => None,
                    Pooling::Mean => Some("mean"),
                    Pooling::None => Some("none"),
                };
                if let Some(pooling) = pooling {
                    return fail(format!("table {name:?}: pooling {pooling}, expected sum"));
                }
                if count != 1 {
                    return fail(format!("table {name:?}: {count} features, expected 1 per table"));
                }
            }
        }
        Dialect::Torchrec => {
            match model.interaction {
                Interaction::Cat => {
                    return fail("interaction cat, expected dot or dcn_v2".to_owned());
                }
                Interaction::Dot { itself: true, .. } => {
                    return fail("dot interaction with itself = true, expected false".to_owned());
                }
                Interaction::Dot { .. } | Interaction::DcnV2 { .. } => {}
            }
            // TorchRec's over arch has at least one hidden layer before the logit.
            if model.top.len() < 2 {
                let layers = model.top.len();
                return fail(format!("the top MLP has {layers} layers, expected at least 2"));
            }
        }
    }
    Ok(())
}

/// Maps each column of the other library's first top layer to our column. Returns `None` if both
/// orders agree.
fn column_order(model: &ModelConfig, target: Dialect) -> Option<Vec<usize>> {
    let Interaction::Dot { order, itself } = model.interaction else { return None };
    if order == order_of(target) {
        return None;
    }
    let vectors = model.vectors();
    // First find rowmill's column of each pair, then list these columns in the other library's
    // order.
    let own = pairs(order, itself, vectors);
    let mut place = vec![0; vectors * vectors];
    for (column, (low, high)) in own.into_iter().enumerate() {
        place[low * vectors + high] = column;
    }
    let dense = model.dense_width();
    let there = pairs(order_of(target), itself, vectors);
    let products = there.into_iter().map(|(low, high)| dense + place[low * vectors + high]);
    Some((0..dense).chain(products).collect())
}

/// Lists the pairs `(low, high)` of vectors in the order of their products.
fn pairs(order: TriangleOrder, itself: bool, vectors: usize) -> Vec<(usize, usize)> {
    let gap = usize::from(!itself);
    match order {
        TriangleOrder::Lower => {
            (0..vectors).flat_map(|high| (0..high + 1 - gap).map(move |low| (low, high))).collect()
        }
        TriangleOrder::Upper => {
            (0..vectors).flat_map(|low| (low + gap..vectors).map(move |high| (low, high))).collect()
        }
    }
}
