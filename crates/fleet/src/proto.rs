//! The protobuf messages between an agent and a hub: rows from a numbered queue, orders that the
//! agent fetches, and traces in parts. `proto/hub.proto` describes them for other languages.

use std::collections::BTreeMap;

use prost::Message;

use crate::wire::{self, RecordWhen, TraceFile, TraceRow, TraceState};

/// The version of all messages in this module.
pub const VERSION: u32 = 1;
/// Path for posting batches of rows.
pub const BATCHES: &str = "/hub/v1/batches";
/// Path of the long poll for orders. The answer may take as long as the request allows.
pub const ORDERS: &str = "/hub/v1/orders";
/// Path for posting parts of traces.
pub const PARTS: &str = "/hub/v1/parts";
/// Content type of all requests and answers.
pub const CONTENT_TYPE: &str = "application/x-protobuf";
/// Limit of a message's size in bytes.
pub const SIZE_MAX: usize = 8 << 20;

/// Entries of one queue, in the order of their numbers. Answered by [`Ack`].
#[derive(Clone, PartialEq, Message)]
pub struct EntryBatch {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    #[prost(string, tag = "2")]
    pub host: String,
    /// Identifies the queue by 16 random bytes. An agent that lost its folder starts a new queue.
    #[prost(bytes = "vec", tag = "3")]
    pub queue: Vec<u8>,
    /// Entries up to this number were delivered or dropped, and will not be sent again.
    #[prost(uint64, tag = "4")]
    pub gone_through: u64,
    #[prost(message, repeated, tag = "5")]
    pub entries: Vec<Entry>,
}

/// One entry of a queue. Each number is used once, so that a hub stores no entry twice.
#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    /// Counts from 1 within the queue.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    #[prost(oneof = "Body", tags = "3, 4, 5")]
    pub body: Option<Body>,
}

/// The content of an entry.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Body {
    #[prost(message, tag = "3")]
    Gpu(Box<GpuInterval>),
    #[prost(message, tag = "4")]
    Host(Box<HostInterval>),
    #[prost(message, tag = "5")]
    Order(OrderState),
}

/// Confirms that all entries up to a number are stored.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Ack {
    #[prost(uint64, tag = "1")]
    pub through: u64,
}

/// Sums of one GPU over one interval. Values that the device does not report are absent, never
/// zero.
#[derive(Clone, PartialEq, Message)]
pub struct GpuInterval {
    /// Start, in seconds since 1970.
    #[prost(uint64, tag = "1")]
    pub start_unix_s: u64,
    #[prost(uint32, tag = "2")]
    pub length_s: u32,
    /// Index among the GPUs of the host.
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
    /// Observed seconds. The rest of the interval was not observed.
    #[prost(double, tag = "8")]
    pub observed_s: f64,
    #[prost(uint64, tag = "9")]
    pub reads: u64,
    /// Number of readings that contradict the previous one.
    #[prost(uint64, tag = "10")]
    pub suspect: u64,
    /// Sums by name, such as `busy_s` or `energy_j`.
    #[prost(btree_map = "string, double", tag = "11")]
    pub sums: BTreeMap<String, f64>,
    /// Throttled seconds by reason.
    #[prost(btree_map = "string, double", tag = "12")]
    pub throttle_s: BTreeMap<String, f64>,
    /// Number of errors by kind; XID errors as `xid_79`.
    #[prost(btree_map = "string, uint64", tag = "13")]
    pub errors: BTreeMap<String, u64>,
    /// Last reading of the used memory.
    #[prost(uint64, optional, tag = "14")]
    pub memory_used: Option<u64>,
    #[prost(uint64, optional, tag = "15")]
    pub memory_used_max: Option<u64>,
    /// Maximum power draw in watts.
    #[prost(double, optional, tag = "16")]
    pub power_max_w: Option<f64>,
    /// Maximum in degrees Celsius.
    #[prost(double, optional, tag = "17")]
    pub temperature_max: Option<f64>,
}

/// A run that holds a GPU.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GpuRun {
    /// Source of the information: `slurm`, `kubernetes`, `torchrun`, `prolog`.
    #[prost(string, tag = "1")]
    pub scheduler: String,
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

