//! Tests that damage to a prepared dataset is detected wherever it is, and that a dataset is
//! identified by its rows.

use std::fs;
use std::path::{Path, PathBuf};

use data::{Dataset, Error, Loader, Prepared};
use schema::Batch;
use schema::random::CounterRng;
use serde_json::json;

use crate::fixture::{Folder, all_features, config, in_order};

const ROWS: u64 = 10_000;

fn columns() -> schema::DataConfig {
    config(json!({
        "format": "tsv", "columns": ["y", "x", "c", "l"], "label": {"column": "y"},
        "dense": [{"column": "x", "transform": "standardise"}],
        "categorical": [
            {"column": "c", "kind": "integer"}, {"column": "l", "separator": "|"},
        ],
        "ids": {"mode": "exact"},
    }))
}

/// Prepares a dataset of two parts, of which the first has 64 row groups.
fn prepared(folder: &Folder, name: &str) -> Prepared {
    let line = |row: u64| {
        format!("{}\t{}.5\t{}\tk{}|k{}\n", row % 2, row % 89, row * 7 % 31, row % 13, row % 5)
    };
    let text: String = (0..ROWS).map(line).collect();
    let inputs = [folder.file(&format!("{name}.tsv"), text.as_bytes())];
    folder.prepare(name, &inputs, &columns())
}

/// Reads all rows of a dataset as one batch.
fn rows_of(dir: &Path) -> Result<(Batch, data::Fitted), Error> {
    let dataset = Dataset::open(dir)?;
    let options = in_order(&dataset, ROWS as usize);
    let mut loader = Loader::start(&dataset, &all_features(&dataset, 1000), options)?;
    let loaded = loader.next().unwrap()?;
    Ok((loaded.batch, dataset.fitted().clone()))
}

/// Reads all files of a dataset.
fn read_files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    files.sort();
    files
}

#[test]
fn the_error_names_file_column_rows_and_both_checksums() {
    let folder = Folder::new();
    let dataset = prepared(&folder, "out").dataset;
    let part = dataset.dir().join("rows-00000.parquet");
    let whole = fs::read(&part).unwrap();
    let message = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&part, bytes).unwrap();
        rows_of(dataset.dir()).unwrap_err().to_string()
    };
    let first = message(4);
    let start = format!("{}: column \"label\", rows 0..64: expected checksum ", part.display());
    assert!(first.starts_with(&start) && first.contains(", got "), "{first}");
    let footer = message(whole.len() - 20);
    assert!(footer.contains("rows-00000.parquet: footer: expected checksum "), "{footer}");
}

/// The tests `damage` of the crate `train` damage runs and checkpoints in the same way.
#[test]
fn a_flipped_bit_is_refused_or_changes_no_row() {
    let folder = Folder::new();
    let dataset = prepared(&folder, "out").dataset;
    let whole = rows_of(dataset.dir()).unwrap();
    let files = read_files(dataset.dir());
    assert_eq!(files.len(), 4);
    let (mut refused, rng) = (0, CounterRng::new(23, 5));
    for case in 0..200 {
        let rng = rng.child(case);
        let (path, bytes) = &files[rng.below(0, files.len() as u64) as usize];
        // Every other case hits the footer, which is small.
        let reach = if case % 2 == 0 { bytes.len().min(4000) } else { bytes.len() };
        let bit = 8 * (bytes.len() - reach) as u64 + rng.below(1, 8 * reach as u64);
        let mut damaged = bytes.clone();
        damaged[bit as usize / 8] ^= 1 << (bit % 8);
        fs::write(path, damaged).unwrap();
        match rows_of(dataset.dir()) {
            Ok(rows) => assert!(rows == whole, "bit {bit} of {}", path.display()),
            Err(_) => refused += 1,
        }
        fs::write(path, bytes).unwrap();
    }
    assert!(refused > 190, "{refused} of 200 were refused");
}

