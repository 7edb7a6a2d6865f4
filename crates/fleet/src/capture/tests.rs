use std::collections::BTreeMap;
use std::time::Duration;

use super::{Capture, Skip, choose, round_start};
use crate::ipc::message::{HEADER, ProcessMessage};
use crate::ipc::request::{CaptureRequest, RequestState, Sight, Timing};
use crate::ipc::socket::Peer;
use crate::process::Process;

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn poll(free: i32, pid: i32) -> Vec<u8> {
    ProcessMessage::Poll { free, job: 0, pids: vec![pid, 2] }.to_bytes()
}

fn request() -> CaptureRequest {
    CaptureRequest::new(
        ms(0),
        "A=1
"
        .into(),
        "id".into(),
        Timing::Iterations,
        ms(30_000),
    )
}

const OURS: Peer = Peer { pid: 40, uid: 7 };

#[test]
fn polling_registers_a_process() {
    let mut capture = Capture::new(7);
    let nothing = capture.answer(ms(1), OURS, &poll(2, 9)).unwrap();
    assert_eq!(nothing.len(), HEADER);
    assert_eq!(capture.members()[&40].own_pid, 9);
    assert!(capture.is_over());
    capture.request(40, request());
    assert!(!capture.is_over());
    let something = capture.answer(ms(5001), OURS, &poll(2, 9)).unwrap();
    assert_eq!(&something[HEADER..], b"A=1\n");
    capture.look(ms(6000), 40, &Sight { finished: Some("id".into()), ..Sight::default() });
    assert!(!capture.is_over());
    capture.collected(40);
    assert!(capture.is_over());
    let request = capture.members()[&40].request.as_ref().unwrap();
    assert_eq!(request.state(), &RequestState::Written);
}

#[test]
fn processes_of_other_users_get_no_request() {
    let other = Peer { pid: 41, uid: 8 };
    for (uid, length) in [(7, HEADER), (8, HEADER + 4), (0, HEADER + 4)] {
        let mut capture = Capture::new(uid);
        capture.answer(ms(1), other, &poll(2, 9)).unwrap();
        capture.request(41, request());
        let answer = capture.answer(ms(2), other, &poll(2, 9)).unwrap();
        assert_eq!(answer.len(), length, "user {uid}");
    }
}

#[test]
fn invalid_messages_are_not_answered_or_stored() {
    let mut capture = Capture::new(0);
    for _ in 0..1000 {
        assert_eq!(capture.answer(ms(1), OURS, b"nonsense"), None);
    }
    assert_eq!((capture.refused(), capture.members().len()), (1000, 0));
    // A process outside our namespace has the id 0 and must not become a member.
    capture.answer(ms(1), Peer { pid: 0, uid: 0 }, &poll(2, 9)).unwrap();
    assert!(capture.members().is_empty());
    let register = ProcessMessage::Register { device: 0, pid: 3, job: 0 }.to_bytes();
    assert_eq!(capture.answer(ms(1), OURS, &register).unwrap().len(), HEADER + 4);
}

fn process(pid: u32, parent: u32, words: &[&str], rank: Option<u32>) -> Process {
    let environment: BTreeMap<String, String> =
        rank.map(|rank| ("RANK".to_owned(), rank.to_string())).into_iter().collect();
    Process {
        pid,
        parent,
        started: 1,
        state: 'S',
        uid: 7,
        gid: 7,
        groups: Vec::new(),
        command: words.iter().map(ToString::to_string).collect(),
        environment: Some(environment),
    }
}

const BASE: u32 = 4_000_000_000;

/// Creates a job: a launcher, two ranks, a data loader of the second rank, and an unrelated
/// process.
fn job() -> Vec<Process> {
    vec![
        process(BASE, BASE - 1, &["python", "/bin/torchrun", "train.py"], None),
        process(BASE + 1, BASE, &["python", "train.py"], Some(0)),
        process(BASE + 2, BASE, &["python", "train.py"], Some(1)),
        process(BASE + 3, BASE + 2, &["python", "-c", "spawn_main()"], Some(1)),
        process(BASE + 4, BASE - 1, &["python", "other.py"], None),
    ]
}

fn skips(wanted: &[u32], uid: u32) -> Vec<Option<Skip>> {
    choose(&job(), wanted, uid).into_iter().map(|(_, skip)| skip).collect()
}

#[test]
fn only_ranks_are_chosen() {
    let (launcher, helper) = (Some(Skip::Launcher), Some(Skip::Helper));
    assert_eq!(skips(&[], 7), [launcher, None, None, helper, None]);
    let other = Some(Skip::NotWanted);
    assert_eq!(skips(&[BASE], 0), [launcher, None, None, helper, other]);
    assert_eq!(skips(&[BASE + 2], 7), [other, other, None, helper, other]);
    assert_eq!(skips(&[BASE + 3], 7), [other, other, other, None, other]);
    assert_eq!(skips(&[], 9), [Some(Skip::OtherUser); 5]);
}

#[test]
fn choosing_takes_linear_time() {
    // The 300 processes are siblings, and their parent is a real process with real ancestors.
    let own = Process::read(std::process::id()).unwrap();
    let one = |at: u32| Process { pid: BASE + at, parent: own.pid, ..own.clone() };
    let asked: Vec<Process> = (0..2_000).map(one).collect();
    let began = std::time::Instant::now();
    let choices = choose(&asked, &[], 0);
    assert!(choices.iter().all(|(_, skip)| skip.is_none()));
    // Without caching the parents, reading `/proc` took 2.6 s of CPU for 300 processes.
    assert!(began.elapsed() < ms(5_000), "{:?}", began.elapsed());
}

#[test]
fn requests_are_sent_after_the_longest_pause() {
    // The processes poll at 0.2 and 4.9 s of every five seconds, so the longest pause is the one
    // between them.
    let polled = [ms(5_200), ms(4_900)];
    assert_eq!(round_start(ms(6_000), &polled), ms(9_400));
    assert_eq!(round_start(ms(9_500), &polled), ms(14_400));
    assert_eq!(round_start(ms(9_400), &polled), ms(9_400));
    assert_eq!(round_start(ms(3), &[]), ms(3));
    // If there is only one process, the round must start half a second before its next poll.
    assert_eq!(round_start(ms(2_000), &[ms(1_000)]), ms(5_500));
}
