use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{LATE, Server};
use crate::ipc::message::{HEADER, ProcessMessage};
use crate::ipc::request::{CaptureRequest, Reason, RequestState, Sight, Timing};
use crate::ipc::socket::{Socket, SocketPlace};
use crate::process;
use crate::roster::Roster;

const WAIT: Duration = Duration::from_secs(10);

fn start(folder: &Path) -> Server {
    let socket = Socket::bind(&SocketPlace::Folder(folder.to_owned())).unwrap();
    Server::start(socket, process::own_uid(), None).unwrap()
}

fn client(folder: &Path, name: &str) -> UnixDatagram {
    let client = UnixDatagram::bind(folder.join(format!("dynoconfigclient-{name}"))).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    client.connect(folder.join("dynolog")).unwrap();
    client
}

/// Sends polls until an answer comes, because on a busy machine a poll may become too old to be
/// answered.
fn ask(client: &UnixDatagram) -> Vec<u8> {
    let pid = i32::try_from(std::process::id()).unwrap();
    let poll = ProcessMessage::Poll { free: 2, job: 0, pids: vec![pid, 2] }.to_bytes();
    let began = Instant::now();
    let mut bytes = [0; 4096];
    while began.elapsed() < WAIT {
        client.send(&poll).unwrap();
        if let Ok(length) = client.recv(&mut bytes) {
            return bytes[..length].to_vec();
        }
    }
    panic!("no answer within {WAIT:?}");
}

fn request(server: &Server) -> CaptureRequest {
    CaptureRequest::new(server.now(), "A=1\n".into(), "id".into(), Timing::Iterations, WAIT)
}

#[test]
fn polls_are_answered_without_the_main_thread() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let server = start(folder.path());
    let own = std::process::id();
    let client = client(folder.path(), "1");
    assert_eq!(ask(&client).len(), HEADER);
    let seen = server.seen();
    assert_eq!((seen.len(), seen[0].pid, seen[0].is_free), (1, own, true));
    assert!(server.request(own, request(&server)).is_some());
    assert!(server.request(own, request(&server)).is_none(), "one is open");
    assert_eq!(&ask(&client)[HEADER..], b"A=1\n");
    assert_eq!(server.state(own), Some(RequestState::Sent));
    server.lose(own, Reason::Interrupted);
    assert!(server.request(own, request(&server)).is_some());
    let began = Instant::now();
    // The server counts an answer after it has sent it, so the count may lag behind.
    while server.tally().answered < 2 {
        assert!(began.elapsed() < WAIT, "{:?}", server.tally());
        std::thread::yield_now();
    }
    let sight = Sight { is_alive: true, ..Sight::default() };
    assert!(server.look(own, &sight).is_some());
    server.forget(own);
    assert_eq!((server.look(own, &sight), server.request(own, request(&server))), (None, None));
}

#[test]
fn answer_is_withheld_if_the_table_was_locked_too_long() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let server = start(folder.path());
    let own = std::process::id();
    let client = client(folder.path(), "1");
    ask(&client);
    server.request(own, request(&server));
    let held = server.shared.lock();
    let pid = i32::try_from(own).unwrap();
    client.send(&ProcessMessage::Poll { free: 2, job: 0, pids: vec![pid] }.to_bytes()).unwrap();
    std::thread::sleep(LATE * 3);
    drop(held);
    let mut bytes = [0; 64];
    assert!(client.recv(&mut bytes).is_err(), "a late answer is taken for that of the next poll");
    assert_eq!((server.tally().late, server.state(own)), (1, Some(RequestState::Requested)));
    assert_eq!(&ask(&client)[HEADER..], b"A=1\n");
}

#[test]
fn invalid_messages_and_unnamed_senders_are_ignored() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let server = start(folder.path());
    let nameless = UnixDatagram::unbound().unwrap();
    let poll = ProcessMessage::Poll { free: 2, job: 0, pids: vec![1] }.to_bytes();
    nameless.send_to(&poll, folder.path().join("dynolog")).unwrap();
    let client = client(folder.path(), "1");
    client.send(b"nonsense").unwrap();
    ask(&client);
    assert_eq!(server.tally().refused, 1);
    assert_eq!(server.seen().len(), 1);
}

#[test]
fn ended_process_is_forgotten() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let server = start(folder.path());
    let script = "import socket, struct, sys, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1] + '/dynoconfigclient-child')
s.sendto(struct.pack('<Q32siiqi', 20, b'req', 2, 1, 0, 7), sys.argv[1] + '/dynolog')
sys.stdin.read()";
    if !testkit::has_program("python3", "a child that asks") {
        return;
    }
    let mut python = std::process::Command::new("python3");
    let python = python.args(["-c", script]).arg(folder.path());
    let mut child = python.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut roster = Roster::default();
    let began = Instant::now();
    while roster.process(child.id()).is_none() {
        assert!(began.elapsed() < WAIT, "the child did not ask");
        server.wait(Duration::from_millis(50)).unwrap();
        roster.refresh(&server);
    }
    drop(child.stdin.take());
    child.wait().unwrap();
    roster.refresh(&server);
    assert!(roster.processes().is_empty() && server.seen().is_empty());
    assert_eq!(crate::roster::sweep(folder.path()), 1);
}
