//! The messages between an agent and its clients as plain data. The Unix socket of a host and the
//! TLS port use the same messages.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The protocol version, with which the path of every request begins.
pub const ROOT: &str = "/v1";

/// The status of an agent and its host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub host: String,
    /// Time of the answer on the agent's wall clock.
    pub unix_ns: u64,
    pub processes: Vec<ProcessRow>,
    pub gpus: Vec<GpuRow>,
    /// Periodic traces by workflow type; empty if they are off.
    #[serde(default)]
    pub periodic: Vec<PeriodicRow>,
    /// Notes on information that is missing, with the reason.
    pub notes: Vec<String>,
}

/// The periodic traces of one workflow type today, and their budgets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeriodicRow {
    /// Id of the user whose processes belong to this workflow type.
    #[serde(default)]
    pub uid: u32,
    pub workflow: String,
    /// Number of traces that were kept.
    pub traces: u32,
    /// Maximum number of traces per day, including lost ones.
    pub traces_max: u32,
    pub lost: u32,
    /// Bytes written by the profiler.
    pub bytes: u64,
    /// Maximum number of bytes that the profiler may write per day.
    pub bytes_max: u64,
    pub steps: u64,
    pub recorded: u64,
    /// Maximum share of the steps that may be recorded.
    pub share_max: f64,
    /// Relative slowdown of the steps during the last trace, such as 0.03.
    pub slowdown: Option<f64>,
    /// Standard deviation of the relative slowdown in windows without a trace, if known.
    #[serde(default)]
    pub spread: Option<f64>,
    /// Number of consecutive traces with a significant slowdown.
    #[serde(default)]
    pub slow_in_row: u32,
    /// Seconds until the next trace is allowed, if traces slowed the steps down.
    pub backs_off_s: Option<u64>,
    /// The event or condition for which the next trace waits.
    pub state: String,
    /// The reason if the last trace was lost.
    pub problem: Option<String>,
}

/// One process that polls for requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessRow {
    pub pid: u32,
    pub uid: u32,
    /// Name of the process's user, if known.
    #[serde(default)]
    pub user: Option<String>,
    pub rank: Option<u32>,
    /// Number of ranks of the process's job.
    pub world_size: Option<u32>,
    /// Name of the process's job in its scheduler.
    pub job: Option<String>,
    /// All names of the process's job, including an array task, `namespace/pod` or the pod's UID.
    #[serde(default)]
    pub names: Vec<String>,
    pub command: String,
    /// Milliseconds since the last poll.
    pub polled_ms: u64,
    /// Whether the process's profiler is free.
    pub is_free: bool,
    /// The reason why an order would not trace the process.
    pub skip: Option<String>,
    /// Training phase of the process, if it reports steps.
    pub phase: Option<String>,
    pub step: Option<u64>,
    /// Median of the last step times.
    pub step_ns: Option<u64>,
    /// Whether the process seems to hang.
    pub is_hung: bool,
}

/// One GPU of the host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GpuRow {
    pub index: u32,
    /// The permanent UUID of the GPU.
    pub uuid: String,
    pub model: String,
    /// The reason if the GPU cannot be read.
    pub lost: Option<String>,
    /// Share of the last interval in which the GPU was busy.
    pub busy: Option<f64>,
    /// Share of the last interval in which SMs were active.
    pub sm_active: Option<f64>,
    /// Number of observed seconds of the last interval.
    pub observed_s: f64,
    /// The run to which the GPU is allocated.
    pub job: Option<String>,
    /// Whether the GPU is allocated but was idle in the last interval.
    pub is_held_idle: bool,
    /// Seconds for which the GPU's counters are still left to other programs.
    pub paused_s: Option<u64>,
}

/// A request for traces of some processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceOrder {
    /// Name of the order, which is the same on all hosts: letters, digits and `-`.
    pub token: String,
    /// Ids of the processes to trace, or of their ancestors. An empty list selects all processes.
    #[serde(default)]
    pub pids: Vec<u32>,
    /// Restricts the order to this Slurm job.
    pub job: Option<i64>,
    /// Restricts the order to the run with this scheduler and job, as rows of the hub name it.
    #[serde(default)]
    pub run: Option<String>,
    pub when: RecordWhen,
    /// Optional content of the traces: `shapes`, `stacks`, `flops`, `modules`, `memory`.
    #[serde(default)]
    pub with: Vec<String>,
    /// Maximum size of a trace in bytes; larger traces are rejected.
    pub size_max: u64,
    /// Maximum time until the recording starts, and afterwards without progress.
    pub patience_ms: u64,
    /// Earliest time at which a process may receive its request.
    pub not_before_unix_ms: Option<u64>,
}

impl TraceOrder {
    /// All allowed values of `with`.
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
        /// Recording starts at the next multiple of this number of iterations.
        align: u32,
    },
    Duration {
        length_ms: u64,
        /// Seconds for which the profiler runs before it records.
        warmup_s: u32,
        start_unix_ms: u64,
    },
}

/// The progress of a trace order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceState {
    pub token: String,
    /// Whether the order has ended for all processes.
    pub is_over: bool,
    /// The progress of each process of the order.
    pub rows: Vec<TraceRow>,
}

/// The progress of one process of an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceRow {
    pub pid: u32,
    pub rank: Option<u32>,
    pub command: String,
    /// State of the request to the process, as one word.
    pub state: String,
    /// The reason if the process has no trace.
    pub reason: Option<String>,
    /// The trace file to fetch, once it is written.
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
    /// Time during which samples were taken.
    pub length_ms: u64,
    /// CPU time that the agent spent on sampling, if the kernel reports it.
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
    /// Whether the process ended before its usage was read. The usage is unknown then.
    pub is_ended: bool,
    pub used: Used,
    /// Maximum of the resident memory over all samples.
    pub rss_peak_bytes: Option<u64>,
    /// Places where the process's threads ran or waited, most frequent first.
    pub waiting: Vec<Waiting>,
}

/// Resources used by a process; `None` if the kernel does not report them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Nanoseconds that its threads spent on a CPU.
    pub cpu_ns: Option<u64>,
    /// Nanoseconds in which its threads were runnable but had no CPU.
    pub run_delay_ns: Option<u64>,
    /// Number of times a thread gave up its CPU to wait.
    pub switches_voluntary: Option<u64>,
    /// Number of times a thread was preempted.
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
    /// Resident bytes that do not belong to a file, which is memory that was allocated and touched.
    pub anonymous_bytes: Option<u64>,
    /// Growth of the anonymous memory between the first and the last reading.
    pub anonymous_grown_bytes: Option<i64>,
    pub swap_bytes: Option<u64>,
}

/// The threads with the same name at the same place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    pub thread: String,
    /// State of the threads: `R` on a CPU or in its queue, `S` waiting, `D` waiting for a disk or
    /// driver, `T` stopped.
    pub state: String,
    /// Functions of the kernel stack, innermost first, or only the innermost one without root.
    pub at: Option<String>,
    /// Number of samples with this thread name, state and place, over all threads.
    pub looks: u32,
}

/// A request to leave a GPU's counters to other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    pub gpu: u32,
    /// Length of the pause in seconds; 0 ends a pause.
    pub seconds: u64,
}

/// The error of a request that was not carried out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OrderRefusal {
    /// Text of the error: what is wrong, where, and what was expected.
    pub error: String,
}
