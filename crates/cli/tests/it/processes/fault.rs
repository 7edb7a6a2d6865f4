//! Tests of ranks that are killed, stopped or interrupted. All ranks must end in time, the lost
//! rank must be named, and any number of processes must be able to resume the last checkpoint.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{KEEP_OTHERS, Launcher, MPICH, OPEN_MPI, is_full};
use testkit::{ProgramOutput, Random};

use crate::fixture::Place;

/// Environment variable that marks the processes of a job.
const JOB: &str = "ROWMILL_TEST_JOB";
/// Maximum time that the whole job may take to end after its timeout.
const ENDING: Duration = Duration::from_secs(4);

/// Number of random moments of each kind, and the timeout of a job in seconds. The full stage tests
/// ten moments, otherwise one is tested.
struct Extent {
    moments: u32,
    timeout: u64,
}

fn extent() -> Extent {
    if is_full() { Extent { moments: 10, timeout: 5 } } else { Extent { moments: 1, timeout: 2 } }
}

/// The phase of the run in which a rank is lost.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Training,
    Saving,
}

/// A running job whose ranks are processes of a launcher.
struct Job {
    launcher: Child,
    mark: String,
    began: Instant,
}

impl Job {
    fn start(mut command: Command, place: &Place) -> Self {
        let mark = format!("{}-{:?}", place.path(".").display(), Instant::now());
        command.env(JOB, &mark).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The launcher gets a process group of its own, so that signals reach the launcher alone.
        let launcher = command.process_group(0).spawn().unwrap();
        Self { launcher, mark, began: Instant::now() }
    }

