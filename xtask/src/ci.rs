//! `cargo xtask ci`: all stages in order, each timed. What a stage checks is its own file's affair.

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
use cargo::cargo;
use stage::CiStage;

pub const HELP: &str = "\
Everything that must pass before a change lands, with the wall time of each stage. Installs what is
missing (rustfmt and clippy through rustup). A failed stage does not stop the following ones.

Usage: cargo xtask ci [--full] [--only STAGE]...

Stages:
  tools      rustfmt and clippy are present, or are installed
  format     cargo fmt --all --check
  clippy     cargo clippy --release --workspace --all-targets -- -D warnings
  tidy       cargo xtask tidy
  tests      cargo test --release --workspace, unit and integration tests
  doc tests  cargo test --release --workspace --doc
  kernels    cargo xtask kernels: every GPU kernel compiles for every architecture, without a GPU
  gpu        bench/gpu/rehearse.py: what a machine with a GPU runs, on the emulator and on a stub of the driver,
             with a wrong kernel, a crash, a hang, a missing library and a full disk
  readme     every ```sh block of README.md, docs/training.md and docs/traces.md, in order, in one
             empty folder (target/readme) that links to configs/ and the like; a comment `<!-- ci: skip REASON -->` before a
             block leaves it out, loudly
with --full, what is slow or heavy:
  licences   cargo deny check licenses bans (cargo-deny is installed where missing)
  compare    a trace of ours opens in the Python trace tools (bench/compare/trace_opens.py), and so
             do the merged traces of eight ranks (bench/compare/merged_opens.py); PyTorch gives the
             same scores (torch_agrees.py) and takes the same steps (teacher_forced.py)
  suite      bench/collect makes a small suite of PyTorch runs, which is checked as the recorded ones
  capture    rowmill capture takes traces of real PyTorch jobs, and says of each way to lose one why
             (bench/compare/capture_jobs.py); a process that swaps files for 30 s wins nothing; two agents
             give the same steps of four ranks over TLS, and a report each of two jobs on the same hosts
             (fleet_jobs.py); Prometheus scrapes an agent
  processes  ranks as processes under every launcher there is (installed from Debian where missing), with
             each way to lose one at ten random moments
  slurm      a Slurm of this machine alone (Debian's, without systemd) trains under srun --mpi=pmix and
             --mpi=pmi2 and from a batch script
  agent cost rowmill-agent, built against glibc 2.28 (cargo-zigbuild): CPU and memory with eight stub GPUs over
             10 minutes, answers to 1,000 processes, memory over 1,000,000 messages, size of the binary
             (bench/compare/agent_cost.py --judge)
  agent attacks  an unprivileged user and peers without a token attack the agent for a minute, while a real PyTorch
             job is traced every 10 s: every trace arrives, and memory, scrapes, polls of others, spool and audit
             file stay within their bars (bench/compare/agent_attacks.py)
  agent slurm  a job of a real Slurm holds a GPU idle: the agent's page says whose it is, until it ends
  agent prometheus  a real Prometheus scrapes three simulated hosts for 10 minutes: no rule and no panel fails,
             alerts fire and resolve (bench/compare/agent_prometheus.py)
  agent fuzz datagrams, requests, protobuf, configurations and pages of dcgm-exporter that are wrong somewhere,
             10 minutes each
  objects    training data from an S3 server (moto) gives the model that the same files give
             (bench/compare/object_store.py)
  fuzz       the property tests of `data` and `device` with 20 000 cases, 40 random shapes a GPU kernel
  mutation   each barrier, exchange and bound check of every GPU kernel is taken out: a test must fail,
             or crates/device/survivors.tsv says why none does
  sm_70      cargo xtask kernels --sm-70: every GPU kernel compiles for V100 too, with NVRTC 12
  sanitizers every GPU kernel, emulated, under AddressSanitizer and UndefinedBehaviorSanitizer, and the
             operations of the CPU under AddressSanitizer
  memory     every configuration trains under a memory limit of its estimate and a tenth
  written steps  every configuration under every ready-made plan is written down as it is recorded
  evidence   three changes of a training step are predicted, then made (bench/compare/predict_evidence.py),
             and cures of recorded PyTorch steps (predict_suite.py); needs a quiet machine
  corruption 1 000 flipped bits in prepared data and checkpoints: no run ends with other weights; every
             trace of the fixtures cut at 200 places and with 1 000 wrong bytes, and cut where its kinds
             of rows begin and end: no figure is of the missing part

Options:
  --full        also the slow stages
  --only STAGE  this stage only (may be repeated; slow stages too)";

/// Every stage with whether it is slow.
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
    ("licences", true, full::licences),
    ("compare", true, full::compare),
    ("suite", true, full::suite),
    ("capture", true, full::capture),
    ("processes", true, full::processes),
    ("slurm", true, slurm::slurm),
    ("agent cost", true, agent::cost),
    ("agent attacks", true, agent::attacks),
    ("agent slurm", true, agent::attribution),
    ("agent prometheus", true, agent::prometheus),
    ("agent fuzz", true, agent::wrong),
    ("objects", true, full::objects),
    ("fuzz", true, full::fuzz),
    ("mutation", true, full::mutation),
    ("sanitizers", true, full::sanitizers),
    ("sm_70", true, kernels::stage_sm_70),
    ("memory", true, full::memory),
    ("written steps", true, full::written),
    ("evidence", true, full::evidence),
    ("corruption", true, full::corruption),
];

/// A stage's work; what is worth knowing of a success comes back as a note.
type StageRun = fn() -> Result<String, Error>;

pub fn run(arguments: &[String]) -> Result<(), Error> {
    let names = chosen(arguments)?;
    let mut stages = Vec::new();
    for (name, _, run) in STAGES.iter().filter(|(name, ..)| names.contains(name)) {
        eprintln!("\n=== {name} ===");
        stages.push(CiStage::time(name, *run));
    }
    print!("\n{}", stage::table(&stages));
    match stage::failures(&stages) {
        0 => Ok(()),
        failed => Err(Error::Check { what: format!("{failed} of {} stages failed", stages.len()) }),
    }
}

/// Names of the stages to run.
fn chosen(arguments: &[String]) -> Result<Vec<&'static str>, Error> {
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
    let arguments = ["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"];
    command::run(&mut cargo(&arguments)).map(|()| String::new())
}

fn rules() -> Result<String, Error> {
    tidy::run(&[]).map(|()| String::new())
}

#[cfg(test)]
mod tests {
    use super::chosen;

    fn check(arguments: &[&str]) -> Result<Vec<&'static str>, String> {
        let owned: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        chosen(&owned).map_err(|error| error.to_string())
    }

    #[test]
    fn slow_stages_are_asked_for() {
        assert!(!check(&[]).unwrap().contains(&"fuzz"));
        assert_eq!(check(&["--full"]).unwrap().len(), super::STAGES.len());
        assert_eq!(
            check(&["--only", "doc tests", "--only", "fuzz"]).unwrap(),
            ["doc tests", "fuzz"]
        );
    }

    #[test]
    fn mistakes_name_what_is_expected() {
        assert!(check(&["--only", "lint"]).unwrap_err().contains("expected one of tools, format"));
        assert!(check(&["--fast"]).unwrap_err().contains("unknown argument \"--fast\""));
    }
}
