//! `cargo xtask kernels` compiles every kernel with NVIDIA's compiler, without a GPU, and compares
//! the resources that each kernel uses with the record. A test of `device` runs the compiler.

mod loads;

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ci::cargo::{PROFILE, cargo};
use crate::command;
use crate::error::Error;
use crate::tree;

pub const HELP: &str = "\
Compiles every kernel of crates/device for sm_75, sm_80, sm_89, sm_90a, sm_100 and sm_120 with NVRTC
13, or for sm_70 with NVRTC 12, the last version that supports it. A missing compiler is installed into
target/ through pip (90 MB). Prints registers, shared memory and spilled bytes.

Sources mark the loads of their main loops with `// in flight`. The disassembly (by nvdisasm, also from
pip) shows how many of them a kernel issues before it waits for one. The least number over all loops
is printed: 0 if a kernel has no marked load, and for sm_70, which nvdisasm does not support.

Fails if a kernel does not compile, spills more than 64 bytes, has 1 to 3 loads in flight, uses more
registers or memory or has fewer loads in flight than recorded in crates/device/kernels.tsv, or is
missing there.

Usage: cargo xtask kernels [--sm-70] [--emit FOLDER] [--profile NAME] [--record]

Options:
  --sm-70        compile for sm_70 (V100) instead of the others
  --emit FOLDER  write the CUBIN of each source and architecture to FOLDER, to serve as the kernel
                 cache of a machine without NVRTC
  --profile NAME cargo's profile for the compiling program [default: release]
  --record       rewrite crates/device/kernels.tsv";

/// A version of NVIDIA's compiler and the architectures that it compiles for.
struct Toolkit {
    /// The compiler's pip package. The version is pinned, because other versions allocate registers
    /// differently.
    package: &'static str,
    /// The folder of the installation. `libraries` is relative to this folder.
    folder: &'static str,
    libraries: &'static str,
    architectures: &'static str,
    /// The pip package of the disassembler, whose version is pinned as well.
    disassembler: Option<&'static str>,
}

const CUDA_13: Toolkit = Toolkit {
    package: "nvidia-cuda-nvrtc==13.0.88",
    folder: "target/nvrtc",
    libraries: "nvidia/cu13/lib",
    architectures: "sm_75 sm_80 sm_89 sm_90a sm_100 sm_120",
    disassembler: Some("nvidia-cuda-nvdisasm==13.2.51"),
};
/// Version 12 of the compiler, for V100, which version 13 no longer supports.
const CUDA_12: Toolkit = Toolkit {
    package: "nvidia-cuda-nvrtc-cu12==12.9.86",
    folder: "target/nvrtc12",
    libraries: "nvidia/cuda_nvrtc/lib",
    architectures: "sm_70",
    // NVIDIA publishes no pip package of the disassembler in version 12.
    disassembler: None,
};
/// The folder in which the disassembler is installed, and the path of its program in this folder.
const DISASSEMBLER: [&str; 2] = ["target/nvdisasm", "nvidia/cu13/bin/nvdisasm"];
/// The file with the recorded figures of all kernels.
const RECORD: &str = "crates/device/kernels.tsv";

/// The folder that holds the sources of all kernels.
const SOURCES: &str = "crates/device/src";
/// Minimum number of loads in flight of a kernel with marked loads.
const LOADS_IN_FLIGHT: u32 = 4;
/// Maximum number of bytes that a kernel may spill. Some spills are useful, because the compiler
/// trades a few registers for one more block on each multiprocessor.
const SPILL_BYTES: u32 = 64;

/// Figures of a kernel: registers, bytes of shared memory, bytes of spills, and loads in flight.
type KernelFigures = [u32; 4];
/// The figures of all kernels by architecture and name, such as `sm_80 lookup`.
type FigureTable = BTreeMap<String, KernelFigures>;

