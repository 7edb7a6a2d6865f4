//! What a simulated fleet did, added up without the store and its columns.

use std::collections::{BTreeMap, BTreeSet};

use fleet::proto::{GpuInterval, GpuRun};
use serde::Serialize;

use super::fleet::{HostRows, SimulatedRun};
use super::planted::PlantedIssues;
use crate::sums::FleetSums;

const DAY_S: u64 = 86_400;
/// Seconds for which a row is overdue at the end of a time if a host is silent.
const SILENT_S: u64 = 300;

/// The sums of a simulated fleet, and what its runs and hosts did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FleetTruth {
    /// The options of the simulation.
    pub seed: u64,
    pub hosts: usize,
    pub gpus_per_host: u32,
    pub interval_s: u32,
    /// Start of the first interval and end of the last, in seconds since 1970.
    pub from_unix_s: u64,
    pub until_unix_s: u64,
    /// Number of rows of GPUs and hosts, and of reports of runs, that a store has in the end.
    pub gpu_rows: u64,
    pub host_rows: u64,
    pub run_rows: u64,
    /// Number of seconds without rows of a host, summed over all hosts.
    pub silent_host_s: f64,
    #[serde(flatten)]
    pub all: GroupTruth,
    /// Number of runs that have ended.
    pub ended_runs: u64,
    /// Hosts of each fault.
    pub faults: BTreeMap<&'static str, Vec<String>>,
    /// The day before the planned end, or before the rows at their real pace, and the same day a
    /// week before: what a report about that day says.
    pub last_day: PeriodTruth,
    pub week_before: PeriodTruth,
    /// Runs that hold GPUs at the end which were idle in their last interval.
    pub held_idle: BTreeMap<String, HeldIdleTruth>,
    /// Who held each GPU of a host in the last interval, and for how many seconds it is idle.
    #[serde(skip)]
    pub(super) holders: BTreeMap<(String, u32), (u64, String, String, f64)>,
}

/// The idle GPUs of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HeldIdleTruth {
    pub user: String,
    /// For how many seconds each of its idle GPUs has run nothing.
    pub idle_s: Vec<f64>,
}

/// True sums by groups.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GroupTruth {
    pub total: FleetSums,
    pub model: BTreeMap<String, FleetSums>,
    pub workflow: BTreeMap<String, FleetSums>,
    pub user: BTreeMap<String, FleetSums>,
    pub run: BTreeMap<String, FleetSums>,
}

/// What is true about a part of the simulated time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PeriodTruth {
    pub since_unix_s: u64,
    pub until_unix_s: u64,
    #[serde(flatten)]
    pub sums: GroupTruth,
    /// GPU seconds of runs that had failed by the end, and of runs that repeat a failed one.
    pub failed_gpu_s: f64,
    pub repeated_gpu_s: f64,
    /// Kinds of issues by host. Doubled rows and wrong clocks are found when rows arrive, so they
    /// are in `faults` only.
    pub sick: BTreeMap<String, BTreeSet<&'static str>>,
    /// What the doctor must find.
    pub planted: PlantedIssues,
    #[serde(skip)]
    failed: BTreeSet<String>,
    #[serde(skip)]
    repeated: BTreeSet<String>,
    /// When the next row of each host is due, and whether jobs may start on it by its last report.
    #[serde(skip)]
    last: BTreeMap<String, (u64, bool)>,
}

impl FleetTruth {
    /// Adds the rows of one interval of the hosts with `names`.
    pub fn add(&mut self, rows: &[HostRows], names: &[&str]) {
        let reporting = rows.iter().filter(|host| host.own.is_some()).count();
        self.silent_host_s += (self.hosts - reporting) as f64 * f64::from(self.interval_s);
        for host in rows {
            self.run_rows += host.runs.len() as u64;
            self.host_rows += u64::from(host.own.is_some());
            self.gpu_rows += host.gpus.len() as u64;
            let is_busy = host.gpus.iter().any(|gpu| !gpu.runs.is_empty());
            for gpu in &host.gpus {
                let sums = sum_row(gpu, is_busy, host.is_schedulable);
                self.all.add(gpu, &sums);
                self.last_day.add(gpu, &sums);
                self.week_before.add(gpu, &sums);
            }
            for period in [&mut self.last_day, &mut self.week_before] {
                let range = period.since_unix_s..period.until_unix_s;
                if let Some(name) = names.get(host.host) {
                    period.planted.add(host, name, &range);
                }
            }
            host.gpus.iter().for_each(|gpu| self.hold(names[host.host], gpu));
            if host.own.is_some() {
                self.last_day.add_host(host, names[host.host]);
                self.week_before.add_host(host, names[host.host]);
            }
        }
    }

    /// Adds runs that have ended.
    pub fn add_runs(&mut self, ended: Vec<SimulatedRun>) {
        self.ended_runs += ended.len() as u64;
        for run in ended {
            for period in [&mut self.last_day, &mut self.week_before] {
                if run.is_failed && run.end_s < period.until_unix_s {
                    period.failed.insert(run.name());
                }
            }
        }
    }

    /// Adds runs that repeat a failed one.
    pub fn add_repeated(&mut self, runs: Vec<String>) {
        self.last_day.repeated.extend(runs.iter().cloned());
        self.week_before.repeated.extend(runs);
    }

