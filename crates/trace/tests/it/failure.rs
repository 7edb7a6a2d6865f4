//! Tests the errors of traces that cannot be written.

use std::fs;
use std::path::Path;

use trace::Recorder;

use crate::recording::{info, regular};

#[test]
fn error_names_the_missing_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("absent").join("trace.json");
    let error = regular(info(), 1, 0).write_kineto(&path).unwrap_err().to_string();
    let expected = format!("{}: could not create the trace file: ", path.display());
    assert!(error.starts_with(&expected), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn failed_rename_removes_the_temporary_file() {
    // The target is a folder with content, so the final rename fails even for root.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    fs::create_dir_all(path.join("occupied")).unwrap();
    let error = regular(info(), 1, 0).write_execution_trace(10, &path).unwrap_err().to_string();
    assert!(error.contains("could not rename the trace file"), "{error}");
    let left: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["trace.json"]);
}

#[test]
fn empty_recording_and_unknown_step_are_errors() {
    let path = Path::new("never-written.json");
    let empty = Recorder::new(info());
    let expected = "never-written.json: expected at least one recorded step, got none";
    assert_eq!(empty.write_kineto(path).unwrap_err().to_string(), expected);
    assert_eq!(empty.write_execution_trace(3, path).unwrap_err().to_string(), expected);
    assert_eq!(
        regular(info(), 4, 0).write_execution_trace(3, path).unwrap_err().to_string(),
        "never-written.json: step 3 was not recorded; the recording has steps 10 to 13"
    );
    assert!(!path.exists());
}
