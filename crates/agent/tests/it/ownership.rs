//! Tests of the ownership of GPUs while processes of an unprivileged user make false claims.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use crate::fixture::{Agent, value};

/// The user id of `nobody`, which exists on every system.
const NOBODY: u32 = 65_534;
/// A Python script that polls like PyTorch until it is killed.
const POLL: &str = "
import os, socket, struct, sys, time
folder = sys.argv[1]
client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
client.bind(f'{folder}/dynoconfigclient-{os.getpid()}')
while True:
    client.sendto(struct.pack('<Q32siiqi', 20, b'req', 2, 1, 0, os.getpid()), f'{folder}/dynolog')
    client.recv(4096)
    time.sleep(0.2)
";

/// A process with a chosen environment that polls the agent. The process is killed on drop.
pub struct Poller(Child);

impl Poller {
    pub fn start(agent: &Agent, variables: &[(&str, &str)]) -> Self {
        Self::spawn(&mut Command::new("python3"), agent, variables)
    }

    fn spawn_as_nobody(agent: &Agent, variables: &[(&str, &str)]) -> Self {
        Self::spawn(Command::new("python3").uid(NOBODY).gid(NOBODY), agent, variables)
    }

    fn spawn(python: &mut Command, agent: &Agent, variables: &[(&str, &str)]) -> Self {
        python.args(["-c", POLL]).arg(agent.sockets()).current_dir("/");
        python.env_clear().env("PATH", "/usr/bin:/bin").envs(variables.iter().copied());
        Self(python.spawn().unwrap())
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes the agent inspect all processes, then fetches its metrics page.
fn page(agent: &Agent) -> String {
    agent.local("GET", "/v1/status", "");
    agent.page("/metrics", "text/plain").body
}

#[test]
fn an_unprivileged_user_cannot_claim_gpus_and_jobs_of_others() {
    let attack = "processes of another user";
    if !testkit::has_root(attack) || !testkit::has_program("python3", attack) {
        return;
    }
    let mapping = tempfile::tempdir().unwrap();
    fs::write(mapping.path().join("0"), "7 ada 1000\n").unwrap();
    let configuration = format!("job_mapping = '{}'\n", mapping.path().display());
    let scenario = "gpu=0 util=0\ngpu=1 util=0";
    let agent = Agent::start(&configuration, Some(scenario));
    for (folder, mode) in [(agent.folder.path(), 0o755), (&agent.sockets(), 0o1777)] {
        fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
    }
    let gpus = ("SLURM_JOB_GPUS", "0,1");
    let user = ("SLURM_JOB_USER", "root");
    let false_job = Poller::spawn_as_nobody(&agent, &[("SLURM_JOB_ID", "666"), gpus, user]);
    let others_job =
        Poller::spawn_as_nobody(&agent, &[("SLURM_JOB_ID", "7"), ("SLURM_JOB_NAME", "evil")]);
    let refused = |page: &str, reason: &str| {
        value(page, "rowmill_claims_refused_total", &[&format!("reason=\"{reason}\"")])
    };
    let seen = agent.until("both claims were refused", |agent| {
        let page = page(agent);
        let all = ["scheduler", "unproven", "user"];
        all.iter().all(|reason| refused(&page, reason) == Some(1.0)).then_some(page)
    });
    assert_eq!(refused(&seen, "limit"), Some(0.0), "every reason is there from the start");
    let run = |page: &str, labels: &[&str]| value(page, "rowmill_run_info", labels);
    assert_eq!(run(&seen, &["gpu=\"0\"", "job_id=\"7\"", "name=\"\"", "user=\"ada\""]), Some(1.0));
    assert_eq!(run(&seen, &["gpu=\"1\""]), None, "a free GPU stays free");
    assert_eq!(run(&seen, &["user=\"root\""]), None, "the user is the kernel's");
    assert!(run(&seen, &["job_id=\"666\""]).is_some(), "its own run has a name and no GPU");
    assert!(!seen.contains("evil"), "{seen}");
    // The driver reports that the process computes on the GPU, and no other process claims that
    // GPU, so the process's claim must count.
    agent.scenario(&format!("{scenario} pid={}\n", false_job.0.id()));
    let seen = agent.until("the GPU it computes on", |agent| {
        let page = page(agent);
        run(&page, &["gpu=\"1\"", "job_id=\"666\""]).is_some().then_some(page)
    });
    assert_eq!(run(&seen, &["gpu=\"0\"", "job_id=\"666\""]), None);
    drop((false_job, others_job));
}

/// Runs a script of `deploy/slurm` for a job that holds GPU 0.
fn slurm_script(name: &str, folder: &std::path::Path, job: u32) -> Child {
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/slurm");
    let mut sh = Command::new("sh");
    sh.arg(script.join(name)).env("ROWMILL_JOBS", folder).env("SLURM_JOB_ID", job.to_string());
    let user = [("SLURM_JOB_GPUS", "0"), ("SLURM_JOB_USER", "ada"), ("SLURM_JOB_UID", "1000")];
    sh.envs(user).spawn().unwrap()
}

#[test]
fn an_epilog_keeps_the_entries_of_jobs_that_start_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let wait = |mut child: Child| assert!(child.wait().unwrap().success());
    (1..=30).for_each(|job| wait(slurm_script("prolog.sh", folder.path(), job)));
    let start = |job: u32| {
        [("epilog.sh", job), ("prolog.sh", job + 100)]
            .map(|(name, job)| slurm_script(name, folder.path(), job))
    };
    let running: Vec<Child> = (1..=30).flat_map(start).collect();
    running.into_iter().for_each(wait);
    let holders = fleet::allocation::JobMapping::read(folder.path()).holders;
    let mut jobs: Vec<u32> = holders["0"].iter().map(|run| run.job.parse().unwrap()).collect();
    jobs.sort_unstable();
    assert_eq!(jobs, (101..=130).collect::<Vec<u32>>());
    assert!(holders["0"].iter().all(|run| run.uid == Some(1000)));
    (101..=130).for_each(|job| wait(slurm_script("epilog.sh", folder.path(), job)));
    assert!(fleet::allocation::JobMapping::read(folder.path()).holders.is_empty());
}
