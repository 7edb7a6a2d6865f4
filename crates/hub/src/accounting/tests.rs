//! Tests with output of `sacct` 22.05.8 of Debian 12, recorded from a cluster of one node with
//! `slurmdbd` and MariaDB 10.11, by the arguments of [`EndedAttempt::ask`] and the delimiter `~`.

use fleet::proto::{Body, RunReport};
use serde_json::Value;

use super::{AccountingHistory, EndedAttempt, OVERLAP_S, parse};
use crate::slurm::ClusterEntry;

/// A node failed during job 4, which then reached its time limit, and during job 9, which may not
/// be requeued. A user requeued job 5. Job 10 was cancelled while it waited.
const RECORDED: &str = "\
1~1~FAILED~3:0~1795880629~1795880629~root~root~p~fails
2~2~FAILED~0:9~1795880629~1795880629~root~root~p~killed
3~3~COMPLETED~0:0~1795880632~1795880632~root~root~p~ok|x
y
4~4~NODE_FAIL~0:0~1795880632~1795880711~root~root~p~late
5~5~REQUEUED~5:0~1795880635~1795880645~root~root~p~requeued
6~6~CANCELLED by 0~0:0~1795880640~1795880647~root~root~p~cancelled
8~7_3~COMPLETED~0:0~1795880647~1795880648~root~root~p~arr
7~7_4~COMPLETED~0:0~1795880648~1795880648~root~root~p~arr
5~5~FAILED~5:0~1795880801~1795880806~root~root~p~requeued
9~9~NODE_FAIL~0:0~1795880682~1795880711~root~root~p~dies
4~4~TIMEOUT~0:0~1795880832~1795880921~root~root~p~late
10~10~CANCELLED by 0~0:0~1795880912~1795880912~root~root~p~never
";

fn attempts() -> Vec<EndedAttempt> {
    parse(RECORDED, "~").unwrap()
}

fn runs(entries: &[ClusterEntry]) -> Vec<&RunReport> {
    let run = |entry: &'_ ClusterEntry| matches!(entry.body, Body::Run(_));
    let runs = entries.iter().filter(|entry| run(entry));
    runs.map(|entry| if let Body::Run(run) = &entry.body { &**run } else { panic!() }).collect()
}

/// Lists the job, the begin and the length in milliseconds, and the state of each requeue.
fn requeues(entries: &[ClusterEntry]) -> Vec<(String, u64, u64, Value)> {
    let event = |entry: &ClusterEntry| match &entry.body {
        Body::Event(event) => {
            let details: Value = serde_json::from_str(&event.details).unwrap();
            let job = event.run.as_ref().unwrap().job.clone();
            Some((job, event.start_unix_ms, event.length_ms, details["state"].clone()))
        }
        _ => None,
    };
    entries.iter().filter_map(event).collect()
}

#[test]
fn ends_of_jobs_have_states_and_exit_codes() {
    let entries = AccountingHistory::default().report(attempts(), "main", 1_795_881_000);
    assert!(entries.iter().all(|entry| entry.host == "main"));
    let ends: Vec<_> = runs(&entries)
        .into_iter()
        .map(|run| {
            let job = run.run.as_ref().unwrap().job.as_str();
            (job, run.state.as_str(), run.exit_code, run.exit_signal, run.alias.as_str())
        })
        .collect();
    let expected = [
        ("1", "failed", Some(3), None, ""),
        ("2", "failed", Some(0), Some(9), ""),
        ("3", "completed", Some(0), None, ""),
        ("4", "timeout", Some(0), None, ""),
        ("5", "failed", Some(5), None, ""),
        ("6", "cancelled", Some(0), None, ""),
        ("7", "completed", Some(0), None, "7_4"),
        ("8", "completed", Some(0), None, "7_3"),
        ("9", "node_fail", Some(0), None, ""),
    ];
    assert_eq!(ends, expected);
    let third = runs(&entries)[2];
    assert_eq!(third.workflow, "ok|x\ny", "a user chose this name");
    assert_eq!((third.seen_unix_s, third.ended_unix_s), (1_795_880_632, Some(1_795_880_632)));
}

#[test]
fn attempts_before_a_requeue_are_events() {
    let entries = AccountingHistory::default().report(attempts(), "main", 1_795_881_000);
    let expected = [
        ("4".to_owned(), 1_795_880_632_000, 79_000, "node_fail".into()),
        ("5".to_owned(), 1_795_880_635_000, 10_000, "requeued".into()),
    ];
    assert_eq!(requeues(&entries), expected);
}

#[test]
fn each_end_is_stored_once_and_a_later_attempt_adds_another() {
    let mut history = AccountingHistory::default();
    assert_eq!(history.span_s(5000, 700), 700);
    let first = |attempt: &EndedAttempt| attempt.job != "4" || attempt.state == "node_fail";
    let early = attempts().into_iter().filter(first).collect();
    let entries = history.report(early, "main", 1_795_880_720);
    assert!(runs(&entries).iter().any(|run| run.state == "node_fail"));
    assert_eq!(requeues(&entries).len(), 1, "whether job 4 starts again is not known yet");
    let entries = history.report(attempts(), "main", 1_795_881_000);
    assert_eq!((runs(&entries).len(), runs(&entries)[0].state.as_str()), (1, "timeout"));
    assert_eq!(requeues(&entries)[0].0, "4");
    assert_eq!(history.report(attempts(), "main", 1_795_881_100), []);
    assert_eq!(history.span_s(1_795_881_400, 700), 300 + OVERLAP_S);

    // The controller has reported these ends already.
    let mut history = AccountingHistory::default();
    let mut other = AccountingHistory::default();
    history.add_reported(&other.report(attempts(), "main", 1_795_881_000));
    assert_eq!(runs(&history.report(attempts(), "main", 1_795_881_000)), Vec::<&RunReport>::new());
}

#[test]
fn output_with_other_columns_is_refused() {
    let error = parse("1~1~FAILED", "~").unwrap_err();
    assert_eq!(error, "sacct: expected 10 columns, got 3");
    assert_eq!(parse("", "~").unwrap(), []);
    let unknown = "1~1~NODE_FAIL~0:0~None~1795880632~root~root~p~x";
    assert_eq!(parse(unknown, "~").unwrap(), [], "a job that never started is not a run");
}