/// Activity of the host in one interval, as differences of the kernel's counters.
#[derive(Clone, PartialEq, Message)]
pub struct HostInterval {
    /// Start, in seconds since 1970.
    #[prost(uint64, tag = "1")]
    pub start_unix_s: u64,
    #[prost(uint32, tag = "2")]
    pub length_s: u32,
    /// Seconds between the two readings of the counters; 0 if there was no first one.
    #[prost(double, tag = "3")]
    pub observed_s: f64,
    /// Seconds of all CPUs by activity.
    #[prost(btree_map = "string, double", tag = "4")]
    pub cpu_s: BTreeMap<String, f64>,
    /// Busy share of cores: p5, p25, p50, p75, p95 over cores.
    #[prost(double, repeated, tag = "5")]
    pub cores_busy: Vec<f64>,
    /// Seconds in which some tasks waited, by resource.
    #[prost(btree_map = "string, double", tag = "6")]
    pub pressure_s: BTreeMap<String, f64>,
    #[prost(uint64, tag = "7")]
    pub memory_total: u64,
    /// Minimum of the memory available to a new program, in bytes.
    #[prost(uint64, tag = "8")]
    pub memory_available_min: u64,
    /// Bytes by device and direction: `network/eth0/receive`, `disk/sda/write`,
    /// `infiniband/mlx5_0:1/transmit`.
    #[prost(btree_map = "string, uint64", tag = "9")]
    pub bytes: BTreeMap<String, u64>,
    /// CPU seconds by control group of a job.
    #[prost(btree_map = "string, double", tag = "10")]
    pub group_cpu_s: BTreeMap<String, f64>,
}

/// A request for orders. Answered by [`Orders`], immediately or when there are some.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct OrdersWanted {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    #[prost(string, tag = "2")]
    pub host: String,
    #[prost(bytes = "vec", tag = "3")]
    pub queue: Vec<u8>,
    /// The last order number the agent knows.
    #[prost(uint64, tag = "4")]
    pub after: u64,
    /// Time limit for delaying the answer.
    #[prost(uint32, tag = "5")]
    pub wait_ms: u32,
}

/// Orders in the order of their numbers; empty if there are none.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Orders {
    #[prost(message, repeated, tag = "1")]
    pub orders: Vec<Order>,
}

/// One order to an agent.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Order {
    /// Assigned by the hub in ascending order for each queue.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(oneof = "Wanted", tags = "2, 3, 4")]
    pub wanted: Option<Wanted>,
}

/// The action that an order requests.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Wanted {
    #[prost(message, tag = "2")]
    Trace(TraceOrder),
    /// Cancels the trace order of this name.
    #[prost(string, tag = "3")]
    Cancel(String),
    /// Leaves a GPU's counters to other programs.
    #[prost(message, tag = "4")]
    Pause(Pause),
}

/// The message for [`wire::TraceOrder`], with the same fields.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TraceOrder {
    #[prost(string, tag = "1")]
    pub token: String,
    /// Process ids; empty selects all.
    #[prost(uint32, repeated, tag = "2")]
    pub pids: Vec<u32>,
    /// Restricts the order to this Slurm job.
    #[prost(int64, optional, tag = "3")]
    pub job: Option<i64>,
    /// Number of complete iterations; 0 for a duration.
    #[prost(uint32, tag = "4")]
    pub iterations: u32,
    /// Recording starts at the next multiple of this iteration.
    #[prost(uint32, tag = "5")]
    pub align: u32,
    /// Duration of the capture in milliseconds.
    #[prost(uint64, tag = "6")]
    pub length_ms: u64,
    /// Seconds the profiler runs before recording.
    #[prost(uint32, tag = "7")]
    pub warmup_s: u32,
    /// Start of the duration.
    #[prost(uint64, tag = "8")]
    pub start_unix_ms: u64,
    /// Optional content of the traces.
    #[prost(string, repeated, tag = "9")]
    pub with: Vec<String>,
    /// Larger traces are rejected.
    #[prost(uint64, tag = "10")]
    pub size_max: u64,
    /// Time limit for the start, and without progress.
    #[prost(uint64, tag = "11")]
    pub patience_ms: u64,
    /// Earliest time to answer a process with a request.
    #[prost(uint64, optional, tag = "12")]
    pub not_before_unix_ms: Option<u64>,
}

/// The message for [`wire::Pause`], with the same fields.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Pause {
    #[prost(uint32, tag = "1")]
    pub gpu: u32,
    /// Length of the pause; 0 ends a pause.
    #[prost(uint64, tag = "2")]
    pub seconds: u64,
}

/// The progress of an order, like [`TraceState`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct OrderState {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Name of its traces; empty for other orders.
    #[prost(string, tag = "2")]
    pub token: String,
    /// Whether the state is final.
    #[prost(bool, tag = "3")]
    pub is_over: bool,
    /// The reason if nothing was done.
    #[prost(string, tag = "4")]
    pub error: String,
    /// One row per process.
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
    /// State of its request.
    #[prost(string, tag = "4")]
    pub state: String,
    /// The reason if there is no trace.
    #[prost(string, tag = "5")]
    pub reason: String,
    /// Its trace, which is sent in parts.
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

/// A part of a trace. Without bytes, it asks how much the hub has. Answered by [`PartAck`].
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
    /// Offset of the bytes in the file.
    #[prost(uint64, tag = "6")]
    pub offset: u64,
    #[prost(bytes = "vec", tag = "7")]
    pub bytes: Vec<u8>,
}

/// The number of leading bytes of a file that the hub has. The next part begins there.
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
