//! What an agent and those who ask it say to each other, as plain data. The same on both doors:
//! the Unix socket of a host, and the TLS port. Knows nothing of HTTP.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The version in every path.
pub const ROOT: &str = "/v1";

/// What an agent knows of its host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub host: String,
    /// Its wall clock when it answered.
    pub unix_ns: u64,
    pub processes: Vec<ProcessRow>,
    pub gpus: Vec<GpuRow>,
    /// Periodic traces, by workflow type; none where they are off.
    #[serde(default)]
    pub periodic: Vec<PeriodicRow>,
    /// What is missing, and why.
    pub notes: Vec<String>,
}

/// Periodic traces of one workflow type today, beside its budgets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeriodicRow {
    /// The user whose processes are of it.
    #[serde(default)]
    pub uid: u32,
    pub workflow: String,
    /// Traces that are kept.
    pub traces: u32,
    /// Traces that a day may have, lost ones included.
    pub traces_max: u32,
    /// Traces that were lost.
    pub lost: u32,
    /// Bytes that the profiler wrote.
    pub bytes: u64,
    /// Bytes that it may write in a day.
    pub bytes_max: u64,
    pub steps: u64,
    pub recorded: u64,
    /// The largest share of steps that is recorded.
    pub share_max: f64,
    /// How much longer steps took while the last trace was made, as a share.
    pub slowdown: Option<f64>,
    /// Standard deviation of that share without a trace, where it is known.
    #[serde(default)]
    pub spread: Option<f64>,
    /// Traces in a row with a slowdown that the spread does not explain.
    #[serde(default)]
    pub slow_in_row: u32,
    /// Seconds for which no trace is made, because steps were slow.
    pub backs_off_s: Option<u64>,
    /// What it waits for.
    pub state: String,
    /// Why the last trace was lost, if it was.
    pub problem: Option<String>,
}

/// One process that asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessRow {
    pub pid: u32,
    pub uid: u32,
    /// Name of its user, where the agent knows it.
    #[serde(default)]
    pub user: Option<String>,
    pub rank: Option<u32>,
    /// Ranks of its job.
    pub world_size: Option<u32>,
    /// Its job, by its scheduler.
    pub job: Option<String>,
    /// Everything that names its job: an array task, `namespace/pod` or the pod's UID, too.
    #[serde(default)]
    pub names: Vec<String>,
    pub command: String,
    /// Milliseconds since it asked.
    pub polled_ms: u64,
    /// Whether its profiler is free.
    pub is_free: bool,
    /// Why it would not be traced.
    pub skip: Option<String>,
    /// What it does, where it reports steps.
    pub phase: Option<String>,
    pub step: Option<u64>,
    /// The median of its last step times.
    pub step_ns: Option<u64>,
    /// Whether it seems to hang.
    pub is_hung: bool,
}

/// One GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GpuRow {
    pub index: u32,
    /// Its name for ever.
    pub uuid: String,
    /// Its model.
    pub model: String,
    /// Why it cannot be read.
    pub lost: Option<String>,
    /// Share of the last interval that it worked.
    pub busy: Option<f64>,
    /// Share of the last interval that its SMs worked.
    pub sm_active: Option<f64>,
    /// Seconds of the last interval that were observed.
    pub observed_s: f64,
    /// Who has it allocated.
    pub job: Option<String>,
    /// Whether it is allocated, and has not worked in the last interval.
    pub is_held_idle: bool,
    /// Seconds for which its counters are left to others.
    pub paused_s: Option<u64>,
}

/// A wish for traces.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceOrder {
    /// Its name, of letters, digits and `-`, the same on all hosts.
    pub token: String,
    /// These processes, or those below them; all where empty.
    #[serde(default)]
    pub pids: Vec<u32>,
    /// Of this Slurm job only.
    pub job: Option<i64>,
    /// When, and how long.
    pub when: RecordWhen,
    /// What beside names and times: `shapes`, `stacks`, `flops`, `modules`, `memory`.
    #[serde(default)]
    pub with: Vec<String>,
    /// Larger traces are refused.
    pub size_max: u64,
    /// How long to wait for the start, and for progress.
    pub patience_ms: u64,
    /// No process is answered before.
    pub not_before_unix_ms: Option<u64>,
}

