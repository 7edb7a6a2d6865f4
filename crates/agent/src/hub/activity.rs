//! Reports to the hub what the jobs of this host do: runs, training steps, hangs, and the versions
//! of agent, driver and kernel. Reports are made once per interval of the counters.
//!
//! The run of a process is the one that `fleet::ownership` decided from the kernel's data about the
//! process. A job's own messages only contribute numbers of steps and samples, and its phase.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use fleet::allocation;
use fleet::proto::{Body, GpuRun, HostEvent, RunReport, StepInterval};
use fleet::steps::{Phase, StepProgress};
use serde_json::json;

use super::row;
use crate::owners::Owners;
use crate::state::{AgentState, GpuState, lock};

/// Seconds after which an unchanged run and the versions are reported again, so that a query about
/// a day finds them in the rows of that day.
const AGAIN_S: u64 = 3600;

/// The entries that one interval adds to the queue of the hub.
#[derive(Debug, Default)]
pub struct ActivityEntries {
    /// Rows that belong to the interval. They are left out if the clock shows the interval again.
    pub rows: Vec<Body>,
    pub events: Vec<Body>,
}

/// What was reported before, from which changes are found.
#[derive(Debug, Default)]
pub struct Activity {
    counts: BTreeMap<u32, StepCount>,
    /// The last report of each run, by scheduler and job.
    runs: BTreeMap<(String, String), RunReport>,
    /// The reported hangs that last, by process id.
    hangs: BTreeMap<u32, HostEvent>,
    /// The reported versions, with the time of the report in seconds since 1970.
    versions: Option<(String, u64)>,
}

/// The totals of a process at the end of the last interval.
#[derive(Clone, Debug, Default)]
struct StepCount {
    steps: u64,
    samples: u64,
    exposed_ns: u64,
    timed_steps: u64,
    timed_ns: u64,
    times: u64,
    phases: [Duration; Phase::ALL.len()],
}

impl Activity {
    /// Reports the interval that began at `start_unix_s`. `now_unix_s` is the current time.
    pub fn report(
        &mut self,
        state: &AgentState,
        start_unix_s: u64,
        now_unix_s: u64,
    ) -> ActivityEntries {
        let mut entries = ActivityEntries::default();
        entries.events.extend(self.report_versions(&state.driver_version(), now_unix_s));
        let gpus = lock(&state.gpus);
        let owners = lock(&state.owners);
        // Start times of processes are relative to the boot.
        let boot_unix_s = procfs::boot_time_secs().unwrap_or(now_unix_s);
        let runs = find_runs(&owners, &gpus, boot_unix_s, now_unix_s);
        entries.events.extend(self.report_runs(runs, now_unix_s));
        let steps = lock(&state.steps);
        let mut hangs = BTreeMap::new();
        let mut counts = BTreeMap::new();
        for (&pid, progress) in steps.all() {
            let up = state.up();
            let count = StepCount::new(progress, up);
            let before = self.counts.get(&pid).filter(|before| before.steps <= count.steps);
            let mut row = steps_between(before, &count, progress);
            (row.start_unix_s, row.pid) = (start_unix_s, pid);
            row.length_s = u32::try_from(state.config.interval_s()).unwrap_or(0);
            // Another process may have got the id of an ended one since the last scan.
            let process = owners.process(pid).filter(|process| process.uid == progress.uid);
            if let Some(process) = process {
                let run = owners.runs().get(&pid);
                row.workflow = allocation::workflow_of(process, run);
                (row.run, row.rank) = (run.map(row::run), process.rank());
            }
            if state.is_hung(pid, progress, &gpus, &owners) {
                let silent = up.saturating_sub(progress.stepped.unwrap_or(up));
                hangs.insert(pid, hang(&row, silent, now_unix_s));
            }
            entries.rows.push(Body::Steps(Box::new(row)));
            counts.insert(pid, count);
        }
        self.counts = counts;
        entries.events.extend(self.report_hangs(hangs, now_unix_s * 1000));
        entries
    }

