//! A hub asks a real Slurm cluster of one node about its jobs and its node.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arrow_array::{Array, Int32Array, StringArray, UInt32Array};
use fleet::proto::{Body, Entry, EntryBatch, GpuInterval, GpuRun, VERSION};
use hub::columns::RowTable;
use hub::store::{Partition, StoreFolder, column};
use testkit::{Folder, ProgramOutput, skip};

use crate::fixture::{TestHub, WAIT, add_token, program_beside};
use crate::notices::{WebHook, notices};

/// Number of clusters that this process has started.
static CLUSTERS: AtomicU32 = AtomicU32::new(0);
/// Additional lines of `slurm.conf` for a cluster with accounting, whose port follows.
const ACCOUNTING: &str = "AccountingStorageType=accounting_storage/slurmdbd\n\
                          AccountingStorageHost=127.0.0.1\nAccountingStorageTRES=gres/gpu\n";

/// A cluster with daemons of its own, which are ended on drop.
struct SlurmTest {
    folder: Folder,
    pids: Vec<std::path::PathBuf>,
}

/// Whether a cluster has a database of ended jobs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AccountingOfTest {
    Without,
    Database,
}

impl SlurmTest {
    /// Starts a cluster with one node of four GPUs and a number of CPUs, each of which one job
    /// takes. Returns `None` and skips the test without Slurm.
    fn start(cpus: u32, accounting: AccountingOfTest) -> Option<Self> {
        let what = "a real Slurm";
        if !testkit::has_root(what) {
            return None;
        }
        let has_database = accounting == AccountingOfTest::Database;
        let programs = ["munged", "slurmctld", "slurmd", "slurmdbd", "mariadbd"];
        for program in programs.iter().take(if has_database { 5 } else { 3 }) {
            if !Path::new("/usr/sbin").join(program).exists() {
                skip(
                    what,
                    "munge, slurmctld, slurmd and slurm-client of Debian, with accounting also slurmdbd and mariadb-server",
                );
                return None;
            }
        }
        let folder = Folder::new();
        let root = folder.root().display().to_string();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let host = host.trim();
        // Other tests may run Slurm on this machine too.
        let cluster = CLUSTERS.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + (std::process::id() % 2000 * 4 + cluster) * 3;
        fs::write(folder.path("munge.key"), [7; 128]).unwrap();
        for gpu in 0..4 {
            folder.write(&format!("gpu{gpu}"), "");
        }
        folder.write("gres.conf", format!("NodeName=n1 Name=gpu Type=h100 File={root}/gpu[0-3]\n"));
        fs::create_dir(folder.path("state")).unwrap();
        // Reports are sent at the end of jobs if a test writes the configuration of the script.
        let report = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/slurm/report.sh");
        let report = format!(
            "#!/bin/sh\nexport ROWMILL_JOB_REPORT={root}/report.conf\nexec sh {}\n",
            report.display()
        );
        make_program(&folder, "report.sh", &report);
        folder.write(
            "slurm.conf",
            format!(
                "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nAuthType=auth/munge\n\
                 AuthInfo=socket={root}/munge.socket\nSlurmctldPort={port}\nSlurmdPort={}\n\
                 StateSaveLocation={root}/state\nSlurmdSpoolDir={root}/spool\n\
                 SlurmctldPidFile={root}/slurmctld.pid\nSlurmdPidFile={root}/slurmd.pid\n\
                 SlurmctldLogFile={root}/slurmctld.log\nSlurmdLogFile={root}/slurmd.log\n\
                 Epilog={root}/report.sh\nSlurmdParameters=config_overrides\n\
                 ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nReturnToService=2\n\
                 SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nGresTypes=gpu\n\
                 NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=10 Gres=gpu:h100:4\n\
                 PartitionName=p Nodes=ALL Default=YES State=UP\n",
                port + 1
            ),
        );
        let pids = ["mariadb.pid", "munge.pid", "slurmdbd.pid", "slurmctld.pid", "slurmd.pid"];
        let pids = pids.map(|name| folder.path(name));
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
        if has_database {
            cluster.start_database(&configuration, port + 2);
        }
        cluster.run("/usr/sbin/slurmctld", &["-c", "-f", &configuration]);
        cluster.run("/usr/sbin/slurmd", &["-N", "n1", "-f", &configuration]);
        Some(cluster)
    }