impl TraceOrder {
    /// What may be recorded beside names and times.
    pub const DETAILS: [&'static str; 5] = ["shapes", "stacks", "flops", "modules", "memory"];
}

impl fmt::Display for TraceOrder {
    /// Says what is recorded, for the audit log.
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

/// When to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum RecordWhen {
    Iterations {
        count: u32,
        /// From the next multiple of this.
        align: u32,
    },
    /// A span of time.
    Duration {
        length_ms: u64,
        /// Seconds the profiler runs before.
        warmup_s: u32,
        start_unix_ms: u64,
    },
}

/// Where an order stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceState {
    pub token: String,
    /// Whether nothing more will happen.
    pub is_over: bool,
    /// One row per process.
    pub rows: Vec<TraceRow>,
}

/// One process of an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceRow {
    pub pid: u32,
    pub rank: Option<u32>,
    pub command: String,
    /// Where its request stands.
    pub state: String,
    /// Why there is no trace.
    pub reason: Option<String>,
    /// The file to fetch, once it is written.
    pub file: Option<TraceFile>,
}

/// A trace, compressed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceFile {
    pub name: String,
    /// Its bytes, compressed.
    pub bytes: u64,
    /// Its bytes as PyTorch wrote them.
    pub bytes_unpacked: u64,
    /// XXH3 of the compressed bytes, 16 hexadecimal digits.
    pub checksum: String,
}

/// A wish to know what processes do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SampleOrder {
    #[serde(default)]
    pub pids: Vec<u32>,
    /// Polling processes of this run, as its scheduler names it. Where neither is said, everyone
    /// who asks.
    pub run: Option<String>,
    pub length_ms: u64,
    pub every_ms: u64,
}

/// What processes did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Samples {
    /// How long they were looked at.
    pub length_ms: u64,
    /// CPU time of sampling them, if the kernel reports it.
    pub spent_ms: Option<f64>,
    pub processes: Vec<Sampled>,
}

/// What one process did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    pub pid: u32,
    pub rank: Option<u32>,
    pub command: String,
    pub looks: u32,
    /// Whether it ended meanwhile; what it used is not known then.
    pub is_ended: bool,
    pub used: Used,
    /// Bytes in memory at the fullest look.
    pub rss_peak_bytes: Option<u64>,
    /// Where its threads ran or waited, by how often that was seen.
    pub waiting: Vec<Waiting>,
}

/// What a process used; `None` where the kernel does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Nanoseconds on a CPU.
    pub cpu_ns: Option<u64>,
    /// Nanoseconds in which it could run and no CPU was free.
    pub run_delay_ns: Option<u64>,
    /// Times it gave a CPU up to wait.
    pub switches_voluntary: Option<u64>,
    /// Times a CPU was taken from it.
    pub switches_forced: Option<u64>,
    /// Page faults without a disk.
    pub faults_minor: Option<u64>,
    /// Page faults with one.
    pub faults_major: Option<u64>,
    /// Bytes from disks.
    pub read_bytes: Option<u64>,
    /// Bytes to disks.
    pub written_bytes: Option<u64>,
    pub read_calls: Option<u64>,
    pub write_calls: Option<u64>,
    pub threads: Option<u64>,
    /// Bytes in memory.
    pub rss_bytes: Option<u64>,
    /// Bytes in memory that are no file's: what it allocated and touched.
    pub anonymous_bytes: Option<u64>,
    /// By how much that grew.
    pub anonymous_grown_bytes: Option<i64>,
    /// Bytes in swap.
    pub swap_bytes: Option<u64>,
}

/// Threads of one name in one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    pub thread: String,
    /// `R` on a CPU or in its queue, `S` waiting, `D` waiting for a disk or driver, `T` stopped.
    pub state: String,
    /// Where the kernel holds them: the functions of its stack, innermost first, or that one alone.
    pub at: Option<String>,
    /// How often that was seen, all threads together.
    pub looks: u32,
}

/// A wish to leave a GPU's counters to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    pub gpu: u32,
    /// For how long; 0 ends a pause.
    pub seconds: u64,
}

/// Why something was not done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OrderRefusal {
    /// What, where, expected, got.
    pub error: String,
}
