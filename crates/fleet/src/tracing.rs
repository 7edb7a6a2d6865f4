//! Carries out one trace order: sends requests to the chosen processes, observes and copies their
//! files, and ends with a trace or a reason for each process. It runs in a thread of its own,
//! separate from the thread that answers polls.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schema::Bytes;

use crate::ipc::config::{Config, Detail, Trigger};
use crate::ipc::request::{CaptureRequest, POLL, Reason, RequestState, Sight, Timing};
use crate::ipc::staging::{Staging, StagingRecord};
use crate::process::Process;
use crate::server::Server;
use crate::spool::{SpoolBudget, SpoolFull, SpoolShare};
use crate::untrusted::{Copying, OwnFolder};

/// Time for which one copy runs before the other processes and files are checked.
const COPY_TURN: Duration = Duration::from_millis(20);
/// Time that must remain before a start, in addition to a poll and the warm-up. The time covers the
/// profiler's interval of one second and a margin.
pub const START_ROOM: Duration = Duration::from_secs(5);

/// The parameters of an order, independent of the processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracingOrder {
    /// Name of the order, which is part of every trace id: letters, digits and `-`.
    pub token: String,
    pub trigger: Trigger,
    /// Optional content of the traces.
    pub detail: Detail,
    /// Maximum size of a trace; larger traces are rejected.
    pub size_max: Bytes,
    /// Maximum time until the recording starts, and afterwards without progress.
    pub patience: Duration,
}

/// The folder into which traces are copied, with an optional limit of disk space.
#[derive(Clone, Debug)]
pub struct TracePlace {
    folder: Arc<OwnFolder>,
    budget: Option<Arc<SpoolBudget>>,
}

impl TracePlace {
    /// Creates a place without a size limit, for a folder that the user manages.
    pub fn unlimited(folder: OwnFolder) -> Self {
        Self { folder: Arc::new(folder), budget: None }
    }

    /// Creates a place in the agent's spool, whose size is limited by `budget`. A trace is lost if
    /// the budget of its user is exhausted.
    pub fn budgeted(folder: &Arc<OwnFolder>, budget: &Arc<SpoolBudget>) -> Self {
        Self { folder: Arc::clone(folder), budget: Some(Arc::clone(budget)) }
    }

    /// Reserves space for a trace and its compressed copy.
    fn reserve(&self, uid: u32, bytes: u64) -> Result<Option<SpoolShare>, SpoolFull> {
        let reserve = |budget: &Arc<SpoolBudget>| budget.reserve(uid, bytes.saturating_mul(2));
        self.budget.as_ref().map(reserve).transpose()
    }
}

/// A trace order that is being carried out.
#[derive(Debug)]
pub struct Tracing {
    place: TracePlace,
    targets: Vec<TracedProcess>,
}

/// The progress of one process in an order.
#[derive(Debug)]
struct TracedProcess {
    process: Process,
    own_pid: i32,
    /// The folder for the trace; `None` if the process cannot write one.
    staging: Option<Staging>,
    /// The copy of the completed trace, while it is in progress.
    copying: Option<Copying>,
    /// The disk space reserved for the trace.
    share: Option<SpoolShare>,
    name: String,
    bytes: u64,
    state: RequestState,
    /// Path of the staging folder, if it could not be removed.
    left: Option<PathBuf>,
}

/// A change of a request's state since the last step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateChange {
    pub process: Process,
    pub state: RequestState,
}

/// The outcome of an order for one process, which may not be final yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracingOutcome {
    pub process: Process,
    pub state: RequestState,
    /// Path of the trace, if it is written.
    pub file: PathBuf,
    /// File name of this process's trace within the folder of the order.
    pub name: String,
    pub bytes: u64,
    /// Path of a staging folder that could not be removed.
    pub left: Option<PathBuf>,
}

