//! Takes periodic traces, a sample of the steps of every workflow type, within budgets. One process
//! at a time is traced. The process is chosen from those that train, are free and report their
//! steps. The trace is kept with the number of steps that it represents.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use fleet::allocation;
use fleet::capture::{Skip, choose as targets};
use fleet::process::Process;
use fleet::proto::{Body, HostEvent};
use fleet::server::SeenProcess;
use fleet::steps::Phase;
use fleet::tracing::{self, unix_ms};
use fleet::untrusted::{MissingFolder, OwnFolder};
use fleet::wire::{PeriodicRow, RecordWhen, TraceOrder, TraceRow};
use schema::random::CounterRng;
use serde_json::json;

use crate::hub::row;
use crate::state::{AgentState, lock, unix_ns};
use crate::traces::Traces;
use crate::uids::Uids;
use budgets::{HostBudgets, SkipReason, WallTime, Workflow};
use policy::Policy;
use step_times::{Slowdown, StepTimes, StepTotals};
use trace_store::{KeptTrace, TraceStore};

pub mod budgets;
pub mod policy;
pub mod step_times;
pub mod trace_store;

/// Time between two rounds of the thread that takes periodic traces.
const LOOK: Duration = Duration::from_secs(1);
/// Interval at which the thread checks whether the agent is ending.
const END: Duration = Duration::from_millis(200);
/// How long steps are observed after a trace is written, because the profiler may still be active
/// in that time.
const SETTLE: Duration = Duration::from_secs(3);
/// Time between two scans of processes while no process starts or ends.
const REFRESH: Duration = Duration::from_secs(5);
/// Time between two writes of the file of used budgets.
const SAVE: Duration = Duration::from_secs(60);
/// The shortest timeout of a trace, for a process that makes no steps.
const PATIENCE: Duration = Duration::from_secs(60);
/// The file name of the used budgets.
const BUDGETS: &str = "periodic.json";
/// Largest size in bytes of the budgets file. A larger file was not written by the agent.
const BUDGETS_MAX: u64 = 16 << 20;
/// Name of periodic traces as a caller in audit lines.
const WHO: &str = "periodic";

/// The state of the thread that takes periodic traces.
struct PeriodicTracer {
    state: Arc<AgentState>,
    traces: Arc<Traces>,
    policy: Policy,
    store: TraceStore,
    folder: OwnFolder,
    watched: BTreeMap<u32, Watched>,
    /// Process ids at the last refresh of `watched`. The time of the refresh is `refreshed`.
    seen: Vec<u32>,
    refreshed: Instant,
    open: Option<OpenTrace>,
    saved: Instant,
}

/// A process of which periodic traces may be taken.
struct Watched {
    workflow: Workflow,
    job: Option<String>,
    rank: Option<u32>,
    steps: u64,
    /// Steps of this process since the last kept trace of its workflow type.
    since: u64,
    times: StepTimes,
    /// The reason why the process cannot be traced at the moment.
    wait: Option<SkipReason>,
}

/// The periodic trace that is in progress.
struct OpenTrace {
    token: String,
    workflow: Workflow,
    pid: u32,
    begun_unix_ms: u64,
    /// Step times of the process before the trace was requested.
    before: StepTimes,
    over: Option<(Instant, Result<TraceRow, String>)>,
}

/// Starts the thread that takes periodic traces, if they are configured.
///
/// # Errors
/// If the folder of traces cannot be created, or the operating system cannot start a thread.
pub fn start(state: &Arc<AgentState>, traces: &Arc<Traces>) -> io::Result<Option<JoinHandle<()>>> {
    let Some(policy) = state.config.periodic.clone() else { return Ok(None) };
    let folder = state.config.state();
    let store =
        TraceStore::open(&folder.join("periodic"), policy.keep_mib.saturating_mul(1 << 20))?;
    let folder = OwnFolder::open(&folder, MissingFolder::Make(0o700))?;
    if let Some(known) = folder.read(BUDGETS, BUDGETS_MAX)? {
        match HostBudgets::parse(&known) {
            Some(budgets) => *lock(&state.periodic) = budgets,
            None => state.note(format!(
                "periodic traces: {BUDGETS} is damaged or of another version, so today's budgets begin \
                 anew"
            )),
        }
    }
    let (state, traces) = (Arc::clone(state), Arc::clone(traces));
    let now = Instant::now();
    let mut executor = PeriodicTracer {
        state,
        traces,
        policy,
        store,
        folder,
        watched: BTreeMap::new(),
        seen: Vec::new(),
        refreshed: now,
        open: None,
        saved: now,
    };
    let builder = Builder::new().name("periodic".to_owned()).stack_size(512 << 10);
    builder.spawn(move || executor.run()).map(Some)
}

