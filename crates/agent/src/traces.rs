//! Executes trace orders. One thread requests, watches and copies traces, and another one
//! compresses them.
//!
//! Finished traces stay in the spool folder until they are fetched and removed, or expire.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use fleet::allocation::SchedulerRun;
use fleet::capture::{choose, round_start};
use fleet::ipc::config::{Detail, Switch, Trigger};
use fleet::ipc::request::RequestState;
use fleet::ipc::staging::StagingRecord;
use fleet::process::Process;
use fleet::spool::SpoolShare;
use fleet::tracing::{self, TracePlace, Tracing, TracingOrder, TracingOutcome};
use fleet::untrusted::{MissingFolder, OFlags, OwnFolder, UntrustedError};
use fleet::wire::{RecordWhen, TraceFile, TraceOrder, TraceRow, TraceState};
use schema::Bytes;
use xxhash_rust::xxh3::Xxh3;

use crate::hub::row;
use crate::state::{AgentState, lock};
use crate::uids::Uids;

/// Time between two rounds of the executing thread while an order is open.
const LOOK: Duration = Duration::from_millis(50);
/// Time between two rounds of the executing thread while no order is open.
const IDLE: Duration = Duration::from_secs(1);
/// Time for which finished orders are kept, so that their traces can be fetched.
const KEPT: Duration = Duration::from_secs(3600);
/// Largest number of orders, open or finished, in total and of one caller.
const ORDERS_MAX: usize = 64;
const CALLER_ORDERS_MAX: usize = 16;
/// Largest number of simultaneously open orders of one caller.
const CALLER_OPEN_MAX: usize = 4;
/// Largest number of processes of one order. No host has more GPUs or MIG instances.
const PROCESSES_MAX: usize = 128;
/// Largest number of reasons that the refusal of an order lists.
const REASONS_MAX: usize = 8;
/// The largest length of an order's name.
const TOKEN_MAX: usize = 64;
/// Maximum time between an order and its beginning.
const AHEAD_MAX: Duration = Duration::from_secs(3600);
/// The file name of the list of staging folders that were created for an order's processes.
const STAGINGS: &str = "staging.json";
/// Largest size in bytes of the list of staging folders. A larger file was not written by the
/// agent.
const STAGINGS_MAX: u64 = 4 << 20;
/// Number of bytes that are compressed at a time.
const BLOCK: usize = 256 << 10;

/// The trace orders of this agent and their finished traces. Requests are passed to the thread that
/// executes orders.
#[derive(Debug)]
pub struct Traces {
    orders: Mutex<BTreeMap<String, TraceState>>,
    owners: Mutex<BTreeMap<String, Uids>>,
    inbox: Sender<TraceCommand>,
    /// The folder of finished traces, with one folder per order.
    spool: OwnFolder,
    /// Disk quota that the traces of each order occupy.
    shares: Mutex<BTreeMap<String, Vec<SpoolShare>>>,
}

/// Largest number of training iterations that one trace request may record.
const ITERATIONS_MAX: u32 = 1000;
/// The largest step multiple (`align`) for a process that does not report its step time.
const UNTIMED_ALIGN_MAX: u32 = 10_000;

/// A command for the thread that executes orders.
#[derive(Debug)]
enum TraceCommand {
    /// Start an order for processes that the caller may trace.
    Begin { order: TraceOrder, uids: Uids, reply: SyncSender<Result<TraceState, String>> },
    /// Cancel the order with this name.
    Cancel { token: String },
}

/// A trace order that is being executed.
struct Running {
    order: TraceOrder,
    folder: Arc<OwnFolder>,
    /// Chosen processes to which no request has been sent yet, with the time at which to send it.
    waiting: Option<(Vec<Process>, Duration)>,
    tracing: Option<Tracing>,
    packed: BTreeMap<u32, Result<TraceFile, String>>,
    packing: BTreeSet<u32>,
    /// Whether the order was cancelled. The results of a cancelled order are removed.
    is_cancelled: bool,
}

/// A finished trace that the other thread must compress.
struct PackJob {
    token: String,
    pid: u32,
    folder: Arc<OwnFolder>,
    name: String,
}

/// The result of a [`PackJob`]: the token of the order, the process id, and the compressed file or
/// the reason of the failure.
type Packed = (String, u32, Result<TraceFile, String>);

