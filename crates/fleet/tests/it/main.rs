//! Replays a recorded conversation with real PyTorch processes byte by byte, first in memory, then
//! over a socket on which the test plays one of the processes.
#![expect(clippy::unwrap_used, reason = "test code fails by panicking")]

mod wrong;

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use fleet::capture::Capture;
use fleet::ipc::config::{Config, Detail, Trigger};
use fleet::ipc::message::ProcessMessage;
use fleet::ipc::request::{CaptureRequest, RequestState, Sight, Timing};
use fleet::ipc::socket::{Peer, Socket, SocketPlace};

/// The ranks of the recording. The third process is their launcher.
const RANKS: [u32; 2] = [23627, 23628];
/// Time in the recording at which the traces were requested.
const ASKED: Duration = Duration::from_millis(6_000);
const WAIT: Duration = Duration::from_secs(10);

/// One datagram of the recording.
struct Line {
    is_from_process: bool,
    at: Duration,
    pid: u32,
    bytes: Vec<u8>,
}

fn recording() -> Vec<Line> {
    let path = "../../testdata/capture/torch-2.15.0-two-ranks.txt";
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let byte = |at| u8::from_str_radix(&fields[3][at..at + 2], 16).unwrap();
            Line {
                is_from_process: fields[0] == "<",
                at: Duration::from_secs_f64(fields[1].parse().unwrap()),
                pid: fields[2].parse().unwrap(),
                bytes: (0..fields[3].len()).step_by(2).map(byte).collect(),
            }
        })
        .collect()
}

/// Returns the request that the recording contains for a rank.
fn request(pid: u32) -> CaptureRequest {
    let id = format!("rowmill-1a218fa9017-3c9d96e1cd1ab997-{pid}");
    let config = Config {
        path: format!("/tmp/{id}/trace.json").into(),
        trigger: Trigger::Iterations { count: 5, align: 100 },
        detail: Detail::default(),
        trace_id: id.clone(),
    };
    CaptureRequest::new(ASKED, config.text().unwrap(), id, Timing::Iterations, WAIT)
}

#[test]
fn recorded_polls_get_the_recorded_answers() {
    let mut capture = Capture::new(0);
    let (mut answer, mut is_asked) = (None, false);
    for line in recording() {
        if line.at > ASKED && !is_asked {
            is_asked = true;
            for pid in RANKS {
                capture.request(pid, request(pid));
            }
        }
        if line.is_from_process {
            let peer = Peer { pid: line.pid, uid: 0 };
            answer = capture.answer(line.at, peer, &line.bytes);
            assert_eq!(ProcessMessage::parse(&line.bytes).unwrap().to_bytes(), line.bytes);
        } else {
            assert_eq!(answer.take(), Some(line.bytes), "{:?} {}", line.at, line.pid);
        }
    }
    assert_eq!(capture.members().len(), 3);
    for pid in RANKS {
        let member = &capture.members()[&pid];
        assert_eq!(u32::try_from(member.own_pid), Ok(pid));
        assert_eq!(member.request.as_ref().unwrap().state(), &RequestState::Sent);
        let id = format!("rowmill-1a218fa9017-3c9d96e1cd1ab997-{pid}");
        let sight = Sight { is_alive: true, finished: Some(id), ..Sight::default() };
        capture.look(ASKED, pid, &sight);
        capture.collected(pid);
    }
    assert!(capture.is_over());
}

#[test]
fn stand_in_process_receives_the_recorded_answers() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let socket = Socket::bind(&SocketPlace::Folder(folder.path().to_owned())).unwrap();
    let client = UnixDatagram::bind(folder.path().join("dynoconfigclient-1")).unwrap();
    client.set_read_timeout(Some(WAIT)).unwrap();
    let mut capture = Capture::new(0);
    let own = std::process::id();
    let lines = recording();
    let of_rank: Vec<&Line> = lines.iter().filter(|line| line.pid == RANKS[1]).collect();
    for pair in of_rank.chunks(2) {
        if pair[0].at > ASKED {
            capture.request(own, request(RANKS[1]));
        }
        client.send_to(&pair[0].bytes, folder.path().join("dynolog")).unwrap();
        let message = socket.receive(WAIT).unwrap().unwrap();
        // The kernel reports the real sender, whatever process id the message states.
        assert_eq!(message.peer.pid, own);
        let answer = capture.answer(pair[0].at, message.peer, &message.bytes).unwrap();
        socket.answer(&message, &answer);
        let mut bytes = vec![0; 4096];
        let length = client.recv(&mut bytes).unwrap();
        assert_eq!(bytes[..length], pair[1].bytes);
    }
    assert_eq!(of_rank.len(), 4);
}
