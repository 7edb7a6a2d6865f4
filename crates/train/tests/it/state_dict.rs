//! Tests state dicts of both libraries: names and shapes, column orders, round trips, and refusals.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView};
use schema::{DataType, JobConfig, ModelConfig, Optimizer, Rank, ShardingPlan, TableId};
use train::checkpoint::Checkpoint;
use train::parameter::TileState;
use train::state_dict::{self, Dialect, ImportRequest, dense_names, table_name};
use train::{Error, RuleChange};

use crate::samples::{
    check_tiles, dense, job, name, narrow_tile_state, save, weight, whole, zeros,
};

const LOWER: &str = r#"{ kind = "dot", order = "lower" }"#;
const UPPER: &str = r#"{ kind = "dot", order = "upper" }"#;
const CROSS: &str = r#"{ kind = "dcn_v2", layers = 2, rank = 3 }"#;
const TABLES: [(u64, usize); 3] = [(50, 4), (7, 4), (31, 4)];

fn request<'a>(
    path: &'a Path,
    source: Dialect,
    config: &'a JobConfig,
    run_folder: &'a Path,
) -> ImportRequest<'a> {
    let fitted = serde_json::json!({ "kept": true });
    ImportRequest {
        path,
        source,
        config,
        fitted,
        run_folder,
        optimizer: None,
        rule_change: RuleChange::Refuse,
        step: 0,
    }
}

fn names(model: &ModelConfig, target: Dialect) -> BTreeMap<String, Vec<usize>> {
    let dense = dense_names(model, target).unwrap();
    let dense = dense.into_iter().map(|name| (name.external, name.shape));
    let table = |(id, table): (u32, &schema::TableConfig)| {
        (table_name(model, TableId(id), target), vec![table.rows as usize, table.dim])
    };
    dense.chain((0..).zip(&model.tables).map(table)).collect()
}

/// Reads the names and shapes of a golden run of TorchRec.
fn golden(run: &str) -> BTreeMap<String, Vec<usize>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/dlrm_golden");
    let text = fs::read_to_string(folder.join(run)).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(json["parameters"].take()).unwrap()
}

fn golden_job(interaction: &str, bottom: &str) -> ModelConfig {
    let config = job(&[(100, 16), (57, 16), (1000, 16), (3, 16)], interaction, Optimizer::Sgd);
    let text = config.to_toml().unwrap();
    let overrides =
        [("model.dense_features", "13"), ("model.bottom", bottom), ("model.top", "[64, 32, 1]")];
    let dense: Vec<String> = (0..13).map(|i| format!("{{ column = \"d{i}\" }}")).collect();
    let mut overrides: Vec<(String, String)> =
        overrides.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    overrides.push(("data.dense".to_owned(), format!("[{}]", dense.join(", "))));
    JobConfig::parse(&text, &overrides).unwrap().model
}

