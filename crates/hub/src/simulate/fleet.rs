//! A made-up fleet: runs begin on free GPUs, end, fail and are repeated, and hosts fail.
//!
//! All events follow from the seed and the time, so the same options give the same rows.

use std::collections::BTreeMap;

use fleet::proto::{Body, GpuInterval, GpuRun, HostEvent, HostInterval, RunReport, StepInterval};
use schema::random::CounterRng;
use serde_json::json;

use super::fault::{self, SimulatedFault};
use crate::nodes::NODE;

/// What the runs of a workflow have in common.
struct SimulatedWorkflow {
    name: &'static str,
    users: &'static [&'static str],
    /// Number of GPUs of a run.
    gpus: u32,
    /// Shortest and longest duration in hours.
    hours: [f64; 2],
    /// Share of the intervals in which a GPU of the run does nothing.
    idle: f64,
    /// Share of the other time in which a GPU of the run works.
    busy: f64,
    /// Share of the multiprocessors that work while the GPU does.
    sm: f64,
    /// Probability that a run fails and is repeated.
    failure: f64,
}

const WORKFLOWS: [SimulatedWorkflow; 6] = [
    SimulatedWorkflow {
        name: "ads-ranking",
        users: &["anna", "bela"],
        gpus: 32,
        hours: [2.0, 12.0],
        idle: 0.0,
        busy: 0.9,
        sm: 0.55,
        failure: 0.05,
    },
    SimulatedWorkflow {
        name: "feed-retrieval",
        users: &["carlo", "dora"],
        gpus: 16,
        hours: [1.0, 6.0],
        idle: 0.0,
        busy: 0.8,
        sm: 0.42,
        failure: 0.05,
    },
    SimulatedWorkflow {
        name: "language-model",
        users: &["emil"],
        gpus: 64,
        hours: [12.0, 48.0],
        idle: 0.0,
        busy: 0.97,
        sm: 0.72,
        failure: 0.1,
    },
    SimulatedWorkflow {
        name: "image-search",
        users: &["anna", "fritz"],
        gpus: 8,
        hours: [4.0, 12.0],
        idle: 0.0,
        busy: 0.6,
        sm: 0.4,
        failure: 0.02,
    },
    SimulatedWorkflow {
        name: "notebook",
        users: &["dora", "gita", "hugo"],
        gpus: 1,
        hours: [4.0, 24.0],
        idle: 0.9,
        busy: 0.4,
        sm: 0.3,
        failure: 0.0,
    },
    SimulatedWorkflow {
        name: "parameter-search",
        users: &["hugo", "ines"],
        gpus: 4,
        hours: [0.5, 3.0],
        idle: 0.0,
        busy: 0.7,
        sm: 0.3,
        failure: 0.15,
    },
];
/// The workflow that becomes slow at [`FleetSpec::slow_from_s`], and the factor of its activity.
const SLOW: (&str, f64) = ("image-search", 0.5);
/// Mean time between two failures of a host in hours, and the shortest and longest time for which a
/// failed host is silent in seconds.
const HOURS_BETWEEN_FAILURES: f64 = 300.0;
const SILENT_S: [f64; 2] = [600.0, 3600.0];
/// Time in seconds for which the scheduler starts no job on a host that has returned.
const DRAINED_S: u64 = 7200;
/// Longest time in seconds between a failure and the begin of a run that counts as its repetition.
const REPEAT_S: u64 = 86_400;
/// Seconds after which an unchanged run or node is reported again.
const AGAIN_S: u64 = 3600;
/// Number by which process ids of runs are larger than the numbers of their jobs.
const FIRST_PID: u64 = 1000;
/// Name of the cluster, in place of a host, of the scheduler's reports about runs.
pub const CLUSTER: &str = "cluster";
/// Share of the GPUs that jobs want at most, and how much less they want at night.
const WANTED: f64 = 0.9;
const WANTED_AT_NIGHT: f64 = 0.7;
/// Number of jobs that may be submitted in one interval.
const SUBMITTED_MAX: u64 = 8;
/// One in this many hosts has a driver that does not report the activity of multiprocessors.
const OLD_DRIVER_EVERY: usize = 20;

/// The size of a fleet and the seed of its events.
#[derive(Clone, Copy, Debug)]
pub struct FleetSpec {
    pub seed: u64,
    pub hosts: usize,
    /// Number of GPUs of each host.
    pub gpus: u32,
    /// Number of seconds that each row covers.
    pub interval_s: u32,
    /// Time from which one workflow works at half its speed, in seconds since 1970.
    pub slow_from_s: u64,
}

