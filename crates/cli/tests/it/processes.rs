//! Tests of ranks that are processes. The tests run the real binary under the launchers that are
//! installed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use testkit::ProgramOutput;

use crate::fixture::Place;

mod fault;

const TRAIN: &str = "train job.toml --train train.csv --format json --set training.steps=50";

/// The option of MPICH's launcher that keeps the other ranks running after one rank has ended.
pub const KEEP_OTHERS: &str = "-disable-auto-cleanup";

/// A launcher, with the options that it needs to run as root and to start more ranks than there are
/// cores.
#[derive(Clone, Copy)]
pub struct Launcher {
    program: &'static str,
    options: &'static [&'static str],
}

pub const OPEN_MPI: Launcher =
    Launcher { program: "mpirun.openmpi", options: &["--allow-run-as-root", "--oversubscribe"] };
pub const MPICH: Launcher = Launcher { program: "mpirun.mpich", options: &[] };

impl Launcher {
    /// Whether the launcher is installed. Without the launcher, prints that the test is skipped.
    pub fn is_there(self) -> bool {
        testkit::has_program(self.program, "ranks as processes")
    }

    /// Returns the command that starts `ranks` processes of the binary in the folder of `place`.
    pub fn command(self, place: &Place, ranks: u32, words: &str) -> Command {
        self.command_with(&[], (place, ranks), words)
    }

    /// Returns the command of [`Self::command`] with additional options of the launcher.
    pub fn command_with(
        self,
        options: &[&str],
        (place, ranks): (&Place, u32),
        words: &str,
    ) -> Command {
        let mut command = Command::new(self.program);
        command.args(self.options).args(options).args(["-n", &ranks.to_string()]);
        if options.contains(&KEEP_OTHERS) {
            // MPICH's launcher kills all ranks if one of its direct children is killed. A shell in
            // between prevents this.
            command.args(["sh", "-c", "\"$0\" \"$@\"; exit $?"]);
        }
        command.arg(env!("CARGO_BIN_EXE_rowmill")).args(words.split_whitespace());
        command.current_dir(place.path("."));
        command
    }

    /// Starts the processes, waits for them, and returns their output.
    pub fn run(self, place: &Place, ranks: u32, words: &str) -> ProgramOutput {
        ProgramOutput::collect(&mut self.command(place, ranks, words))
    }

    /// Starts the processes, which must end with exit code 0.
    pub fn done(self, place: &Place, ranks: u32, words: &str) -> ProgramOutput {
        let ran = self.run(place, ranks, words);
        assert_eq!(ran.code, Some(0), "{} {words}\n{}\n{}", self.program, ran.stdout, ran.stderr);
        ran
    }
}

/// Returns the content of every file of a checkpoint.
pub fn files(checkpoint: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(checkpoint).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    entries.map(|path| (name(&path), fs::read(&path).unwrap())).collect()
}

/// Tilings of the tables. All are values of `--sharding`, except `quarters`, which is a plan file.
const TILINGS: [&str; 7] =
    ["table", "row", "table-row", "column", "mixed", "quarters", "replicated"];
/// Optimizers of the embedding tables.
const OPTIMIZERS: [&str; 5] = ["sgd", "adagrad", "rowwise_adagrad", "adam", "lamb"];

/// Number of ranks, tiling and optimizer of a run.
type Case = (u32, &'static str, &'static str);

/// Returns all cases in the full stage, and in other stages each tiling and each optimizer once.
fn cases() -> Vec<Case> {
    if !is_full() {
        let pairs = TILINGS.into_iter().zip(OPTIMIZERS.into_iter().cycle()).enumerate();
        return pairs.map(|(i, (tiling, rule))| ([2, 2, 4][i % 3], tiling, rule)).collect();
    }
    let of_ranks = |ranks| TILINGS.map(|tiling| OPTIMIZERS.map(|rule| (ranks, tiling, rule)));
    [1, 2, 4].map(of_ranks).into_iter().flatten().flatten().collect()
}

