//! Tests of `checkpoint info`, `verify`, `export` and `import`, and of runs with a damaged
//! checkpoint.

use std::fs;
use std::path::{Path, PathBuf};

use crate::fixture::{Place, damage};

/// Path of the prepared dataset on which the run in the folder `run` was trained.
fn prepared(place: &Place) -> PathBuf {
    let entries = fs::read_dir(place.path("run/data")).unwrap();
    entries.map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap()
}

#[test]
fn info_and_verify_accept_a_run_folder() {
    let place = trained();
    let info = place.done("checkpoint info run --format json").last();
    assert_eq!((info["tables"].as_u64(), info["table_rows"].as_u64()), (Some(2), Some(70)));
    let ran = place.done("checkpoint verify run");
    assert_eq!(ran.stdout.matches("whole").count(), 3, "{}", ran.stdout);
}

#[test]
fn exported_weights_come_back_the_same() {
    let place = Place::new();
    // The names of facebookresearch/dlrm have no form for mean pooling, so the tables use sums.
    let sum = r#"--set model.tables=[{name="a",rows=50,dim=4},{name="b",rows=20,dim=4}]"#;
    place.done(&format!("train job.toml --train train.csv --run run {sum}"));
    for to in ["torch", "torchrec"] {
        let (out, run) = (format!("{to}.safetensors"), format!("back-{to}"));
        place.done(&format!("checkpoint export run --to {to} {out}"));
        let data = prepared(&place);
        place.done(&format!(
            "checkpoint import --from {to} {out} --config job.toml {sum} --run {run} --data {}",
            data.display()
        ));
        place.done(&format!("checkpoint export {run} --to {to} again.safetensors"));
        let read = |name: &str| fs::read(place.path(name)).unwrap();
        assert_eq!(read(&out), read("again.safetensors"), "{to}");
        let scores = place.done(&format!("score {run} train.csv")).stdout;
        assert_eq!(scores, place.done("score run train.csv").stdout, "{to}");
    }
}

#[test]
fn training_continues_from_exported_weights_and_states() {
    let place = Place::new();
    let sum = r#"--set model.tables=[{name="a",rows=50,dim=4},{name="b",rows=20,dim=4}]"#;
    let kinds = "--set optimizer.sparse.kind=adagrad --set optimizer.dense.kind=adagrad";
    let job = format!("{sum} {kinds} --set training.epochs=3 --set training.shuffle_rows=0");
    place.done(&format!("train job.toml --train train.csv --run run {job} --set training.steps=3"));
    place.done("checkpoint export run --to torch weights --optimizer states");
    place.done(&format!(
        "checkpoint import weights --from torch --config job.toml {job} --run back --step 3 \
         --optimizer states"
    ));
    place.done("checkpoint export back --to torch again --optimizer states-again");
    let read = |name: &str| fs::read(place.path(name)).unwrap();
    assert_eq!((read("weights"), read("states")), (read("again"), read("states-again")));
    let steps = "--resume --set training.steps=5";
    let ran = place
        .done(&format!("train job.toml --train train.csv --run back {job} {steps} --format json"));
    assert_eq!(ran.last()["step"], 5);
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_previous_one_offered() {
    let place = trained();
    let mut checkpoints = list(&place);
    let newest = checkpoints.pop().unwrap();
    let previous = checkpoints.pop().unwrap();
    let file = damage(&newest);

    let verify = place.run("checkpoint verify run");
    assert_eq!(verify.code, Some(1), "{}", verify.stderr);
    assert!(verify.stdout.contains(&file) && verify.stdout.contains("checksum"), "{verify:?}");

    let refused = place.run("train job.toml --train train.csv --run run --resume");
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains(&file), "{}", refused.stderr);
    let name = previous.file_name().unwrap().to_string_lossy().into_owned();
    let offer = format!("--resume-from run/checkpoints/{name}");
    assert!(refused.stderr.contains(&offer), "{}", refused.stderr);

    place.done(&format!("train job.toml --train train.csv --run run {offer}"));
    place.done("checkpoint verify run");
}