/// Compiles the kernels and prints their figures. Fails if any figure is worse than recorded.
pub fn run(arguments: &[String]) -> Result<(), Error> {
    let usage = |problem| Error::Usage { task: "kernels", problem };
    let (mut emit, mut record, mut toolkit) = (None, false, &CUDA_13);
    let mut profile = "release";
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--emit" => {
                let folder = rest.next().ok_or_else(|| usage("--emit expects a folder".into()))?;
                emit = Some(PathBuf::from(folder));
            }
            "--profile" => {
                profile = rest.next().ok_or_else(|| usage("--profile expects a name".into()))?;
            }
            "--record" => record = true,
            "--sm-70" => toolkit = &CUDA_12,
            _ => return Err(usage(format!("unknown argument {argument:?}"))),
        }
    }
    let root = tree::root();
    let libraries = install(&root, toolkit.package, [toolkit.folder, toolkit.libraries])?;
    let out = emit.unwrap_or_else(|| root.join("target/kernels"));
    std::fs::create_dir_all(&out).map_err(Error::io(&out))?;
    let mut used = parse_table(&compile(profile, toolkit, &libraries, &out)?);
    if let Some(package) = toolkit.disassembler {
        count_loads(&root, &install(&root, package, DISASSEMBLER)?, &out, &mut used)?;
    }
    for (kernel, [registers, shared, spills, loads]) in &used {
        println!(
            "{kernel:<48} {registers:>4} registers {shared:>6} B shared {spills:>4} B spilled \
             {loads:>4} loads in flight"
        );
    }
    let path = root.join(RECORD);
    let recorded = parse_table(&std::fs::read_to_string(&path).map_err(Error::io(&path))?);
    let (recorded, mut others): (FigureTable, FigureTable) =
        // The record has kernels of both toolkits. The kernels of the other toolkit are neither
        // compared nor changed.
        recorded.into_iter().partition(|(kernel, _)| toolkit.knows(kernel));
    if record {
        others.extend(used);
        return std::fs::write(&path, format_table(&others)).map_err(Error::io(&path));
    }
    let problems = find_problems(&used, &recorded);
    problems.iter().for_each(|problem| eprintln!("{problem}"));
    if problems.is_empty() {
        return Ok(());
    }
    let hint = "if this is intended, run `cargo xtask kernels --record`";
    Err(Error::Check { what: format!("{} kernels differ from {RECORD}; {hint}", problems.len()) })
}

/// Runs the stage of `ci` for current architectures. If pip is missing, the stage is skipped and
/// its note says so.
pub fn stage() -> Result<String, Error> {
    compile_as_stage(&["--profile", PROFILE])
}

/// Runs the stage of `ci` for V100, whose architecture is sm_70.
pub fn stage_sm_70() -> Result<String, Error> {
    compile_as_stage(&["--sm-70"])
}

fn compile_as_stage(arguments: &[&str]) -> Result<String, Error> {
    if !command::succeeds(Command::new("python3").args(["-m", "pip", "--version"])) {
        return Ok("SKIPPED kernels under NVRTC: python3 with pip is not there".to_owned());
    }
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    run(&arguments).map(|()| "all compile, and use what is recorded".to_owned())
}

impl Toolkit {
    /// Whether this compiler supports the architecture of a recorded kernel.
    fn knows(&self, kernel: &str) -> bool {
        let architecture = kernel.split(' ').next();
        self.architectures.split(' ').any(|known| Some(known) == architecture)
    }
}

/// Installs a package into a folder unless it is already installed. Returns the path of the
/// requested part of it.
fn install(root: &Path, package: &str, [folder, part]: [&str; 2]) -> Result<PathBuf, Error> {
    let target = root.join(folder);
    let part = target.join(part);
    if !part.exists() {
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"];
        let mut python = Command::new("python3");
        command::run(python.args(pip).arg("--target").arg(&target).arg(package))?;
    }
    Ok(part)
}

