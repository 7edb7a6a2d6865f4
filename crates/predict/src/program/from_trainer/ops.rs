//! Lists the operations of a step of rowmill's own trainer from a configuration and a sharding plan
//! alone. Tests in `cli` compare the list with recorded steps.

use schema::stage::ActionPart;
use schema::{Op, Stage};

use super::dense::{self, DenseWriter};
use crate::Error;
use crate::workload::{DenseUpdates, Workload};
use kernel_model::tile_use::TileUse;

/// Lists the operations of a step by rank, in the trainer's order. The wait for input data is not
/// included.
///
/// Sizes that depend on ids are expected values. For example, `n` ids drawn uniformly from `R` rows
/// select `R (1 − e^(−n/R))` distinct rows.
///
/// # Errors
/// [`Error::Workload`] if a table has an unknown number of rows, if there are no samples or ranks,
/// or if the feature statistics or the plan belong to another model.
pub fn list_ops(workload: Workload<'_>) -> Result<Vec<Vec<Op>>, Error> {
    workload.check()?;
    let tiles = workload.tiles();
    Ok((0..workload.ranks()).map(|rank| step(workload, &tiles, rank)).collect())
}

fn step(workload: Workload<'_>, tiles: &[TileUse], rank: usize) -> Vec<Op> {
    let held = || tiles.iter().filter(|tile| tile.rank == rank);
    let samples = workload.samples(rank);
    let [distribution, lookup, vectors] = forward_ops(workload, held(), samples);
    let [gradients, rows] = backward_ops(workload, held(), samples);
    let is_whole = is_whole(workload);
    let graph = dense::graph(workload);
    let mut dense = DenseWriter::new(workload, samples, DenseUpdates::WithinProducts);
    let mut ops = Vec::new();
    for action in graph.actions.iter().filter(|action| action.part != ActionPart::Start) {
        match action.stage {
            Stage::InputDistribution => ops.push(distribution),
            Stage::Lookup => ops.push(lookup),
            // The lookup writes directly into the input of the interaction, so no exchange of
            // pooled vectors takes place.
            Stage::PooledExchange | Stage::GradientExchange if is_whole => {}
            Stage::PooledExchange => ops.push(vectors),
            Stage::GradientExchange => ops.push(gradients),
            Stage::EmbeddingUpdate => ops.push(rows),
            _ => ops.extend(dense.list_stage(&graph, action)),
        }
    }
    ops
}

/// Lists the dense operations of a rank with the given number of samples, including reductions over
/// ranks.
#[must_use]
pub fn list_dense_ops(workload: Workload<'_>, samples: usize, updates: DenseUpdates) -> Vec<Op> {
    dense::list_ops(workload, samples, updates)
}

/// Returns whether one rank holds every table whole. Lookups then write the pooled output directly.
fn is_whole(workload: Workload<'_>) -> bool {
    let tables = &workload.config.model.tables;
    let in_place = |tile: &schema::Tile| {
        let table = &tables[tile.table.index()];
        let is_one = table.vectors() == 1 || tile.dim() == table.dim;
        tile.rows == (0..table.rows) && is_one
    };
    workload.ranks() == 1 && workload.plan.tiles().iter().all(in_place)
}

/// Lists the input distribution, the lookup and the output distribution of one rank.
fn forward_ops<'a>(
    workload: Workload<'_>,
    held: impl Iterator<Item = &'a TileUse> + Clone,
    samples: usize,
) -> [Op; 3] {
    let stats = workload.features.iter();
    let ids: f64 = stats.map(|stats| stats.ids_per_bag * samples as f64).sum();
    let width: usize = held.clone().map(|tile| tile.vectors * tile.dim).sum();
    let elements = workload.config.training.batch_size * width;
    let sum = |of: &dyn Fn(&TileUse) -> f64| held.clone().map(of).sum::<f64>().round() as usize;
    [
        Op::InputDist { ids: ids.round() as usize },
        Op::EmbeddingForward {
            bags: held.clone().map(|tile| tile.bags).sum(),
            ids: sum(&|tile| tile.uses),
            elements: sum(&|tile| tile.uses * tile.dim as f64),
            pooled_elements: elements,
            row_bytes: sum(&|tile| tile.uses * (tile.dim * tile.weight_bytes) as f64),
        },
        Op::OutputDist { elements },
    ]
}

/// Lists the gradient distribution and the row updates of one rank.
fn backward_ops<'a>(
    workload: Workload<'_>,
    held: impl Iterator<Item = &'a TileUse> + Clone,
    samples: usize,
) -> [Op; 2] {
    let width: usize = held.clone().map(|tile| tile.vectors * tile.dim).sum();
    let sum = |of: &dyn Fn(&TileUse) -> f64| held.clone().map(of).sum::<f64>().round() as usize;
    [
        Op::GradientDist { elements: samples * workload.config.model.pooled_width() },
        Op::EmbeddingBackward {
            ids: sum(&|tile| tile.uses),
            unique_rows: sum(&TileUse::rows_used),
            elements: sum(&|tile| tile.uses * tile.dim as f64),
            unique_elements: sum(&|tile| tile.rows_used() * tile.dim as f64),
            unique_row_bytes: sum(&|tile| tile.rows_used() * (tile.dim * tile.weight_bytes) as f64),
            pooled_elements: workload.config.training.batch_size * width,
            optimizer: workload.config.optimizer.sparse.kind,
        },
    ]
}
