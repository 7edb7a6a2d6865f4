//! Compares training with golden runs of facebookresearch/dlrm, TorchRec and
//! `torch.optim.SparseAdam`.
//!
//! The tests compare the losses of every step and the final weights, on 1, 2 and 3 ranks and under
//! every tiling.

use std::collections::BTreeMap;
use std::path::PathBuf;

use device::Weights;
use device::buffer::Array;
use schema::model::DenseInit;
use schema::{
    Batch, Interaction, JaggedTensor, JobConfig, Loss, ModelConfig, Optimizer, Rank, ShardingPlan,
    SplitRowRule, TableConfig, TriangleOrder,
};
use train::model::RankParameters;
use train::parameter::{DenseParameter, TileState, dense_shapes};

use crate::oracle::Oracle;
use crate::ranks::{self, Job, Trained};

const RUNS: [&str; 8] = [
    "tiny_mse_sgd",
    "mid_bce_sgd",
    "mid_bce_adagrad",
    "mid_bce_rowwise_adagrad",
    "itself_bce_sgd",
    "small_bce_sparse_adam",
    "torchrec_dlrm_sgd",
    "torchrec_dcnv2_adagrad",
];

/// A golden run, read from its files.
struct Golden {
    config: JobConfig,
    losses: Vec<f64>,
    tensors: BTreeMap<String, Vec<f32>>,
    batches: Vec<Batch>,
    torchrec: bool,
}

/// Returns the folder of golden runs, which is `ROWMILL_GOLDEN` on a machine without the sources.
fn folder() -> PathBuf {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/dlrm_golden");
    std::env::var_os("ROWMILL_GOLDEN").map_or_else(|| beside.into(), PathBuf::from)
}

impl Golden {
    fn read(name: &str) -> Self {
        let text = std::fs::read_to_string(folder().join(format!("{name}.json"))).unwrap();
        let run: serde_json::Value = serde_json::from_str(&text).unwrap();
        let bytes = std::fs::read(folder().join(format!("{name}.safetensors"))).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut tensors = BTreeMap::new();
        let mut ids = BTreeMap::new();
        for (name, view) in file.tensors() {
            let cells = |width| view.data().chunks_exact(width);
            match view.dtype() {
                safetensors::Dtype::F32 => {
                    let read = |cell: &[u8]| f32::from_le_bytes(cell.try_into().unwrap());
                    tensors.insert(name, cells(4).map(read).collect::<Vec<_>>());
                }
                safetensors::Dtype::I64 => {
                    let read = |cell: &[u8]| i64::from_le_bytes(cell.try_into().unwrap());
                    ids.insert(name, cells(8).map(read).collect::<Vec<_>>());
                }
                safetensors::Dtype::I32 => {
                    let read = |cell: &[u8]| i32::from_le_bytes(cell.try_into().unwrap());
                    ids.insert(name, cells(4).map(|cell| i64::from(read(cell))).collect());
                }
                other => panic!("unexpected type {other:?} of {name}"),
            }
        }
        let torchrec = run.get("model").is_some();
        let steps = run["steps"].as_u64().unwrap() as usize;
        let config = config(&run, &tensors);
        let features = config.model.features().len();
        let batch = |step: usize| {
            let sparse = if torchrec {
                let lengths = &ids[&format!("step.{step}.lengths")];
                let lengths: Vec<_> = lengths.iter().map(|&length| length as usize).collect();
                let values = ids[&format!("step.{step}.values")].clone();
                JaggedTensor::from_lengths(features, &lengths, values)
            } else {
                bags(step, features, &ids)
            };
            let labels = tensors[&format!("step.{step}.label")].clone();
            let dense = tensors[&format!("step.{step}.dense")].clone();
            Batch { size: labels.len(), dense, sparse, labels }
        };
        let losses = run["losses"].as_array().unwrap().iter().map(|l| l.as_f64().unwrap());
        let losses = losses.collect();
        let batches = (0..steps).map(batch).collect();
        Self { config, losses, batches, tensors, torchrec }
    }

    /// Returns the dense weights at `when` (`init` or `final`) under rowmill's names.
    fn dense(&self, when: &str) -> Vec<DenseParameter> {
        let optimizer = self.config.optimizer.dense.kind;
        let named = |(name, shape): (String, Vec<usize>)| {
            let mut parameter = DenseParameter::zeros(&name, &shape, optimizer);
            parameter.weight = self.tensors[&format!("{when}.{}", self.foreign(&name))].clone();
            parameter
        };
        dense_shapes(&self.config.model).into_iter().map(named).collect()
    }

