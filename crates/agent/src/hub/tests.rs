//! Tests against a real HTTPS server that loses answers, refuses entries and becomes unreachable,
//! while many minutes of rows are simulated. At the end of each test the hub must have every
//! delivered row exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State as From;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use fleet::proto::{Ack, BATCHES, Body, EntryBatch, GpuInterval, OrderState};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use prost::Message;
use testkit::certificate::{CertificateFiles, create_certificate};
use tokio_rustls::TlsAcceptor;

use super::{Delivery, Hub};
use crate::config::{HubConfig, Listen};
use crate::control;
use crate::counters::gpu::GpuIdentity;
use crate::counters::interval::{CounterReading, INTERVAL_S, Intervals, ReadingTime};
use crate::state::lock;

const TOKEN: &str = "0123456789abcdef";
const BASE: u64 = 1_700_000_000;

/// The state of the test hub, and the faults that a test enables.
#[derive(Debug, Default)]
struct Receiver {
    stored: Mutex<BTreeMap<(Vec<u8>, u64), Body>>,
    /// Number of entries that were received more than once.
    repeated: AtomicU64,
    is_away: AtomicBool,
    /// After this many batches, one batch is stored but its answer is not sent; 0 disables the
    /// fault.
    loses_every: AtomicU64,
    batches: AtomicU64,
    /// Index plus one of the GPU whose rows the hub refuses; 0 if it accepts all rows.
    refuses: AtomicU64,
    /// Simulates a proxy that rejects every batch with more than one entry.
    blocks_many: AtomicBool,
    /// Simulates a proxy that rejects every batch.
    blocks_all: AtomicBool,
}

/// A running test hub, and the configuration with which an agent reaches it.
struct Reached {
    receiver: Arc<Receiver>,
    config: HubConfig,
}

async fn batches(
    From(receiver): From<Arc<Receiver>>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Vec<u8>, StatusCode> {
    let token = headers.get("authorization").and_then(|value| value.to_str().ok());
    if token != Some(&format!("Bearer {TOKEN}")) {
        return Err(StatusCode::UNAUTHORIZED);
    }
    if receiver.is_away.load(Ordering::SeqCst) {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    let batch = EntryBatch::decode(bytes).map_err(|_| StatusCode::BAD_REQUEST)?;
    if receiver.blocks_all.load(Ordering::SeqCst) {
        return Err(StatusCode::BAD_REQUEST);
    }
    if receiver.blocks_many.load(Ordering::SeqCst) && batch.entries.len() > 1 {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    let refused = receiver.refuses.load(Ordering::SeqCst);
    let index = |body: &Body| match body {
        Body::Gpu(row) => u64::from(row.index) + 1,
        _ => u64::MAX,
    };
    if batch.entries.iter().flat_map(|entry| &entry.body).any(|body| index(body) == refused) {
        return Err(StatusCode::UNPROCESSABLE_ENTITY);
    }
    let through = batch.entries.last().map_or(0, |entry| entry.sequence);
    let mut stored = lock(&receiver.stored);
    for entry in batch.entries {
        let Some(body) = entry.body else { continue };
        if stored.insert((batch.queue.clone(), entry.sequence), body).is_some() {
            receiver.repeated.fetch_add(1, Ordering::SeqCst);
        }
    }
    let number = receiver.batches.fetch_add(1, Ordering::SeqCst) + 1;
    let loses = receiver.loses_every.load(Ordering::SeqCst);
    if loses > 0 && number % loses == 0 {
        return Err(StatusCode::BAD_GATEWAY);
    }
    Ok(Ack { through }.encode_to_vec())
}

/// Starts a test hub. Returns `None` and skips the test if no certificate can be created.
fn reach(folder: &Path) -> Option<Reached> {
    let files = create_certificate(folder, "a real hub")?;
    let token = folder.join("token");
    fs::write(&token, TOKEN).unwrap();
    Command::new("chmod").arg("600").arg(&token).status().unwrap();
    let CertificateFiles { certificate, key } = files;
    let ca = certificate.clone();
    let listen = Listen { address: SocketAddr::from(([127, 0, 0, 1], 0)), certificate, key };
    let acceptor = TlsAcceptor::from(control::tls(&listen).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let receiver = Arc::new(Receiver::default());
    let router = Router::new().route(BATCHES, post(batches)).with_state(Arc::clone(&receiver));
    let listener = runtime.block_on(tokio::net::TcpListener::bind(listen.address)).unwrap();
    let address = listener.local_addr().unwrap();
    let serve = async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, router) = (acceptor.clone(), router.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = TowerToHyperService::new(router);
                let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                let _ = served.await;
            });
        }
    };
    // The server's thread is not joined, because it ends with the test process.
    std::thread::spawn(move || runtime.block_on(serve));
    let config = HubConfig {
        url: format!("https://{address}"),
        ca: Some(ca),
        token_file: token,
        queue_mib: 1,
        verbs: Vec::new(),
        users: Vec::new(),
    };
    Some(Reached { receiver, config })
}