    /// Starts MariaDB and `slurmdbd`, and makes the cluster known to it.
    fn start_database(&self, configuration: &str, port: u32) {
        let root = self.folder.root().display();
        let text = fs::read_to_string(configuration).unwrap();
        let lines = format!(
            "{ACCOUNTING}AccountingStoragePort={port}\nAccountingStoragePass={root}/munge.socket\n"
        );
        fs::write(configuration, text + &lines).unwrap();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let private = self.folder.write(
            "slurmdbd.conf",
            format!(
                "AuthType=auth/munge\nAuthInfo=socket={root}/munge.socket\nDbdHost={}\n\
                 DbdAddr=127.0.0.1\nDbdPort={port}\nSlurmUser=root\nLogFile={root}/slurmdbd.log\n\
                 StorageType=accounting_storage/mysql\nStorageHost=localhost\nStorageUser=root\n\
                 StoragePass=secret\nStorageLoc=slurm\nPidFile={root}/slurmdbd.pid\n",
                host.trim()
            ),
        );
        fs::set_permissions(private, fs::Permissions::from_mode(0o600)).unwrap();
        let options = self.folder.write(
            "my.cnf",
            format!(
                "[mysqld]\ndatadir={root}/db\nsocket={root}/db.socket\npid-file={root}/mariadb.pid\n\
                 skip-networking\nuser=root\ninnodb_buffer_pool_size=16M\n\
                 innodb_log_file_size=8M\ninnodb_flush_log_at_trx_commit=0\n"
            ),
        );
        let options = format!("--defaults-file={}", options.display());
        self.run(
            "mariadb-install-db",
            &[
                &options,
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--user=root",
            ],
        );
        let mut mariadbd = Command::new("/usr/sbin/mariadbd");
        mariadbd.arg(&options).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // The daemon is ended by its file of the process id, like the others.
        drop(mariadbd.spawn().unwrap());
        let socket = format!("--socket={root}/db.socket");
        let until = |what: &str, program: &str, arguments: &[&str]| {
            let began = Instant::now();
            loop {
                let mut command = Command::new(program);
                let command = command.args(arguments);
                let output = command.env("SLURM_CONF", configuration).output().unwrap();
                if output.status.success() {
                    return;
                }
                assert!(began.elapsed() < WAIT, "{what}: {output:?}");
                std::thread::sleep(Duration::from_millis(300));
            }
        };
        let set = "ALTER USER root@localhost IDENTIFIED BY 'secret'";
        until("a database", "mariadb", &[&socket, "-e", set]);
        let mut slurmdbd = Command::new("/usr/sbin/slurmdbd");
        slurmdbd.env("SLURM_CONF", configuration).current_dir("/").stdin(Stdio::null());
        slurmdbd.env("MYSQL_UNIX_PORT", self.folder.path("db.socket"));
        ProgramOutput::collect(&mut slurmdbd).expect_code(0, "slurmdbd");
        until("slurmdbd", "sacctmgr", &["-i", "add", "cluster", "test"]);
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let mut command = Command::new(program);
        command.args(arguments).env("SLURM_CONF", self.folder.path("slurm.conf"));
        command.current_dir("/").stdin(Stdio::null());
        ProgramOutput::collect(&mut command).expect_code(0, program);
    }

