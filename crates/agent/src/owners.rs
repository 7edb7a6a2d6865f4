//! Keeps the latest decision about which run and user each process and GPU belongs to, and counts
//! the claims that were refused since the agent started. `fleet::ownership` makes the decision.

use std::collections::{BTreeMap, BTreeSet};

use fleet::allocation::{self, SchedulerRun};
use fleet::ownership::{KnownGpu, Ownership, Refusal};
use fleet::process::Process;

use crate::counters::gpu::GpuIdentity;

/// The latest decision about owners, with the counters of refused claims.
#[derive(Debug, Default)]
pub struct Owners {
    decided: Ownership,
    groups: ControlGroups,
    /// The processes about which was decided, by process id.
    processes: BTreeMap<u32, Process>,
    refusals: BTreeMap<Refusal, u64>,
}

/// Control groups of processes, by process id. A process stays in the group in which it was
/// started, so its group is read once.
#[derive(Clone, Debug, Default)]
pub struct ControlGroups {
    by_pid: BTreeMap<u32, (u64, String)>,
}

impl ControlGroups {
    /// Returns the path of the control group of a process, if it is known.
    pub fn get(&self, pid: &u32) -> Option<&str> {
        self.by_pid.get(pid).map(|(_, path)| path.as_str())
    }
}

impl Owners {
    /// Reads the control groups of processes. Groups that are known from the last decision are
    /// reused.
    pub fn groups_of(&self, processes: &[Process]) -> ControlGroups {
        let group = |process: &Process| {
            let cached = self.groups.by_pid.get(&process.pid);
            let cached = cached.filter(|(started, _)| *started == process.started);
            let path = cached.map(|(_, path)| path.clone());
            let path = path.or_else(|| allocation::group_of(process.pid))?;
            Some((process.pid, (process.started, path)))
        };
        ControlGroups { by_pid: processes.iter().filter_map(group).collect() }
    }

    /// Replaces the decided owners. A refused claim is counted once per process and reason,
    /// although it is refused again at every decision.
    pub fn renew(&mut self, decided: Ownership, groups: ControlGroups, processes: Vec<Process>) {
        for (why, _) in decided.refused.difference(&self.decided.refused) {
            *self.refusals.entry(*why).or_default() += 1;
        }
        (self.decided, self.groups) = (decided, groups);
        self.processes = processes.into_iter().map(|process| (process.pid, process)).collect();
    }

    /// Returns the description of a process that polls for traces or reports steps.
    pub fn process(&self, pid: u32) -> Option<&Process> {
        self.processes.get(&pid)
    }

    /// The scheduler run of each process, by process id.
    pub fn runs(&self) -> &BTreeMap<u32, SchedulerRun> {
        &self.decided.runs
    }

    /// The runs that hold the GPU with the given UUID.
    pub fn runs_on(&self, uuid: &str) -> &[SchedulerRun] {
        self.decided.holders.get(uuid).map_or(&[], Vec::as_slice)
    }

    /// Control groups of all processes that belong to a run.
    pub fn run_groups(&self) -> BTreeSet<&str> {
        self.decided.runs.keys().filter_map(|pid| self.groups.get(pid)).collect()
    }

    /// Number of refused claims by reason. Reasons that never occurred are included with 0.
    pub fn refusals(&self) -> impl Iterator<Item = (Refusal, u64)> {
        let count = |why: &Refusal| self.refusals.get(why).copied().unwrap_or(0);
        Refusal::ALL.into_iter().map(move |why| (why, count(&why)))
    }
}

/// Describes a GPU in the form in which `fleet::ownership` decides about owners.
pub fn known_gpu(identity: &GpuIdentity, computing: &BTreeSet<u32>) -> KnownGpu {
    let index = identity.index.to_string();
    let parent = identity.parent.as_ref().map(|parent| [index.clone(), parent.clone()]);
    let index = match identity.instance {
        Some(instance) => format!("{index}-{instance}"),
        None => index,
    };
    KnownGpu { uuid: identity.uuid.clone(), index, parent, computing: computing.clone() }
}
