//! Tests of resuming a run from its folder alone, of the best checkpoint, of patience, and of
//! metrics for programs.

use std::fs;
use std::path::Path;

use crate::fixture::Place;

/// Reads every file of a checkpoint except its manifest, which contains the command line.
pub fn tensors(checkpoint: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(checkpoint).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .map(|path| {
            (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap())
        })
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{}", checkpoint.display());
    files
}

#[test]
fn the_folder_of_a_run_is_enough_to_resume_it() {
    let place = Place::new();
    let job = "train job.toml --train train.csv --ranks 2 --sharding row";
    place.done(&format!("{job} --run whole --set steps=60"));
    place.done(&format!("{job} --run parts --set steps=30"));
    place.done("train --resume --run parts --set steps=60");
    let last = "checkpoints/step-000000000060";
    let (whole, parts) = (place.path("whole").join(last), place.path("parts").join(last));
    assert!(tensors(&whole) == tensors(&parts), "other bytes than without an interruption");
    let refused = place.run("train --resume --run parts --set model.tables.a.rows=40");
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("model.tables"), "{}", refused.stderr);
    let other = place.run("train --resume --run parts --set steps=90 --set batch_size=33");
    let text = "batch size: expected 32, got 33";
    assert!(other.code != Some(0) && other.stderr.contains(text), "{}", other.stderr);
    let nothing = place.run("train --resume --run nowhere");
    assert_eq!(nothing.code, Some(2), "{}", nothing.stderr);
    assert!(nothing.stderr.contains("hint: give the folder of a run"), "{}", nothing.stderr);
    let nobody = place.run("train --resume");
    assert!(nobody.stderr.contains("hint: rowmill train --resume --run RUN"), "{}", nobody.stderr);
}

#[test]
fn a_run_keeps_the_arithmetic_of_bf16_it_began_with() {
    let place = Place::new();
    let job = "train job.toml --train train.csv --set training.precision=bf16";
    let ran = place.done(&format!("{job} --run whole --set steps=20"));
    assert!(ran.stderr.contains("bf16: "), "{}", ran.stderr);
    place.done(&format!("{job} --run parts --set steps=10"));
    let record = place.path("parts/run.json");
    let text = fs::read_to_string(&record).unwrap();
    let products = ["widened", "vdpbf16ps"].map(|name| format!("\"bf16_products\": \"{name}\""));
    assert!(products.iter().any(|products| text.contains(products)), "{text}");
    place.done("train --resume --run parts --set steps=20");
    let last = "checkpoints/step-000000000020";
    assert!(tensors(&place.path("whole").join(last)) == tensors(&place.path("parts").join(last)));
    // The record is changed as if the run had begun on a CPU with the instruction VDPBF16PS.
    fs::write(&record, text.replace("widened", "vdpbf16ps")).unwrap();
    let resumed = place.run("train --resume --run parts --set steps=30");
    let has_pairs = fs::read_to_string("/proc/cpuinfo").unwrap().contains("avx512_bf16");
    if has_pairs {
        assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    } else {
        assert_eq!(resumed.code, Some(2), "{}", resumed.stderr);
        assert!(resumed.stderr.contains("expected a CPU that has it"), "{}", resumed.stderr);
    }
}

/// A run that overfits gets worse on held-out rows. The best checkpoint of such a run must be kept
/// and used.
#[test]
fn the_best_checkpoint_of_a_run_made_to_overfit_is_kept() {
    let place = Place::new();
    let words = "train job.toml --train train.csv --run run --format json --set epochs=40 \
                 --set optimizer.sparse.learning_rate=0.5 --set evaluate_every=50 \
                 --set keep_best=loss --set keep_checkpoints=1";
    let ran = place.done(words);
    let evaluations: Vec<(u64, f64)> = ran
        .lines()
        .iter()
        .filter(|line| line["event"] == "evaluation")
        .map(|line| (line["step"].as_u64().unwrap(), line["evaluation"]["loss"].as_f64().unwrap()))
        .collect();
    let best = evaluations.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    let last = evaluations.last().unwrap();
    assert!(best.1 < last.1, "it does not overfit: {evaluations:?}");
    let finished = ran.last();
    assert_eq!(finished["best"]["step"], best.0, "{finished}");
    assert_eq!(finished["best"]["figure"], best.1, "{finished}");
    let eval = place.done("eval run --format json");
    assert!(eval.stderr.contains("using the best checkpoint"), "{}", eval.stderr);
    assert_eq!(eval.last()["step"], best.0);
    assert_eq!(eval.last()["evaluation"]["loss"], best.1);
    let kept = fs::read_dir(place.path("run/checkpoints")).unwrap().count();
    assert_eq!(kept, 3, "the best, the newest and the name of the best");
}

#[test]
fn patience_ends_a_run_that_does_not_improve() {
    let place = Place::new();
    let words = "train job.toml --train train.csv --run run --format json --set epochs=40 \
                 --set optimizer.sparse.learning_rate=0.5 --set evaluate_every=50 \
                 --set keep_best=auc --set patience=3";
    let ran = place.done(words);
    let finished = ran.last();
    assert_eq!(finished["out_of_patience"], true, "{finished}");
    let (best, step) = (finished["best"]["step"].as_u64(), finished["step"].as_u64());
    assert_eq!(step.unwrap() - best.unwrap(), 150, "{finished}");
    // Resuming a run that patience has ended must not train further steps.
    let again = place.done("train --resume --run run --format json");
    assert_eq!(again.last()["step"], finished["step"]);
    let refused = place.run("train job.toml --train train.csv --set patience=3");
    assert!(refused.stderr.contains("keep_best and evaluate_every"), "{}", refused.stderr);
}

#[test]
fn metrics_files_continue_when_a_run_is_resumed() {
    let place = Place::new();
    let steps = |place: &Place| -> Vec<(String, u64)> {
        let text = fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
        text.lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .map(|line| {
                (line["event"].as_str().unwrap().to_owned(), line["step"].as_u64().unwrap())
            })
            .collect()
    };
    place.done("train job.toml --train train.csv --run run --set steps=60");
    let first = steps(&place);
    assert!(first.contains(&("interval".to_owned(), 20)), "{first:?}");
    assert!(first.contains(&("evaluation".to_owned(), 60)), "{first:?}");
    place.done("train --resume-from run/checkpoints/step-000000000050 --run run --set steps=80");
    let then = steps(&place);
    assert!(!then.contains(&("evaluation".to_owned(), 60)), "{then:?}");
    assert!(then.contains(&("evaluation".to_owned(), 80)), "{then:?}");
    assert_eq!(then.iter().filter(|line| **line == ("interval".to_owned(), 60)).count(), 1);
}

#[test]
fn evaluation_reports_auc_within_groups() {
    let place = Place::new();
    let ran = place.done(
        "train job.toml --train train.csv --run run --format json --set steps=60 --set auc_by=a",
    );
    let by_group = &ran.last()["evaluation"]["by_group"];
    assert!(by_group["auc"].as_f64().is_some_and(|auc| auc > 0.5), "{by_group}");
    assert!(by_group["groups"].as_u64().is_some_and(|groups| (2..=50).contains(&groups)));
    assert!(place.done("eval run").stdout.contains("AUC by group"));
    let refused = place.run("train job.toml --train train.csv --run other --set auc_by=u");
    assert!(refused.stderr.contains("training.auc_by"), "{}", refused.stderr);
}
