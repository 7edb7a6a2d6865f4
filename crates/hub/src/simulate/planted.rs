//! Faults that change what hosts measure, and the issues that the doctor must find because of them,
//! from the rows without the store.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fleet::proto::{GpuInterval, GpuRun, HostEvent, HostInterval, StepInterval};
use serde::Serialize;

use super::fleet::HostRows;
use super::sender::SimulatedFault;

/// Factor of the activity of GPUs whose CPUs are used by another program.
pub const STARVED: f64 = 0.4;
/// Factor of the activity of a GPU that has less work than others.
pub const UNEVEN: f64 = 0.5;
/// Share of the time in which hot GPUs are throttled.
const THROTTLED: f64 = 0.3;
/// Share of the CPUs that another program uses.
const CPU_BUSY: f64 = 0.97;
/// Available share of full memory, and the share of the time in which tasks wait for it.
const FULL: [f64; 2] = [0.02, 0.3];
/// Milliseconds for which a process hangs.
const HUNG_MS: u64 = 1_200_000;
/// Step time in seconds, and its growth in an hour.
const STEP_S: f64 = 0.5;
const GROWTH: f64 = 1.1;

/// Issues of runs and hosts, as the rules of the doctor.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PlantedIssues {
    pub runs: BTreeMap<String, BTreeSet<&'static str>>,
    pub hosts: BTreeMap<String, BTreeSet<&'static str>>,
    #[serde(skip)]
    seen_runs: BTreeMap<String, SubjectRows>,
    #[serde(skip)]
    seen_hosts: BTreeMap<String, SubjectRows>,
}

/// What the rows of a run or a host had.
#[derive(Clone, Debug, Default)]
struct SubjectRows {
    /// By host and index.
    gpus: BTreeMap<(String, u32), GpuRows>,
    /// Seconds on hosts with full CPUs or memory, by host.
    starved_s: BTreeMap<String, u64>,
    full_s: BTreeMap<String, u64>,
    has_errors: bool,
    has_hung: bool,
    /// Number of rows of steps by run: those that vary, and those that have become slower.
    steps: BTreeMap<String, [u64; 2]>,
}

/// What the rows of a GPU had.
#[derive(Clone, Copy, Debug, Default)]
struct GpuRows {
    rows: u64,
    rows_with_sm: u64,
    held_s: f64,
    idle_s: f64,
    sm_busy_s: f64,
    sm_active_s: f64,
    throttled_s: f64,
    is_uneven: bool,
}

/// Changes the rows of a host with a fault.
pub fn change(fault: Option<SimulatedFault>, own: &mut HostInterval, gpus: &mut [GpuInterval]) {
    let length_s = f64::from(own.length_s);
    match fault {
        Some(SimulatedFault::Hot) => gpus.iter_mut().for_each(|gpu| {
            gpu.throttle_s.insert("hw_thermal_slowdown".to_owned(), THROTTLED * length_s);
        }),
        Some(SimulatedFault::Starved) => {
            let all_s: f64 = own.cpu_s.values().sum();
            let parts = [("user", CPU_BUSY), ("system", 0.0), ("idle", 1.0 - CPU_BUSY)];
            own.cpu_s = parts.map(|(name, share)| (name.to_owned(), share * all_s)).into();
        }
        Some(SimulatedFault::Full) => {
            own.memory_available_min = (own.memory_total as f64 * FULL[0]) as u64;
            own.pressure_s.insert("memory".to_owned(), FULL[1] * length_s);
        }
        _ => {}
    }
}

/// The steps of a run in an interval, by the fault of its first host and its age in seconds.
pub fn steps(fault: Option<SimulatedFault>, age_s: u64, interval_s: u32) -> StepInterval {
    let growth = match fault {
        Some(SimulatedFault::Slowing) => GROWTH.powf(age_s as f64 / 3600.0),
        _ => 1.0,
    };
    let median_s = STEP_S * growth;
    let (mean_s, high_s) = match fault {
        Some(SimulatedFault::Varying) => (1.3 * median_s, 3.0 * median_s),
        _ => (1.01 * median_s, 1.1 * median_s),
    };
    let steps = (f64::from(interval_s) / mean_s).ceil();
    StepInterval {
        pid: 4711,
        rank: Some(0),
        phase: "train".to_owned(),
        steps: steps as u64,
        timed_steps: steps as u64,
        timed_s: steps * mean_s,
        step_p50_s: Some(median_s),
        step_p95_s: Some(high_s),
        step_max_s: Some(high_s),
        ..StepInterval::default()
    }
}

/// A process of a run that hung.
pub fn hang(run: GpuRun, start_s: u64) -> HostEvent {
    HostEvent {
        kind: "hang".to_owned(),
        start_unix_ms: start_s * 1000,
        length_ms: HUNG_MS,
        is_over: true,
        run: Some(run),
        pid: Some(4711),
        rank: Some(0),
        details: "{}".to_owned(),
    }
}

