use fleet::proto::{Body, RunReport};
use serde_json::Value;

use super::{AGAIN_S, ClusterEntry, ClusterHistory, ClusterState, gpus_in};

/// Answers in the format of Slurm 22.05.
const JOBS: &str = r#"{"meta": {}, "jobs": [
  {"job_id": 1, "job_state": "RUNNING", "exit_code": 0, "start_time": 100, "end_time": 999999,
   "user_name": "ada", "account": "ads", "name": "train", "partition": "p", "tasks": 16,
   "array_job_id": 0, "array_task_id": null, "node_count": 2, "tres_req_str": "cpu=1"},
  {"job_id": 2, "job_state": "PENDING", "exit_code": 0, "start_time": 500, "end_time": 900,
   "user_name": "eve", "account": "", "name": "big", "partition": "p", "tasks": 2,
   "node_count": 2, "tres_per_node": "gres:gpu:4", "tres_req_str": "cpu=2,mem=200M,node=2"},
  {"job_id": 3, "job_state": "FAILED", "exit_code": 768, "start_time": 100, "end_time": 200,
   "user_name": "eve", "account": "", "name": "x", "partition": "p", "tasks": 1,
   "array_job_id": 70, "array_task_id": 4, "node_count": 1, "tres_req_str": "cpu=1"}]}"#;
/// The same jobs in the format of Slurm 24.05, in which the third one was killed by a signal.
const NEWER_JOBS: &str = r#"{"jobs": [
  {"job_id": 1, "job_state": ["RUNNING"], "start_time": {"set": true, "infinite": false, "number": 100},
   "end_time": {"set": true, "infinite": false, "number": 999999}, "user_name": "ada",
   "account": "ads", "name": "train", "partition": "p", "tasks": {"set": true, "number": 16},
   "exit_code": {"status": ["SUCCESS"], "return_code": {"set": true, "number": 0},
                 "signal": {"id": {"set": false, "number": 0}, "name": ""}}},
  {"job_id": 2, "job_state": ["PENDING"], "partition": "p", "tres_req_str": "cpu=2,gres/gpu=8"},
  {"job_id": 3, "job_state": ["FAILED", "COMPLETING"], "partition": "p", "user_name": "eve",
   "start_time": {"set": true, "number": 100}, "end_time": {"set": true, "number": 200},
   "exit_code": {"status": ["SIGNALED"], "return_code": {"set": false, "number": 0},
                 "signal": {"id": {"set": true, "number": 9}, "name": "KILL"}}}]}"#;
const NODES: &str = r#"{"nodes": [
  {"name": "n1", "state": "idle", "state_flags": ["DRAIN"], "reason": "fan", "gres": "gpu:h100:4",
   "gres_used": "gpu:h100:2(IDX:0-1)"}]}"#;

fn parse(jobs: &str) -> ClusterState {
    ClusterState::parse(jobs.as_bytes(), NODES.as_bytes()).unwrap()
}

fn runs(entries: &[ClusterEntry]) -> Vec<&RunReport> {
    let run = |entry: &'_ ClusterEntry| matches!(entry.body, Body::Run(_));
    let runs = entries.iter().filter(|entry| run(entry));
    runs.map(|entry| if let Body::Run(run) = &entry.body { &**run } else { panic!() }).collect()
}

fn details(entries: &[ClusterEntry], kind: &str) -> (String, Value) {
    let found = entries.iter().find_map(|entry| match &entry.body {
        Body::Event(event) if event.kind == kind => Some((entry.host.clone(), &event.details)),
        _ => None,
    });
    let (host, details) = found.unwrap();
    (host, serde_json::from_str(details).unwrap())
}

#[test]
fn jobs_and_nodes_of_several_versions_are_understood() {
    for (jobs, exit) in [(JOBS, (Some(3), None)), (NEWER_JOBS, (None, Some(9)))] {
        let entries = ClusterHistory::default().report(&parse(jobs), "main", 1000);
        let runs = runs(&entries);
        assert_eq!(runs.len(), 2, "a job that waits is not a run");
        let run = runs[0].run.as_ref().unwrap();
        assert_eq!(
            [&run.scheduler, &run.job, &run.user, &run.account],
            ["slurm", "1", "ada", "ads"]
        );
        assert_eq!(
            (runs[0].started_unix_s, runs[0].ended_unix_s, runs[0].ranks),
            (100, None, Some(16))
        );
        assert_eq!(
            (runs[0].seen_unix_s, runs[0].exit_code, runs[0].state.as_str()),
            (1000, None, "running")
        );
        assert_eq!((runs[1].exit_code, runs[1].exit_signal), exit);
        assert_eq!((runs[1].ended_unix_s, runs[1].state.as_str()), (Some(200), "failed"));
        let (cluster, demand) = details(&entries, "demand");
        assert_eq!((cluster.as_str(), &demand["pending"]["p"]["gpus"]), ("main", &8.into()));
        let (host, node) = details(&entries, "node");
        assert_eq!(
            (host.as_str(), node["gpus"].as_u64(), node["gpus_used"].as_u64()),
            ("n1", Some(4), Some(2))
        );
        assert_eq!(node["state"], serde_json::json!(["idle", "drain"]), "{node}");
    }
    let array = ClusterHistory::default().report(&parse(JOBS), "main", 1000);
    assert_eq!(runs(&array)[1].alias, "70_4");
    for wrong in ["", "[]", "{}", r#"{"jobs": [{"job_id": -1}]}"#] {
        let error = ClusterState::parse(wrong.as_bytes(), NODES.as_bytes()).unwrap_err();
        assert!(error.starts_with("squeue: expected Slurm's JSON"), "{error}");
    }
}

#[test]
fn unchanged_jobs_and_nodes_are_reported_once_an_hour() {
    let mut history = ClusterHistory::default();
    assert_eq!(history.report(&parse(JOBS), "main", 1000).len(), 4);
    assert_eq!(history.report(&parse(JOBS), "main", 1060), []);
    let ended = JOBS.replace("RUNNING", "TIMEOUT");
    let changed = history.report(&parse(&ended), "main", 1120);
    assert_eq!((changed.len(), runs(&changed)[0].state.as_str()), (1, "timeout"));
    assert_eq!(history.report(&parse(&ended), "main", 1000 + AGAIN_S).len(), 3);
}

#[test]
fn gpus_of_lists_are_added_up() {
    let cases = [
        ("", 0),
        ("gpu:h100:4", 4),
        ("gres:gpu:2", 2),
        ("gres/gpu=3", 3),
        ("gpu", 1),
        ("gpu:h100:4(S:0,1),gpu:a100:2,shard:8", 6),
        ("gpu:h100:2(IDX:0,2)", 2),
        ("N/A", 0),
    ];
    for (list, gpus) in cases {
        assert_eq!(gpus_in(list), gpus, "{list}");
    }
}