/// A fleet at one moment.
#[derive(Debug)]
pub struct SimulatedFleet {
    spec: FleetSpec,
    faults: Vec<SimulatedFault>,
    rng: CounterRng,
    hosts: Vec<SimulatedHost>,
    running: BTreeMap<u64, SimulatedRun>,
    waiting: Vec<SimulatedJob>,
    jobs: u64,
    /// The last failure of each user and workflow that no run has repeated, in seconds since 1970.
    failures: BTreeMap<(&'static str, usize), u64>,
    /// Reports about runs that no round has returned yet.
    reports: Vec<RunReport>,
    /// Runs that have ended since the last call of [`Self::take_ended`].
    ended: Vec<SimulatedRun>,
    /// Runs before whose begin a run of the same user and workflow failed, with no other begin
    /// since. They have begun since the last call of [`Self::take_repeated`].
    repeated: Vec<String>,
}

/// A host of the fleet.
#[derive(Debug)]
struct SimulatedHost {
    name: String,
    model: &'static str,
    /// The job that holds each GPU.
    holders: Vec<Option<u64>>,
    /// Time until which a failed host sends nothing.
    silent_until_s: u64,
    /// Time until which the scheduler starts no job.
    drained_until_s: u64,
    /// Whether the host has failed and not sent a row since.
    has_failed: bool,
    /// The last report about the host as a node, with its time.
    reported: Option<(String, u64)>,
}

/// What a user submits.
#[derive(Clone, Debug)]
pub struct SimulatedJob {
    workflow: usize,
    pub user: &'static str,
    gpus: u32,
    length_s: u64,
    /// Time from its start after which the run fails.
    fails_after_s: Option<u64>,
}

/// A job that holds GPUs, or held them.
#[derive(Clone, Debug)]
pub struct SimulatedRun {
    pub job: u64,
    pub submitted: SimulatedJob,
    /// Indices of its hosts.
    hosts: Vec<usize>,
    pub start_s: u64,
    pub end_s: u64,
    pub is_failed: bool,
    /// Whether a host of the run failed.
    has_lost_host: bool,
    reported_s: u64,
}

/// What a host or the cluster sends for one interval.
#[derive(Clone, Debug, Default)]
pub struct HostRows {
    /// Index of the host in the fleet, or the number of hosts for the cluster.
    pub host: usize,
    pub gpus: Vec<GpuInterval>,
    /// Absent for the cluster.
    pub own: Option<HostInterval>,
    /// The state of the host as a node, if it is reported now.
    pub node: Option<HostEvent>,
    /// Whether jobs may start on the host.
    pub is_schedulable: bool,
    pub runs: Vec<RunReport>,
    /// Steps of the runs that begin on the host, and its processes that hung.
    pub steps: Vec<StepInterval>,
    pub hangs: Vec<HostEvent>,
    /// The chosen fault of the host.
    pub fault: Option<SimulatedFault>,
}

impl HostRows {
    /// Sets the clock of the host ahead.
    pub fn set_ahead(&mut self, seconds: u64) {
        self.own.iter_mut().for_each(|own| own.start_unix_s += seconds);
        self.gpus.iter_mut().for_each(|gpu| gpu.start_unix_s += seconds);
        let events = self.node.iter_mut().chain(&mut self.hangs);
        events.for_each(|event| event.start_unix_ms += seconds * 1000);
        self.steps.iter_mut().for_each(|row| row.start_unix_s += seconds);
    }

    /// Returns all entries of the interval.
    pub fn bodies(&self) -> impl Iterator<Item = Body> {
        let events = self.node.iter().chain(&self.hangs);
        let events = events.map(|event| Body::Event(Box::new(event.clone())));
        let gpus = self.gpus.iter().map(|row| Body::Gpu(Box::new(row.clone())));
        let own = self.own.iter().map(|row| Body::Host(Box::new(row.clone())));
        let runs = self.runs.iter().map(|run| Body::Run(Box::new(run.clone())));
        let steps = self.steps.iter().map(|row| Body::Steps(Box::new(row.clone())));
        events.chain(gpus).chain(own).chain(runs).chain(steps)
    }
}

impl SimulatedRun {
    /// The name of its workflow.
    fn workflow(&self) -> &'static str {
        WORKFLOWS[self.submitted.workflow].name
    }

