//! A real agent sends rows of a stub of NVML to a real hub over TLS, and both are killed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use arrow_array::StringArray;
use hub::columns::RowTable;
use hub::store::{Partition, StoreFolder, column};
use serde_json::Value;
use testkit::certificate::{CertificateFiles, create_certificate};
use testkit::compiler::compile_library;
use testkit::{Folder, skip};

use crate::fixture::{TestHub, WAIT, program_beside};

/// An agent with two stub GPUs, which is killed on drop.
pub struct RealAgent {
    program: PathBuf,
    pub folder: Folder,
    stub: PathBuf,
    child: Child,
}

impl RealAgent {
    /// Starts an agent with further lines of configuration.
    pub fn start(parts: &AgentParts, hub: &TestHub, lines: &str) -> Self {
        let AgentParts { program, stub, certificate, .. } = parts;
        let (program, stub) = (program.clone(), stub.clone());
        let folder = Folder::new();
        fs::create_dir(folder.path("s")).unwrap();
        let token = folder.write("token", &hub.token);
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        folder.write("scenario", "gpu=0 util=50\ngpu=1 util=100\n");
        let root = folder.root().display();
        let configuration = format!(
            "socket_dir = '{root}/s'\nstate_dir = '{root}/state'\naudit = '{root}/audit.json'\n\
             host = 'gpu-1'\ninterval_s = 1\n{lines}\n[hub]\nurl = 'https://{}'\nca = '{}'\n\
             token_file = '{root}/token'\nverbs = ['trace']\n",
            hub.address,
            certificate.display()
        );
        folder.write("agent.toml", configuration);
        let child = Self::spawn(&program, &folder, &stub);
        Self { program, folder, stub, child }
    }

    fn spawn(program: &Path, folder: &Folder, stub: &Path) -> Child {
        let mut command = Command::new(program);
        command.arg("--config").arg(folder.path("agent.toml")).arg("--nvml").arg(stub);
        command.env("ROWMILL_STUB_NVML", folder.path("scenario"));
        command.stderr(Stdio::null()).spawn().unwrap()
    }

    pub fn kill_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Self::spawn(&self.program, &self.folder, &self.stub);
    }
}

impl Drop for RealAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a real agent needs, and the configuration of a hub with its certificate.
pub struct AgentParts {
    program: PathBuf,
    stub: PathBuf,
    pub certificate: PathBuf,
    pub hub_lines: String,
    _folder: Folder,
}

impl AgentParts {
    /// Finds the agent's program, and creates a certificate and a stub of NVML. Returns `None` and
    /// skips the test if one of them is missing.
    pub fn create() -> Option<Self> {
        let Some(program) = program_beside("rowmill-agent") else {
            skip("a real agent", "rowmill-agent, which `cargo xtask ci --only tests` builds");
            return None;
        };
        let folder = Folder::new();
        let CertificateFiles { certificate, key } = create_certificate(folder.root(), "a hub")?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/tests/it/stub_nvml.c");
        let stub = folder.path("stub.so");
        if !compile_library(&stub, &source, &["-O1"], "a stub of NVML") {
            return None;
        }
        let files = (certificate.display(), key.display());
        let hub_lines = format!("certificate = '{}'\nkey = '{}'\ncommit_ms = 50", files.0, files.1);
        Some(Self { program, stub, certificate, hub_lines, _folder: folder })
    }
}

