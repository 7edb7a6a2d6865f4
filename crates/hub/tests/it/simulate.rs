//! A simulated fleet with faults sends its rows, and the hub has its true sums.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hub::config::Pools;
use hub::grouping::SumQuery;
use hub::rollup;
use hub::store::StoreFolder;
use hub::sums::{Dimension, FleetSums};
use serde::Deserialize;
use serde_json::Value;
use testkit::ProgramOutput;

use crate::fixture::{TestHub, add_token, program, program_beside};
use crate::view::{click_tabs, get};

const FAULTS: &str = "late,doubled,ahead,repeated";
/// Faults that the doctor finds.
const PLANTED: &str = "hot,starved,full,uneven,hung,slowing,varying";

/// End of simulations whose events must not depend on the current time, in seconds since 1970.
const UNTIL: &str = "1795869600";

/// Starts a simulation with a number of hosts, an interval in seconds, and a time until now.
pub fn start(hub: &TestHub, size: [&str; 3]) -> Child {
    simulation(hub, size, FAULTS).spawn().unwrap()
}

/// Simulates a fleet until [`UNTIL`].
fn simulate(hub: &TestHub, size: [&str; 3], faults: &str) {
    let mut command = simulation(hub, size, faults);
    assert!(command.args(["--until", UNTIL]).status().unwrap().success());
}

fn simulation(hub: &TestHub, [hosts, interval, since]: [&str; 3], faults: &str) -> Command {
    let token = hub.folder.write("agent.token", &hub.token);
    let mut command = program();
    command.args(["simulate", "--hosts", hosts, "--gpus", "4", "--interval", interval]);
    command.args(["--seed", "7", "--since", since, "--for", "0s", "--faults", faults]);
    command.arg("--token").arg(token);
    command.arg("--hub").arg(format!("http://{}", hub.address));
    command.arg("--truth").arg(hub.folder.path("truth.json"));
    command.stderr(Stdio::null());
    command
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
    let mut simulation = start(&hub, ["24", "60", "6h"]);
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
        let query = SumQuery { range: 0..until_s, ..SumQuery::group(&[by], None) };
        let groups = rollup::query(&folder, &Pools::default(), &query).unwrap().sums;
        let expected = truth[name].as_object().unwrap();
        let members = || groups.keys().map(|(_, key)| key.member(by));
        assert!(members().eq(expected.keys()), "{name}");
        for (group, sums) in members().zip(groups.values()) {
            assert!(equals(&expected[group], sums), "{name} {group}: {sums:?} {expected:?}");
        }
    }
    let entries = hub.entries();
    let rows = ["gpu_rows", "host_rows", "run_rows"].map(|name| truth[name].as_u64().unwrap());
    assert_eq!(entries.len() as u64, rows.iter().sum::<u64>());
}

/// What the truth of a simulation says about a day.
#[derive(Deserialize)]
struct Day {
    until_unix_s: u64,
    total: FleetSums,
    workflow: BTreeMap<String, FleetSums>,
    user: BTreeMap<String, FleetSums>,
    run: BTreeMap<String, FleetSums>,
    failed_gpu_s: f64,
    repeated_gpu_s: f64,
    sick: BTreeMap<String, BTreeSet<String>>,
}

fn hours(seconds: f64) -> Option<f64> {
    Some(seconds / 3600.0)
}

fn lost_hours(sums: &FleetSums) -> Option<f64> {
    hours(sums.parts()[4] + sums.parts()[6])
}

fn efficiency(sums: &FleetSums) -> Option<f64> {
    (sums.sm_observed_s > 0.0).then(|| sums.sm_active_s / sums.sm_observed_s * 100.0)
}

/// Compares a value of each row of a list of the report with the true ones, by name.
fn check_rows(
    report: &Value,
    [list, name, value]: [&str; 3],
    expected: impl Iterator<Item = (String, Option<f64>)>,
) {
    let rows = report[list]["rows"].as_array().unwrap();
    let got = rows
        .iter()
        .map(|row| (row[name].as_str().unwrap().to_owned(), row.pointer(value).unwrap().as_f64()));
    let got: BTreeMap<String, Option<f64>> = got.collect();
    let expected: BTreeMap<String, Option<f64>> = expected.collect();
    assert!(got.keys().eq(expected.keys()), "{list}: {got:?} {expected:?}");
    for (name, expected) in expected {
        check_value(got[&name], expected, &format!("{list} {name} {value}"));
    }
}

