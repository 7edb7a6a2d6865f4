//! What viewers see: answers over HTTP, the page in a browser, and the reports of `rowmill fleet`.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use fleet::proto::{
    Body, Entry, EntryBatch, GpuInterval, GpuRun, HostEvent, HostInterval, VERSION,
};
use serde_json::{Value, json};
use testkit::ProgramOutput;
use testkit::browser::Browser;

use crate::fixture::{Answer, TestHub, add_token, ask, program_beside};

const LENGTH_S: u64 = 60;
const SCRIPT: &str = "<script>alert(1)</script>";

/// Minutes in which the simulated hosts report. The third host stops an hour earlier.
const MINUTES: u64 = 120;

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 60 * 60
}

/// A hub with rows of three hosts of two GPUs: one works, one is held idle by a user whose name is
/// markup, and one stops reporting and has faults. Two of the hosts reported a week before too.
pub fn start(lines: &str) -> (TestHub, String) {
    let mut hub = TestHub::start(lines);
    let viewer = add_token(&hub.folder, "viewer", "viewer");
    // The hub reads its tokens at its start.
    hub.kill_and_restart();
    for (weeks, hosts) in [(0, 3), (1, 2)] {
        for host in 0..hosts {
            let batch = rows(host, now() - weeks * 7 * 86_400, weeks);
            let answer = hub.send(&batch).unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }
    (hub, viewer)
}

fn rows(host: u64, until: u64, weeks: u64) -> EntryBatch {
    let minutes = if host == 2 { MINUTES - 60 } else { MINUTES };
    let name = if host == 1 { SCRIPT } else { "train" };
    let run = GpuRun {
        scheduler: "slurm".to_owned(),
        job: (100 + host).to_string(),
        name: name.to_owned(),
        user: if host == 1 { SCRIPT.to_owned() } else { "anna".to_owned() },
        ..GpuRun::default()
    };
    let row = |minute: u64, index: u32| {
        let busy_s = if host == 1 { 0.0 } else { 45.0 };
        let mut sums = BTreeMap::from([("busy_s".to_owned(), busy_s)]);
        if host != 2 {
            sums.insert("sm_active_s".to_owned(), busy_s / 2.0);
        }
        let is_faulty = host == 2 && minute == 3;
        let named = |name: &str| BTreeMap::from([(name.to_owned(), 60.0)]);
        GpuInterval {
            start_unix_s: until - (MINUTES - minute) * LENGTH_S,
            length_s: LENGTH_S as u32,
            index,
            uuid: format!("GPU-{host}-{index}"),
            model: "NVIDIA H100 80GB HBM3".to_owned(),
            runs: vec![run.clone()],
            observed_s: LENGTH_S as f64,
            sums,
            throttle_s: if is_faulty { named("hw_slowdown") } else { named("sw_power_cap") },
            errors: BTreeMap::from([("xid_79".to_owned(), u64::from(is_faulty))]),
            ..GpuInterval::default()
        }
    };
    let own = |minute: u64| HostInterval {
        start_unix_s: row(minute, 0).start_unix_s,
        length_s: LENGTH_S as u32,
        observed_s: LENGTH_S as f64,
        // Two cores.
        cpu_s: [("user", 15.0), ("system", 9.0), ("idle", 96.0)]
            .map(|(mode, seconds)| (mode.to_owned(), seconds))
            .into(),
        ..HostInterval::default()
    };
    let rows = (0..minutes).flat_map(|minute| {
        let gpus = [0, 1].map(|index| Body::Gpu(Box::new(row(minute, index))));
        gpus.into_iter().chain([Body::Host(Box::new(own(minute)))])
    });
    let first = 1;
    let entries = rows.zip(first..).map(|(body, sequence)| Entry { sequence, body: Some(body) });
    EntryBatch {
        version: VERSION,
        host: format!("host-{host}"),
        queue: vec![(host + 10 * weeks) as u8; 16],
        gone_through: first - 1,
        entries: entries.collect(),
        sent_unix_ms: None,
    }
}

/// An hour in which a run of the user mia holds a GPU. The GPU's SMs are active for the share
/// `active` of the time, and their occupancy is a quarter.
fn hour_of_mia(host: u8, until: u64, workflow: &str, active: f64) -> EntryBatch {
    let run = GpuRun {
        scheduler: "slurm".to_owned(),
        job: (200 + u32::from(host)).to_string(),
        name: workflow.to_owned(),
        user: "mia".to_owned(),
        ..GpuRun::default()
    };
    let sums = [("busy_s", 60.0), ("sm_active_s", 60.0 * active), ("sm_occupancy_s", 15.0)];
    let row = |minute: u64| GpuInterval {
        start_unix_s: until - (60 - minute) * LENGTH_S,
        length_s: LENGTH_S as u32,
        uuid: format!("GPU-{host}"),
        model: "NVIDIA H100 80GB HBM3".to_owned(),
        runs: vec![run.clone()],
        observed_s: LENGTH_S as f64,
        sums: sums.map(|(name, seconds)| (name.to_owned(), seconds)).into(),
        ..GpuInterval::default()
    };
    let entry =
        |minute: u64| Entry { sequence: minute + 1, body: Some(Body::Gpu(Box::new(row(minute)))) };
    EntryBatch {
        version: VERSION,
        host: format!("mia-{host}"),
        queue: vec![100 + host; 16],
        gone_through: 0,
        entries: (0..60).map(entry).collect(),
        sent_unix_ms: None,
    }
}

/// Checks the measured top line, and that a user whose efficiency fell only because of another mix
/// of workflows is not among those whose efficiency falls.
fn check_top_line_and_mix(hub: &TestHub, browser: &mut Browser, url: &str) {
    let week = 7 * 86_400;
    for (host, until, workflow, active) in [
        (0, now() - week, "good", 0.8),
        (1, now() - week, "poor", 0.2),
        (2, now(), "poor", 0.2),
        (3, now(), "poor", 0.2),
        (4, now(), "poor", 0.2),
    ] {
        let answer = hub.send(&hour_of_mia(host, until, workflow, active)).unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let mut show = |view: &str| {
        browser.load(&format!("{url}?is.user=mia&view={view}"));
        browser.value(
            "new Promise((done) => { const look = () => document.body.dataset.shown ? done(1) : \
             setTimeout(look, 20); look(); })",
        );
        browser.value("document.body.innerText").as_str().unwrap().to_owned()
    };
    let band = show("band");
    let top_line = "25.0 % SM occupancy over elapsed cycles of allocated GPUs";
    assert!(band.contains(top_line) && band.contains("Measured in 100.0 %"), "{band}");
    let change = show("change");
    assert!(change.contains("mia\t3\t2\t20.0 %\t50.0 %\t0.9\t0\t0.9"), "{change}");
    let opportunity = show("opportunity");
    let falls = opportunity.split("Use up while efficiency falls").nth(1).unwrap();
    assert!(falls.split("Hung jobs").next().unwrap().contains("There are none."), "{opportunity}");
}

pub fn get(hub: &TestHub, token: &str, path: &str, host: &str) -> Answer {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\
         Connection: close\r\n\r\n"
    );
    ask(&hub.address, request.as_bytes()).unwrap()
}

#[test]
fn viewers_get_sums_faults_and_reasons_for_refusals() {
    let (hub, viewer) = start("");
    let local = "127.0.0.1:9470";
    let sums = |query: &str| -> Value {
        let answer = get(&hub, &viewer, &format!("/hub/v1/sums?since=3h{query}"), local);
        assert_eq!(answer.status, 200, "{answer:?}");
        serde_json::from_slice(&answer.body).unwrap()
    };
    let all = sums("");
    let hours = |value: &Value| value.as_f64().unwrap() / 3600.0;
    // Two hosts of two GPUs for two hours, and one for one hour.
    assert_eq!(hours(&all["total"]["sums"]["deployed_s"]), 10.0);
    let parts: Vec<f64> = all["total"]["parts"].as_array().unwrap().iter().map(hours).collect();
    assert_eq!(parts, [0.0, 0.0, 0.0, 0.0, 5.5, 1.5, 1.5, 1.5]);
    let percent: f64 =
        all["total"]["percent"].as_array().unwrap().iter().map(|p| p.as_f64().unwrap()).sum();
    assert!((percent - 100.0).abs() < 1e-9);
    assert_eq!(all["total"]["efficiency"], json!([0.15, 0.3]));
    let users = sums("&by=user&by=host&host=host-0&host=host-1");
    let names: Vec<&Value> =
        users["groups"].as_array().unwrap().iter().map(|group| &group["user"]).collect();
    assert!(names.contains(&&json!("anna")) && names.contains(&&json!(SCRIPT)) && names.len() == 2);
    assert_eq!(hours(&users["total"]["sums"]["held_idle_s"]), 4.0);
    let limited = sums("&by=run&limit=1&weight=sm");
    assert_eq!((&limited["groups_left_out"], &limited["unit"]), (&json!(2), &json!("SM s")));
    assert_eq!(hours(&limited["total"]["sums"]["deployed_s"]), 1320.0);
    // The limit leaves out all steps of a run, and their sums remain.
    let limited = sums("&by=run&limit=1&step=minute");
    let names = limited["groups"].as_array().unwrap().iter().map(|group| &group["run"]);
    assert_eq!(names.collect::<std::collections::HashSet<_>>().len(), 1);
    let deployed = |list: &Value| -> f64 {
        list.as_array().unwrap().iter().map(|group| hours(&group["sums"]["deployed_s"])).sum()
    };
    assert!((deployed(&limited["groups"]) - 4.0).abs() < 1e-9);
    assert!((deployed(&limited["others"]) - 6.0).abs() < 1e-9);
    // Of 29 or 30 whole hours, two have rows.
    assert!(sums("&since=30h")["hours_missing"].as_u64().unwrap() >= 27);
    let hosts = get(&hub, &viewer, "/hub/v1/hosts?since=3h&user=anna", local);
    let hosts: Value = serde_json::from_slice(&hosts.body).unwrap();
    let names =
        hosts["hosts"].as_array().unwrap().iter().map(|host| host["host"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["host-2", "host-0"], "sick ones first");
    check_attempts_and_hangs(&hub, &viewer);
    let priced = sums("&weight=price");
    assert_eq!(priced["unknown_weight"], json!(["NVIDIA H100 80GB HBM3"]));
    let faults = get(&hub, &viewer, "/hub/v1/faults?since=3h", local);
    let faults: Value = serde_json::from_slice(&faults.body).unwrap();
    let kinds: Vec<&Value> =
        faults["faults"].as_array().unwrap().iter().map(|fault| &fault["kind"]).collect();
    assert_eq!(
        kinds,
        ["error xid_79", "throttled hw_slowdown", "error xid_79", "throttled hw_slowdown"]
    );
    for (status, token, path, host) in [
        (401, "wrong", "/hub/v1/sums", local),
        (403, hub.token.as_str(), "/hub/v1/sums", local),
        (403, viewer.as_str(), "/hub/v1/sums", "evil.example:9470"),
        (403, "", "/", "evil.example"),
        (400, viewer.as_str(), "/hub/v1/sums?by=team", local),
        (400, viewer.as_str(), "/hub/v1/faults?since=tomorrow", local),
        (200, "", "/page.js", "localhost:9470"),
    ] {
        let answer = get(&hub, token, path, host);
        assert_eq!(answer.status, status, "{path}: {answer:?}");
    }
}

/// Checks that a failed attempt before a requeue has its part of the GPU hours, and that a hang has
/// those since its begin.
fn check_attempts_and_hangs(hub: &TestHub, viewer: &str) {
    let begin = now() - MINUTES * LENGTH_S;
    let run = GpuRun {
        scheduler: "slurm".to_owned(),
        job: "100".to_owned(),
        name: "train".to_owned(),
        user: "anna".to_owned(),
        ..GpuRun::default()
    };
    let event = |sequence: u64, kind: &str, minute: u64, minutes: u64, details: Value| {
        let event = HostEvent {
            kind: kind.to_owned(),
            start_unix_ms: (begin + minute * 60) * 1000,
            length_ms: minutes * 60_000,
            is_over: true,
            run: Some(run.clone()),
            details: details.to_string(),
            ..HostEvent::default()
        };
        Entry { sequence, body: Some(Body::Event(Box::new(event))) }
    };
    let failed = json!({ "state": "node_fail", "exit_code": 1, "exit_signal": null });
    let entries = vec![
        event(1, "requeue", 0, 30, failed),
        event(2, "hang", 90, 30, json!({ "workflow": "train" })),
    ];
    let (host, queue) = ("host-0".to_owned(), vec![50; 16]);
    let (version, gone_through, sent_unix_ms) = (VERSION, 0, None);
    let batch = EntryBatch { version, host, queue, gone_through, entries, sent_unix_ms };
    assert_eq!(hub.send(&batch).unwrap().status, 200);
    let ask = |what: &str| -> Value {
        let path = format!("/hub/v1/{what}?since=3h&user=anna");
        let answer = get(hub, viewer, &path, "127.0.0.1");
        serde_json::from_slice(&answer.body).unwrap()
    };
    let hours = |value: &Value| (value.as_f64().unwrap() / 36.0).round() / 100.0;
    let runs = ask("runs");
    let run = runs["runs"].as_array().unwrap().iter().find(|run| run["run"] == "slurm/100");
    let attempt = &run.unwrap()["attempts"][0];
    assert_eq!((hours(&attempt["allocated"]), &attempt["is_failed"]), (1.0, &json!(true)));
    assert_eq!((hours(&runs["failed"]), hours(&runs["repeated"])), (1.0, 3.0), "{runs}");
    let opportunities = ask("opportunities");
    assert_eq!(hours(&opportunities["hangs"][0]["allocated"]), 1.0, "{opportunities}");
}

#[test]
fn the_page_shows_the_band_and_lists_by_clicks_and_names_stay_text() {
    let (hub, viewer) = start("[logs]\nurl = 'https://logs.example/{scheduler}/{job}?user={user}'");
    let url = format!("http://{}/", hub.address);
    let wait = "new Promise((done) => { const look = () => document.querySelector('svg') ? done(1) : \
                setTimeout(look, 20); look(); })";
    for scheme in ["light", "dark"] {
        let Some(mut browser) = Browser::open_url(&url, scheme) else { return };
        browser.value("document.getElementById('token').value = ''");
        let log_in = format!(
            "document.getElementById('token').value = '{viewer}'; \
             document.querySelector('#login button').click()"
        );
        browser.value(&log_in);
        browser.value(wait);
        let text = |browser: &mut Browser| {
            browser.value("document.body.innerText").as_str().unwrap().to_owned()
        };
        let shown = text(&mut browser);
        assert!(shown.contains("15.0 % to 30.0 % of the deployed time had active SMs"), "{shown}");
        assert!(shown.contains(SCRIPT) && shown.contains("55.0 % · 5.5 GPU h"), "{shown}");
        let stand_in =
            "SM occupancy over elapsed cycles was not measured in this time, so the time";
        assert!(shown.contains(stand_in), "{shown}");
        let click = |browser: &mut Browser, find: &str| {
            browser.value(&format!(
                "new Promise((done) => {{ const turn = document.body.dataset.shown; const node = {find}; \
                 node.dispatchEvent(new MouseEvent('click', {{ bubbles: true }})); const look = () => \
                 document.body.dataset.shown !== turn ? done(1) : setTimeout(look, 20); look(); }})"
            ));
        };
        // Band, type, user, run.
        click(&mut browser, "document.querySelector('[data-part=\"4\"]')");
        assert!(text(&mut browser).contains("GPU idle, by workflow"));
        click(&mut browser, "document.querySelector('td button.name')");
        assert!(text(&mut browser).contains("GPU idle, by user"));
        click(&mut browser, "document.querySelector('td button.name')");
        click(&mut browser, "document.querySelector('td button.name')");
        let shown = text(&mut browser);
        assert!(shown.contains("run: slurm/101") && shown.contains("GPU idle, by host"), "{shown}");
        let address = browser.value("location.href").as_str().unwrap().to_owned();
        browser.load(&address);
        browser.value(wait);
        assert_eq!(text(&mut browser), shown);
        assert_eq!(browser.value("document.querySelectorAll('script').length"), 3);
        // Every view is named by its address.
        for (view, text_of_view) in [
            ("time&bound=upper", "SM active, by user"),
            ("change", "Each workflow, by what its drop of efficiency costs"),
            ("change&sort=user", "within workflows"),
            ("band&weight=price", "No model has a known price."),
            ("band&is.user=anna", "100 % is the time of the selected GPUs: user anna."),
            ("bars", "The address asks for view “bars”, which is unknown"),
            ("runs&sort=user", "Failed runs held 0 GPU h"),
            ("hosts", "GPUs 0, 1: throttled for 1.0 minutes (hw_slowdown)"),
            ("opportunity", "Workflows by what they would gain"),
            ("band&tree=cpu&by=host", "12.5 % of the deployed time had cores in user code"),
            ("time&tree=cpu", "user code, by pool"),
            ("band&since=yesterday", "A week before"),
        ] {
            browser.load(&format!("{url}?view={view}"));
            browser.value(
                "new Promise((done) => { const look = () => document.body.dataset.shown ? done(1) : \
                 setTimeout(look, 20); look(); })",
            );
            let shown = text(&mut browser);
            let is_shown = shown.contains(text_of_view) || shown.contains("No rows of GPUs");
            assert!(is_shown, "{view}: {shown}");
        }
        // A run has a screen of its own, and its name stays text. Its logs are linked.
        browser.load(&format!("{url}?view=runs"));
        let look = |find: &str| {
            format!(
                "new Promise((done) => {{ const look = () => {find} ? done(1) : \
                 setTimeout(look, 20); look(); }})"
            )
        };
        browser.value(&look("document.querySelector('td a')"));
        let logs = browser.value("document.querySelector('td a[target]').href");
        assert!(logs.as_str().unwrap().starts_with("https://logs.example/slurm/10"), "{logs}");
        let link = browser.value("document.querySelector('td a').href");
        browser.load(link.as_str().unwrap());
        browser.value(&look("document.querySelector('[role=tab]')"));
        assert!(text(&mut browser).contains("run slurm/10"));
        assert_eq!(browser.complaints(), Vec::<String>::new());
        // An unknown name is an error, and stays text. The browser notes the status of the answer.
        browser.load(&format!("{url}doctor?run=%3Cscript%3Ealert(1)%3C/script%3E&tabs=gpu"));
        browser.value(&look("!document.getElementById('problem').hidden"));
        let shown = text(&mut browser);
        assert!(shown.contains("expected a run with rows or reports") && shown.contains(SCRIPT));
        assert!(shown.contains("unknown key “tabs”"), "{shown}");
        let complaints = browser.complaints();
        assert!(complaints.iter().all(|one| one.contains("404")), "{complaints:?}");
        browser.load(&url);
        browser.value(wait);
        if let Some(folder) = std::env::var_os("ROWMILL_PICTURES") {
            // The lists are below the first screen.
            for (at, name) in ["band", "lists"].into_iter().enumerate() {
                browser.value(&format!("scrollTo(0, {})", at * 10_000));
                let file = format!("hub-{name}-{scheme}.png");
                browser.picture(&std::path::Path::new(&folder).join(file));
            }
        }
        if scheme == "dark" {
            check_top_line_and_mix(&hub, &mut browser, &url);
        }
    }
}

/// Opens the screen of a run or a host in a color scheme, and clicks all of its tabs. `name` names
/// the pictures.
pub fn click_tabs(hub: &TestHub, viewer: &str, query: &str, [name, scheme]: [&str; 2]) {
    let shown = "new Promise((done) => { const look = () => document.querySelector('[role=tab]') ? \
                 done(1) : setTimeout(look, 20); look(); })";
    let url = format!("http://{}/doctor?{query}", hub.address);
    let Some(mut browser) = Browser::open_url(&url, scheme) else { return };
    browser.value(&format!(
        "document.getElementById('token').value = '{viewer}'; \
         document.querySelector('#login button').click()"
    ));
    browser.value(shown);
    for tab in ["cpu", "gpu", "memory", "network", "application", "traces"] {
        let selected = format!(
            "new Promise((done) => {{ const turn = document.body.dataset.shown; \
             document.querySelector('[data-tab={tab}]').click(); const look = () => \
             document.body.dataset.shown !== turn ? done(1) : setTimeout(look, 20); look(); }})"
        );
        browser.value(&selected);
        let count = browser.value(&format!(
            "document.querySelectorAll('[data-tab={tab}][aria-selected=true]').length"
        ));
        assert_eq!(count, 1, "{tab}");
        if let Some(folder) = std::env::var_os("ROWMILL_PICTURES") {
            let file = format!("doctor-{name}-{tab}-{scheme}.png");
            browser.picture(&std::path::Path::new(&folder).join(file));
        }
    }
    // The address names the tab.
    let address = browser.value("location.href").as_str().unwrap().to_owned();
    browser.load(&address);
    browser.value(shown);
    let is_traces = "document.querySelector('[aria-selected=true]').dataset.tab";
    assert_eq!(browser.value(is_traces), "traces");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn reports_name_owners_jobs_and_sick_nodes() {
    let Some(program) = program_beside("rowmill") else {
        testkit::skip("reports of the fleet", "the program rowmill beside the hub");
        return;
    };
    let (hub, viewer) = start("");
    hub.folder.write("viewer.token", viewer);
    let run = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("fleet").args(words).args(["--hub", &format!("http://{}", hub.address)]);
        command.arg("--token-file").arg(hub.folder.path("viewer.token"));
        ProgramOutput::collect(&mut command)
    };
    let html = hub.folder.path("report.html");
    let html_path = html.to_str().unwrap();
    let report = run(&["report", "--format", "json", "--html", html_path]).expect_code(0, "report");
    let report = report.json();
    assert_eq!(report["gpu_hours"], json!({ "now": 10.0, "week_before": 8.0 }));
    let owner = &report["idle_owners"]["rows"][0];
    assert_eq!((&owner["user"], &owner["idle_hours"]["now"]), (&json!(SCRIPT), &json!(4.0)));
    assert_eq!(owner["idle_hours"]["week_before"], 4.0);
    assert_eq!(report["jobs"]["rows"][0]["run"], "slurm/101");
    assert_eq!(report["jobs"]["rows"].as_array().unwrap().len(), 3);
    let node = &report["nodes"]["rows"][0];
    let problems = node["problems"].to_string();
    assert_eq!((&node["host"], &node["week_before"]), (&json!("host-2"), &json!(0)));
    for problem in ["GPUs 0, 1: xid_79 × 2", "throttled for 1.0 minutes", "silent"] {
        assert!(problems.contains(problem), "{problems}");
    }
    assert!(report["notes"].to_string().contains("observed in 80.0 %"), "{}", report["notes"]);
    let html = std::fs::read_to_string(html).unwrap();
    assert!(!html.contains("<script") && html.contains("&lt;script&gt;"), "{html}");
    if let Some(mut browser) = Browser::open(&html, "light") {
        assert_eq!(browser.complaints(), Vec::<String>::new());
        if let Some(folder) = std::env::var_os("ROWMILL_PICTURES") {
            browser.picture(&std::path::Path::new(&folder).join("hub-report.png"));
        }
    }
    let text = run(&["report"]).expect_code(0, "report").stdout;
    println!("{text}");
    for line in ["Where the deployed GPU time went", "SM not observed", "Sick nodes", "slurm/102"] {
        assert!(text.contains(line), "{text}");
    }
    // The job is reported from its beginning.
    let whole = run(&["job", "101", "--format", "json"]).expect_code(0, "job");
    assert_eq!(whole.json()["allocated_hours"], 4.0);
    println!("{}", run(&["job", "102"]).expect_code(0, "job").stdout);
    let job = run(&["job", "102", "--format", "json"]).expect_code(0, "job").json();
    assert_eq!((&job["user"], &job["lost_hours"]), (&json!("anna"), &json!([0.5, 2.0])));
    assert!(job["hosts"][0]["problems"].to_string().contains("xid_79"), "{job}");
    println!("{}", run(&["doctor", "--host", "host-2"]).expect_code(0, "doctor").stdout);
    let doctor = run(&["doctor", "--host", "host-2", "--format", "json"]);
    let doctor = doctor.expect_code(0, "doctor").json();
    let rules: Vec<&Value> =
        doctor["findings"].as_array().unwrap().iter().map(|one| &one["rule"]).collect();
    assert_eq!(rules, ["P09", "P05"], "{doctor}");
    // Two GPUs waited for a quarter of an hour each, which no rule explains.
    let losses = &doctor["losses"];
    assert_eq!(
        (&losses["lost_gpu_hours"], &losses["parts"][0]["rule"]),
        (&json!(0.5), &Value::Null)
    );
    let unknown = run(&["job", "7"]).expect_code(1, "unknown job").stderr;
    assert!(
        unknown.contains("slurm/7") && unknown.contains("hint: name the scheduler"),
        "{unknown}"
    );
    for (kind, name) in [("--job", "slurm/10"), ("--host", "host-7")] {
        let unknown = run(&["doctor", kind, name]).expect_code(1, "unknown name").stderr;
        assert!(unknown.contains(name) && unknown.contains("similar names are"), "{unknown}");
    }
}