    fn report_versions(&mut self, driver: &str, now_unix_s: u64) -> Option<Body> {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let agent = env!("CARGO_PKG_VERSION");
        let details = json!({ "agent": agent, "driver": driver, "kernel": kernel.trim() });
        let details = details.to_string();
        let is_known = self.versions.as_ref().is_some_and(|(reported, at)| {
            *reported == details && now_unix_s.abs_diff(*at) < AGAIN_S
        });
        if is_known {
            return None;
        }
        self.versions = Some((details.clone(), now_unix_s));
        Some(Body::Event(Box::new(HostEvent {
            kind: "agent".to_owned(),
            start_unix_ms: now_unix_s * 1000,
            is_over: true,
            details,
            ..HostEvent::default()
        })))
    }

    /// Returns the reports of runs that are new, changed or ended, or were not reported for long.
    fn report_runs(&mut self, runs: Vec<RunReport>, now_unix_s: u64) -> Vec<Body> {
        let mut reports = Vec::new();
        let mut lasting = BTreeMap::new();
        for mut report in runs {
            let Some(run) = &report.run else { continue };
            let key = (run.scheduler.clone(), run.job.clone());
            if let Some(last) = self.runs.remove(&key) {
                report.started_unix_s = report.started_unix_s.min(last.started_unix_s);
                let is_equal =
                    last == RunReport { seen_unix_s: last.seen_unix_s, ..report.clone() };
                if is_equal && now_unix_s.abs_diff(last.seen_unix_s) < AGAIN_S {
                    lasting.insert(key, last);
                    continue;
                }
            }
            reports.push(Body::Run(Box::new(report.clone())));
            lasting.insert(key, report);
        }
        for (_, last) in std::mem::replace(&mut self.runs, lasting) {
            let (seen_unix_s, ended_unix_s) = (now_unix_s, Some(now_unix_s));
            reports.push(Body::Run(Box::new(RunReport { seen_unix_s, ended_unix_s, ..last })));
        }
        reports
    }

    /// Returns the events of hangs that begin and end. `hangs` are those that last, by process id.
    fn report_hangs(&mut self, hangs: BTreeMap<u32, HostEvent>, now_unix_ms: u64) -> Vec<Body> {
        let mut events = Vec::new();
        let mut lasting = BTreeMap::new();
        for (pid, hang) in hangs {
            match self.hangs.remove(&pid) {
                Some(reported) => {
                    lasting.insert(pid, reported);
                }
                None => {
                    events.push(Body::Event(Box::new(hang.clone())));
                    lasting.insert(pid, hang);
                }
            }
        }
        for (_, ended) in std::mem::replace(&mut self.hangs, lasting) {
            let length_ms = now_unix_ms.saturating_sub(ended.start_unix_ms);
            events.push(Body::Event(Box::new(HostEvent { length_ms, is_over: true, ..ended })));
        }
        events
    }
}

impl StepCount {
    fn new(progress: &StepProgress, up: Duration) -> Self {
        Self {
            steps: progress.steps,
            samples: progress.samples,
            exposed_ns: progress.exposed_ns,
            timed_steps: progress.timed_steps,
            timed_ns: progress.timed_ns,
            times: progress.times,
            phases: progress.phase_times(up),
        }
    }
}