fn check_value(got: Option<f64>, expected: Option<f64>, what: &str) {
    let is_equal = match (got, expected) {
        (Some(got), Some(expected)) => (got - expected).abs() <= 1e-7 * expected.abs().max(1.0),
        (got, expected) => got == expected,
    };
    assert!(is_equal, "{what}: {got:?}, expected {expected:?}");
}

#[test]
fn the_morning_report_of_a_simulated_fleet_is_true() {
    let Some(rowmill) = program_beside("rowmill") else {
        testkit::skip("the report of a simulated fleet", "the program rowmill beside the hub");
        return;
    };
    let mut hub = TestHub::start("");
    let viewer = add_token(&hub.folder, "viewer", "viewer");
    hub.kill_and_restart();
    simulate(&hub, ["12", "600", "8d"], FAULTS);
    let text = std::fs::read_to_string(hub.folder.path("truth.json")).unwrap();
    let truth: Value = serde_json::from_str(&text).unwrap();
    let day = |name: &str| Day::deserialize(&truth[name]).unwrap();
    let (day, before) = (day("last_day"), day("week_before"));
    let token = hub.folder.write("viewer.token", viewer);
    let report_with = |until: &[&str]| {
        let mut command = Command::new(&rowmill);
        command.args(["fleet", "report", "--format", "json", "--top", "10000"]).args(until);
        command.arg("--token-file").arg(&token);
        command.arg("--hub").arg(format!("http://{}", hub.address));
        ProgramOutput::collect(&mut command).expect_code(0, "report").json()
    };
    let report = report_with(&["--until", &day.until_unix_s.to_string()]);

    let number = |path: &str| report.pointer(path).unwrap().as_f64();
    for (name, now, before) in [
        ("gpu_hours", day.total.deployed_s, before.total.deployed_s),
        ("failed_hours", day.failed_gpu_s, before.failed_gpu_s),
        ("repeated_hours", day.repeated_gpu_s, before.repeated_gpu_s),
    ] {
        check_value(number(&format!("/{name}/now")), hours(now), name);
        check_value(number(&format!("/{name}/week_before")), hours(before), name);
    }
    for (at, part) in day.total.parts().into_iter().enumerate() {
        check_value(number(&format!("/funnel/{at}/hours")), hours(part), "funnel");
    }
    // Events follow from the time, so that a single day may lack some.
    for (name, value) in [
        ("failed", day.failed_gpu_s + before.failed_gpu_s),
        ("repeated", day.repeated_gpu_s + before.repeated_gpu_s),
        ("not schedulable", day.total.parts()[0] + before.total.parts()[0]),
        ("held idle", day.total.held_idle_s + before.total.held_idle_s),
    ] {
        assert!(value > 0.0, "{name}");
    }
    let all = |groups: &BTreeMap<String, FleetSums>, value: fn(&FleetSums) -> Option<f64>| {
        let held = groups.iter().filter(|(_, sums)| sums.allocated_s > 0.0);
        held.map(move |(name, sums)| (name.clone(), value(sums))).collect::<Vec<_>>()
    };
    let idle = all(&day.user, |sums| hours(sums.held_idle_s));
    let idle = idle.into_iter().filter(|(_, hours)| *hours > Some(0.0));
    check_rows(&report, ["idle_owners", "user", "/idle_hours/now"], idle);
    for (value, expected) in [
        ("/lost_hours/0", all(&day.run, lost_hours)),
        ("/allocated_hours", all(&day.run, |sums| hours(sums.allocated_s))),
    ] {
        check_rows(&report, ["jobs", "run", value], expected.into_iter());
    }
    // Whoever held GPUs at one of the two times is compared.
    let both = |one: &BTreeMap<String, FleetSums>, other: &BTreeMap<String, FleetSums>| {
        let names = one.iter().chain(other).filter(|(_, sums)| sums.allocated_s > 0.0);
        let sums = |name: &String| (name.clone(), one.get(name).copied().unwrap_or_default());
        names.map(|(name, _)| sums(name)).collect::<BTreeMap<_, _>>().into_iter()
    };
    let lost = both(&day.user, &before.user).map(|(name, sums)| (name, lost_hours(&sums)));
    check_rows(&report, ["users", "name", "/lost_hours/now"], lost);
    for (path, one, other) in [
        ("/efficiency_percent/now", &day.workflow, &before.workflow),
        ("/efficiency_percent/week_before", &before.workflow, &day.workflow),
    ] {
        let expected = both(one, other).map(|(name, sums)| (name, efficiency(&sums)));
        check_rows(&report, ["workflows", "name", path], expected);
    }
    // The workflows are listed by what their drop costs, and the planted drop is among them.
    let workflows = report["workflows"]["rows"].as_array().unwrap();
    let drops: Vec<f64> =
        workflows.iter().map(|row| row["drop_hours"].as_f64().unwrap_or(0.0)).collect();
    assert!(drops.is_sorted_by(|a, b| a >= b), "{drops:?}");
    let slow = workflows.iter().zip(&drops).find(|(row, _)| row["name"] == "image-search");
    let efficiency = |row: &Value, time: &str| row["efficiency_percent"][time].as_f64();
    // A fleet of this size may lack the workflow on one of the days.
    if let Some((slow, drop)) = slow
        && let Some(now) = efficiency(slow, "now")
        && let Some(earlier) = efficiency(slow, "week_before")
    {
        assert!(now < 0.7 * earlier && *drop > 0.0, "{slow}");
    }

    let sick = |report: &Value| {
        let nodes = report["nodes"]["rows"].as_array().unwrap().iter().map(|node| {
            let kinds = BTreeSet::<String>::deserialize(&node["kinds"]).unwrap();
            (node["host"].as_str().unwrap().to_owned(), kinds)
        });
        nodes.collect::<BTreeMap<_, _>>()
    };
    assert_eq!(sick(&report), day.sick);
    // Doubled rows and wrong clocks are problems of the time at which rows arrive.
    let now = sick(&report_with(&[]));
    for (fault, kind) in [("doubled", "doubled_rows"), ("ahead", "clock")] {
        for host in truth["faults"][fault].as_array().unwrap() {
            let host = host.as_str().unwrap();
            assert!(now.get(host).is_some_and(|kinds| kinds.contains(kind)), "{host}: {now:?}");
        }
    }
}

