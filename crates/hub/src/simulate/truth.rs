//! What a simulated fleet did, added up without the store and its columns.

use std::collections::BTreeMap;

use fleet::proto::GpuInterval;
use serde::Serialize;

use super::fleet::{HostRows, SimulatedRun};
use crate::sums::FleetSums;

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
    /// Number of rows of GPUs and hosts that a store has in the end.
    pub gpu_rows: u64,
    pub host_rows: u64,
    /// Number of seconds without rows of a host, summed over all hosts.
    pub silent_host_s: f64,
    pub total: FleetSums,
    pub model: BTreeMap<String, FleetSums>,
    pub workflow: BTreeMap<String, FleetSums>,
    pub user: BTreeMap<String, FleetSums>,
    pub run: BTreeMap<String, FleetSums>,
    /// GPU seconds of runs that failed, and of runs that repeat a failed one.
    pub failed_gpu_s: f64,
    pub repeated_gpu_s: f64,
    /// Number of runs that have ended.
    pub ended_runs: u64,
    /// Hosts of each fault.
    pub faults: BTreeMap<&'static str, Vec<String>>,
}

impl FleetTruth {
    /// Adds the rows of one interval.
    pub fn add(&mut self, rows: &[HostRows]) {
        let silent = self.hosts - rows.len();
        self.silent_host_s += silent as f64 * f64::from(self.interval_s);
        for host in rows {
            self.host_rows += 1;
            self.gpu_rows += host.gpus.len() as u64;
            let is_busy = host.gpus.iter().any(|gpu| !gpu.runs.is_empty());
            host.gpus.iter().for_each(|gpu| self.add_gpu(gpu, is_busy));
        }
    }

    fn add_gpu(&mut self, gpu: &GpuInterval, is_busy: bool) {
        let length_s = f64::from(gpu.length_s);
        let mut sums = FleetSums {
            deployed_s: length_s,
            schedulable_s: length_s,
            on_busy_hosts_s: if is_busy { length_s } else { 0.0 },
            ..FleetSums::default()
        };
        let [mut workflow, mut user, mut run] = ["", "", ""].map(str::to_owned);
        if let Some(holder) = gpu.runs.first() {
            sums.allocated_s = length_s;
            if let Some(&busy_s) = gpu.sums.get("busy_s") {
                (sums.busy_s, sums.busy_observed_s) = (busy_s, gpu.observed_s);
                sums.held_idle_s = if busy_s == 0.0 { gpu.observed_s } else { 0.0 };
            }
            match gpu.sums.get("sm_active_s") {
                Some(&sm_s) => (sums.sm_active_s, sums.sm_observed_s) = (sm_s, gpu.observed_s),
                None => sums.busy_sm_unknown_s = sums.busy_s,
            }
            (workflow, user) = (holder.name.clone(), holder.user.clone());
            run = format!("{}/{}", holder.scheduler, holder.job);
        }
        self.total.merge(&sums);
        let groups = [&mut self.model, &mut self.workflow, &mut self.user, &mut self.run];
        for (groups, name) in groups.into_iter().zip([gpu.model.clone(), workflow, user, run]) {
            groups.entry(name).or_default().merge(&sums);
        }
    }

    /// Adds runs that have ended.
    pub fn add_runs(&mut self, ended: &[SimulatedRun]) {
        for run in ended {
            self.ended_runs += 1;
            if run.is_failed {
                self.failed_gpu_s += run.gpu_s();
            }
            if run.submitted.repeats.is_some() {
                self.repeated_gpu_s += run.gpu_s();
            }
        }
    }
}
