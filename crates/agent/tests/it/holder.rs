//! Tests with a process that holds the agent's socket, as systemd does. Agents start and end, and
//! no poll may be refused.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fleet::ipc::message::ProcessMessage;

use crate::fixture::WAIT;

/// Starts an agent that inherits the socket as descriptor 3.
fn start(folder: &Path, socket: &UnixDatagram) -> Child {
    let script = "exec 3<&0; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" --config \"$1\" </dev/null";
    let held: OwnedFd = socket.try_clone().unwrap().into();
    Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_rowmill-agent")])
        .arg(folder.join("agent.toml"))
        .stdin(Stdio::from(held))
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn end(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Polls the agent until an answer arrives.
fn ask(client: &UnixDatagram) {
    let pid = i32::try_from(std::process::id()).unwrap();
    let poll = ProcessMessage::Poll { free: 2, job: 0, pids: vec![pid, 2] }.to_bytes();
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < WAIT, "no answer within {WAIT:?}");
        // The kernel queues up to ten messages, so no poll is refused even while no agent runs.
        match client.send(&poll) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}"),
        }
        if client.recv(&mut [0; 4096]).is_ok() {
            return;
        }
    }
}

#[test]
fn polls_wait_while_an_agent_is_killed_and_restarted() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let path = folder.path();
    fs::create_dir(path.join("s")).unwrap();
    let text = format!("socket_dir = '{0}/s'\nstate_dir = '{0}/state'\n", path.display());
    fs::write(path.join("agent.toml"), text).unwrap();
    let socket = UnixDatagram::bind(path.join("s/dynolog")).unwrap();
    let client = UnixDatagram::bind(path.join("s/dynoconfigclient-1")).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(90))).unwrap();
    client.set_nonblocking(false).unwrap();
    client.set_write_timeout(Some(Duration::from_millis(10))).unwrap();
    client.connect(path.join("s/dynolog")).unwrap();
    let mut agent = start(path, &socket);
    ask(&client);
    for _ in 0..3 {
        end(&mut agent);
        let pid = i32::try_from(std::process::id()).unwrap();
        let poll = ProcessMessage::Poll { free: 2, job: 0, pids: vec![pid, 2] }.to_bytes();
        // One poll is sent before an agent runs. The agent must answer it after its start.
        client.send(&poll).unwrap();
        agent = start(path, &socket);
        ask(&client);
    }
    end(&mut agent);
    assert!(path.join("s/dynolog").exists(), "the name is the holder's");
}
