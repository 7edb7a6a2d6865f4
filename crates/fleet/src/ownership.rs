//! Decides which run a process belongs to and which runs hold a GPU.
//!
//! Information from the scheduler (mapping folder, kubelet) always counts. A claim in the
//! environment of a process counts only if the kernel or the scheduler confirms it, because any
//! user may start a process with any environment. Rejected claims are returned with the reason.
//! This module reads neither files nor clocks.

use std::collections::{BTreeMap, BTreeSet};

use crate::allocation::{self, Holders, SchedulerRun};
use crate::process::Process;

/// Maximum number of processes per user that are assigned to a run. A host has fewer GPUs and
/// cores.
const PROCESSES_PER_USER: usize = 256;
/// Maximum number of processes of all users that are assigned to a run.
const PROCESSES_MAX: usize = 4096;
/// Maximum number of runs per user that only environments of the user's own processes name.
const RUNS_PER_USER: usize = 32;

/// The claim of one process to a run and to GPUs, with the facts that the kernel reports about the
/// process.
#[derive(Clone, Debug)]
pub struct Claim {
    pub pid: u32,
    /// User id of the process, as the kernel reports it.
    pub uid: u32,
    /// The run that the name of the process's control group contains. The scheduler creates these
    /// groups.
    pub group: Option<SchedulerRun>,
    /// The run that the process's environment names.
    pub environment: Option<SchedulerRun>,
    /// GPUs that the run holds according to the environment.
    pub gpus: Vec<String>,
}

/// A GPU or instance for which [`decide`] finds the holders.
#[derive(Clone, Debug, Default)]
pub struct KnownGpu {
    pub uuid: String,
    /// `0` for a GPU, `0-1` for an instance.
    pub index: String,
    /// Index and UUID of the whole GPU if this is an instance. Holders of the whole GPU hold its
    /// instances.
    pub parent: Option<[String; 2]>,
    /// Ids of users whose processes compute on the GPU, as the driver reports them.
    pub computing: BTreeSet<u32>,
}

/// The reason why a claim of a process is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The control group of the process belongs to another job than the claimed one.
    Group,
    /// According to the scheduler, the claimed job belongs to another user.
    User,
    /// The scheduler assigned the GPU to another run.
    Scheduler,
    /// Neither the control group nor the scheduler nor work on the GPU confirms the claim.
    Unproven,
    /// Several runs claim the GPU, and all of them compute on the GPU.
    Contested,
    /// The user has too many processes or runs.
    Limit,
}

impl Refusal {
    /// All reasons, in the order of their declaration.
    pub const ALL: [Self; 6] =
        [Self::Group, Self::User, Self::Scheduler, Self::Unproven, Self::Contested, Self::Limit];

    /// Returns the reason as one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::User => "user",
            Self::Scheduler => "scheduler",
            Self::Unproven => "unproven",
            Self::Contested => "contested",
            Self::Limit => "limit",
        }
    }
}

/// The decisions for one host: the run of each process, and the holders of each GPU.
#[derive(Clone, Debug, Default)]
pub struct Ownership {
    pub runs: BTreeMap<u32, SchedulerRun>,
    /// Runs that hold each GPU, by UUID of the GPU.
    pub holders: BTreeMap<String, Vec<SchedulerRun>>,
    /// Ids of processes with a rejected claim, each with the reason.
    pub refused: BTreeSet<(Refusal, u32)>,
}

impl Claim {
    /// Creates the claim of a process. `group` is the path of its control group, and `pods` maps
    /// UIDs to pods.
    pub fn new(
        process: &Process,
        group: Option<&str>,
        pods: &BTreeMap<String, SchedulerRun>,
    ) -> Self {
        let group = group.and_then(allocation::group_run);
        Self {
            pid: process.pid,
            uid: process.uid,
            group: group.map(|run| pods.get(&run.job).cloned().unwrap_or(run)),
            environment: allocation::environment_run(process),
            gpus: allocation::gpus_of(process),
        }
    }
}