/// Lists the state of each workflow type of the users in `uids`.
pub fn rows(state: &AgentState, uids: &Uids) -> Vec<PeriodicRow> {
    let Some(policy) = &state.config.periodic else { return Vec::new() };
    let now = WallTime { unix_s: unix_ns() / 1_000_000_000 };
    let budgets = lock(&state.periodic);
    let seen = budgets.all().filter(|(uid, ..)| uids.has(*uid));
    let row = |(uid, name, budget): (u32, &String, &budgets::WorkflowBudget)| PeriodicRow {
        uid,
        ..budget.row(name, now, &policy.limits(name))
    };
    seen.map(row).collect()
}

/// Returns notes about workflow types that back off, or whose last trace was lost.
pub fn notes(rows: &[PeriodicRow]) -> Vec<String> {
    let note = |row: &PeriodicRow| {
        let name = format!("{:?} of user {}", row.workflow, row.uid);
        let slow = row.backs_off_s.zip(row.slowdown).map(|(left, slowdown)| {
            let more = slowdown * 100.0;
            format!(
                "periodic traces of {name}: none for {left} s, because steps took longer while \
                 each of the last {} was made, by {more:.1} % in the last",
                row.slow_in_row
            )
        });
        let lost = row
            .problem
            .as_ref()
            .map(|why| format!("periodic traces of {name}: the last one was lost: {why}"));
        slow.into_iter().chain(lost)
    };
    rows.iter().flat_map(note).collect()
}

impl PeriodicTracer {
    fn run(&mut self) {
        while !self.state.is_ending() {
            let now = WallTime { unix_s: unix_ns() / 1_000_000_000 };
            // The day changes at midnight UTC on all hosts, whatever their time zones are.
            lock(&self.state.periodic).start_day(now);
            self.watch();
            match self.open.take() {
                Some(open) => self.follow(open, now),
                None => self.begin(now),
            }
            if self.saved.elapsed() >= SAVE {
                self.save();
            }
            let woken = Instant::now() + LOOK;
            // The wait consists of short sleeps, so that the thread ends quickly when the agent
            // ends.
            while !self.state.is_ending() && Instant::now() < woken {
                thread::sleep(END);
            }
        }
        self.save();
    }

    fn save(&mut self) {
        self.saved = Instant::now();
        let text = serde_json::to_vec(&*lock(&self.state.periodic));
        let saved = text.map_err(io::Error::from);
        let saved = saved.and_then(|text| Ok(self.folder.replace(BUDGETS, &text)?));
        if let Err(error) = saved {
            self.state.note(format!(
                "periodic traces: their budgets would be forgotten at a restart: {error}"
            ));
        }
    }

    fn uids(&self) -> Uids {
        let users = self.policy.users.clone();
        if users.is_empty() { Uids::All } else { Uids::Only(users) }
    }

    /// Counts the steps of all processes of which periodic traces could be taken.
    fn watch(&mut self) {
        let seen = self.server_seen();
        let pids: Vec<u32> = seen.keys().copied().collect();
        if pids != self.seen || self.refreshed.elapsed() >= REFRESH {
            self.refresh();
            (self.seen, self.refreshed) = (pids, Instant::now());
        }
        let open = self.open.as_ref().map(|open| open.pid);
        let steps = lock(&self.state.steps);
        let mut budgets = lock(&self.state.periodic);
        for (pid, watched) in &mut self.watched {
            let (Some(progress), Some(seen)) = (steps.progress(*pid), seen.get(pid)) else {
                continue;
            };
            // If the process id was reused, the number of steps restarts at zero, so the difference
            // must not become negative.
            let made = progress.steps.saturating_sub(watched.steps);
            budgets.budget(&watched.workflow).add_steps(made);
            (watched.steps, watched.since) = (progress.steps, watched.since + made);
            let now = StepTotals { steps: progress.timed_steps, ns: progress.timed_ns };
            let is_busy = !seen.is_free || seen.is_asked;
            // Steps are slower under any profiler, so traced steps must not enter the mean of
            // untraced steps.
            if is_busy || open == Some(*pid) {
                watched.times.add_traced(now);
            } else {
                watched.times.add_untraced(now);
            }
            watched.wait = if is_busy {
                Some(SkipReason::Busy)
            } else if progress.phase != Phase::Train {
                Some(SkipReason::NotTraining)
            } else {
                watched.times.mean().is_none().then_some(SkipReason::TooNew)
            };
        }
    }

    fn server_seen(&self) -> BTreeMap<u32, SeenProcess> {
        self.state.server.seen().into_iter().map(|seen| (seen.pid, seen)).collect()
    }