/// Computes what a process did since the last interval, or since its first message. The identity of
/// the process and the interval are left to the caller.
fn steps_between(
    before: Option<&StepCount>,
    now: &StepCount,
    progress: &StepProgress,
) -> StepInterval {
    let none = StepCount::default();
    let before = before.unwrap_or(&none);
    let phase_s = Phase::ALL.iter().zip(now.phases.iter().zip(before.phases));
    let phase_s = phase_s.map(|(phase, (now, before))| {
        (phase.word().to_owned(), now.saturating_sub(before).as_secs_f64())
    });
    let times = progress.times_since(before.times);
    let quantile = |percent: usize| {
        let place = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(place).map(|ns| *ns as f64 * 1e-9)
    };
    let grown = |now: u64, before: u64| now.saturating_sub(before);
    // A process that does not report samples or communication sends zeros.
    let known = |total: u64, grown: u64| (total > 0).then_some(grown);
    let exposed_ns = known(now.exposed_ns, grown(now.exposed_ns, before.exposed_ns));
    StepInterval {
        phase: progress.phase.word().to_owned(),
        phase_s: phase_s.filter(|(_, seconds)| *seconds > 0.0).collect(),
        steps: grown(now.steps, before.steps),
        timed_steps: grown(now.timed_steps, before.timed_steps),
        timed_s: grown(now.timed_ns, before.timed_ns) as f64 * 1e-9,
        step_p50_s: quantile(50),
        step_p95_s: quantile(95),
        step_max_s: quantile(100),
        samples: known(now.samples, grown(now.samples, before.samples)),
        exposed_s: exposed_ns.map(|ns| ns as f64 * 1e-9),
        ..StepInterval::default()
    }
}

/// Finds all runs of the host, by their processes and by the GPUs that they hold.
fn find_runs(
    owners: &Owners,
    gpus: &[GpuState],
    boot_unix_s: u64,
    now_unix_s: u64,
) -> Vec<RunReport> {
    let mut reports = BTreeMap::<(String, String), RunReport>::new();
    let mut add = |run: &allocation::SchedulerRun, change: &dyn Fn(&mut RunReport)| {
        let named: GpuRun = row::run(run);
        let key = (named.scheduler.clone(), named.job.clone());
        let report = reports.entry(key).or_insert_with(|| RunReport {
            seen_unix_s: now_unix_s,
            alias: run.alias.clone().unwrap_or_default(),
            workflow: named.name.clone(),
            started_unix_s: now_unix_s,
            run: Some(named),
            ..RunReport::default()
        });
        change(report);
    };
    for (pid, run) in owners.runs() {
        let Some(process) = owners.process(*pid) else { continue };
        add(run, &|report| {
            report.processes += 1;
            report.ranks = report.ranks.max(process.world_size());
            report.workflow = allocation::workflow_of(process, Some(run));
            let started_unix_s = boot_unix_s + process.started / procfs::ticks_per_second();
            report.started_unix_s = report.started_unix_s.min(started_unix_s);
        });
    }
    for gpu in gpus {
        let uuid = &gpu.identity.uuid;
        for run in owners.runs_on(uuid) {
            add(run, &|report| report.gpus.push(uuid.clone()));
        }
    }
    reports.into_values().collect()
}

