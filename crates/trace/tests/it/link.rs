//! Tests the links between execution traces and Kineto traces, on public pairs, on rowmill's own
//! traces and on generated ones.

use trace::execution_trace::{self, ExecutionTrace};
use trace::link::{self, LinkMethod, TraceLink};
use trace::open::{self, ReadRequest};
use trace::store::{EventKind, Job, NewSlice, Trace};

use crate::execution_trace_read::traces;
use crate::recording::{all_ops, info, regular};
use crate::trace_path;

pub fn kineto(name: &str) -> Option<Job> {
    let paths = vec![trace_path(name)?];
    Some(open::read(&ReadRequest { paths, threads: 1 }).unwrap())
}

fn names_agree(execution: &ExecutionTrace, trace: &Trace, link: &TraceLink) -> bool {
    let all = link.repetitions.iter().chain([&link.rows]);
    all.into_iter().all(|rows| {
        let pairs = execution.nodes.iter().zip(rows);
        pairs.filter_map(|(node, row)| Some((node, (*row)?))).all(|(node, row)| {
            matches!(trace.kind(row), EventKind::Operator | EventKind::Annotation)
                && execution.name(node) == trace.name(row)
        })
    })
}

#[test]
fn every_dlrm_node_is_linked() {
    let executions = traces("dlrm8/dlrm_pytorch_et.tar.gz");
    let Some(job) = kineto("dlrm8/dlrm_kineto.tar.gz") else { return };
    assert_eq!(executions.len(), 8);
    for (execution, trace) in executions.iter().zip(&job.traces) {
        let link = link::join(execution, trace);
        assert_eq!(link.method, LinkMethod::Order);
        assert!(names_agree(execution, trace, &link));
        let counts: Vec<[u64; 4]> =
            link.threads.iter().map(|t| [t.thread, t.nodes, t.rows, t.matched]).collect();
        assert_eq!(counts, [[1, 988, 988, 988], [2, 684, 684, 684]]);
        assert_eq!((link.node_score(), link.row_score()), (Some(1.0), Some(1.0)));
        assert!(link.repetitions.is_empty());
        // The main thread's id equals the process id.
        let track = link.threads[0].track.unwrap();
        let tid = trace.tracks[track.0 as usize].tid.number();
        assert_eq!(tid, trace.tracks[track.0 as usize].pid.number());
    }
}

#[test]
fn every_linear_node_is_linked_in_39_of_40_iterations() {
    let executions = traces("linear/linear_et.json.gz");
    let Some(job) = kineto("linear/linear_kineto.json.gz") else { return };
    let (execution, trace) = (&executions[0], &job.traces[0]);
    let link = link::join(execution, trace);
    assert_eq!(link.method, LinkMethod::Order);
    assert!(names_agree(execution, trace, &link));
    let counts: Vec<[u64; 4]> =
        link.threads.iter().map(|t| [t.thread, t.nodes, t.rows, t.matched]).collect();
    assert_eq!(counts, [[1, 311, 311, 311], [2, 617, 617, 617]]);
    assert_eq!(link.repetitions.len() + 1, 39);
    // A row must not be linked to two nodes or in two iterations.
    let all = link.repetitions.iter().chain([&link.rows]).flatten().flatten();
    let mut rows: Vec<u32> = all.copied().collect();
    assert_eq!(rows.len(), 39 * 928);
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rows.len(), 39 * 928);
    // The backward operators must be in the same iteration as their forward operators.
    for rows in link.repetitions.iter().chain([&link.rows]) {
        let starts = |thread: u64| {
            let nodes = execution.nodes.iter().zip(rows);
            let rows = nodes.filter(|(node, _)| node.thread == thread).filter_map(|(_, row)| *row);
            let starts: Vec<i64> = rows.map(|row| trace.slices.start(row)).collect();
            (*starts.iter().min().unwrap(), *starts.iter().max().unwrap())
        };
        let (main, backward) = (starts(1), starts(2));
        assert!(main.0 < backward.0 && backward.1 < main.1);
    }
}

