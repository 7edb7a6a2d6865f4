//! The slow checks of `rowmill-agent`: the cost of the agent, attacks on it, fuzzing, a binary for
//! old systems, and jobs of a real Slurm that hold GPUs.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::ci::cargo::cargo;
use crate::ci::slurm::{self, Cluster};
use crate::ci::{full, tool};
use crate::command;
use crate::error::Error;
use crate::tree;

/// Number of seconds for which each parser is fuzzed.
const FUZZ_S: &str = "600";
/// Seconds during which the cost of the idle agent is measured.
const WATCHED_S: &str = "600";
/// Seconds during which the agent is attacked.
const ATTACKED_S: &str = "60";
/// Seconds during which a real Prometheus scrapes simulated hosts.
const SCRAPED_S: &str = "600";
/// Packages that link against an older C library, because GPU clusters run systems with glibc 2.28.
const ZIG_PACKAGES: [&str; 2] = ["ziglang", "cargo-zigbuild"];
const TARGET: &str = "x86_64-unknown-linux-gnu.2.28";
/// Maximum time until a change is visible on the agent's page.
const PATIENCE: Duration = Duration::from_secs(30);
/// Number of GPUs that Slurm and the stub of NVML report for the machine.
const GPUS: u32 = 2;

/// A job that polls the agent for trace requests as PyTorch does, but never uses its GPU.
const JOB: &str = "#!/bin/sh
#SBATCH --job-name=held-idle
#SBATCH --gres=gpu:1
exec python3 -c '
import os, socket, struct, time
client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
client.bind(\"FOLDER/s/dynoconfigclient-job\")
while True:
    client.sendto(struct.pack(\"<Q32siiqi\", 20, b\"req\", 2, 1, 0, os.getpid()), \"FOLDER/s/dynolog\")
    client.recv(4096)
    time.sleep(1)
'
";

/// Measures the CPU and memory cost of the agent that is built for old systems, by
/// `bench/compare/agent_cost.py`.
pub fn measure_cost() -> Result<String, Error> {
    let root = tree::root();
    let binary = build_for_old_glibc(&root)?;
    let mut script = Command::new("python3");
    script.arg(root.join("bench/compare/agent_cost.py")).arg("--agent").arg(binary);
    command::run(script.args(["--seconds", WATCHED_S, "--old-glibc", "--judge"]))?;
    Ok("figures are met, no symbol above glibc 2.28".to_owned())
}

/// Attacks the agent as an unprivileged user and as peers without a token, at the same time.
pub fn attack_agent() -> Result<String, Error> {
    let root = tree::root();
    command::run(&mut cargo(&["build", "--release", "-p", "agent"]))?;
    let torch =
        full::create_environment(&root.join("target/venv-capture"), &full::CAPTURE_PACKAGES)?;
    let mut script = Command::new("python3");
    script.arg(root.join("bench/compare/agent_attacks.py")).arg("--agent");
    script.arg(root.join("target/release/rowmill-agent")).arg("--torch").arg(torch);
    command::run(script.args(["--seconds", ATTACKED_S, "--judge"]))?;
    Ok(format!("{ATTACKED_S} s of attacks within the bars, a real job is traced meanwhile"))
}

/// Runs a real Prometheus with the rules and the dashboard of `deploy/` on simulated hosts that
/// fail.
pub fn scrape_simulated_hosts() -> Result<String, Error> {
    if let Some(missing) = tool::install_program(full::PROMETHEUS) {
        return Ok(missing);
    }
    let root = tree::root();
    command::run(&mut cargo(&["build", "--release", "-p", "agent"]))?;
    let mut script = Command::new("python3");
    script.arg(root.join("bench/compare/agent_prometheus.py"));
    script.arg("--agent").arg(root.join("target/release/rowmill-agent"));
    command::run(script.args(["--seconds", SCRAPED_S]))?;
    Ok(format!("{SCRAPED_S} s without a failed evaluation"))
}

/// Fuzzes each parser of data from other processes for ten minutes.
pub fn fuzz_parsers() -> Result<String, Error> {
    for words in [["fleet", "--test", "it"], ["agent", "--bin", "rowmill-agent"]] {
        let mut tests = cargo(&["test", "--release", "-p"]);
        tests.args(words).args(["wrong::", "--", "--nocapture"]);
        command::run(tests.env("ROWMILL_FUZZ_S", FUZZ_S))?;
    }
    Ok(format!("{FUZZ_S} s of wrong inputs a parser"))
}

/// Builds the agent against glibc 2.28 and returns the path of the binary.
fn build_for_old_glibc(root: &Path) -> Result<PathBuf, Error> {
    let python = full::create_environment(&root.join("target/venv-zig"), &ZIG_PACKAGES)?;
    let bin = python.parent().unwrap_or(root).to_owned();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut build = cargo(&["zigbuild", "--release", "-p", "agent", "--target", TARGET]);
    command::run(build.env("PATH", format!("{}:{path}", bin.display())))?;
    Ok(root.join("target/x86_64-unknown-linux-gnu/release/rowmill-agent"))
}

/// Runs a Slurm job that holds a GPU without using it. Until the job ends, the agent's page must
/// show the owner of the GPU and that the GPU is idle. The prolog's files name the job, and the
/// job's environment adds its name and partition.
pub fn check_owner() -> Result<String, Error> {
    if let Some(missing) = slurm::DAEMONS.into_iter().find_map(tool::install_program) {
        return Ok(missing);
    }
    let root = tree::root();
    command::run(&mut cargo(&["build", "--release", "-p", "agent"]))?;
    // The path of a Unix socket has at most 107 bytes, so the folder lies in /tmp.
    let folder = PathBuf::from(format!("/tmp/rowmill-slurm-{}", std::process::id()));
    slurm::create_folder(&folder)?;
    // If the check fails, the function returns before it removes the folder, so that the logs can
    // be read.
    let outcome = check_idle_gpu(&root, &folder)?;
    fs::remove_dir_all(&folder).map_err(Error::io(&folder))?;
    Ok(outcome)
}

fn check_idle_gpu(root: &Path, folder: &Path) -> Result<String, Error> {
    write_gpu_files(root, folder)?;
    let cluster = Cluster::start(folder, &gpu_configuration(folder))?;
    let agent = Agent::start(root, folder)?;
    let job = folder.join("job.sh");
    let text = JOB.replace("FOLDER", &folder.display().to_string());
    fs::write(&job, text).map_err(Error::io(&job))?;
    let id =
        cluster.query("sbatch", &["--parsable", "--output=job.log", &job.display().to_string()])?;
    let id = id.trim();
    let idle = "rowmill_gpu_held_idle{gpu=\"0\"";
    let of_job = [format!("job_id=\"{id}\""), "gpu=\"0\"".to_owned()];
    agent.wait_until("the job's GPU is held idle", |page| {
        has_sample(page, idle, &[], "1") && has_sample(page, "rowmill_run_info", &of_job, "1")
    })?;
    let named = ["scheduler=\"slurm\"", "name=\"held-idle\"", "user=\"root\"", "partition=\"all\""];
    let named: Vec<String> =
        named.iter().map(|label| (*label).to_owned()).chain(of_job.clone()).collect();
    agent.wait_until("the job's name, user and partition", |page| {
        has_sample(page, "rowmill_run_info", &named, "1")
    })?;
    agent.wait_until("the other GPU is nobody's", |page| {
        has_sample(page, "rowmill_gpu_held_idle{gpu=\"1\"", &[], "0")
    })?;
    cluster.query("scancel", &[id])?;
    agent.wait_until("nothing is held when the job has ended", |page| {
        has_sample(page, idle, &[], "0") && !page.contains(&of_job[0])
    })?;
    Ok(format!("job {id} held a GPU idle, under its name, until it ended"))
}

/// Whether a page has a sample that begins with `start` and has these labels and this value.
fn has_sample(page: &str, start: &str, labels: &[String], value: &str) -> bool {
    page.lines().any(|line| {
        let is_value = line
            .rsplit(' ')
            .next()
            .is_some_and(|text| text.parse::<f64>().ok() == value.parse().ok());
        line.starts_with(start) && is_value && labels.iter().all(|label| line.contains(label))
    })
}

/// Writes the files that Slurm and the agent read: device nodes, a prolog, an epilog and the
/// scenario of the NVML stub.
fn write_gpu_files(root: &Path, folder: &Path) -> Result<(), Error> {
    let at = |name: &str| folder.join(name);
    let mut scenario = String::new();
    for gpu in 0..GPUS {
        let node = at(&format!("nvidia{gpu}"));
        command::run(Command::new("mknod").arg(&node).args(["c", "195", &gpu.to_string()]))?;
        scenario += &format!("gpu={gpu} util=0\n");
    }
    for name in ["s", "jobs"] {
        fs::create_dir(at(name)).map_err(Error::io(folder))?;
    }
    let machine = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let devices = format!("{}/nvidia[0-{}]", folder.display(), GPUS - 1);
    let gres = format!("NodeName={} Name=gpu File={devices}\n", machine.trim());
    let files = [("gres.conf", gres), ("scenario", scenario)];
    let script = |name: &str| {
        let jobs = at("jobs");
        let script = root.join("deploy/slurm").join(name);
        let text = format!("ROWMILL_JOBS={} exec sh {}\n", jobs.display(), script.display());
        (name.to_owned(), format!("#!/bin/sh\n{text}"))
    };
    let files = files.map(|(name, text)| (name.to_owned(), text));
    for (name, text) in files.into_iter().chain(["prolog.sh", "epilog.sh"].map(script)) {
        let path = at(&name);
        fs::write(&path, text).map_err(Error::io(&path))?;
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&path, mode).map_err(Error::io(&path))?;
    }
    Ok(())
}

/// Returns the additional lines in the configuration of a Slurm with GPUs.
fn gpu_configuration(folder: &Path) -> slurm::ExtraConfiguration {
    let folder = folder.display();
    slurm::ExtraConfiguration {
        node: format!("Gres=gpu:{GPUS} "),
        lines: format!(
            "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nGresTypes=gpu\nProlog={folder}/prolog.sh\nEpilog={folder}/epilog.sh\nPrologFlags=Alloc\n"
        ),
    }
}

/// A running agent, which is killed when the value is dropped.
struct Agent {
    child: Child,
    address: String,
}

impl Agent {
    fn start(root: &Path, folder: &Path) -> Result<Self, Error> {
        let stub = folder.join("stub.so");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&stub);
        command::run(cc.arg(root.join("crates/agent/tests/it/stub_nvml.c")))?;
        // The kernel chooses a free port, and the listener is closed so that the agent can bind the
        // port.
        let free = std::net::TcpListener::bind("127.0.0.1:0").map_err(Error::io(folder))?;
        let address = free.local_addr().map_err(Error::io(folder))?.to_string();
        drop(free);
        let config = folder.join("agent.toml");
        let text = format!(
            "socket_dir = '{0}/s'\nstate_dir = '{0}/agent'\njob_mapping = '{0}/jobs'\n\
             metrics = '{address}'\ninterval_s = 1\nnvml = '{0}/stub.so'\n",
            folder.display()
        );
        fs::write(&config, text).map_err(Error::io(&config))?;
        let mut agent = Command::new(root.join("target/release/rowmill-agent"));
        agent.arg("--config").arg(config).env("ROWMILL_STUB_NVML", folder.join("scenario"));
        let line = command::command_line(&agent);
        let child = agent.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.map_err(|source| Error::Start { command: line, source })?;
        Ok(Self { child, address })
    }

    fn page(&self) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }

    fn wait_until(&self, what: &str, done: impl Fn(&str) -> bool) -> Result<(), Error> {
        let began = Instant::now();
        loop {
            let page = self.page().unwrap_or_default();
            if done(&page) {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                let is_of_job = |line: &&str| {
                    line.starts_with("rowmill_run_info") || line.starts_with("rowmill_gpu_held")
                };
                let job_lines: Vec<&str> = page.lines().filter(is_of_job).collect();
                return Err(Error::Check {
                    what: format!("expected that {what}, got {job_lines:?}"),
                });
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // `kill` fails if the agent has already ended, which is not an error here.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