#[test]
fn the_doctor_finds_in_runs_and_hosts_what_was_planted_and_nothing_else() {
    let mut hub = TestHub::start("");
    let viewer = add_token(&hub.folder, "viewer", "viewer");
    hub.kill_and_restart();
    simulate(&hub, ["24", "600", "30h"], PLANTED);
    let text = std::fs::read_to_string(hub.folder.path("truth.json")).unwrap();
    let truth: Value = serde_json::from_str(&text).unwrap();
    let day = &truth["last_day"];
    let time = format!("since={}&until={}", day["since_unix_s"], day["until_unix_s"]);
    let ask = |query: &str| -> Value {
        let answer = get(&hub, &viewer, &format!("/hub/v1/doctor?{time}&{query}"), "localhost");
        assert_eq!(answer.status, 200, "{query}: {answer:?}");
        serde_json::from_slice(&answer.body).unwrap()
    };
    let mut found = BTreeSet::new();
    let mut healthy = 0;
    // Most runs and hosts are healthy, and each question reads a day of rows.
    let every = if testkit::has_time("the doctor on every healthy run and host") { 1 } else { 6 };
    let mut skipped = 0;
    for (kind, members) in [("run", "runs"), ("host", "hosts")] {
        for (name, issues) in day["planted"][members].as_object().unwrap() {
            skipped += usize::from(issues.as_array().unwrap().is_empty());
            if issues.as_array().unwrap().is_empty() && skipped % every != 0 {
                continue;
            }
            let answer = ask(&format!("{kind}={name}"));
            let rules = answer["findings"].as_array().unwrap().iter();
            let rules: BTreeSet<String> =
                rules.map(|one| one["rule"].as_str().unwrap().to_owned()).collect();
            let expected: BTreeSet<String> = BTreeSet::deserialize(issues).unwrap();
            assert_eq!(rules, expected, "{kind} {name}: {}", answer["findings"]);
            healthy += usize::from(rules.is_empty());
            found.extend(rules);
            let held = answer["gpu_hours"].as_f64().unwrap();
            for finding in answer["findings"].as_array().unwrap() {
                let lost = finding["lost_gpu_hours"].as_f64().unwrap_or(0.0);
                assert!((0.0..=held + 1e-9).contains(&lost), "{kind} {name}: {finding}");
            }
            let unseen = |tab: &str| {
                !answer["charts"].as_array().unwrap().iter().any(|chart| chart["tab"] == tab)
            };
            assert!(!unseen("gpu") && !unseen("cpu"), "{kind} {name}");
            let sum = |name_of_sum: &str| {
                day[kind].get(name).map(|sums| sums[name_of_sum].as_f64().unwrap())
            };
            check_value(Some(held), sum("allocated_s").map_or(Some(held), hours), name);
            // Each lost hour has one cause, or is not explained.
            let lost = answer["losses"]["lost_gpu_hours"].as_f64().unwrap();
            let parts = answer["losses"]["parts"].as_array().unwrap().iter();
            let parts: f64 = parts.map(|part| part["gpu_hours"].as_f64().unwrap()).sum();
            assert!((parts - lost).abs() < 1e-6, "{kind} {name}: {}", answer["losses"]);
            let seen = sum("busy_observed_s").zip(sum("busy_sm_unknown_s")).zip(sum("sm_active_s"));
            if let Some(((observed, unknown), active)) = seen {
                check_value(Some(lost), hours(observed - unknown - active), name);
            }
        }
    }
    // Runs follow from the time, so that one of the faults may lie on hosts without a long run.
    assert!(found.len() >= 8, "{found:?}");
    assert!(healthy > 0);
    check_whole_runs(&hub, &viewer, day);
    for wrong in ["", "run=a&run=b", "run=a&host=b", "user=anna", "run=a&by=user"] {
        let answer = get(&hub, &viewer, &format!("/hub/v1/doctor?{wrong}"), "localhost");
        assert_eq!(answer.status, 400, "{wrong}");
    }
    let run = worst(&day["planted"]["runs"]);
    let host = worst(&day["planted"]["hosts"]);
    // Charts of a run and of a host are drawn by the same code, so one scheme is enough for each.
    for (name, query, scheme) in [
        ("run", format!("run={run}&{time}"), "light"),
        ("host", format!("host={host}&{time}"), "dark"),
    ] {
        click_tabs(&hub, &viewer, &query, [name, scheme]);
    }
}