    /// The name of the run in rows.
    pub fn name(&self) -> String {
        format!("slurm/{}", self.job)
    }

    /// The process that reports the steps of the run. Runs of one host have different ones.
    fn pid(&self) -> u32 {
        u32::try_from(FIRST_PID + self.job).unwrap_or(u32::MAX)
    }

    /// The user and the workflow.
    fn origin(&self) -> (&'static str, usize) {
        (self.submitted.user, self.submitted.workflow)
    }

    fn allocation(&self) -> GpuRun {
        GpuRun {
            scheduler: "slurm".to_owned(),
            job: self.job.to_string(),
            name: self.workflow().to_owned(),
            user: self.submitted.user.to_owned(),
            account: "research".to_owned(),
            partition: "gpu".to_owned(),
        }
    }

    /// What the scheduler reports about the run.
    fn report(&self, now_s: u64) -> RunReport {
        let has_ended = self.end_s <= now_s;
        let (state, exit_code, exit_signal) = match (has_ended, self.is_failed) {
            (false, _) => ("running", None, None),
            (true, false) => ("completed", Some(0), None),
            (true, true) if self.has_lost_host => ("node_fail", Some(0), Some(9)),
            (true, true) => ("failed", Some(1), None),
        };
        RunReport {
            seen_unix_s: now_s,
            run: Some(self.allocation()),
            workflow: self.workflow().to_owned(),
            started_unix_s: self.start_s,
            ended_unix_s: has_ended.then_some(self.end_s),
            exit_code,
            exit_signal,
            state: state.to_owned(),
            ..RunReport::default()
        }
    }
}

impl SimulatedFleet {
    /// Creates a fleet whose GPUs are all free.
    pub fn new(spec: FleetSpec, faults: &[SimulatedFault]) -> Self {
        let host = |at: usize| {
            let (kind, model) = match at % 5 {
                0..3 => ("h100", "NVIDIA H100 80GB HBM3"),
                _ => ("a100", "NVIDIA A100-SXM4-80GB"),
            };
            let holders = vec![None; spec.gpus as usize];
            SimulatedHost {
                name: format!("{kind}-{at:05}"),
                model,
                holders,
                silent_until_s: 0,
                drained_until_s: 0,
                has_failed: false,
                reported: None,
            }
        };
        Self {
            spec,
            faults: faults.to_vec(),
            rng: CounterRng::new(spec.seed, 0),
            hosts: (0..spec.hosts).map(host).collect(),
            running: BTreeMap::new(),
            waiting: Vec::new(),
            jobs: 0,
            failures: BTreeMap::new(),
            reports: Vec::new(),
            ended: Vec::new(),
            repeated: Vec::new(),
        }
    }