    /// Updates the list of processes that could be traced. The list is not updated in every round,
    /// because that is too expensive with a thousand processes.
    fn refresh(&mut self) {
        let asked = lock(&self.state.roster).processes();
        let uids = self.uids();
        let choices: BTreeMap<u32, Option<Skip>> = targets(&asked, &[], 0).into_iter().collect();
        let is_wanted =
            |process: &Process| choices.get(&process.pid) == Some(&None) && uids.has(process.uid);
        let wanted: Vec<Process> = asked.into_iter().filter(is_wanted).collect();
        // A process that has not reported steps is read again, because its run may not have been
        // known at the last refresh.
        let is_kept = |pid: &u32, one: &Watched| {
            one.steps > 0 && wanted.iter().any(|process| process.pid == *pid)
        };
        self.watched.retain(|pid, one| is_kept(pid, one));
        let owners = lock(&self.state.owners);
        let budgets = lock(&self.state.periodic);
        for process in wanted {
            let run = owners.runs().get(&process.pid);
            let workflow = budgets.workflow(process.uid, &allocation::workflow_of(&process, run));
            let Some(workflow) = workflow else { continue };
            self.watched.entry(process.pid).or_insert_with(|| Watched {
                workflow,
                job: run.map(|run| run.job.clone()),
                rank: process.rank(),
                steps: 0,
                since: 0,
                times: StepTimes::default(),
                wait: Some(SkipReason::NotTraining),
            });
        }
    }

    /// Starts a trace of the first workflow type that is due.
    fn begin(&mut self, now: WallTime) {
        let reporting = self.watched.values().filter(|one| one.steps > 0);
        let workflows: BTreeSet<Workflow> = reporting.map(|one| one.workflow.clone()).collect();
        for workflow in workflows {
            let limits = self.policy.limits(&workflow.name);
            let uid = workflow.uid.to_string();
            let seed = budgets::seed_of(&[&self.state.host, &uid, &workflow.name]);
            let chosen = {
                let mut budgets = lock(&self.state.periodic);
                let budget = budgets.budget(&workflow);
                let chosen = budget.allowance(now, &limits, seed).and_then(|bytes| {
                    let draw = CounterRng::new(seed, 1);
                    self.choose(&workflow, draw, now).map(|pid| (pid, bytes))
                });
                match chosen {
                    Ok(_) => budget.begin(now, &limits),
                    Err(why) => budget.wait(now, &limits, why),
                }
                chosen
            };
            if let Ok((pid, bytes)) = chosen {
                return self.order(workflow, pid, bytes);
            }
        }
    }

    fn choose(
        &self,
        workflow: &Workflow,
        draw: CounterRng,
        now: WallTime,
    ) -> Result<u32, SkipReason> {
        let gpus: Vec<u32> = lock(&self.state.pauses).keys().copied().collect();
        if gpus.into_iter().any(|gpu| self.state.paused(gpu).is_some()) {
            return Err(SkipReason::Paused);
        }
        let all = self.watched.iter().filter(|(_, one)| one.workflow == *workflow);
        let free: Vec<(u32, u64)> = all
            .clone()
            .filter(|(_, one)| one.wait.is_none())
            .map(|(pid, one)| (*pid, one.since))
            .collect();
        let waits = all.filter_map(|(_, one)| one.wait);
        budgets::choose(&free, draw, now.unix_s)
            .ok_or(waits.min().unwrap_or(SkipReason::NotTraining))
    }

    fn order(&mut self, workflow: Workflow, pid: u32, size_max: u64) {
        let Some(watched) = self.watched.get(&pid) else { return };
        let before = watched.times.clone();
        // The timeout is one minute plus three times the expected duration of the steps to record.
        let steps_ns = before.mean().unwrap_or_default() * 3.0 * f64::from(self.policy.iterations);
        let patience = PATIENCE + Duration::from_secs_f64(steps_ns * 1e-9);
        let token = tracing::unique_token();
        let order = TraceOrder {
            token: token.clone(),
            pids: vec![pid],
            job: None,
            run: None,
            when: RecordWhen::Iterations { count: self.policy.iterations, align: 1 },
            with: self.policy.with.clone(),
            size_max,
            patience_ms: u64::try_from(patience.as_millis()).unwrap_or(u64::MAX),
            not_before_unix_ms: None,
        };
        let begun_unix_ms = unix_ms();
        let begun = self.traces.begin(order, self.uids());
        let outcome = begun.as_ref().map_or_else(String::clone, |_| "begun".to_owned());
        self.state.audit.line(WHO, "trace", &format!("{token} {} {pid}", workflow.name), &outcome);
        let over = begun.err().map(|problem| (Instant::now(), Err(problem)));
        self.open = Some(OpenTrace { token, workflow, pid, begun_unix_ms, before, over });
    }

