//! State shared by the agent's threads: tables behind locks held only for a lookup.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fleet::allocation::{self, Holders, SchedulerRun};
use fleet::process::Process;
use fleet::roster::Roster;
use fleet::server::Server;
use fleet::spool::SpoolBudget;
use fleet::steps::{ReportedSteps, StepProgress};
use fleet::wire::Pause;
use schema::Bytes;

use crate::audit::Audit;
use crate::config::{Config, ConfigError};
use crate::counters::gpu::GpuIdentity;
use crate::counters::host::{ControlGroup, HostCounters};
use crate::counters::interval::{CounterReading, Intervals};
use crate::gate::Gates;
use crate::hub::Hub;
use crate::periodic::book::Book;
use crate::uids::Uids;

/// What was seen of processes is used for so long.
const LOOKED: Duration = Duration::from_millis(500);
/// The longest pause, in seconds.
const PAUSE_MAX: u64 = 86_400;

/// Everything one agent knows.
#[derive(Debug)]
pub struct AgentState {
    /// What it was told.
    pub config: Config,
    /// The name of its host.
    pub host: String,
    /// Answers PyTorch.
    pub server: Server,
    /// Who asked.
    pub roster: Mutex<Roster>,
    /// Who reports steps.
    pub steps: Mutex<ReportedSteps>,
    /// The GPUs.
    pub gpus: Mutex<Vec<GpuState>>,
    /// The host, and quantiles over its cores in the last interval.
    pub machine: Mutex<HostState>,
    /// Runs of the processes that asked, and who holds which GPU.
    pub owners: Mutex<Owners>,
    /// GPUs that pods hold, by UUID.
    pub pods: Mutex<Holders>,
    /// What periodic traces have cost.
    pub periodic: Mutex<Book>,
    /// Whose processes are being sampled: one order at a time for each caller.
    pub sampling: Mutex<Vec<Uids>>,
    /// Who may have connections.
    pub gates: Gates,
    /// Room for finished traces.
    pub spool: Arc<SpoolBudget>,
    /// What is missing, and why.
    pub notes: Mutex<Vec<String>>,
    /// Counters left to others: GPU → when that ends.
    pub pauses: Mutex<BTreeMap<u32, Instant>>,
    /// Who requested what.
    pub audit: Audit,
    /// Where rows go and orders come from.
    pub hub: Option<Arc<Hub>>,
    /// Set to end.
    pub stop: AtomicBool,
    began: Instant,
    looked: Mutex<Option<Instant>>,
}

/// One GPU as it stands.
#[derive(Debug)]
pub struct GpuState {
    /// Which.
    pub identity: GpuIdentity,
    /// Its sums.
    pub intervals: Intervals,
    /// Its last reading.
    pub last: Option<CounterReading>,
    /// Its last XID; 0 for none.
    pub xid: u64,
    /// Why it cannot be read.
    pub lost: Option<String>,
}

/// The host as it was read last.
#[derive(Debug, Default)]
pub struct HostState {
    /// Counters.
    pub host: HostCounters,
    /// Share of time that cores worked in the last interval: p5, p25, p50, p75, p95.
    pub cores: Option<[f64; 5]>,
    /// Control groups of jobs.
    pub groups: BTreeMap<String, ControlGroup>,
}

/// Whose what is.
#[derive(Debug, Default)]
pub struct Owners {
    /// Runs of processes.
    pub runs: BTreeMap<u32, SchedulerRun>,
    /// Control groups of processes.
    pub groups: BTreeMap<u32, String>,
    /// GPUs by index or UUID.
    pub holders: Holders,
}