fn open(reached: &Reached, folder: &Path) -> Hub {
    Hub::open(&reached.config, &folder.join("state/hub"), "a").unwrap()
}

fn rows(count: u32) -> Vec<Body> {
    let row = |index| Body::Gpu(Box::new(GpuInterval { index, ..GpuInterval::default() }));
    (0..count).map(row).collect()
}

#[test]
fn a_lost_answer_duplicates_no_row_and_only_refused_rows_are_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let Some(reached) = reach(folder.path()) else { return };
    let hub = open(&reached, folder.path());
    assert_eq!(hub.deliver(512), Delivery::Idle);
    reached.receiver.is_away.store(true, Ordering::SeqCst);
    hub.add_rows(10, rows(5)).unwrap();
    assert!(matches!(hub.deliver(512), Delivery::Failed(why) if why.contains("503")));
    reached.receiver.is_away.store(false, Ordering::SeqCst);
    reached.receiver.loses_every.store(1, Ordering::SeqCst);
    assert!(matches!(hub.deliver(512), Delivery::Failed(_)));
    reached.receiver.loses_every.store(0, Ordering::SeqCst);
    assert_eq!(hub.deliver(512), Delivery::Sent);
    assert_eq!(lock(&reached.receiver.stored).len(), 5);
    assert_eq!(reached.receiver.repeated.load(Ordering::SeqCst), 5);
    reached.receiver.refuses.store(3, Ordering::SeqCst);
    hub.add_rows(20, rows(4)).unwrap();
    assert!(matches!(hub.deliver(512), Delivery::Refused(why) if why.contains("422")));
    for _ in 0..2 {
        assert_eq!(hub.deliver(1), Delivery::Sent);
    }
    assert!(matches!(hub.deliver(1), Delivery::Refused(_)));
    assert_eq!(hub.deliver(1), Delivery::Sent);
    let tally = hub.tally();
    assert_eq!((tally.queued, tally.sent, tally.dropped), (0, 8, 1), "{tally:?}");
    drop(hub);
    // The clock was set back while no agent ran, so intervals that were already queued occur again.
    let hub = open(&reached, folder.path());
    hub.add_rows(20, rows(4)).unwrap();
    hub.add_rows(30, rows(1)).unwrap();
    assert_eq!((hub.tally().queued, hub.tally().repeated), (1, 4));
    let order = OrderState::ended(1, "a", "");
    hub.add(0, vec![Body::Order(order)]).unwrap();
    assert_eq!(hub.deliver(512), Delivery::Sent);
    assert_eq!(lock(&reached.receiver.stored).len(), 10);
}

#[test]
fn rows_of_a_wrong_clock_do_not_discard_later_ones() {
    let folder = tempfile::tempdir().unwrap();
    let Some(reached) = reach(folder.path()) else { return };
    let now = crate::state::unix_ns() / 1_000_000_000;
    let hub = open(&reached, folder.path());
    hub.add_rows(now + 365 * 86_400, rows(1)).unwrap();
    drop(hub);
    let hub = open(&reached, folder.path());
    hub.add_rows(now, rows(1)).unwrap();
    assert_eq!((hub.tally().queued, hub.tally().repeated), (2, 0));
    drop(hub);
    // After the clock is corrected, the interval that is already queued must not be queued again.
    let hub = open(&reached, folder.path());
    hub.add_rows(now, rows(1)).unwrap();
    hub.add_rows(now + 10, rows(1)).unwrap();
    assert_eq!((hub.tally().queued, hub.tally().repeated), (3, 1));
}

