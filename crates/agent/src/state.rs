//! State shared by the agent's threads. The state consists of tables behind locks, which are held
//! only for a lookup.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fleet::allocation::{self, Holders, JobMapping, SchedulerRun};
use fleet::ownership::{self, Claim, KnownGpu};
use fleet::process::Process;
use fleet::proto::Body;
use fleet::roster::Roster;
use fleet::server::Server;
use fleet::spool::SpoolBudget;
use fleet::steps::{ReportedSteps, StepProgress};
use fleet::wire::Pause;
use schema::Bytes;

use crate::audit::Audit;
use crate::clock::ClockTally;
use crate::config::{Config, ConfigError};
use crate::counters::gpu::GpuIdentity;
use crate::counters::host::{ControlGroup, HostCounters};
use crate::counters::interval::{CounterReading, Intervals};
use crate::gate::Gates;
use crate::hub::Hub;
use crate::owners::{self, Owners};
use crate::periodic::budgets::HostBudgets;
use crate::uids::Uids;

pub use crate::clock::unix_ns;
pub use crate::lock::lock;

/// Age up to which the result of a scan of processes is reused.
const LOOKED: Duration = Duration::from_millis(500);
/// The longest pause of a GPU's counters, in seconds.
const PAUSE_MAX: u64 = 86_400;

/// The state of the agent, shared by its threads. Each field has its own lock.
#[derive(Debug)]
pub struct AgentState {
    pub config: Config,
    pub host: String,
    pub server: Server,
    pub roster: Mutex<Roster>,
    pub steps: Mutex<ReportedSteps>,
    pub gpus: Mutex<Vec<GpuState>>,
    /// The last reading of the host's counters, with quantiles over its cores.
    pub machine: Mutex<HostState>,
    /// Runs of the processes that poll or report steps, and the runs that hold each GPU.
    pub owners: Mutex<Owners>,
    /// Pods that hold GPUs, by the UUID of the GPU.
    pub pods: Mutex<Holders>,
    /// Runs of the pods of this host by UID, as Kubernetes lists them.
    pub pod_runs: Mutex<BTreeMap<String, SchedulerRun>>,
    /// Budgets of periodic traces that were used today.
    pub periodic: Mutex<HostBudgets>,
    /// Callers whose sampling order is running, with at most one order per caller.
    pub sampling: Mutex<Vec<Uids>>,
    pub gates: Gates,
    /// Disk budget for the finished traces of all users.
    pub spool: Arc<SpoolBudget>,
    /// Notes about capabilities that are missing on this host.
    pub notes: Mutex<Vec<String>>,
    /// Data sources that do not respond, with a note about each.
    silent_sources: Mutex<BTreeMap<&'static str, String>>,
    /// State of the GPU driver, with notes about capabilities that it lacks.
    driver: Mutex<DriverState>,
    /// Milliseconds from the agent's start to its last complete reading.
    read_ms: AtomicU64,
    /// GPUs whose counters are paused for other tools, with the time at which the pause ends.
    pub pauses: Mutex<BTreeMap<u32, Instant>>,
    pub audit: Audit,
    /// The queue and connection of the hub, if a hub is configured.
    pub hub: Option<Arc<Hub>>,
    /// Jumps of the wall clock, and rows that were discarded because of such jumps.
    pub clock: ClockTally,
    pub stop: AtomicBool,
    began: Instant,
    looked: Mutex<Option<Instant>>,
}

/// Whether the GPU driver responds, with notes about capabilities that it lacks.
#[derive(Debug, Default)]
struct DriverState {
    is_up: bool,
    /// Version of the last driver that responded; empty if it is unknown.
    version: String,
    notes: Vec<String>,
}

