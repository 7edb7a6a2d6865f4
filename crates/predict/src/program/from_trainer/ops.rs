//! Lists the operations of a step of rowmill's own trainer from a configuration and a sharding plan
//! alone. Tests in `cli` compare the list with recorded steps.

use schema::stage::ActionPart;
use schema::{Op, Schedule, Stage};

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
    let has_tiles = has_tiles(workload);
    let values = |of: fn(&TileUse) -> f64, is_replica: bool| {
        let tiles = held().filter(|tile| tile.uses_of_all.is_some() == is_replica);
        tiles.map(of).sum::<f64>().round() as usize
    };
    let replicas = values(|tile| tile.rows_used() * tile.dim as f64, true);
    let terms = values(|tile| 2.0 * tile.rows_used(), false);
    let is_summed = workload.ranks() > 1 && !workload.plan.replicas().is_empty();
    let graph = dense::graph(workload, Schedule::PIPELINED);
    let mut dense = DenseWriter::new(workload, samples, DenseUpdates::WithinProducts);
    let mut ops = Vec::new();
    for action in graph.actions.iter().filter(|action| action.part != ActionPart::Start) {
        match action.stage {
            Stage::InputDistribution => ops.push(distribution),
            Stage::Lookup => ops.push(lookup),
            // Lookups in whole tables write directly into the input of the interaction, so no
            // exchange of their pooled vectors takes place.
            Stage::PooledExchange => ops.extend(has_tiles.then_some(vectors)),
            Stage::GradientExchange => {
                let sums = Op::AllReduce { elements: replicas };
                ops.extend(is_summed.then_some(sums));
                ops.extend(has_tiles.then_some(gradients));
            }
            Stage::RowTerms => ops.push(Op::AllReduce { elements: terms }),
            Stage::EmbeddingUpdate => ops.push(rows),
            _ => ops.extend(dense.list_stage(&graph, action)),
        }
    }
    ops
}

/// Returns whether ids are looked up in tiles for the samples of all ranks. A single rank that
/// holds every table whole writes the pooled output directly.
fn has_tiles(workload: Workload<'_>) -> bool {
    let tables = &workload.config.model.tables;
    let is_whole = |tile: &schema::Tile| {
        let table = &tables[tile.table.index()];
        tile.rows == (0..table.rows) && tile.dim() == table.dim
    };
    let tiles = workload.plan.tiles();
    let is_alone = workload.ranks() == 1 && tiles.iter().all(is_whole);
    !is_alone && !tiles.is_empty()
}

/// Returns the number of values that lookups in these tiles write.
fn pooled_elements<'a>(tiles: impl Iterator<Item = &'a TileUse>) -> usize {
    tiles.map(|tile| tile.bags * tile.dim).sum()
}

/// Lists the input distribution, the lookup and the output distribution of one rank.
fn forward_ops<'a>(
    workload: Workload<'_>,
    held: impl Iterator<Item = &'a TileUse> + Clone,
    samples: usize,
) -> [Op; 3] {
    let stats = workload.features.iter();
    let ids: f64 = stats.map(|stats| stats.ids_per_bag * samples as f64).sum();
    let tiled = held.clone().filter(|tile| tile.uses_of_all.is_none());
    let sum = |of: &dyn Fn(&TileUse) -> f64| held.clone().map(of).sum::<f64>().round() as usize;
    [
        Op::InputDist { ids: ids.round() as usize },
        Op::EmbeddingForward {
            bags: held.clone().map(|tile| tile.bags).sum(),
            ids: sum(&|tile| tile.uses),
            elements: sum(&|tile| tile.uses * tile.dim as f64),
            pooled_elements: pooled_elements(held.clone()),
            row_bytes: sum(&|tile| tile.uses * (tile.dim * tile.weight_bytes) as f64),
        },
        Op::OutputDist { elements: pooled_elements(tiled) },
    ]
}

/// Lists the gradient distribution and the row updates of one rank.
fn backward_ops<'a>(
    workload: Workload<'_>,
    held: impl Iterator<Item = &'a TileUse> + Clone,
    samples: usize,
) -> [Op; 2] {
    let replicated = workload.plan.replicated();
    let is_tiled = |id: &usize| !replicated.iter().any(|table| table.index() == *id);
    let tables = &workload.config.model.tables;
    let width = |id: usize| tables[id].dim * tables[id].vectors() * tables[id].features.len();
    let width: usize = (0..tables.len()).filter(is_tiled).map(width).sum();
    let sum = |of: &dyn Fn(&TileUse) -> f64| held.clone().map(of).sum::<f64>().round() as usize;
    [
        Op::GradientDist { elements: samples * width },
        Op::EmbeddingBackward {
            ids: sum(&|tile| tile.uses),
            unique_rows: sum(&TileUse::rows_used),
            elements: sum(&|tile| tile.uses * tile.dim as f64),
            unique_elements: sum(&|tile| tile.rows_used() * tile.dim as f64),
            unique_row_bytes: sum(&|tile| tile.rows_used() * (tile.dim * tile.weight_bytes) as f64),
            pooled_elements: pooled_elements(held.clone()),
            optimizer: workload.config.optimizer.sparse.kind,
        },
    ]
}
