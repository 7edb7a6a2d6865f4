//! Reads the weights and optimizer states of one rank from a checkpoint. Tables in memory are read
//! whole, and tables in files chunk by chunk.

use device::buffer::Array;
use device::{Backend, Pool, Weights};
use schema::{JobConfig, Rank, ShardingPlan, Tile};

use crate::checkpoint::Checkpoint;
use crate::model::RankParameters;
use crate::parameter::{self, DenseParameter, TileState, dense_shapes};
use crate::{Error, Model};

/// Reads the parameters and state of one rank from a checkpoint of any plan. Tiles that are in
/// files stay empty.
pub fn read_parameters(
    checkpoint: &Checkpoint,
    config: &JobConfig,
    plan: &ShardingPlan,
    rank: Rank,
    host: &Pool,
) -> Result<RankParameters, Error> {
    let (model, optimizer) = (&config.model, &config.optimizer);
    let zeros = |(name, shape): (String, Vec<usize>)| {
        DenseParameter::zeros(&name, &shape, optimizer.dense.kind)
    };
    let mut dense: Vec<_> = dense_shapes(model).into_iter().map(zeros).collect();
    checkpoint.read_dense(&mut dense)?;
    let storage = config.storage.as_ref();
    let tile = |tile: &schema::Tile| {
        let table = &model.tables[tile.table.index()];
        if storage.is_some_and(|storage| storage.includes(table)) {
            let (weight, state) = (Weights::zeroed(table.data_type, 0), Array::zeroed(0));
            return Ok(TileState { tile: tile.clone(), weight, state });
        }
        checkpoint.read_tile(&table.name, tile, optimizer.sparse.kind)
    };
    let tiles = plan.held_by(rank).map(tile).collect::<Result<_, _>>()?;
    let parameters = RankParameters { dense, tiles };
    parameters.check_finite(host, checkpoint.folder(), config)?;
    Ok(parameters)
}

/// Copies the rows of tables in files from the checkpoint to these files, chunk by chunk.
pub fn restore_files<B: Backend>(
    checkpoint: &Checkpoint,
    config: &JobConfig,
    device: &B,
    model: &mut Model<B>,
) -> Result<(), Error> {
    let kind = config.optimizer.sparse.kind;
    for number in 0..model.held_tiles().len() {
        if !model.is_stored(number) {
            continue;
        }
        let tile = model.held_tiles()[number].clone();
        let name = &config.model.tables[tile.table.index()].name;
        // No chunk crosses a cut, so each chunk is read once.
        let mut cuts = checkpoint.row_cuts(name);
        cuts.retain(|&cut| tile.rows.start < cut && cut < tile.rows.end);
        cuts.push(tile.rows.end);
        let mut start = tile.rows.start;
        for end in cuts {
            let part = Tile { rows: start..end, ..tile.clone() };
            let state = checkpoint.read_tile(name, &part, kind)?;
            if let Some(spot) = parameter::not_finite(device.host(), &state.view(), name, kind) {
                let path = checkpoint.folder().to_owned();
                return Err(Error::Value { path, spot, expected: "a finite number" });
            }
            model.restore_rows(device, number, &state)?;
            start = end;
        }
    }
    Ok(())
}