    /// Names of all hosts.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.hosts.iter().map(|host| host.name.as_str())
    }

    /// Runs that have ended since the last call.
    pub fn take_ended(&mut self) -> Vec<SimulatedRun> {
        std::mem::take(&mut self.ended)
    }

    /// Runs that repeat a failed one and have begun since the last call.
    pub fn take_repeated(&mut self) -> Vec<String> {
        std::mem::take(&mut self.repeated)
    }

    /// Ends, fails and begins runs at the start of an interval. Returns the rows of the hosts that
    /// report the interval, and the scheduler's reports about runs.
    pub fn step(&mut self, start_s: u64) -> Vec<HostRows> {
        let events = self.rng.child(start_s);
        self.fail_hosts(start_s, events);
        self.end_runs(start_s);
        self.begin_runs(start_s, events);
        for run in self.running.values_mut() {
            if start_s - run.reported_s >= AGAIN_S {
                run.reported_s = start_s;
                self.reports.push(run.report(start_s));
            }
        }
        let count = self.hosts.len();
        let mut rows: Vec<HostRows> =
            (0..count).filter_map(|host| self.rows(host, start_s)).collect();
        let runs = std::mem::take(&mut self.reports);
        rows.push(HostRows { host: count, runs, ..HostRows::default() });
        rows
    }

    fn fail_hosts(&mut self, now_s: u64, events: CounterRng) {
        let probability = f64::from(self.spec.interval_s) / 3600.0 / HOURS_BETWEEN_FAILURES;
        for (at, host) in self.hosts.iter_mut().enumerate() {
            let draw = events.child(1).child(at as u64);
            if now_s < host.silent_until_s || draw.unit(0) >= probability {
                continue;
            }
            host.silent_until_s = now_s + between(SILENT_S, draw.unit(1)) as u64;
            host.drained_until_s = host.silent_until_s + DRAINED_S;
            host.has_failed = true;
            for job in host.holders.iter().flatten() {
                if let Some(run) = self.running.get_mut(job) {
                    (run.end_s, run.is_failed, run.has_lost_host) = (now_s, true, true);
                }
            }
        }
    }

    fn end_runs(&mut self, now_s: u64) {
        let over: Vec<u64> = self
            .running
            .iter()
            .filter(|(_, run)| run.end_s <= now_s)
            .map(|(job, _)| *job)
            .collect();
        for job in over {
            let Some(mut run) = self.running.remove(&job) else { continue };
            run.end_s = now_s;
            for host in &run.hosts {
                let holders = self.hosts[*host].holders.iter_mut();
                holders.filter(|holder| **holder == Some(job)).for_each(|holder| *holder = None);
            }
            if run.is_failed {
                self.waiting.push(SimulatedJob { fails_after_s: None, ..run.submitted.clone() });
                self.failures.insert(run.origin(), now_s);
            }
            self.reports.push(run.report(now_s));
            self.ended.push(run);
        }
    }

    fn begin_runs(&mut self, now_s: u64, events: CounterRng) {
        let gpus = self.spec.hosts as f64 * f64::from(self.spec.gpus);
        let day = (now_s % 86_400) as f64 / 86_400.0 * std::f64::consts::TAU;
        let wanted = WANTED_AT_NIGHT + (WANTED - WANTED_AT_NIGHT) * (1.0 - day.cos()) / 2.0;
        let held = |runs: &BTreeMap<u64, SimulatedRun>| -> f64 {
            runs.values().map(|run| f64::from(run.submitted.gpus)).sum()
        };
        for at in 0..SUBMITTED_MAX {
            let queued: f64 = self.waiting.iter().map(|job| f64::from(job.gpus)).sum();
            if held(&self.running) + queued >= wanted * gpus {
                break;
            }
            let draw = events.child(2).child(at);
            let drawn = draw.below(0, WORKFLOWS.len() as u64) as usize;
            // The workflow that becomes slow always has a run, so that a report can find it.
            let slow = WORKFLOWS.iter().position(|kind| kind.name == SLOW.0).unwrap_or(drawn);
            let mut jobs = self.running.values().map(|run| &run.submitted).chain(&self.waiting);
            let has_slow = jobs.any(|job| job.workflow == slow);
            self.waiting.push(self.submit(if has_slow { drawn } else { slow }, draw));
        }
        for job in std::mem::take(&mut self.waiting) {
            match self.place(&job, now_s) {
                Some(hosts) => self.begin(job, hosts, now_s),
                None => self.waiting.push(job),
            }
        }
    }

    fn submit(&self, workflow: usize, draw: CounterRng) -> SimulatedJob {
        let kind = &WORKFLOWS[workflow];
        // A job of a small fleet takes at most a quarter of it.
        let gpus = kind.gpus.min((self.spec.hosts as u32 * self.spec.gpus / 4).max(1));
        let length_s = (between(kind.hours, draw.unit(1)) * 3600.0) as u64;
        let fails_after_s =
            (draw.unit(2) < kind.failure).then(|| (draw.unit(3) * length_s as f64) as u64);
        let user = kind.users[draw.below(4, kind.users.len() as u64) as usize];
        SimulatedJob { workflow, user, gpus, length_s, fails_after_s }
    }

    /// Finds hosts of one model with enough free GPUs. Jobs of several hosts take whole hosts.
    fn place(&self, job: &SimulatedJob, now_s: u64) -> Option<Vec<usize>> {
        let per_host = job.gpus.min(self.spec.gpus) as usize;
        let count = (job.gpus as usize).div_ceil(per_host);
        let free = |host: &&usize| {
            let host = &self.hosts[**host];
            let free = host.holders.iter().filter(|holder| holder.is_none()).count();
            host.drained_until_s <= now_s && free >= per_host
        };
        let all: Vec<usize> = (0..self.hosts.len()).collect();
        let free: Vec<usize> = all.iter().filter(free).copied().collect();
        let models = ["h100", "a100"].into_iter();
        models
            .map(|kind| {
                let of_kind = free.iter().filter(|host| self.hosts[**host].name.starts_with(kind));
                of_kind.take(count).copied().collect::<Vec<usize>>()
            })
            .find(|hosts| hosts.len() == count)
    }

    fn begin(&mut self, submitted: SimulatedJob, hosts: Vec<usize>, start_s: u64) {
        self.jobs += 1;
        let job = self.jobs;
        let mut left = submitted.gpus;
        for host in &hosts {
            let mut here = left.min(self.spec.gpus);
            left -= here;
            for holder in &mut self.hosts[*host].holders {
                if here > 0 && holder.is_none() {
                    *holder = Some(job);
                    here -= 1;
                }
            }
        }
        let is_failed = submitted.fails_after_s.is_some();
        let end_s = start_s + submitted.fails_after_s.unwrap_or(submitted.length_s);
        let run = SimulatedRun {
            job,
            submitted,
            hosts,
            start_s,
            end_s,
            is_failed,
            has_lost_host: false,
            reported_s: start_s,
        };
        let failure = self.failures.remove(&run.origin());
        if failure.is_some_and(|failed_s| start_s <= failed_s + REPEAT_S) {
            self.repeated.push(run.name());
        }
        // A run that fails at once ends in the next interval.
        let report = RunReport { ended_unix_s: None, ..run.report(start_s.saturating_sub(1)) };
        self.reports.push(RunReport { seen_unix_s: start_s, ..report });
        self.running.insert(job, run);
    }

    /// The rows of a host, or `None` if it is silent.
    fn rows(&mut self, at: usize, start_s: u64) -> Option<HostRows> {
        let host = &mut self.hosts[at];
        if start_s < host.silent_until_s {
            return None;
        }
        let has_failed = std::mem::take(&mut host.has_failed);
        let is_schedulable = host.drained_until_s <= start_s;
        let node = host.report(start_s);
        let draw = self.rng.child(start_s).child(3).child(at as u64);
        let gpu = |index: u32| self.gpu(at, index, start_s, draw.child(u64::from(index)));
        let mut gpus: Vec<GpuInterval> = (0..self.spec.gpus).map(gpu).collect();
        if has_failed {
            gpus[0].errors.insert("xid_79".to_owned(), 1);
        }
        let length_s = f64::from(self.spec.interval_s);
        let busy_s: f64 = gpus.iter().filter_map(|gpu| gpu.sums.get("busy_s")).sum();
        let cores = 96.0;
        let user_s = (busy_s + 4.0 * length_s).min(cores * length_s);
        let cpu_s =
            [("user", user_s), ("system", 0.1 * user_s), ("idle", cores * length_s - 1.1 * user_s)];
        let mut own = HostInterval {
            start_unix_s: start_s,
            length_s: self.spec.interval_s,
            observed_s: length_s,
            cpu_s: cpu_s.map(|(name, seconds)| (name.to_owned(), seconds.max(0.0))).into(),
            memory_total: 2 << 40,
            memory_available_min: 1 << 40,
            ..HostInterval::default()
        };
        fault::change(self.fault(at), &mut own, &mut gpus);
        let (steps, hangs) = (self.steps(at, start_s), self.hangs(at, start_s));
        let (own, runs) = (Some(own), Vec::new());
        let fault = self.fault(at);
        Some(HostRows { host: at, gpus, own, node, is_schedulable, runs, steps, hangs, fault })
    }

    fn fault(&self, at: usize) -> Option<SimulatedFault> {
        fault::fault(at as u64, &self.faults)
    }

    /// The steps of the runs that this host reports: their first host with a fault of steps does,
    /// or else their first host.
    fn steps(&self, at: usize, start_s: u64) -> Vec<StepInterval> {
        let chosen = [SimulatedFault::Slowing, SimulatedFault::Varying];
        if !chosen.iter().any(|one| self.faults.contains(one)) {
            return Vec::new();
        }
        let changes = |host: &&usize| self.fault(**host).is_some_and(|one| chosen.contains(&one));
        let reporter =
            |run: &SimulatedRun| run.hosts.iter().find(changes).or(run.hosts.first()).copied();
        let begun = self.running.values().filter(|run| reporter(run) == Some(at));
        let row = |run: &SimulatedRun| StepInterval {
            start_unix_s: start_s,
            length_s: self.spec.interval_s,
            run: Some(run.allocation()),
            workflow: run.workflow().to_owned(),
            pid: run.pid(),
            ..fault::steps(self.fault(at), start_s - run.start_s, self.spec.interval_s)
        };
        begun.map(row).collect()
    }

    /// The process on the first GPU that hung from the full hour on.
    fn hangs(&self, at: usize, start_s: u64) -> Vec<HostEvent> {
        let is_due = self.fault(at) == Some(SimulatedFault::Hung) && start_s.is_multiple_of(3600);
        let job = self.hosts[at].holders.first().copied().flatten().filter(|_| is_due);
        let run = job.and_then(|job| self.running.get(&job));
        run.map(|run| fault::hang(run.allocation(), run.pid(), start_s)).into_iter().collect()
    }

    fn gpu(&self, at: usize, index: u32, start_s: u64, draw: CounterRng) -> GpuInterval {
        let host = &self.hosts[at];
        let length_s = f64::from(self.spec.interval_s);
        let run = host.holders[index as usize].and_then(|job| self.running.get(&job));
        let [busy, sm] = run.map_or([0.0; 2], |run| {
            let kind = &WORKFLOWS[run.submitted.workflow];
            let is_slow = kind.name == SLOW.0 && start_s >= self.spec.slow_from_s;
            let factor = if is_slow { SLOW.1 } else { 1.0 };
            let noisy =
                |share: f64, counter| (share * (1.0 + 0.1 * draw.normal(counter))).clamp(0.0, 1.0);
            let is_idle = draw.unit(4) < kind.idle;
            // All GPUs of a run wait for those of a host without free CPUs.
            let waits = |host: &usize| self.fault(*host) == Some(SimulatedFault::Starved);
            let factor = if run.hosts.iter().any(waits) { factor * fault::STARVED } else { factor };
            let is_first = index == 0 && self.fault(at) == Some(SimulatedFault::Uneven);
            let factor = if is_first { factor * fault::UNEVEN } else { factor };
            let busy = if is_idle { 0.0 } else { noisy(kind.busy * factor, 0) };
            [busy, busy * noisy(kind.sm, 1)]
        });
        let mut sums = vec![("busy_s", busy), ("energy_j", 70.0 + 600.0 * sm)];
        if at % OLD_DRIVER_EVERY != OLD_DRIVER_EVERY - 1 {
            sums.extend([("sm_active_s", sm), ("sm_occupancy_s", 0.6 * sm), ("dram_s", 0.5 * sm)]);
        }
        GpuInterval {
            start_unix_s: start_s,
            length_s: self.spec.interval_s,
            index,
            uuid: format!("GPU-{}-{index}", host.name),
            model: host.model.to_owned(),
            runs: run.map(SimulatedRun::allocation).into_iter().collect(),
            observed_s: length_s,
            reads: u64::from(self.spec.interval_s),
            sums: sums.into_iter().map(|(name, rate)| (name.to_owned(), rate * length_s)).collect(),
            memory_used: Some(if run.is_some() { 60 << 30 } else { 0 }),
            ..GpuInterval::default()
        }
    }
}