#[test]
fn our_own_traces_are_linked_by_record_function() {
    let recorder = regular(info(), 3, 25);
    let folder = tempfile::tempdir().unwrap();
    let (kineto, execution) = (folder.path().join("k.json"), folder.path().join("e.json"));
    recorder.write_kineto(&kineto).unwrap();
    recorder.write_execution_trace(11, &execution).unwrap();
    let execution = execution_trace::read(&execution).unwrap().remove(0);
    let trace = open::parse(&std::fs::read(&kineto).unwrap()).unwrap();
    let link = link::join(&execution, &trace);
    assert_eq!(link.method, LinkMethod::RecordFunction);
    assert!(names_agree(&execution, &trace, &link));
    assert_eq!(link.threads[0].matched, all_ops().len() as u64 + 1);
    assert_eq!(link.node_score(), Some(1.0));
}

/// Creates an execution trace with these names on thread 1.
fn execution(names: &[&str]) -> ExecutionTrace {
    let nodes: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(at, name)| {
            format!(
                r#"{{"id": {}, "name": "{name}", "parent": 1, "tid": 1, "rf_id": {}}}"#,
                at + 2,
                at + 1
            )
        })
        .collect();
    let root = r#"{"id": 1, "name": "[pytorch|profiler|execution_trace|process]", "parent": 1}"#;
    let text = format!(r#"{{"schema": "1.0.1", "nodes": [{}, {root}]}}"#, nodes.join(", "));
    execution_trace::read_text(text.as_bytes()).unwrap()
}

/// Creates a trace with these names on one thread, 10 ns apart.
fn rows(names: &[&str]) -> Trace {
    let mut trace = Trace::default();
    for (at, name) in names.iter().enumerate() {
        let start = 10 * at as i64;
        trace.push(&NewSlice::new("cpu_op", name, (7, 8), (start, start + 5)));
    }
    trace
}

/// Links nodes to events, both given by their names, and checks the row of each node.
fn check(nodes: &str, events: &str, expected: &[Option<u32>]) {
    let nodes: Vec<&str> = nodes.split_whitespace().collect();
    let events: Vec<&str> = events.split_whitespace().collect();
    let link = link::join(&execution(&nodes), &rows(&events));
    assert_eq!(link.rows[..nodes.len()], *expected, "{nodes:?} in {events:?}");
}

#[test]
fn unequal_sequences_are_aligned() {
    check("a b c d e", "x a b c d e y", &[Some(1), Some(2), Some(3), Some(4), Some(5)]);
    check("a b c d e", "x a b q c e y", &[Some(1), Some(2), Some(4), None, Some(5)]);
    check("a b c d e", "b c d e", &[None, Some(0), Some(1), Some(2), Some(3)]);
    check("a b c", "x y z", &[None, None, None]);
    check("a", "", &[None]);
    check("ProfilerStep#3 a", "ProfilerStep#41 a", &[Some(0), Some(1)]);
    check("a a b", "a b a a b", &[Some(2), Some(3), Some(4)]);
}

#[test]
fn empty_traces_have_no_links() {
    let link = link::join(&execution(&[]), &rows(&[]));
    assert_eq!((link.node_score(), link.row_score()), (None, None));
    assert!(link.rows.iter().all(Option::is_none));
}

/// Generates a long sequence of names with few repeated runs.
fn long(length: usize, seed: u64) -> Vec<String> {
    let mut state = seed;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            format!("op{}", (state >> 33) % 40)
        })
        .collect()
}

#[test]
fn modified_iteration_among_many_is_found() {
    let names = long(6_000, 1);
    let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    // In the second of three iterations, every 97th name is missing, and an extra name precedes
    // every 89th name. The other iterations are from another program.
    let mut events: Vec<&str> = Vec::new();
    let (before, after) = (long(6_000, 2), long(6_000, 3));
    events.extend(before.iter().map(String::as_str));
    let mut missing = 0;
    for (at, name) in nodes.iter().enumerate() {
        if at % 89 == 0 {
            events.push("other");
        }
        if at % 97 == 0 {
            missing += 1;
        } else {
            events.push(name);
        }
    }
    events.extend(after.iter().map(String::as_str));
    let link = link::join(&execution(&nodes), &rows(&events));
    let matched = link.threads[0].matched;
    assert!(matched >= 6_000 - missing, "{matched} of 6000, {missing} missing");
    let joined: Vec<u32> = link.rows.iter().flatten().copied().collect();
    assert!(joined.is_sorted());
    assert!(*joined.first().unwrap() > 5_900 && *joined.last().unwrap() < 12_200);
}
