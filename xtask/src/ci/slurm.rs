//! Trains under a real Slurm on one machine. The daemons run without systemd, as child processes of
//! this program, in a folder of their own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::ci::cargo::cargo;
use crate::ci::tool::Program;
use crate::ci::{full, tool};
use crate::command;
use crate::error::Error;
use crate::tree;

/// The programs of Slurm and munge, with the Debian packages that contain them.
pub const DAEMONS: [Program; 4] = [
    ("munged", "munge"),
    ("slurmctld", "slurmctld"),
    ("slurmd", "slurmd"),
    ("srun", "slurm-client"),
];
/// The MPI launchers that Slurm starts; `pmix` also needs [`PMIX`].
const LAUNCHED: [Program; 2] = [tool::OPEN_MPI, tool::MPICH];
/// The path at which the `pmix` plugin opens its library, and the package that contains this file.
const PMIX: (&str, &str) = ("/usr/lib/x86_64-linux-gnu/libpmix.so", "libpmix-dev");
/// Maximum time until the daemons report the machine as idle.
const STARTING: Duration = Duration::from_secs(30);
const STEPS: u32 = 60;
/// Path of the training data, relative to the folder of fixtures.
const DATA: &str = "adult/adult-train.csv.gz";

/// The batch script that `docs/running-on-a-cluster.md` shows.
const SCRIPT: &str = "#!/bin/sh
#SBATCH --ntasks=2
#SBATCH --signal=USR1@120
srun --mpi=pmix ROWMILL train adult-income --train DATA --run batch --sharding row --set training.steps=60 --resume
";

/// A batch script like [`SCRIPT`] for a run that does not end by itself, which is used to test
/// signals.
const ENDLESS: &str = "#!/bin/sh
#SBATCH --ntasks=2
srun --mpi=MPI ROWMILL train adult-income --train DATA --run MPI-signalled --sharding row --set training.steps=1000000 --set training.epochs=1000000 --set training.log_every=10
";

/// Trains `adult-income` under `srun --mpi=pmix` and `--mpi=pmi2`, and from a batch script. The
/// checkpoints must equal those of ranks as threads.
pub fn train_under_slurm() -> Result<String, Error> {
    let programs = DAEMONS.into_iter().chain(LAUNCHED);
    if let Some(missing) = { programs }.find_map(tool::install_program) {
        return Ok(missing);
    }
    if !Path::new(PMIX.0).exists() {
        tool::install_package(PMIX.1)?;
    }
    let data = full::fixtures_folder(&tree::root()).join(DATA);
    let Ok(data) = data.canonicalize() else {
        return Ok(format!("SKIPPED ranks under Slurm: no {}", data.display()));
    };
    command::run(&mut cargo(&["build", "--release"]))?;
    let folder = create_folder(&tree::root().join("target/slurm"))?;
    let cluster = Cluster::start(&folder, &ExtraConfiguration::default())?;
    let mut compared = 0;
    for ranks in [2, 4] {
        let threads = format!("threads-{ranks}");
        let train = Train { data: &data, run: &threads };
        command::run(&mut train.command(&cluster, &[], &["--ranks", &ranks.to_string()]))?;
        for mpi in ["pmix", "pmi2"] {
            let run = format!("{mpi}-{ranks}");
            let train = Train { data: &data, run: &run };
            let (tasks, mpi) = (format!("--ntasks={ranks}"), format!("--mpi={mpi}"));
            let launcher = ["srun", "--overcommit", &tasks, &mpi];
            command::run(&mut train.command(&cluster, &launcher, &[]))?;
            compare_checkpoints(&folder.join(&threads), &folder.join(&run))?;
            compared += 1;
        }
    }
    cluster.run_batch_script(&data)?;
    compare_checkpoints(&folder.join("threads-2"), &folder.join("batch"))?;
    for mpi in ["pmix", "pmi2"] {
        cluster.check_signal(&data, mpi)?;
    }
    Ok(format!(
        "{} checkpoints as of threads: pmix, pmi2 and a batch script; SIGUSR1 saves and exits 130",
        compared + 1
    ))
}

/// A training run on the census data.
struct Train<'a> {
    data: &'a Path,
    run: &'a str,
}

impl Train<'_> {
    fn command(&self, cluster: &Cluster, launcher: &[&str], more: &[&str]) -> Command {
        let rowmill = rowmill_path();
        let mut words =
            launcher.iter().copied().map(std::ffi::OsStr::new).chain([rowmill.as_os_str()]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).args(["train", "adult-income", "--run", self.run, "--train"]);
        command.arg(self.data).args(["--sharding", "row", "--set"]);
        command.arg(format!("training.steps={STEPS}")).args(more);
        command.current_dir(&cluster.folder).env("SLURM_CONF", cluster.folder.join("slurm.conf"));
        command
    }
}

