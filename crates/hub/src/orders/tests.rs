use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fleet::proto::{
    GpuRun, HostEvent, OrderState, ProcessState, SendOrder, TraceFileBytes, TracePart, VERSION,
    Wanted,
};
use testkit::Folder;
use xxhash_rust::xxh3::xxh3_64;

use super::limits::TraceLimits;
use super::{HubOrder, OrderBoard, OrderFailure, OrderWish};
use crate::access::HubCaller;
use crate::active_runs::ActiveRun;
use crate::store::StoreFolder;
use crate::tokens::{TokenGrant, TokenRole, hexadecimal};

const NOW: u64 = 1_800_000_000;
const QUEUE: [u8; 16] = [7; 16];
const TRACE: &[u8] = b"a compressed trace";

fn open(root: &Folder, limits: TraceLimits) -> OrderBoard {
    let folder = Arc::new(StoreFolder::open(&root.path("store")).unwrap());
    OrderBoard::open(folder, limits).unwrap()
}

fn order(board: &OrderBoard, hosts: &[&str]) -> HubOrder {
    let hosts: BTreeSet<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let run = ActiveRun { run: "slurm/7".into(), workflow: "w".into(), user: "ada".into(), hosts };
    board.create(&OrderWish::default(), run, "ada", NOW).unwrap()
}

fn part(order: &HubOrder, host: &str, offset: u64, bytes: &[u8]) -> TracePart {
    TracePart {
        version: VERSION,
        host: host.to_owned(),
        queue: QUEUE.to_vec(),
        token: order.token.clone(),
        file: Some(TraceFileBytes {
            name: "pid-1.json.gz".to_owned(),
            bytes: TRACE.len() as u64,
            bytes_unpacked: 100,
            checksum: format!("{:016x}", xxh3_64(TRACE)),
        }),
        offset,
        bytes: bytes.to_vec(),
    }
}

#[test]
fn an_order_reaches_one_agent_of_a_host_at_most_over_restarts() {
    let root = Folder::new();
    let board = open(&root, TraceLimits::default());
    let created = order(&board, &["a", "b"]);
    assert!(board.has_orders("a", &QUEUE, 0, NOW) && !board.has_orders("c", &QUEUE, 0, NOW));
    let taken = board.take_orders("a", &QUEUE, 0, NOW).unwrap();
    let Some(Wanted::Trace(message)) = &taken[0].wanted else { panic!("{taken:?}") };
    assert_eq!((message.run.as_deref(), message.iterations), (Some("slurm/7"), 5));
    drop(board);
    let board = open(&root, TraceLimits::default());
    // The answer may have been lost, so the same queue may ask again, and another one may not.
    assert_eq!(board.take_orders("a", &QUEUE, 0, NOW).unwrap(), taken);
    assert!(board.take_orders("a", &[8; 16], 0, NOW).unwrap().is_empty());
    assert!(board.take_orders("a", &QUEUE, created.id, NOW).unwrap().is_empty());
    let states = |now| board.progress(&board.find(created.id).unwrap(), now);
    let words: Vec<_> = states(NOW).iter().map(|one| one.state).collect();
    assert_eq!(words, ["sent", "waiting"]);
    assert!(states(NOW)[1].reason.contains("has not asked for orders since the hub began"));
    board.has_orders("b", &QUEUE, 0, NOW);
    assert_eq!(states(NOW)[1].reason, "");
    // After the time of the order, the other host gets it no more.
    assert!(board.take_orders("b", &QUEUE, 0, NOW + 1000).unwrap().is_empty());
    let words: Vec<_> = states(NOW + 1000).iter().map(|one| one.state).collect();
    assert_eq!(words, ["sent", "expired"]);
    // A host reports only about its own orders.
    let lost = ProcessState { state: "lost".into(), reason: "busy".into(), ..Default::default() };
    let mut state = OrderState::ended(created.id, &created.token, "");
    state.processes = vec![lost];
    board.note("c", vec![state.clone()]);
    assert_eq!(states(NOW)[0].state, "sent");
    board.note("a", vec![state]);
    assert_eq!((states(NOW)[0].state, states(NOW)[0].reason.as_str()), ("failed", "busy"));
    let second = order(&board, &["a"]);
    assert_eq!(second.id, created.id + 1);
    board.remove_old(NOW + 31 * 86_400).unwrap();
    assert!(board.list(0).is_empty() && open_count(root.root()) == 0);
}

fn open_count(root: &Path) -> usize {
    std::fs::read_dir(root.join("store/trace")).unwrap().count()
}

