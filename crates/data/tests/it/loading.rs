//! Tests of the loader: it must return every row once, in a seeded order, with exact resume, from
//! datasets of one or several parts.

use data::{Dataset, Error, FeaturePlan, Loaded, Loader, LoaderOptions, Position, Shuffle};
use serde_json::json;

use crate::fixture::{Folder, config, in_order, request, whole};

pub const ROWS: usize = 1000;

/// Prepares a dataset whose row `i` has the label `i / 1024`, the dense value `i`, the category `i`
/// and a list of `i % 3` categories, in row groups of 64.
pub fn dataset(folder: &Folder) -> Dataset {
    let line = |i: usize| {
        let label = i as f64 / 1024.0;
        format!("{label}\t{i}\t{i}\t{}\n", vec![i.to_string(); i % 3].join("|"))
    };
    let text: String = (0..ROWS).map(line).collect();
    let config = config(json!({
        "format": "tsv", "columns": ["y", "x", "c", "l"], "label": {"column": "y"},
        "dense": [{"column": "x"}],
        "categorical": [
            {"column": "c", "kind": "integer"},
            {"column": "l", "kind": "integer", "separator": "|"},
        ],
    }));
    folder.prepare("dataset", &[folder.file("rows.tsv", text.as_bytes())], &config).dataset
}

pub fn features() -> FeaturePlan {
    FeaturePlan { columns: vec![("l".to_owned(), 1 << 40), ("c".to_owned(), 1 << 40)] }
}

pub fn shuffled(seed: u64) -> LoaderOptions {
    LoaderOptions {
        batch_size: 37,
        shuffle: Some(Shuffle { seed, buffer_rows: 200 }),
        drop_last: false,
        rows: 0..ROWS as u64,
        start: Position::default(),
        epochs: Some(2),
        batches: None,
    }
}

pub fn load(dataset: &Dataset, options: LoaderOptions) -> Vec<Loaded> {
    Loader::start(dataset, &features(), options).unwrap().map(Result::unwrap).collect()
}

/// Returns the loaded rows in order, after checking that the parts of every sample belong together.
fn rows(loaded: &[Loaded]) -> Vec<usize> {
    let mut rows = Vec::new();
    for Loaded { batch, .. } in loaded {
        assert_eq!(batch.sparse.check(), Ok(()));
        assert_eq!((batch.sparse.features, batch.sparse.batch_size), (2, batch.size));
        for (sample, &label) in batch.labels.iter().enumerate() {
            let row = (label * 1024.0) as usize;
            assert_eq!(batch.dense[sample], row as f32);
            assert_eq!(batch.sparse.values[batch.sparse.bag(1, sample)], [row as i64]);
            let list = &batch.sparse.values[batch.sparse.bag(0, sample)];
            assert_eq!(list, vec![row as i64; row % 3]);
            rows.push(row);
        }
    }
    rows
}

#[test]
fn without_shuffle_rows_come_in_the_order_of_the_file() {
    let folder = Folder::new();
    let dataset = dataset(&folder);
    assert_eq!((dataset.rows(), dataset.row_groups()), (1000, 16));
    let loaded = load(&dataset, in_order(&dataset, 37));
    assert_eq!(rows(&loaded), (0..ROWS).collect::<Vec<_>>());
    assert_eq!(loaded.last().unwrap().batch.size, 1000 % 37);
}

#[test]
fn each_epoch_has_every_row_once_in_an_order_of_its_own() {
    let folder = Folder::new();
    let dataset = dataset(&folder);
    let loaded = load(&dataset, shuffled(1));
    let order = rows(&loaded);
    let (first, second) = order.split_at(ROWS);
    let sorted = |rows: &[usize]| {
        let mut rows = rows.to_vec();
        rows.sort_unstable();
        rows
    };
    assert_eq!(sorted(first), (0..ROWS).collect::<Vec<_>>());
    assert_eq!(sorted(second), (0..ROWS).collect::<Vec<_>>());
    assert_ne!(first, second);
    assert_eq!(order, rows(&load(&dataset, shuffled(1))));
    assert_ne!(order, rows(&load(&dataset, shuffled(2))));
    // The rows of one batch come from more than one row group.
    let mut groups: Vec<usize> = first[..37].iter().map(|row| row / 64).collect();
    groups.sort_unstable();
    groups.dedup();
    assert!(groups.len() > 1, "{groups:?}");
}

