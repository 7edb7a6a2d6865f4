//! The protobuf messages between an agent and a hub. An agent sends rows from a numbered queue,
//! fetches orders, and sends traces in parts. `proto/hub.proto` describes the messages for other
//! languages.
//!
//! Version 2 added runs, steps and events to the entries of a queue. A hub accepts every version
//! from [`VERSION_MIN`] on, and refuses later ones with a status after which agents keep their
//! entries. A new kind of entry or a changed meaning of a field needs a new version. A new field
//! that may be absent does not.

use std::collections::BTreeMap;

use prost::Message;

use crate::wire::{self, RecordWhen, TraceFile, TraceRow, TraceState};

/// The version of all messages in this module.
pub const VERSION: u32 = 2;
/// The oldest version that a hub accepts.
pub const VERSION_MIN: u32 = 1;
/// Path of the hub to which batches of rows are posted.
pub const BATCHES: &str = "/hub/v1/batches";
/// Path of the long poll for orders. The hub may delay its answer as long as the request allows.
pub const ORDERS: &str = "/hub/v1/orders";
/// Path of the hub to which parts of traces are posted.
pub const PARTS: &str = "/hub/v1/parts";
/// Content type of all requests and answers.
pub const CONTENT_TYPE: &str = "application/x-protobuf";
/// Maximum size of a message in bytes.
pub const SIZE_MAX: usize = 8 << 20;

/// Entries of one queue, in the order of their numbers. The hub answers with an [`Ack`].
#[derive(Clone, PartialEq, Message)]
pub struct EntryBatch {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    #[prost(string, tag = "2")]
    pub host: String,
    /// Identifies the queue by 16 random bytes. An agent that lost its folder starts a new queue.
    #[prost(bytes = "vec", tag = "3")]
    pub queue: Vec<u8>,
    /// Number up to which entries were delivered or dropped, so they will not be sent again.
    #[prost(uint64, tag = "4")]
    pub gone_through: u64,
    #[prost(message, repeated, tag = "5")]
    pub entries: Vec<Entry>,
    /// Time of the host's clock at which the batch was sent; absent in version 1.
    #[prost(uint64, optional, tag = "6")]
    pub sent_unix_ms: Option<u64>,
}

/// One entry of an agent's queue. Each number is used once, so that a hub stores no entry twice.
#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    /// Number of the entry within its queue, from 1.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    #[prost(oneof = "Body", tags = "3, 4, 5, 6, 7, 8")]
    pub body: Option<Body>,
}

/// The content of one entry of a queue.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Body {
    #[prost(message, tag = "3")]
    Gpu(Box<GpuInterval>),
    #[prost(message, tag = "4")]
    Host(Box<HostInterval>),
    #[prost(message, tag = "5")]
    Order(OrderState),
    #[prost(message, tag = "6")]
    Run(Box<RunReport>),
    #[prost(message, tag = "7")]
    Steps(Box<StepInterval>),
    #[prost(message, tag = "8")]
    Event(Box<HostEvent>),
}

/// The hub's confirmation that it has stored all entries up to a number.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Ack {
    #[prost(uint64, tag = "1")]
    pub through: u64,
}