fn rowmill_path() -> PathBuf {
    tree::root().join("target/release/rowmill")
}

/// Creates an empty folder for a cluster.
pub fn create_folder(folder: &Path) -> Result<PathBuf, Error> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(Error::io(folder))?;
    }
    // `create_dir` fails if another user has put a link there, which is possible below `/tmp`.
    fs::create_dir(folder).map_err(Error::io(folder))?;
    for name in ["state", "spool"] {
        fs::create_dir(folder.join(name)).map_err(Error::io(folder))?;
    }
    Ok(folder.to_owned())
}

/// Additions to the minimal configuration of Slurm.
#[derive(Debug, Default)]
pub struct ExtraConfiguration {
    /// Additional words for the line of the node.
    pub node: String,
    /// Additional lines at the end of the configuration.
    pub lines: String,
}

/// The running daemons, which are killed when the value is dropped.
pub struct Cluster {
    folder: PathBuf,
    daemons: Vec<Child>,
}

impl Cluster {
    /// Starts the daemons and waits until they report the machine as idle.
    pub fn start(folder: &Path, more: &ExtraConfiguration) -> Result<Self, Error> {
        let mut cluster = Self { folder: folder.to_owned(), daemons: Vec::new() };
        let at = |name: &str| folder.join(name).display().to_string();
        // munged requires a key of at least 32 bytes. One random UUID, repeated thirty times, has
        // 1,110 bytes.
        let random = fs::read("/proc/sys/kernel/random/uuid").map_err(Error::io(folder))?;
        let key = folder.join("munge.key");
        fs::write(&key, random.repeat(30)).map_err(Error::io(&key))?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).map_err(Error::io(&key))?;
        let conf = folder.join("slurm.conf");
        fs::write(&conf, format_configuration(folder, more)).map_err(Error::io(&conf))?;
        let options = [
            ("--key-file", "munge.key"),
            ("--socket", "munge.socket"),
            ("--pid-file", "munged.pid"),
            ("--log-file", "munged.log"),
            ("--seed-file", "munged.seed"),
        ];
        let options = options.map(|(option, name)| format!("{option}={}", at(name)));
        cluster
            .start_daemon(Command::new("munged").args(["--force", "--foreground"]).args(options))?;
        cluster.start_daemon(Command::new("slurmctld").arg("-D"))?;
        cluster.start_daemon(Command::new("slurmd").arg("-D"))?;
        let began = Instant::now();
        while !cluster.is_idle() {
            if began.elapsed() > STARTING {
                let problem =
                    format!("no idle machine after {STARTING:?}, see {}", at("slurmd.log"));
                return Err(Error::Program { command: "sinfo".to_owned(), problem });
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(cluster)
    }

    fn start_daemon(&mut self, command: &mut Command) -> Result<(), Error> {
        command.env("SLURM_CONF", self.folder.join("slurm.conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let line = command::command_line(command);
        let started = command.spawn();
        self.daemons.push(started.map_err(|source| Error::Start { command: line, source })?);
        Ok(())
    }

    fn is_idle(&self) -> bool {
        let mut sinfo = Command::new("sinfo");
        sinfo.args(["--noheader", "--format=%t"]).env("SLURM_CONF", self.folder.join("slurm.conf"));
        let states = sinfo.stderr(Stdio::null()).output();
        states.is_ok_and(|states| states.stdout.starts_with(b"idle"))
    }

    /// Submits the batch script of the documentation and waits until its job has ended.
    fn run_batch_script(&self, data: &Path) -> Result<(), Error> {
        let script = SCRIPT.replace("ROWMILL", &rowmill_path().display().to_string());
        let script = script.replace("DATA", &data.display().to_string());
        let path = self.folder.join("train.sh");
        fs::write(&path, script).map_err(Error::io(&path))?;
        let mut sbatch = Command::new("sbatch");
        sbatch.args(["--wait", "--output=batch.log"]).arg(&path).current_dir(&self.folder);
        command::run(sbatch.env("SLURM_CONF", self.folder.join("slurm.conf")))
    }

    /// Sends SIGUSR1 to a running job, as Slurm does with `--signal=USR1@120`. The job must save a
    /// checkpoint and exit with 130.
    fn check_signal(&self, data: &Path, mpi: &str) -> Result<(), Error> {
        let script = ENDLESS.replace("ROWMILL", &rowmill_path().display().to_string());
        let script = script.replace("DATA", &data.display().to_string()).replace("MPI", mpi);
        let path = self.folder.join(format!("{mpi}-signalled.sh"));
        fs::write(&path, script).map_err(Error::io(&path))?;
        let log = format!("--output={mpi}-signalled.log");
        let path = path.display().to_string();
        let job = self.query("sbatch", &["--parsable", &log, &path])?;
        let run = self.folder.join(format!("{mpi}-signalled"));
        self.wait_until(&format!("{mpi}: no figures of a running job"), || {
            let figures = fs::metadata(run.join("metrics.jsonl"));
            Ok(figures.is_ok_and(|figures| figures.len() > 0))
        })?;
        self.query("scancel", &["--signal=USR1", job.trim()])?;
        let about = || self.query("scontrol", &["--oneliner", "show", "job", job.trim()]);
        self.wait_until(&format!("{mpi}: the job goes on after SIGUSR1"), || {
            Ok(!["RUNNING", "COMPLETING", "PENDING"].iter().any(|state| {
                about().is_ok_and(|about| about.contains(&format!("JobState={state}")))
            }))
        })?;
        let about = about()?;
        if !about.contains("ExitCode=130:0") {
            let code = about.split_whitespace().find(|word| word.starts_with("ExitCode="));
            let code = code.unwrap_or_default();
            let what = format!("{mpi}: expected ExitCode=130:0 after SIGUSR1, got {code}");
            return Err(Error::Check { what });
        }
        let saved = run.join("checkpoints");
        let mut steps = fs::read_dir(&saved).map_err(Error::io(&saved))?.flatten();
        if !steps.any(|entry| entry.path().join("manifest.json").exists()) {
            return Err(Error::Check { what: format!("{mpi}: no checkpoint after SIGUSR1") });
        }
        Ok(())
    }

    /// Runs a program of Slurm and returns its output.
    pub fn query(&self, program: &str, words: &[&str]) -> Result<String, Error> {
        let mut command = Command::new(program);
        command.args(words).current_dir(&self.folder);
        command.env("SLURM_CONF", self.folder.join("slurm.conf"));
        let line = command::command_line(&command);
        let output = command.output();
        let output = output.map_err(|source| Error::Start { command: line.clone(), source })?;
        if !output.status.success() {
            let problem = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Error::Program { command: line, problem });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Waits until `done` returns true, for at most two minutes.
    fn wait_until(&self, what: &str, done: impl Fn() -> Result<bool, Error>) -> Result<(), Error> {
        let began = Instant::now();
        while !done()? {
            if began.elapsed() > 4 * STARTING {
                let what = format!("{what}; see {}", self.folder.display());
                return Err(Error::Check { what });
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The daemons are ended in reverse order, because slurmd and slurmctld authenticate through
        // munged until they end.
        for daemon in self.daemons.iter_mut().rev() {
            // `kill` fails if the daemon has already ended, which is not an error here.
            drop(daemon.kill());
            drop(daemon.wait());
        }
    }
}

/// Formats the configuration of Slurm for one machine, without features that need control groups or
/// systemd.
fn format_configuration(folder: &Path, more: &ExtraConfiguration) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (host, folder) = (host.trim(), folder.display());
    let ExtraConfiguration { node, lines } = more;
    // The batch script asks for two tasks, so Slurm must see two cores on any machine.
    let cores = std::thread::available_parallelism().map_or(1, usize::from).max(2);
    format!(
        "ClusterName=rowmill
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort=16817
SlurmdPort=16818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
{lines}NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} {node}State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"
    )
}

/// Fails unless two runs saved the same bytes in their last checkpoint.
fn compare_checkpoints(one: &Path, other: &Path) -> Result<(), Error> {
    let folder = |run: &Path| run.join(format!("checkpoints/step-{STEPS:012}"));
    let (one, other) = (folder(one), folder(other));
    let mut files = 0;
    for entry in fs::read_dir(&one).map_err(Error::io(&one))? {
        let entry = entry.map_err(Error::io(&one))?;
        let copy = other.join(entry.file_name());
        let read = |path: &Path| fs::read(path).map_err(Error::io(path));
        if read(&entry.path())? != read(&copy)? {
            let what = format!("{} differs from {}", copy.display(), entry.path().display());
            return Err(Error::Check { what });
        }
        files += 1;
    }
    if files == 0 {
        return Err(Error::Check { what: format!("{} is empty", one.display()) });
    }
    Ok(())
}
