//! The messages between an agent and its clients as plain data, for the Unix socket of a host and
//! for the TLS port.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The version at the start of every path.
pub const ROOT: &str = "/v1";

/// The status of an agent and its host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub host: String,
    /// Wall clock of the agent when it answered.
    pub unix_ns: u64,
    pub processes: Vec<ProcessRow>,
    pub gpus: Vec<GpuRow>,
    /// Periodic traces by workflow type; empty if they are off.
    #[serde(default)]
    pub periodic: Vec<PeriodicRow>,
    /// Missing information, and the reason.
    pub notes: Vec<String>,
}

/// Today's periodic traces of one workflow type, and their budgets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeriodicRow {
    /// User of its processes.
    #[serde(default)]
    pub uid: u32,
    pub workflow: String,
    /// Number of traces that were kept.
    pub traces: u32,
    /// Limit of the traces per day, including lost ones.
    pub traces_max: u32,
    pub lost: u32,
    /// Bytes written by the profiler.
    pub bytes: u64,
    /// Limit of the bytes written per day.
    pub bytes_max: u64,
    pub steps: u64,
    pub recorded: u64,
    /// Limit of the share of steps that are recorded.
    pub share_max: f64,
    /// Slowdown of steps during the last trace, as a share.
    pub slowdown: Option<f64>,
    /// Standard deviation of the slowdown without a trace, if known.
    #[serde(default)]
    pub spread: Option<f64>,
    /// Number of consecutive traces with a significant slowdown.
    #[serde(default)]
    pub slow_in_row: u32,
    /// Seconds until the next trace is allowed, after slow steps.
    pub backs_off_s: Option<u64>,
    /// What the next trace waits for.
    pub state: String,
    /// The reason if the last trace was lost.
    pub problem: Option<String>,
}

/// One process that polls for requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessRow {
    pub pid: u32,
    pub uid: u32,
    /// Name of its user, if known.
    #[serde(default)]
    pub user: Option<String>,
    pub rank: Option<u32>,
    /// Number of ranks of its job.
    pub world_size: Option<u32>,
    /// Its job, as named by its scheduler.
    pub job: Option<String>,
    /// All names of its job, including an array task, `namespace/pod` or the pod's UID.
    #[serde(default)]
    pub names: Vec<String>,
    pub command: String,
    /// Milliseconds since the last poll.
    pub polled_ms: u64,
    /// Whether its profiler is free.
    pub is_free: bool,
    /// The reason why it would not be traced.
    pub skip: Option<String>,
    /// Its phase, if it reports steps.
    pub phase: Option<String>,
    pub step: Option<u64>,
    /// Median of the last step times.
    pub step_ns: Option<u64>,
    /// Whether it seems to hang.
    pub is_hung: bool,
}

/// One GPU of the host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GpuRow {
    pub index: u32,
    /// The permanent UUID of the GPU.
    pub uuid: String,
    pub model: String,
    /// The reason if it cannot be read.
    pub lost: Option<String>,
    /// Busy share of the last interval.
    pub busy: Option<f64>,
    /// Share of the last interval in which SMs were active.
    pub sm_active: Option<f64>,
    /// Observed seconds of the last interval.
    pub observed_s: f64,
    /// The run to which it is allocated.
    pub job: Option<String>,
    /// Whether it is allocated but was idle in the last interval.
    pub is_held_idle: bool,
    /// Seconds for which its counters are left to other programs.
    pub paused_s: Option<u64>,
}

/// A request for traces of some processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceOrder {
    /// Name of letters, digits and `-`, the same on all hosts.
    pub token: String,
    /// Process ids, or their ancestors; empty selects all.
    #[serde(default)]
    pub pids: Vec<u32>,
    /// Restricts the order to this Slurm job.
    pub job: Option<i64>,
    pub when: RecordWhen,
    /// Optional content: `shapes`, `stacks`, `flops`, `modules`, `memory`.
    #[serde(default)]
    pub with: Vec<String>,
    /// Larger traces are rejected.
    pub size_max: u64,
    /// Time limit for the start, and without progress.
    pub patience_ms: u64,
    /// Earliest time to answer a process with a request.
    pub not_before_unix_ms: Option<u64>,
}

