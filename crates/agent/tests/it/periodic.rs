//! Tests of periodic traces, with a simulated PyTorch job that reports its steps and polls for
//! requests.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fleet::steps::{NAME, Phase, StepMessage};
use serde_json::Value;

use crate::fixture::{Agent, value};
use crate::traces::{Job, honest};

/// A configuration with which a trace is taken as soon as possible.
const ALWAYS: &str = "[periodic]\ntraces_per_day = 86400\nshare_of_steps = 1.0\n";

/// A simulated job that reports steps to an agent until it is dropped.
pub struct Training {
    step_ns: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Training {
    /// Starts a job that reports a step of `step_ns` every few milliseconds.
    pub fn start(agent: &Agent, step_ns: &Arc<AtomicU64>) -> Self {
        let target = agent.sockets().join(NAME);
        let own = Arc::clone(step_ns);
        let thread = std::thread::spawn(move || {
            let socket = UnixDatagram::unbound().unwrap();
            let (mut step, mut monotonic_ns) = (0, 0);
            loop {
                let took = own.load(Ordering::SeqCst);
                if took == 0 {
                    return;
                }
                (step, monotonic_ns) = (step + 1, monotonic_ns + took);
                let phase = Phase::Train;
                let message = StepMessage {
                    phase,
                    own_pid: 1,
                    step,
                    monotonic_ns,
                    samples: 1,
                    exposed_ns: None,
                };
                // The agent may not run yet, or may have ended, so errors are ignored.
                let _ = socket.send_to(&message.to_bytes(), &target);
                // Slower steps are reported less often, as by a real job.
                std::thread::sleep(Duration::from_nanos(took.saturating_sub(1_000_000)));
            }
        });
        Self { step_ns: Arc::clone(step_ns), thread: Some(thread) }
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        self.step_ns.store(0, Ordering::SeqCst);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

pub fn steps_of(step_ns: u64) -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(step_ns))
}

/// Waits until the only row of periodic traces satisfies the condition `is_it`, and returns the
/// row.
fn row(agent: &Agent, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    agent.until(what, |agent| {
        let status: Value =
            serde_json::from_str(&agent.local("GET", "/v1/status", "").body).unwrap();
        let row = status["periodic"][0].clone();
        is_it(&row).then_some(row)
    })
}

fn count(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or(0)
}

#[test]
fn kept_traces_represent_every_step_once_and_budgets_survive_a_restart() {
    let mut agent = Agent::start(ALWAYS, None);
    let step_ns = steps_of(5_000_000);
    let job = Job::start(&agent.sockets(), honest);
    let training = Training::start(&agent, &step_ns);
    row(&agent, "two traces", |row| count(row, "traces") >= 2);
    let page = agent.page("/metrics", "*/*").body;
    assert!(value(&page, "rowmill_periodic_traces_total", &["outcome=\"kept\""]) >= Some(2.0));
    assert!(value(&page, "rowmill_periodic_steps_total", &["kind=\"recorded\""]) >= Some(10.0));
    drop((training, job));
    let pid = agent.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    agent.child.wait().unwrap();
    let mut weighed = 0.0;
    let mut kept = 0;
    for entry in fs::read_dir(agent.path("state/periodic")).unwrap() {
        let folder = entry.unwrap().path();
        let sample = fs::read_to_string(folder.join("sample.json")).unwrap();
        let sample: Value = serde_json::from_str(&sample).unwrap();
        assert!(folder.join(sample["file"]["name"].as_str().unwrap()).exists(), "{sample}");
        assert_eq!(sample["pid"], u64::from(std::process::id()), "{sample}");
        assert_eq!((sample["steps"].as_u64(), &sample["step_ns_before"]), (Some(5), &5e6.into()));
        weighed += sample["weight"].as_f64().unwrap() * 5.0;
        kept += 1;
    }
    let book = fs::read_to_string(agent.path("state/periodic.json")).unwrap();
    let book: Value = serde_json::from_str(&book).unwrap();
    let first = |of: &Value| of.as_object().unwrap().values().next().unwrap().clone();
    let ledger = first(&first(&book["users"]));
    let made = count(&ledger, "steps");
    let stood_for = weighed + count(&ledger, "since") as f64;
    assert!((stood_for - made as f64).abs() < 1e-6 && made > 100, "{stood_for} of {made}");
    assert_eq!(count(&ledger, "traces"), kept);
    agent.restart();
    let row = row(&agent, "yesterday's budget is today's", |row| !row.is_null());
    assert_eq!((count(&row, "traces"), count(&row, "steps")), (kept, made));
}

#[test]
fn bytes_of_a_day_are_not_exceeded() {
    let agent = Agent::start(&format!("{ALWAYS}mib_per_day = 1\n"), None);
    let step_ns = steps_of(5_000_000);
    let training = Training::start(&agent, &step_ns);
    let large = |path: &str, id: &str| {
        let text = format!("{{\"trace_id\": \"{id}\"{}}}", " ".repeat(700 << 10));
        fs::write(format!("{path}.tmp"), text).unwrap();
        fs::rename(format!("{path}.tmp"), path).unwrap();
    };
    let job = Job::start(&agent.sockets(), large);
    let row = row(&agent, "an end of the bytes", |row| row["state"] == "today's bytes are used up");
    assert_eq!((count(&row, "traces"), count(&row, "lost")), (1, 0), "{row}");
    agent.until("a period without a trace", |agent| {
        let page = agent.page("/metrics", "*/*").body;
        value(&page, "rowmill_periodic_skipped_total", &["reason=\"bytes\""])
    });
    drop((training, job));
}

#[test]
fn a_job_slowed_by_every_trace_backs_off_but_not_after_one_noisy_trace() {
    let agent = Agent::start("[periodic]\ntraces_per_day = 86400\nshare_of_steps = 0.003\n", None);
    let step_ns = steps_of(3_000_000);
    let training = Training::start(&agent, &step_ns);
    let own = Arc::clone(&step_ns);
    let job = Job::start(&agent.sockets(), move |path, id| {
        own.store(60_000_000, Ordering::SeqCst);
        honest(path, id);
    });
    let (mut traces, mut slow) = (0, 0);
    while slow < 3 {
        let row = row(&agent, "a trace", |row| count(row, "traces") > traces);
        step_ns.store(3_000_000, Ordering::SeqCst);
        (traces, slow) = (count(&row, "traces"), count(&row, "slow_in_row"));
        assert_eq!(count(&row, "backs_off_s") > 0, slow == 3, "{row}");
        assert!(slow == 0 || row["slowdown"].as_f64() > Some(0.03), "{row}");
        assert!(slow > 0 || row["spread"].is_null(), "{row}");
    }
    let row = row(&agent, "a back-off", |row| row["state"] == "backs off");
    assert!(count(&row, "backs_off_s") > 3500, "{row}");
    let status = agent.local("GET", "/v1/status", "").body;
    assert!(status.contains("longer while each of the last 3 was made"), "{status}");
    drop((training, job));
}

#[test]
fn busy_profilers_are_skipped() {
    let agent = Agent::start(ALWAYS, None);
    let step_ns = steps_of(5_000_000);
    let training = Training::start(&agent, &step_ns);
    let job = Job::start_as(&agent.sockets(), 0, honest);
    let row = row(&agent, "a busy profiler", |row| row["state"] == "profilers are busy");
    agent.until("a period without a trace", |agent| {
        let page = agent.page("/metrics", "*/*").body;
        value(&page, "rowmill_periodic_skipped_total", &["reason=\"busy\""])
    });
    assert_eq!(count(&row, "traces") + count(&row, "lost"), 0, "{row}");
    drop((training, job));
}
