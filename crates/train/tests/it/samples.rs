//! Small jobs, and the values that their checkpoints contain.

use device::Weights;
use schema::{
    DataType, JobConfig, Optimizer, Rank, RowScope, ShardingPlan, SplitRowRule, TableConfig, Tile,
};
use train::checkpoint::{Checkpoint, CheckpointWriter, Committed, Meta, SeenData};
use train::parameter::{DenseParameter, TileState, dense_shapes};

/// Creates a job with tables of the given rows and dimensions, an interaction as TOML, and an
/// optimizer of the tables.
pub fn job(tables: &[(u64, usize)], interaction: &str, sparse: Optimizer) -> JobConfig {
    let row = |(i, (rows, dim)): (usize, &(u64, usize))| {
        format!("{{ name = \"t{i}\", rows = {rows}, dim = {dim} }}")
    };
    let rows: Vec<String> = tables.iter().enumerate().map(row).collect();
    let columns = |i| format!("{{ column = \"t{i}\", kind = \"integer\" }}");
    let columns: Vec<String> = (0..tables.len()).map(columns).collect();
    let dim = tables[0].1;
    let sparse = serde_json::to_string(&sparse).unwrap();
    let text = format!(
        r#"
[model]
name = "sample"
seed = 7
dense_features = 3
bottom = [5, {dim}]
top = [6, 4, 1]
interaction = {interaction}
loss = "bce_with_logits"
tables = [{}]
[optimizer]
sparse = {{ kind = {sparse}, learning_rate = 0.1 }}
dense = {{ kind = "adagrad", learning_rate = 0.1 }}
[training]
batch_size = 16
seed = 9
[data]
format = "csv"
label = {{ column = "y" }}
dense = [{{ column = "a" }}, {{ column = "b" }}, {{ column = "c" }}]
categorical = [{}]
"#,
        rows.join(", "),
        columns.join(", ")
    );
    JobConfig::parse(&text, &[]).unwrap()
}

/// Returns a weight that is unique for its table, row and column, and uses all bits of the
/// mantissa.
pub fn weight(table: usize, row: u64, column: usize) -> f32 {
    ((table as u64 * 1009 + row * 31 + column as u64) as f32).sin()
}

/// Creates a tile with the weights and states that its owner holds. Row-wise states depend on the
/// tile's columns.
pub fn tile_state(tile: &Tile, optimizer: Optimizer) -> TileState {
    let (mut weights, mut state) = (Vec::new(), Vec::new());
    for row in tile.rows.clone() {
        let cells = tile.columns.clone().map(|column| weight(tile.table.index(), row, column));
        let squares = cells.clone().map(|value| value * value);
        match optimizer {
            Optimizer::Sgd => {}
            Optimizer::Adagrad => state.extend(squares),
            Optimizer::Adam | Optimizer::SparseAdam | Optimizer::Lamb => {
                state.extend(cells.clone().map(|value| value + 0.5));
                state.extend(squares);
            }
            Optimizer::RowwiseAdagrad => {
                let sum: f64 = squares.map(f64::from).sum();
                state.push((sum / tile.dim() as f64) as f32);
            }
        }
        weights.extend(cells);
    }
    TileState {
        tile: tile.clone(),
        weight: Weights::F32(weights[..].into()),
        state: state[..].into(),
    }
}

/// Creates a tile like [`tile_state`], with weights rounded to a data type.
pub fn narrow_tile_state(tile: &Tile, optimizer: Optimizer, data_type: DataType) -> TileState {
    let wide = tile_state(tile, optimizer);
    let mut weight = Weights::zeroed(data_type, wide.weight.len());
    weight.view_mut().fill_from(&wide.weight.view().to_f32());
    TileState { weight, ..wide }
}