impl SimulatedHost {
    /// What the scheduler reports about the host, if it has changed or was not reported for long.
    fn report(&mut self, now_s: u64) -> Option<HostEvent> {
        let used = self.holders.iter().flatten().count();
        let used_state = match used {
            0 => "idle",
            used if used == self.holders.len() => "allocated",
            _ => "mixed",
        };
        let (mut state, mut reason) = (vec![used_state], "");
        if now_s < self.drained_until_s {
            state.push("drain");
            reason = "Xid 79";
        }
        let gpus = self.holders.len();
        let details = json!({
            "cluster": CLUSTER, "state": state, "reason": reason, "gpus": gpus, "gpus_used": used,
        });
        let details = details.to_string();
        let before = self.reported.as_ref();
        if before.is_some_and(|(same, at_s)| *same == details && now_s - at_s < AGAIN_S) {
            return None;
        }
        self.reported = Some((details.clone(), now_s));
        Some(HostEvent {
            kind: NODE.to_owned(),
            start_unix_ms: now_s * 1000,
            is_over: true,
            details,
            ..HostEvent::default()
        })
    }
}

/// Returns the number at `unit` (0 to 1) of the way from the first number to the second.
fn between([low, high]: [f64; 2], unit: f64) -> f64 {
    low + (high - low) * unit
}