#[test]
fn truncated_zeroed_and_swapped_files_are_refused() {
    let folder = Folder::new();
    let dataset = prepared(&folder, "out").dataset;
    let files = read_files(dataset.dir());
    let refused = |what: &str| {
        assert!(rows_of(dataset.dir()).is_err(), "{what}");
        files.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    };
    for (path, bytes) in &files {
        for length in [0, 1, bytes.len() / 2, bytes.len() - 1] {
            fs::write(path, &bytes[..length]).unwrap();
            refused(&format!("{} cut to {length}", path.display()));
        }
        for start in (0..bytes.len()).step_by(4096) {
            let mut blank = bytes.clone();
            let end = (start + 4096).min(blank.len());
            blank[start..end].fill(0);
            fs::write(path, blank).unwrap();
            refused(&format!("{} without {start}..{end}", path.display()));
        }
    }
    fs::write(&files[1].0, &files[2].1).unwrap();
    fs::write(&files[2].0, &files[1].1).unwrap();
    refused("exchanged");
    assert!(rows_of(dataset.dir()).is_ok());
}

#[test]
fn a_part_of_other_rows_with_the_same_length_is_refused() {
    let folder = Folder::new();
    let input = |name: &str, label: u32| {
        [folder.file(name, format!("1\t2\t3\tk1\n{label}\t7\t4\tk2\n").as_bytes())]
    };
    let one = folder.prepare("one", &input("one.tsv", 0), &columns()).dataset;
    let fitted = Some(one.fitted());
    let other = folder.try_prepare("other", &input("other.tsv", 1), &columns(), fitted);
    let other = other.unwrap().dataset;
    let part = |dataset: &Dataset| dataset.dir().join("rows-00000.parquet");
    fs::copy(part(&other), part(&one)).unwrap();
    match rows_of_any(one.dir()) {
        Err(Error::Checksum { .. } | Error::PartSize { .. }) => {}
        other => panic!("{other:?}"),
    }
}

fn rows_of_any(dir: &Path) -> Result<Batch, Error> {
    let dataset = Dataset::open(dir)?;
    let options = in_order(&dataset, dataset.rows() as usize);
    let mut loader = Loader::start(&dataset, &all_features(&dataset, 1000), options)?;
    Ok(loader.next().unwrap()?.batch)
}

/// Rewrites a dataset as version 1 wrote it, without checksums.
fn without_checksums(dir: &Path) {
    let path = dir.join("dataset.json");
    let mut text: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    text["version"] = 1.into();
    text.as_object_mut().unwrap().remove("checksum");
    for part in text["parts"].as_array_mut().unwrap() {
        part.as_object_mut().unwrap().remove("footer");
    }
    fs::write(&path, text.to_string()).unwrap();
}

#[test]
fn a_dataset_of_version_1_is_read_and_says_that_it_has_no_checksums() {
    let folder = Folder::new();
    let dataset = prepared(&folder, "out").dataset;
    assert!(dataset.manifest().has_checksums());
    let (whole, _) = rows_of(dataset.dir()).unwrap();
    without_checksums(dataset.dir());
    assert!(rows_of(dataset.dir()).unwrap().0 == whole);
    let old = Dataset::open(dataset.dir()).unwrap();
    assert!(!old.manifest().has_checksums() && old.manifest().fingerprint().is_none());
}

#[test]
fn a_manifest_without_its_checksum_is_not_read_as_version_1() {
    let folder = Folder::new();
    let dataset = prepared(&folder, "out").dataset;
    let path = dataset.dir().join("dataset.json");
    let text = fs::read_to_string(&path).unwrap();
    for (from, to) in [("\"checksum\"", "\"checksux\""), ("\"version\":2", "\"version\":1")] {
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        assert!(Dataset::open(dataset.dir()).is_err(), "{to}");
    }
    let both = text.replacen("\"checksum\"", "\"checksux\"", 1);
    fs::write(&path, both.replacen("\"version\":2", "\"version\":1", 1)).unwrap();
    let error = Dataset::open(dataset.dir()).unwrap_err().to_string();
    assert!(error.contains("expected no checksum in version 1"), "{error}");
}

#[test]
fn the_same_rows_have_the_same_fingerprint_wherever_they_come_from() {
    let folder = Folder::new();
    let one = prepared(&folder, "one").dataset;
    let renamed = prepared(&folder, "two").dataset;
    let fingerprint = one.manifest().fingerprint().unwrap();
    assert_eq!(renamed.manifest().fingerprint(), Some(fingerprint));
    let text = fs::read_to_string(folder.path("one.tsv")).unwrap();
    let other = [folder.file("other.tsv", text.replacen("k3|k3", "k3|k4", 1).as_bytes())];
    let other = folder.prepare("other", &other, &columns()).dataset;
    assert_eq!(other.rows(), one.rows());
    assert_ne!(other.manifest().fingerprint(), Some(fingerprint));
}
