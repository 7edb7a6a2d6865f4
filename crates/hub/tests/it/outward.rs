//! Sums that the hub sends to other systems, with real Prometheus, VictoriaMetrics and OTLP.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fleet::proto::{Body, Entry, EntryBatch, GpuInterval, GpuRun, VERSION};
use serde_json::{Value, json};
use testkit::{has_program, skip};

use crate::fixture::{TestHub, WAIT, add_token};
use crate::view::get;

const USERS: [&str; 3] = ["anna", "bob", "\"quoted\"\n"];
const SUMS: [&str; 4] = ["deployed", "allocated", "busy", "held_idle"];
/// Minutes with rows, which end before the current one.
const MINUTES: u64 = 20;

/// A program that ends with the test.
pub struct Peer(pub Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Rows of a host with one GPU, which is held idle by the third user.
fn rows(host: usize, first_minute: u64) -> EntryBatch {
    let entries = (0..MINUTES).map(|minute| {
        let run = GpuRun {
            scheduler: "slurm".to_owned(),
            job: host.to_string(),
            name: "train".to_owned(),
            user: USERS[host].to_owned(),
            ..GpuRun::default()
        };
        let busy_s = [30.5, 7.25, 0.0][host] + if host < 2 { minute as f64 / 16.0 } else { 0.0 };
        let row = GpuInterval {
            start_unix_s: first_minute + minute * 60,
            length_s: 60,
            uuid: format!("GPU-{host}"),
            model: "H100".to_owned(),
            runs: vec![run],
            observed_s: 60.0,
            sums: BTreeMap::from([("busy_s".to_owned(), busy_s)]),
            ..GpuInterval::default()
        };
        Entry { sequence: minute + 1, body: Some(Body::Gpu(Box::new(row))) }
    });
    EntryBatch {
        version: VERSION,
        host: format!("host-{host}"),
        queue: vec![host as u8; 16],
        gone_through: 0,
        entries: entries.collect(),
        sent_unix_ms: None,
    }
}

/// Starts a hub with rows, and restarts it with targets, to which it has sent everything before
/// these rows. Returns the token of a viewer.
fn start(targets: &[(&str, String)]) -> (TestHub, String) {
    let mut hub = TestHub::start("commit_ms = 10");
    let viewer = add_token(&hub.folder, "viewer", "viewer");
    let first = (now_s() / 60 - MINUTES - 1) * 60;
    for host in 0..USERS.len() {
        assert_eq!(hub.send(&rows(host, first)).unwrap().status, 200);
    }
    let mut text = std::fs::read_to_string(hub.folder.path("hub.toml")).unwrap();
    for (protocol, url) in targets {
        text += &format!(
            "\n[[outward]]\nprotocol = '{protocol}'\nurl = '{url}'\ndelay_s = 0\n\
             labels = {{ cluster = 'a' }}\n"
        );
        let name: String =
            url.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        hub.folder.write(&format!("store/outward/{name}"), format!("{first}\n"));
    }
    hub.folder.write("hub.toml", text);
    hub.kill_and_restart();
    (hub, viewer)
}

fn metrics(hub: &TestHub, viewer: &str) -> String {
    let answer = get(hub, viewer, "/metrics", "localhost");
    assert_eq!(answer.status, 200, "{answer:?}");
    String::from_utf8(answer.body).unwrap()
}

fn value(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find(|line| line.starts_with(&format!("rowmill_hub_{name}")));
    assert!(line.is_some(), "no {name}: {metrics}");
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < WAIT, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn peers_that_are_away_or_hang_delay_no_rows() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // Connections wait in the queue of the listener and are never answered.
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let hangs = hanging.local_addr().unwrap();
    let (hub, viewer) = start(&[
        ("remote-write", format!("http://{closed}/write")),
        ("otlp", format!("http://{hangs}/v1/metrics")),
    ]);
    wait_until("a failure is counted", || {
        value(&metrics(&hub, &viewer), "outward_failures_total") > 0.0
    });
    let began = Instant::now();
    let later = EntryBatch { queue: vec![9; 16], host: "h".to_owned(), ..rows(0, now_s() - 2000) };
    assert_eq!(hub.send(&later).unwrap().status, 200);
    assert!(began.elapsed() < Duration::from_secs(10));
    let text = metrics(&hub, &viewer);
    assert_eq!(value(&text, "outward_samples_total"), 0.0);
    assert_eq!(value(&text, "rows_total"), MINUTES as f64);
    assert_eq!(value(&text, "answers_total{path=\"/hub/v1/batches\",status=\"200\"}"), 1.0);
}

/// Returns the values that a Prometheus answers, by user and sum.
fn ask_peer(base: &str) -> BTreeMap<(String, String), f64> {
    let mut values = BTreeMap::new();
    for sum in SUMS {
        let query = format!(
            "sum by (user) (sum_over_time(rowmill_fleet_{sum}_seconds{{cluster=\"a\",pool=\"default\",model=\"H100\",workflow=\"train\"}}[2h]))"
        );
        let request = ureq::get(format!("{base}/api/v1/query"));
        let request = request.query("query", query).query("time", now_s().to_string());
        let text = request.call().unwrap().body_mut().read_to_string().unwrap();
        let answer: Value = serde_json::from_str(&text).unwrap();
        for series in answer["data"]["result"].as_array().unwrap() {
            let user = series["metric"]["user"].as_str().unwrap().to_owned();
            let number = series["value"][1].as_str().unwrap().parse().unwrap();
            values.insert((user, sum.to_owned()), number);
        }
    }
    values
}

fn expected(hub: &TestHub) -> BTreeMap<(String, String), f64> {
    let sums = hub.sums("user");
    let of_user = |user: &'static str| {
        let group = sums["groups"][user].clone();
        SUMS.map(|sum| {
            let value = group[format!("{sum}_s")].as_f64().unwrap();
            ((user.to_owned(), sum.to_owned()), value)
        })
    };
    USERS.into_iter().flat_map(of_user).collect()
}

