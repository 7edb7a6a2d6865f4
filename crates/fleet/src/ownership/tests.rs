use std::collections::BTreeMap;

use super::{Claim, KnownGpu, Ownership, RUNS_PER_USER, Refusal, decide};
use crate::allocation::{Holders, SchedulerRun};

const ADA: u32 = 1000;
const EVE: u32 = 1001;

fn run(scheduler: &'static str, job: &str) -> SchedulerRun {
    SchedulerRun { scheduler, job: job.to_owned(), ..SchedulerRun::default() }
}

/// Creates the claim of a process whose environment names a Slurm job and the job's GPUs.
fn claim(pid: u32, uid: u32, job: &str, gpus: &[&str]) -> Claim {
    let environment = SchedulerRun { name: Some(format!("by {pid}")), ..run("slurm", job) };
    let gpus = gpus.iter().map(ToString::to_string).collect();
    Claim { pid, uid, group: None, environment: Some(environment), gpus }
}

fn in_group(claim: Claim, job: &str) -> Claim {
    Claim { group: Some(run("slurm", job)), ..claim }
}

fn gpu(index: u32, computing: &[u32]) -> KnownGpu {
    KnownGpu {
        uuid: format!("GPU-{index}"),
        index: index.to_string(),
        parent: None,
        computing: computing.iter().copied().collect(),
    }
}

fn check(scheduler: &[(&str, SchedulerRun)], gpus: &[KnownGpu], claims: &[Claim]) -> Ownership {
    let mut holders = Holders::new();
    for (key, run) in scheduler {
        holders.entry((*key).to_owned()).or_default().push(run.clone());
    }
    let names = BTreeMap::from([(ADA, "ada".to_owned()), (EVE, "eve".to_owned())]);
    decide(&holders, gpus, claims, &names)
}

fn jobs(decided: &Ownership, uuid: &str) -> Vec<String> {
    let runs = decided.holders.get(uuid).map_or(&[][..], Vec::as_slice);
    runs.iter().map(|run| format!("{} {}", run.job, run.user.as_deref().unwrap_or("?"))).collect()
}

fn prolog(job: &str, user: &str) -> SchedulerRun {
    SchedulerRun { user: Some(user.to_owned()), ..run("prolog", job) }
}

#[test]
fn environment_never_overrides_the_scheduler() {
    let scheduler = [("0", prolog("7", "ada")), ("GPU-1", run("kubernetes", "pod"))];
    // Three false claims: the name of another job, the name of the right job by another user, and a
    // GPU that a pod holds.
    let lies = [
        claim(10, EVE, "666", &["0", "1"]),
        claim(11, EVE, "7", &["0"]),
        in_group(claim(12, EVE, "666", &["1"]), "666"),
    ];
    let decided = check(&scheduler, &[gpu(0, &[EVE]), gpu(1, &[EVE])], &lies);
    assert_eq!(jobs(&decided, "GPU-0"), ["7 ada"]);
    assert_eq!(jobs(&decided, "GPU-1"), ["pod ?"]);
    assert_eq!(decided.holders["GPU-0"][0].name, None, "nothing of the false claim is shown");
    assert!(!decided.runs.contains_key(&11), "a process of another user is not of the job");
    let refused = [(Refusal::User, 11), (Refusal::Scheduler, 10), (Refusal::Scheduler, 12)];
    assert!(decided.refused.iter().eq(&refused), "{:?}", decided.refused);
}

#[test]
fn a_process_of_the_job_completes_the_schedulers_record() {
    for true_claim in [claim(10, ADA, "7", &["0"]), in_group(claim(10, EVE, "7", &["0"]), "7")] {
        let decided = check(&[("0", prolog("7", "ada"))], &[gpu(0, &[])], &[true_claim]);
        let held = &decided.holders["GPU-0"][0];
        assert_eq!((held.scheduler, held.name.as_deref()), ("slurm", Some("by 10")));
        assert_eq!(held.user.as_deref(), Some("ada"), "the scheduler's word for the user");
        assert_eq!(decided.runs[&10].name, held.name);
        assert!(decided.refused.is_empty(), "{:?}", decided.refused);
    }
    // The mapping file does not name a user, so the claim counts only if the process's user
    // computes on a GPU of the job.
    let scheduler = [("0", run("prolog", "7"))];
    let idle = check(&scheduler, &[gpu(0, &[])], &[claim(10, ADA, "7", &[])]);
    assert!(idle.refused.contains(&(Refusal::Unproven, 10)) && idle.runs.is_empty());
    let computing = check(&scheduler, &[gpu(0, &[ADA])], &[claim(10, ADA, "7", &[])]);
    assert_eq!(computing.runs[&10].user.as_deref(), Some("ada"));
}

