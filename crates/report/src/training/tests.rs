use std::fmt::Write as _;

use schema::Figure;

use super::{About, RankPlacement, TableShape, TrainingOutcome, TrainingReport, build_report};

fn interval(step: u64, loss: f64) -> String {
    format!(
        r#"{{"event":"interval","step":{step},"epoch":0,"samples":{},"loss":{loss},"samples_per_second":100.0,"learning_rate":0.1,"input_wait_share":0.25}}"#,
        10 * step
    )
}

fn evaluation(step: u64, auc: f64, loss: f64, entropy: f64) -> String {
    format!(
        r#"{{"event":"evaluation","step":{step},"evaluation":{{"samples":50,"loss":{loss},"auc":{auc},"normalized_entropy":{entropy},"calibration":null,"accuracy":0.7}}}}"#
    )
}

fn report(lines: &[String]) -> TrainingReport {
    let table = TableShape { name: "a".to_owned(), rows: 100, dim: 12 };
    build_report(&lines.join("\n"), &About { tables: vec![table], ..About::default() })
}

#[test]
fn a_page_has_the_ranks_of_its_run() {
    let placement = Some(RankPlacement { ranks: 4, groups: 2, hosts: Some(1) });
    let about = About { placement, ..About::default() };
    assert_eq!(build_report("", &about).placement, placement);
}

#[test]
fn overfitting_is_reported() {
    let run = report(&[
        interval(10, 0.5),
        evaluation(10, 0.75, 0.55, 0.9),
        interval(20, 0.4),
        evaluation(20, 0.7, 0.6, 0.95),
        interval(30, 0.3),
        evaluation(30, 0.72, 0.65, 0.99),
    ]);
    assert_eq!(
        run.verdict.text,
        "Held-out AUC is best at step 10: 0.7500. 2 evaluations followed, none better; the last is \
         at 0.7200."
    );
    assert_eq!(
        run.verdict.detail.as_deref(),
        Some(
            "Since then the training loss fell from 0.5000 to 0.3000 while the held-out loss rose \
             from 0.5500 to 0.6500: the model overfits the training rows."
        )
    );
    assert_eq!((run.verdict.best_step, run.steps, run.samples), (Some(10), 30, 300));
    assert!((run.seconds - 3.0).abs() < 1e-9 && (run.input_wait_share - 0.25).abs() < 1e-9);
}

#[test]
fn best_step_depends_on_the_metric_of_the_run() {
    let lines = [evaluation(10, 0.75, 0.55, 0.9), evaluation(20, 0.75, 0.5, 0.8)].join("\n");
    let best = |figure| {
        let about = About { best_by: Some(figure), ..About::default() };
        build_report(&lines, &about).verdict.best_step
    };
    // Among equal values, the first one is the best.
    assert_eq!(best(Figure::Auc), Some(10));
    assert_eq!(best(Figure::NormalizedEntropy), Some(20));
    assert_eq!(best(Figure::Loss), Some(20));
}

#[test]
fn worse_than_the_base_rate_and_nothing_held_out() {
    let run = report(&[evaluation(10, 0.5, 0.7, 1.02)]);
    assert_eq!(run.verdict.outcome, TrainingOutcome::Worse);
    assert!(run.verdict.text.contains("1.0200, above 1"), "{}", run.verdict.text);
    let run = report(&[interval(10, 0.5)]);
    assert_eq!(run.verdict.outcome, TrainingOutcome::Unknown);
}

#[test]
fn unreadable_lines_are_counted_and_unknown_events_ignored() {
    let run = report(&[
        interval(10, 0.5),
        r#"{"event":"started","step":0}"#.to_owned(),
        r#"{"event":"tables","step":10,"tables":{"a":{"rows_changed":7,"row_norm":0.5},"b":{}}}"#
            .to_owned(),
        r#"{"event":"interval","step":20,"sam"#.to_owned(),
    ]);
    assert_eq!((run.lines_lost, run.intervals.len()), (1, 1));
    let [use_] = run.tables[0].uses[..] else { panic!("{:?}", run.tables) };
    assert_eq!((use_.step, use_.rows_changed), (10, 7));
    assert!((run.tables[0].drawn_norm - 0.2).abs() < 1e-12);
}

#[test]
fn thinned_points_keep_the_totals() {
    let mut lines = String::new();
    (1..=4000).for_each(|step| writeln!(lines, "{}", interval(step, step as f64)).unwrap());
    let run = build_report(&lines, &About::default());
    assert_eq!((run.lines_per_point, run.intervals.len()), (3, 1334));
    assert_eq!((run.intervals[0].step, run.intervals[0].loss), (3, 2.0));
    assert_eq!(run.intervals.last().unwrap().step, 4000);
    assert!((run.seconds - 400.0).abs() < 1e-6 && (run.samples_per_second - 100.0).abs() < 1e-9);
}

#[test]
fn a_page_has_the_figures_with_which_its_run_ended() {
    let figures = |auc: f64| {
        format!(
            r#"{{"samples":50,"loss":0.5,"auc":{auc},"normalized_entropy":null,"calibration":1.0,"accuracy":0.7}}"#
        )
    };
    let held_out = |auc| format!(r#""validation":{},"test":{}"#, figures(auc), figures(auc - 0.1));
    let closing = |auc| {
        format!(
            r#"{{"event":"closing","step":20,"closing":{{"step":20,"is_best":true,{},"baselines":{{"base_rate":{{{}}},"logistic_regression":null}}}}}}"#,
            held_out(auc),
            held_out(0.6)
        )
    };
    let run = report(&[evaluation(20, 0.7, 0.5, 0.9), closing(0.7), closing(0.8)]);
    let ended = run.closing.unwrap();
    assert_eq!((run.lines_lost, ended.step, ended.model.validation.auc), (0, 20, Some(0.8)));
    assert_eq!(ended.baselines.unwrap().base_rate.test.unwrap().auc, Some(0.5));
}
