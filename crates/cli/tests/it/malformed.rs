//! Issue 23, item 2: a command must fail if more than a few rows cannot be read, or if nothing can
//! be learned from them.

use std::fmt::Write as _;
use std::fs;

use testkit::ProgramOutput;

use crate::fixture::{Place, ROWS};

/// Writes `bad.csv`, a copy of `train.csv` in which only every row with an index divisible by
/// `keep` is well-formed.
fn damaged(place: &Place, keep: usize) {
    let text = fs::read_to_string(place.path("train.csv")).unwrap();
    let mut damaged = String::new();
    for (row, line) in text.lines().enumerate() {
        if row % keep == 0 {
            writeln!(damaged, "{line}").unwrap();
        } else {
            writeln!(damaged, "{}", line.replacen(',', ",x", 1)).unwrap();
        }
    }
    fs::write(place.path("bad.csv"), damaged).unwrap();
}

/// Runs a command that must fail because of too many malformed rows, and must leave no files
/// behind.
fn refused(place: &Place, words: &str) -> ProgramOutput {
    let before = place.names("");
    let ran = place.run(words);
    assert_eq!(ran.code, Some(1), "rowmill {words}\n{}\n{}", ran.stdout, ran.stderr);
    for part in [
        "of 4,000 rows are malformed (",
        "expected at most 1 %",
        "most often (",
        "times): column \"u\": expected a number\n",
        "first examples:\n",
        "bad.csv:2: column \"u\": expected a number, got \"x",
        "hint:",
        "--malformed-max",
    ] {
        assert!(ran.stderr.contains(part), "rowmill {words}: no {part:?} in\n{}", ran.stderr);
    }
    assert_eq!(ran.stderr.matches("bad.csv:").count(), 10, "{}", ran.stderr);
    assert_eq!(place.names(""), before, "rowmill {words}");
    ran
}

#[test]
fn too_many_malformed_rows_fail_every_command_and_leave_no_output() {
    let place = Place::new();
    for keep in [2, 400] {
        damaged(&place, keep);
        refused(&place, "train job.toml --train bad.csv --run r");
        refused(&place, "train job.toml --train bad.csv --run r --format json");
        refused(&place, "train job.toml --train bad.csv --run r --set data.ids.mode=exact");
        refused(&place, "data convert bad.csv --config job.toml --out out");
        refused(&place, "data stats bad.csv --config job.toml");
    }
    place.done("train job.toml --train train.csv --run run --set epochs=1");
    refused(&place, "eval run --data bad.csv");
    refused(&place, "score run bad.csv --output scores.txt");
    let ran = place.run("score run bad.csv");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let ran = place.run("train job.toml --train train.csv --evaluation bad.csv --run s");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("of 4,000 rows are malformed ("), "{}", ran.stderr);
    assert!(!place.path("s/checkpoints").exists());
}

#[test]
fn malformed_max_sets_the_tolerated_share_of_malformed_rows() {
    let place = Place::new();
    damaged(&place, 2);
    let words = "data convert bad.csv --config job.toml --out";
    let ran = place.done(&format!("{words} half --malformed-max 51%"));
    assert!(ran.stderr.contains("left out 2,000 malformed of 4,000 rows (50 %)"), "{}", ran.stderr);
    assert!(ran.stderr.contains("Most often (2,000 times): column \"u\""), "{}", ran.stderr);
    for (max, code) in [("0.49", 1), ("49%", 1), ("0.5", 0), ("1", 2), ("-1%", 2), ("many", 2)] {
        let ran = place.run(&format!("{words} out{code}{max} --malformed-max={max}"));
        assert_eq!(ran.code, Some(code), "{max}: {}", ran.stderr);
    }
    // The run does not remember `--malformed-max`, so the option must be given again.
    let train = "train job.toml --run r --set epochs=1";
    place.done(&format!("{train} --train bad.csv --malformed-max 0.5"));
    fs::remove_dir_all(place.path("r/checkpoints")).unwrap();
    assert_eq!(place.run(&format!("{train} --train bad.csv")).code, Some(1));
    let ran = place.run(&format!("{train} --train half"));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("2,000 of 4,000 rows are malformed"), "{}", ran.stderr);
}