/// Decides all claims of a host: which run each process belongs to, and which runs hold each GPU.
pub fn decide(
    scheduler: &Holders,
    gpus: &[KnownGpu],
    claims: &[Claim],
    user_names: &BTreeMap<u32, String>,
) -> Ownership {
    let mut decided = Ownership::default();
    for gpu in gpus {
        let held = scheduler_holders(scheduler, gpu);
        if !held.is_empty() {
            decided.holders.insert(gpu.uuid.clone(), held);
        }
    }
    let mut counts = BTreeMap::<u32, (usize, Vec<String>)>::new();
    let mut candidates = BTreeMap::<&str, Vec<(&Claim, SchedulerRun)>>::new();
    for claim in claims {
        let (processes, _) = counts.entry(claim.uid).or_default();
        *processes += 1;
        // A user can start any number of processes. Such processes must not slow down the decision
        // or use up the limits of other users.
        if *processes > PROCESSES_PER_USER || decided.runs.len() >= PROCESSES_MAX {
            decided.refused.insert((Refusal::Limit, claim.pid));
            continue;
        }
        let Some(mut run) = decided.named_run(claim) else { continue };
        run.uid = Some(claim.uid);
        // The owner of a pod may be known from the scheduler, while its processes run as root.
        let user = || user_names.get(&claim.uid).cloned().unwrap_or(claim.uid.to_string());
        run.user.get_or_insert_with(user);
        let joined = decided.join(scheduler, gpus, claim, &run);
        let run = match joined {
            JoinedRun::Known(known) => known,
            JoinedRun::Refused(why) => {
                decided.refused.insert((why, claim.pid));
                continue;
            }
            JoinedRun::Alone => {
                let (_, own) = counts.entry(claim.uid).or_default();
                // Only the scheduler can create runs in control groups, so only runs from
                // environments are limited.
                let is_counted = claim.group.is_some() || own.contains(&run.job);
                if !is_counted && own.len() >= RUNS_PER_USER {
                    decided.refused.insert((Refusal::Limit, claim.pid));
                    continue;
                }
                if !is_counted {
                    own.push(run.job.clone());
                }
                run.is_claim = claim.group.is_none();
                run
            }
        };
        for name in &claim.gpus {
            let claimed_gpu = gpus.iter().find(|gpu| gpu.index == *name || gpu.uuid == *name);
            match claimed_gpu {
                Some(gpu) => candidates.entry(&gpu.uuid).or_default().push((claim, run.clone())),
                None => {
                    decided.refused.insert((Refusal::Unproven, claim.pid));
                }
            }
        }
        decided.runs.insert(claim.pid, run);
    }
    for gpu in gpus {
        let claimed = candidates.remove(gpu.uuid.as_str()).unwrap_or_default();
        decided.hold(gpu, &claimed);
    }
    decided
}

/// The result of looking up a process's run among the scheduler's runs.
enum JoinedRun {
    /// The scheduler knows the run, and the process belongs to it.
    Known(SchedulerRun),
    /// The scheduler does not know the run, so it holds no GPU.
    Alone,
    Refused(Refusal),
}

impl Ownership {
    /// Returns the run of a process. The control group overrides the environment.
    fn named_run(&mut self, claim: &Claim) -> Option<SchedulerRun> {
        let (group, environment) = (claim.group.as_ref(), claim.environment.as_ref());
        let Some(group) = group else { return environment.cloned() };
        let mut run = group.clone();
        match environment.filter(|environment| environment.scheduler == group.scheduler) {
            Some(environment) if environment.is_same(group) => run.fill(environment),
            Some(_) if group.scheduler == "slurm" => {
                self.refused.insert((Refusal::Group, claim.pid));
            }
            // The name of a pod in the environment is ignored, because only the kubelet can connect
            // the pod's UID to its name.
            _ => {}
        }
        Some(run)
    }