impl Tracing {
    /// Sends a request to every chosen process. Traces will be copied to `place`.
    pub fn begin(
        server: &Server,
        chosen: Vec<Process>,
        place: TracePlace,
        order: &TracingOrder,
    ) -> Self {
        let timing = timing(order.trigger, server.now());
        let names = names(&chosen);
        let target = |(process, name): (Process, String)| {
            let id = format!("{}-{}", order.token, process.pid);
            let (staging, text, problem) = match prepare(&process, &id, order) {
                Ok((staging, text)) => (Some(staging), text, None),
                // A problem with one process must not end the order for the other processes.
                Err(problem) => (None, String::new(), Some(problem)),
            };
            let mut request = CaptureRequest::new(server.now(), text, id, timing, order.patience);
            let mut state = RequestState::Requested;
            if let Some(problem) = problem {
                request.lose(Reason::Unwritable(problem.clone()));
            }
            let own_pid = server.request(process.pid, request);
            if own_pid.is_none() {
                state = RequestState::Lost(Reason::Taken);
            }
            let own_pid = own_pid.unwrap_or(0);
            TracedProcess {
                process,
                own_pid,
                staging,
                copying: None,
                share: None,
                name,
                bytes: 0,
                state,
                left: None,
            }
        };
        let targets = chosen.into_iter().zip(names).map(target).collect();
        Self { place, targets }
    }

    /// Checks every process and its file, and continues one copy. Returns the changes of state.
    pub fn step(&mut self, server: &Server) -> Vec<StateChange> {
        self.copy(server);
        let mut changes = Vec::new();
        for target in &mut self.targets {
            if target.is_over() {
                continue;
            }
            let before = target.state.word();
            target.look(server, &self.place);
            if target.is_over() {
                target.copying = None;
                // A lost trace takes no disk space, so its reservation is released.
                if target.state != RequestState::Written {
                    target.share = None;
                }
                target.left = target.staging.take().and_then(Staging::remove);
            }
            if target.state.word() != before {
                let (process, state) = (target.process.clone(), target.state.clone());
                changes.push(StateChange { process, state });
            }
        }
        changes
    }

    /// Whether every process has a trace or a reason why it has none.
    pub fn is_over(&self) -> bool {
        self.targets.iter().all(TracedProcess::is_over)
    }

    /// Whether a copy is in progress, so that the next step should follow immediately.
    pub fn is_copying(&self) -> bool {
        self.targets.iter().any(|target| target.copying.is_some())
    }

    /// Ends all open requests as lost.
    pub fn interrupt(&self, server: &Server) {
        for target in self.targets.iter().filter(|target| !target.is_over()) {
            server.lose(target.process.pid, Reason::Interrupted);
        }
    }

    /// Returns the records of all staging folders, with which they can be removed after a crash.
    pub fn stagings(&self) -> Vec<StagingRecord> {
        let stagings = self.targets.iter().filter_map(|target| target.staging.as_ref());
        stagings.map(|staging| staging.record().clone()).collect()
    }

    /// Takes the reservation of disk space for a process's trace out of this order.
    pub fn take_share(&mut self, pid: u32) -> Option<SpoolShare> {
        self.targets.iter_mut().find(|target| target.process.pid == pid)?.share.take()
    }

    /// Returns the outcome of every process so far.
    pub fn outcomes(&self) -> Vec<TracingOutcome> {
        let outcome = |target: &TracedProcess| TracingOutcome {
            process: target.process.clone(),
            state: target.state.clone(),
            file: self.place.folder.path().join(&target.name),
            name: target.name.clone(),
            bytes: target.bytes,
            left: target.left.clone(),
        };
        self.targets.iter().map(outcome).collect()
    }

    fn copy(&mut self, server: &Server) {
        let first = self.targets.iter_mut().find_map(|target| {
            let copying = target.copying.as_mut()?;
            Some((copying.step(COPY_TURN), target))
        });
        let Some((step, target)) = first else { return };
        let pid = target.process.pid;
        match step {
            Ok(None) => return,
            Ok(Some(bytes)) => {
                target.bytes = bytes;
                server.collected(pid);
            }
            Err(error) => server.lose(pid, Reason::NotCopied(error.to_string())),
        }
        target.copying = None;
    }
}

impl TracedProcess {
    fn is_over(&self) -> bool {
        matches!(self.state, RequestState::Written | RequestState::Lost(_))
    }

