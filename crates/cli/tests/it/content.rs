//! Checks that data is identified by its content. A file with different bytes must never be taken
//! for the data that was prepared or trained on, even if its name, size and time are the same.

use std::fs::{self, File};
use std::path::Path;

use crate::fixture::Place;

const TRAIN: &str = "train job.toml --train train.csv --run run --set steps=30";
const RESUME: &str = "train job.toml --train train.csv --run run --set steps=60 --resume";

/// Changes the first label in a file, without changing the file's size or modification time.
fn change_label(path: &Path) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    let mut text = fs::read(path).unwrap();
    let first = text.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    text[first] ^= 1;
    fs::write(path, text).unwrap();
    File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
}

#[test]
fn changed_content_of_equal_size_and_time_is_prepared_again() {
    let place = Place::new();
    place.done(TRAIN);
    change_label(&place.path("train.csv"));
    let refused = place.run(RESUME);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    for text in [
        "prepared 4,000 rows",
        "expected the training rows that the run began with, fingerprint ",
        "hint: resume on the data the run began with",
    ] {
        assert!(refused.stderr.contains(text), "{text}: {}", refused.stderr);
    }
    // The data prepared from the original content still exists, and must be reused.
    change_label(&place.path("train.csv"));
    let resumed = place.done(RESUME);
    assert!(resumed.stderr.contains("using the data prepared earlier"), "{}", resumed.stderr);
}

#[test]
fn equal_content_is_not_prepared_again_even_if_its_times_differ() {
    let place = Place::new();
    place.done(TRAIN);
    let path = place.path("train.csv");
    let copy = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, copy).unwrap();
    let resumed = place.done(RESUME);
    assert!(resumed.stderr.contains("using the data prepared earlier"), "{}", resumed.stderr);
    assert!(!resumed.stderr.contains("prepared 4,000 rows"), "{}", resumed.stderr);
}

#[test]
fn held_out_files_are_compared_as_well() {
    let place = Place::new();
    fs::copy(place.path("train.csv"), place.path("held.csv")).unwrap();
    let with = |words: &str| format!("{words} --evaluation held.csv");
    place.done(&with(TRAIN));
    change_label(&place.path("held.csv"));
    let refused = place.run(&with(RESUME));
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("expected the held-out rows"), "{}", refused.stderr);
    let evaluated = place.done("eval run");
    assert!(
        evaluated.stderr.contains("have changed since the training run"),
        "{}",
        evaluated.stderr
    );
}

/// Evaluation data must be transformed like the training data, because the figures mean nothing
/// otherwise.
#[test]
fn a_run_is_not_evaluated_under_transforms_fitted_on_other_data() {
    let place = Place::new();
    place.done(TRAIN);
    let text = fs::read_to_string(place.path("train.csv")).unwrap();
    let rows: Vec<&str> = text.lines().take(3000).collect();
    fs::write(place.path("train.csv"), rows.join("\n")).unwrap();
    let refused = place.run("eval run");
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("fitted transforms differ"), "{}", refused.stderr);
}

#[test]
fn another_configuration_does_not_reuse_prepared_or_generated_rows() {
    let place = Place::new();
    let tables = |rows: u32| {
        format!(
            "--set model.tables=[{{name=\"a\",rows={rows},dim=4}},{{name=\"b\",rows=40,dim=4}}]"
        )
    };
    let prepares = |words: &str, expected: &str| {
        drop(fs::remove_dir_all(place.path("run/checkpoints")));
        let ran = place.done(&format!("train job.toml --run run --set steps=5 {words}"));
        assert!(ran.stderr.contains(expected), "{words}: {}", ran.stderr);
    };
    for (rows, made) in [("--train train.csv", "prepared 4,000"), ("--synthetic 2000", "generated")]
    {
        prepares(&format!("{rows} {}", tables(80)), made);
        for set in [
            "data.ids={mode=\"exact\"}",
            "data.ids={mode=\"exact\",threshold=2}",
            "data.dense=[{column=\"u\"},{column=\"v\"}]",
            "data.hold_out=0.3",
        ] {
            prepares(&format!("{rows} {} --set {set}", tables(80)), made);
        }
    }
    // The number of generated ids equals the number of rows of the table, so a table of another
    // size needs new rows.
    prepares(&format!("--synthetic 2000 {}", tables(90)), "generated");
}

#[test]
fn data_of_version_1_is_read_with_a_warning() {
    let place = Place::new();
    place.done("data convert train.csv --config job.toml --out prepared");
    let path = place.path("prepared/dataset.json");
    let mut text: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    text["version"] = 1.into();
    text.as_object_mut().unwrap().remove("checksum");
    for part in text["parts"].as_array_mut().unwrap() {
        part.as_object_mut().unwrap().remove("footer");
    }
    fs::write(&path, text.to_string()).unwrap();
    let ran = place.done("train job.toml --train prepared --run run --set steps=30");
    assert!(ran.stderr.contains("without checksums"), "{}", ran.stderr);
    let resumed = place.done("train job.toml --train prepared --run run --set steps=60 --resume");
    assert!(resumed.stderr.contains("does not record its training data"), "{}", resumed.stderr);
}

#[test]
fn damaged_rows_end_a_run_with_file_column_and_rows() {
    let place = Place::new();
    place.done("data convert train.csv --config job.toml --out prepared");
    let path = place.path("prepared/rows-00000.parquet");
    let mut bytes = fs::read(&path).unwrap();
    bytes[100] ^= 8;
    fs::write(&path, bytes).unwrap();
    let ran = place.run("train job.toml --train prepared --run run");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    for text in [
        "rows-00000.parquet: column \"label\", rows 0..4000: expected checksum",
        "hint: the file is damaged",
    ] {
        assert!(ran.stderr.contains(text), "{text}: {}", ran.stderr);
    }
}