    fn foreign(&self, name: &str) -> String {
        let parts: Vec<&str> = name.split('.').collect();
        let last = (self.config.model.top.len() - 1).to_string();
        match (self.torchrec, &parts[..]) {
            (false, ["bottom", i, kind]) => format!("bot.{i}.{kind}"),
            (true, ["bottom", i, kind]) => format!("dense_arch.model._mlp.{i}._linear.{kind}"),
            (true, ["cross", i, "bias"]) => format!("inter_arch.crossnet.bias.{i}"),
            (true, ["cross", i, kind]) => {
                format!("inter_arch.crossnet.{}_kernels.{i}", kind.to_uppercase())
            }
            (true, ["top", i, kind]) if **i == *last => format!("over_arch.model.1.{kind}"),
            (true, ["top", i, kind]) => format!("over_arch.model.0._mlp.{i}._linear.{kind}"),
            _ => name.to_owned(),
        }
    }

    fn table(&self, when: &str, table: usize) -> &[f32] {
        let name = if self.torchrec {
            format!("{when}.sparse_arch.embedding_bag_collection.embedding_bags.t{table}.weight")
        } else {
            format!("{when}.emb.{table}.weight")
        };
        &self.tensors[&name]
    }

    fn parameters(&self, plan: &ShardingPlan, rank: Rank) -> RankParameters {
        let optimizer = self.config.optimizer.sparse.kind;
        let tile = |tile: &schema::Tile| {
            let (id, dim) = (tile.table.index(), self.config.model.tables[tile.table.index()].dim);
            let rows = tile.rows.start as usize..tile.rows.end as usize;
            let row = |row| &self.table("init", id)[row * dim..][tile.columns.clone()];
            let weight: Vec<f32> = rows.flat_map(row).copied().collect();
            let weight = Weights::F32(weight[..].into());
            let state = Array::zeroed(tile.row_count() * optimizer.state_per_row(tile.dim()));
            TileState { tile: tile.clone(), weight, state }
        };
        RankParameters { dense: self.dense("init"), tiles: plan.held_by(rank).map(tile).collect() }
    }

    fn run(&self, plan: &ShardingPlan, threads: usize) -> Trained {
        self.run_by(plan, threads, ranks::train)
    }