#[test]
fn a_resumed_loader_gives_the_same_following_batches_from_every_position() {
    let folder = Folder::new();
    let dataset = dataset(&folder);
    // With a single window, all rows are decoded once, and each epoch has the row groups in a
    // different order.
    let one_window = Some(Shuffle { seed: 3, buffer_rows: ROWS });
    for (shuffle, drop_last) in [
        (shuffled(1).shuffle, false),
        (shuffled(5).shuffle, true),
        (one_window, false),
        (None, true),
    ] {
        let options = LoaderOptions { shuffle, drop_last, rows: 70..990, ..shuffled(1) };
        let all = load(&dataset, options.clone());
        let batches = if drop_last { 920 / 37 } else { 920usize.div_ceil(37) };
        assert_eq!(all.len(), 2 * batches);
        for (done, loaded) in all.iter().enumerate() {
            let saved = serde_json::to_string(&loaded.position).unwrap();
            let start: Position = serde_json::from_str(&saved).unwrap();
            assert_eq!(start.epoch as usize * batches + start.batch as usize, done + 1);
            let rest = load(&dataset, LoaderOptions { start, ..options.clone() });
            assert!(rest == all[done + 1..], "after {} batches", done + 1);
        }
    }
}

#[test]
fn a_position_of_another_run_is_refused() {
    let folder = Folder::new();
    let dataset = dataset(&folder);
    let start = load(&dataset, shuffled(1))[3].position.clone();
    let refused = |change: &dyn Fn(&mut LoaderOptions)| {
        let mut options = LoaderOptions { start: start.clone(), ..shuffled(1) };
        change(&mut options);
        match Loader::start(&dataset, &features(), options) {
            Err(error @ Error::PositionMismatch { .. }) => error.to_string(),
            _ => panic!("not refused"),
        }
    };
    let shown = [
        refused(&|options| options.batch_size = 36),
        refused(&|options| options.shuffle = shuffled(2).shuffle),
        refused(&|options| options.rows = 0..999),
        refused(&|options| options.start.offset += 1),
    ];
    expect_test::expect![[r#"
        resume position: batch size: expected 37, got 36
        resume position: seed: expected 1, got 2
        resume position: end row: expected 1000, got 999
        resume position: row: expected window 0, offset 148, got window 0, offset 149"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn a_dataset_of_several_parts_reads_like_one() {
    let folder = Folder::new();
    let text: String = (0..1100).map(|i| format!("{}\t{i}\n", i % 2)).collect();
    let config = config(json!({
        "format": "tsv", "columns": ["y", "c"], "label": {"column": "y"},
        "categorical": [{"column": "c", "kind": "integer"}],
    }));
    let inputs = [folder.file("rows.tsv", text.as_bytes())];
    let one = folder.prepare("one", &inputs, &config).dataset;
    let out = folder.path("several");
    let mut request = request(&inputs, &config, None, &out);
    request.row_group_rows = 1;
    let several = data::prepare(&request, &mut |_| {}).unwrap().dataset;
    assert_eq!((one.manifest().parts.len(), several.manifest().parts.len()), (1, 18));
    assert_eq!(several.row_groups(), 1100);
    assert_eq!(whole(&one, 1 << 40), whole(&several, 1 << 40));
}

#[test]
fn training_and_held_out_rows_are_disjoint_and_complete() {
    let folder = Folder::new();
    let dataset = dataset(&folder);
    let (train, held_out) = dataset.split(0.1);
    assert_eq!((train.clone(), held_out.clone()), (0..900, 900..1000));
    let part = |rows: std::ops::Range<u64>| LoaderOptions { rows, epochs: Some(1), ..shuffled(3) };
    let mut all = rows(&load(&dataset, part(train)));
    assert!(all.iter().all(|&row| row < 900));
    all.extend(rows(&load(&dataset, part(held_out))));
    all.sort_unstable();
    assert_eq!(all, (0..ROWS).collect::<Vec<_>>());
}

#[test]
fn a_loader_without_end_stops_when_dropped() {
    let folder = Folder::new();
    let dataset = dataset(&folder);
    let options = LoaderOptions { epochs: None, drop_last: true, ..shuffled(1) };
    let mut loader = Loader::start(&dataset, &features(), options).unwrap();
    for step in 0..200u64 {
        let position = loader.next().unwrap().unwrap().position;
        assert_eq!((position.epoch, position.batch), ((step + 1) / 27, (step + 1) % 27));
    }
}

/// Overwrites bytes in the middle of the dataset's only part.
pub fn damage(dataset: &Dataset) {
    let part = dataset.dir().join("rows-00000.parquet");
    let mut bytes = std::fs::read(&part).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle - 2000..middle].fill(0x55);
    std::fs::write(&part, bytes).unwrap();
}

#[test]
fn a_damaged_part_is_reported_once() {
    let folder = Folder::new();
    let dataset = dataset(&folder);
    damage(&dataset);
    let damaged = Dataset::open(dataset.dir()).unwrap();
    let mut loader = Loader::start(&damaged, &features(), in_order(&damaged, 10)).unwrap();
    let good = loader.by_ref().take_while(Result::is_ok).count();
    assert!(good > 0 && good < 100, "{good}");
    assert!(loader.next().is_none());
}

#[test]
fn invalid_features_and_options_are_refused() {
    let folder = Folder::new();
    let dataset = dataset(&folder);
    let exact = {
        let config = config(json!({
            "format": "csv", "label": {"column": "y"}, "categorical": [{"column": "c"}],
            "ids": {"mode": "exact"},
        }));
        folder.prepare("exact", &[folder.file("e.csv", b"c,y\na,1\nb,0\nc,1\n")], &config).dataset
    };
    assert_eq!(whole(&exact, 5).sparse.values, [2, 3, 4]);
    let plan = |column: &str, rows| FeaturePlan { columns: vec![(column.to_owned(), rows)] };
    let refused = |dataset: &Dataset, plan: &FeaturePlan, options: LoaderOptions| {
        let error = Loader::start(dataset, plan, options).err().unwrap().to_string();
        error.replace(dataset.dir().to_str().unwrap(), "DIR")
    };
    let shown = [
        refused(&dataset, &plan("C", 7), shuffled(1)),
        refused(&dataset, &plan("c", 0), shuffled(1)),
        refused(&exact, &plan("c", 4), in_order(&exact, 1)),
        refused(&dataset, &features(), LoaderOptions { rows: 0..1001, ..shuffled(1) }),
        refused(&dataset, &features(), LoaderOptions { batch_size: 0, ..shuffled(1) }),
        refused(
            &dataset,
            &features(),
            LoaderOptions { batch_size: 1001, drop_last: true, ..shuffled(1) },
        ),
    ];
    expect_test::expect![[r#"
        DIR: no column "C"; there are c, l
        column "c": expected a table of at least 1 rows for its exact ids, got 0
        column "c": expected a table of at least 5 rows for its exact ids, got 4
        rows: expected a part of 0..1000, got 0..1001
        batch_size: expected at least 1, got 0
        batch_size: 1001 does not fill one batch from 1000 rows, and the last one is dropped"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn a_single_row_group_is_divided_among_decoders() {
    let folder = Folder::new();
    let line = |i: usize| format!("{}\t{i}\t{}\n", i % 2, vec![i.to_string(); i % 3].join("|"));
    let text: String = (0..10_000).map(line).collect();
    let inputs = [folder.file("rows.tsv", text.as_bytes())];
    let config = config(json!({
        "format": "tsv", "columns": ["y", "x", "l"], "label": {"column": "y"},
        "dense": [{"column": "x"}],
        "categorical": [{"column": "l", "kind": "integer", "separator": "|"}],
    }));
    let features = FeaturePlan { columns: vec![("l".to_owned(), 1 << 40)] };
    let [one, many] = [16_384, 64].map(|row_group_rows| {
        let out = folder.path(&row_group_rows.to_string());
        let mut request = request(&inputs, &config, None, &out);
        request.row_group_rows = row_group_rows;
        let dataset = data::prepare(&request, &mut |_| {}).unwrap().dataset;
        let options = LoaderOptions { rows: 100..9_900, ..in_order(&dataset, 37) };
        let loader = Loader::start(&dataset, &features, options).unwrap();
        (dataset.row_groups(), loader.map(|loaded| loaded.unwrap().batch).collect::<Vec<_>>())
    });
    assert_eq!((one.0, many.0), (1, 157));
    assert!(one.1 == many.1);
    assert_eq!(one.1[0].dense[..3], [100.0, 101.0, 102.0]);
}