    fn look(&mut self, server: &Server, place: &TracePlace) {
        let pid = self.process.pid;
        let sight = match &mut self.staging {
            // A finished file is already open for copying, so its folder is no longer observed.
            Some(staging) if self.state != RequestState::Finished => {
                staging.look(&self.process, self.own_pid)
            }
            _ => Sight::default(),
        };
        // The server has no entry for the process any more, so the process has ended.
        let gone = RequestState::Lost(Reason::Killed);
        self.state = server.look(pid, &sight).unwrap_or(gone);
        if self.state == RequestState::Finished && self.copying.is_none() {
            self.begin_copy(server, place);
        }
    }

    fn begin_copy(&mut self, server: &Server, place: &TracePlace) {
        let Some(staging) = &mut self.staging else { return };
        let bytes = staging.finished_bytes().unwrap_or(0);
        let begun = place.reserve(self.process.uid, bytes).map_err(|full| full.to_string());
        let begun = begun.and_then(|share| {
            let collected = staging.collect(&self.process, &place.folder, &self.name);
            collected.map(|copying| (share, copying)).map_err(|error| error.to_string())
        });
        match begun {
            Ok((share, copying)) => (self.share, self.copying) = (share, copying),
            Err(problem) => {
                let pid = self.process.pid;
                server.lose(pid, Reason::NotCopied(problem));
                self.state = server.state(pid).unwrap_or(RequestState::Lost(Reason::Killed));
            }
        }
    }
}

/// Chooses the names of the trace files. A name has the rank if no other process has the same rank,
/// otherwise the process id.
fn names(processes: &[Process]) -> Vec<String> {
    let mut ranks: BTreeMap<u32, u32> = BTreeMap::new();
    for rank in processes.iter().filter_map(Process::rank) {
        *ranks.entry(rank).or_default() += 1;
    }
    let name = |process: &Process| match process.rank() {
        Some(rank) if ranks.get(&rank) == Some(&1) => format!("rank-{rank}.json"),
        _ => format!("pid-{}.json", process.pid),
    };
    processes.iter().map(name).collect()
}

/// Returns the time until recording starts by default, within which every profiler can receive its
/// request and warm up.
pub fn start_ahead(warmup: Duration) -> Duration {
    POLL + warmup + START_ROOM
}

/// Creates a name for an order that is unique over all hosts. The name is random, so that two
/// orders of the same millisecond do not share a folder, and no other user can create the folder in
/// advance.
pub fn unique_token() -> String {
    let random = RandomState::new().build_hasher().finish();
    format!("{:x}-{random:016x}", unix_ms())
}

/// Returns the current time in milliseconds since 1970.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(0)
}

/// Converts the start of a recording from the wall clock to the clock of the requests.
fn timing(trigger: Trigger, now: Duration) -> Timing {
    match trigger {
        Trigger::Iterations { .. } => Timing::Iterations,
        Trigger::Duration { length, warmup_s, start_unix_ms } => {
            let ahead = Duration::from_millis(start_unix_ms.saturating_sub(unix_ms()));
            let warmup = Duration::from_secs(u64::from(warmup_s));
            Timing::At { start: now + ahead, warmup, length }
        }
    }
}

/// Prepares the folder of a process's trace and the text of its request. The error is the reason
/// why the process cannot write a trace.
fn prepare(process: &Process, id: &str, order: &TracingOrder) -> Result<(Staging, String), String> {
    let staging =
        Staging::prepare(process, id, order.size_max).map_err(|error| error.to_string())?;
    let (path, detail) = (staging.requested(), order.detail);
    let config = Config { path, trigger: order.trigger, detail, trace_id: id.to_owned() };
    let text = config.text().map_err(|error| error.to_string())?;
    Ok((staging, text))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::unique_token;

    #[test]
    fn orders_of_the_same_millisecond_have_distinct_names() {
        let tokens: BTreeSet<String> = (0..1000).map(|_| unique_token()).collect();
        assert_eq!(tokens.len(), 1000);
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        assert!(tokens.iter().all(|token| token.len() <= 64 && token.bytes().all(is_name)));
    }
}