impl Traces {
    /// Starts the thread that executes orders and the thread that compresses traces.
    ///
    /// # Errors
    /// If the spool folder cannot be created, or the operating system cannot start a thread.
    pub fn start(state: &Arc<AgentState>) -> io::Result<Arc<Self>> {
        let spool = OwnFolder::open(&state.config.spool(), MissingFolder::Make(0o700))?;
        // Traces and staging folders that a killed agent left behind are removed.
        for name in spool.names()? {
            remove_stagings(&spool, &name);
            spool.remove_tree(name)?;
        }
        let (inbox, commands) = mpsc::channel();
        let (orders, owners, shares) = (Mutex::default(), Mutex::default(), Mutex::default());
        let traces = Arc::new(Self { orders, owners, inbox, spool, shares });
        let (jobs, unpacked) = mpsc::channel::<PackJob>();
        let (done, packed) = mpsc::channel::<Packed>();
        let builder = || std::thread::Builder::new().stack_size(512 << 10);
        builder().name("packing".to_owned()).spawn(move || {
            for PackJob { token, pid, folder, name } in unpacked {
                let result = pack(&folder, &name).map_err(|error| error.to_string());
                if done.send((token, pid, result)).is_err() {
                    return;
                }
            }
        })?;
        let (state, own) = (Arc::clone(state), Arc::clone(&traces));
        builder().name("traces".to_owned()).spawn(move || {
            TraceWorker {
                state,
                traces: own,
                jobs,
                running: BTreeMap::new(),
                finished: BTreeMap::new(),
            }
            .run(&commands, &packed);
        })?;
        Ok(traces)
    }

    /// Starts an order and returns its initial state.
    ///
    /// # Errors
    /// If the order is invalid, the caller may not trace any polling process, or there are too many
    /// orders.
    pub fn begin(&self, order: TraceOrder, uids: Uids) -> Result<TraceState, String> {
        let (reply, answer) = mpsc::sync_channel(1);
        let ending = || "the agent is ending".to_owned();
        self.inbox.send(TraceCommand::Begin { order, uids, reply }).map_err(|_| ending())?;
        answer.recv().unwrap_or_else(|_| Err(ending()))
    }

    /// Returns the state of an order. Returns `None` if the order does not exist.
    pub fn state(&self, token: &str) -> Option<TraceState> {
        lock(&self.orders).get(token).cloned()
    }

    /// Returns the users whose processes an order may trace. Returns `None` if the order does not
    /// exist.
    pub fn owner(&self, token: &str) -> Option<Uids> {
        lock(&self.owners).get(token).cloned()
    }

    /// Opens the file of a finished trace that belongs to an order.
    pub fn open(&self, token: &str, name: &str) -> Option<File> {
        let order_state = self.state(token)?;
        let files = order_state.rows.iter().filter_map(|row| row.file.as_ref());
        let file = files.into_iter().find(|file| file.name == name)?;
        self.folder(token).ok()?.open_file(&file.name, OFlags::RDONLY).ok()
    }

    /// Opens the folder that contains the traces of an order.
    ///
    /// # Errors
    /// If the order does not exist.
    pub fn folder(&self, token: &str) -> Result<OwnFolder, UntrustedError> {
        self.spool.folder(token)
    }

    /// Cancels an order if it is running, or removes its files if it has ended. Returns whether the
    /// order existed.
    pub fn cancel(&self, token: &str) -> bool {
        let is_over = lock(&self.orders).get(token).map(|order| order.is_over);
        match is_over {
            Some(true) => self.remove(token),
            // Sending cannot fail, because the receiving thread lives as long as the agent.
            Some(false) => drop(self.inbox.send(TraceCommand::Cancel { token: token.to_owned() })),
            None => {}
        }
        is_over.is_some()
    }

    /// Keeps the disk quota of a compressed trace for as long as its order is kept.
    fn keep_room(&self, token: &str, running: &mut Running, pid: u32, file: Option<&TraceFile>) {
        let share = running.tracing.as_mut().and_then(|tracing| tracing.take_share(pid));
        let Some((mut share, file)) = share.zip(file) else { return };
        // The quota was reserved for the uncompressed and the compressed trace. The uncompressed
        // one is removed, so only the compressed size is kept.
        share.shrink(file.bytes);
        lock(&self.shares).entry(token.to_owned()).or_default().push(share);
    }

    fn remove(&self, token: &str) {
        lock(&self.orders).remove(token);
        lock(&self.owners).remove(token);
        // A folder that cannot be removed is removed at the agent's next start.
        let _ = self.spool.remove_tree(token);
        lock(&self.shares).remove(token);
    }
}

