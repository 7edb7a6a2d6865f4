//! A hub asks a real Slurm cluster of one node about its jobs and its node.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use arrow_array::{Array, Int32Array, StringArray, UInt32Array};
use hub::columns::RowTable;
use hub::store::{Partition, StoreFolder, column};
use testkit::{Folder, ProgramOutput, skip};

use crate::fixture::{TestHub, WAIT};

/// A cluster with daemons of its own, which are ended on drop.
struct SlurmTest {
    folder: Folder,
    pids: Vec<std::path::PathBuf>,
}

impl SlurmTest {
    /// Starts a cluster with one node of four GPUs. Returns `None` and skips the test without
    /// Slurm.
    fn start() -> Option<Self> {
        let what = "a real Slurm";
        if !testkit::has_root(what) {
            return None;
        }
        for program in ["munged", "slurmctld", "slurmd"] {
            if !Path::new("/usr/sbin").join(program).exists() {
                skip(what, "munge, slurmctld, slurmd and slurm-client of Debian");
                return None;
            }
        }
        let folder = Folder::new();
        let root = folder.root().display().to_string();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let host = host.trim();
        // Other tests may run Slurm on this machine too.
        let port = 20_000 + std::process::id() % 10_000 * 2;
        fs::write(folder.path("munge.key"), [7; 128]).unwrap();
        for gpu in 0..4 {
            folder.write(&format!("gpu{gpu}"), "");
        }
        folder.write("gres.conf", format!("NodeName=n1 Name=gpu Type=h100 File={root}/gpu[0-3]\n"));
        fs::create_dir(folder.path("state")).unwrap();
        folder.write(
            "slurm.conf",
            format!(
                "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nAuthType=auth/munge\n\
                 AuthInfo=socket={root}/munge.socket\nSlurmctldPort={port}\nSlurmdPort={}\n\
                 StateSaveLocation={root}/state\nSlurmdSpoolDir={root}/spool\n\
                 SlurmctldPidFile={root}/slurmctld.pid\nSlurmdPidFile={root}/slurmd.pid\n\
                 SlurmctldLogFile={root}/slurmctld.log\nSlurmdLogFile={root}/slurmd.log\n\
                 ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nReturnToService=2\n\
                 SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nGresTypes=gpu\n\
                 NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 CPUs=1 RealMemory=10 Gres=gpu:h100:4\n\
                 PartitionName=p Nodes=ALL Default=YES State=UP\n",
                port + 1
            ),
        );
        let pids = ["munge.pid", "slurmctld.pid", "slurmd.pid"].map(|name| folder.path(name));
        let cluster = Self { folder, pids: pids.into() };
        cluster.run(
            "/usr/sbin/munged",
            &[
                "--force",
                &format!("--key-file={root}/munge.key"),
                &format!("--socket={root}/munge.socket"),
                &format!("--pid-file={root}/munge.pid"),
                &format!("--log-file={root}/munge.log"),
                &format!("--seed-file={root}/munge.seed"),
            ],
        );
        let configuration = format!("{root}/slurm.conf");
        cluster.run("/usr/sbin/slurmctld", &["-c", "-f", &configuration]);
        cluster.run("/usr/sbin/slurmd", &["-N", "n1", "-f", &configuration]);
        Some(cluster)
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let mut command = Command::new(program);
        command.args(arguments).env("SLURM_CONF", self.folder.path("slurm.conf"));
        command.current_dir("/").stdin(Stdio::null());
        ProgramOutput::collect(&mut command).expect_code(0, program);
    }

    fn submit(&self, name: &str, gpus: u32, script: &str) {
        let gpus = format!("--gres=gpu:{gpus}");
        self.run("sbatch", &["-J", name, &gpus, "-o", "/dev/null", "--wrap", script]);
    }
}