impl PlantedIssues {
    /// Adds the rows of a host that start in a range of seconds since 1970.
    pub fn add(&mut self, host: &HostRows, name: &str, range: &Range<u64>) {
        let Some(own) = host.own.as_ref().filter(|own| range.contains(&own.start_unix_s)) else {
            return;
        };
        let length_s = u64::from(own.length_s);
        let is_starved = host.fault == Some(SimulatedFault::Starved);
        let is_full = host.fault == Some(SimulatedFault::Full);
        let is_uneven = host.fault == Some(SimulatedFault::Uneven);
        let on_host = self.seen_hosts.entry(name.to_owned()).or_default();
        let is_held = host.gpus.iter().any(|gpu| !gpu.runs.is_empty());
        on_host.add_host(name, [is_starved && is_held, is_full], length_s);
        host.gpus.iter().for_each(|gpu| on_host.add_gpu(name, gpu, is_uneven));
        let runs: BTreeSet<String> =
            host.gpus.iter().flat_map(|gpu| &gpu.runs).map(run_name).collect();
        for run in runs {
            let rows = self.seen_runs.entry(run.clone()).or_default();
            rows.add_host(name, [is_starved, is_full], length_s);
            let held = host.gpus.iter().filter(|gpu| gpu.runs.iter().any(|r| run_name(r) == run));
            held.for_each(|gpu| rows.add_gpu(name, gpu, is_uneven));
        }
        for row in &host.steps {
            let Some(run) = row.run.as_ref().map(run_name) else { continue };
            let has = |fault| u64::from(host.fault == Some(fault));
            let counts = [has(SimulatedFault::Varying), has(SimulatedFault::Slowing)];
            for rows in [self.seen_runs.entry(run.clone()), self.seen_hosts.entry(name.to_owned())]
            {
                let sums = rows.or_default().steps.entry(run.clone()).or_default();
                (sums[0], sums[1]) = (sums[0] + counts[0], sums[1] + counts[1]);
            }
        }
        for run in host.hangs.iter().filter_map(|hang| hang.run.as_ref()).map(run_name) {
            self.seen_runs.entry(run).or_default().has_hung = true;
            self.seen_hosts.entry(name.to_owned()).or_default().has_hung = true;
        }
    }

    /// Computes the issues from all rows.
    pub fn finish(&mut self) {
        let issues =
            |(name, rows): (&String, &SubjectRows), is_run| (name.clone(), rows.issues(is_run));
        self.runs = self.seen_runs.iter().map(|one| issues(one, true)).collect();
        self.hosts = self.seen_hosts.iter().map(|one| issues(one, false)).collect();
    }
}

fn run_name(run: &GpuRun) -> String {
    format!("{}/{}", run.scheduler, run.job)
}

impl SubjectRows {
    fn add_host(&mut self, name: &str, [is_starved, is_full]: [bool; 2], length_s: u64) {
        *self.starved_s.entry(name.to_owned()).or_default() += u64::from(is_starved) * length_s;
        *self.full_s.entry(name.to_owned()).or_default() += u64::from(is_full) * length_s;
    }

    fn add_gpu(&mut self, host: &str, gpu: &GpuInterval, is_uneven: bool) {
        self.has_errors |= gpu.errors.values().any(|count| *count > 0);
        let rows = self.gpus.entry((host.to_owned(), gpu.index)).or_default();
        rows.throttled_s += gpu.throttle_s.values().sum::<f64>();
        if gpu.runs.is_empty() {
            return;
        }
        rows.rows += 1;
        rows.is_uneven |= is_uneven && gpu.index == 0;
        rows.held_s += f64::from(gpu.length_s);
        let busy_s = gpu.sums.get("busy_s").copied().unwrap_or(0.0);
        rows.idle_s += if busy_s == 0.0 { f64::from(gpu.length_s) } else { 0.0 };
        if let Some(active_s) = gpu.sums.get("sm_active_s") {
            rows.rows_with_sm += u64::from(busy_s > 0.0);
            rows.sm_busy_s += busy_s;
            rows.sm_active_s += active_s;
        }
    }

    fn issues(&self, is_run: bool) -> BTreeSet<&'static str> {
        let any = |is: &dyn Fn(&GpuRows) -> bool| self.gpus.values().any(is);
        let lasts = |seconds: &BTreeMap<String, u64>| seconds.values().any(|one| *one >= 600);
        let known = self.gpus.values().filter(|gpu| gpu.rows >= 10).count();
        let issues = [
            ("P01", lasts(&self.starved_s)),
            ("P03", lasts(&self.full_s)),
            ("P04", lasts(&self.full_s)),
            ("P05", any(&|gpu| gpu.throttled_s >= 60.0)),
            ("P06", any(&|gpu| gpu.idle_s >= 1800.0 && gpu.idle_s >= 0.1 * gpu.held_s)),
            ("P07", is_run && known >= 3 && any(&|gpu| gpu.is_uneven && gpu.rows >= 10)),
            (
                "P08",
                any(&|gpu| {
                    let is_long = gpu.rows_with_sm >= 10 && gpu.sm_busy_s >= 600.0;
                    is_long && gpu.sm_active_s < 0.5 * gpu.sm_busy_s
                }),
            ),
            ("P09", self.has_errors),
            ("P10", self.has_hung),
            ("P11", self.steps.values().any(|[varying, _]| *varying >= 10)),
            ("P12", self.steps.values().any(|[_, slower]| *slower >= 30)),
        ];
        issues.into_iter().filter(|(_, is_found)| *is_found).map(|(rule, _)| rule).collect()
    }
}