/// The state of the thread that executes trace orders.
struct TraceWorker {
    state: Arc<AgentState>,
    traces: Arc<Traces>,
    jobs: Sender<PackJob>,
    running: BTreeMap<String, Running>,
    finished: BTreeMap<String, Instant>,
}

impl TraceWorker {
    fn run(&mut self, commands: &Receiver<TraceCommand>, packed: &Receiver<Packed>) {
        while !self.state.is_ending() {
            let now = self.state.server.now();
            let wait = self.running.values().map(|running| running.wait(now)).min();
            let wait = wait.unwrap_or(IDLE);
            let is_copying = self.running.values().any(Running::is_copying);
            // Traces are copied in short turns. While one is being copied, the next turn must
            // follow without a wait.
            let wait = if is_copying { Duration::ZERO } else { wait };
            match commands.recv_timeout(wait) {
                // Sending the reply fails if the caller no longer waits, which does not matter.
                Ok(TraceCommand::Begin { order, uids, reply }) => {
                    drop(reply.send(self.begin(order, &uids)));
                }
                Ok(TraceCommand::Cancel { token }) => self.cancel(&token),
                Err(_) => {}
            }
            for (token, pid, result) in packed.try_iter() {
                if let Some(running) = self.running.get_mut(&token) {
                    self.traces.keep_room(&token, running, pid, result.as_ref().ok());
                    running.packing.remove(&pid);
                    running.packed.insert(pid, result);
                }
            }
            self.step();
            self.expire();
        }
        for running in self.running.values() {
            if let Some(tracing) = &running.tracing {
                tracing.interrupt(&self.state.server);
            }
        }
    }

    fn begin(&mut self, order: TraceOrder, uids: &Uids) -> Result<TraceState, String> {
        check(&order)?;
        if lock(&self.traces.orders).contains_key(&order.token) {
            return Err(format!("order {:?}: the name is already in use", order.token));
        }
        self.make_room(uids)?;
        self.state.look();
        let chosen = self.choose(&order, uids)?;
        self.check_reach(&order, &chosen)?;
        let folder = self.traces.spool.make_folder(&order.token);
        let folder = Arc::new(folder.map_err(|error| error.to_string())?);
        let server = &self.state.server;
        let now = server.now();
        let mut start = now;
        // All ranks should record the same iterations, so all requests must be answered within one
        // round of polls.
        if matches!(order.when, RecordWhen::Iterations { .. }) && chosen.len() > 1 {
            start = round_start(now, &server.polled(chosen.iter().map(|process| process.pid)));
        }
        if let Some(not_before) = order.not_before_unix_ms {
            start = now + Duration::from_millis(not_before.saturating_sub(tracing::unix_ms()));
        }
        let token = order.token.clone();
        let (packed, packing) = (BTreeMap::new(), BTreeSet::new());
        let waiting = Some((chosen, start));
        let (tracing, is_cancelled) = (None, false);
        let running = Running { order, folder, waiting, tracing, packed, packing, is_cancelled };
        let first = running.state();
        lock(&self.traces.owners).insert(token.clone(), uids.clone());
        lock(&self.traces.orders).insert(token.clone(), first.clone());
        self.running.insert(token, running);
        Ok(first)
    }

    /// Refuses iterations that would be recorded only after the order's timeout. A request cannot
    /// be withdrawn, so the process would record them nevertheless.
    fn check_reach(&self, order: &TraceOrder, chosen: &[Process]) -> Result<(), String> {
        let RecordWhen::Iterations { count, align } = order.when else { return Ok(()) };
        let steps = lock(&self.state.steps);
        for process in chosen {
            let step = steps.progress(process.pid).and_then(fleet::steps::StepProgress::step_time);
            let Some(step) = step else {
                if align > UNTIMED_ALIGN_MAX {
                    return Err(format!(
                        "when: expected a multiple of at most {UNTIMED_ALIGN_MAX} for process {}, \
                         which does not report its steps, got {align}",
                        process.pid
                    ));
                }
                continue;
            };
            // In the worst case the process has just passed a multiple of `align`, and reaches the
            // next one after `align` steps.
            let end_s = step.as_secs_f64() * (f64::from(count) + f64::from(align));
            let patience_s = order.patience_ms as f64 * 1e-3;
            if end_s > patience_s {
                return Err(format!(
                    "when: expected a recording that ends within the {patience_s:.0} s of the \
                     timeout, got up to {end_s:.0} s for process {}, whose step takes {:.1} ms: a \
                     smaller multiple or fewer iterations end earlier",
                    process.pid,
                    step.as_secs_f64() * 1e3
                ));
            }
        }
        Ok(())
    }