#[test]
fn torchrec_names_are_those_of_the_golden_runs() {
    let model = golden_job(UPPER, "[32, 16]");
    assert_eq!(names(&model, Dialect::Torchrec), golden("torchrec_dlrm_sgd.json"));
    let model = golden_job(r#"{ kind = "dcn_v2", layers = 3, rank = 20 }"#, "[32, 16]");
    assert_eq!(names(&model, Dialect::Torchrec), golden("torchrec_dcnv2_adagrad.json"));
}

#[test]
fn torch_names_count_the_activations_between_layers() {
    let config = job(&TABLES, LOWER, Optimizer::Sgd);
    let got: Vec<String> = names(&config.model, Dialect::Torch).into_keys().collect();
    let expected = [
        "bot_l.0.bias",
        "bot_l.0.weight",
        "bot_l.2.bias",
        "bot_l.2.weight",
        "emb_l.0.weight",
        "emb_l.1.weight",
        "emb_l.2.weight",
        "top_l.0.bias",
        "top_l.0.weight",
        "top_l.2.bias",
        "top_l.2.weight",
        "top_l.4.bias",
        "top_l.4.weight",
    ];
    assert_eq!(got, expected);
}

#[test]
fn pairs_of_the_dot_interaction_are_permuted() {
    let columns = |interaction, target| {
        let model = job(&TABLES, interaction, Optimizer::Sgd).model;
        let names = dense_names(&model, target).unwrap();
        let some: Vec<_> = names.into_iter().filter_map(|name| name.columns).collect();
        assert!(some.len() <= 1);
        some.into_iter().next()
    };
    assert_eq!(columns(LOWER, Dialect::Torch), None);
    assert_eq!(columns(UPPER, Dialect::Torchrec), None);
    // Dense columns 0 to 3 keep their places. Pairs of the lower triangle are 10 20 21 30 31 32,
    // and pairs of the upper triangle are 01 02 03 12 13 23.
    assert_eq!(columns(LOWER, Dialect::Torchrec), Some(vec![0, 1, 2, 3, 4, 5, 7, 6, 8, 9]));
    assert_eq!(columns(UPPER, Dialect::Torch), Some(vec![0, 1, 2, 3, 4, 5, 7, 6, 8, 9]));
    // With the diagonal, pairs of the lower triangle are 00 10 11 20 21 22 …, and pairs of the
    // upper triangle are 00 01 02 03 11 ….
    let upper_itself = r#"{ kind = "dot", order = "upper", itself = true }"#;
    assert_eq!(
        columns(upper_itself, Dialect::Torch),
        Some(vec![0, 1, 2, 3, 4, 5, 8, 6, 9, 11, 7, 10, 12, 13])
    );
}

fn read(path: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let bytes = fs::read(path).unwrap();
    let official = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let values = |data: &[u8]| {
        data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let tensors = official.tensors().into_iter();
    tensors.map(|(name, view)| (name, (view.shape().to_vec(), values(view.data())))).collect()
}

/// Exports, reads the file with the official library, imports it again and compares every value.
fn check_round_trip(interaction: &str, target: Dialect, plan: fn(&JobConfig) -> ShardingPlan) {
    let config = job(&TABLES, interaction, Optimizer::RowwiseAdagrad);
    let run = tempfile::tempdir().unwrap();
    let folder = save(run.path(), 9, &config, &plan(&config)).folder;
    let out = run.path().join("state.safetensors");
    let bytes = state_dict::export(&Checkpoint::open(&folder).unwrap(), target, &out).unwrap();
    assert_eq!(bytes, out.metadata().unwrap().len());
    assert!(!run.path().join("state.safetensors.tmp").exists());
    let exported = read(&out);
    let shapes: BTreeMap<_, _> =
        exported.iter().map(|(name, (shape, _))| (name.clone(), shape.clone())).collect();
    assert_eq!(shapes, names(&config.model, target));
    for (id, (rows, dim)) in TABLES.into_iter().enumerate() {
        let cells = (0..rows).flat_map(|row| (0..dim).map(move |column| weight(id, row, column)));
        let name = table_name(&config.model, TableId(id as u32), target);
        assert_eq!(exported[&name].1, cells.collect::<Vec<_>>());
    }
    let other = tempfile::tempdir().unwrap();
    let committed = state_dict::import(&request(&out, target, &config, other.path())).unwrap();
    let imported = Checkpoint::open(&committed.folder).unwrap();
    assert!(imported.verify().is_empty());
    assert_eq!((imported.step(), imported.manifest().samples), (0, 0));
    assert_eq!(imported.manifest().fitted["kept"], true);
    check_tiles(&imported, &plan(&config), Optimizer::Sgd);
    for tile in plan(&config).tiles() {
        let kind = Optimizer::RowwiseAdagrad;
        let TileState { state, .. } = imported.read_tile(&name(tile), tile, kind).unwrap();
        assert_eq!(state[..], vec![0.0; tile.row_count()]);
    }
    let mut parameters = zeros(&config);
    imported.read_dense(&mut parameters).unwrap();
    let mut expected = dense(&config);
    for parameter in &mut expected {
        parameter.state.fill(0.0);
    }
    assert_eq!(parameters, expected);
}

#[test]
fn an_exported_state_dict_is_imported_unchanged() {
    let whole: fn(&JobConfig) -> ShardingPlan = |config| whole(&config.model.tables);
    let mixed: fn(&JobConfig) -> ShardingPlan =
        |config| ShardingPlan::mixed(&config.model.tables, 3);
    for plan in [whole, mixed] {
        check_round_trip(LOWER, Dialect::Torch, plan);
        check_round_trip(UPPER, Dialect::Torch, plan);
        check_round_trip(r#"{ kind = "cat" }"#, Dialect::Torch, plan);
        check_round_trip(LOWER, Dialect::Torchrec, plan);
        check_round_trip(UPPER, Dialect::Torchrec, plan);
        check_round_trip(CROSS, Dialect::Torchrec, plan);
    }
}

#[test]
fn a_table_without_pooling_is_exported_as_an_embedding_collection() {
    let config = job(&TABLES, LOWER, Optimizer::Sgd);
    let tables = r#"[{ name = "t0", rows = 50, dim = 4 },
        { name = "t1", rows = 7, dim = 4, pooling = "none", sequence_length = 3 },
        { name = "t2", rows = 31, dim = 4 }]"#;
    let overrides = [("model.tables".to_owned(), tables.replace('\n', ""))];
    let config = JobConfig::parse(&config.to_toml().unwrap(), &overrides).unwrap();
    let run = tempfile::tempdir().unwrap();
    let folder = save(run.path(), 9, &config, &whole(&config.model.tables)).folder;
    let out = run.path().join("state.safetensors");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    state_dict::export(&checkpoint, Dialect::Torchrec, &out).unwrap();
    let exported = read(&out);
    let cells = (0..7).flat_map(|row| (0..4).map(move |column| weight(1, row, column)));
    let (_, values) = &exported["sparse_arch.embedding_collection.embeddings.t1.weight"];
    assert_eq!(*values, cells.collect::<Vec<_>>());
    // The pairs of the five sparse vectors and the dense one are exported in TorchRec's order.
    let (own, there) =
        (dense(&config), &exported["over_arch.model.0._mlp.0._linear.weight"].1[..4 + 15]);
    let own = &own.iter().find(|p| p.name == "top.0.weight").unwrap().weight;
    let lower = (0..6).flat_map(|high| (0..high).map(move |low| (low, high)));
    for (column, pair) in (4..).zip(lower) {
        let upper = (0..6).flat_map(|low| (low + 1..6).map(move |high| (low, high)));
        assert_eq!(own[column], there[4 + upper.into_iter().position(|at| at == pair).unwrap()]);
    }
    let other = tempfile::tempdir().unwrap();
    let committed =
        state_dict::import(&request(&out, Dialect::Torchrec, &config, other.path())).unwrap();
    let imported = Checkpoint::open(&committed.folder).unwrap();
    check_tiles(&imported, &whole(&config.model.tables), Optimizer::Sgd);
    let error = dense_names(&config.model, Dialect::Torch).unwrap_err().to_string();
    assert_eq!(
        error,
        "facebookresearch/dlrm cannot express this model: table \"t1\": pooling none, expected sum"
    );
}

/// Exports weights and states, imports both at the same step and compares every value.
fn check_states(kind: Optimizer, target: Dialect) {
    let mut config = job(&TABLES, LOWER, kind);
    config.optimizer.dense.kind = kind;
    let run = tempfile::tempdir().unwrap();
    let plan = ShardingPlan::mixed(&config.model.tables, 3);
    let folder = save(run.path(), 9, &config, &plan).folder;
    let saved = Checkpoint::open(&folder).unwrap();
    let path = |name: &str| run.path().join(name);
    state_dict::export(&saved, target, &path("weights")).unwrap();
    let export = |change| state_dict::export_optimizer(&saved, target, &path("states"), change);
    let bytes = if kind.looks_at_rows() {
        // The plan splits columns, but the other library would read the states as those of whole
        // rows.
        let refused = export(RuleChange::Refuse);
        assert!(matches!(refused, Err(Error::OtherRowScope { .. })), "{refused:?}");
        assert!(!path("states").exists());
        export(RuleChange::Accept).unwrap()
    } else {
        export(RuleChange::Refuse).unwrap()
    };
    assert_eq!(bytes, path("states").metadata().unwrap().len());
    let states = read(&path("states"));
    let table = table_name(&config.model, TableId(1), target);
    let (rows, dim) = (TABLES[1].0 as usize, TABLES[1].1);
    let (names, shape): (&[&str], _) = match kind {
        Optimizer::Sgd => (&[], vec![]),
        Optimizer::Adagrad => (&["sum"], vec![rows, dim]),
        Optimizer::RowwiseAdagrad => (&["sum"], vec![rows]),
        Optimizer::Adam | Optimizer::SparseAdam | Optimizer::Lamb => {
            (&["exp_avg", "exp_avg_sq"], vec![rows, dim])
        }
    };
    let of_table: Vec<_> = states.iter().filter(|(name, _)| name.starts_with(&table)).collect();
    assert_eq!(of_table.len(), names.len());
    for name in names {
        assert_eq!(states[&format!("{table}.{name}")].0, shape);
    }
    let (weights, optimizer) = (path("weights"), path("states"));
    let other = tempfile::tempdir().unwrap();
    let request = ImportRequest {
        optimizer: Some(&optimizer),
        step: 9,
        ..request(&weights, target, &config, other.path())
    };
    let imported = Checkpoint::open(&state_dict::import(&request).unwrap().folder).unwrap();
    assert_eq!(imported.step(), 9);
    for tile in whole(&config.model.tables).tiles() {
        let read = |checkpoint: &Checkpoint| checkpoint.read_tile(&name(tile), tile, kind).unwrap();
        assert_eq!(read(&imported), read(&saved));
    }
    let mut parameters = zeros(&config);
    imported.read_dense(&mut parameters).unwrap();
    assert_eq!(parameters, dense(&config));
}

#[test]
fn exported_optimizer_states_are_imported_unchanged() {
    for kind in Optimizer::ALL {
        check_states(kind, Dialect::Torch);
        check_states(kind, Dialect::Torchrec);
    }
}

#[test]
fn states_of_another_optimizer_are_refused() {
    let config = job(&TABLES, LOWER, Optimizer::Adagrad);
    let run = tempfile::tempdir().unwrap();
    let folder = save(run.path(), 9, &config, &whole(&config.model.tables)).folder;
    let (weights, states) = (run.path().join("weights"), run.path().join("states"));
    let saved = Checkpoint::open(&folder).unwrap();
    state_dict::export(&saved, Dialect::Torch, &weights).unwrap();
    state_dict::export_optimizer(&saved, Dialect::Torch, &states, RuleChange::Refuse).unwrap();
    let config = job(&TABLES, LOWER, Optimizer::RowwiseAdagrad);
    let other = tempfile::tempdir().unwrap();
    let mut request = request(&weights, Dialect::Torch, &config, other.path());
    request.optimizer = Some(&states);
    let error = state_dict::import(&request).unwrap_err().to_string();
    let expected = "states of the tables: expected those of rowwise_adagrad, got those of adagrad";
    assert!(error.ends_with(expected), "{error}");
    request.rule_change = RuleChange::Accept;
    let error = state_dict::import(&request).unwrap_err().to_string();
    let line = "  emb_l.1.weight.sum: expected shape [7], got [7, 4]";
    assert!(error.lines().any(|got| got == line), "{error}");
    assert!(!other.path().join("checkpoints").exists());
}

#[test]
fn tables_of_16_bits_keep_their_format_and_import_from_f32() {
    let mut config = job(&TABLES, UPPER, Optimizer::Adam);
    let wide = config.clone();
    config.model.tables[1].data_type = DataType::Bf16;
    let plan = whole(&config.model.tables);
    let tile = &plan.tiles()[1];
    let expected = narrow_tile_state(tile, Optimizer::Sgd, DataType::Bf16);
    // The imported file has the weights of the second table in f32 the first time, and in bf16 the
    // second time.
    for saved in [&wide, &config] {
        let run = tempfile::tempdir().unwrap();
        let folder = save(run.path(), 9, saved, &plan).folder;
        let out = run.path().join("state.safetensors");
        state_dict::export(&Checkpoint::open(&folder).unwrap(), Dialect::Torchrec, &out).unwrap();
        let bytes = fs::read(&out).unwrap();
        let official = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let table = table_name(&config.model, TableId(1), Dialect::Torchrec);
        let is_narrow = official.tensor(&table).unwrap().dtype() == Dtype::BF16;
        assert_eq!(is_narrow, saved == &config);
        let other = tempfile::tempdir().unwrap();
        let request = request(&out, Dialect::Torchrec, &config, other.path());
        let imported = state_dict::import(&request).unwrap();
        let imported = Checkpoint::open(&imported.folder).unwrap();
        assert_eq!(imported.read_tile_weights("t1", tile).unwrap(), expected);
    }
}

#[test]
fn a_permuted_layer_gives_the_same_outputs() {
    let config = job(&TABLES, LOWER, Optimizer::Sgd);
    let run = tempfile::tempdir().unwrap();
    let folder = save(run.path(), 9, &config, &whole(&config.model.tables)).folder;
    let out = run.path().join("state.safetensors");
    state_dict::export(&Checkpoint::open(&folder).unwrap(), Dialect::Torchrec, &out).unwrap();
    let exported = &read(&out)["over_arch.model.0._mlp.0._linear.weight"].1;
    let own = dense(&config).into_iter().find(|p| p.name == "top.0.weight").unwrap();
    // The test gives all products different values. Product (i, j) has the value i·10 + j, in the
    // order of each library.
    let lower: Vec<f32> = (0..4).flat_map(|i| (0..i).map(move |j| (j * 10 + i) as f32)).collect();
    let upper: Vec<f32> =
        (0..4).flat_map(|i| (i + 1..4).map(move |j| (i * 10 + j) as f32)).collect();
    for (own, exported) in own.weight.chunks(10).zip(exported.chunks(10)) {
        let dot = |row: &[f32], x: &[f32]| -> f64 {
            row[4..].iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        assert!((dot(own, &lower) - dot(exported, &upper)).abs() < 1e-9);
        assert_eq!(own[..4], exported[..4]);
    }
}

fn write(path: &Path, tensors: &BTreeMap<String, Vec<usize>>, dtype: Dtype) -> PathBuf {
    let size = if dtype == Dtype::F32 { 4 } else { 8 };
    let data: Vec<_> = tensors
        .iter()
        .map(|(name, shape)| (name, shape.clone(), vec![0; shape.iter().product::<usize>() * size]))
        .collect();
    let views = data
        .iter()
        .map(|(name, shape, bytes)| (*name, TensorView::new(dtype, shape.clone(), bytes).unwrap()));
    let path = path.join("foreign.safetensors");
    safetensors::serialize_to_file(views, None, &path).unwrap();
    path
}

#[test]
fn every_tensor_that_does_not_fit_is_named_with_both_shapes() {
    let config = job(&TABLES, LOWER, Optimizer::Sgd);
    let run = tempfile::tempdir().unwrap();
    let mut tensors = names(&config.model, Dialect::Torch);
    tensors.remove("bot_l.2.bias");
    tensors.insert("emb_l.1.weight".to_owned(), vec![8, 4]);
    tensors.insert("v_W_l.0".to_owned(), vec![2]);
    let path = write(run.path(), &tensors, Dtype::F32);
    let error =
        state_dict::import(&request(&path, Dialect::Torch, &config, run.path())).unwrap_err();
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "  emb_l.1.weight: expected shape [7, 4], got [8, 4]",
            "  v_W_l.0: the model has no such parameter, got shape [2]",
            "  bot_l.2.bias: missing, expected shape [4]",
        ]
    );
    assert!(!run.path().join("checkpoints").exists());
    let path = write(run.path(), &names(&config.model, Dialect::Torch), Dtype::I64);
    let error =
        state_dict::import(&request(&path, Dialect::Torch, &config, run.path())).unwrap_err();
    let Error::StateDict { mismatches, .. } = &error else { panic!("{error}") };
    let kinds: BTreeSet<String> =
        mismatches.iter().map(|m| m.to_string().split(": ").last().unwrap().to_owned()).collect();
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["expected dtype F32, got I64"]);
}

