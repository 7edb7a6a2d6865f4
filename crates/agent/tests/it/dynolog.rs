//! Tests of dynolog's port by its wire format. A connection carries one request: a length in the
//! host's byte order, then JSON.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::{Agent, WAIT};
use crate::traces::{Job, honest};

/// Sends bytes to dynolog's port and returns the answer, if there is one.
fn say(agent: &Agent, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(&agent.dynolog).unwrap();
    stream.set_read_timeout(Some(WAIT)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut answer = vec![0; usize::try_from(i32::from_ne_bytes(length)).unwrap()];
    stream.read_exact(&mut answer).unwrap();
    // The server must close the connection after one request.
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    Some(answer)
}

fn ask(agent: &Agent, request: &Value) -> Option<Value> {
    let text = serde_json::to_vec(request).unwrap();
    let length = i32::try_from(text.len()).unwrap();
    let answer = say(agent, &[&length.to_ne_bytes(), text.as_slice()].concat())?;
    Some(serde_json::from_slice(&answer).unwrap())
}

fn trace(config: &str, pids: &[u32]) -> Value {
    json!({"fn": "setKinetOnDemandRequest", "config": config, "pids": pids, "job_id": 0,
           "process_limit": 3})
}

const PORT: &str = "dynolog = '127.0.0.1:0'\n";

#[test]
fn a_dynolog_request_is_passed_on_unchanged_with_its_output_file() {
    let agent = Agent::start(PORT, Some("gpu=0 util=0\n"));
    assert_eq!(ask(&agent, &json!({"fn": "getStatus"})), Some(json!({"status": 1})));
    let version = ask(&agent, &json!({"fn": "getVersion"})).unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    let nobody = json!({"processesMatched": [], "activityProfilersTriggered": [],
                        "eventProfilersTriggered": [], "activityProfilersBusy": 0,
                        "eventProfilersBusy": 0});
    let path = agent.path("dyno.json");
    let config = format!(
        "ACTIVITIES_LOG_FILE={}\nPROFILE_START_TIME=0\nACTIVITIES_DURATION_MSECS=500",
        path.display()
    );
    assert_eq!(ask(&agent, &trace(&config, &[])), Some(nobody.clone()), "nobody asks");
    let job = Job::start(&agent.sockets(), honest);
    let own = std::process::id();
    let answer = agent.until("a job that asks", |agent| {
        let answer = ask(agent, &trace(&config, &[own])).unwrap();
        (answer != nobody).then_some(answer)
    });
    assert_eq!(answer["processesMatched"], json!([own]));
    assert_eq!(answer["activityProfilersTriggered"], json!([own]));
    let written = agent.path(&format!("dyno_{own}.json"));
    agent.until("its file", |_| written.exists().then_some(()));
    assert!(fs::read_to_string(&written).unwrap().contains("rowmill-"), "it has an id");
    // The request is passed to the process once. Soon afterwards the process must be free for the
    // next request.
    let order = r#"{"token": "TOKEN", "pids": [], "job": null, "size_max": 1048576,
      "when": {"kind": "iterations", "count": 5, "align": 1}, "patience_ms": 20000,
      "not_before_unix_ms": null}"#;
    let names = std::cell::Cell::new(0);
    agent.until("a trace after it", |agent| {
        let name = format!("next-{}", names.replace(names.get() + 1));
        let begun = agent.local("POST", "/v1/traces", &order.replace("TOKEN", &name));
        assert_eq!(begun.status, 201, "{begun:?}");
        let state = agent.until("its end", |agent| {
            let state = agent.local("GET", &format!("/v1/traces/{name}"), "").body;
            state.contains("\"is_over\":true").then_some(state)
        });
        state.contains("\"state\":\"written\"").then_some(())
    });
    let other = ask(&agent, &trace(&config, &[1 << 22])).unwrap();
    assert_eq!(other["processesMatched"], json!([]), "another process");
    drop(job);
    let audit = fs::read_to_string(agent.path("audit.json")).unwrap();
    assert!(audit.contains("by dynolog's port") && audit.contains("1 processes"), "{audit}");
}

#[test]
fn unknown_requests_get_no_answer_and_malformed_lines_are_named() {
    let agent = Agent::start(PORT, Some("gpu=0 util=0\n"));
    assert_eq!(ask(&agent, &json!({"fn": "shutdown"})), None);
    assert_eq!(ask(&agent, &json!([1])), None);
    assert_eq!(say(&agent, &[&5_i32.to_ne_bytes()[..], b"{\"fn\""].concat()), None);
    assert_eq!(say(&agent, &(-1_i32).to_ne_bytes()), None);
    assert_eq!(say(&agent, &i32::MAX.to_ne_bytes()), None);
    let answer = ask(&agent, &trace("ACTIVITIES_LOG_FILE=/tmp/a=b.json", &[])).unwrap();
    assert!(answer["error"].as_str().unwrap().contains("KEY=VALUE"), "{answer}");
    // A client that sends nothing must not delay other clients.
    let silent = TcpStream::connect(&agent.dynolog).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    assert_eq!(ask(&agent, &json!({"fn": "getStatus"})), Some(json!({"status": 1})));
    drop(silent);
}

#[test]
fn counters_are_paused_and_resumed() {
    let agent = Agent::start(PORT, Some("gpu=0 util=0\n"));
    agent.until("a GPU", |agent| {
        agent.local("GET", "/v1/status", "").body.contains("uuid").then_some(())
    });
    let done = Some(json!({"status": true}));
    assert_eq!(ask(&agent, &json!({"fn": "dcgmProfPause", "duration_s": 600})), done);
    assert!(!agent.local("GET", "/v1/status", "").body.contains("\"paused_s\":null"));
    assert_eq!(ask(&agent, &json!({"fn": "dcgmProfResume"})), done);
    assert!(agent.local("GET", "/v1/status", "").body.contains("\"paused_s\":null"));
}