    /// Returns the ranks of the job with their process ids.
    fn ranks(&self) -> Vec<(u32, u32)> {
        let mut ranks = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(process) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
            let Ok(bytes) = fs::read(entry.path().join("environ")) else { continue };
            let exe = fs::read_link(entry.path().join("exe")).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let value = |name: &str| {
                let start = format!("{name}=");
                text.split('\0').find_map(|pair| pair.strip_prefix(start.as_str()))
            };
            let is_rank = exe == Path::new(env!("CARGO_BIN_EXE_rowmill"));
            if !is_rank || value(JOB) != Some(self.mark.as_str()) {
                continue;
            }
            let rank = value("OMPI_COMM_WORLD_RANK").or(value("PMI_RANK")).unwrap();
            ranks.push((rank.parse().unwrap(), process));
        }
        ranks.sort_unstable();
        ranks
    }

    fn wait_until(&mut self, what: &str, happened: impl Fn() -> bool) {
        while !happened() {
            assert!(self.began.elapsed() < Duration::from_secs(120), "never {what}");
            let ended = self.launcher.try_wait().unwrap();
            if ended.is_some() {
                let ran = self.output();
                panic!("ended before {what}\n{}\n{}", ran.stdout, ran.stderr);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn output(&mut self) -> ProgramOutput {
        use std::io::Read;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.launcher.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        self.launcher.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
        let status = self.launcher.wait().unwrap();
        ProgramOutput::from(std::process::Output { status, stdout, stderr })
    }

    /// Waits until all processes have ended. Returns their output and the time since `from`.
    fn ended(&mut self, from: Instant, within: Duration) -> (ProgramOutput, Duration) {
        loop {
            let is_over = self.launcher.try_wait().unwrap().is_some() && self.ranks().is_empty();
            if is_over {
                break;
            }
            if from.elapsed() > within + Duration::from_secs(30) {
                let left = self.ranks();
                for (_, process) in &left {
                    signal("-KILL", *process);
                }
                self.launcher.kill().unwrap();
                let ran = self.output();
                panic!("ranks {left:?} are left\n{}\n{}", ran.stdout, ran.stderr);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let took = from.elapsed();
        (self.output(), took)
    }
}

impl Drop for Job {
    /// Kills the processes if a test fails.
    fn drop(&mut self) {
        for (_, process) in self.ranks() {
            let _ = Command::new("kill").args(["-KILL", &process.to_string()]).status();
        }
        let _ = self.launcher.kill();
    }
}

fn signal(which: &str, process: u32) {
    let status = Command::new("kill").args([which, &process.to_string()]).status().unwrap();
    assert!(status.success(), "kill {which} {process}");
}

/// A number of steps that takes longer than any test.
const STEPS: u64 = 1_000_000;

fn train(run: &str, steps: u64, every: u64) -> String {
    format!(
        "train job.toml --train train.csv --format json --sharding row --run {run} \
         --set training.steps={steps} --set training.epochs=1000000 --set log_every=1000 \
         --set checkpoint_every={every}"
    )
}

fn begun(place: &Place, run: &str, ending: &str) -> bool {
    let folder = place.path(run).join("checkpoints");
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("step-") && name.ends_with(ending)
    })
}

fn has_checkpoint(place: &Place, run: &str) -> bool {
    (0..10).any(|digit| begun(place, run, &digit.to_string()))
}

/// Kills or stops a rank, checks that the job ends in time, and resumes the run.
fn loses_ranks(launcher: Launcher, options: &[&str], kill: &str) {
    if !launcher.is_there() {
        return;
    }
    let Extent { moments, timeout } = extent();
    let mut random = Random(u64::from(kill.len() as u32));
    for moment in [Moment::Training, Moment::Saving] {
        for attempt in 0..moments {
            let place = Place::new();
            let every = match moment {
                Moment::Training => 50,
                Moment::Saving => 2,
            };
            let ranks = if attempt % 2 == 0 { 2 } else { 4 };
            let words = format!("{} --timeout {timeout}", train("cut", STEPS, every));
            let mut job =
                Job::start(launcher.command_with(options, (&place, ranks), &words), &place);
            job.wait_until("saved", || has_checkpoint(&place, "cut"));
            std::thread::sleep(Duration::from_millis(random.below(500)));
            if matches!(moment, Moment::Saving) {
                job.wait_until("saving", || begun(&place, "cut", ".tmp"));
            }
            let victim = random.below(u64::from(ranks)) as usize;
            let (rank, process) = job.ranks()[victim];
            signal(kill, process);
            let lost = Instant::now();
            let within = Duration::from_secs(timeout) + ENDING;
            let (ran, took) = job.ended(lost, within);
            let what =
                format!("{} {kill} {rank} of {ranks} {moment:?} {attempt}", launcher.program);
            assert_ne!(ran.code, Some(0), "{what}\n{}", ran.stderr);
            assert!(took <= within, "{what}: {took:?}\n{}", ran.stderr);
            let said = format!("{}{}", ran.stdout, ran.stderr);
            // MPICH's launcher itself may fail when a rank is gone. The launcher then kills the
            // other ranks before they can name the lost rank.
            let is_launcher_broken = said.contains("process manager error");
            let is_named = said.contains(&format!("rank {rank}"));
            assert!(is_named || is_launcher_broken, "{what}\n{said}");
            // At most one rank may print the error, and only once.
            assert!(ran.stderr.matches("error: ").count() <= 1, "{what}\n{said}");
            println!("{what}: gone after {took:?}");
            resumes(&place, ranks);
        }
    }
}

/// Resumes the run from its last checkpoint with one, two and four processes. Each must end with
/// the result of an uninterrupted run on `ranks` ranks.
fn resumes(place: &Place, ranks: u32) {
    let last = newest(place, "cut") + 20;
    let threads = format!("{} --ranks {ranks}", train("whole", last, 1_000_000));
    let whole = loss(&place.done(&threads).last());
    for world in [1, 2, 4] {
        let run = format!("resumed-{world}");
        copy_run(place, "cut", &run);
        let words = format!("{} --resume", train(&run, last, 1_000_000));
        let resumed = match world {
            1 => place.done(&words.replace("--sharding row", "--ranks 1")).last(),
            world => OPEN_MPI.done(place, world, &words).last(),
        };
        assert_eq!(resumed["step"], last, "{world}");
        let loss = loss(&resumed);
        let differs = (loss - whole).abs();
        assert!(differs < 1e-5, "{world} after {ranks}: {loss} instead of {whole}");
        if world == ranks {
            assert_eq!(loss, whole, "{world} as before");
        }
    }
}

fn loss(line: &Value) -> f64 {
    line["loss"].as_f64().unwrap_or(f64::NAN)
}

fn newest(place: &Place, run: &str) -> u64 {
    let entries = fs::read_dir(place.path(run).join("checkpoints")).unwrap();
    let step = |name: String| name.strip_prefix("step-")?.parse().ok();
    let steps = entries.filter_map(|entry| step(entry.unwrap().file_name().into_string().unwrap()));
    steps.max().unwrap()
}

fn copy_run(place: &Place, from: &str, to: &str) {
    let status =
        Command::new("cp").args(["-r", from, to]).current_dir(place.path(".")).status().unwrap();
    assert!(status.success());
}

#[test]
fn issue_28_a_rank_that_is_killed_under_open_mpi_is_named() {
    loses_ranks(OPEN_MPI, &[], "-KILL");
}

#[test]
fn issue_28_a_rank_that_hangs_under_open_mpi_is_named() {
    loses_ranks(OPEN_MPI, &[], "-STOP");
}

#[test]
fn issue_28_a_rank_that_is_killed_under_mpich_is_named() {
    loses_ranks(MPICH, &[KEEP_OTHERS], "-KILL");
}

#[test]
fn issue_28_a_rank_that_hangs_under_mpich_is_named() {
    loses_ranks(MPICH, &[KEEP_OTHERS], "-STOP");
}

/// Interrupts a job of two ranks by a signal. The signal goes to one rank, or to the launcher,
/// which passes it on. Both ranks must save the same step, and any number of ranks must be able to
/// resume the run.
fn saves_at(place: &Place, launcher: Command, name: &str, to_rank: Option<usize>) -> ProgramOutput {
    let mut job = Job::start(launcher, place);
    let record = place.path("cut/run.json");
    job.wait_until("begun", || record.exists());
    std::thread::sleep(Duration::from_millis(100));
    let process = to_rank.map_or(job.launcher.id(), |rank| job.ranks()[rank].1);
    signal(name, process);
    let (ran, _) = job.ended(Instant::now(), Duration::from_secs(20));
    // The launcher may print further lines after the JSON line.
    let line = ran.stdout.lines().rev().find(|line| line.starts_with('{')).unwrap();
    let last: Value = serde_json::from_str(line).unwrap();
    assert_eq!(last["interrupted"], true, "{last}");
    assert_eq!(last["step"], newest(place, "cut"), "both ranks saved the same step");
    resumes(place, 2);
    ran
}

fn saves_under_open_mpi(name: &str, to_rank: Option<usize>) {
    if !OPEN_MPI.is_there() {
        return;
    }
    let place = Place::new();
    let launcher = OPEN_MPI.command(&place, 2, &train("cut", STEPS, 1_000_000));
    let ran = saves_at(&place, launcher, name, to_rank);
    assert_eq!(ran.code, Some(130), "{name}\n{}\n{}", ran.stdout, ran.stderr);
}

#[test]
fn issue_28_sigusr1_under_open_mpi_saves() {
    saves_under_open_mpi("-USR1", None);
}

#[test]
fn issue_28_a_signal_to_any_one_rank_saves() {
    for rank in [0, 1] {
        for name in ["-TERM", "-INT", "-USR1"] {
            saves_under_open_mpi(name, Some(rank));
        }
    }
}

/// A shell script that runs a rank and writes its exit code to a file. The launcher also sends the
/// signal to the shell, which ignores it because of the empty trap.
const NOTED: &str = "trap : INT; \"$0\" \"$@\"; code=$?; echo $code >> codes; exit $code";

/// After Ctrl-C, the launcher of MPICH 4.0 sometimes returns 0, although every rank ended with
/// another code. The test therefore checks the exit codes of the ranks.
#[test]
fn issue_28_ctrl_c_under_mpich_saves() {
    if !MPICH.is_there() {
        return;
    }
    let place = Place::new();
    let mut launcher = Command::new(MPICH.program);
    launcher.args(["-n", "2", "sh", "-c", NOTED, env!("CARGO_BIN_EXE_rowmill")]);
    launcher.args(train("cut", STEPS, 1_000_000).split_whitespace()).current_dir(place.path("."));
    let ran = saves_at(&place, launcher, "-INT", None);
    let codes = fs::read_to_string(place.path("codes")).unwrap();
    assert_eq!(codes, "130\n130\n", "{}\n{}", ran.stdout, ran.stderr);
    assert!(matches!(ran.code, Some(0 | 130)), "{:?}", ran.code);
}