#[test]
fn models_the_other_library_lacks_are_refused() {
    let refused = |interaction, target| {
        let model = job(&TABLES, interaction, Optimizer::Sgd).model;
        dense_names(&model, target).unwrap_err().to_string()
    };
    assert_eq!(
        refused(CROSS, Dialect::Torch),
        "facebookresearch/dlrm cannot express this model: interaction dcn_v2, expected dot or cat"
    );
    assert_eq!(
        refused(r#"{ kind = "cat" }"#, Dialect::Torchrec),
        "torchrec cannot express this model: interaction cat, expected dot or dcn_v2"
    );
}

#[test]
fn a_damaged_table_is_not_exported() {
    let config = job(&TABLES, LOWER, Optimizer::Sgd);
    let run = tempfile::tempdir().unwrap();
    let folder = save(run.path(), 9, &config, &whole(&config.model.tables)).folder;
    let file = folder.join(format!("rank-{:05}.safetensors", Rank(0).0));
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let out = run.path().join("state.safetensors");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let error = state_dict::export(&checkpoint, Dialect::Torch, &out).unwrap_err();
    assert!(matches!(error, Error::Checksum { .. }), "{error}");
    assert!(!out.exists() && !run.path().join("state.safetensors.tmp").exists());
}

/// The states of Adam and SparseAdam have the same names and shapes. Only a note in the file
/// distinguishes them.
#[test]
fn states_of_adam_are_refused_for_sparse_adam() {
    let run = tempfile::tempdir().unwrap();
    let (weights, states) = (run.path().join("weights"), run.path().join("states"));
    let adam = job(&TABLES, LOWER, Optimizer::Adam);
    let folder = save(run.path(), 9, &adam, &whole(&adam.model.tables)).folder;
    let saved = Checkpoint::open(&folder).unwrap();
    state_dict::export(&saved, Dialect::Torch, &weights).unwrap();
    state_dict::export_optimizer(&saved, Dialect::Torch, &states, RuleChange::Refuse).unwrap();
    let sparse = job(&TABLES, LOWER, Optimizer::SparseAdam);
    let other = tempfile::tempdir().unwrap();
    let mut request = request(&weights, Dialect::Torch, &sparse, other.path());
    request.optimizer = Some(&states);
    let refused = state_dict::import(&request).unwrap_err().to_string();
    let expected = "states of the tables: expected those of sparse_adam, got those of adam";
    assert!(refused.ends_with(expected), "{refused}");
    assert!(!other.path().join("checkpoints").exists());
    request.rule_change = RuleChange::Accept;
    let imported = Checkpoint::open(&state_dict::import(&request).unwrap().folder).unwrap();
    check_tiles(&imported, &whole(&sparse.model.tables), Optimizer::SparseAdam);
    // Files that PyTorch saves do not have this note, so the import must accept them.
    let plain = run.path().join("plain");
    strip_notes(&states, &plain);
    let other = tempfile::tempdir().unwrap();
    request = ImportRequest {
        optimizer: Some(&plain),
        rule_change: RuleChange::Refuse,
        run_folder: other.path(),
        ..request
    };
    state_dict::import(&request).unwrap();
}

fn strip_notes(from: &Path, to: &Path) {
    let bytes = fs::read(from).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    safetensors::serialize_to_file(file.tensors(), None, to).unwrap();
}

/// Overwrites one value of an f32 tensor in a file.
fn spoil(path: &Path, tensor: &str, (at, value): (usize, f32)) {
    let mut bytes = fs::read(path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let start = 8 + header + json[tensor]["data_offsets"][0].as_u64().unwrap() as usize + 4 * at;
    bytes[start..start + 4].copy_from_slice(&value.to_le_bytes());
    fs::write(path, bytes).unwrap();
}

/// Imports weights and states of three tables (f32, f16 and bf16) with one value overwritten.
fn import_with(tensor: &str, at: usize, value: f32) -> Result<(), String> {
    let mut config = job(&TABLES, LOWER, Optimizer::Adagrad);
    config.model.tables[1].data_type = DataType::F16;
    config.model.tables[2].data_type = DataType::Bf16;
    let wide = job(&TABLES, LOWER, Optimizer::Adagrad);
    let run = tempfile::tempdir().unwrap();
    let folder = save(run.path(), 9, &wide, &whole(&wide.model.tables)).folder;
    let saved = Checkpoint::open(&folder).unwrap();
    let (weights, states) = (run.path().join("weights"), run.path().join("states"));
    state_dict::export(&saved, Dialect::Torch, &weights).unwrap();
    state_dict::export_optimizer(&saved, Dialect::Torch, &states, RuleChange::Refuse).unwrap();
    spoil(if tensor.ends_with("sum") { &states } else { &weights }, tensor, (at, value));
    let other = tempfile::tempdir().unwrap();
    let mut request = request(&weights, Dialect::Torch, &config, other.path());
    request.optimizer = Some(&states);
    let imported = state_dict::import(&request).map(drop).map_err(|error| error.to_string());
    assert!(imported.is_ok() || train::checkpoint::list(other.path()).unwrap().is_empty());
    imported
}

#[test]
fn values_that_cannot_be_trained_are_refused_by_tensor_row_column_and_value() {
    let finite = "a finite number";
    let half = "a magnitude of at most 65504, the largest number of F16";
    let sum = "at least 0, a sum of squares";
    let infinity = f32::INFINITY;
    for (tensor, at, value, place, expected) in [
        ("emb_l.0.weight", 6, f32::NAN, "row 1, column 2: value is NaN", finite),
        ("emb_l.1.weight", 5, infinity, "row 1, column 1: value is inf", finite),
        ("emb_l.1.weight", 5, -65520.0, "row 1, column 1: value is -65520", half),
        ("bot_l.0.weight", 4, f32::NAN, "row 1, column 1: value is NaN", finite),
        ("bot_l.0.bias", 4, -infinity, "row 4, column 0: value is -inf", finite),
        ("emb_l.1.weight.sum", 7, f32::NAN, "row 1, column 3: value is NaN", finite),
        ("top_l.0.bias.sum", 2, -1.0, "row 2, column 0: value is -1", sum),
    ] {
        let refused = import_with(tensor, at, value).unwrap_err();
        let text = format!("{tensor}, {place}, expected {expected}");
        assert!(refused.ends_with(&text), "{tensor}: {refused}");
    }
    let refused = import_with("emb_l.2.weight", 0, f32::MAX).unwrap_err();
    assert!(refused.contains("value is 3.4028235e38") && refused.contains("BF16"), "{refused}");
}

#[test]
fn values_up_to_the_largest_of_a_data_type_are_imported() {
    for (tensor, value) in
        [("emb_l.1.weight", 65519.0), ("emb_l.2.weight", 1e30), ("emb_l.0.weight", f32::MAX)]
    {
        import_with(tensor, 0, value).unwrap();
    }
}

/// Returns the path of a file that PyTorch wrote, see `testdata/state_dict/make.py`.
fn saved_by_torch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/state_dict").join(name)
}

fn job_of_torch(data_type: &str) -> JobConfig {
    let text = format!(
        r#"
[model]
name = "tiny"
dense_features = 2
bottom = [3, 2]
top = [2, 1]
interaction = {{ kind = "dot" }}
loss = "bce_with_logits"
tables = [{{ name = "a", rows = 4, dim = 2, data_type = "{data_type}" }}]
[optimizer]
sparse = {{ kind = "sgd", learning_rate = 0.1 }}
dense = {{ kind = "sgd", learning_rate = 0.1 }}
[training]
batch_size = 2
epochs = 1
[data]
format = "csv"
label = {{ column = "y" }}
dense = [{{ column = "u" }}, {{ column = "v" }}]
categorical = [{{ column = "a", kind = "integer" }}]
"#
    );
    JobConfig::parse(&text, &[]).unwrap()
}

#[test]
fn files_of_torch_save_are_imported() {
    for name in ["plain.pt", "wide_wrapped.bin", "checkpoint.pt", "parameters.pt", "beside.pt"] {
        for data_type in ["f32", "f16", "bf16"] {
            let (config, run) = (job_of_torch(data_type), tempfile::tempdir().unwrap());
            let path = saved_by_torch(name);
            let imported = state_dict::import(&request(&path, Dialect::Torch, &config, run.path()));
            let checkpoint = Checkpoint::open(&imported.unwrap().folder).unwrap();
            let plan = ShardingPlan::table_wise(&config.model.tables, 1);
            let table = checkpoint.read_tile_weights("a", &plan.tiles()[0]).unwrap();
            let expected =
                |count: usize| -> Vec<f32> { (0..count).map(|i| (i + 1) as f32 / 8.0).collect() };
            assert_eq!(table.weight.view().to_f32(), expected(8), "{name} {data_type}");
            let shapes = train::parameter::dense_shapes(&config.model).into_iter();
            let empty = |(name, shape): (String, Vec<usize>)| {
                train::parameter::DenseParameter::without_state(&name, &shape)
            };
            let mut dense: Vec<_> = shapes.map(empty).collect();
            checkpoint.read_dense_weights(&mut dense).unwrap();
            for parameter in &dense {
                assert_eq!(parameter.weight, expected(parameter.weight.len()), "{name}");
            }
        }
    }
}

#[test]
fn functions_in_files_of_torch_save_are_refused_and_not_run() {
    let (config, run) = (job_of_torch("f32"), tempfile::tempdir().unwrap());
    let refused = |path: &Path| {
        let error = state_dict::import(&request(path, Dialect::Torch, &config, run.path()));
        error.unwrap_err().to_string()
    };
    for (name, said) in [
        ("module.pt", "got the class or function \"torch.nn.modules.linear.Linear\""),
        ("strided.pt", "bot_l.0.weight: expected a contiguous tensor, got strides [1, 3]"),
        ("old.pt", "the format of PyTorch before version 1.6"),
    ] {
        let text = refused(&saved_by_torch(name));
        assert!(text.contains(said), "{text}");
    }
    // A damaged byte of a tensor must be detected, and so must a file that is truncated at any
    // length.
    let good = fs::read(saved_by_torch("plain.pt")).unwrap();
    let path = run.path().join("damaged.pt");
    let needle = 1.0f32.to_le_bytes();
    let at = good.windows(4).position(|window| window == needle).unwrap();
    let mut bytes = good.clone();
    bytes[at + 2] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert!(refused(&path).contains("hecksum"), "{}", refused(&path));
    for end in (0..good.len()).step_by(7) {
        fs::write(&path, &good[..end]).unwrap();
        refused(&path);
    }
    assert!(!run.path().join("checkpoints").exists());
}