#[test]
fn a_free_gpu_is_held_only_by_a_proven_claim() {
    let held = |computing: &[u32], claims: &[Claim]| {
        let decided = check(&[], &[gpu(0, computing)], claims);
        (jobs(&decided, "GPU-0"), decided.refused)
    };
    let (none, refused) = held(&[], &[claim(10, EVE, "1", &["0"])]);
    assert!(none.is_empty() && refused.contains(&(Refusal::Unproven, 10)));
    let (alone, refused) =
        held(&[ADA], &[claim(10, EVE, "1", &["0"]), claim(11, ADA, "2", &["0"])]);
    assert_eq!(alone, ["2 ada"]);
    assert!(refused.iter().eq(&[(Refusal::Unproven, 10)]), "{refused:?}");
    let (none, refused) =
        held(&[ADA, EVE], &[claim(10, EVE, "1", &["0"]), claim(11, ADA, "2", &["0"])]);
    assert!(none.is_empty());
    assert!(refused.iter().eq(&[(Refusal::Contested, 10), (Refusal::Contested, 11)]));
    // The scheduler creates the control group, so a claim with a group counts even if the job does
    // not compute.
    let (grouped, _) =
        held(&[EVE], &[claim(10, EVE, "1", &["0"]), in_group(claim(11, ADA, "2", &["0"]), "2")]);
    assert_eq!(grouped, ["2 ada"]);
    let two_jobs = ["1", "2"].map(|job| {
        let uid = if job == "1" { EVE } else { ADA };
        in_group(claim(uid, uid, job, &["0"]), job)
    });
    let (working, refused) = held(&[ADA], &two_jobs);
    assert_eq!(working, ["2 ada"], "of two jobs that name a GPU, the one that computes there");
    assert!(refused.contains(&(Refusal::Unproven, EVE)), "{refused:?}");
    assert_eq!(held(&[ADA, EVE], &two_jobs).0, ["1 eve", "2 ada"]);
}

#[test]
fn a_run_that_only_its_user_names_is_marked_as_a_claim() {
    let is_claim = |scheduler: &[(&str, SchedulerRun)], claim: Claim| {
        let decided = check(scheduler, &[gpu(0, &[EVE])], &[claim]);
        let holders = decided.holders["GPU-0"].iter().map(|run| run.is_claim).collect::<Vec<_>>();
        (decided.runs[&10].is_claim, holders)
    };
    let claim = || claim(10, EVE, "7", &["0"]);
    assert_eq!(is_claim(&[], claim()), (true, vec![true]));
    assert_eq!(is_claim(&[], in_group(claim(), "7")), (false, vec![false]));
    assert_eq!(is_claim(&[("0", prolog("7", "eve"))], claim()), (false, vec![false]));
}

#[test]
fn the_control_group_overrides_the_environment() {
    let decided = check(&[], &[gpu(0, &[])], &[in_group(claim(10, EVE, "666", &["0"]), "5")]);
    assert_eq!((decided.runs[&10].job.as_str(), &decided.runs[&10].name), ("5", &None));
    assert_eq!(jobs(&decided, "GPU-0"), ["5 eve"]);
    assert!(decided.refused.contains(&(Refusal::Group, 10)));
}

