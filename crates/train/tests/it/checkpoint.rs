//! Tests that checkpoints load under any tiling, that errors name damaged files, and that killed
//! writers and full disks do no harm.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use device::Weights;
use device::buffer::Array;
use proptest::prelude::*;
use schema::{
    DataType, JobConfig, Optimizer, Rank, RowScope, ShardingPlan, TableConfig, TableId, Tile,
};
use train::Error;
use train::checkpoint::{self, Checkpoint, CheckpointWriter, Meta, SeenData, TensorContent};
use train::parameter::TileState;

use crate::samples::{
    check_tiles, dense, job, name, narrow_tile_state, save, tile_state, weight, whole, zeros,
};

const KINDS: [Optimizer; 6] = Optimizer::ALL;
const DOT: &str = r#"{ kind = "dot" }"#;

fn tables() -> JobConfig {
    job(&[(50, 8), (7, 8), (300, 8), (1, 8), (3, 8)], DOT, Optimizer::Adagrad)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

/// Cuts rows into bands and each band into columns at pseudo-random places.
fn tiling(tables: &[TableConfig], world_size: u32, seed: u64) -> ShardingPlan {
    let mut random = testkit::Random(seed);
    let mut tiles = Vec::new();
    for (id, table) in tables.iter().enumerate() {
        let mut row = 0;
        while row < table.rows {
            let rows = row..row + 1 + random.below(table.rows - row);
            row = rows.end;
            let mut column = 0;
            while column < table.dim {
                let columns =
                    column..column + 1 + random.below((table.dim - column) as u64) as usize;
                column = columns.end;
                let rank = Rank(random.below(u64::from(world_size)) as u32);
                tiles.push(Tile { table: TableId(id as u32), rows: rows.clone(), columns, rank });
            }
        }
    }
    ShardingPlan::new(world_size, tiles, tables).unwrap()
}

/// Replicates every other table, and splits the others by columns or in all ways.
pub fn with_replicas(tables: &[TableConfig], world_size: u32) -> ShardingPlan {
    let column = ShardingPlan::column_wise(tables, world_size);
    let mixed = ShardingPlan::mixed(tables, world_size);
    let tiles_of = |plan: &ShardingPlan, of: u32| -> Vec<Tile> {
        plan.tiles().iter().filter(|tile| tile.table.0 % 4 == of).cloned().collect()
    };
    let tiles = [tiles_of(&column, 1), tiles_of(&mixed, 3)].concat();
    let ids = (0..tables.len() as u32).step_by(2);
    let replicated: Vec<TableId> = ids.map(TableId).collect();
    ShardingPlan::with_replicas(world_size, tiles, &replicated, tables).unwrap()
}

/// Computes from its definition, in f64, the row-wise state that the tile `wanted` must get from
/// the tiles of `saved`.
fn averaged(saved: &ShardingPlan, wanted: &Tile) -> Vec<f32> {
    let common = |a: &Range<usize>, b: &Range<usize>| {
        a.end.min(b.end).saturating_sub(a.start.max(b.start)) as f64
    };
    let mut state = Vec::new();
    for row in wanted.rows.clone() {
        let mut sum = 0.0;
        for tile in saved.tiles().iter().filter(|tile| tile.table == wanted.table) {
            if tile.rows.contains(&row) {
                let one = Tile { rows: row..row + 1, ..tile.clone() };
                let value = tile_state(&one, Optimizer::RowwiseAdagrad).state[0];
                sum += f64::from(value) * common(&tile.columns, &wanted.columns);
            }
        }
        state.push((sum / wanted.dim() as f64) as f32);
    }
    state
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_tiling_reads_any_tiling_to_the_bit(
        shapes in proptest::collection::vec(1u64..40, 1..4),
        dim in 1usize..20,
        kind in 0usize..5,
        (writers, readers) in (1u32..5, 1u32..5),
        seed: u64,
    ) {
        let shapes: Vec<_> = shapes.into_iter().map(|rows| (rows, dim)).collect();
        let config = job(&shapes, DOT, KINDS[kind]);
        let tables = &config.model.tables;
        let run = tempfile::tempdir().unwrap();
        let saved = tiling(tables, writers, seed);
        let committed = save(run.path(), 5, &config, &saved);
        let checkpoint = Checkpoint::open(&committed.folder).unwrap();
        check_tiles(&checkpoint, &saved, KINDS[kind]);
        let wanted = tiling(tables, readers, seed ^ 0xabcd);
        if KINDS[kind] != Optimizer::RowwiseAdagrad {
            check_tiles(&checkpoint, &wanted, KINDS[kind]);
        }
        check_tiles(&checkpoint, &wanted, Optimizer::Sgd);
        for tile in wanted.tiles().iter().filter(|_| KINDS[kind] == Optimizer::RowwiseAdagrad) {
            let got = checkpoint.read_tile(&name(tile), tile, KINDS[kind]).unwrap();
            prop_assert_eq!(&got.state[..], &averaged(&saved, tile)[..]);
        }
        prop_assert!(checkpoint.verify().is_empty());
    }
}

#[test]
fn table_row_and_column_wise_plans_and_dense_parameters_round_trip() {
    let config = tables();
    let model = &config.model;
    let run = tempfile::tempdir().unwrap();
    let plans = [
        whole(&model.tables),
        ShardingPlan::row_wise(&model.tables, 3),
        ShardingPlan::column_wise(&model.tables, 3),
        ShardingPlan::mixed(&model.tables, 6),
        ShardingPlan::replicate(&model.tables, 3),
        with_replicas(&model.tables, 3),
    ];
    for (step, saved) in (0..).zip(&plans) {
        save(run.path(), step, &config, saved);
        let found = checkpoint::newest_good(run.path()).unwrap();
        let checkpoint = found.checkpoint.unwrap();
        assert_eq!((checkpoint.step(), found.refused.len()), (step, 0));
        for wanted in &plans {
            check_tiles(&checkpoint, wanted, Optimizer::Adagrad);
        }
        let mut parameters = zeros(&config);
        checkpoint.read_dense(&mut parameters).unwrap();
        assert_eq!(parameters, dense(&config));
        assert_eq!(checkpoint.config(), &config);
        let manifest = checkpoint.manifest();
        assert_eq!(manifest.fitted["mean"][1].as_f64(), Some(1.0 / 3.0));
        assert_eq!(manifest.position["batch"].as_u64(), Some(u64::MAX));
        assert_eq!((manifest.seeds.model, manifest.seeds.training), (7, 9));
        assert_eq!(manifest.plan, saved.tiles());
        assert_eq!(manifest.replicated, saved.replicated());
    }
}

#[test]
fn merged_row_states_equal_those_of_an_unsplit_tile() {
    let config = job(&[(9, 12)], DOT, Optimizer::RowwiseAdagrad);
    let run = tempfile::tempdir().unwrap();
    let committed =
        save(run.path(), 1, &config, &ShardingPlan::column_wise(&config.model.tables, 5));
    let checkpoint = Checkpoint::open(&committed.folder).unwrap();
    let plan = whole(&config.model.tables);
    let tile = &plan.tiles()[0];
    let got = checkpoint.read_tile("t0", tile, Optimizer::RowwiseAdagrad).unwrap().state;
    let expected = tile_state(tile, Optimizer::RowwiseAdagrad).state;
    for (got, expected) in got.iter().zip(&*expected) {
        assert!((got - expected).abs() <= expected * 2.0 * f32::EPSILON, "{got} {expected}");
    }
}

#[test]
fn tables_of_16_bits_round_trip_bitwise_under_any_tiling() {
    for (data_type, official) in
        [(DataType::F16, safetensors::Dtype::F16), (DataType::Bf16, safetensors::Dtype::BF16)]
    {
        let mut config = tables();
        for table in config.model.tables.iter_mut().step_by(2) {
            table.data_type = data_type;
        }
        let run = tempfile::tempdir().unwrap();
        let committed = save(run.path(), 1, &config, &tiling(&config.model.tables, 3, 5));
        let checkpoint = Checkpoint::open(&committed.folder).unwrap();
        assert_eq!(checkpoint.config(), &config);
        assert!(checkpoint.verify().is_empty());
        for tile in tiling(&config.model.tables, 2, 6).tiles() {
            let kind = config.model.tables[tile.table.index()].data_type;
            let got = checkpoint.read_tile(&name(tile), tile, Optimizer::Adagrad).unwrap();
            assert_eq!(got, narrow_tile_state(tile, Optimizer::Adagrad, kind));
        }
        let chunks = checkpoint.manifest().chunks.iter();
        for chunk in chunks.filter(|chunk| chunk.data_type == data_type) {
            let bytes = fs::read(committed.folder.join(&chunk.file)).unwrap();
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            assert_eq!(file.tensor(&chunk.tensor).unwrap().dtype(), official);
        }
    }
}

#[test]
fn the_official_library_reads_every_file() {
    let config = tables();
    let run = tempfile::tempdir().unwrap();
    let plan = ShardingPlan::table_wise(&config.model.tables, 7);
    let committed = save(run.path(), 1, &config, &plan);
    let checkpoint = Checkpoint::open(&committed.folder).unwrap();
    let mut tensors = 0;
    for path in files(&committed.folder) {
        if path.extension().unwrap() != "safetensors" {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let official = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        tensors += official.len();
        for chunk in &checkpoint.manifest().chunks {
            let TensorContent::TableWeight(part) = &chunk.content else { continue };
            let Ok(tensor) = official.tensor(&chunk.tensor) else { continue };
            assert_eq!(tensor.shape(), chunk.shape);
            let table: usize = part.table[1..].parse().unwrap();
            let expected: Vec<u8> = part
                .rows
                .clone()
                .flat_map(|row| part.columns.clone().map(move |column| weight(table, row, column)))
                .flat_map(f32::to_le_bytes)
                .collect();
            assert_eq!(tensor.data(), expected);
        }
    }
    assert_eq!(tensors, checkpoint.manifest().chunks.len());
    let bytes: u64 =
        files(&committed.folder).iter().map(|path| path.metadata().unwrap().len()).sum();
    assert_eq!(bytes, committed.bytes);
}

/// Damages one file of the newer of two checkpoints. Checks that the checkpoint is refused, that
/// the error names the file, and that the older checkpoint is found.
fn check_refused(damage: impl Fn(&Path), file: &str, said: &str) {
    let config = job(&[(9, 4)], DOT, Optimizer::Adagrad);
    let plan = ShardingPlan::row_wise(&config.model.tables, 2);
    let run = tempfile::tempdir().unwrap();
    let older = save(run.path(), 1, &config, &plan).folder;
    let newer = save(run.path(), 2, &config, &plan).folder;
    damage(&newer.join(file));
    let found = checkpoint::newest_good(run.path()).unwrap();
    assert_eq!(found.checkpoint.unwrap().folder(), older);
    assert_eq!(checkpoint::previous_good(&newer).unwrap(), Some(older));
    assert_eq!(found.refused.len(), 1);
    let (refused, error) = &found.refused[0];
    assert_eq!(refused, &newer);
    let text = error.to_string();
    assert!(text.contains(file) && text.contains(said), "{text}");
}

#[test]
fn any_flipped_byte_is_detected_and_named() {
    let config = job(&[(9, 4)], DOT, Optimizer::Adagrad);
    let plan = ShardingPlan::row_wise(&config.model.tables, 2);
    let run = tempfile::tempdir().unwrap();
    let folder = save(run.path(), 2, &config, &plan).folder;
    for path in files(&folder) {
        let good = fs::read(&path).unwrap();
        // A stride that is prime makes the loop flip bytes in all parts of each file.
        for place in (0..good.len()).step_by(7).chain([good.len() - 1]) {
            let mut bad = good.clone();
            bad[place] ^= 4;
            fs::write(&path, &bad).unwrap();
            let found = checkpoint::newest_good(run.path()).unwrap();
            assert!(found.checkpoint.is_none(), "byte {place} of {}", path.display());
            let text = found.refused[0].1.to_string();
            assert!(text.contains(path.file_name().unwrap().to_str().unwrap()), "{text}");
        }
        fs::write(&path, &good).unwrap();
    }
    assert!(checkpoint::newest_good(run.path()).unwrap().checkpoint.is_some());
}

fn flip_last(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

fn cut(path: &Path) {
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..bytes.len() - 5]).unwrap();
}

#[test]
fn damaged_cut_and_missing_files_are_refused_and_the_previous_checkpoint_found() {
    check_refused(
        flip_last,
        "rank-00001.safetensors",
        "table/t0/rows/5-9/columns/0-4/state: expected checksum",
    );
    check_refused(flip_last, "dense.safetensors", "dense/top.2.bias/state: expected checksum");
    check_refused(flip_last, "manifest.json", "manifest: expected checksum");
    check_refused(cut, "rank-00000.safetensors", "bytes, got");
    check_refused(cut, "manifest.json", "manifest: expected checksum");
    check_refused(|path| fs::write(path, "").unwrap(), "manifest.json", "no checksum");
    for file in ["rank-00001.safetensors", "dense.safetensors", "manifest.json"] {
        check_refused(|path| fs::remove_file(path).unwrap(), file, "No such file");
    }
}

#[test]
fn verify_lists_every_damaged_tensor_and_reading_refuses_it() {
    let config = job(&[(9, 4)], DOT, Optimizer::Adagrad);
    let plan = ShardingPlan::row_wise(&config.model.tables, 2);
    let run = tempfile::tempdir().unwrap();
    let folder = save(run.path(), 2, &config, &plan).folder;
    for file in ["rank-00000.safetensors", "dense.safetensors"] {
        flip_last(&folder.join(file));
    }
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let damage: Vec<String> = checkpoint.verify().iter().map(Error::to_string).collect();
    assert_eq!(damage.len(), 2);
    assert!(damage[0].contains("dense.safetensors: dense/top.2.bias/state: "), "{damage:?}");
    assert!(damage[1].contains("rank-00000.safetensors: table/t0/rows/0-5"), "{damage:?}");
    let tile = &plan.tiles()[0];
    let read = |tile, kind| checkpoint.read_tile("t0", tile, kind);
    assert!(matches!(read(tile, Optimizer::Adagrad), Err(Error::Checksum { .. })));
    assert!(matches!(checkpoint.read_dense(&mut zeros(&config)), Err(Error::Checksum { .. })));
    // The rows of the other rank are undamaged and must be readable.
    assert_eq!(read(&plan.tiles()[1], Optimizer::Adagrad).unwrap().weight.len(), 16);
}

#[test]
fn a_newer_format_is_refused_with_both_versions() {
    let config = job(&[(9, 4)], DOT, Optimizer::Sgd);
    let run = tempfile::tempdir().unwrap();
    let folder = save(run.path(), 2, &config, &whole(&config.model.tables)).folder;
    let path = folder.join("manifest.json");
    let text = fs::read_to_string(&path).unwrap().replace("\"version\": 1,", "\"version\": 2,");
    let digits = text.find("\"checksum\": \"").unwrap() + 13;
    let blank = format!("{}{}{}", &text[..digits], "0".repeat(16), &text[digits + 16..]);
    let checksum = xxhash_rust::xxh3::xxh3_64(blank.as_bytes());
    let text = format!("{}{checksum:016x}{}", &text[..digits], &text[digits + 16..]);
    fs::write(&path, text).unwrap();
    let error = Checkpoint::open(&folder).unwrap_err().to_string();
    assert!(error.ends_with("checkpoint format: expected version 1, got 2"), "{error}");
}

#[test]
fn another_model_is_refused_with_both_shapes() {
    let config = job(&[(9, 4)], DOT, Optimizer::Adagrad);
    let run = tempfile::tempdir().unwrap();
    let folder = save(run.path(), 2, &config, &whole(&config.model.tables)).folder;
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let refused = |parameters: &mut [_]| checkpoint.read_dense(parameters).unwrap_err().to_string();
    let mut parameters = zeros(&config);
    parameters[0] = train::parameter::DenseParameter::zeros("bottom.0.weight", &[5, 4], KINDS[1]);
    let text = refused(&mut parameters);
    assert!(
        text.ends_with("dense/bottom.0.weight/weight: expected shape [5, 4], got [5, 3]"),
        "{text}"
    );
    let text = refused(&mut zeros(&config)[1..]);
    assert!(text.contains("bottom.0.weight: the model has no such parameter"), "{text}");
    let tile = Tile { table: TableId(0), rows: 0..10, columns: 0..4, rank: Rank(0) };
    let refused = |kind| checkpoint.read_tile("t0", &tile, kind).unwrap_err().to_string();
    let text = refused(Optimizer::Adagrad);
    assert!(text.ends_with("table \"t0\": expected chunks over 40 values, got 36"), "{text}");
    let text = refused(Optimizer::RowwiseAdagrad);
    assert!(text.ends_with("expected rowwise_adagrad, got adagrad"), "{text}");
    // SGD keeps no state, but it is another optimizer too, so it must not be taken for a request
    // for the weights alone.
    let text = refused(Optimizer::Sgd);
    assert!(text.ends_with("expected sgd, got adagrad"), "{text}");
}

#[test]
fn only_the_newest_k_checkpoints_are_kept() {
    let config = job(&[(9, 4)], DOT, Optimizer::Sgd);
    let run = tempfile::tempdir().unwrap();
    for step in [1, 2, 30, 400] {
        save(run.path(), step, &config, &whole(&config.model.tables));
        checkpoint::retain(run.path(), 2).unwrap();
    }
    let names: Vec<_> = files(&run.path().join("checkpoints"))
        .iter()
        .map(|path| path.file_name().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["step-000000000030", "step-000000000400"]);
}

/// The temporary folder of a killed writer is not a checkpoint. It must not hide another
/// checkpoint, and the next save must delete it.
#[test]
fn temporary_folders_of_a_killed_writer_are_ignored_and_removed() {
    let config = job(&[(9, 4)], DOT, Optimizer::Sgd);
    let plan = whole(&config.model.tables);
    let run = tempfile::tempdir().unwrap();
    let good = save(run.path(), 1, &config, &plan).folder;
    let folder = run.path().join("checkpoints");
    for left in ["step-000000000002.tmp", "step-000000000000.deleted.tmp"] {
        fs::create_dir(folder.join(left)).unwrap();
        fs::copy(good.join("dense.safetensors"), folder.join(left).join("dense.safetensors"))
            .unwrap();
    }
    let found = checkpoint::newest_good(run.path()).unwrap();
    assert_eq!((found.checkpoint.unwrap().step(), found.refused.len()), (1, 0));
    // Simulate a writer that was killed between the two renames that replace a checkpoint of the
    // same step.
    fs::rename(&good, folder.join("step-000000000001.replaced.tmp")).unwrap();
    assert!(checkpoint::newest_good(run.path()).unwrap().checkpoint.is_none());
    let writer = CheckpointWriter::begin(run.path(), 2, &config.model.tables).unwrap();
    assert_eq!(files(&folder).len(), 2);
    assert_eq!(checkpoint::newest_good(run.path()).unwrap().checkpoint.unwrap().step(), 1);
    drop(writer);
    assert_eq!(files(&folder), std::slice::from_ref(&good));
    // Saving the same step again must replace its checkpoint.
    assert_eq!(save(run.path(), 1, &config, &plan).folder, good);
    assert_eq!(files(&folder), [good]);
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let config = job(&[(9, 4)], DOT, Optimizer::Sgd);
    let tables = &config.model.tables;
    let run = tempfile::tempdir().unwrap();
    fs::write(run.path().join("checkpoints"), "a file").unwrap();
    let text = CheckpointWriter::begin(run.path(), 2, tables).unwrap_err().to_string();
    assert!(text.contains("checkpoints: cannot list: Not a directory"), "{text}");
}

#[test]
fn a_checkpoint_without_all_tiles_is_not_committed() {
    let config = job(&[(9, 4)], DOT, Optimizer::Sgd);
    let plan = ShardingPlan::row_wise(&config.model.tables, 2);
    let run = tempfile::tempdir().unwrap();
    let writer = CheckpointWriter::begin(run.path(), 2, &config.model.tables).unwrap();
    let tile = tile_state(&plan.tiles()[0], Optimizer::Sgd);
    let records = vec![writer.write_rank(Rank(0), &[tile], Optimizer::Sgd).unwrap()];
    let null = serde_json::Value::Null;
    let meta = Meta {
        samples: 0,
        config: &config,
        plan: &plan,
        row_scope: RowScope::EachWeight,
        fitted: null.clone(),
        position: null,
        data: SeenData::default(),
    };
    let text = writer.commit(&meta, records).unwrap_err().to_string();
    assert!(text.ends_with("table \"t0\": expected chunks over 36 values, got 20"), "{text}");
    assert!(checkpoint::list(run.path()).unwrap().is_empty());
}

/// Measures the writing speed, if environment variables name a folder and the size of a table in
/// GiB.
#[test]
fn writing_speed_is_measured_on_request() {
    let variable = |name| std::env::var(name).ok();
    let (Some(gib), Some(run)) =
        (variable("ROWMILL_CHECKPOINT_GIB"), variable("ROWMILL_CHECKPOINT_FOLDER"))
    else {
        testkit::skip("writing speed", "ROWMILL_CHECKPOINT_GIB and ROWMILL_CHECKPOINT_FOLDER");
        return;
    };
    let rows = gib.parse::<u64>().unwrap() << 22;
    let config = job(&[(rows, 64)], DOT, Optimizer::Sgd);
    let tile = whole(&config.model.tables).tiles()[0].clone();
    let weight: Vec<f32> = (0..rows * 64).map(|i| i as f32).collect();
    let weight = Weights::F32(weight[..].into());
    let state = TileState { tile, weight, state: Array::default() };
    let started = std::time::Instant::now();
    let writer = CheckpointWriter::begin(Path::new(&run), 2, &config.model.tables).unwrap();
    let records =
        vec![writer.write_rank(Rank(0), std::slice::from_ref(&state), Optimizer::Sgd).unwrap()];
    let null = serde_json::Value::Null;
    let plan = whole(&config.model.tables);
    let meta = Meta {
        samples: 0,
        config: &config,
        plan: &plan,
        row_scope: RowScope::EachWeight,
        fitted: null.clone(),
        position: null,
        data: SeenData::default(),
    };
    let committed = writer.commit(&meta, records).unwrap();
    let wrote = committed.bytes as f64 / 1e6 / started.elapsed().as_secs_f64();
    let started = std::time::Instant::now();
    let checkpoint = Checkpoint::open(&committed.folder).unwrap();
    let got = checkpoint.read_tile_weights("t0", &state.tile).unwrap();
    let read = committed.bytes as f64 / 1e6 / started.elapsed().as_secs_f64();
    assert!(got == state);
    eprintln!("wrote {wrote:.0} MB/s, read (cached) {read:.0} MB/s, {} bytes", committed.bytes);
    fs::remove_dir_all(&committed.folder).unwrap();
}