/// Checks that a run is looked at from its begin to its end without a time, that a shorter time is
/// noted, and that unknown names are errors.
fn check_whole_runs(hub: &TestHub, viewer: &str, day: &Value) {
    let ask = |path: &str, status: u32| -> Value {
        let answer = get(hub, viewer, &format!("/hub/v1/{path}"), "localhost");
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        serde_json::from_slice(&answer.body).unwrap()
    };
    let since = day["since_unix_s"].as_u64().unwrap();
    let until = day["until_unix_s"].as_u64().unwrap();
    let runs = ask(&format!("runs?since={}&until={until}", until - 30 * 3600), 200);
    let time = |run: &Value, key: &str| run[key].as_u64();
    let runs = runs["runs"].as_array().unwrap();
    // One run ended before the last day, and one began before it and lasted into it.
    let old = runs.iter().find(|run| time(run, "ended_unix_s").is_some_and(|end| end < since));
    let long = runs.iter().find(|run| {
        time(run, "started_unix_s").is_some_and(|start| start < since)
            && time(run, "ended_unix_s").is_none_or(|end| end > since + 3600)
    });
    for run in [old, long] {
        let run = run.unwrap();
        let name = run["run"].as_str().unwrap();
        let whole = ask(&format!("doctor?run={name}"), 200);
        let held = run["sums"]["allocated_s"].as_f64().unwrap();
        check_value(whole["gpu_hours"].as_f64(), hours(held), name);
        assert_eq!(whole["state"]["started_unix_s"], run["started_unix_s"], "{name}");
        assert_eq!(whole["notes"], Value::Array(Vec::new()), "{name}");
    }
    let name = long.unwrap()["run"].as_str().unwrap();
    let cut = ask(&format!("doctor?run={name}&since={since}&until={until}"), 200);
    assert!(cut["notes"][0].as_str().unwrap().starts_with("The run began at "), "{}", cut["notes"]);
    for (path, text) in [
        (format!("doctor?run={name}0"), format!("got \"{name}0\"; ")),
        ("doctor?host=h100-0000".to_owned(), "got \"h100-0000\"; similar names are ".to_owned()),
        ("runs?run=slurm/unknown".to_owned(), "run: expected a run with rows".to_owned()),
    ] {
        let error = ask(&path, 404)["error"].to_string().replace('\\', "");
        assert!(error.contains(&text), "{path}: {error}");
    }
}

/// Returns the run or host with the most issues.
fn worst(planted: &Value) -> &String {
    let counts = planted.as_object().unwrap().iter();
    let counts = counts.map(|(name, issues)| (name, issues.as_array().unwrap().len()));
    counts.max_by_key(|(_, count)| *count).unwrap().0
}