/// Sums of one GPU over one interval. Values that the device does not report are absent, never
/// zero.
#[derive(Clone, PartialEq, Message)]
pub struct GpuInterval {
    /// Start of the interval in seconds since 1970.
    #[prost(uint64, tag = "1")]
    pub start_unix_s: u64,
    #[prost(uint32, tag = "2")]
    pub length_s: u32,
    /// Index of the GPU among the GPUs of the host.
    #[prost(uint32, tag = "3")]
    pub index: u32,
    /// Permanent UUID of the GPU or instance.
    #[prost(string, tag = "4")]
    pub uuid: String,
    #[prost(string, tag = "5")]
    pub model: String,
    /// Index of the MIG instance if the GPU is partitioned; absent for a whole GPU.
    #[prost(uint32, optional, tag = "6")]
    pub instance: Option<u32>,
    /// The runs to which the GPU is allocated.
    #[prost(message, repeated, tag = "7")]
    pub runs: Vec<GpuRun>,
    /// Number of seconds of the interval that were observed.
    #[prost(double, tag = "8")]
    pub observed_s: f64,
    #[prost(uint64, tag = "9")]
    pub reads: u64,
    /// Number of readings that contradict the previous reading.
    #[prost(uint64, tag = "10")]
    pub suspect: u64,
    /// Sums of the interval by name, such as `busy_s` or `energy_j`.
    #[prost(btree_map = "string, double", tag = "11")]
    pub sums: BTreeMap<String, f64>,
    /// Seconds in which the GPU was throttled, by reason.
    #[prost(btree_map = "string, double", tag = "12")]
    pub throttle_s: BTreeMap<String, f64>,
    /// Number of errors by kind. XID errors have names such as `xid_79`.
    #[prost(btree_map = "string, uint64", tag = "13")]
    pub errors: BTreeMap<String, u64>,
    /// Used memory in bytes at the last reading.
    #[prost(uint64, optional, tag = "14")]
    pub memory_used: Option<u64>,
    #[prost(uint64, optional, tag = "15")]
    pub memory_used_max: Option<u64>,
    /// Maximum power draw in watts.
    #[prost(double, optional, tag = "16")]
    pub power_max_w: Option<f64>,
    /// Maximum temperature in degrees Celsius.
    #[prost(double, optional, tag = "17")]
    pub temperature_max: Option<f64>,
}

/// A run that holds a GPU, as reported to the hub.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GpuRun {
    /// Source of the information about the run: `slurm`, `kubernetes` or `torchrun`.
    #[prost(string, tag = "1")]
    pub scheduler: String,
    /// The scheduler's name of the run. If only processes of a user name the run, the user follows,
    /// as in `7@eve`, so that this run differs from the scheduler's run 7.
    #[prost(string, tag = "2")]
    pub job: String,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub user: String,
    #[prost(string, tag = "5")]
    pub account: String,
    #[prost(string, tag = "6")]
    pub partition: String,
}

/// What an agent knows about a run on its host. The agent reports a run when it begins, changes or
/// ends, and once an hour meanwhile.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RunReport {
    /// Time of this report in seconds since 1970.
    #[prost(uint64, tag = "1")]
    pub seen_unix_s: u64,
    #[prost(message, optional, tag = "2")]
    pub run: Option<GpuRun>,
    /// Another name of the run, such as an array task or the UID of a pod.
    #[prost(string, tag = "3")]
    pub alias: String,
    #[prost(string, tag = "4")]
    pub workflow: String,
    /// Start of the first process of the run on this host. If the run has no known process, the
    /// time at which the agent first saw the run.
    #[prost(uint64, tag = "5")]
    pub started_unix_s: u64,
    /// Time at which the agent no longer found the run; absent while it lasts.
    #[prost(uint64, optional, tag = "6")]
    pub ended_unix_s: Option<u64>,
    /// Exit code; absent if it is unknown.
    #[prost(int32, optional, tag = "7")]
    pub exit_code: Option<i32>,
    /// Signal that ended the run; absent if there was none, or if it is unknown.
    #[prost(uint32, optional, tag = "8")]
    pub exit_signal: Option<u32>,
    /// Number of ranks on all hosts together, as the launcher set it.
    #[prost(uint32, optional, tag = "9")]
    pub ranks: Option<u32>,
    /// Number of known processes on this host.
    #[prost(uint32, tag = "10")]
    pub processes: u32,
    /// UUIDs of the GPUs that the run holds on this host.
    #[prost(string, repeated, tag = "11")]
    pub gpus: Vec<String>,
    /// State that the scheduler reports, in lowercase; empty if it is unknown.
    #[prost(string, tag = "12")]
    pub state: String,
}