    /// Removes the oldest finished order if there are too many orders in total, or too many of the
    /// caller.
    fn make_room(&mut self, uids: &Uids) -> Result<(), String> {
        let owners = lock(&self.traces.owners).clone();
        let own: Vec<&String> =
            owners.iter().filter(|(_, of)| *of == uids).map(|(token, _)| token).collect();
        let open = own.iter().filter(|token| self.running.contains_key(**token)).count();
        // Callers that may trace all users, such as root, are bounded by the total limit only.
        let (open_max, kept_max) = match uids {
            Uids::All => (ORDERS_MAX, ORDERS_MAX),
            Uids::Only(_) => (CALLER_OPEN_MAX, CALLER_ORDERS_MAX),
        };
        if open >= open_max {
            return Err(format!(
                "expected at most {open_max} orders of yours at once, got one more"
            ));
        }
        let mut kept: Vec<(&String, &Instant)> = self.finished.iter().collect();
        if own.len() >= kept_max {
            kept.retain(|(token, _)| own.contains(token));
        } else if owners.len() < ORDERS_MAX {
            return Ok(());
        }
        let oldest = kept.into_iter().min_by_key(|(_, at)| **at).map(|(token, _)| token.clone());
        let oldest = oldest
            .ok_or_else(|| format!("expected at most {ORDERS_MAX} orders at once, got one more"))?;
        self.finished.remove(&oldest);
        self.traces.remove(&oldest);
        Ok(())
    }

    fn cancel(&mut self, token: &str) {
        if let Some(running) = self.running.get_mut(token) {
            running.is_cancelled = true;
            running.waiting = None;
            if let Some(tracing) = &running.tracing {
                tracing.interrupt(&self.state.server);
            }
        }
    }

    fn choose(&self, order: &TraceOrder, uids: &Uids) -> Result<Vec<Process>, String> {
        let asked = lock(&self.state.roster).processes();
        let jobs: BTreeMap<u32, i64> =
            self.state.server.seen().iter().map(|seen| (seen.pid, seen.job)).collect();
        let of_run = self.processes_of_run(order.run.as_deref());
        let choices = choose(&asked, &order.pids, 0);
        let mut kept = Vec::new();
        let absent = order.pids.iter().filter(|pid| asked.iter().all(|one| one.pid != **pid));
        let mut reasons: Vec<String> =
            absent.map(|pid| format!("{pid} does not poll for traces")).collect();
        for (process, (pid, skip)) in asked.into_iter().zip(choices) {
            let is_of_job = order.job.is_none_or(|job| jobs.get(&pid) == Some(&job));
            let is_named = order.pids.contains(&pid);
            match skip {
                _ if !is_named && !order.pids.is_empty() => {}
                // The reasons must not reveal the processes of other users to the caller.
                _ if !uids.has(process.uid) => {
                    reasons.extend(is_named.then(|| format!("{pid} belongs to another user")));
                }
                Some(skip) => reasons.push(format!("{pid} {}", skip.words())),
                None if !is_of_job || of_run.as_ref().is_some_and(|of| !of.contains(&pid)) => {
                    reasons.push(format!("{pid} belongs to another job"));
                }
                None => kept.push(process),
            }
        }
        if kept.is_empty() {
            let more = reasons.len().saturating_sub(REASONS_MAX);
            reasons.truncate(REASONS_MAX);
            reasons.extend((more > 0).then(|| format!("and {more} more")));
            let why = if reasons.is_empty() {
                "no process polls for traces".to_owned()
            } else {
                reasons.join(", ")
            };
            return Err(format!("no process to trace: {why}"));
        }
        if kept.len() > PROCESSES_MAX {
            return Err(format!(
                "expected at most {PROCESSES_MAX} processes, got {}: name some of them by pids",
                kept.len()
            ));
        }
        Ok(kept)
    }