pub fn is_full() -> bool {
    std::env::var("ROWMILL_PROCESSES").is_ok_and(|value| value == "full")
}

/// Returns the options that select a tiling.
fn split(place: &Place, ranks: u32, tiling: &str) -> String {
    if tiling != "quarters" {
        let hosts = match tiling {
            "table-row" => format!("--ranks-per-host {}", ranks / 2),
            _ => String::new(),
        };
        let sharding = format!("--sharding {tiling} {hosts}");
        return if ranks == 1 { String::new() } else { sharding };
    }
    // Each table is split into two halves of rows and two halves of columns. The tiles are assigned
    // to the ranks in rotation.
    let tile = |table: usize, rows: [u64; 2], columns: [u64; 2], rank: u32| {
        serde_json::json!({
            "table": table, "rank": rank % ranks,
            "rows": { "start": rows[0], "end": rows[1] },
            "columns": { "start": columns[0], "end": columns[1] },
        })
    };
    let of_table = |(table, rows): (usize, u64)| {
        let half = rows / 2;
        [
            tile(table, [0, half], [0, 2], 0),
            tile(table, [0, half], [2, 4], 1),
            tile(table, [half, rows], [0, 2], 2),
            tile(table, [half, rows], [2, 4], 3),
        ]
    };
    let tiles: Vec<_> = [50, 20].into_iter().enumerate().flat_map(of_table).collect();
    let plan = serde_json::json!({ "world_size": ranks, "tiles": tiles }).to_string();
    fs::write(place.path(&format!("quarters-{ranks}.json")), plan).unwrap();
    format!("--plan quarters-{ranks}.json")
}

/// Trains with threads and with processes of `launcher`. Checkpoints and metrics must be the same.
fn trains_as_threads_do(launcher: Launcher) {
    if !launcher.is_there() {
        return;
    }
    let place = Place::new();
    for (i, (ranks, tiling, rule)) in cases().into_iter().enumerate() {
        let what = format!("{ranks} {tiling} {rule}");
        let words = |run: &str| {
            let split = split(&place, ranks, tiling);
            format!("{TRAIN} {split} --set optimizer.sparse.kind={rule} --run {run}")
        };
        let alone = if tiling == "quarters" { String::new() } else { format!("--ranks {ranks}") };
        let one = place.done(&format!("{} {alone}", words(&format!("t-{i}")))).last();
        // The size of the buckets must not change the sums.
        let words = format!("{} --transport mpi --bucket 300", words(&format!("p-{i}")));
        let ran = launcher.done(&place, ranks, &words);
        // Only rank 0 prints the result.
        assert_eq!(ran.stdout.matches("\"finished\"").count(), 1, "{}", ran.stdout);
        let several = ran.last();
        assert_eq!(several["loss"], one["loss"], "{what}");
        assert_eq!(several["evaluation"], one["evaluation"], "{what}");
        let checkpoint =
            |ran: &serde_json::Value| files(&place.path(ran["checkpoint"].as_str().unwrap()));
        let written = [checkpoint(&one), checkpoint(&several)];
        assert!(written[0].len() >= ranks as usize, "{:?}", written[0].keys());
        assert!(written[0] == written[1], "{what}");
    }
}

#[test]
fn processes_of_one_host_say_that_a_plan_over_hosts_splits_rows() {
    if !OPEN_MPI.is_there() {
        return;
    }
    let place = Place::new();
    let words = format!("{TRAIN} --set training.steps=3 --sharding table-row --run run");
    let ran = OPEN_MPI.done(&place, 2, &words);
    let notice = "--sharding table-row: there is one host, on which it is the same plan as \
                  --sharding row";
    assert_eq!(ran.stderr.matches(notice).count(), 1, "{}", ran.stderr);
}