    /// Writes scripts that run Slurm's programs for this cluster.
    fn make_tools(&self, tools: &Folder) {
        let configuration = self.folder.path("slurm.conf");
        for name in ["squeue", "sinfo", "sacct", "scancel"] {
            let script =
                format!("#!/bin/sh\nSLURM_CONF={} exec {name} \"$@\"\n", configuration.display());
            make_program(tools, name, &script);
        }
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

fn make_program(folder: &Folder, name: &str, script: &str) {
    let path = folder.write(name, script);
    ProgramOutput::collect(Command::new("chmod").arg("755").arg(path)).expect_code(0, "chmod");
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
    let Some(slurm) = SlurmTest::start(1, AccountingOfTest::Without) else { return };
    // The hub's programs find the cluster by the environment of these scripts.
    let tools = Folder::new();
    slurm.make_tools(&tools);
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

#[test]
fn ends_that_only_the_accounting_of_a_real_slurm_knows_are_stored() {
    if !testkit::has_time("the accounting of a real Slurm") {
        return;
    }
    let Some(slurm) = SlurmTest::start(1, AccountingOfTest::Database) else { return };
    let tools = Folder::new();
    slurm.make_tools(&tools);
    // The controller has forgotten all ended jobs.
    make_program(&tools, "squeue", "#!/bin/sh\necho '{\"jobs\": []}'\n");
    slurm.submit("fails\n1", 1, "exit 3");
    slurm.submit("killed", 2, "kill -9 $$");
    let lines =
        format!("[slurm]\ncluster = 'test'\ninterval_s = 1\nfolder = '{}'", tools.root().display());
    let mut hub = TestHub::start(&lines);
    let began = Instant::now();
    let wait_for = |hub: &TestHub, name: &str, report: &str| {
        while read_runs(hub).get(name).and_then(|all| all.first()).is_none_or(|one| one != report) {
            assert!(began.elapsed() < WAIT, "{name}: {:?}", read_runs(hub));
            std::thread::sleep(Duration::from_millis(300));
        }
    };
    wait_for(&hub, "fails\n1", "failed Some(3) None");
    wait_for(&hub, "killed", "failed Some(0) Some(9)");
    // A job that ends while the hub is down has an end too, and the others are not stored again.
    hub.child.kill().unwrap();
    slurm.submit("later", 1, "true");
    hub.kill_and_restart();
    wait_for(&hub, "later", "completed Some(0) None");
    assert!(read_runs(&hub).values().all(|reports| reports.len() == 1), "{:?}", read_runs(&hub));
}

/// Sends rows of a second for the GPUs of jobs, with the seconds in which each of them was busy.
struct RowFeed {
    next: u64,
    start_unix_s: u64,
}

impl RowFeed {
    fn send(&mut self, hub: &TestHub, length_s: u32, gpus: &[(u32, &str, f64)]) {
        let row = |(index, job, busy_s): (u32, &str, f64)| GpuInterval {
            start_unix_s: self.start_unix_s,
            length_s,
            index,
            uuid: format!("GPU-{index}"),
            model: "NVIDIA H100 80GB HBM3".to_owned(),
            runs: vec![GpuRun {
                scheduler: "slurm".to_owned(),
                job: job.to_owned(),
                name: format!("job {job}"),
                user: "root".to_owned(),
                ..GpuRun::default()
            }],
            observed_s: f64::from(length_s),
            sums: BTreeMap::from([("busy_s".to_owned(), busy_s)]),
            ..GpuInterval::default()
        };
        let rows = gpus.iter().map(|gpu| Some(Body::Gpu(Box::new(row(*gpu)))));
        let entries = rows.zip(self.next..).map(|(body, sequence)| Entry { sequence, body });
        let batch = EntryBatch {
            version: VERSION,
            host: "n1".to_owned(),
            queue: vec![1; 16],
            gone_through: self.next - 1,
            entries: entries.collect(),
            sent_unix_ms: None,
        };
        let answer = hub.send(&batch).unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        self.next += gpus.len() as u64;
        self.start_unix_s += u64::from(length_s);
    }
}

#[test]
fn idle_jobs_of_a_real_slurm_are_cancelled_and_an_epilog_reports_jobs() {
    if !testkit::has_time("notices and an epilog with a real Slurm") {
        return;
    }
    let Some(rowmill) = program_beside("rowmill") else {
        testkit::skip("the epilog of Slurm", "the program rowmill beside the hub");
        return;
    };
    let Some(slurm) = SlurmTest::start(3, AccountingOfTest::Without) else { return };
    let (tools, hook, page) = (Folder::new(), WebHook::start(), WebHook::start());
    slurm.make_tools(&tools);
    let mut hub = TestHub::start(&format!(
        "[slurm]\ncluster = 'test'\ninterval_s = 1\nfolder = '{}'\n[notices]\ndry_run = false\n\
         interval_s = 1\nafter = '4s'\ncancel = true\ncancel_after = '5s'\nwebhook.url = '{}'",
        tools.root().display(),
        hook.url
    ));
    let viewer = add_token(&hub.folder, "viewer", "viewer");
    hub.kill_and_restart();
    let mail = slurm.folder.path("mail");
    make_program(&tools, "sendmail", &format!("#!/bin/sh\ncat > {}\n", mail.display()));
    slurm.folder.write(
        "report.conf",
        format!(
            "rowmill={}\nhub=http://{}\ntoken_file={}\ndelay=5\nwebhook={}\n\
             mail_domain=example.org\nsendmail={}/sendmail\n",
            rowmill.display(),
            hub.address,
            hub.folder.write("viewer.token", &viewer).display(),
            page.url,
            tools.root().display()
        ),
    );
    slurm.submit("idle", 2, "sleep 300");
    slurm.submit("works later", 1, "sleep 300");
    slurm.submit("ends", 1, "sleep 5; exit 3");
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut feed = RowFeed { next: 1, start_unix_s: now() - 3700 };
    feed.send(&hub, 3600, &[(3, "3", 1800.0)]);
    feed.start_unix_s = now() - 1;
    let began = Instant::now();
    let of_run = |run: &str| -> Option<serde_json::Value> {
        let all = notices(&hub, &viewer, |_| true)["notices"].clone();
        all.as_array()?.iter().find(|one| one["run"] == run).cloned()
    };
    let mut cancelled = None;
    // The second job works after its owner was told. Rows come for some time after the first job is
    // cancelled, so that the second one could be cancelled too.
    while cancelled.is_none_or(|at: Instant| at.elapsed() < Duration::from_secs(8)) {
        assert!(began.elapsed() < WAIT, "{:?} {:?}", of_run("slurm/1"), of_run("slurm/2"));
        if feed.start_unix_s >= now() {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        }
        let works = f64::from(u8::from(of_run("slurm/2").is_some()));
        feed.send(&hub, 1, &[(0, "1", 0.0), (1, "1", 0.0), (2, "2", works)]);
        let is_done = of_run("slurm/1").is_some_and(|one| one["cancel"]["is_done"] == true);
        if is_done && cancelled.is_none() {
            cancelled = Some(Instant::now());
        }
    }
    let told = of_run("slurm/1").unwrap();
    assert_eq!((&told["idle_gpus"], &told["sent"][0]), (&2.into(), &"webhook".into()), "{told}");
    assert!(told["text"].as_str().unwrap().contains("It will be cancelled"), "{told}");
    assert!(of_run("slurm/2").unwrap()["cancel"].is_null());
    let runs = read_runs(&hub);
    assert!(runs["idle"].iter().any(|report| report.starts_with("cancelled")), "{runs:?}");
    assert!(runs["works later"].iter().all(|report| report.starts_with("running")), "{runs:?}");
    let audit = fs::read_to_string(hub.folder.path("store/audit/audit.jsonl")).unwrap();
    assert_eq!(audit.lines().filter(|line| line.contains("\"CANCEL\"")).count(), 1, "{audit}");

    // The page of the job that failed, with the figures of its hour. The cancelled job has one too.
    let figures = ["slurm/3", "job 3", "failed, exit code 3", "1.0", "50.0"];
    let has_figures = |page: &String| figures.iter().all(|figure| page.contains(figure));
    while !page.bodies().iter().any(has_figures) {
        assert!(began.elapsed() < 2 * WAIT, "{:?}", page.bodies());
        std::thread::sleep(Duration::from_millis(300));
    }
    let mail = fs::read_to_string(mail).unwrap();
    assert!(mail.starts_with("To: root@example.org\nSubject: Job "), "{mail}");
}
