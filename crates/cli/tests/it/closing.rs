//! Tests of the end of a run: rows for validation choose the best checkpoint, other rows test it
//! once, and baselines stand beside it.

use std::fmt::Write as _;

use crate::fixture::{Place, ROWS};

const TRAIN: &str = "train job.toml --train train.csv --run run --format json --set epochs=6 \
                     --set optimizer.sparse.learning_rate=0.5 --set evaluate_every=50 \
                     --set keep_best=auc --set validation=0.2 --set hold_out=0.1 \
                     --set baselines=true";

#[test]
fn validation_rows_choose_the_checkpoint_that_other_rows_test() {
    let place = Place::new();
    let ran = place.done(TRAIN);
    let lines = ran.lines();
    let evaluations: Vec<_> = lines.iter().filter(|line| line["event"] == "evaluation").collect();
    assert!(evaluations.len() > 3);
    for line in evaluations {
        assert_eq!(line["evaluation"]["samples"], ROWS / 5, "{line}");
    }
    let finished = ran.last();
    let closing = &finished["closing"];
    assert_eq!(closing["step"], finished["best"]["step"], "{finished}");
    assert_eq!(closing["validation"]["auc"], finished["best"]["figure"], "{finished}");
    assert_eq!(closing["test"]["samples"], ROWS / 10, "{finished}");
    // The test rows are those that `rowmill eval` evaluates, on the same checkpoint.
    let eval = place.done("eval run --format json").last();
    assert_eq!(eval["evaluation"]["auc"], closing["test"]["auc"], "{eval}");
    assert_eq!(eval["step"], closing["step"], "{eval}");
    // Another session evaluates the same checkpoint again.
    let again = place.done("train --resume --run run --format json").last();
    for part in ["step", "test", "baselines"] {
        assert_eq!(again["closing"][part], closing[part], "{part}");
    }
    assert_eq!(again["closing"]["validation"]["auc"], closing["validation"]["auc"]);
    let report = place.done("report run");
    assert!(report.stderr.contains("report.html") || report.stdout.contains("report.html"));
    let page = std::fs::read_to_string(place.path("run/report.html")).unwrap();
    assert!(page.contains("\"logistic_regression\":{"), "the page has no baselines");
}

#[test]
fn validation_rows_are_the_newest_before_the_test_rows() {
    let place = Place::new();
    let mut text = "y,time,a\n".to_owned();
    // The times are not in the order of the rows, and the label of a row follows its time.
    for row in 0..1000_u64 {
        let time = row * 7 % 1000;
        let label = u64::from(time % 3 == 0 || (800..900).contains(&time));
        writeln!(text, "{label},{},{}", 1_700_000_000 + 60 * time, time % 5).unwrap();
    }
    place.write("times.csv", text);
    place.done("init times.csv --label y");
    let ran = place.done("train times.toml --run times --format json --set epochs=1");
    let closing = &ran.last()["closing"];
    // Only the rows for validation have the label 1 alone.
    assert_eq!(closing["validation"]["normalized_entropy"], serde_json::Value::Null, "{closing}");
    assert_eq!(closing["validation"]["samples"], 100, "{closing}");
    assert_eq!(closing["test"]["samples"], 100, "{closing}");
    assert!(closing["test"]["normalized_entropy"].is_number(), "{closing}");
}

#[test]
fn the_summary_shows_the_best_checkpoint_beside_baselines() {
    let place = Place::new();
    let ran = place.done(&TRAIN.replace(" --format json", ""));
    let summary = &ran.stdout;
    for part in ["the best checkpoint, of step", "on test rows", "validation AUC", "test AUC"] {
        assert!(summary.contains(part), "no {part:?} in\n{summary}");
    }
    let figures = |model: &str| -> Vec<f64> {
        let line = summary.lines().find(|line| line.contains(model)).unwrap();
        line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    assert_eq!(figures("base rate")[0], 0.5);
    assert!(figures("logistic regression")[0] > 0.52, "{summary}");
    assert_eq!(figures("this model").len(), 4);
}

#[test]
fn shares_that_leave_no_training_rows_are_errors() {
    let place = Place::new();
    let words = "train job.toml --train train.csv --set validation=0.6 --set hold_out=0.4";
    place.refused(words, &["data.validation", "expected less than 1"]);
    let words = "train job.toml --train train.csv --set validation=1.5";
    place.refused(words, &["data.validation", "expected a share in [0, 1)"]);
}