#[test]
fn replica_groups_of_processes_train_as_those_of_threads() {
    if !OPEN_MPI.is_there() {
        return;
    }
    let place = Place::new();
    for sync_every in [1, 5] {
        let words = |run: &str| {
            let groups = format!("--groups 2 --sync-every {sync_every}");
            format!("{TRAIN} --sharding row {groups} --run {run}-{sync_every}")
        };
        let threads = place.done(&format!("{} --ranks 4", words("threads"))).last();
        let ran = OPEN_MPI.done(&place, 4, &format!("{} --transport mpi", words("processes")));
        assert_eq!(ran.last()["evaluation"], threads["evaluation"], "{sync_every}");
        let more = "--resume --set steps=60 --set epochs=4 --transport mpi";
        OPEN_MPI.done(&place, 4, &format!("train {more} --run processes-{sync_every}"));
    }
}

/// Checks that different numbers of processes agree as closely as different numbers of threads do.
#[test]
fn issue_28_numbers_of_processes_agree() {
    if !OPEN_MPI.is_there() {
        return;
    }
    let place = Place::new();
    let rules = if is_full() { &OPTIMIZERS[..] } else { &OPTIMIZERS[2..3] };
    for rule in rules {
        for tiling in ["table", "row"] {
            let loss = |ranks: u32| {
                let run = format!("{rule}-{tiling}-{ranks}");
                let words = format!("{TRAIN} --set optimizer.sparse.kind={rule} --run {run}");
                let last = match ranks {
                    1 => place.done(&words).last(),
                    _ => {
                        let words = format!("{words} --sharding {tiling}");
                        OPEN_MPI.done(&place, ranks, &words).last()
                    }
                };
                last["loss"].as_f64().unwrap()
            };
            let one = loss(1);
            for ranks in [2, 4] {
                let differs = (loss(ranks) - one).abs();
                assert!(differs < 1e-5, "{rule} {tiling} {ranks}: {differs}");
            }
        }
    }
}

/// Compares sums by the MPI library with rowmill's own sums. Two values can be added in one order
/// only, so the results of two ranks have the same bytes. With four ranks they differ by rounding.
#[test]
fn issue_28_the_library_may_sum_gradients() {
    let place = Place::new();
    for launcher in [OPEN_MPI, MPICH].into_iter().filter(|launcher| launcher.is_there()) {
        for ranks in [2, 4] {
            let run = |collectives: &str| {
                let run = format!("{collectives}-{ranks}-{}", launcher.program);
                let words = format!("{TRAIN} --run {run} --collectives {collectives}");
                let ran = launcher.done(&place, ranks, &words);
                let last = ran.last();
                let checkpoint = files(&place.path(last["checkpoint"].as_str().unwrap()));
                (ran.stderr, last["loss"].as_f64().unwrap(), checkpoint)
            };
            let (own, native) = (run("own"), run("native"));
            assert!(own.0.contains("gradients: summed in rank order"), "{}", own.0);
            assert!(native.0.contains("gradients: MPI_Iallreduce of"), "{}", native.0);
            assert!((own.1 - native.1).abs() < 1e-5, "{ranks}: {} {}", own.1, native.1);
            assert!(ranks > 2 || own.2 == native.2, "the same bytes of two ranks");
        }
    }
}

#[test]
fn issue_28_processes_evaluate_and_score_as_one_does() {
    if !OPEN_MPI.is_there() {
        return;
    }
    let place = Place::new();
    place.done(&format!("{TRAIN} --run run"));
    let one = place.done("eval run --format json").last();
    place.done("score run train.csv --output one.txt");
    let scored = fs::read_to_string(place.path("one.txt")).unwrap();
    assert!(scored.lines().count() > 1000);
    for ranks in [2, 4] {
        let several = OPEN_MPI.done(&place, ranks, "eval run --format json");
        assert_eq!(several.stdout.matches("\"auc\"").count(), 1, "{}", several.stdout);
        let several = several.last();
        for figure in ["auc", "samples", "positives"] {
            assert_eq!(several["evaluation"][figure], one["evaluation"][figure], "{figure}");
        }
        let loss = |ran: &serde_json::Value| ran["evaluation"]["loss"].as_f64().unwrap();
        // The losses of the samples are summed rank by rank, so the last digits may differ.
        assert!((loss(&several) / loss(&one) - 1.0).abs() < 1e-12, "{several} {one}");
        OPEN_MPI.done(&place, ranks, "score run train.csv --output several.txt");
        assert!(fs::read_to_string(place.path("several.txt")).unwrap() == scored, "{ranks}");
    }
    // A refusal must be printed once, although several processes run.
    let ran = OPEN_MPI.run(&place, 2, "score run nothing.csv");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("error: ").count(), 1, "{}", ran.stderr);
    let ran = OPEN_MPI.run(&place, 2, "eval run --data nothing.csv");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("error: ").count(), 1, "{}", ran.stderr);
}