/// The current state of one GPU: its last reading and its intervals.
#[derive(Debug)]
pub struct GpuState {
    pub identity: GpuIdentity,
    pub intervals: Intervals,
    pub last: Option<CounterReading>,
    /// Number of the last XID error; 0 if there was none.
    pub xid: u64,
    /// The reason why the GPU cannot be read; `None` if it can be read.
    pub lost: Option<String>,
    /// Ids of the users whose processes compute on this GPU.
    pub computing: BTreeSet<u32>,
    /// Whether the GPU is known only from the page of a dcgm-exporter.
    pub is_from_page: bool,
}

/// The last reading of the host's counters, and of the control groups of its jobs.
#[derive(Debug, Default)]
pub struct HostState {
    pub host: HostCounters,
    /// Quantiles over the cores of their busy share in the last interval: p5, p25, p50, p75 and
    /// p95.
    pub cores: Option<[f64; 5]>,
    /// Counters of the control groups of jobs, by the path of the group.
    pub groups: BTreeMap<String, ControlGroup>,
}

impl AgentState {
    /// Creates the initial state of the agent, before any reading.
    ///
    /// # Errors
    /// If the queue of the hub cannot be opened.
    pub fn new(config: Config, server: Server, audit: Audit) -> Result<Self, ConfigError> {
        let host = config.host.clone().unwrap_or_else(host_name);
        let folder = config.state().join("hub");
        let hub = config.hub.as_ref().map(|hub| Hub::open(hub, &folder, &host)).transpose()?;
        let mib = |mib: u64| Bytes(mib.saturating_mul(1 << 20));
        let spool = SpoolBudget::new(mib(config.spool_user_mib()), mib(config.spool_mib()));
        Ok(Self {
            config,
            host,
            server,
            roster: Mutex::default(),
            steps: Mutex::default(),
            gpus: Mutex::default(),
            machine: Mutex::default(),
            owners: Mutex::default(),
            pods: Mutex::default(),
            pod_runs: Mutex::default(),
            periodic: Mutex::default(),
            sampling: Mutex::default(),
            gates: Gates::default(),
            spool,
            notes: Mutex::default(),
            silent_sources: Mutex::default(),
            driver: Mutex::default(),
            read_ms: AtomicU64::new(0),
            pauses: Mutex::default(),
            audit,
            hub: hub.map(Arc::new),
            clock: ClockTally::default(),
            stop: AtomicBool::new(false),
            began: Instant::now(),
            looked: Mutex::default(),
        })
    }