#[test]
fn rows_of_a_real_agent_arrive_once_although_both_are_killed() {
    let Some(parts) = AgentParts::create() else { return };
    let mut hub = TestHub::start(&parts.hub_lines);
    let mut agent = RealAgent::start(&parts, &hub, "");
    let wait_for = |hub: &TestHub, count: usize| {
        let began = Instant::now();
        while hub.entries().len() < count {
            assert!(began.elapsed() < WAIT, "{} rows, expected {count}", hub.entries().len());
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let mut count = 6;
    wait_for(&hub, count);
    for _ in 0..2 {
        hub.kill_and_restart();
        agent.kill_and_restart();
        count = hub.entries().len() + 6;
        wait_for(&hub, count);
    }
    let entries = hub.entries();
    assert!(entries.values().all(|copies| *copies == 1), "{entries:?}");
    let sums = hub.sums("model");
    let deployed_s = sums["total"]["deployed_s"].as_f64().unwrap();
    assert!(deployed_s >= 8.0, "{sums}");
    // Nobody holds the GPUs of the stub.
    assert_eq!(sums["total"]["allocated_s"], 0.0);
    assert_eq!(sums["shares_percent"]["idle hosts"], 100.0, "{sums}");
}

#[test]
fn two_real_agents_of_one_host_are_shown_by_the_status() {
    let Some(parts) = AgentParts::create() else { return };
    let hub = TestHub::start(&parts.hub_lines);
    let agents = [RealAgent::start(&parts, &hub, ""), RealAgent::start(&parts, &hub, "")];
    let began = Instant::now();
    let host = loop {
        let host = hub.status()["hosts"]["gpu-1"].clone();
        let is_doubled = host["problems"]["doubled_rows"]["rows"].as_u64() > Some(0);
        if is_doubled && host["versions"]["driver"].as_str() > Some("") {
            break host;
        }
        assert!(began.elapsed() < WAIT, "{host}");
        std::thread::sleep(Duration::from_millis(300));
    };
    assert_eq!(host["versions"]["driver"], "570.1", "{host}");
    assert!(!host["versions"]["kernel"].as_str().unwrap().is_empty(), "{host}");
    assert_eq!(host["problems"].as_object().unwrap().len(), 1, "{host}");
    drop(agents);
}

/// The user id of `nobody`, which exists on every system.
const NOBODY: u32 = 65_534;
/// A Python script that polls like PyTorch and reports steps until it is killed.
const JOB: &str = "
import os, socket, struct, sys, time
folder, pid = sys.argv[1], os.getpid()
client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
client.bind(f'{folder}/dynoconfigclient-{pid}')
for step in range(1 << 30):
    client.sendto(struct.pack('<Q32siiqi', 20, b'req', 2, 1, 0, pid), f'{folder}/dynolog')
    client.recv(4096)
    message = struct.pack('<BBHIQQQQ', 1, 1, 0, pid, step, time.monotonic_ns(), 8, 2**64 - 1)
    client.sendto(message, f'{folder}/rowmill-steps')
    time.sleep(0.1)
";

/// Starts a job of `nobody` that claims a run and both GPUs.
fn start_claimant(agent: &RealAgent, job: &str) -> Child {
    let mut python = Command::new("python3");
    python.uid(NOBODY).gid(NOBODY).args(["-c", JOB]).arg(agent.folder.path("s"));
    python.current_dir("/").env_clear().env("PATH", "/usr/bin:/bin");
    python.envs([("SLURM_JOB_ID", job), ("SLURM_JOB_GPUS", "0,1"), ("SLURM_JOB_USER", "ada")]);
    python.spawn().unwrap()
}

/// Lists the jobs and users of a table with columns of runs, with the number of rows of each.
fn jobs(hub: &TestHub, table: RowTable) -> BTreeMap<[String; 2], u64> {
    let store = StoreFolder::open_for_reading(&hub.folder.path("store")).unwrap();
    let mut counts = BTreeMap::new();
    for hour in store.hours(table.folder()).unwrap() {
        let partition = Partition { hour: Some(hour), table: table.folder() };
        let read = store.read(partition, &["job", "user"], |batch, path| {
            let jobs: &StringArray = column(batch, "job", path)?;
            let users: &StringArray = column(batch, "user", path)?;
            for row in 0..batch.num_rows() {
                let key = [jobs.value(row), users.value(row)].map(str::to_owned);
                *counts.entry(key).or_default() += 1;
            }
            Ok(())
        });
        read.unwrap();
    }
    counts
}

#[test]
fn a_job_that_claims_the_run_of_another_user_moves_no_gpu_hours() {
    let attack = "processes of another user";
    if !testkit::has_root(attack) || !testkit::has_program("python3", attack) {
        return;
    }
    let Some(parts) = AgentParts::create() else { return };
    let hub = TestHub::start(&parts.hub_lines);
    let mapping = Folder::new();
    mapping.write("0", "7 ada 1000\n");
    let lines = format!("job_mapping = '{}'", mapping.root().display());
    let agent = RealAgent::start(&parts, &hub, &lines);
    for (path, mode) in [(agent.folder.root(), 0o755), (&agent.folder.path("s"), 0o1777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    // The scheduler gave GPU 0 to run 7 of ada. Run 8 of ada is on another host, so this host's
    // scheduler does not know it. The claimant of run 8 computes on GPU 1.
    let mut claimants = ["7", "8"].map(|job| start_claimant(&agent, job));
    let scenario = format!("gpu=0 util=50\ngpu=1 util=100 pid={}\n", claimants[1].id());
    agent.folder.write("scenario", scenario);
    let held_s = |sums: &Value, run: &str| sums["groups"][run]["allocated_s"].as_f64();
    let wait_for = |is_done: &dyn Fn(&Value) -> bool| {
        let began = Instant::now();
        loop {
            let sums = hub.sums("run");
            if is_done(&sums) {
                return sums;
            }
            assert!(began.elapsed() < WAIT, "{sums}");
            std::thread::sleep(Duration::from_millis(300));
        }
    };
    let own = "slurm/8@nobody";
    let before = wait_for(&|sums| held_s(sums, own).is_some());
    let after = wait_for(&|sums| held_s(sums, own) >= held_s(&before, own).map(|s| s + 4.0));
    let grown_s = |run| held_s(&after, run).unwrap() - held_s(&before, run).unwrap();
    // Ada's run has GPU 0 and nothing else, and the claimant has the GPU on which it computes.
    assert_eq!(grown_s("slurm/7"), grown_s(own), "{after}");
    let runs: Vec<&String> = after["groups"].as_object().unwrap().keys().collect();
    assert!(runs.iter().all(|run| ["", "slurm/7", own].contains(&run.as_str())), "{runs:?}");
    let began = Instant::now();
    let steps = loop {
        let steps = jobs(&hub, RowTable::Step);
        if steps.len() == 2 {
            break steps;
        }
        assert!(began.elapsed() < WAIT, "{steps:?}");
        std::thread::sleep(Duration::from_millis(300));
    };
    // The refused claimant's steps belong to no run.
    let expected = [["", ""], ["8@nobody", "nobody"]].map(|key| key.map(str::to_owned));
    assert_eq!(steps.into_keys().collect::<Vec<_>>(), expected);
    let expected = [["7", "ada"], ["8@nobody", "nobody"]].map(|key| key.map(str::to_owned));
    assert_eq!(jobs(&hub, RowTable::Run).into_keys().collect::<Vec<_>>(), expected);
    for claimant in &mut claimants {
        claimant.kill().unwrap();
        claimant.wait().unwrap();
    }
}