    /// Returns the processes of a run by its name in rows of the hub. Returns `None` if the order
    /// names no run. A process that only claims the job of another user belongs to a run of its own
    /// user.
    fn processes_of_run(&self, run: Option<&str>) -> Option<BTreeSet<u32>> {
        let run = run?;
        let owners = lock(&self.state.owners);
        let is_it = |of: &SchedulerRun| {
            let of = row::run(of);
            format!("{}/{}", of.scheduler, of.job) == run
        };
        Some(owners.runs().iter().filter(|(_, of)| is_it(of)).map(|(pid, _)| *pid).collect())
    }

    fn step(&mut self) {
        let server = &self.state.server;
        let mut over = Vec::new();
        for (token, running) in &mut self.running {
            if let Some((_, start)) = &running.waiting
                && server.now() >= *start
                && let Some((chosen, _)) = running.waiting.take()
            {
                let order = fleet_order(&running.order);
                let place = TracePlace::budgeted(&running.folder, &self.state.spool);
                let tracing = Tracing::begin(server, chosen, place, &order);
                let stagings = serde_json::to_vec(&tracing.stagings()).unwrap_or_default();
                if let Err(error) = running.folder.replace(STAGINGS, &stagings) {
                    self.state.note(format!(
                        "traces: staging folders would remain if the agent were killed: {error}"
                    ));
                }
                running.tracing = Some(tracing);
            }
            let Some(tracing) = &mut running.tracing else {
                if running.is_cancelled {
                    over.push(token.clone());
                }
                continue;
            };
            tracing.step(server);
            for outcome in tracing.outcomes() {
                let pid = outcome.process.pid;
                let is_known = running.packed.contains_key(&pid) || running.packing.contains(&pid);
                let is_new = !is_known && !running.is_cancelled;
                if outcome.state == RequestState::Written && is_new {
                    running.packing.insert(pid);
                    let (folder, name) = (Arc::clone(&running.folder), outcome.name);
                    // Sending cannot fail, because the compressing thread lives as long as this
                    // one.
                    let _ = self.jobs.send(PackJob { token: token.clone(), pid, folder, name });
                }
            }
            let is_gone = running.is_cancelled && tracing.is_over() && running.packing.is_empty();
            let state = running.state();
            if state.is_over || is_gone {
                over.push(token.clone());
            }
            lock(&self.traces.orders).insert(token.clone(), state);
        }
        for token in over {
            match self.running.remove(&token) {
                Some(running) if running.is_cancelled => self.traces.remove(&token),
                _ => drop(self.finished.insert(token, Instant::now())),
            }
        }
    }

    fn expire(&mut self) {
        let old = |at: &Instant| at.elapsed() > KEPT;
        let gone: Vec<String> = self
            .finished
            .iter()
            .filter(|(_, at)| old(at))
            .map(|(token, _)| token.clone())
            .collect();
        for token in gone {
            self.finished.remove(&token);
            self.traces.remove(&token);
        }
    }
}

impl Running {
    /// Returns how long the thread may wait. An order that waits for its start time causes no work.
    fn wait(&self, now: Duration) -> Duration {
        match &self.waiting {
            Some((_, start)) => start.saturating_sub(now).min(IDLE),
            None => LOOK,
        }
    }

    fn is_copying(&self) -> bool {
        self.tracing.as_ref().is_some_and(Tracing::is_copying)
    }

    fn state(&self) -> TraceState {
        let rows: Vec<TraceRow> = match (&self.tracing, &self.waiting) {
            (Some(tracing), _) => {
                tracing.outcomes().iter().map(|outcome| self.row(outcome)).collect()
            }
            (None, Some((chosen, _))) => {
                chosen.iter().map(|process| row(process, "waiting", None)).collect()
            }
            (None, None) => Vec::new(),
        };
        let is_over =
            self.tracing.as_ref().is_some_and(Tracing::is_over) && self.packing.is_empty();
        let is_packed = rows.iter().all(|row| row.state == "lost" || row.file.is_some());
        TraceState { token: self.order.token.clone(), is_over: is_over && is_packed, rows }
    }

    fn row(&self, outcome: &TracingOutcome) -> TraceRow {
        let process = &outcome.process;
        match (&outcome.state, self.packed.get(&process.pid)) {
            (RequestState::Lost(reason), _) => row(process, "lost", Some(reason.to_string())),
            (RequestState::Written, Some(Ok(file))) => {
                TraceRow { file: Some(file.clone()), ..row(process, "written", None) }
            }
            (RequestState::Written, Some(Err(problem))) => {
                row(process, "lost", Some(format!("its trace could not be compressed: {problem}")))
            }
            (RequestState::Written, None) => row(process, "compressing", None),
            (state, _) => row(process, state.word(), None),
        }
    }
}