/// The training steps of one process in one interval, as the process reported them. The run is the
/// one that the agent found for the process.
#[derive(Clone, PartialEq, Message)]
pub struct StepInterval {
    /// Start of the interval in seconds since 1970.
    #[prost(uint64, tag = "1")]
    pub start_unix_s: u64,
    #[prost(uint32, tag = "2")]
    pub length_s: u32,
    /// Absent if the process belongs to no known run.
    #[prost(message, optional, tag = "3")]
    pub run: Option<GpuRun>,
    #[prost(string, tag = "4")]
    pub workflow: String,
    #[prost(uint32, tag = "5")]
    pub pid: u32,
    #[prost(uint32, optional, tag = "6")]
    pub rank: Option<u32>,
    /// Phase at the end of the interval: `setup`, `train`, `evaluate` or `save`.
    #[prost(string, tag = "7")]
    pub phase: String,
    /// Seconds of the interval by phase.
    #[prost(btree_map = "string, double", tag = "8")]
    pub phase_s: BTreeMap<String, f64>,
    #[prost(uint64, tag = "9")]
    pub steps: u64,
    /// Number of steps whose time is known. A step has a time only if the process was training in
    /// the step before it, too.
    #[prost(uint64, tag = "10")]
    pub timed_steps: u64,
    /// Sum of the known step times.
    #[prost(double, tag = "11")]
    pub timed_s: f64,
    /// Quantiles of the known step times; absent if no step time is known.
    #[prost(double, optional, tag = "12")]
    pub step_p50_s: Option<f64>,
    #[prost(double, optional, tag = "13")]
    pub step_p95_s: Option<f64>,
    #[prost(double, optional, tag = "14")]
    pub step_max_s: Option<f64>,
    /// Number of samples of the steps; absent if the process does not report it.
    #[prost(uint64, optional, tag = "15")]
    pub samples: Option<u64>,
    /// Seconds of communication that did not overlap with computation; absent if the process does
    /// not report it.
    #[prost(double, optional, tag = "16")]
    pub exposed_s: Option<f64>,
}

/// Something that happened on a host, with details that depend on its kind.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostEvent {
    /// One word, such as `agent`, `hang`, `trace` or `sample`.
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(uint64, tag = "2")]
    pub start_unix_ms: u64,
    #[prost(uint64, tag = "3")]
    pub length_ms: u64,
    /// Whether the event has ended. An event that lasts is reported at its beginning, and again
    /// with the same start at its end.
    #[prost(bool, tag = "4")]
    pub is_over: bool,
    /// Absent if the event does not concern a run.
    #[prost(message, optional, tag = "5")]
    pub run: Option<GpuRun>,
    #[prost(uint32, optional, tag = "6")]
    pub pid: Option<u32>,
    #[prost(uint32, optional, tag = "7")]
    pub rank: Option<u32>,
    /// Further facts as a JSON object. Its keys depend on the kind.
    #[prost(string, tag = "8")]
    pub details: String,
}

/// Activity of the host in one interval, as differences of the kernel's counters.
#[derive(Clone, PartialEq, Message)]
pub struct HostInterval {
    /// Start of the interval in seconds since 1970.
    #[prost(uint64, tag = "1")]
    pub start_unix_s: u64,
    #[prost(uint32, tag = "2")]
    pub length_s: u32,
    /// Seconds between the two readings of the counters; 0 if the first reading is missing.
    #[prost(double, tag = "3")]
    pub observed_s: f64,
    /// CPU seconds by activity, summed over all CPUs.
    #[prost(btree_map = "string, double", tag = "4")]
    pub cpu_s: BTreeMap<String, f64>,
    /// Busy share of the cores as the quantiles p5, p25, p50, p75 and p95 over cores.
    #[prost(double, repeated, tag = "5")]
    pub cores_busy: Vec<f64>,
    /// Seconds in which some task waited for a resource, by resource.
    #[prost(btree_map = "string, double", tag = "6")]
    pub pressure_s: BTreeMap<String, f64>,
    #[prost(uint64, tag = "7")]
    pub memory_total: u64,
    /// Minimum of the memory that was available to a new program, in bytes.
    #[prost(uint64, tag = "8")]
    pub memory_available_min: u64,
    /// Bytes by device and direction: `network/eth0/receive`, `disk/sda/write`,
    /// `infiniband/mlx5_0:1/transmit`.
    #[prost(btree_map = "string, uint64", tag = "9")]
    pub bytes: BTreeMap<String, u64>,
    /// CPU seconds of the jobs by control group.
    #[prost(btree_map = "string, double", tag = "10")]
    pub group_cpu_s: BTreeMap<String, f64>,
}