/// Later runs ignore checkpoints that are set aside, so a refused run must not set any checkpoint
/// aside.
#[test]
fn resume_from_sets_checkpoints_aside_only_when_it_is_accepted_and_resume_reports_them() {
    let place = trained();
    let before = list(&place);
    let chosen = before[0].strip_prefix(place.path("")).unwrap().display().to_string();
    let resume = format!("train job.toml --train train.csv --run run --resume-from {chosen}");
    for (more, code) in [
        ("--set model.top=[4,1]", 1),
        ("--set optimizer.sparse.kind=sgd", 1),
        ("--ranks 2 --sharding column --set optimizer.row_scope=column_tiles", 1),
        ("--trace t --trace-steps 900..910", 1),
        ("--evaluation nowhere.csv", 2),
    ] {
        let ran = place.run(&format!("{resume} {more}"));
        assert_eq!(ran.code, Some(code), "{more}: {}", ran.stderr);
        assert_eq!(list(&place), before, "{more}: {}", ran.stderr);
    }
    let ran = place.done(&resume);
    let newest = before.last().unwrap().strip_prefix(place.path("")).unwrap().display();
    let said = format!("set aside {newest} as {newest}.aside-1");
    assert!(ran.stderr.contains(&said), "{}", ran.stderr);
    let later = place.done("train job.toml --train train.csv --run run --resume --set epochs=3");
    let said = format!("an earlier --resume-from set it aside: {newest}.aside-1");
    assert!(later.stderr.contains(&said), "{}", later.stderr);
}

/// Overwrites values of a tensor in a safetensors file, starting at element `first`.
fn fill(path: &Path, tensor: &str, (first, value): (usize, f32)) {
    let mut bytes = fs::read(path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let place = &json[tensor]["data_offsets"];
    let at = |i: usize| 8 + header + place[i].as_u64().unwrap() as usize;
    for cell in bytes[at(0)..at(1)].chunks_exact_mut(4).skip(first) {
        cell.copy_from_slice(&value.to_le_bytes());
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn non_finite_values_are_neither_imported_nor_scored() {
    let place = trained();
    let data = prepared(&place);
    let import = format!(
        "checkpoint import w --from torchrec --config job.toml --run back --data {}",
        data.display()
    );
    let table = "sparse_arch.embedding_bag_collection.embedding_bags.a.weight";
    place.done("checkpoint export run --to torchrec w");
    fill(&place.path("w"), table, (6, f32::NAN));
    let ran = place.run(&import);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let place_of = format!("{table}, row 1, column 2: value is NaN, expected a finite number");
    assert!(ran.stderr.contains(&place_of), "{}", ran.stderr);
    assert!(!place.path("back/checkpoints/step-000000000000").exists());

    // The weights are replaced by finite values whose product is infinite.
    place.done("checkpoint export run --to torchrec w");
    for layer in ["over_arch.model.0._mlp.0._linear.weight", "over_arch.model.1.weight"] {
        fill(&place.path("w"), layer, (0, 1e30));
    }
    place.done(&import);
    let ran = place.run("score back train.csv");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("rows: expected a probability, got NaN: line "), "{}", ran.stderr);
    assert_eq!(ran.stdout.lines().count(), 4000);
    assert!(ran.stdout.lines().any(|line| line == "nan"), "{}", ran.stdout);
    let ran = place.run("score back train.csv --output probabilities.txt");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(place.path("probabilities.txt").exists());
    let ran = place.run("eval back --data train.csv");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("expected a probability, got NaN"), "{}", ran.stderr);
}

#[test]
fn a_checkpoint_of_another_run_is_not_resumed() {
    let place = trained();
    place.done("train job.toml --train train.csv --run other");
    let name = list(&place).pop().unwrap();
    let name = name.file_name().unwrap().to_string_lossy().into_owned();
    for wrong in [format!("other/checkpoints/{name}"), "run".to_owned()] {
        let ran =
            place.run(&format!("train job.toml --train train.csv --run run --resume-from {wrong}"));
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        let expected = format!("{wrong}: expected a checkpoint of the run run, which has step-");
        assert!(ran.stderr.contains(&expected) && ran.stderr.contains(&name), "{}", ran.stderr);
    }
}

#[test]
fn a_run_without_an_intact_checkpoint_is_refused() {
    let place = trained();
    for folder in list(&place) {
        damage(&folder);
    }
    let ran = place.run("score run train.csv");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("expected an undamaged checkpoint, found only 3 damaged"),
        "{ran:?}"
    );
}