/// Creates the event of a process that hangs, from its steps in the last interval.
fn hang(row: &StepInterval, silent: Duration, now_unix_s: u64) -> HostEvent {
    let silent_ms = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
    HostEvent {
        kind: "hang".to_owned(),
        start_unix_ms: (now_unix_s * 1000).saturating_sub(silent_ms),
        length_ms: silent_ms,
        is_over: false,
        run: row.run.clone(),
        pid: Some(row.pid),
        rank: row.rank,
        details: json!({ "workflow": row.workflow }).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use fleet::ipc::socket::Peer;
    use fleet::proto::{Body, GpuRun, RunReport, StepInterval};
    use fleet::steps::{Phase, ReportedSteps, StepMessage};

    use super::{AGAIN_S, Activity, StepCount, hang, steps_between};

    fn run(job: &str, processes: u32) -> RunReport {
        let run = GpuRun { job: job.to_owned(), ..GpuRun::default() };
        RunReport { run: Some(run), processes, started_unix_s: 90, ..RunReport::default() }
    }

    #[test]
    fn runs_are_reported_when_they_begin_change_and_end() {
        let mut activity = Activity::default();
        let mut report = |now_unix_s: u64, runs: &[RunReport]| {
            let seen = |run: &RunReport| RunReport { seen_unix_s: now_unix_s, ..run.clone() };
            let bodies = activity.report_runs(runs.iter().map(seen).collect(), now_unix_s);
            let short = |body: &Body| match body {
                Body::Run(report) => {
                    (report.run.clone().unwrap().job, report.processes, report.ended_unix_s)
                }
                other => panic!("{other:?}"),
            };
            bodies.iter().map(short).collect::<Vec<_>>()
        };
        assert_eq!(report(100, &[run("7", 1)]), [("7".to_owned(), 1, None)]);
        assert_eq!(report(110, &[run("7", 1)]), []);
        assert_eq!(report(120, &[run("7", 2)]), [("7".to_owned(), 2, None)]);
        assert_eq!(report(119 + AGAIN_S, &[run("7", 2)]), []);
        assert_eq!(report(120 + AGAIN_S, &[run("7", 2)]), [("7".to_owned(), 2, None)]);
        let end = 130 + AGAIN_S;
        let both = report(end, &[run("8", 1)]);
        assert_eq!(both, [("8".to_owned(), 1, None), ("7".to_owned(), 2, Some(end))]);
    }

    #[test]
    fn a_hang_is_reported_at_its_beginning_and_its_end() {
        let row = StepInterval { pid: 40, rank: Some(3), ..StepInterval::default() };
        let lasting = |silent_s| {
            BTreeMap::from([(40, hang(&row, Duration::from_secs(silent_s), 1000 + silent_s))])
        };
        let mut activity = Activity::default();
        let mut report = |hangs, now_unix_s: u64| {
            let short = |body: Body| match body {
                Body::Event(event) => (event.start_unix_ms, event.length_ms, event.is_over),
                other => panic!("{other:?}"),
            };
            let events = activity.report_hangs(hangs, now_unix_s * 1000);
            events.into_iter().map(short).collect::<Vec<_>>()
        };
        assert_eq!(report(BTreeMap::new(), 1100), []);
        assert_eq!(report(lasting(130), 1130), [(1_000_000, 130_000, false)]);
        assert_eq!(report(lasting(140), 1140), []);
        assert_eq!(report(BTreeMap::new(), 1150), [(1_000_000, 150_000, true)]);
        assert_eq!(report(BTreeMap::new(), 1160), []);
    }

    #[test]
    fn steps_of_intervals_add_up_to_the_steps_of_a_process() {
        let mut steps = ReportedSteps::default();
        let mut receive = |phase, step: u64, at_s: u64| {
            let monotonic_ns = at_s * 1_000_000_000;
            let (own_pid, samples, exposed_ns) = (7, 32, None);
            let message = StepMessage { phase, own_pid, step, monotonic_ns, samples, exposed_ns };
            steps.receive(Duration::from_secs(at_s), Peer { pid: 40, uid: 1 }, &message);
            steps.progress(40).unwrap().clone()
        };
        receive(Phase::Setup, 0, 1);
        (1..=4).for_each(|step| drop(receive(Phase::Train, step, 1 + step)));
        let progress = receive(Phase::Train, 5, 9);
        let first = StepCount::new(&progress, Duration::from_secs(10));
        let row = steps_between(None, &first, &progress);
        assert_eq!((row.steps, row.timed_steps, row.timed_s), (5, 4, 7.0));
        let quantiles = [row.step_p50_s, row.step_p95_s, row.step_max_s].map(Option::unwrap);
        let near = |seconds: f64, expected: f64| (seconds - expected).abs() < 1e-9;
        assert!(near(quantiles[0], 1.0) && near(quantiles[1], 4.0) && near(quantiles[2], 4.0));
        assert_eq!((row.samples, row.exposed_s), (Some(160), None));
        let phases = [("setup".to_owned(), 1.0), ("train".to_owned(), 8.0)];
        assert_eq!(row.phase_s, BTreeMap::from(phases));
        let progress = receive(Phase::Save, 5, 12);
        let second = StepCount::new(&progress, Duration::from_secs(20));
        let row = steps_between(Some(&first), &second, &progress);
        assert_eq!((row.steps, row.step_p50_s, row.phase.as_str()), (0, None, "save"));
        let phases = [("train".to_owned(), 2.0), ("save".to_owned(), 8.0)];
        assert_eq!(row.phase_s, BTreeMap::from(phases));
    }
}