/// A request for orders. The hub answers with [`Orders`], immediately or once it has orders.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct OrdersWanted {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    #[prost(string, tag = "2")]
    pub host: String,
    #[prost(bytes = "vec", tag = "3")]
    pub queue: Vec<u8>,
    /// Number of the last order that the agent has received.
    #[prost(uint64, tag = "4")]
    pub after: u64,
    /// Maximum time by which the hub may delay its answer.
    #[prost(uint32, tag = "5")]
    pub wait_ms: u32,
}

/// New orders for the agent, sorted by their numbers.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Orders {
    #[prost(message, repeated, tag = "1")]
    pub orders: Vec<Order>,
}

/// One order of the hub to an agent.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Order {
    /// Number of the order, which the hub assigns in ascending order for each queue.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(oneof = "Wanted", tags = "3, 4, 5, 6")]
    pub wanted: Option<Wanted>,
}

/// The action that an order requests.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Wanted {
    /// Agents without [`TraceOrder::run`] read orders with the number 2. They must not read orders
    /// of one run, because they would trace all runs.
    #[prost(message, tag = "5")]
    Trace(TraceOrder),
    /// Cancels the trace order with this name.
    #[prost(string, tag = "3")]
    Cancel(String),
    /// Leaves a GPU's counters to other programs.
    #[prost(message, tag = "4")]
    Pause(Pause),
    /// Sends a periodic trace that the agent has kept.
    #[prost(message, tag = "6")]
    Send(SendOrder),
}

/// An order to send a periodic trace that an event `trace` has announced.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SendOrder {
    /// Name of the order, which its states and the parts of the trace bear.
    #[prost(string, tag = "1")]
    pub token: String,
    /// Name under which the agent keeps the trace.
    #[prost(string, tag = "2")]
    pub kept: String,
}

/// The message for [`wire::TraceOrder`], with the same fields.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TraceOrder {
    #[prost(string, tag = "1")]
    pub token: String,
    /// Ids of the processes to trace. An empty list selects all processes.
    #[prost(uint32, repeated, tag = "2")]
    pub pids: Vec<u32>,
    /// Restricts the order to this Slurm job.
    #[prost(int64, optional, tag = "3")]
    pub job: Option<i64>,
    /// Number of complete iterations to record, or 0 to record for a duration.
    #[prost(uint32, tag = "4")]
    pub iterations: u32,
    /// Recording starts at the next multiple of this number of iterations.
    #[prost(uint32, tag = "5")]
    pub align: u32,
    /// Duration of the capture in milliseconds.
    #[prost(uint64, tag = "6")]
    pub length_ms: u64,
    /// Seconds for which the profiler runs before it records.
    #[prost(uint32, tag = "7")]
    pub warmup_s: u32,
    /// Time at which a recording with a duration starts, in milliseconds since 1970.
    #[prost(uint64, tag = "8")]
    pub start_unix_ms: u64,
    /// Optional content of the traces.
    #[prost(string, repeated, tag = "9")]
    pub with: Vec<String>,
    /// Maximum size of a trace in bytes; larger traces are rejected.
    #[prost(uint64, tag = "10")]
    pub size_max: u64,
    /// Maximum time until the recording starts, and afterwards without progress.
    #[prost(uint64, tag = "11")]
    pub patience_ms: u64,
    /// Earliest time at which a process may receive its request.
    #[prost(uint64, optional, tag = "12")]
    pub not_before_unix_ms: Option<u64>,
    /// Restricts the order to the run with this scheduler and job, as in `slurm/7` or
    /// `slurm/7@eve`.
    #[prost(string, optional, tag = "13")]
    pub run: Option<String>,
}

/// The message for [`wire::Pause`], with the same fields.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Pause {
    #[prost(uint32, tag = "1")]
    pub gpu: u32,
    /// Length of the pause in seconds; 0 ends a pause.
    #[prost(uint64, tag = "2")]
    pub seconds: u64,
}