#[test]
fn issue_28_open_mpi_trains_as_threads_do() {
    trains_as_threads_do(OPEN_MPI);
}

#[test]
fn issue_28_mpich_trains_as_threads_do() {
    trains_as_threads_do(MPICH);
}

#[test]
fn issue_28_a_run_of_processes_is_resumed_by_any_number() {
    if !OPEN_MPI.is_there() {
        return;
    }
    let place = Place::new();
    let whole = place.done(&format!("{TRAIN} --run whole")).last();
    let cut = format!("{TRAIN} --sharding row --run cut --set training.steps=20");
    let cut = OPEN_MPI.done(&place, 2, &cut).last();
    let step = place.path(cut["checkpoint"].as_str().unwrap());
    for ranks in [1, 2, 4] {
        let run = place.path(&format!("cut-{ranks}"));
        copy(&step, &run.join("checkpoints").join(step.file_name().unwrap()));
        fs::copy(place.path("cut/run.json"), run.join("run.json")).unwrap();
        let words = format!("{TRAIN} --sharding row --run cut-{ranks} --resume");
        let resumed = match ranks {
            1 => place.done(&words).last(),
            ranks => OPEN_MPI.done(&place, ranks, &words).last(),
        };
        assert_eq!(resumed["step"], 50, "{ranks}");
        let loss = |ran: &serde_json::Value| ran["loss"].as_f64().unwrap();
        let differs = (loss(&resumed) - loss(&whole)).abs();
        assert!(differs < 1e-5, "{ranks}: {} instead of {}", loss(&resumed), loss(&whole));
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for (name, bytes) in files(from) {
        fs::write(to.join(name), bytes).unwrap();
    }
}

#[test]
fn issue_28_a_launcher_of_the_other_library_is_refused() {
    for (launcher, library) in [(OPEN_MPI, "libmpich.so.12"), (MPICH, "libmpi.so.40")] {
        if !(OPEN_MPI.is_there() && MPICH.is_there()) {
            return;
        }
        let place = Place::new();
        let ran = launcher.run(&place, 2, &format!("{TRAIN} --run run --mpi-library {library}"));
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains("2 processes"), "{}", ran.stderr);
        assert!(ran.stderr.contains(library), "{}", ran.stderr);
        assert!(!place.path("run").exists(), "nothing is touched");
    }
}

#[test]
fn issue_28_torchrun_is_told_of_mpirun() {
    let place = Place::new();
    let mut command = place.command(&format!("{TRAIN} --run run"));
    let ran = ProgramOutput::collect(command.env("RANK", "0").env("WORLD_SIZE", "4"));
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("mpirun -n 4 rowmill train"), "{}", ran.stderr);
    assert!(!place.path("run").exists(), "nothing is touched");
}

#[test]
fn issue_28_without_a_library_only_mpi_is_missing() {
    let place = Place::new();
    let words = format!("{TRAIN} --run run");
    let ran = place.run(&format!("{words} --transport mpi --mpi-library libmpi-none.so.1"));
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("install Open MPI"), "{}", ran.stderr);
    place.done(&words);
    if !testkit::has_program("ldd", "linked libraries") {
        return;
    }
    let linked = Command::new("ldd").arg(env!("CARGO_BIN_EXE_rowmill")).output().unwrap();
    let linked = String::from_utf8_lossy(&linked.stdout).to_lowercase();
    assert!(linked.contains("libc.so"), "{linked}");
    assert!(!linked.contains("mpi"), "{linked}");
}

