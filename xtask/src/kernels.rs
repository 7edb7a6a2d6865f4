//! `cargo xtask kernels`: every kernel through NVIDIA's compiler, without a GPU, and what each uses
//! beside what is recorded. The compiling itself is a test of `device`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ci::cargo::cargo;
use crate::command;
use crate::error::Error;
use crate::tree;

pub const HELP: &str = "\
Compiles every kernel of crates/device for sm_80, sm_90a and sm_100 with NVRTC 13, or for sm_70 with
NVRTC 12, the last that knows it; either is installed into target/ through pip where it is missing
(90 MB). Prints registers, shared memory and spilled bytes. Fails where a kernel does not compile,
spills, uses more than crates/device/kernels.tsv says, or is not in it.

Usage: cargo xtask kernels [--sm-70] [--emit FOLDER] [--record]

Options:
  --sm-70        for sm_70 (V100) instead of the others
  --emit FOLDER  write the code of each source and architecture (CUBIN) there, to be carried as the
                 cache of kernels to a machine without NVRTC
  --record       write crates/device/kernels.tsv anew";

/// A compiler of NVIDIA's and what it compiles for.
struct Toolkit {
    /// Pinned: other versions use registers otherwise.
    package: &'static str,
    /// Where it is installed, and where its libraries are there.
    folder: &'static str,
    libraries: &'static str,
    architectures: &'static str,
}

const CUDA_13: Toolkit = Toolkit {
    package: "nvidia-cuda-nvrtc==13.0.88",
    folder: "target/nvrtc",
    libraries: "nvidia/cu13/lib",
    architectures: "sm_80 sm_90a sm_100",
};
/// Version 13 has no V100.
const CUDA_12: Toolkit = Toolkit {
    package: "nvidia-cuda-nvrtc-cu12==12.9.86",
    folder: "target/nvrtc12",
    libraries: "nvidia/cuda_nvrtc/lib",
    architectures: "sm_70",
};
/// Where recorded figures are.
const RECORD: &str = "crates/device/kernels.tsv";

/// Registers, bytes of shared memory and of spills.
type KernelFigures = [u32; 3];
/// By architecture and kernel.
type FigureTable = BTreeMap<String, KernelFigures>;

pub fn run(arguments: &[String]) -> Result<(), Error> {
    let usage = |problem| Error::Usage { task: "kernels", problem };
    let (mut emit, mut record, mut toolkit) = (None, false, &CUDA_13);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--emit" => {
                let folder = rest.next().ok_or_else(|| usage("--emit expects a folder".into()))?;
                emit = Some(PathBuf::from(folder));
            }
            "--record" => record = true,
            "--sm-70" => toolkit = &CUDA_12,
            _ => return Err(usage(format!("unknown argument {argument:?}"))),
        }
    }
    let root = tree::root();
    let libraries = install(&root, toolkit)?;
    let out = emit.unwrap_or_else(|| root.join("target/kernels"));
    std::fs::create_dir_all(&out).map_err(Error::io(&out))?;
    let used = parse(&compile((toolkit, &libraries), &out)?);
    for (kernel, [registers, shared, spills]) in &used {
        println!(
            "{kernel:<48} {registers:>4} registers {shared:>6} B shared {spills:>4} B spilled"
        );
    }
    let path = root.join(RECORD);
    let recorded = parse(&std::fs::read_to_string(&path).map_err(Error::io(&path))?);
    let (of_these, mut others): (FigureTable, FigureTable) =
        recorded.into_iter().partition(|(kernel, _)| toolkit.knows(kernel));
    if record {
        others.extend(used);
        return std::fs::write(&path, written(&others)).map_err(Error::io(&path));
    }
    let problems = compared(&used, &of_these);
    problems.iter().for_each(|problem| eprintln!("{problem}"));
    if problems.is_empty() {
        return Ok(());
    }
    let hint = "after a look, `cargo xtask kernels --record` writes them anew";
    Err(Error::Check { what: format!("{} kernels differ from {RECORD}; {hint}", problems.len()) })
}

/// The stage of `ci`: as [`run`]; says so where there is no pip.
pub fn stage() -> Result<String, Error> {
    compiled_with(&[])
}

/// The same for V100.
pub fn stage_sm_70() -> Result<String, Error> {
    compiled_with(&["--sm-70".to_owned()])
}

fn compiled_with(arguments: &[String]) -> Result<String, Error> {
    if !command::works(Command::new("python3").args(["-m", "pip", "--version"])) {
        return Ok("SKIPPED kernels under NVRTC: python3 with pip is not there".to_owned());
    }
    run(arguments).map(|()| "all compile, and use what is recorded".to_owned())
}

