//! Tests of the agent program with a real hub over HTTPS. The tests cover kills, restarts, lost
//! connections, a lost GPU, and orders that arrive by long poll.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fleet::proto::{
    Ack, BATCHES, Body, CONTENT_TYPE, EntryBatch, GpuInterval, ORDERS, Order, OrderState, Orders,
    OrdersWanted, PARTS, PartAck, RunReport, SendOrder, TraceOrder, TracePart, Wanted,
};
use prost::Message;

use testkit::certificate::{CertificateFiles, create_certificate};

use crate::fixture::{Agent, WAIT, value};
use crate::periodic::{Training, steps_of};
use crate::server;
use crate::traces::{Job, honest};

const TOKEN: &str = "0123456789abcdef";
const GPUS: &str = "gpu=0 util=50\ngpu=1 util=100\n";

/// A test hub, with all the messages that it received.
#[derive(Default)]
struct Hub {
    stored: Mutex<BTreeMap<(Vec<u8>, u64), Body>>,
    orders: Mutex<Vec<Order>>,
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    is_away: AtomicBool,
    /// Number of batches that arrived. Every third batch is stored without an answer.
    lost: AtomicU64,
}

impl Hub {
    fn answer(&self, path: &str, head: &str, body: &[u8]) -> Option<Vec<u8>> {
        let is_known = head.contains(&format!("authorization: bearer {TOKEN}"));
        assert!(is_known && head.contains(CONTENT_TYPE), "{head}");
        if self.is_away.load(Ordering::SeqCst) {
            return None;
        }
        match path {
            BATCHES => {
                let batch = EntryBatch::decode(body).unwrap();
                let through = batch.entries.last().map_or(0, |entry| entry.sequence);
                let mut stored = self.stored.lock().unwrap();
                for entry in batch.entries {
                    let key = (batch.queue.clone(), entry.sequence);
                    stored.entry(key).or_insert(entry.body.unwrap());
                }
                let is_lost = self.lost.fetch_add(1, Ordering::SeqCst).is_multiple_of(3);
                (!is_lost).then(|| Ack { through }.encode_to_vec())
            }
            ORDERS => {
                let wanted = OrdersWanted::decode(body).unwrap();
                let until = Instant::now() + Duration::from_secs(1);
                loop {
                    let orders = self.orders.lock().unwrap().clone();
                    let new = orders.into_iter().filter(|order| order.id > wanted.after);
                    let orders = Orders { orders: new.collect() };
                    if !orders.orders.is_empty() || Instant::now() > until {
                        return Some(orders.encode_to_vec());
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            PARTS => {
                let part = TracePart::decode(body).unwrap();
                let mut files = self.files.lock().unwrap();
                let file = files.entry(part.file.unwrap().name).or_default();
                if part.offset == file.len() as u64 {
                    file.extend_from_slice(&part.bytes);
                }
                Some(PartAck { received: file.len() as u64 }.encode_to_vec())
            }
            _ => None,
        }
    }

    fn gpus(&self) -> Vec<GpuInterval> {
        let stored = self.stored.lock().unwrap();
        let gpu = |body: &Body| match body {
            Body::Gpu(row) => Some((**row).clone()),
            _ => None,
        };
        stored.values().filter_map(gpu).collect()
    }

    fn states(&self, id: u64) -> Vec<OrderState> {
        let stored = self.stored.lock().unwrap();
        let state = |body: &Body| match body {
            Body::Order(state) if state.id == id => Some(state.clone()),
            _ => None,
        };
        stored.values().filter_map(state).collect()
    }
}

/// Starts a test hub. Returns `None` and skips the test if no certificate can be created.
fn start(folder: &Path) -> Option<(Arc<Hub>, String)> {
    let CertificateFiles { certificate, key } = create_certificate(folder, "a hub")?;
    let hub = Arc::new(Hub::default());
    let own = Arc::clone(&hub);
    let address =
        server::serve(&certificate, &key, move |path, head, body| own.answer(path, head, body));
    let token = folder.join("token");
    fs::write(&token, TOKEN).unwrap();
    Command::new("chmod").arg("600").arg(&token).status().unwrap();
    let configuration = format!(
        "[hub]\nurl = 'https://{address}'\nca = '{}'\ntoken_file = '{}'\n\
         verbs = ['trace', 'pause']\n",
        certificate.display(),
        token.display()
    );
    Some((hub, configuration))
}

fn until(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < WAIT, "not within {WAIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_killed_agent_and_an_unreachable_hub_duplicate_no_row() {
    let folder = tempfile::tempdir().unwrap();
    let Some((hub, configuration)) = start(folder.path()) else { return };
    let mut agent = Agent::start(&configuration, Some(GPUS));
    until("rows", || hub.gpus().len() >= 4);
    agent.kill();
    agent.restart();
    hub.is_away.store(true, Ordering::SeqCst);
    agent.until("rows that wait", |agent| {
        let page = agent.page("/metrics", "*/*").body;
        let waiting = value(&page, "rowmill_hub_queue_entries", &[])?;
        (waiting >= 9.0 && value(&page, "rowmill_hub_up", &[]) == Some(0.0)).then_some(())
    });
    agent.scenario("gpu=0 lost=1\ngpu=1 util=100\n");
    agent.kill();
    agent.restart();
    hub.is_away.store(false, Ordering::SeqCst);
    let before = hub.gpus().len();
    until("rows of both lives", || hub.gpus().len() >= before + 14);
    let mut starts = BTreeSet::new();
    for row in hub.gpus() {
        assert!(starts.insert((row.uuid.clone(), row.start_unix_s)), "double: {row:?}");
        // Within a second, the monotonic clock and the wall clock may differ slightly.
        assert!(row.observed_s <= 1.01, "{row:?}");
        let share = if row.index == 0 { 0.5 } else { 1.0 };
        let busy = row.sums.get("busy_s").copied().unwrap_or(0.0);
        assert!((busy - share * row.observed_s).abs() < 1e-9, "{row:?}");
    }
    let seen = |index| hub.gpus().iter().any(|row| row.index == index && row.observed_s == 0.0);
    assert!(seen(0), "the lost GPU is unobserved");
    let queues: BTreeSet<Vec<u8>> =
        hub.stored.lock().unwrap().keys().map(|(queue, _)| queue.clone()).collect();
    assert_eq!(queues.len(), 1, "one queue through all lives");
    let has_host = |body: &Body| matches!(body, Body::Host(row) if row.cpu_s.contains_key("user"));
    assert!(hub.stored.lock().unwrap().values().any(has_host));
}

fn trace(token: &str) -> Wanted {
    Wanted::Trace(TraceOrder {
        token: token.to_owned(),
        iterations: 5,
        align: 100,
        size_max: 1 << 20,
        patience_ms: 20_000,
        ..TraceOrder::default()
    })
}

#[test]
fn orders_come_by_long_poll_and_traces_go_back_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let Some((hub, configuration)) = start(folder.path()) else { return };
    let mut agent = Agent::start(&configuration, Some(GPUS));
    let order = |id, wanted| {
        hub.orders.lock().unwrap().push(Order { id, wanted: Some(wanted) });
    };
    let ended = |id| {
        until(&format!("the end of order {id}"), || hub.states(id).iter().any(|s| s.is_over));
        hub.states(id).pop().unwrap()
    };
    order(1, trace("nobody"));
    assert!(ended(1).error.contains("no process polls"), "{:?}", ended(1));
    let job = Job::start(&agent.sockets(), honest);
    agent.until("the job", |agent| {
        agent.local("GET", "/v1/status", "").body.contains("\"polled_ms\"").then_some(())
    });
    let Wanted::Trace(of_other) = trace("other") else { return };
    order(2, Wanted::Trace(TraceOrder { run: Some("slurm/none".to_owned()), ..of_other }));
    assert!(ended(2).error.contains("belongs to another job"), "{:?}", ended(2));
    order(3, trace("first"));
    let state = ended(3);
    let file = state.processes[0].file.clone().unwrap();
    let files = hub.files.lock().unwrap().clone();
    assert_eq!(files[&file.name].len() as u64, file.bytes, "{state:?}");
    drop(job);
    order(4, Wanted::Pause(fleet::proto::Pause { gpu: 1, seconds: 600 }));
    assert_eq!(ended(4).error, "");
    assert!(agent.local("GET", "/v1/status", "").body.contains("\"paused_s\":"));
    order(5, Wanted::Pause(fleet::proto::Pause { gpu: 9, seconds: 600 }));
    assert!(ended(5).error.contains("expected a GPU of this host"));
    // The job makes no steps, so the order must still be open when the agent is killed.
    let job = Job::start(&agent.sockets(), |_, _| {});
    agent.until("the job", |agent| {
        agent.local("GET", "/v1/status", "").body.contains("\"skip\":null").then_some(())
    });
    order(6, trace("killed"));
    until("an open order", || !hub.states(6).is_empty());
    agent.kill();
    agent.restart();
    assert!(ended(6).error.contains("restarted"), "{:?}", ended(6));
    order(7, trace("cancelled"));
    order(8, Wanted::Cancel("cancelled".to_owned()));
    assert!(ended(7).is_over && ended(8).error.is_empty());
    let audit = fs::read_to_string(agent.path("audit.json")).unwrap();
    assert!(audit.contains("\"who\":\"hub\",\"verb\":\"trace\""), "{audit}");
    drop(job);
}

#[test]
fn runs_steps_traces_and_samples_reach_the_hub() {
    let folder = tempfile::tempdir().unwrap();
    let Some((hub, configuration)) = start(folder.path()) else { return };
    let mapping = tempfile::tempdir().unwrap();
    fs::write(mapping.path().join("0"), "7 ada 1000\n").unwrap();
    let lines = format!(
        "job_mapping = '{}'\n{configuration}[periodic]\ntraces_per_day = 86400\nshare_of_steps = 1.0\n",
        mapping.path().display()
    );
    let agent = Agent::start(&lines, Some(GPUS));
    let training = Training::start(&agent, &steps_of(5_000_000));
    let job = Job::start(&agent.sockets(), honest);
    let order = format!(
        r#"{{"pids": [{}], "run": null, "length_ms": 300, "every_ms": 100}}"#,
        std::process::id()
    );
    assert_eq!(agent.local("POST", "/v1/samples", &order).status, 200);
    let all = |hub: &Hub| -> Vec<Body> { hub.stored.lock().unwrap().values().cloned().collect() };
    let event = |kind: &str| {
        let found = all(&hub).into_iter().find_map(|body| match body {
            Body::Event(event) if event.kind == kind => Some(event),
            _ => None,
        });
        found.map(|event| {
            (serde_json::from_str::<serde_json::Value>(&event.details).unwrap(), event)
        })
    };
    let runs = || -> Vec<RunReport> {
        let run = |body: Body| if let Body::Run(run) = body { Some(*run) } else { None };
        all(&hub).into_iter().filter_map(run).collect()
    };
    until("a trace", || event("trace").is_some());
    until("a run", || !runs().is_empty());
    let run = runs().remove(0);
    let identity = run.run.unwrap();
    assert_eq!((identity.scheduler.as_str(), identity.job.as_str()), ("slurm", "7"));
    assert_eq!((identity.user.as_str(), run.gpus.len(), run.ended_unix_s), ("ada", 1, None));
    let (details, trace) = event("trace").unwrap();
    assert_eq!((trace.pid, &details["steps"]), (Some(std::process::id()), &5.into()));
    assert!(details["weight"].as_f64().unwrap() >= 1.0, "{details}");
    // The hub fetches the kept trace, and one that does not exist.
    let name = details["token"].as_str().unwrap();
    for (id, kept) in [(1, name), (2, "no-trace")] {
        let (token, kept) = (format!("hub-{id}"), kept.to_owned());
        let wanted = Some(Wanted::Send(SendOrder { token, kept }));
        hub.orders.lock().unwrap().push(Order { id, wanted });
        until("the end of the order", || hub.states(id).iter().any(|state| state.is_over));
    }
    let file = hub.states(1)[0].processes[0].file.clone().unwrap();
    assert_eq!(hub.files.lock().unwrap()[&file.name].len() as u64, file.bytes);
    assert_eq!(hub.states(2)[0].error, "the trace is no longer kept");
    assert_eq!(event("agent").unwrap().0["driver"], "570.1");
    let (details, sample) = event("sample").unwrap();
    assert!(sample.length_ms >= 300 && details["waiting"][0]["looks"].as_u64() > Some(0));
    fs::remove_file(mapping.path().join("0")).unwrap();
    until("the end of the run", || runs().iter().any(|run| run.ended_unix_s.is_some()));
    drop((training, job));
    let rows = all(&hub).into_iter().filter_map(|body| match body {
        Body::Steps(row) if row.steps > 0 => Some(row),
        _ => None,
    });
    let rows: Vec<_> = rows.collect();
    // Each step takes 5 ms on the job's clock, whatever the load of the machine is.
    for row in &rows {
        assert!(row.timed_steps == 0 || (row.step_p50_s.unwrap() - 5e-3).abs() < 1e-9, "{row:?}");
        assert!((row.timed_s - 5e-3 * row.timed_steps as f64).abs() < 1e-6, "{row:?}");
        assert_eq!(row.samples, Some(row.steps), "{row:?}");
    }
    let steps: u64 = rows.iter().map(|row| row.steps).sum();
    assert!(rows.len() >= 2 && steps > 100, "{steps} steps");
}