/// Starts two ranks under Open MPI. For rank 1, the shell command `mount` changes what its folders
/// contain, as on another host. Returns `None` if this process may not mount.
fn apart(place: &Place, words: &str, mount: &str) -> Option<ProgramOutput> {
    let may = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    if !may.is_ok_and(|output| output.status.success()) || !OPEN_MPI.is_there() {
        testkit::skip("ranks with other folders", "permission to mount in a namespace");
        return None;
    }
    let rowmill = env!("CARGO_BIN_EXE_rowmill");
    let mut command = OPEN_MPI.command(place, 1, words);
    command.args([":", "-n", "1", "unshare", "-m", "sh", "-c"]);
    command.arg(format!("{mount} && exec \"$0\" \"$@\"")).arg(rowmill);
    command.args(words.split_whitespace());
    Some(ProgramOutput::collect(&mut command))
}

/// Prepares a file into a folder by training a single step.
fn prepare(place: &Place, file: &str, folder: &str) {
    place.done(&format!("train job.toml --train {file} --run of-{folder} --set training.steps=1"));
    let data = fs::read_dir(place.path(&format!("of-{folder}/data"))).unwrap();
    let made = data.map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap();
    fs::rename(made, place.path(folder)).unwrap();
}

#[test]
fn issue_28_a_run_folder_that_is_not_shared_is_refused() {
    let place = Place::new();
    // The data is prepared, so that both runs read the same rows.
    prepare(&place, "train.csv", "prepared");
    fs::create_dir_all(place.path("run")).unwrap();
    for data in ["prepared", "train.csv"] {
        let words = format!("train job.toml --train {data} --run run --set training.steps=5");
        let Some(ran) = apart(&place, &words, "mount -t tmpfs none run") else { return };
        assert_eq!(ran.code, Some(2), "{data}: {}", ran.stderr);
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let named = format!("rank 1 on {} does not see a file", host.trim());
        assert!(ran.stderr.contains(&named), "{data}: {}", ran.stderr);
        assert_eq!(ran.stderr.matches("error: ").count(), 1, "{data}: {}", ran.stderr);
        let trained = fs::read_dir(place.path("run/checkpoints")).map_or(0, Iterator::count);
        assert_eq!(trained, 0, "{data}: nothing was trained");
    }
}

#[test]
fn issue_29_ranks_on_different_kinds_of_device_are_refused() {
    if !OPEN_MPI.is_there() || !testkit::compiler::has_cxx("ranks on different devices") {
        return;
    }
    let place = Place::new();
    prepare(&place, "train.csv", "prepared");
    let words = "train job.toml --train prepared --run run --set training.steps=5";
    let mut command = OPEN_MPI.command(&place, 1, words);
    command.args([":", "-n", "1", env!("CARGO_BIN_EXE_rowmill")]);
    command.args(words.split_whitespace()).args(["--device", "emulated"]);
    let ran = ProgramOutput::collect(&mut command);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("rank 1") && ran.stderr.contains("device"), "{}", ran.stderr);
}

#[test]
fn issue_28_a_rank_with_other_data_is_refused() {
    let place = Place::new();
    prepare(&place, "train.csv", "prepared");
    let text = fs::read_to_string(place.path("train.csv")).unwrap();
    // The other data has the same columns but different rows.
    fs::write(place.path("other.csv"), text.replace(",k1|", ",k2|")).unwrap();
    prepare(&place, "other.csv", "other");
    let words = "train job.toml --train prepared --run run --set training.steps=5";
    let Some(ran) = apart(&place, words, "mount --bind other prepared") else { return };
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("rank 1"), "{}", ran.stderr);
    assert!(ran.stderr.contains("data"), "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("error: ").count(), 1, "{}", ran.stderr);
}