/// Creates all dense parameters of a job with distinct values.
pub fn dense(config: &JobConfig) -> Vec<DenseParameter> {
    let mut parameters = zeros(config);
    for (i, parameter) in parameters.iter_mut().enumerate() {
        for (j, value) in parameter.weight.iter_mut().enumerate() {
            *value = weight(100 + i, j as u64, 0);
        }
        for (j, value) in parameter.state.iter_mut().enumerate() {
            *value = weight(200 + i, j as u64, 0).abs();
        }
    }
    parameters
}

/// Creates all dense parameters of a job, filled with zeros.
pub fn zeros(config: &JobConfig) -> Vec<DenseParameter> {
    let shapes = dense_shapes(&config.model);
    let kind = config.optimizer.dense.kind;
    shapes.iter().map(|(name, shape)| DenseParameter::zeros(name, shape, kind)).collect()
}

/// Saves a job's values under `plan`, with each rank on its own thread.
pub fn save(
    run: &std::path::Path,
    step: u64,
    config: &JobConfig,
    plan: &ShardingPlan,
) -> Committed {
    // Chunks have only a few rows, so that even small tables have several chunks.
    let writer =
        CheckpointWriter::begin(run, step, &config.model.tables).unwrap().with_chunk_bytes(256);
    let kind = config.optimizer.sparse.kind;
    let mut records: Vec<_> = std::thread::scope(|scope| {
        let write = |rank| {
            let writer = &writer;
            scope.spawn(move || {
                let tile = |tile: &Tile| {
                    let table = &config.model.tables[tile.table.index()];
                    narrow_tile_state(tile, kind, table.data_type)
                };
                let tiles: Vec<TileState> = {
                    let saved = plan.held_by(Rank(rank)).filter(|tile| tile.rank == Rank(rank));
                    saved.map(tile).collect()
                };
                writer.write_rank(Rank(rank), &tiles, kind).unwrap()
            })
        };
        let ranks: Vec<_> = (0..plan.world_size()).map(write).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    records.push(writer.write_dense(&dense(config), config.optimizer.dense.kind).unwrap());
    let meta = Meta {
        samples: step * 16,
        config,
        plan,
        row_scope: RowScope::new(
            kind,
            SplitRowRule::ColumnTiles,
            plan.tiles(),
            &config.model.tables,
        ),
        fitted: serde_json::json!({ "mean": [0.1, 1.0 / 3.0] }),
        position: serde_json::json!({ "epoch": 1, "batch": u64::MAX }),
        data: SeenData::default(),
    };
    writer.commit(&meta, records).unwrap()
}

/// Reads every tile of `plan` and compares it bit for bit with [`tile_state`].
pub fn check_tiles(checkpoint: &Checkpoint, plan: &ShardingPlan, optimizer: Optimizer) {
    for tile in plan.tiles().iter().chain(plan.replicas()) {
        // SGD has no state, so only the weights are read.
        let got = match optimizer {
            Optimizer::Sgd => checkpoint.read_tile_weights(&name(tile), tile).unwrap(),
            _ => checkpoint.read_tile(&name(tile), tile, optimizer).unwrap(),
        };
        assert_eq!(got, tile_state(tile, optimizer));
    }
}

/// Returns the name of a tile's table.
pub fn name(tile: &Tile) -> String {
    format!("t{}", tile.table.0)
}

/// Creates a plan that splits no table.
pub fn whole(tables: &[TableConfig]) -> ShardingPlan {
    ShardingPlan::table_wise(tables, 1)
}

/// Writes a changed manifest with the checksum of its new text.
pub fn write_manifest(path: &std::path::Path, manifest: &serde_json::Value) {
    let mut manifest = manifest.as_object().unwrap().clone();
    manifest.remove("checksum");
    let rest = serde_json::to_string_pretty(&manifest).unwrap();
    // The checksum is the first key of the manifest. It is computed over the text with zeros in
    // place of the checksum.
    let blank = rest.replacen('{', "{\n  \"checksum\": \"0000000000000000\",", 1);
    let hash = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(blank.as_bytes()));
    std::fs::write(path, blank.replacen("0000000000000000", &hash, 1)).unwrap();
}
