//! The command line of `rowmill capture` and `rowmill doctor`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::links::DoctorLinks;

/// Options of `rowmill capture`, which records running PyTorch jobs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill capture --all                            five iterations of every rank on this machine
  rowmill capture --pid 4711 --iterations 20       one process, or all below a launcher
  rowmill capture --all --duration 500ms -o traces half a second, at the same time on all ranks
  rowmill capture --all --with shapes,stacks       more detail, but larger traces and slower steps

The job needs no change, only one environment variable:
  KINETO_USE_DAEMON=1 torchrun --nproc-per-node 8 train.py

PyTorch then polls for trace requests every 5 s. By default it polls an abstract socket, which
containers in another network namespace cannot reach. With KINETO_IPC_SOCKET_DIR=/run/kineto (a short
path that both sides see) in the job and here, it polls a socket file. PyTorch counts an iteration
whenever optimizer.step() is called.

The output folder receives rank-N.json (pid-N.json for processes without RANK in the environment),
report.html and, for several ranks, merged.pftrace for ui.perfetto.dev. `rowmill trace FOLDER` reads it
as one job. Exits with code 1 if a trace was lost, and prints the reason.

A trace is copied only if it is a regular file of the process's user, has no second hard link and is no
larger than --size-max. Symbolic links, pipes and devices are refused, never followed or read. The same
holds for the job's KINETO_ONDEMAND_TRACE_DIR, which its user must be able to write.

If a process does not answer, run: rowmill doctor capture")]
pub struct Capture {
    /// Capture this process or, if it is a launcher, all processes below it (repeatable)
    #[arg(long, value_name = "PID", required_unless_present = "all", conflicts_with = "all")]
    pub pid: Vec<u32>,
    /// Capture every rank of all jobs on this machine; launchers and data loaders are skipped
    #[arg(long)]
    pub all: bool,
    /// Iterations to record [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: Option<u32>,
    /// Start at a multiple of N iterations, the same on all ranks; N iterations should take more
    /// than 5 s
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub align: u32,
    /// Record for this long instead of counting iterations, such as 500ms or 2s
    #[arg(long, value_name = "TIME", value_parser = span, conflicts_with = "iterations")]
    pub duration: Option<Duration>,
    /// Delay before --duration begins [default: long enough for every process to warm up]
    #[arg(long, value_name = "TIME", value_parser = span, requires = "duration")]
    pub start_in: Option<Duration>,
    /// Seconds for which the profiler warms up before --duration begins
    #[arg(long, value_name = "SECONDS", default_value_t = 2, requires = "duration")]
    pub warmup: u32,
    /// Details to record in addition to names and times
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHAT")]
    pub with: Vec<With>,
    /// The folder to write, which must be new or empty
    #[arg(short, long, value_name = "FOLDER", default_value = "capture")]
    pub output: PathBuf,
    /// Start when this many processes have polled [default: 6.5 s after the first process has
    /// polled]
    #[arg(long, value_name = "N")]
    pub processes: Option<usize>,
    /// Refuse traces larger than this, such as 512MiB or 8GiB
    #[arg(long, value_name = "SIZE", value_parser = super::bytes, default_value = "4GiB")]
    pub size_max: u64,
    /// Longest wait for processes to poll, for the recording to start, for the copy of a trace, and
    /// for a trace that grows by less than 1 MiB/s
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "2m")]
    pub timeout: Duration,
    /// The KINETO_IPC_SOCKET_DIR of the jobs [default: the KINETO_IPC_SOCKET_DIR of this command,
    /// if set]
    #[arg(long, value_name = "FOLDER")]
    pub socket_dir: Option<PathBuf>,
}

/// A detail that is recorded in addition to names and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum With {
    /// Shapes of the operators' inputs
    Shapes,
    /// Python call stacks of the operators
    Stacks,
    /// Floating-point operations of the operators
    Flops,
    /// The torch.nn modules around each operator
    Modules,
    /// Allocations and frees of memory
    Memory,
}

/// The verbs of `rowmill doctor`, each of which diagnoses one area.
#[derive(Debug, Subcommand)]
pub enum Doctor {
    /// Find out why a process ignores `rowmill capture`
    #[command(after_help = "\
Examples:
  rowmill doctor capture                 every process with PyTorch loaded
  rowmill doctor capture --pid 4711

Inspects the process's environment, user, libraries, sockets and folders. It starts and changes nothing.
Exits with code 1 if a process cannot be captured.")]
    Capture {
        /// Examine this process (repeatable) [default: all processes that have loaded PyTorch]
        #[arg(long, value_name = "PID")]
        pid: Vec<u32>,
        /// The socket folder that rowmill capture would use [default: KINETO_IPC_SOCKET_DIR, if
        /// set]
        #[arg(long, value_name = "FOLDER")]
        socket_dir: Option<PathBuf>,
    },
    /// List GPUs, and check whether kernels can be emulated
    #[command(after_help = "\
Examples:
  rowmill doctor device

Opens the GPU driver and lists its devices. It starts and changes nothing. Exits with code 1 if no GPU
can be used.")]
    Device,
    /// Report which MPI is found, and whether it can run ranks
    #[command(after_help = "\
Examples:
  rowmill doctor mpi
  mpirun -n 1 rowmill doctor mpi         also checks whether launcher and library match

Opens the library that rowmill train would open, starts MPI and ends it. Exits with code 1 if training
over MPI would not work.")]
    Mpi {
        /// The MPI library to open [default: the library of the launcher, then libmpi.so.40,
        /// libmpi.so.12, libmpich.so.12 and libmpi_abi.so.0]
        #[arg(long, value_name = "FILE")]
        mpi_library: Option<String>,
    },
    /// Measure collectives between ranks: latency, and bandwidth compared with a memory copy
    #[command(after_help = super::links::AFTER_HELP)]
    Links(Box<DoctorLinks>),
}

/// Parses a length of time with a unit, such as 500ms, 2s, 1.5s, 3m or 1h.
pub fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("expected a time such as 500ms, 2s, 3m or 1h, up to 24h, got {text:?}");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let seconds = digits.trim().parse::<f64>().map_err(|_| wrong())? * scale;
    let is_valid = (1e-3..=86_400.0).contains(&seconds);
    if is_valid { Ok(Duration::from_secs_f64(seconds)) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::span;

    #[test]
    fn times_need_a_unit_and_lie_between_a_millisecond_and_a_day() {
        assert_eq!(span("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(span("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(span("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(span("1h"), Ok(Duration::from_secs(3600)));
        for text in ["5", "s", "-1s", "0s", "nans", "infs", "9999999m", "25h"] {
            assert!(span(text).is_err(), "{text}");
        }
    }
}
