//! `checkpoint info`, `verify`, `export`, `import`, and what a damaged checkpoint does to a run.

use std::fs;
use std::path::PathBuf;

use crate::fixture::{Place, damage};

#[test]
fn info_and_verify_of_a_run() {
    let place = trained();
    let info = place.done("checkpoint info run --format json").last();
    assert_eq!((info["tables"].as_u64(), info["table_rows"].as_u64()), (Some(2), Some(70)));
    let ran = place.done("checkpoint verify run");
    assert_eq!(ran.stdout.matches("whole").count(), 3, "{}", ran.stdout);
}

#[test]
fn exported_weights_come_back_the_same() {
    let place = Place::new();
    // facebookresearch/dlrm knows no mean pooling.
    let sum = r#"--set model.tables=[{name="a",rows=50,dim=4},{name="b",rows=20,dim=4}]"#;
    place.done(&format!("train job.toml --train train.csv --run run {sum}"));
    for to in ["torch", "torchrec"] {
        let (out, run) = (format!("{to}.safetensors"), format!("back-{to}"));
        place.done(&format!("checkpoint export run --to {to} {out}"));
        let data = fs::read_dir(place.path("run/data")).unwrap().next().unwrap().unwrap().path();
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
fn training_goes_on_from_exported_weights_and_states() {
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

#[test]
fn a_checkpoint_of_another_run_is_not_gone_on_from() {
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
fn a_run_without_a_whole_checkpoint_says_so() {
    let place = trained();
    for folder in list(&place) {
        damage(&folder);
    }
    let ran = place.run("score run train.csv");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("expected a whole checkpoint, found 3 damaged"), "{ran:?}");
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