    /// Adds a row to what is known about the holder of its GPU.
    fn hold(&mut self, host: &str, gpu: &GpuInterval) {
        let holder = gpu.runs.first();
        let name = |run: &GpuRun| format!("{}/{}", run.scheduler, run.job);
        let run = holder.map(name).unwrap_or_default();
        let user = holder.map(|run| run.user.clone()).unwrap_or_default();
        let before = self.holders.remove(&(host.to_owned(), gpu.index));
        let before = before.filter(|(_, same, ..)| *same == run).map_or(0.0, |(.., idle_s)| idle_s);
        let is_idle = gpu.sums.get("busy_s") == Some(&0.0);
        let idle_s = if is_idle { before + gpu.observed_s } else { 0.0 };
        let state = (gpu.start_unix_s + u64::from(gpu.length_s), run, user, idle_s);
        self.holders.insert((host.to_owned(), gpu.index), state);
    }

    /// Computes what follows from all rows.
    pub fn finish(&mut self) {
        for (until_s, run, user, idle_s) in self.holders.values() {
            // Hosts whose clock is ahead have later rows.
            if *until_s >= self.until_unix_s && !run.is_empty() && *idle_s > 0.0 {
                let held = self.held_idle.entry(run.clone()).or_default();
                held.user.clone_from(user);
                held.idle_s.push(*idle_s);
            }
        }
        self.last_day.finish();
        self.week_before.finish();
    }
}

impl GroupTruth {
    fn add(&mut self, gpu: &GpuInterval, sums: &FleetSums) {
        let [mut workflow, mut user, mut run] = ["", "", ""].map(str::to_owned);
        if let Some(holder) = gpu.runs.first() {
            (workflow, user) = (holder.name.clone(), holder.user.clone());
            run = format!("{}/{}", holder.scheduler, holder.job);
        }
        self.total.merge(sums);
        let groups = [&mut self.model, &mut self.workflow, &mut self.user, &mut self.run];
        for (groups, name) in groups.into_iter().zip([gpu.model.clone(), workflow, user, run]) {
            groups.entry(name).or_default().merge(sums);
        }
    }
}

impl PeriodTruth {
    /// Creates the truth of the day before a moment.
    pub fn day_before(until_unix_s: u64) -> Self {
        let since_unix_s = until_unix_s.saturating_sub(DAY_S);
        Self { since_unix_s, until_unix_s, ..Self::default() }
    }

    /// Adds the part of a row that lies within the period.
    fn add(&mut self, gpu: &GpuInterval, sums: &FleetSums) {
        let end = (gpu.start_unix_s + u64::from(gpu.length_s)).min(self.until_unix_s);
        let inside = end.saturating_sub(gpu.start_unix_s.max(self.since_unix_s));
        if inside > 0 {
            self.sums.add(gpu, &sums.scale(inside as f64 / f64::from(gpu.length_s)));
        }
    }

    fn add_host(&mut self, host: &HostRows, name: &str) {
        let Some(own) = host.own.as_ref().filter(|own| own.start_unix_s < self.until_unix_s) else {
            return;
        };
        let due = own.start_unix_s + 2 * u64::from(own.length_s);
        self.last.insert(name.to_owned(), (due, host.is_schedulable));
        let has_errors = host.gpus.iter().any(|gpu| !gpu.errors.is_empty());
        if has_errors && own.start_unix_s >= self.since_unix_s {
            self.sick.entry(name.to_owned()).or_default().insert("error xid_79");
        }
    }

    fn finish(&mut self) {
        self.planted.finish();
        for (host, (due, is_schedulable)) in &self.last {
            if due + SILENT_S < self.until_unix_s {
                self.sick.entry(host.clone()).or_default().insert("silent");
            }
            if !is_schedulable {
                self.sick.entry(host.clone()).or_default().insert("node");
            }
        }
        let held_s = |run: &String| self.sums.run.get(run).map_or(0.0, |sums| sums.allocated_s);
        self.failed_gpu_s = self.failed.iter().map(held_s).sum();
        self.repeated_gpu_s = self.repeated.iter().map(held_s).sum();
    }
}

/// The sums of a row by their definitions.
fn sum_row(gpu: &GpuInterval, is_busy: bool, is_schedulable: bool) -> FleetSums {
    let length_s = f64::from(gpu.length_s);
    let is_held = !gpu.runs.is_empty();
    let is_usable = is_schedulable || is_held;
    let mut sums = FleetSums {
        deployed_s: length_s,
        schedulable_s: if is_usable { length_s } else { 0.0 },
        on_busy_hosts_s: if is_usable && is_busy { length_s } else { 0.0 },
        ..FleetSums::default()
    };
    if is_held {
        sums.allocated_s = length_s;
        if let Some(&busy_s) = gpu.sums.get("busy_s") {
            (sums.busy_s, sums.busy_observed_s) = (busy_s, gpu.observed_s);
            sums.held_idle_s = if busy_s == 0.0 { gpu.observed_s } else { 0.0 };
        }
        match gpu.sums.get("sm_active_s") {
            Some(&sm_s) => (sums.sm_active_s, sums.sm_observed_s) = (sm_s, gpu.observed_s),
            None => sums.busy_sm_unknown_s = sums.busy_s,
        }
        if let Some(&occupancy_s) = gpu.sums.get("sm_occupancy_s") {
            (sums.sm_occupancy_s, sums.occupancy_observed_s) = (occupancy_s, gpu.observed_s);
        }
    }
    sums
}