impl TraceOrder {
    /// All values for `with`.
    pub const DETAILS: [&'static str; 5] = ["shapes", "stacks", "flops", "modules", "memory"];
}

impl fmt::Display for TraceOrder {
    /// Describes the order for the audit log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.token)?;
        match self.when {
            RecordWhen::Iterations { count, align } => {
                write!(f, "{count} iterations from a multiple of {align}")?;
            }
            RecordWhen::Duration { length_ms, .. } => write!(f, "{length_ms} ms")?,
        }
        if !self.with.is_empty() {
            write!(f, " with {}", self.with.join(", "))?;
        }
        Ok(())
    }
}

/// The start and length of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum RecordWhen {
    Iterations {
        count: u32,
        /// Recording starts at the next multiple of this iteration.
        align: u32,
    },
    Duration {
        length_ms: u64,
        /// Seconds the profiler runs before recording.
        warmup_s: u32,
        start_unix_ms: u64,
    },
}

/// The progress of a trace order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceState {
    pub token: String,
    /// Whether the state is final.
    pub is_over: bool,
    /// One row per process.
    pub rows: Vec<TraceRow>,
}

/// The progress of one process of an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceRow {
    pub pid: u32,
    pub rank: Option<u32>,
    pub command: String,
    /// State of its request.
    pub state: String,
    /// The reason if there is no trace.
    pub reason: Option<String>,
    /// The file to fetch, once it is written.
    pub file: Option<TraceFile>,
}

/// A compressed trace file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceFile {
    pub name: String,
    /// Size of the compressed file in bytes.
    pub bytes: u64,
    /// Size of the uncompressed trace in bytes.
    pub bytes_unpacked: u64,
    /// XXH3 of the compressed bytes as 16 hexadecimal digits.
    pub checksum: String,
}

/// A request to sample the activity of processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SampleOrder {
    #[serde(default)]
    pub pids: Vec<u32>,
    /// Restricts the order to the run with this name. Without a run and process ids, all polling
    /// processes are sampled.
    pub run: Option<String>,
    pub length_ms: u64,
    pub every_ms: u64,
}

/// The sampled activity of some processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Samples {
    /// Length of the sampling.
    pub length_ms: u64,
    /// CPU time of sampling them, if the kernel reports it.
    pub spent_ms: Option<f64>,
    pub processes: Vec<Sampled>,
}

/// The sampled activity of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    pub pid: u32,
    pub rank: Option<u32>,
    pub command: String,
    pub looks: u32,
    /// Whether it ended meanwhile; then its usage is unknown.
    pub is_ended: bool,
    pub used: Used,
    /// Maximum of the resident memory over all samples.
    pub rss_peak_bytes: Option<u64>,
    /// Places where its threads ran or waited, most frequent first.
    pub waiting: Vec<Waiting>,
}

/// Resources used by a process; `None` if the kernel does not report them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Nanoseconds on a CPU.
    pub cpu_ns: Option<u64>,
    /// Nanoseconds in which it was runnable but had no CPU.
    pub run_delay_ns: Option<u64>,
    /// Number of times it gave up a CPU to wait.
    pub switches_voluntary: Option<u64>,
    /// Number of times it was preempted.
    pub switches_forced: Option<u64>,
    /// Page faults without disk access.
    pub faults_minor: Option<u64>,
    /// Page faults with disk access.
    pub faults_major: Option<u64>,
    pub read_bytes: Option<u64>,
    pub written_bytes: Option<u64>,
    pub read_calls: Option<u64>,
    pub write_calls: Option<u64>,
    pub threads: Option<u64>,
    pub rss_bytes: Option<u64>,
    /// Bytes in memory that belong to no file: memory that was allocated and touched.
    pub anonymous_bytes: Option<u64>,
    /// Growth of the anonymous memory.
    pub anonymous_grown_bytes: Option<i64>,
    pub swap_bytes: Option<u64>,
}

/// The threads of one name at one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    pub thread: String,
    /// `R` on a CPU or in its queue, `S` waiting, `D` waiting for a disk or driver, `T` stopped.
    pub state: String,
    /// Kernel functions of the stack, innermost first, or only the innermost one.
    pub at: Option<String>,
    /// Number of samples in which this was seen, over all threads.
    pub looks: u32,
}

/// A request to leave a GPU's counters to other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    pub gpu: u32,
    /// Length of the pause; 0 ends a pause.
    pub seconds: u64,
}

/// The error of a request that was not carried out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OrderRefusal {
    /// What, where, expected, got.
    pub error: String,
}