#[test]
fn a_user_has_a_limited_number_of_runs_and_processes() {
    let claims: Vec<Claim> = (0..2_000).map(|pid| claim(pid, EVE, &pid.to_string(), &[])).collect();
    let with_ada = [claims, vec![claim(5_000, ADA, "7", &[])]].concat();
    let decided = check(&[], &[], &with_ada);
    assert_eq!(decided.runs.len(), RUNS_PER_USER + 1);
    assert!(decided.runs.contains_key(&5_000), "another user is not affected");
    let limited = decided.refused.iter().filter(|(why, _)| *why == Refusal::Limit).count();
    assert_eq!(limited, 2_000 - RUNS_PER_USER);
}

#[test]
fn holders_of_a_whole_gpu_hold_its_instances() {
    let instance = |index: &str| KnownGpu {
        uuid: format!("MIG-{index}"),
        index: index.to_owned(),
        parent: Some(["0".to_owned(), "GPU-0".to_owned()]),
        computing: [].into(),
    };
    let gpus = [instance("0-0"), instance("0-1"), gpu(0, &[])];
    let decided = check(&[("0", prolog("7", "ada")), ("0-1", prolog("8", "eve"))], &gpus, &[]);
    assert_eq!(jobs(&decided, "MIG-0-0"), ["7 ada"]);
    assert_eq!(jobs(&decided, "MIG-0-1"), ["8 eve"]);
    assert_eq!(jobs(&decided, "GPU-0"), ["7 ada"]);
}

#[test]
fn a_pods_process_joins_the_gpus_of_its_pod() {
    let pod = |namespace: &str| SchedulerRun {
        partition: Some(namespace.to_owned()),
        ..run("kubernetes", "train-0")
    };
    let named = SchedulerRun { alias: Some("0f8a2c3e".to_owned()), ..pod("ads") };
    let claim = Claim { group: Some(named), environment: None, ..claim(10, ADA, "", &[]) };
    let scheduler = [("GPU-0", pod("ads")), ("GPU-1", pod("ranking"))];
    let decided = check(&scheduler, &[gpu(0, &[]), gpu(1, &[])], &[claim]);
    let run = &decided.runs[&10];
    assert!(decided.holders["GPU-0"][0].is_same(run) && !decided.holders["GPU-1"][0].is_same(run));
    assert_eq!(decided.holders["GPU-0"][0].alias.as_deref(), Some("0f8a2c3e"));
}

#[test]
fn a_task_of_an_array_joins_the_gpus_of_its_job() {
    let task = SchedulerRun { alias: Some("70_4".to_owned()), ..run("slurm", "78") };
    let claim = Claim { environment: Some(task), ..claim(10, ADA, "78", &[]) };
    for job in ["78", "70_4"] {
        let scheduler = [("0", prolog(job, "ada"))];
        let decided = check(&scheduler, &[gpu(0, &[])], std::slice::from_ref(&claim));
        assert!(decided.holders["GPU-0"][0].is_same(&decided.runs[&10]), "{job}");
    }
}

#[test]
fn a_pod_is_claimed_by_its_control_group_only() {
    let pod = SchedulerRun {
        alias: Some("uid".to_owned()),
        user: Some("ada".to_owned()),
        partition: Some("ads".to_owned()),
        ..run("kubernetes", "dlrm")
    };
    let claim = |pid, group: Option<&SchedulerRun>| {
        let environment =
            SchedulerRun { partition: Some("ads".to_owned()), ..run("kubernetes", "dlrm") };
        let (group, environment) = (group.cloned(), Some(environment));
        Claim { pid, uid: EVE, group, environment, gpus: Vec::new() }
    };
    let claims = [claim(10, Some(&pod)), claim(11, None)];
    let decided = check(&[("GPU-0", pod.clone())], &[gpu(0, &[EVE])], &claims);
    assert_eq!(jobs(&decided, "GPU-0"), ["dlrm ada"], "the owner is the one of the pod");
    assert_eq!(decided.runs[&10].user.as_deref(), Some("ada"));
    assert!(!decided.runs.contains_key(&11) && decided.refused.contains(&(Refusal::Unproven, 11)));
    // A pod without GPUs has its owner too.
    let decided = check(&[], &[], &claims);
    assert_eq!(decided.runs[&10].user.as_deref(), Some("ada"));
    assert!(decided.runs[&11].is_claim && decided.runs[&11].user.as_deref() == Some("eve"));
}
