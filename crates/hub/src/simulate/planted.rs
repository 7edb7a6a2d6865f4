//! The issues that the doctor must find in a simulated fleet, from its rows without the store.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fleet::proto::{GpuInterval, GpuRun};
use serde::Serialize;

use super::fault::SimulatedFault;
use super::fleet::HostRows;

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