#[test]
fn one_malformed_row_is_tolerated_unless_malformed_max_is_0_or_strict() {
    let place = Place::new();
    let text = fs::read_to_string(place.path("train.csv")).unwrap();
    let few: Vec<&str> = text.lines().take(21).collect();
    fs::write(place.path("few.csv"), format!("{}\nbad,1,2,3,k\n", few.join("\n"))).unwrap();
    place.done("data convert few.csv --config job.toml --out a");
    for option in ["--malformed-max 0", "--strict"] {
        let ran = place.run(&format!("data convert few.csv --config job.toml --out b {option}"));
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains("few.csv:22: column \"y\""), "{}", ran.stderr);
        assert!(!place.path("b").exists() && !place.path("b.partial").exists());
    }
    fs::write(place.path("few.csv"), format!("{}\nbad,1\nbad,2\n", few.join("\n"))).unwrap();
    assert_eq!(place.run("data convert few.csv --config job.toml --out b").code, Some(1));
}

#[test]
fn training_fails_if_ids_too_large_for_an_integer_make_most_rows_malformed() {
    let place = Place::new();
    let mut text = "y,u,v,a,b\n1,0.5,2,7,k1\n".to_owned();
    (0..1999).for_each(|row| text += &format!("{},1,2,1{row:020},k1\n", row % 2));
    fs::write(place.path("large.csv"), text).unwrap();
    let ran = place.run("train job.toml --train large.csv --run r");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("1,999 of 2,000 rows are malformed (99.95 %)"), "{}", ran.stderr);
    assert!(ran.stderr.contains("column \"a\": expected an integer"), "{}", ran.stderr);
    assert!(!place.path("r").exists());
}

#[test]
fn labels_of_one_value_stop_before_training() {
    let place = Place::new();
    let train = "train job.toml --train train.csv --run r";
    let check = |words: &str, expected: &[&str]| {
        let ran = place.run(words);
        assert_eq!(ran.code, Some(1), "{}\n{}", ran.stdout, ran.stderr);
        for part in expected {
            assert!(ran.stderr.contains(part), "no {part:?} in\n{}", ran.stderr);
        }
        assert!(!place.path("r/checkpoints").exists());
    };
    let positive = "--set data.label.positive=[\"click\",\"yes\"]";
    let never = ["all 3200 training rows have the label 0", "data.label.positive (click, yes)"];
    check(&format!("{train} {positive}"), &never);
    let always = ["all 3200 training rows have the label 1", "every row's label is one of"];
    check(&format!("{train} --set data.label.positive=[\"0\",\"1\"]"), &always);
    check(&format!("{train} {positive} --set loss=mse"), &never);
    // The rows are sorted by label and the last rows are held out, so all held-out labels are
    // equal.
    let text = fs::read_to_string(place.path("train.csv")).unwrap();
    let (head, rows) = text.split_once('\n').unwrap();
    let (ones, zeros): (Vec<&str>, Vec<&str>) = rows.lines().partition(|row| row.starts_with('1'));
    let zeros = &zeros[..ones.len() / 5];
    let sorted = format!("{head}\n{}\n{}\n", ones.join("\n"), zeros.join("\n"));
    fs::write(place.path("train.csv"), sorted).unwrap();
    check(train, &["training rows have the label 1", "shuffle them"]);
}

#[test]
fn batches_larger_than_the_data_and_models_worse_than_the_mean_are_warned_about() {
    let place = Place::new();
    let ran = place.done("train job.toml --train train.csv --run r --set batch_size=100000");
    assert!(ran.stderr.contains("larger than the training data"), "{}", ran.stderr);
    let ran = place.done("train job.toml --train train.csv --run run");
    assert!(!ran.stderr.contains("warning"), "{}", ran.stderr);
    let text = fs::read_to_string(place.path("train.csv")).unwrap();
    let flip = |line: &str| match line.split_at(1) {
        ("0", rest) => format!("1{rest}\n"),
        ("1", rest) => format!("0{rest}\n"),
        _ => format!("{line}\n"),
    };
    fs::write(place.path("flipped.csv"), text.lines().map(flip).collect::<String>()).unwrap();
    let expected = "is above 1: the model predicts worse";
    let ran = place.done("eval run --data flipped.csv");
    assert!(ran.stderr.contains(expected), "{}", ran.stderr);
    let ran = place.done("train job.toml --train train.csv --evaluation flipped.csv --run q");
    assert!(ran.stderr.contains(expected), "{}", ran.stderr);
    assert_eq!(place.done("eval run --format json").last()["evaluation"]["samples"], ROWS / 5);
}