#[test]
fn a_proxy_that_answers_400_or_413_loses_no_rows() {
    let folder = tempfile::tempdir().unwrap();
    let Some(reached) = reach(folder.path()) else { return };
    let hub = open(&reached, folder.path());
    hub.add_rows(10, rows(3)).unwrap();
    reached.receiver.blocks_many.store(true, Ordering::SeqCst);
    assert!(matches!(hub.deliver(512), Delivery::Refused(why) if why.contains("413")));
    assert_eq!(hub.deliver(1), Delivery::Sent);
    reached.receiver.blocks_all.store(true, Ordering::SeqCst);
    assert!(matches!(hub.deliver(1), Delivery::Failed(why) if why.contains("400")));
    reached.receiver.blocks_all.store(false, Ordering::SeqCst);
    assert_eq!((hub.deliver(1), hub.deliver(1)), (Delivery::Sent, Delivery::Sent));
    let tally = hub.tally();
    assert_eq!((tally.queued, tally.sent, tally.dropped), (0, 3, 0), "{tally:?}");
}

#[test]
fn nothing_is_sent_to_a_hub_with_another_certificate_or_token() {
    let folder = tempfile::tempdir().unwrap();
    let Some(reached) = reach(folder.path()) else { return };
    let mut config = reached.config.clone();
    config.ca = None;
    let hub = Hub::open(&config, &folder.path().join("one"), "a").unwrap();
    hub.add_rows(10, rows(1)).unwrap();
    assert!(matches!(hub.deliver(512), Delivery::Failed(why) if why.contains("ertificate")));
    config.ca.clone_from(&reached.config.ca);
    fs::write(&config.token_file, "fedcba9876543210").unwrap();
    let hub = Hub::open(&config, &folder.path().join("two"), "a").unwrap();
    hub.add_rows(10, rows(1)).unwrap();
    assert!(matches!(hub.deliver(512), Delivery::Failed(why) if why.contains("401")));
    assert!(lock(&reached.receiver.stored).is_empty());
    Command::new("chmod").arg("644").arg(&config.token_file).status().unwrap();
    let open = Hub::open(&config, &folder.path().join("three"), "a").unwrap_err().to_string();
    assert!(open.contains("mode 0600"), "{open}");
}

/// A simulated host with one GPU whose true values are known at every moment. The host's agent is
/// killed, runs out of disk space, loses its connection, and sees jumps of the clock.
struct World {
    /// The true time of the simulation in milliseconds.
    now_ms: u64,
    /// The host's wall clock minus the true time, in milliseconds.
    jump_ms: i64,
    random: u64,
}

impl World {
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % below
    }

    fn moment(&self) -> ReadingTime {
        let unix_ms = (BASE * 1000 + self.now_ms).saturating_add_signed(self.jump_ms);
        ReadingTime { monotonic_ns: self.now_ms * 1_000_000, unix_ns: unix_ms * 1_000_000 }
    }

    /// The reading of a GPU that is always half busy. A 32-bit error counter increases by one per
    /// reading and wraps.
    fn reading(reads: u64) -> CounterReading {
        let replays = (u64::from(u32::MAX) - 100 + reads) & u64::from(u32::MAX);
        CounterReading {
            busy: Some(0.5),
            errors: vec![("pcie_replay", replays, 32)],
            ..CounterReading::default()
        }
    }
}

fn identity() -> GpuIdentity {
    let (uuid, model, pci) = ("GPU-0".to_owned(), "Stub".to_owned(), String::new());
    GpuIdentity { index: 0, uuid, model, pci, instance: None, parent: None }
}

/// Truncates the newest segment by a few bytes, as a power failure may.
fn cut(folder: &Path, bytes: u64) {
    let segments = fs::read_dir(folder.join("state/hub")).unwrap().map(|e| e.unwrap().path());
    let newest: Option<PathBuf> =
        segments.filter(|path| path.extension().is_some_and(|end| end == "segment")).max();
    let Some(newest) = newest else { return };
    let file = OpenOptions::new().write(true).open(newest).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length.saturating_sub(bytes)).unwrap();
}