    /// Whether the agent has been asked to end.
    pub fn is_ending(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Returns the time since the agent started.
    pub fn up(&self) -> Duration {
        self.began.elapsed()
    }

    /// Remaining seconds for which the counters of a GPU are paused. `None` if they are not paused.
    pub fn paused(&self, gpu: u32) -> Option<u64> {
        let mut pauses = lock(&self.pauses);
        let left = pauses.get(&gpu)?.checked_duration_since(Instant::now());
        if left.is_none() {
            pauses.remove(&gpu);
        }
        // The remaining time is rounded up, so that a pause that still lasts never shows 0 seconds.
        left.map(|left| left.as_secs() + 1)
    }

    /// Pauses the counters of a GPU. The caller's permission must have been checked before.
    ///
    /// # Errors
    /// If the host has no such GPU, or the pause is too long.
    pub fn pause(&self, who: &str, order: Pause) -> Result<(), String> {
        let Pause { gpu, seconds } = order;
        let what = format!("gpu {gpu} {seconds} s");
        let known: BTreeSet<u32> = lock(&self.gpus).iter().map(|gpu| gpu.identity.index).collect();
        let problem = if !known.contains(&gpu) {
            let known: Vec<String> = known.iter().map(u32::to_string).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Some(format!("gpu: expected a GPU of this host ({known}), got {gpu}"))
        } else {
            let is_long = seconds > PAUSE_MAX;
            is_long.then(|| format!("length of the pause: expected at most 24h, got {seconds} s"))
        };
        if let Some(problem) = problem {
            self.audit.line(who, "pause", &what, "refused");
            return Err(problem);
        }
        lock(&self.pauses).insert(gpu, Instant::now() + Duration::from_secs(seconds));
        self.audit.line(who, "pause", &what, "done");
        Ok(())
    }

    /// Scans processes and determines the owners of processes and GPUs. The last scan is reused if
    /// it is recent and no other process has polled since.
    pub fn look(&self) {
        // The lock is held during the scan, so that concurrent callers wait for one scan instead of
        // starting several.
        let mut looked = lock(&self.looked);
        if looked.is_some_and(|at| at.elapsed() < LOOKED) {
            let roster = lock(&self.roster);
            if self.server.seen().iter().all(|seen| roster.process(seen.pid).is_some()) {
                return;
            }
        }
        self.look_now();
        *looked = Some(Instant::now());
    }

    fn look_now(&self) {
        let mut processes = {
            let mut roster = lock(&self.roster);
            roster.refresh(&self.server);
            roster.processes()
        };
        processes.extend(self.reporting_processes(&processes));
        let groups = lock(&self.owners).groups_of(&processes);
        let mapping = self.config.job_mapping.as_deref().map(JobMapping::read).unwrap_or_default();
        self.set_source("job_mapping", mapping.check());
        let mut scheduler = mapping.holders;
        // Pods are keyed by UUID, and mapping files usually by index, so the keys of the two
        // sources rarely collide.
        scheduler.extend(lock(&self.pods).clone());
        let gpus: Vec<KnownGpu> = {
            let gpus = lock(&self.gpus);
            gpus.iter().map(|gpu| owners::known_gpu(&gpu.identity, &gpu.computing)).collect()
        };
        let logs = self.config.pod_resources.as_ref().map(|_| self.config.pod_logs());
        let mut pods = logs.map(|logs| allocation::pod_names(&logs)).unwrap_or_default();
        pods.extend(lock(&self.pod_runs).clone());
        let claim = |process: &Process| Claim::new(process, groups.get(&process.pid), &pods);
        let claims: Vec<Claim> = processes.iter().map(claim).collect();
        let decided = ownership::decide(&scheduler, &gpus, &claims, &allocation::user_names());
        lock(&self.owners).renew(decided, groups, processes);
    }

    /// Reads the processes that report steps and are not among `polling`. Ended processes are
    /// removed from the reported steps.
    fn reporting_processes(&self, polling: &[Process]) -> Vec<Process> {
        let polling: BTreeSet<u32> = polling.iter().map(|process| process.pid).collect();
        // The lock of the steps is released while `/proc` is read, because the thread that receives
        // steps needs it.
        let reporting: Vec<u32> = lock(&self.steps).all().keys().copied().collect();
        let mut gone = BTreeSet::new();
        let mut processes = Vec::new();
        for pid in reporting {
            match Process::read(pid) {
                Some(_) if polling.contains(&pid) => {}
                Some(process) => processes.push(process),
                None => {
                    gone.insert(pid);
                }
            }
        }
        lock(&self.steps).keep(|pid| !gone.contains(&pid));
        processes
    }

    /// Whether a process seems to hang, judged by its steps and by the busiest GPU of its run. A
    /// caller that holds the locks of both GPUs and steps must lock the GPUs first.
    pub fn is_hung(
        &self,
        pid: u32,
        progress: &StepProgress,
        gpus: &[GpuState],
        owners: &Owners,
    ) -> bool {
        let Some(run) = owners.runs().get(&pid) else { return false };
        let is_held = |gpu: &&GpuState| {
            owners.runs_on(&gpu.identity.uuid).iter().any(|holder| holder.is_same(run))
        };
        let held = gpus.iter().filter(is_held);
        let busy = held.filter_map(GpuState::busy).fold(0.0, f64::max);
        progress.is_hung(self.up(), busy)
    }

    /// Applies `change` to the GPU with this UUID. Returns `None` if no such GPU is known.
    pub fn with_gpu<T>(&self, uuid: &str, change: impl FnOnce(&mut GpuState) -> T) -> Option<T> {
        lock(&self.gpus).iter_mut().find(|gpu| gpu.identity.uuid == uuid).map(change)
    }

    /// Records the time of a complete reading.
    pub fn has_read(&self) {
        let up_ms = u64::try_from(self.up().as_millis()).unwrap_or(u64::MAX);
        self.read_ms.store(up_ms, Ordering::Relaxed);
    }

    /// Time since the last complete reading of the counters.
    pub fn reading_age(&self) -> Duration {
        self.up().saturating_sub(Duration::from_millis(self.read_ms.load(Ordering::Relaxed)))
    }

    /// Replaces the state of the GPU driver and the notes about it.
    pub fn set_driver(&self, is_up: bool, notes: Vec<String>) {
        let mut driver = lock(&self.driver);
        (driver.is_up, driver.notes) = (is_up, notes);
    }

    /// Records the version of the GPU driver.
    pub fn set_driver_version(&self, version: String) {
        lock(&self.driver).version = version;
    }

    /// Returns the version of the GPU driver, or an empty text if it is unknown.
    pub fn driver_version(&self) -> String {
        lock(&self.driver).version.clone()
    }

    /// Whether the GPU driver responded to the last call.
    pub fn has_driver(&self) -> bool {
        lock(&self.driver).is_up
    }

    /// Collects all notes about capabilities that are missing on this host.
    pub fn all_notes(&self) -> Vec<String> {
        let sources = lock(&self.silent_sources).values().cloned().collect();
        let gpus = self.missing_gpus().into_iter().collect();
        [lock(&self.notes).clone(), lock(&self.driver).notes.clone(), sources, gpus].concat()
    }

    /// The number of whole GPUs that can be read.
    pub fn gpu_count(&self) -> usize {
        let is_whole = |gpu: &&GpuState| gpu.identity.instance.is_none() && gpu.lost.is_none();
        lock(&self.gpus).iter().filter(is_whole).count()
    }

    /// Returns a note if the number of GPUs differs from the expected one. Before the first reading
    /// the number is unknown, so there is no note.
    fn missing_gpus(&self) -> Option<String> {
        let expected = self.config.expected_gpus?;
        let has_read = self.read_ms.load(Ordering::Relaxed) > 0;
        let count = self.gpu_count();
        (has_read && count != expected as usize).then(|| {
            format!(
                "expected_gpus: expected {expected} GPUs that can be read, got {count}. Compare with \
                 `nvidia-smi -L`, or correct `expected_gpus`"
            )
        })
    }

    /// Records whether a data source responds. If the source responds, its note is removed.
    pub fn set_source(&self, source: &'static str, answer: Result<(), String>) {
        let mut silent = lock(&self.silent_sources);
        match answer {
            Ok(()) => silent.remove(source),
            Err(note) => silent.insert(source, note),
        };
    }

    /// Queues events for the hub, if there is one.
    pub fn queue_events(&self, events: Vec<Body>) {
        let Some(hub) = self.hub.as_ref().filter(|_| !events.is_empty()) else { return };
        if let Err(error) = hub.add_events(events) {
            self.note(format!("queue of the hub: {error}"));
        }
    }

    /// Adds a note about a missing capability, unless the same note already exists.
    pub fn note(&self, text: String) {
        let mut notes = lock(&self.notes);
        if !notes.contains(&text) {
            notes.push(text);
        }
    }
}

impl GpuState {
    /// Creates the state of a GPU that has not been read yet.
    pub fn new(identity: GpuIdentity, interval_s: u64) -> Self {
        let intervals = Intervals::new(interval_s);
        let (last, lost, computing) = (None, None, BTreeSet::new());
        Self { identity, intervals, last, xid: 0, lost, computing, is_from_page: false }
    }

    /// Share of the last interval during which the GPU was busy.
    pub fn busy(&self) -> Option<f64> {
        self.intervals.share(|sums| sums.busy_s)
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
