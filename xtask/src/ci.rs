//! `cargo xtask ci` runs the stages in order and measures the time of each. The checks of a stage
//! are in the stage's own file.

mod agent;
pub mod cargo;
mod full;
mod gpu;
mod readme;
mod slurm;
mod stage;
mod test;
mod tool;

use crate::command;
use crate::error::Error;
use crate::kernels;
use crate::tidy;
use cargo::{PROFILE, cargo};
use stage::CiStage;

pub const HELP: &str = "\
Runs everything that must pass before a change lands, and prints the wall time of each stage. Installs
missing tools (rustfmt and clippy through rustup). A failed stage does not stop the following ones.

Usage: cargo xtask ci [--full] [--only STAGE]...

Stages:
  tools      rustfmt and clippy are present, or are installed
  format     cargo fmt --all --check
  clippy     cargo clippy --profile ci --workspace --all-targets -- -D warnings
  tidy       cargo xtask tidy
  tests      the unit and integration tests that `cargo test --profile ci --workspace --tests` runs, of
             two test binaries at a time
  doc tests  cargo test --profile ci --workspace --doc
  kernels    cargo xtask kernels: every GPU kernel compiles for every architecture, without a GPU
  gpu        bench/gpu/rehearse.py: what a machine with a GPU runs, on the emulator and on a stub of the driver,
             with a wrong kernel, a crash, a hang, a missing library and a full disk
  readme     every ```sh block of README.md, docs/training.md and docs/traces.md, in order, in one
             empty folder (target/readme) that links to configs/ and others; a comment `<!-- ci: skip REASON -->`
             before a block skips it and prints the reason
with --full, also the slow stages:
  licences   cargo deny check licenses bans (cargo-deny is installed where missing)
  compare    a trace of ours opens in the Python trace tools (bench/compare/trace_opens.py), and so
             do the merged traces of eight ranks (bench/compare/merged_opens.py); PyTorch gives the
             same scores (torch_agrees.py) and takes the same steps (teacher_forced.py)
  suite      bench/collect records a small suite of PyTorch runs, which is checked like the recorded ones
  capture    rowmill capture takes traces of real PyTorch jobs and reports why a capture failed
             (bench/compare/capture_jobs.py); a process that swaps files for 30 s gains nothing; two agents
             send the same steps of four ranks over TLS, and one report for each of two jobs on the same
             hosts (fleet_jobs.py); Prometheus scrapes an agent
  processes  ranks as processes under Open MPI and MPICH (installed from Debian where missing); a rank is
             lost in each possible way at ten random moments
  slurm      a Slurm of this machine alone (Debian's, without systemd) trains under srun --mpi=pmix and
             --mpi=pmi2 and from a batch script
  agent cost rowmill-agent, built against glibc 2.28 (cargo-zigbuild): CPU and memory with eight stub GPUs over
             10 minutes, answers to 1,000 processes, memory over 1,000,000 messages, size of the binary
             (bench/compare/agent_cost.py --judge)
  agent attacks  an unprivileged user and peers without a token attack the agent for a minute, while a real PyTorch
             job is traced every 10 s: every trace arrives, and memory, scrapes, polls of others, spool and audit
             file stay within their limits (bench/compare/agent_attacks.py)
  agent slurm  a job of a real Slurm holds a GPU idle: the agent's page names its owner until the job ends
  agent prometheus  a real Prometheus scrapes three simulated hosts for 10 minutes: every rule and panel works,
             alerts fire and resolve (bench/compare/agent_prometheus.py)
  agent fuzz damaged datagrams, requests, protobuf, configurations and pages of dcgm-exporter, 10 minutes
             each
  objects    training data from an S3 server (moto) gives the same model as the same data in files
             (bench/compare/object_store.py)
  hub peers  Prometheus, VictoriaMetrics and OpenTelemetry receive the sums of the hub; DuckDB, ClickHouse
             and Spark compute them from its files by the commands of docs/hub-sql.md; old files live on an
             S3 server (moto)
  fuzz       the property tests of `data` and `device` with 20 000 cases, 40 random shapes per GPU kernel
  mutation   each barrier, exchange and bound check of every GPU kernel is removed in turn: a test must
             fail, or crates/device/survivors.tsv states why none can
  sm_70      cargo xtask kernels --sm-70: every GPU kernel compiles for V100 too, with NVRTC 12
  sanitizers every GPU kernel, emulated, under AddressSanitizer and UndefinedBehaviorSanitizer, and the
             operations of the CPU under AddressSanitizer
  long       the long cases of the program's tests: every configuration trains under a memory limit 10 %
             above its estimate, the program derived from every configuration and plan has the
             operations of a recorded step, twenty kills, larger traces; 1,000 random pipelined runs end with the
             weights of the serial one or an error; searches of plans beside searches of one layout, and for the
             least memory; twenty kills of the hub, and rows of a thousand hosts; a PyTorch job whose loader
             becomes slow is traced without a person
  evidence   three changes of a training step are predicted, then made (bench/compare/predict_evidence.py),
             and so are remedies of recorded PyTorch steps (predict_suite.py); needs an idle machine
  corruption 1 000 flipped bits in prepared data and checkpoints: no run ends with other weights; every
             trace of the fixtures is cut at 200 places, damaged in 1 000 bytes, and cut where each kind of
             row begins and ends: no result depends on the missing part

Options:
  --full        also run the slow stages
  --only STAGE  run this stage only (may be repeated; slow stages too)";

/// All stages in the order in which they run, with their name, whether they are slow, and their
/// function.
const STAGES: [(&str, bool, StageRun); 29] = [
    ("tools", false, tool::install),
    ("format", false, format),
    ("clippy", false, clippy),
    ("tidy", false, rules),
    ("tests", false, test::run),
    ("doc tests", false, test::run_documentation),
    ("kernels", false, kernels::stage),
    ("gpu", false, gpu::rehearse),
    ("readme", false, readme::run),
    ("licences", true, full::check_licences),
    ("compare", true, full::compare_with_python),
    ("suite", true, full::record_suite),
    ("capture", true, full::capture_jobs),
    ("processes", true, full::run_processes),
    ("slurm", true, slurm::train_under_slurm),
    ("agent cost", true, agent::measure_cost),
    ("agent attacks", true, agent::attack_agent),
    ("agent slurm", true, agent::check_owner),
    ("agent prometheus", true, agent::scrape_simulated_hosts),
    ("agent fuzz", true, agent::fuzz_parsers),
    ("objects", true, full::train_on_objects),
    ("hub peers", true, full::compare_with_peers),
    ("fuzz", true, full::run_property_tests),
    ("mutation", true, full::remove_guards),
    ("sanitizers", true, full::run_sanitizers),
    ("sm_70", true, kernels::stage_sm_70),
    ("long", true, full::run_long_tests),
    ("evidence", true, full::check_evidence),
    ("corruption", true, full::damage_files),
];

/// The function of a stage. If the stage succeeds, it returns a note. The table of stages shows the
/// first line of the note, and further lines are printed below the table.
type StageRun = fn() -> Result<String, Error>;

/// Runs the chosen stages. A failed stage does not stop the following ones.
pub fn run(arguments: &[String]) -> Result<(), Error> {
    let names = choose_stages(arguments)?;
    let mut stages = Vec::new();
    for (name, _, run) in STAGES.iter().filter(|(name, ..)| names.contains(name)) {
        eprintln!("\n=== {name} ===");
        stages.push(CiStage::time(name, *run));
    }
    print!("\n{}", stage::table(&stages));
    match stage::count_failures(&stages) {
        0 => Ok(()),
        failed => Err(Error::Check { what: format!("{failed} of {} stages failed", stages.len()) }),
    }
}

/// Returns the names of the stages that the arguments select.
fn choose_stages(arguments: &[String]) -> Result<Vec<&'static str>, Error> {
    let wrong = |problem| Error::Usage { task: "ci", problem };
    let (mut full, mut only) = (false, Vec::new());
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--full" => full = true,
            "--only" => {
                let value = rest.next().map(String::as_str).unwrap_or_default();
                let known = STAGES.iter().find(|(name, ..)| *name == value);
                let names = STAGES.map(|(name, ..)| name).join(", ");
                let problem = || format!("--only: expected one of {names}, got {value:?}");
                only.push(known.ok_or_else(|| wrong(problem()))?.0);
            }
            _ => return Err(wrong(format!("unknown argument {argument:?}"))),
        }
    }
    if !only.is_empty() {
        return Ok(only);
    }
    Ok(STAGES.iter().filter(|(_, slow, _)| full || !slow).map(|(name, ..)| *name).collect())
}

fn format() -> Result<String, Error> {
    command::run(&mut cargo(&["fmt", "--all", "--check"])).map(|()| String::new())
}

fn clippy() -> Result<String, Error> {
    let mut clippy = cargo(&["clippy", "--profile", PROFILE, "--workspace"]);
    command::run(clippy.args(["--all-targets", "--", "-D", "warnings"])).map(|()| String::new())
}

fn rules() -> Result<String, Error> {
    tidy::run(&[]).map(|()| String::new())
}

#[cfg(test)]
mod tests {
    use super::choose_stages;

    fn check(arguments: &[&str]) -> Result<Vec<&'static str>, String> {
        let owned: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        choose_stages(&owned).map_err(|error| error.to_string())
    }

    #[test]
    fn slow_stages_run_only_with_full_or_by_name() {
        assert!(!check(&[]).unwrap().contains(&"fuzz"));
        assert_eq!(check(&["--full"]).unwrap().len(), super::STAGES.len());
        assert_eq!(
            check(&["--only", "doc tests", "--only", "fuzz"]).unwrap(),
            ["doc tests", "fuzz"]
        );
    }

    #[test]
    fn unknown_arguments_are_usage_errors() {
        assert!(check(&["--only", "lint"]).unwrap_err().contains("expected one of tools, format"));
        assert!(check(&["--fast"]).unwrap_err().contains("unknown argument \"--fast\""));
    }
}