    fn run_by(
        &self,
        plan: &ShardingPlan,
        threads: usize,
        train: impl FnOnce(&Job<'_>) -> Trained,
    ) -> Trained {
        train(&Job {
            config: &self.config,
            plan,
            batches: &self.batches,
            threads,
            parameters: &|rank| self.parameters(plan, rank),
        })
    }

    /// Computes losses and tables of the run in f64, under the update rule that `plan` implies.
    fn oracle(&self, plan: &ShardingPlan) -> (Vec<f64>, Vec<Vec<f64>>) {
        let whole = ShardingPlan::table_wise(&self.config.model.tables, 1);
        let mut oracle = Oracle::new(&self.config, plan, &self.parameters(&whole, Rank(0)));
        let losses = self.batches.iter().map(|batch| oracle.step(batch)).collect();
        (losses, oracle.tables)
    }

    /// Compares a run, whose update rule differs from the golden run's, with the oracle of that
    /// rule.
    fn check_tile_rule(&self, plan: &ShardingPlan, trained: &Trained, what: &str) {
        let (losses, tables) = self.oracle(plan);
        close_losses(what, &trained.losses, &losses);
        for (table, (got, expected)) in trained.tables.iter().zip(&tables).enumerate() {
            let apart = |(&a, &b): (&f32, &f64)| (f64::from(a) - b).abs();
            let worst = got.iter().zip(expected).map(apart).fold(0.0, f64::max);
            assert!(worst < 3e-4, "{what}: table {table}: {worst} apart");
        }
    }

    fn check(&self, trained: &Trained, what: &str) {
        close_losses(what, &trained.losses, &self.losses);
        let bound = match self.config.optimizer.sparse.kind {
            Optimizer::Sgd => 1e-5,
            // The first steps of adaptive optimizers divide by |g|, which magnifies rounding
            // errors.
            _ => 3e-4,
        };
        let close = |name: &str, got: &[f32], expected: &[f32]| {
            assert_eq!(got.len(), expected.len(), "{what}: {name}");
            let apart = |(a, b): (&f32, &f32)| (a - b).abs();
            let worst = got.iter().zip(expected).map(apart).fold(0.0, f32::max);
            assert!(worst < bound, "{what}: {name}: {worst} apart");
        };
        for (got, expected) in trained.dense.iter().zip(self.dense("final")) {
            close(&got.name, &got.weight, &expected.weight);
        }
        for (table, got) in trained.tables.iter().enumerate() {
            close(&format!("table {table}"), got, self.table("final", table));
        }
    }
}

fn bags(step: usize, features: usize, ids: &BTreeMap<String, Vec<i64>>) -> JaggedTensor {
    let (mut lengths, mut values) = (Vec::new(), Vec::new());
    for table in 0..features {
        let starts = &ids[&format!("step.{step}.offsets.{table}")];
        let own = &ids[&format!("step.{step}.indices.{table}")];
        let ends = starts[1..].iter().copied().chain([own.len() as i64]);
        lengths.extend(starts.iter().zip(ends).map(|(start, end)| (end - start) as usize));
        values.extend_from_slice(own);
    }
    JaggedTensor::from_lengths(features, &lengths, values)
}

fn config(run: &serde_json::Value, tensors: &BTreeMap<String, Vec<f32>>) -> JobConfig {
    let widths = |key: &str| -> Vec<usize> {
        run[key].as_array().unwrap().iter().map(|w| w.as_u64().unwrap() as usize).collect()
    };
    let torchrec = run.get("model").is_some();
    let dim = run["dim"].as_u64().unwrap() as usize;
    let table = |(i, rows): (usize, usize)| TableConfig {
        name: format!("t{i}"),
        rows: rows as u64,
        dim,
        pooling: schema::Pooling::Sum,
        sequence_length: None,
        data_type: schema::DataType::F32,
        features: vec![format!("t{i}")],
    };
    let dcn = || Interaction::DcnV2 {
        layers: 3,
        // The rank of the cross layers follows from the sizes of V and of the bias.
        rank: tensors["init.inter_arch.crossnet.V_kernels.0"].len()
            / tensors["init.inter_arch.crossnet.bias.0"].len(),
    };
    let interaction = match run.get("model").and_then(|model| model.as_str()) {
        Some("DLRM_DCN") => dcn(),
        Some(_) => Interaction::Dot { order: TriangleOrder::Upper, itself: false },
        None => Interaction::Dot {
            order: TriangleOrder::Lower,
            itself: run["interaction_itself"].as_bool().unwrap(),
        },
    };
    let bottom = widths("bottom");
    let model = ModelConfig {
        name: run["name"].as_str().unwrap().to_owned(),
        seed: 0,
        rows_cap: None,
        dense_features: bottom[0],
        bottom: bottom[1..].to_vec(),
        top: if torchrec { widths("over_arch") } else { widths("top")[1..].to_vec() },
        interaction,
        wide: false,
        loss: if run["loss"] == "mse" { Loss::Mse } else { Loss::BceWithLogits },
        init: DenseInit::Dlrm,
        tables: widths("rows").into_iter().enumerate().map(table).collect(),
    };
    let kind = |key: &str| serde_json::from_value(run[key].clone()).unwrap();
    let sparse = kind("optimizer");
    let dense = if torchrec { sparse } else { kind("dense_optimizer") };
    let mut job = ranks::job(
        model,
        (sparse, dense),
        run["learning_rate"].as_f64().unwrap(),
        run["batch"].as_u64().unwrap() as usize,
    );
    if let Some(epsilon) = run["epsilon"].as_f64() {
        job.optimizer.sparse.epsilon = epsilon;
        job.optimizer.dense.epsilon = epsilon;
    }
    job
}

/// A named tiling, and the function that creates it.
type Tiling = (&'static str, fn(&[TableConfig], u32) -> ShardingPlan);

const TILINGS: [Tiling; 6] = [
    ("table", ShardingPlan::table_wise),
    ("row", ShardingPlan::row_wise),
    ("column", ShardingPlan::column_wise),
    ("mixed", ShardingPlan::mixed),
    ("replicated", ShardingPlan::replicate),
    ("mixed with replicated", crate::checkpoint::with_replicas),
];

#[test]
fn golden_runs_match_on_any_number_of_ranks_and_tiling() {
    for name in RUNS {
        let golden = Golden::read(name);
        for ranks in 1..=3 {
            for (tiling, make) in TILINGS {
                let plan = make(&golden.config.model.tables, ranks);
                let (trained, what) = (golden.run(&plan, 1), format!("{name}, {ranks}, {tiling}"));
                golden.check(&trained, &what);
            }
        }
    }
}

/// Repeats the golden runs with GPU kernels, emulated or on the GPU of `ROWMILL_GPU`. Every run is
/// repeated on one rank, and three runs also on two ranks whose tables are split by rows and by
/// columns, or replicated. The variable `ROWMILL_GOLDEN_RUN` selects one run.
#[test]
fn golden_runs_match_on_the_emulated_gpu() {
    let Some(driver) = ranks::emulated() else { return };
    let wanted = std::env::var("ROWMILL_GOLDEN_RUN").ok();
    if let Some(wanted) = &wanted {
        assert!(RUNS.contains(&wanted.as_str()), "ROWMILL_GOLDEN_RUN: no run {wanted:?}");
    }
    let split = ["mid_bce_sgd", "torchrec_dcnv2_adagrad", "mid_bce_rowwise_adagrad"];
    let alone = RUNS.into_iter().map(|name| (name, 1));
    for (name, ranks) in alone.chain(split.into_iter().map(|name| (name, 2))) {
        if wanted.as_ref().is_some_and(|wanted| wanted != name) {
            continue;
        }
        let golden = Golden::read(name);
        let tables = &golden.config.model.tables;
        let plan = match ranks {
            1 => ShardingPlan::table_wise(tables, 1),
            _ if name == split[2] => crate::checkpoint::with_replicas(tables, ranks),
            _ => ShardingPlan::mixed(tables, ranks),
        };
        let trained = golden.run_by(&plan, 1, |job| ranks::train_emulated(job, &driver));
        golden.check(&trained, &format!("{name}, {ranks}, emulated"));
    }
}

/// Each row scope of row-wise Adagrad must match the scalar f64 oracle of that scope, and the
/// results of both scopes must differ.
#[test]
fn rowwise_adagrad_on_column_tiles_matches_its_own_oracle() {
    let mut golden = Golden::read("mid_bce_rowwise_adagrad");
    golden.config.optimizer.row_scope = SplitRowRule::ColumnTiles;
    let golden = golden;
    let tables = &golden.config.model.tables;
    let whole = ShardingPlan::table_wise(tables, 1);
    let (expected, _) = golden.oracle(&whole);
    close_losses("whole rows", &expected, &golden.losses);
    let mut rules = vec![expected];
    for ranks in [2, 3, 4, 16] {
        let plan = ShardingPlan::column_wise(tables, ranks);
        let trained = golden.run(&plan, 1);
        golden.check_tile_rule(&plan, &trained, &format!("{ranks} column tiles"));
        let apart = rules.iter().map(|losses| furthest(&trained.losses, losses));
        let nearest = apart.fold(f64::INFINITY, f64::min);
        assert!(nearest > 1e-3, "{ranks} column tiles: {nearest:.1e} from another rule");
        rules.push(trained.losses);
    }
    // Only the columns matter, not the ranks, so four tiles on one or three ranks give the same
    // losses.
    let tiles = ShardingPlan::column_wise(tables, 4).tiles().to_vec();
    for ranks in [1, 3] {
        let placed = tiles.iter().cloned().map(|mut tile| {
            tile.rank = Rank(tile.rank.0 % ranks);
            tile
        });
        let plan = ShardingPlan::new(ranks, placed.collect(), tables).unwrap();
        close_losses("four tiles", &golden.run(&plan, 1).losses, &rules[3]);
    }
}

/// PyTorch's run of `torch.optim.SparseAdam` must match the f64 oracle of that rule, and must
/// differ from FBGEMM's Adam.
#[test]
fn sparse_adam_matches_torch_optim_and_differs_from_adam() {
    let mut golden = Golden::read("small_bce_sparse_adam");
    let whole = ShardingPlan::table_wise(&golden.config.model.tables, 1);
    let furthest_weight = |tables: &[Vec<f64>], golden: &Golden| {
        let apart = tables.iter().enumerate().flat_map(|(table, weights)| {
            let recorded = golden.table("final", table);
            weights.iter().zip(recorded).map(|(a, &b)| (a - f64::from(b)).abs())
        });
        apart.fold(0.0, f64::max)
    };
    let (losses, tables) = golden.oracle(&whole);
    close_losses("the oracle", &losses, &golden.losses);
    let apart = furthest_weight(&tables, &golden);
    assert!(apart < 1e-5, "the oracle's weights are {apart:.1e} from PyTorch's");
    golden.config.optimizer.sparse.kind = Optimizer::Adam;
    let (losses, tables) = golden.oracle(&whole);
    close_losses("Adam on tables", &golden.run(&whole, 1).losses, &losses);
    let apart = furthest_weight(&tables, &golden);
    assert!(apart > 1e-3, "Adam's weights are only {apart:.1e} from SparseAdam's");
}

/// Returns the largest relative difference between the losses of two runs.
fn furthest(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max)
}

fn close_losses(what: &str, got: &[f64], expected: &[f64]) {
    let apart = furthest(got, expected);
    assert!(apart < 1e-5, "{what}: losses {apart:.1e} apart");
}

#[test]
fn threads_do_not_change_a_byte() {
    for name in ["mid_bce_adagrad", "torchrec_dcnv2_adagrad"] {
        let golden = Golden::read(name);
        let plan = ShardingPlan::mixed(&golden.config.model.tables, 2);
        let one = golden.run(&plan, 1);
        for threads in [2, 7] {
            assert_eq!(golden.run(&plan, threads), one, "{name}, {threads} threads");
        }
    }
}