#[test]
fn traces_arrive_in_parts_and_damaged_or_forged_ones_leave_nothing() {
    let root = Folder::new();
    let board = open(&root, TraceLimits { total_mib: 1, ..TraceLimits::default() });
    let created = order(&board, &["a"]);
    let refused = |part: &TracePart, reason: &str| {
        let refusal = board.receive(part).unwrap_err();
        assert_eq!(refusal.status, 422, "{refusal:?}");
        assert!(refusal.reason.contains(reason), "{refusal:?}");
        assert!(board.files(created.id).unwrap().is_empty());
    };
    // Before the agent has received the order, and from other hosts and queues.
    refused(&part(&created, "a", 0, &[]), "this agent received");
    board.take_orders("a", &QUEUE, 0, NOW).unwrap();
    refused(&part(&created, "b", 0, &[]), "this agent received");
    refused(&TracePart { queue: vec![8; 16], ..part(&created, "a", 0, &[]) }, "this agent");
    refused(&TracePart { token: "hub-0".into(), ..part(&created, "a", 0, &[]) }, "this agent");
    refused(&TracePart { file: None, ..part(&created, "a", 0, &[]) }, "expected a file");
    let with = |change: fn(&mut TraceFileBytes)| {
        let mut part = part(&created, "a", 0, &[]);
        change(part.file.as_mut().unwrap());
        part
    };
    refused(&with(|file| file.name = "../x.json.gz".into()), "plain file name");
    refused(&with(|file| file.name = "x.sh".into()), "plain file name");
    refused(&with(|file| file.bytes = 1 << 40), "expected a trace of 1 to");
    refused(&with(|file| file.bytes = 2 << 20), "bytes of traces at the hub");
    refused(&with(|file| file.checksum = "x".into()), "16 hexadecimal digits");
    refused(&part(&created, "a", 10, TRACE), "within the 18 bytes");
    // A trace whose bytes were changed on the way is removed, and can be sent again.
    refused(&part(&created, "a", 0, b"another compressed"), "checksum");
    assert_eq!(board.receive(&part(&created, "a", 0, &TRACE[..5])).unwrap(), 5);
    // Lost answers make agents ask or send again.
    assert_eq!(board.receive(&part(&created, "a", 0, &[])).unwrap(), 5);
    assert_eq!(board.receive(&part(&created, "a", 0, &TRACE[..5])).unwrap(), 5);
    assert_eq!(board.receive(&part(&created, "a", 5, &TRACE[5..])).unwrap(), 18);
    assert_eq!(board.receive(&part(&created, "a", 0, &[])).unwrap(), 18);
    assert_eq!(board.files(created.id).unwrap(), [("pid-1.json.gz".to_owned(), 18)]);
    assert!(board.open_trace(created.id, "../order.json").is_none());
}

/// Analyzes a trace within a time with a program that a script stands for. Returns the error.
fn analyze_with(script: &str, timeout: Duration) -> String {
    let root = Folder::new();
    let program = root.write("rowmill", format!("#!/bin/sh\n{script}\n"));
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let limits = TraceLimits { rowmill: Some(program), timeout, ..TraceLimits::default() };
    let board = open(&root, limits);
    let created = order(&board, &["a"]);
    board.take_orders("a", &QUEUE, 0, NOW).unwrap();
    board.receive(&part(&created, "a", 0, TRACE)).unwrap();
    assert!(board.finished(NOW).is_empty(), "the agent has not reported the end");
    board.note("a", vec![OrderState::ended(created.id, &created.token, "")]);
    let finished = board.finished(NOW);
    assert_eq!(finished.len(), 1);
    board.analyze(&finished[0], &AtomicBool::new(false)).unwrap();
    assert!(board.finished(NOW).is_empty());
    drop(board);
    // The next hub knows the result.
    open(&root, TraceLimits::default()).analysis(created.id).unwrap().error
}

#[test]
fn an_analysis_that_fails_or_takes_too_long_ends_alone() {
    let analyze = |script| analyze_with(script, Duration::from_secs(60));
    let crashed = analyze("echo damaged >&2; kill -9 $$");
    assert!(crashed.contains("signal: 9") && crashed.contains("damaged"), "{crashed}");
    let slow = analyze_with("exec sleep 60", Duration::from_millis(500));
    assert!(slow.contains("did not end within"), "{slow}");
    assert!(analyze("echo nonsense").contains("unexpected findings"));
    if testkit::has_program("python3", "the memory of an analysis") {
        // The limit is 4 GiB.
        let large = analyze("exec python3 -c 'bytearray(1 << 33)'");
        assert!(large.contains("MemoryError"), "{large}");
    }
}