    /// Combines the run of a process with the scheduler's record of the run, and fills missing
    /// fields of that record.
    fn join(
        &mut self,
        scheduler: &Holders,
        gpus: &[KnownGpu],
        claim: &Claim,
        run: &SchedulerRun,
    ) -> JoinedRun {
        let Some(known) = scheduler.values().flatten().find(|known| known.is_same(run)) else {
            return JoinedRun::Alone;
        };
        let is_of_user = known.uid == run.uid
            || (known.user.is_some() && known.user == run.user)
            // Some prologs write the user id in place of the name.
            || known.user == Some(claim.uid.to_string());
        let is_held = |gpu: &&KnownGpu| {
            self.holders.get(&gpu.uuid).is_some_and(|runs| runs.iter().any(|r| r.is_same(run)))
        };
        let computes = || gpus.iter().filter(is_held).any(|gpu| gpu.computing.contains(&claim.uid));
        let names_user = known.uid.is_some() || known.user.is_some();
        // A user cannot create the control group of a job, so the group proves that the process
        // belongs to the job.
        let by_group = claim.group.is_some();
        if run.scheduler == "kubernetes" && !by_group {
            // Every process of a pod is in its control group, and users of pods are not those of
            // the host.
            return JoinedRun::Refused(Refusal::Unproven);
        }
        match (by_group || is_of_user, names_user) {
            (true, _) => {}
            (false, true) => return JoinedRun::Refused(Refusal::User),
            (false, false) if computes() => {}
            (false, false) => return JoinedRun::Refused(Refusal::Unproven),
        }
        let mut whole = known.clone();
        whole.fill(run);
        // The scheduler's record may be listed for several GPUs, and all copies get the missing
        // fields.
        for held in self.holders.values_mut().flatten().filter(|held| held.is_same(run)) {
            held.fill(run);
        }
        JoinedRun::Known(whole)
    }

    /// Decides who holds a GPU that processes claim.
    fn hold(&mut self, gpu: &KnownGpu, claimed: &[(&Claim, SchedulerRun)]) {
        if let Some(held) = self.holders.get(&gpu.uuid) {
            // The scheduler's record decides, so claims of other runs to this GPU are refused.
            let others =
                claimed.iter().filter(|(_, run)| !held.iter().any(|held| held.is_same(run)));
            self.refused.extend(others.map(|(claim, _)| (Refusal::Scheduler, claim.pid)));
            return;
        }
        let by_group = |(claim, _): &&(&Claim, SchedulerRun)| claim.group.is_some();
        let computes = |(claim, _): &&(&Claim, SchedulerRun)| gpu.computing.contains(&claim.uid);
        let mut proven: Vec<_> = claimed.iter().filter(by_group).collect();
        let is_shared = proven.windows(2).any(|pair| !pair[0].1.is_same(&pair[1].1));
        if is_shared && proven.iter().copied().any(|claim| computes(&claim)) {
            // A job names its GPUs itself. If several jobs name this one, work on it decides, so
            // that a job cannot take a share of another job's GPU.
            proven.retain(computes);
        }
        if proven.is_empty() {
            proven = claimed.iter().filter(computes).collect();
            // Without a control group, the claimants must all name the same run. If they name
            // several runs, nothing shows which run owns the GPU.
            let is_one = |(_, run): &&(&Claim, SchedulerRun)| {
                proven.first().is_some_and(|(_, first)| first.is_same(run) && first.uid == run.uid)
            };
            if !proven.iter().all(is_one) {
                self.refused
                    .extend(proven.iter().map(|(claim, _)| (Refusal::Contested, claim.pid)));
                proven.clear();
            }
        }
        let mut runs = Vec::<SchedulerRun>::new();
        for (_, run) in &proven {
            match runs.iter_mut().find(|known| known.is_same(run)) {
                Some(known) => known.fill(run),
                None => runs.push(run.clone()),
            }
        }
        for (claim, _) in claimed {
            let is_contested = self.refused.contains(&(Refusal::Contested, claim.pid));
            if !is_contested && !proven.iter().any(|(other, _)| other.pid == claim.pid) {
                self.refused.insert((Refusal::Unproven, claim.pid));
            }
        }
        if !runs.is_empty() {
            self.holders.insert(gpu.uuid.clone(), runs);
        }
    }
}

/// Returns the holders of a GPU according to the scheduler's records. An instance without holders
/// of its own is held by the holders of the whole GPU.
fn scheduler_holders(scheduler: &Holders, gpu: &KnownGpu) -> Vec<SchedulerRun> {
    let named = |keys: &[String; 2]| {
        let mut holders = Vec::<SchedulerRun>::new();
        for run in keys.iter().filter_map(|key| scheduler.get(key)).flatten() {
            match holders.iter_mut().find(|known| known.is_same(run)) {
                Some(known) => known.fill(run),
                None => holders.push(run.clone()),
            }
        }
        holders
    };
    let own = named(&[gpu.index.clone(), gpu.uuid.clone()]);
    match &gpu.parent {
        Some(parent) if own.is_empty() => named(parent),
        _ => own,
    }
}

#[cfg(test)]
mod tests;
