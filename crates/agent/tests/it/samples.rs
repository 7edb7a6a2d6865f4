//! Tests of sampling processes through the agent's Unix socket.

use std::process::Command;

use serde_json::Value;

use crate::fixture::Agent;

#[test]
fn a_process_is_sampled_for_the_requested_time() {
    let agent = Agent::start("", None);
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let order = |pid: u32, every_ms: u64| {
        format!(
            "{{\"pids\": [{pid}], \"run\": null, \"length_ms\": 500, \"every_ms\": {every_ms}}}"
        )
    };
    let answer = agent.local("POST", "/v1/samples", &order(child.id(), 20));
    assert_eq!(answer.status, 200, "{answer:?}");
    let samples: Value = serde_json::from_str(&answer.body).unwrap();
    let process = &samples["processes"][0];
    assert_eq!((&process["pid"], &process["command"]), (&child.id().into(), &"sleep 60".into()));
    assert!(process["looks"].as_u64() > Some(2) && samples["length_ms"].as_u64() >= Some(500));
    assert_eq!(process["waiting"][0]["state"], "S", "{process}");
    child.kill().unwrap();
    child.wait().unwrap();
    let gone = agent.local("POST", "/v1/samples", &order(child.id(), 20));
    assert!(gone.status == 409 && gone.body.contains("has ended"), "{gone:?}");
    let nobody = order(1, 20).replace("[1]", "[]");
    let nobody = agent.local("POST", "/v1/samples", &nobody);
    assert!(nobody.body.contains("no process polls for traces"), "{nobody:?}");
    let often = agent.local("POST", "/v1/samples", &order(1, 1));
    assert!(
        often.body.contains("interval between samples: expected 10 ms to the length"),
        "{often:?}"
    );
    let audit = std::fs::read_to_string(agent.path("audit.json")).unwrap();
    assert!(audit.contains("\"verb\":\"sample\"") && audit.contains(" of user "), "{audit}");
}
