use std::os::unix::fs::FileExt;

use device::Pool;
use device::Weights;
use schema::{ModelConfig, Optimizer, Rank, TableId, Tile};

use super::{RowStore, StoreTraffic};
use crate::{Error, initial};

const OPTIMIZER: Optimizer = Optimizer::Adagrad;

fn model(rows: u64, dim: usize) -> ModelConfig {
    let text = format!(
        "name = \"m\"\ndense_features = 0\ntop = [1]\ninteraction = {{ kind = \"cat\" }}\n\
         loss = \"mse\"\ntables = [{{ name = \"a/b\", rows = {rows}, dim = {dim} }}]"
    );
    toml_model(&text)
}

fn toml_model(text: &str) -> ModelConfig {
    let job = format!(
        "[model]\n{text}\n[optimizer]\nsparse = {{ kind = \"sgd\", learning_rate = 1.0 }}\n\
         dense = {{ kind = \"sgd\", learning_rate = 1.0 }}\n[training]\nbatch_size = 1\n\
         [data]\nformat = \"csv\"\nlabel = {{ column = \"y\" }}\n\
         categorical = [{{ column = \"a/b\", kind = \"integer\" }}]\n"
    );
    schema::JobConfig::parse(&job, &[]).unwrap().model
}

/// A tile without the first rows and the first column of its table.
fn tile(rows: u64, dim: usize) -> Tile {
    Tile { table: TableId(0), rows: 5..rows, columns: 1..dim, rank: Rank(0) }
}

#[test]
fn rows_are_initial_until_they_are_written() {
    let (host, folder) = (Pool::new(2), tempfile::tempdir().unwrap());
    for dim in [9, 600] {
        let (model, tile) = (model(400, dim), tile(400, dim));
        let store = RowStore::create(folder.path(), &model, &tile, OPTIMIZER).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
        let Weights::F32(initial) = initial::tile_weights(&host, &model, &tile) else {
            unreachable!("the table has f32 weights")
        };
        let (dim, width) = (tile.dim(), 2 * tile.dim());
        let all: Vec<u64> = (0..395).collect();
        let mut expected: Vec<Vec<f32>> =
            initial.chunks(dim).map(|weights| [weights, &vec![0.0; dim]].concat()).collect();
        let mut got = vec![0.0; all.len() * width];
        store.read(&host, &all, &mut got).unwrap();
        assert_eq!(store.traffic(), StoreTraffic::default(), "no block was written");
        assert!(got == expected.concat());
        for step in 0..4u64 {
            // Rows in another order than that of the file, so that blocks have some of them.
            let rows: Vec<u64> = (0..50).map(|i| (i * 7 + step * 3) * 31 % 395).collect();
            let values: Vec<f32> =
                (0..rows.len() * width).map(|i| i as f32 + step as f32).collect();
            store.write(&host, &rows, &values).unwrap();
            for (&row, values) in rows.iter().zip(values.chunks(width)) {
                expected[row as usize] = values.to_vec();
            }
        }
        store.read(&host, &all, &mut got).unwrap();
        assert!(got == expected.concat());
        let StoreTraffic { bytes_read, bytes_written } = store.traffic();
        assert!(bytes_read > 0 && bytes_written > 0);
    }
}

#[test]
fn a_changed_byte_is_named_and_not_returned() {
    let (host, folder) = (Pool::new(1), tempfile::tempdir().unwrap());
    let (model, tile) = (model(400, 9), tile(400, 9));
    let store = RowStore::create(folder.path(), &model, &tile, OPTIMIZER).unwrap();
    let mut row = vec![1.0; 16];
    store.write(&host, &[200], &row).unwrap();
    let block = store.shape.block_of(200);
    let offset = store.shape.offset(block) + 3;
    let mut byte = [0];
    store.file.read_exact_at(&mut byte, offset).unwrap();
    store.file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
    let rows = store.shape.rows_of(block);
    let error = store.read(&host, &[201], &mut row).unwrap_err();
    let Error::StoredRows { rows: named, .. } = &error else { panic!("{error}") };
    assert_eq!(*named, rows.start + 5..rows.end + 5);
    assert!(store.write(&host, &[200], &row).is_err(), "the other rows of the block are lost");
    store.read(&host, &[0], &mut row).unwrap();
}
