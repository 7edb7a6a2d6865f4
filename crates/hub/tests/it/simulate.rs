//! A simulated fleet with faults sends its rows, and the hub has its true sums.

use std::process::{Child, Stdio};
use std::time::Duration;

use hub::config::Pools;
use hub::rollup;
use hub::store::StoreFolder;
use hub::sums::{Dimension, FleetSums};
use serde_json::Value;

use crate::fixture::{TestHub, program};

const FAULTS: &str = "late,doubled,ahead,repeated";

/// Starts a simulation of six hours of 24 hosts.
pub fn start(hub: &TestHub) -> Child {
    let token = hub.folder.write("agent.token", &hub.token);
    let mut command = program();
    command.args(["simulate", "--hosts", "24", "--gpus", "4", "--interval", "60", "--seed", "7"]);
    command.args(["--since", "6h", "--for", "0s", "--faults", FAULTS, "--token"]).arg(token);
    command.arg("--hub").arg(format!("http://{}", hub.address));
    command.arg("--truth").arg(hub.folder.path("truth.json"));
    command.stderr(Stdio::null()).spawn().unwrap()
}

fn equals(truth: &Value, sums: &FleetSums) -> bool {
    FleetSums::NAMES.iter().zip(sums.values()).all(|(name, sum)| {
        let expected = truth[name].as_f64().unwrap();
        (sum - expected).abs() <= 1e-9 * expected.max(1.0)
    })
}

#[test]
fn sums_of_a_fleet_with_faults_are_true_although_the_hub_is_killed() {
    let mut hub = TestHub::start("commit_ms = 20");
    let mut simulation = start(&hub);
    let mut kills = 0;
    while simulation.try_wait().unwrap().is_none() && kills < 5 {
        std::thread::sleep(Duration::from_millis(300));
        hub.kill_and_restart();
        kills += 1;
    }
    assert!(simulation.wait().unwrap().success() && kills > 0);
    let text = std::fs::read_to_string(hub.folder.path("truth.json")).unwrap();
    let truth: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(truth["faults"]["ahead"].as_array().unwrap().len(), 1);

    // Rows of hosts whose clock is ahead lie after the end.
    let folder = StoreFolder::open_for_reading(&hub.folder.path("store")).unwrap();
    let until_s = truth["until_unix_s"].as_u64().unwrap() + 3600;
    for (name, by) in [
        ("model", Dimension::Model),
        ("workflow", Dimension::Workflow),
        ("user", Dimension::User),
        ("run", Dimension::Run),
    ] {
        let groups = rollup::query_groups(&folder, &Pools::default(), 0..until_s, by).unwrap();
        let expected = truth[name].as_object().unwrap();
        assert!(groups.keys().eq(expected.keys()), "{name}");
        for (group, sums) in &groups {
            assert!(equals(&expected[group], sums), "{name} {group}: {sums:?} {expected:?}");
        }
    }
    let entries = hub.entries();
    let rows = ["gpu_rows", "host_rows"].map(|name| truth[name].as_u64().unwrap());
    assert_eq!(entries.len() as u64, rows.iter().sum::<u64>());
}