fn assert_near(got: &BTreeMap<(String, String), f64>, expected: &BTreeMap<(String, String), f64>) {
    assert_eq!(got.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (key, value) in expected {
        assert!((got[key] - value).abs() <= 1e-9 * value.abs(), "{key:?} {} {value}", got[key]);
    }
}

/// Starts a program that serves HTTP at a free port, and waits for it.
fn start_peer(program: &str, words: &[&str], flag: &str) -> (Peer, String) {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = Command::new(program);
    command.args(words).arg(format!("{flag}={address}"));
    let peer = Peer(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let base = format!("http://{address}");
    wait_until(program, || ureq::get(format!("{base}/-/healthy")).call().is_ok());
    (peer, base)
}

#[test]
fn prometheus_and_victoria_metrics_answer_the_sums_of_the_hub() {
    let what = "sums in Prometheus and VictoriaMetrics";
    if !has_program("prometheus", what) || !has_program("victoria-metrics", what) {
        return;
    }
    let folder = testkit::Folder::new();
    folder.write("prometheus.yml", "global: {}\n");
    let flag = |name: &str, path: &str| format!("-{name}={}", folder.path(path).display());
    let (_first, prometheus) = start_peer(
        "prometheus",
        &[
            &format!("-{}", flag("config.file", "prometheus.yml")),
            &format!("-{}", flag("storage.tsdb.path", "prometheus")),
            "--web.enable-remote-write-receiver",
        ],
        "--web.listen-address",
    );
    let (_second, victoria) = start_peer(
        "victoria-metrics",
        &[&flag("storageDataPath", "victoria"), "-search.latencyOffset=0s"],
        "-httpListenAddr",
    );
    let peers = [prometheus, victoria];
    let targets = peers.each_ref().map(|base| ("remote-write", format!("{base}/api/v1/write")));
    let (mut hub, viewer) = start(&targets);
    let expected = expected(&hub);
    for base in &peers {
        wait_until(base, || {
            // VictoriaMetrics shows samples after some seconds unless it is told to flush.
            let _ = ureq::get(format!("{base}/internal/force_flush")).call();
            ask_peer(base).len() == expected.len()
        });
        wait_until(base, || {
            ask_peer(base) == expected || {
                let through = value(&metrics(&hub, &viewer), "outward_through_seconds");
                through >= (now_s() / 60 * 60) as f64
            }
        });
        let _ = ureq::get(format!("{base}/internal/force_flush")).call();
        assert_near(&ask_peer(base), &expected);
    }
    assert_eq!(value(&metrics(&hub, &viewer), "outward_samples_refused_total"), 0.0);
    // A killed hub goes on where it was, and what is sent twice counts once.
    hub.kill_and_restart();
    wait_until("metrics after the restart", || metrics(&hub, &viewer).contains("outward"));
    for base in &peers {
        assert_near(&ask_peer(base), &expected);
    }
}

/// The interpreter with the packages of `ci --full`, or `None` after a line that says so.
pub fn python(what: &str) -> Option<PathBuf> {
    let path = std::env::var_os("ROWMILL_HUB_PYTHON").map(PathBuf::from);
    if path.is_none() {
        skip(what, "ROWMILL_HUB_PYTHON, as `cargo xtask ci --full` sets it");
    }
    path
}

/// The path of a script of `bench/compare`.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/compare").join(name)
}

#[test]
fn otlp_is_decoded_by_opentelemetry() {
    let Some(python) = python("OTLP in Python") else { return };
    let folder = testkit::Folder::new();
    let (port, points) = (folder.path("port"), folder.path("points"));
    let mut command = Command::new(python);
    command.arg(script("otlp_receiver.py")).arg(&port).arg(&points);
    let _peer = Peer(command.spawn().unwrap());
    wait_until("the port of the receiver", || port.exists());
    let port = std::fs::read_to_string(port).unwrap();
    let (hub, viewer) = start(&[("otlp", format!("http://127.0.0.1:{port}/v1/metrics"))]);
    let samples = MINUTES as f64 * USERS.len() as f64 * 10.0;
    wait_until("all samples", || {
        value(&metrics(&hub, &viewer), "outward_samples_total") >= samples
    });
    let mut got = BTreeMap::new();
    for line in std::fs::read_to_string(points).unwrap().lines() {
        let point: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| point[name].as_str().unwrap().to_owned();
        assert_eq!((&point["seconds"], &point["unit"]), (&json!(60.0), &json!("s")));
        assert_eq!([text("service"), text("cluster")], ["rowmill-hub", "a"]);
        let name = text("name");
        let sum = name.strip_prefix("rowmill_fleet_").unwrap().strip_suffix("_seconds").unwrap();
        if SUMS.contains(&sum) {
            *got.entry((text("user"), sum.to_owned())).or_default() +=
                point["value"].as_f64().unwrap();
        }
    }
    assert_near(&got, &expected(&hub));
}