impl Drop for SlurmTest {
    fn drop(&mut self) {
        // Jobs outlive the daemons, so they are cancelled first.
        let ask = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments).env("SLURM_CONF", self.folder.path("slurm.conf"));
            command.output().map(|output| output.stdout).unwrap_or_default()
        };
        ask("scancel", &["--user=root"]);
        let began = Instant::now();
        while !ask("squeue", &["--noheader"]).is_empty() && began.elapsed() < WAIT / 4 {
            std::thread::sleep(Duration::from_millis(200));
        }
        for path in self.pids.iter().rev() {
            let Ok(pid) = fs::read_to_string(path) else { continue };
            let _ = Command::new("kill").args(["-KILL", pid.trim()]).status();
        }
    }
}

/// Lists the state, exit code and signal that each report of a run has, by the name of the run.
fn read_runs(hub: &TestHub) -> BTreeMap<String, Vec<String>> {
    let store = StoreFolder::open_for_reading(&hub.folder.path("store")).unwrap();
    let mut runs = BTreeMap::<String, Vec<String>>::new();
    for hour in store.hours(RowTable::Run.folder()).unwrap() {
        let partition = Partition { hour: Some(hour), table: RowTable::Run.folder() };
        let read =
            store.read(partition, &["name", "state", "exit_code", "exit_signal"], |batch, path| {
                let names: &StringArray = column(batch, "name", path)?;
                let states: &StringArray = column(batch, "state", path)?;
                let codes: &Int32Array = column(batch, "exit_code", path)?;
                let signals: &UInt32Array = column(batch, "exit_signal", path)?;
                for row in 0..batch.num_rows() {
                    let code = codes.is_valid(row).then(|| codes.value(row));
                    let signal = signals.is_valid(row).then(|| signals.value(row));
                    let text = format!("{} {code:?} {signal:?}", states.value(row));
                    runs.entry(names.value(row).to_owned()).or_default().push(text);
                }
                Ok(())
            });
        read.unwrap();
    }
    runs
}

#[test]
fn jobs_and_nodes_of_a_real_slurm_are_stored() {
    let Some(slurm) = SlurmTest::start() else { return };
    // The hub's programs find the cluster by the environment of these scripts.
    let tools = Folder::new();
    for name in ["squeue", "sinfo"] {
        let configuration = slurm.folder.path("slurm.conf");
        let script =
            format!("#!/bin/sh\nSLURM_CONF={} exec {name} \"$@\"\n", configuration.display());
        let path = tools.write(name, script);
        ProgramOutput::collect(Command::new("chmod").arg("755").arg(path)).expect_code(0, "chmod");
    }
    let lines =
        format!("[slurm]\ncluster = 'test'\ninterval_s = 1\nfolder = '{}'", tools.root().display());
    let hub = TestHub::start(&lines);
    slurm.submit("fails", 1, "sleep 2; exit 3");
    slurm.submit("killed", 2, "kill -9 $$");
    slurm.submit("waits <script>", 4, "sleep 100");
    slurm.submit("last", 3, "true");
    let began = Instant::now();
    let wait_for = |what: &str, is_done: &dyn Fn() -> bool| {
        while !is_done() {
            assert!(began.elapsed() < WAIT, "{what}: {:?} {}", read_runs(&hub), hub.status());
            std::thread::sleep(Duration::from_millis(300));
        }
    };
    let has = |name: &str, report: &str| {
        let runs = read_runs(&hub);
        runs.get(name).is_some_and(|reports| reports.iter().any(|known| known == report))
    };
    wait_for("a running job", &|| has("fails", "running None None"));
    wait_for("an exit code", &|| has("fails", "failed Some(3) None"));
    wait_for("a signal", &|| has("killed", "failed Some(0) Some(9)"));
    wait_for("a job that holds GPUs", &|| has("waits <script>", "running None None"));
    wait_for("the state of the node", &|| hub.status()["hosts"]["n1"]["node"]["gpus_used"] == 4);
    assert!(!read_runs(&hub).contains_key("last"), "a job that waits is not a run");
    slurm.run("scontrol", &["update", "nodename=n1", "state=drain", "reason=fan"]);
    wait_for("a drained node", &|| {
        let node = hub.status()["hosts"]["n1"]["node"].clone();
        node["reason"] == "fan" && node["state"].to_string().contains("drain")
    });
}