#[test]
fn weights_without_transforms_are_trained_before_they_score() {
    let place = trained();
    place.done("checkpoint export run --to torchrec weights");
    let import = "checkpoint import weights --from torchrec --config job.toml --run back";
    assert!(place.done(import).stderr.contains("train --resume"));
    let again = place.run(import);
    assert!(again.stderr.contains("back/checkpoints/step-000000000000: already"), "{again:?}");
    let ran = place.run("score back train.csv");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("no transforms") && ran.stderr.contains("--data"), "{ran:?}");
    place.done("train job.toml --train train.csv --run back --resume");
    place.done("score back train.csv");
}

#[test]
fn imported_weights_score_at_once_if_no_transform_is_fitted() {
    let place = Place::new();
    let job = fs::read_to_string(place.path("job.toml")).unwrap();
    fs::write(place.path("job.toml"), job.replace("\"standardise\"", "\"log1p\"")).unwrap();
    place.done("train job.toml --train train.csv --run run");
    place.done("checkpoint export run --to torchrec weights");
    let import = "checkpoint import weights --from torchrec --config job.toml --run back";
    assert!(!place.done(import).stderr.contains("before it can score rows"));
    let scores = place.done("score back train.csv").stdout;
    assert_eq!(scores, place.done("score run train.csv").stdout);
    place.done("eval back --data train.csv");
    // With exact ids, the vocabulary is learned from data, so an imported model cannot score rows
    // yet.
    let exact = "--set data.ids.mode=exact --set data.ids.threshold=2";
    let import = import.replace("--run back", &format!("--run exact {exact}"));
    assert!(place.done(&import).stderr.contains("before it can score rows"));
    assert!(place.run("score exact train.csv").stderr.contains("no transforms"));
}

#[test]
fn imported_weights_take_the_rows_of_their_tables_from_prepared_data() {
    let place = Place::new();
    let auto = "--set model.tables.a.rows=\"auto\" --set model.tables.b.rows=\"auto\"";
    let keys = format!("--set data.ids.mode=exact {auto}");
    place.done(&format!("data convert train.csv --config job.toml {keys} --output prepared"));
    place.done(&format!("train job.toml {keys} --train prepared --run run"));
    place.done("checkpoint export run --to torchrec weights");
    let import = format!("checkpoint import weights --from torchrec --config job.toml {keys}");
    let refused = place.run(&format!("{import} --run none"));
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("rows"), "{}", refused.stderr);
    place.done(&format!("{import} --run back --data prepared"));
    let scores = place.done("score back train.csv").stdout;
    assert_eq!(scores, place.done("score run train.csv").stdout);
}

#[test]
fn all_commands_show_the_same_size_of_a_checkpoint() {
    let place = trained();
    let folder = list(&place).pop().unwrap();
    let files = fs::read_dir(&folder).unwrap();
    let bytes: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    let path = folder.display();
    let verified = place.done(&format!("checkpoint verify {path} --format json")).last();
    assert_eq!(verified[0]["bytes"], bytes);
    assert_eq!(place.done(&format!("checkpoint info {path} --format json")).last()["bytes"], bytes);
    let ran = place.done("train job.toml --train train.csv --run again --format json");
    let is_save = |line: &&serde_json::Value| line["event"] == "checkpoint";
    let saved = ran.lines().iter().rfind(is_save).unwrap()["bytes"].clone();
    assert_eq!(saved, bytes);
}

fn trained() -> Place {
    let place = Place::new();
    place.done("train job.toml --train train.csv --run run");
    place
}

fn list(place: &Place) -> Vec<PathBuf> {
    let entries = fs::read_dir(place.path("run/checkpoints")).unwrap();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}