/// The progress of an order, with the content of [`TraceState`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct OrderState {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Name of the trace order; empty for other orders.
    #[prost(string, tag = "2")]
    pub token: String,
    /// Whether the order has ended.
    #[prost(bool, tag = "3")]
    pub is_over: bool,
    /// The reason if the order was not carried out.
    #[prost(string, tag = "4")]
    pub error: String,
    /// The progress of each process of a trace order.
    #[prost(message, repeated, tag = "5")]
    pub processes: Vec<ProcessState>,
}

/// The progress of one process of an order.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ProcessState {
    #[prost(uint32, tag = "1")]
    pub pid: u32,
    #[prost(uint32, optional, tag = "2")]
    pub rank: Option<u32>,
    #[prost(string, tag = "3")]
    pub command: String,
    /// State of the request to the process, as one word.
    #[prost(string, tag = "4")]
    pub state: String,
    /// The reason if the process has no trace.
    #[prost(string, tag = "5")]
    pub reason: String,
    /// The trace of the process, which is sent in parts.
    #[prost(message, optional, tag = "6")]
    pub file: Option<TraceFileBytes>,
}

/// The message for [`TraceFile`], with the same fields.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TraceFileBytes {
    #[prost(string, tag = "1")]
    pub name: String,
    /// Size of the compressed file in bytes.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
    /// Size of the uncompressed trace in bytes.
    #[prost(uint64, tag = "3")]
    pub bytes_unpacked: u64,
    /// XXH3 of the compressed bytes as 16 hexadecimal digits.
    #[prost(string, tag = "4")]
    pub checksum: String,
}

/// A part of a trace file. A part without bytes asks how many bytes the hub has. The hub answers
/// with a [`PartAck`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TracePart {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    #[prost(string, tag = "2")]
    pub host: String,
    #[prost(bytes = "vec", tag = "3")]
    pub queue: Vec<u8>,
    #[prost(string, tag = "4")]
    pub token: String,
    #[prost(message, optional, tag = "5")]
    pub file: Option<TraceFileBytes>,
    /// Offset of these bytes in the compressed file.
    #[prost(uint64, tag = "6")]
    pub offset: u64,
    #[prost(bytes = "vec", tag = "7")]
    pub bytes: Vec<u8>,
}

/// The number of bytes that the hub has from the start of a file. The next part begins at this
/// offset.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct PartAck {
    #[prost(uint64, tag = "1")]
    pub received: u64,
}

impl From<TraceOrder> for wire::TraceOrder {
    fn from(order: TraceOrder) -> Self {
        let when = if order.iterations > 0 {
            RecordWhen::Iterations { count: order.iterations, align: order.align }
        } else {
            let TraceOrder { length_ms, warmup_s, start_unix_ms, .. } = order;
            RecordWhen::Duration { length_ms, warmup_s, start_unix_ms }
        };
        Self {
            token: order.token,
            pids: order.pids,
            job: order.job,
            run: order.run,
            when,
            with: order.with,
            size_max: order.size_max,
            patience_ms: order.patience_ms,
            not_before_unix_ms: order.not_before_unix_ms,
        }
    }
}

impl OrderState {
    /// Converts the state of a trace order.
    pub fn new(id: u64, state: &TraceState) -> Self {
        Self {
            id,
            token: state.token.clone(),
            is_over: state.is_over,
            error: String::new(),
            processes: state.rows.iter().map(ProcessState::from).collect(),
        }
    }

    /// Creates the state of an order that failed, or that was done immediately.
    pub fn ended(id: u64, token: &str, error: impl Into<String>) -> Self {
        let (token, error) = (token.to_owned(), error.into());
        Self { id, token, is_over: true, error, processes: Vec::new() }
    }
}

impl From<&TraceRow> for ProcessState {
    fn from(row: &TraceRow) -> Self {
        Self {
            pid: row.pid,
            rank: row.rank,
            command: row.command.clone(),
            state: row.state.clone(),
            reason: row.reason.clone().unwrap_or_default(),
            file: row.file.as_ref().map(TraceFileBytes::from),
        }
    }
}

impl From<&TraceFile> for TraceFileBytes {
    fn from(file: &TraceFile) -> Self {
        Self {
            name: file.name.clone(),
            bytes: file.bytes,
            bytes_unpacked: file.bytes_unpacked,
            checksum: file.checksum.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