impl Toolkit {
    /// Whether a line of the record, architecture and kernel, is one of this compiler's.
    fn knows(&self, kernel: &str) -> bool {
        let architecture = kernel.split(' ').next();
        self.architectures.split(' ').any(|known| Some(known) == architecture)
    }
}

/// The folder of NVRTC's libraries.
fn install(root: &Path, toolkit: &Toolkit) -> Result<PathBuf, Error> {
    let target = root.join(toolkit.folder);
    let libraries = target.join(toolkit.libraries);
    if !libraries.exists() {
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"];
        let mut python = Command::new("python3");
        command::run(python.args(pip).arg("--target").arg(&target).arg(toolkit.package))?;
    }
    Ok(libraries)
}

/// What each kernel uses, as the test that compiles them writes it.
fn compile((toolkit, libraries): (&Toolkit, &Path), out: &Path) -> Result<String, Error> {
    // The whole workspace: alone, `device` would be built anew, its libraries with other features.
    let mut test = cargo(&["test", "--release", "--workspace", "--test", "it", "nvrtc::"]);
    let out = std::path::absolute(out).map_err(Error::io(out))?;
    test.env("ROWMILL_ARCHITECTURES", toolkit.architectures);
    command::run(test.env("ROWMILL_CUDA_LIBRARIES", libraries).env("ROWMILL_KERNELS", &out))?;
    let path = out.join("usage.tsv");
    std::fs::read_to_string(&path).map_err(Error::io(&path))
}

/// The first line of the record.
const HEAD: &str = "architecture\tkernel\tregisters\tshared_bytes\tspill_bytes\n";

/// The record of a table: as [`parse`] reads it.
fn written(table: &FigureTable) -> String {
    let line = |(kernel, [registers, shared, spills]): (&String, &KernelFigures)| {
        format!("{}\t{registers}\t{shared}\t{spills}\n", kernel.replacen(' ', "\t", 1))
    };
    table.iter().map(line).fold(HEAD.to_owned(), |text, line| text + &line)
}

fn parse(text: &str) -> FigureTable {
    let line = |line: &str| {
        let cells: Vec<&str> = line.split('\t').collect();
        let [architecture, kernel, figures @ ..] = &cells[..] else { return None };
        let figures: Vec<u32> = figures.iter().filter_map(|cell| cell.parse().ok()).collect();
        Some((format!("{architecture} {kernel}"), figures.try_into().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// Kernels that use more than is recorded, or are recorded on one side only.
fn compared(used: &FigureTable, recorded: &FigureTable) -> Vec<String> {
    let mut problems = Vec::new();
    let spilling = used.iter().filter(|(_, figures)| figures[2] > 0);
    problems.extend(spilling.map(|(kernel, figures)| format!("{kernel}: spills {} B", figures[2])));
    for (kernel, got) in used {
        match recorded.get(kernel) {
            None => problems.push(format!("{kernel}: not recorded")),
            Some(expected) if got.iter().zip(expected).any(|(got, expected)| got > expected) => {
                let what = "registers, shared and spilled bytes";
                problems.push(format!("{kernel}: {what}: at most {expected:?}, got {got:?}"));
            }
            Some(_) => {}
        }
    }
    let gone = recorded.keys().filter(|kernel| !used.contains_key(*kernel));
    problems.extend(gone.map(|kernel| format!("{kernel}: recorded, but there is no such kernel")));
    problems
}

#[cfg(test)]
mod tests {
    use super::{compared, parse};

    #[test]
    fn a_kernel_that_uses_more_is_named() {
        let recorded =
            parse("architecture\tkernel\tr\ts\tp\nsm_80\ta\t20\t0\t0\nsm_80\tb\t8\t0\t0\n");
        let used = parse("sm_80\ta\t21\t0\t0\nsm_80\tc\t8\t0\t0\n");
        assert_eq!(
            compared(&used, &recorded),
            [
                "sm_80 a: registers, shared and spilled bytes: at most [20, 0, 0], got [21, 0, 0]",
                "sm_80 c: not recorded",
                "sm_80 b: recorded, but there is no such kernel",
            ]
        );
        assert!(compared(&recorded, &recorded).is_empty());
        assert_eq!(parse(&super::written(&recorded)), recorded);
        let spilling = parse("sm_80\ta\t20\t0\t4\n");
        assert_eq!(compared(&spilling, &spilling), ["sm_80 a: spills 4 B"]);
        assert!(super::CUDA_13.knows("sm_80 a") && !super::CUDA_12.knows("sm_80 a"));
    }
}