impl AgentState {
    /// A state that knows nothing yet.
    ///
    /// # Errors
    /// The queue of the hub cannot be opened.
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
            periodic: Mutex::default(),
            sampling: Mutex::default(),
            gates: Gates::default(),
            spool,
            notes: Mutex::default(),
            pauses: Mutex::default(),
            audit,
            hub: hub.map(Arc::new),
            stop: AtomicBool::new(false),
            began: Instant::now(),
            looked: Mutex::default(),
        })
    }

    /// Whether to end.
    pub fn is_ending(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Time since it began.
    pub fn up(&self) -> Duration {
        self.began.elapsed()
    }

    /// Seconds for which a GPU's counters are still left to others.
    pub fn paused(&self, gpu: u32) -> Option<u64> {
        let mut pauses = lock(&self.pauses);
        let left = pauses.get(&gpu)?.checked_duration_since(Instant::now());
        if left.is_none() {
            pauses.remove(&gpu);
        }
        left.map(|left| left.as_secs() + 1)
    }

    /// Releases a GPU's counters for a caller whose permission was checked.
    ///
    /// # Errors
    /// There is no such GPU, or the pause is too long.
    pub fn pause(&self, who: &str, order: Pause) -> Result<(), String> {
        let Pause { gpu, seconds } = order;
        let what = format!("gpu {gpu} {seconds} s");
        let is_known = lock(&self.gpus).iter().any(|known| known.identity.index == gpu);
        if !is_known || seconds > PAUSE_MAX {
            self.audit.line(who, "pause", &what, "refused");
            return Err(format!(
                "expected a GPU of this host and at most {PAUSE_MAX} s, got {what}"
            ));
        }
        lock(&self.pauses).insert(gpu, Instant::now() + Duration::from_secs(seconds));
        self.audit.line(who, "pause", &what, "done");
        Ok(())
    }

    /// Looks at processes, and at whose they and the GPUs are. One who asks again at once gets what
    /// was seen a moment ago, unless another process has asked since.
    pub fn look(&self) {
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
        let processes = {
            let mut roster = lock(&self.roster);
            roster.refresh(&self.server);
            roster.processes()
        };
        let known: BTreeMap<u32, String> = std::mem::take(&mut lock(&self.owners).groups);
        let mut owners = Owners::default();
        if let Some(folder) = &self.config.job_mapping {
            owners.holders = allocation::mapped(folder);
        }
        owners.holders.extend(lock(&self.pods).clone());
        for process in &processes {
            // A process's group is its own from its start; reading it once is enough.
            let group = known.get(&process.pid).cloned();
            let group = group.or_else(|| allocation::group_of(process.pid));
            if let Some(run) = allocation::run_of(process, group.as_deref()) {
                owners.hold(process, &run);
                owners.runs.insert(process.pid, run);
            }
            if let Some(group) = group {
                owners.groups.insert(process.pid, group);
            }
        }
        let reporting: Vec<u32> = lock(&self.steps).all().keys().copied().collect();
        let gone = |pid: &u32| Process::read(*pid).is_none();
        let gone: Vec<u32> = reporting.into_iter().filter(gone).collect();
        lock(&self.steps).keep(|pid| !gone.contains(&pid));
        *lock(&self.owners) = owners;
    }

    /// Whether a process seems to hang: the busiest GPU of its run shows whether it computes. Who
    /// takes both locks takes that of the GPUs first.
    pub fn is_hung(
        &self,
        pid: u32,
        progress: &StepProgress,
        (gpus, owners): (&[GpuState], &Owners),
    ) -> bool {
        let Some(run) = owners.runs.get(&pid) else { return false };
        let held = gpus
            .iter()
            .filter(|gpu| owners.runs_on(&gpu.identity).iter().any(|r| r.job == run.job));
        let busy = held.filter_map(GpuState::busy).fold(0.0, f64::max);
        progress.is_hung(self.up(), busy)
    }

    /// A note that is there once.
    pub fn note(&self, text: String) {
        let mut notes = lock(&self.notes);
        if !notes.contains(&text) {
            notes.push(text);
        }
    }
}

impl Owners {
    /// What a prolog says wins: it comes from the scheduler itself.
    fn hold(&mut self, process: &Process, run: &SchedulerRun) {
        for gpu in allocation::gpus_of(process) {
            let runs = self.holders.entry(gpu).or_default();
            let is_told = runs.iter().any(|known| known.scheduler == "prolog");
            match runs.iter_mut().find(|known| known.job == run.job) {
                Some(known) => *known = run.clone(),
                None if is_told => {}
                None => runs.push(run.clone()),
            }
        }
    }

    /// Who holds a GPU.
    pub fn runs_on(&self, identity: &GpuIdentity) -> &[SchedulerRun] {
        let index = match identity.instance {
            Some(instance) => format!("{}-{instance}", identity.index),
            None => identity.index.to_string(),
        };
        let held = self.holders.get(&index).or_else(|| self.holders.get(&identity.uuid));
        held.map_or(&[], Vec::as_slice)
    }
}

impl GpuState {
    /// A GPU that has not been read.
    pub fn new(identity: GpuIdentity, interval_s: u64) -> Self {
        Self { identity, intervals: Intervals::new(interval_s), last: None, xid: 0, lost: None }
    }

    /// Share of the last interval that it worked.
    pub fn busy(&self) -> Option<f64> {
        self.intervals.share(|sums| sums.busy_s)
    }
}

/// A lock whose last owner panicked holds what it held: every change is small and whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nanoseconds since 1970.
pub fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(0)
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