/// Counts the loads in flight of each kernel whose source marks loads. `out` holds the compiled
/// code, and its `images.tsv` lists source, architecture and file of each image.
fn count_loads(
    root: &Path,
    disassembler: &Path,
    out: &Path,
    used: &mut FigureTable,
) -> Result<(), Error> {
    let path = out.join("images.tsv");
    let images = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
    let count = |line: &str| -> Result<FigureTable, Error> {
        let cells: Vec<&str> = line.split('\t').collect();
        let [source, architecture, file] = cells[..] else { return Ok(FigureTable::new()) };
        let path = root.join(SOURCES).join(source);
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
        let marked = loads::marked_lines(&text);
        if marked.is_empty() {
            return Ok(FigureTable::new());
        }
        let mut command = Command::new(disassembler);
        let listing = command::capture_output(command.args(["-c", "-gi"]).arg(out.join(file)))?;
        let counts = loads::count_in_flight(&listing, source, &marked);
        let named = |(kernel, count)| (format!("{architecture} {kernel}"), [0, 0, 0, count]);
        Ok(counts.into_iter().map(named).collect())
    };
    let counts: Vec<Result<FigureTable, Error>> = std::thread::scope(|scope| {
        // Each source and architecture is disassembled separately, so the disassemblies run in
        // parallel.
        let (lines, count) = (images.lines().skip(1), &count);
        let threads: Vec<_> = lines.map(|line| scope.spawn(move || count(line))).collect();
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.map(|counts| counts.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    for table in counts {
        for (kernel, [.., loads]) in table? {
            if let Some(figures) = used.get_mut(&kernel) {
                figures[3] = loads;
            }
        }
    }
    Ok(())
}

/// Compiles the kernels by a test of `device` and returns the table of resources that the test
/// writes.
fn compile(
    profile: &str,
    toolkit: &Toolkit,
    libraries: &Path,
    out: &Path,
) -> Result<String, Error> {
    // The whole workspace is given because `-p device` would rebuild the dependencies of `device`
    // with other features.
    let mut test = cargo(&["test", "--profile", profile, "--workspace", "--test", "it", "nvrtc::"]);
    let out = std::path::absolute(out).map_err(Error::io(out))?;
    test.env("ROWMILL_ARCHITECTURES", toolkit.architectures);
    command::run(test.env("ROWMILL_CUDA_LIBRARIES", libraries).env("ROWMILL_KERNELS", &out))?;
    let path = out.join("usage.tsv");
    std::fs::read_to_string(&path).map_err(Error::io(&path))
}

/// The first line of the record, with the names of its columns.
const HEAD: &str = "architecture\tkernel\tregisters\tshared_bytes\tspill_bytes\tloads_in_flight\n";

/// Formats a table as [`parse_table`] reads it.
fn format_table(table: &FigureTable) -> String {
    let line = |(kernel, figures): (&String, &KernelFigures)| {
        let figures = figures.map(|figure| figure.to_string()).join("\t");
        format!("{}\t{figures}\n", kernel.replacen(' ', "\t", 1))
    };
    table.iter().map(line).fold(HEAD.to_owned(), |text, line| text + &line)
}

fn parse_table(text: &str) -> FigureTable {
    let line = |line: &str| {
        let cells: Vec<&str> = line.split('\t').collect();
        let [architecture, kernel, figures @ ..] = &cells[..] else { return None };
        let mut figures: Vec<u32> = figures.iter().filter_map(|cell| cell.parse().ok()).collect();
        // The compiler reports three figures. Loads in flight are counted later and are 0 until
        // then.
        figures.extend((figures.len() == 3).then_some(0));
        Some((format!("{architecture} {kernel}"), figures.try_into().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// Returns one line for each kernel that spills too much, has too few loads in flight, uses more
/// resources than recorded, or is missing in the record or in the sources.
fn find_problems(used: &FigureTable, recorded: &FigureTable) -> Vec<String> {
    let mut problems = Vec::new();
    let spilling = used.iter().filter(|(_, figures)| figures[2] > SPILL_BYTES);
    problems.extend(spilling.map(|(kernel, figures)| format!("{kernel}: spills {} B", figures[2])));
    let waiting = used.iter().filter(|(_, figures)| (1..LOADS_IN_FLIGHT).contains(&figures[3]));
    problems.extend(waiting.map(|(kernel, figures)| {
        format!(
            "{kernel}: loads in flight: expected at least {LOADS_IN_FLIGHT}, got {}",
            figures[3]
        )
    }));
    for (kernel, got) in used {
        match recorded.get(kernel) {
            None => problems.push(format!("{kernel}: not recorded")),
            Some(expected) => {
                let ([got @ .., loads], [expected @ .., loads_expected]) = (got, expected);
                if got.iter().zip(expected).any(|(got, expected)| got > expected) {
                    let what = "registers, shared and spilled bytes";
                    problems.push(format!("{kernel}: {what}: at most {expected:?}, got {got:?}"));
                }
                if loads < loads_expected {
                    let what = "loads in flight";
                    problems
                        .push(format!("{kernel}: {what}: at least {loads_expected}, got {loads}"));
                }
            }
        }
    }
    let gone = recorded.keys().filter(|kernel| !used.contains_key(*kernel));
    problems.extend(gone.map(|kernel| format!("{kernel}: recorded, but there is no such kernel")));
    problems
}

#[cfg(test)]
mod tests {
    use super::{find_problems, format_table, parse_table};

    #[test]
    fn a_kernel_that_uses_more_is_named() {
        let recorded =
            parse_table("architecture\tkernel\tr\ts\tp\nsm_80\ta\t20\t0\t0\nsm_80\tb\t8\t0\t0\n");
        let used = parse_table("sm_80\ta\t21\t0\t0\nsm_80\tc\t8\t0\t0\n");
        assert_eq!(
            find_problems(&used, &recorded),
            [
                "sm_80 a: registers, shared and spilled bytes: at most [20, 0, 0], got [21, 0, 0]",
                "sm_80 c: not recorded",
                "sm_80 b: recorded, but there is no such kernel",
            ]
        );
        assert!(find_problems(&recorded, &recorded).is_empty());
        assert_eq!(parse_table(&format_table(&recorded)), recorded);
        let spilling = parse_table("sm_80\ta\t20\t0\t65\n");
        assert_eq!(find_problems(&spilling, &spilling), ["sm_80 a: spills 65 B"]);
        let waiting = parse_table("sm_80\ta\t20\t0\t0\t1\n");
        let what = "sm_80 a: loads in flight";
        assert_eq!(
            find_problems(&waiting, &waiting),
            [format!("{what}: expected at least 4, got 1")]
        );
        let flying = parse_table("sm_80\ta\t20\t0\t0\t4\n");
        assert!(find_problems(&flying, &flying).is_empty());
        let unmarked = parse_table("sm_80\ta\t20\t0\t0\n");
        assert_eq!(find_problems(&unmarked, &flying), [format!("{what}: at least 4, got 0")]);
        assert!(super::CUDA_13.knows("sm_80 a") && !super::CUDA_12.knows("sm_80 a"));
    }
}