/// Simulates hours of readings. At the end the hub's rows must equal the true values over the
/// observed time.
#[test]
fn kills_gaps_clock_jumps_and_an_unreachable_hub_duplicate_no_row() {
    let folder = tempfile::tempdir().unwrap();
    let Some(reached) = reach(folder.path()) else { return };
    let mut world = World { now_ms: 0, jump_ms: 0, random: 99 };
    let mut hub = open(&reached, folder.path());
    let mut intervals = Intervals::new(INTERVAL_S);
    let (mut reads, mut lost_until, mut away_until, mut most_queued) = (0, 0, 0, 0);
    reached.receiver.loses_every.store(7, Ordering::SeqCst);
    while world.now_ms < 3 * 3_600_000 {
        world.now_ms += 400 + world.random(200);
        match world.random(2_000) {
            // The agent is killed and loses its current interval. The next agent starts up to 20 s
            // later.
            0 => {
                drop(hub);
                hub = open(&reached, folder.path());
                intervals = Intervals::new(INTERVAL_S);
                world.now_ms += world.random(20_000);
            }
            1 => world.jump_ms += 30_000,
            2 => world.jump_ms -= 25_000,
            3 => lost_until = world.now_ms + world.random(60_000),
            // The hub is unreachable for five minutes.
            4 => away_until = world.now_ms + 300_000,
            5 => world.now_ms += 3_000 + world.random(30_000),
            _ => {}
        }
        reads += 1;
        let reading = (world.now_ms >= lost_until).then(|| World::reading(reads));
        for row in intervals.read(world.moment(), reading) {
            let body = super::row::gpu(&identity(), &[], INTERVAL_S, &row);
            hub.add_rows(row.start_unix_s, vec![body]).unwrap();
        }
        most_queued = most_queued.max(hub.tally().queued);
        if world.now_ms >= away_until && hub.tally().queued > 20 {
            let _ = hub.deliver(512);
        }
    }
    while hub.tally().queued > 0 {
        let _ = hub.deliver(512);
    }
    let stored = lock(&reached.receiver.stored);
    let (mut starts, mut observed, mut replays) = (BTreeSet::new(), 0.0, 0);
    for body in stored.values() {
        let Body::Gpu(row) = body else { panic!("{body:?}") };
        assert!(starts.insert(row.start_unix_s), "{} twice", row.start_unix_s);
        assert!(row.observed_s <= 10.0 + 1e-9, "{row:?}");
        let busy = row.sums.get("busy_s").copied().unwrap_or(0.0);
        assert!((busy - row.observed_s / 2.0).abs() < 1e-9, "{row:?}");
        let counted = row.errors.get("pcie_replay").copied().unwrap_or(0);
        assert!(counted <= reads, "a wrap is no billion errors: {row:?}");
        replays += counted;
        observed += row.observed_s;
    }
    let (hours, true_s) = (world.now_ms / 3_600_000, world.now_ms as f64 * 1e-3);
    assert!(most_queued >= 28 && reached.receiver.repeated.load(Ordering::SeqCst) > 0);
    assert!(observed > 0.7 * true_s && observed <= true_s, "{observed} of {true_s} s");
    assert!(replays <= reads && replays > reads / 2, "{replays} of {reads}");
    println!(
        "{hours} h: {} rows, {:.1} % observed, {} sent again, none double",
        starts.len(),
        100.0 * observed / true_s,
        reached.receiver.repeated.load(Ordering::SeqCst)
    );
}

#[test]
fn a_full_queue_or_disk_loses_rows_but_alters_none() {
    let folder = tempfile::tempdir().unwrap();
    let Some(reached) = reach(folder.path()) else { return };
    let mut hub = open(&reached, folder.path());
    let (intervals, model) = (1_000, "x".repeat(250));
    for start in 1..=intervals {
        let row = |index| {
            let (start_unix_s, model) = (start * 10, model.clone());
            let row = GpuInterval { start_unix_s, model, reads: start, ..GpuInterval::default() };
            Body::Gpu(Box::new(GpuInterval { index, ..row }))
        };
        hub.add_rows(start * 10, (0..8).map(row).collect()).unwrap();
        if start % 300 == 0 {
            drop(hub);
            cut(folder.path(), start % 97);
            hub = open(&reached, folder.path());
        }
    }
    while hub.tally().queued > 0 {
        assert!(matches!(hub.deliver(512), Delivery::Sent));
    }
    let stored = lock(&reached.receiver.stored);
    let mut starts = BTreeSet::new();
    for body in stored.values() {
        let Body::Gpu(row) = body else { panic!("{body:?}") };
        assert!(
            starts.insert((row.start_unix_s, row.index)) && row.reads * 10 == row.start_unix_s,
            "{row:?}"
        );
    }
    assert!(starts.len() > 2_000 && starts.len() < 7_000, "{}", starts.len());
    assert!(starts.contains(&(intervals * 10, 7)), "the newest is kept");
}