fn caller(role: TokenRole, name: &str) -> HubCaller {
    HubCaller::new(TokenGrant::new(role, name))
}

/// An event that announces a periodic trace of the workflow type `w`.
fn announce(kept: &str, weight: f64) -> (String, HostEvent) {
    let run = GpuRun { scheduler: "slurm".into(), job: "7".into(), ..GpuRun::default() };
    let details = serde_json::json!({
        "token": kept, "workflow": "w", "steps": 5, "weight": weight, "step_ns_before": 2e8,
        "file": { "bytes": TRACE.len() },
    });
    let (kind, details) = ("trace".to_owned(), details.to_string());
    (hexadecimal(&QUEUE), HostEvent { kind, details, run: Some(run), ..HostEvent::default() })
}

#[test]
fn announced_periodic_traces_are_fetched_once_within_the_budget() {
    let root = Folder::new();
    let limits =
        TraceLimits { periodic_per_workflow: 2, orders_per_day: 0, ..TraceLimits::default() };
    let board = open(&root, limits);
    let fetch = |announced| board.fetch_samples("a", announced, NOW).unwrap();
    let count = || board.list(0).len();
    fetch(vec![announce("1-a", 100.0)]);
    assert_eq!(count(), 0, "its agent accepts no orders");
    board.has_orders("a", &QUEUE, 0, NOW);
    let mut lost = announce("2-b", 1.0);
    lost.1.details = r#"{"token": "2-b", "workflow": "w", "lost": "its process ended"}"#.into();
    let wrong = ["../a", ""].map(|name| announce(name, 1.0));
    fetch([lost, announce("3-c", f64::INFINITY), announce("3-c", -1.0)].into());
    fetch(wrong.into());
    assert_eq!(count(), 0);
    fetch(vec![announce("1-a", 100.0), announce("1-a", 100.0)]);
    assert_eq!(count(), 1);
    fetch(vec![announce("4-d", 1.0), announce("5-e", 1.0)]);
    assert_eq!(count(), 2, "the budget of the workflow type is used up");
    let taken = board.take_orders("a", &QUEUE, 0, NOW).unwrap();
    let order = board.find(taken[0].id).unwrap();
    let expected = SendOrder { token: order.token.clone(), kept: "1-a".to_owned() };
    assert_eq!(taken[0].wanted, Some(Wanted::Send(expected)));
    // 100 × 5 steps of 0.2 s.
    assert_eq!(order.sample.as_ref().unwrap().represents_ms, 100_000);
    assert_eq!((order.run.as_str(), order.workflow.as_str()), ("slurm/7", "w"));
    assert!(board.take_orders("a", &[8; 16], 0, NOW).unwrap().is_empty());
    assert_eq!(board.receive(&part(&order, "a", 0, TRACE)), Ok(TRACE.len() as u64));
}

#[test]
fn tracers_trace_the_runs_of_their_user_within_the_budget() {
    let root = Folder::new();
    let board = open(&root, TraceLimits { orders_per_day: 2, ..TraceLimits::default() });
    let wish = OrderWish { host: Some("gpu-1".to_owned()), ..OrderWish::default() };
    let wrong = board.order(&wish, &caller(TokenRole::Admin, "root"), NOW);
    let Err(OrderFailure::Refused(404, reason)) = wrong else { panic!("{wrong:?}") };
    assert!(reason.contains("expected a host with rows of the last day"), "{reason}");
    // The host is known once its agent asks for orders.
    board.has_orders("gpu-1", &QUEUE, 0, NOW);
    let status = |role, name| match board.order(&wish, &caller(role, name), NOW) {
        Ok(_) => 200,
        Err(OrderFailure::Refused(status, _)) => status,
        Err(OrderFailure::Store(error)) => panic!("{error}"),
    };
    // All processes of a host may be of any user.
    let all = [
        (TokenRole::Tracer, "ada"),
        (TokenRole::Viewer, "*"),
        (TokenRole::Admin, "root"),
        (TokenRole::Tracer, "*"),
        (TokenRole::Admin, "root"),
        (TokenRole::Admin, "root"),
    ];
    assert_eq!(all.map(|(role, name)| status(role, name)), [403, 403, 200, 403, 200, 429]);
    let unknown = OrderWish { job: Some("9".to_owned()), ..OrderWish::default() };
    let admin = caller(TokenRole::Admin, "root");
    let answer = board.order(&unknown, &admin, NOW);
    assert!(matches!(answer, Err(OrderFailure::Refused(404, _))), "{answer:?}");
}