fn row(process: &Process, state: &str, reason: Option<String>) -> TraceRow {
    TraceRow {
        pid: process.pid,
        rank: process.rank(),
        command: process.command.join(" "),
        state: state.to_owned(),
        reason,
        file: None,
    }
}

fn check(order: &TraceOrder) -> Result<(), String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let token = &order.token;
    if token.is_empty() || token.len() > TOKEN_MAX || !token.bytes().all(is_name) {
        return Err(format!(
            "token: expected 1 to {TOKEN_MAX} letters, digits or '-', got {token:?}"
        ));
    }
    for with in &order.with {
        if !TraceOrder::DETAILS.contains(&with.as_str()) {
            return Err(format!(
                "with: expected shapes, stacks, flops, modules or memory, got {with:?}"
            ));
        }
    }
    let ahead = order.not_before_unix_ms.unwrap_or(0).saturating_sub(tracing::unix_ms());
    if Duration::from_millis(ahead) > AHEAD_MAX {
        return Err(
            "not_before_unix_ms: expected a time within the next hour, got a later one".to_owned()
        );
    }
    match order.when {
        RecordWhen::Iterations { count: 0, .. } | RecordWhen::Iterations { align: 0, .. } => {
            Err("when: expected at least one iteration and a multiple of at least 1, got 0"
                .to_owned())
        }
        RecordWhen::Iterations { count, .. } if count > ITERATIONS_MAX => {
            Err(format!("when: expected at most {ITERATIONS_MAX} iterations, got {count}"))
        }
        RecordWhen::Duration { length_ms, .. } if !(1..=600_000).contains(&length_ms) => {
            Err(format!("when: expected 1 to 600000 ms, got {length_ms}"))
        }
        _ => Ok(()),
    }
}

fn fleet_order(order: &TraceOrder) -> TracingOrder {
    let switch = |what: &str| {
        if order.with.iter().any(|with| with == what) { Switch::On } else { Switch::Off }
    };
    TracingOrder {
        token: format!("rowmill-{}", order.token),
        trigger: match order.when {
            RecordWhen::Iterations { count, align } => Trigger::Iterations { count, align },
            RecordWhen::Duration { length_ms, warmup_s, start_unix_ms } => {
                let length = Duration::from_millis(length_ms);
                Trigger::Duration { length, warmup_s, start_unix_ms }
            }
        },
        detail: Detail {
            shapes: switch("shapes"),
            stacks: switch("stacks"),
            flops: switch("flops"),
            modules: switch("modules"),
            memory: switch("memory"),
        },
        size_max: Bytes(order.size_max),
        patience: Duration::from_millis(order.patience_ms.min(86_400_000)),
    }
}

/// Removes the staging folders that were created for the processes of an order.
fn remove_stagings(spool: &OwnFolder, order: &OsStr) {
    let read = spool.folder(order).and_then(|folder| folder.read(STAGINGS, STAGINGS_MAX));
    let bytes = read.ok().flatten().unwrap_or_default();
    let records: Vec<StagingRecord> = serde_json::from_slice(&bytes).unwrap_or_default();
    for record in records {
        // `remove` leaves alone folders that no longer exist or that contain files of another user.
        record.remove();
    }
}

/// Compresses a finished trace into a new file and removes the original.
fn pack(folder: &OwnFolder, name: &str) -> io::Result<TraceFile> {
    let mut from = folder.open_file(name, OFlags::RDONLY)?;
    let target = format!("{name}.gz");
    let to = Summed { file: folder.create(&target)?, hash: Xxh3::new(), bytes: 0 };
    let mut encoder = GzEncoder::new(to, Compression::fast());
    let mut block = vec![0; BLOCK];
    let mut bytes_unpacked = 0;
    loop {
        let read = from.read(&mut block)?;
        if read == 0 {
            break;
        }
        bytes_unpacked += read as u64;
        encoder.write_all(&block[..read])?;
    }
    let summed = encoder.finish()?;
    summed.file.sync_all()?;
    folder.remove_file(name);
    Ok(TraceFile {
        name: target,
        bytes: summed.bytes,
        bytes_unpacked,
        checksum: format!("{:016x}", summed.hash.digest()),
    })
}

/// Writes to a file, and computes the checksum and the length of what is written.
struct Summed {
    file: File,
    hash: Xxh3,
    bytes: u64,
}

impl Write for Summed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