    /// Checks whether the trace in progress is finished or lost.
    fn follow(&mut self, mut open: OpenTrace, now: WallTime) {
        if open.over.is_none() {
            open.over = match self.traces.state(&open.token) {
                Some(state) if !state.is_over => None,
                Some(state) => state.rows.into_iter().next().map(Ok),
                None => Some(Err("its order no longer exists".to_owned())),
            }
            .map(|over| (Instant::now(), over));
        }
        match open.over.take() {
            Some((at, over)) if at.elapsed() >= SETTLE => self.finish(&open, over, now),
            over => self.open = Some(OpenTrace { over, ..open }),
        }
    }

    fn finish(&mut self, open: &OpenTrace, over: Result<TraceRow, String>, now: WallTime) {
        let limits = self.policy.limits(&open.workflow.name);
        let now_timed = self.watched.get(&open.pid).map(|watched| watched.times.now());
        let slowdown = now_timed.and_then(|timed| open.before.slowdown_until(timed));
        let kept = over.and_then(|row| self.keep(open, &row, slowdown));
        self.state.queue_events(vec![self.trace_event(open, &kept)]);
        let outcome = kept.as_ref().map_or_else(String::clone, |_| "kept".to_owned());
        {
            let mut budgets = lock(&self.state.periodic);
            let budget = budgets.budget(&open.workflow);
            match kept {
                Ok(trace) => {
                    budget.keep(trace.file.bytes_unpacked, limits.iterations);
                    let is_same_workflow = |one: &&mut Watched| one.workflow == open.workflow;
                    self.watched
                        .values_mut()
                        .filter(is_same_workflow)
                        .for_each(|one| one.since = 0);
                }
                Err(problem) => budget.lose(problem),
            }
            if let Some(slowdown) = slowdown {
                budget.record_slowdown(now, &limits, slowdown);
            }
        }
        self.state.audit.line(WHO, "keep", &open.token, &outcome);
        self.traces.cancel(&open.token);
        self.save();
    }

    /// Creates the event that tells the hub what became of a trace.
    fn trace_event(&self, open: &OpenTrace, kept: &Result<KeptTrace, String>) -> Body {
        let owners = lock(&self.state.owners);
        let details = match kept {
            Ok(trace) => serde_json::to_string(trace).unwrap_or_default(),
            Err(problem) => {
                let workflow = &open.workflow.name;
                let lost = json!({ "token": open.token, "workflow": workflow, "lost": problem });
                lost.to_string()
            }
        };
        Body::Event(Box::new(HostEvent {
            kind: "trace".to_owned(),
            start_unix_ms: open.begun_unix_ms,
            length_ms: unix_ms().saturating_sub(open.begun_unix_ms),
            is_over: true,
            run: owners.runs().get(&open.pid).map(row::run),
            pid: Some(open.pid),
            rank: self.watched.get(&open.pid).and_then(|watched| watched.rank),
            details,
        }))
    }

    /// Stores a finished trace with its weight. Returns its metadata.
    fn keep(
        &self,
        open: &OpenTrace,
        row: &TraceRow,
        slowdown: Option<Slowdown>,
    ) -> Result<KeptTrace, String> {
        let before_ns = open.before.mean().unwrap_or_default();
        let lost = || row.reason.clone().unwrap_or_else(|| "it was not written".to_owned());
        let file = row.file.as_ref().ok_or_else(lost)?;
        let watched = self.watched.get(&open.pid);
        let steps = self.policy.iterations;
        let weight = lock(&self.state.periodic).budget(&open.workflow).weight(steps);
        let sample = KeptTrace {
            version: 1,
            token: open.token.clone(),
            begun_unix_ms: open.begun_unix_ms,
            host: self.state.host.clone(),
            workflow: open.workflow.name.clone(),
            job: watched.and_then(|watched| watched.job.clone()),
            uid: open.workflow.uid,
            pid: open.pid,
            rank: watched.and_then(|watched| watched.rank),
            steps,
            weight,
            step_ns_before: before_ns,
            step_ns_while: slowdown.map(|slowdown| before_ns * (1.0 + slowdown.share)),
            slowdown_spread: slowdown.and_then(|slowdown| slowdown.spread),
            file: file.clone(),
        };
        let from = self.traces.folder(&open.token).map_err(|error| error.to_string())?;
        self.store.put(&from, &sample).map_err(|error| format!("cannot be kept: {error}"))?;
        Ok(sample)
    }
}
