//! Describes the trainer's operations as amounts of work. The time of an operation is the sum of
//! its amounts times their fitted unit times.

use schema::{GemmProduct, Op, Optimizer, Precision};

use crate::embedding::lookup::{self, Amount, Cores};
use crate::tile_use::TileUse;

/// Rows and columns of a panel, the layout of activations and gradients in matrix products.
const PANEL: usize = 32;

/// The context of an operation on its rank: embedding tables, cores, and the fused optimizer.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// The tiles of the operation's rank.
    pub tiles: Vec<&'a TileUse>,
    pub cores: Cores,
    /// Optimizer that is fused into products of weight gradients, if any.
    pub updates: Option<Optimizer>,
}

/// An operation as amounts of work, each of which has a fitted unit time.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuWork {
    /// Kind of the operation. Operations of one kind share a model.
    pub kind: String,
    pub amounts: Vec<Amount>,
    /// Logarithms of the operation's sizes. Operations with similar sizes have similar residuals.
    pub sizes: Vec<f32>,
}

impl CpuWork {
    /// Describes an operation of one rank. Returns `None` for exchanges between ranks and for
    /// waits, because their time does not depend on amounts of work.
    #[must_use]
    pub fn from_op(op: &Op, context: &Context<'_>) -> Option<Self> {
        let name = op.name();
        let work = op.work();
        let bytes = work.bytes as f64;
        let pass = |kind: String| Self {
            kind,
            amounts: passes(bytes, context.cores),
            sizes: logs(&[bytes]),
        };
        Some(match *op {
            Op::InputWait { .. }
            | Op::OutputDist { .. }
            | Op::GradientDist { .. }
            | Op::AllReduce { .. } => return None,
            Op::EmbeddingForward { .. } => Self::lookups(context),
            Op::EmbeddingBackward { optimizer, .. } => Self::row_updates(optimizer, context),
            Op::Gemm { product, precision, m, n, k } => {
                product_of(name, product, precision, [m, n, k], context)
            }
            Op::Interaction { batch_size, vectors, dim, .. } => {
                let (samples, vectors, dim) = (batch_size as f64, vectors as f64, dim as f64);
                let pairs = vectors * (vectors - 1.0) / 2.0;
                let amounts = vec![
                    ("call", 1.0),
                    ("samples", samples),
                    ("products", samples * pairs * dim),
                    ("vectors", samples * vectors),
                    ("inputs", samples * vectors * dim),
                    ("pairs", samples * pairs),
                    ("bytes_past_last", beyond(bytes, context.cores.last)),
                ];
                Self { kind: name.to_owned(), amounts, sizes: logs(&[samples, vectors, dim]) }
            }
            Op::DenseUpdate { optimizer, .. } => pass(format!("{name} {optimizer}")),
            _ => pass(name.to_owned()),
        })
    }

    /// Describes the lookups of a batch in all tables of the rank.
    #[must_use]
    pub fn lookups(context: &Context<'_>) -> Self {
        let amounts = lookup::forward_amounts(&context.tiles, context.cores);
        Self { kind: "embedding_forward".to_owned(), amounts, sizes: tables(context, None) }
    }

    /// Describes the updates of the rows that a batch looked up.
    #[must_use]
    pub fn row_updates(rule: Optimizer, context: &Context<'_>) -> Self {
        let amounts = lookup::backward_amounts(&context.tiles, context.cores);
        Self { kind: "embedding_backward".to_owned(), amounts, sizes: tables(context, Some(rule)) }
    }
}

fn product_of(
    name: &str,
    product: GemmProduct,
    precision: Precision,
    sizes: [usize; 3],
    context: &Context<'_>,
) -> CpuWork {
    let [m, n, k] = sizes.map(|size| size as f64);
    // Products with a single row or column use another kernel than products of panels.
    let is_vector = sizes.contains(&1);
    let form = if is_vector { " vector" } else { "" };
    let kind = match precision {
        Precision::F32 => format!("{name}{form}"),
        Precision::Bf16 => format!("{name}{form} bf16"),
    };
    let panels = |size: usize| size.next_multiple_of(PANEL) as f64;
    let mut amounts = vec![
        ("call", 1.0),
        ("products", m * n * k),
        ("products_in_panels", panels(sizes[0]) * panels(sizes[1]) * k),
        ("result", m * n),
        ("left", m * k),
        ("right", k * n),
        ("bytes_past_last", beyond(4.0 * (m * n + m * k + k * n), context.cores.last)),
    ];
    if product == GemmProduct::BackwardWeight {
        let states = context.updates.map(|rule| rule.state_names().len());
        let updated = |count| if states == Some(count) { m * n } else { 0.0 };
        amounts.push(("updated_adagrad", updated(1)));
        amounts.push(("updated_adam", updated(2)));
    }
    CpuWork { kind, amounts, sizes: logs(&[m, n, k]) }
}

/// Returns the amounts of work of one pass over memory.
fn passes(bytes: f64, cores: Cores) -> Vec<Amount> {
    vec![
        ("call", 1.0),
        ("bytes", bytes),
        ("bytes_past_private", beyond(bytes, cores.private)),
        ("bytes_past_last", beyond(bytes, cores.last)),
    ]
}

fn beyond(bytes: f64, cache: f64) -> f64 {
    (bytes - cache).max(0.0)
}

fn logs(sizes: &[f64]) -> Vec<f32> {
    sizes.iter().map(|size| size.max(1.0).ln() as f32).collect()
}

/// Returns the sizes of lookups as means over the tables, weighted by the tables' numbers of ids.
fn tables(context: &Context<'_>, rule: Option<Optimizer>) -> Vec<f32> {
    let tiles = &context.tiles;
    let uses: f64 = tiles.iter().map(|tile| tile.uses).sum::<f64>().max(1.0);
    let mean = |of: &dyn Fn(&TileUse) -> f64| {
        tiles.iter().map(|tile| tile.uses * of(tile)).sum::<f64>() / uses
    };
    let log = |value: f64| value.max(1e-9).ln();
    let states = |tile: &TileUse| rule.map_or(0.0, |rule| rule.state_per_row(tile.dim) as f64);
    let sizes = [
        (tiles.len() as f64).max(1.0).ln(),
        mean(&|tile| log(tile.bags as f64)),
        mean(&|tile| log(tile.uses / tile.bags.max(1) as f64)),
        mean(&|tile| 0.5 * log(tile.rows as f64)),
        mean(&|tile| log(tile.dim as f64)),
        mean(&|tile| log(tile.rows_used() / tile.uses.max(1.0))),
        mean(&|tile| log(1.0 + states(tile) / tile.dim as f64)),
        mean(&|tile| 2.0 * (4.0 - tile.weight_bytes as f64)),
    ];
    sizes.map(|size| size as f32).to_vec()
}
