//! Tests of `rowmill capture`. The tests' own process plays the role of PyTorch: it polls, reads
//! the request, and writes the trace that PyTorch would write.

use std::fs;
use std::io::Read as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use fleet::ipc::message::{HEADER, ProcessMessage};
use serde_json::Value;
use tempfile::TempDir;
use testkit::ProgramOutput;

use crate::fixture::Place;

mod hostile;

const EVENTS: &str = r#""traceEvents": [
{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":9,"tid":9,"ts":101,"dur":20,"args":{}}]}"#;

/// A running capture, with the folder of its socket.
struct Begun {
    place: Place,
    sockets: TempDir,
    child: Child,
}

fn begin(options: &str) -> Begun {
    let (place, sockets) = (Place::new(), tempfile::tempdir_in("/tmp").unwrap());
    let (pid, output) = (std::process::id(), place.path("out"));
    let words = format!(
        "capture --pid {pid} --processes 1 -o {} --socket-dir . {options} --format json",
        output.display()
    );
    let mut command = place.command(&words);
    command.current_dir(sockets.path());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    Begun { place, sockets, child }
}

/// Polls until a trace is requested, and returns the request.
fn ask(begun: &mut Begun) -> String {
    let sockets = begun.sockets.path();
    let client = UnixDatagram::bind(sockets.join("dynoconfigclient-1")).unwrap();
    // Like PyTorch, the test polls again and again, because the server ignores polls that waited
    // too long on a busy machine.
    client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let pid = i32::try_from(std::process::id()).unwrap();
    let poll = ProcessMessage::Poll { free: 2, job: 0, pids: vec![pid, 2] }.to_bytes();
    loop {
        if begun.child.try_wait().unwrap().is_some() {
            let mut said = String::new();
            begun.child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
            begun.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            panic!("the capture ended before it asked for anything: {said}");
        }
        // Sending fails while the capture does not listen yet.
        if client.send_to(&poll, sockets.join("dynolog")).is_ok() {
            let mut bytes = vec![0; 4096];
            let Ok((length, from)) = client.recv_from(&mut bytes) else { continue };
            if length > HEADER {
                // Kineto ends its process if a socket with a relative name answers, so the name
                // must be absolute.
                let is_absolute = from.as_pathname().is_some_and(Path::is_absolute);
                assert!(is_absolute, "{from:?}");
                return String::from_utf8(bytes[HEADER..length].to_vec()).unwrap();
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn value<'a>(config: &'a str, key: &str) -> &'a str {
    let line = config.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    line.unwrap()
}

/// Writes a trace as PyTorch does, in a file whose name has the process id before `.json`. The file
/// is written under another name and then renamed.
fn write(config: &str, trace_id: &str) {
    let path = value(config, "ACTIVITIES_LOG_FILE").strip_suffix(".json").unwrap();
    let path = format!("{path}_{}.json", std::process::id());
    let text = format!("{{\"schemaVersion\": 1, \"trace_id\": \"{trace_id}\", {EVENTS}");
    fs::write(format!("{path}.tmp"), text).unwrap();
    fs::rename(format!("{path}.tmp"), path).unwrap();
}

fn end(begun: Begun) -> (ProgramOutput, Place) {
    let output = begun.child.wait_with_output().unwrap();
    drop(begun.sockets);
    (ProgramOutput::from(output), begun.place)
}

fn row(ran: &ProgramOutput) -> Value {
    ran.last()["processes"][0].clone()
}

#[test]
fn a_process_that_answers_gives_a_trace_and_a_report() {
    let mut begun = begin("--iterations 7 --align 50 --with shapes");
    let config = ask(&mut begun);
    assert_eq!(value(&config, "ACTIVITIES_ITERATIONS"), "7");
    assert_eq!(value(&config, "PROFILE_START_ITERATION_ROUNDUP"), "50");
    assert_eq!(value(&config, "PROFILE_REPORT_INPUT_SHAPES"), "true");
    write(&config, value(&config, "REQUEST_TRACE_ID"));
    let (ran, place) = end(begun);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(row(&ran)["state"], "written", "{}", ran.stderr);
    assert!(place.path("out/report.html").is_file());
    let traces = fs::read_dir(place.path("out")).unwrap().count();
    assert_eq!(traces, 2, "one trace and the report");
    let staging = Path::new(value(&config, "ACTIVITIES_LOG_FILE")).parent().unwrap();
    assert!(!staging.exists(), "{}", staging.display());
}

#[test]
fn a_trace_with_foreign_content_is_lost_and_the_exit_code_is_1() {
    let mut begun = begin("");
    write(&ask(&mut begun), "somebody-else");
    let (ran, place) = end(begun);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert_eq!(row(&ran)["state"], "lost");
    assert!(row(&ran)["reason"].as_str().unwrap().contains("somebody-else"));
    assert!(!place.path("out").exists());
}

#[test]
fn a_capture_without_polling_processes_says_what_to_do() {
    let place = Place::new();
    let none = place.run("capture --all --timeout 100ms --socket-dir . -o out");
    assert_eq!(none.code, Some(1), "{}", none.stderr);
    assert!(none.stderr.contains("rowmill doctor capture"), "{}", none.stderr);
    assert!(!place.path("out").exists() && !place.path("dynolog").exists());
    let gone = place.run("capture --pid 4000000000");
    assert_eq!((gone.code, gone.stderr.contains("no such process")), (Some(2), true));
    let own = std::process::id();
    let doctor = place.run(&format!("doctor capture --pid {own} --format json"));
    assert_eq!(doctor.code, Some(1), "{}", doctor.stderr);
    assert_eq!(doctor.last()[0]["can_be_captured"], false);
}
