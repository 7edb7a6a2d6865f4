//! What an agent and a hub say to each other, in protobuf: rows from a numbered queue, orders that
//! the agent fetches, and traces in parts. `proto/hub.proto` is the same for other languages. Knows
//! nothing of HTTP, of queues or of who counts.

use std::collections::BTreeMap;

use prost::Message;

use crate::wire::{self, RecordWhen, TraceFile, TraceRow, TraceState};

/// The version of every message here.
pub const VERSION: u32 = 1;
/// Where batches of rows are posted.
pub const BATCHES: &str = "/hub/v1/batches";
/// Path of the long poll for orders; the answer may take as long as the request allows.
pub const ORDERS: &str = "/hub/v1/orders";
/// Where traces are posted in parts.
pub const PARTS: &str = "/hub/v1/parts";
/// The content type of all of them.
pub const CONTENT_TYPE: &str = "application/x-protobuf";
/// Bytes of the largest message.
pub const SIZE_MAX: usize = 8 << 20;

/// Entries of one queue, in the order of their numbers. Answered by [`Ack`].
#[derive(Clone, PartialEq, Message)]
pub struct EntryBatch {
    /// [`VERSION`].
    #[prost(uint32, tag = "1")]
    pub version: u32,
    #[prost(string, tag = "2")]
    pub host: String,
    /// Which queue: 16 random bytes. An agent that lost its folder begins another queue.
    #[prost(bytes = "vec", tag = "3")]
    pub queue: Vec<u8>,
    /// Entries up to this number are delivered or dropped: they come no more.
    #[prost(uint64, tag = "4")]
    pub gone_through: u64,
    #[prost(message, repeated, tag = "5")]
    pub entries: Vec<Entry>,
}

/// One entry. A number of a queue is used once, so that no entry is stored twice.
#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    /// Its number in the queue, from 1.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    #[prost(oneof = "Body", tags = "3, 4, 5")]
    pub body: Option<Body>,
}

/// What an entry says.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Body {
    /// An interval of a GPU.
    #[prost(message, tag = "3")]
    Gpu(Box<GpuInterval>),
    /// An interval of the host.
    #[prost(message, tag = "4")]
    Host(Box<HostInterval>),
    /// Where an order stands.
    #[prost(message, tag = "5")]
    Order(OrderState),
}

/// Everything up to a number is stored.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Ack {
    #[prost(uint64, tag = "1")]
    pub through: u64,
}

/// Sums of one GPU over one interval; what the device does not tell is absent, never zero.
#[derive(Clone, PartialEq, Message)]
pub struct GpuInterval {
    /// When it began, seconds since 1970.
    #[prost(uint64, tag = "1")]
    pub start_unix_s: u64,
    /// Its length in seconds.
    #[prost(uint32, tag = "2")]
    pub length_s: u32,
    /// Its place among the GPUs of the host.
    #[prost(uint32, tag = "3")]
    pub index: u32,
    /// The GPU's or the instance's name for ever.
    #[prost(string, tag = "4")]
    pub uuid: String,
    /// Its model.
    #[prost(string, tag = "5")]
    pub model: String,
    /// The instance of a shared GPU.
    #[prost(uint32, optional, tag = "6")]
    pub instance: Option<u32>,
    /// Who has it allocated.
    #[prost(message, repeated, tag = "7")]
    pub runs: Vec<GpuRun>,
    /// Seconds that were observed; the rest of the interval is unobserved.
    #[prost(double, tag = "8")]
    pub observed_s: f64,
    #[prost(uint64, tag = "9")]
    pub reads: u64,
    /// Readings that contradict the one before.
    #[prost(uint64, tag = "10")]
    pub suspect: u64,
    /// Sums by name, such as `busy_s` or `energy_j`.
    #[prost(btree_map = "string, double", tag = "11")]
    pub sums: BTreeMap<String, f64>,
    /// Seconds held down, by reason.
    #[prost(btree_map = "string, double", tag = "12")]
    pub throttle_s: BTreeMap<String, f64>,
    /// Errors, by kind; XID errors as `xid_79`.
    #[prost(btree_map = "string, uint64", tag = "13")]
    pub errors: BTreeMap<String, u64>,
    /// The last reading of memory in use.
    #[prost(uint64, optional, tag = "14")]
    pub memory_used: Option<u64>,
    #[prost(uint64, optional, tag = "15")]
    pub memory_used_max: Option<u64>,
    /// Watts at most.
    #[prost(double, optional, tag = "16")]
    pub power_max_w: Option<f64>,
    /// Degrees Celsius at most.
    #[prost(double, optional, tag = "17")]
    pub temperature_max: Option<f64>,
}

/// A run that holds a GPU.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GpuRun {
    /// Who says so: `slurm`, `kubernetes`, `torchrun`, `prolog`.
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
    /// Partition or name space.
    #[prost(string, tag = "6")]
    pub partition: String,
}

/// What the host did in one interval: differences of the kernel's counters, never their values.
#[derive(Clone, PartialEq, Message)]
pub struct HostInterval {
    /// When it began, seconds since 1970.
    #[prost(uint64, tag = "1")]
    pub start_unix_s: u64,
    /// Its length in seconds.
    #[prost(uint32, tag = "2")]
    pub length_s: u32,
    /// Seconds between the readings that the differences are of; 0 where there was no first one.
    #[prost(double, tag = "3")]
    pub observed_s: f64,
    /// Seconds of all CPUs, by what they did.
    #[prost(btree_map = "string, double", tag = "4")]
    pub cpu_s: BTreeMap<String, f64>,
    /// Share of time that cores worked: p5, p25, p50, p75, p95 over cores.
    #[prost(double, repeated, tag = "5")]
    pub cores_busy: Vec<f64>,
    /// Seconds in which some tasks waited, by resource.
    #[prost(btree_map = "string, double", tag = "6")]
    pub pressure_s: BTreeMap<String, f64>,
    /// Bytes of memory.
    #[prost(uint64, tag = "7")]
    pub memory_total: u64,
    /// Bytes that a new program could have had, at the fullest moment.
    #[prost(uint64, tag = "8")]
    pub memory_available_min: u64,
    /// Bytes by device and direction: `network/eth0/receive`, `disk/sda/write`,
    /// `infiniband/mlx5_0:1/transmit`.
    #[prost(btree_map = "string, uint64", tag = "9")]
    pub bytes: BTreeMap<String, u64>,
    /// Seconds of CPU by the control group of a job.
    #[prost(btree_map = "string, double", tag = "10")]
    pub group_cpu_s: BTreeMap<String, f64>,
}

/// A question for orders. Answered by [`Orders`], at once or when there are some.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct OrdersWanted {
    /// [`VERSION`].
    #[prost(uint32, tag = "1")]
    pub version: u32,
    #[prost(string, tag = "2")]
    pub host: String,
    #[prost(bytes = "vec", tag = "3")]
    pub queue: Vec<u8>,
    /// Orders up to this number are known.
    #[prost(uint64, tag = "4")]
    pub after: u64,
    /// How long the answer may be held back.
    #[prost(uint32, tag = "5")]
    pub wait_ms: u32,
}

/// Orders, in the order of their numbers; none where nothing is wanted.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Orders {
    #[prost(message, repeated, tag = "1")]
    pub orders: Vec<Order>,
}

/// One order.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Order {
    /// Its number: the hub counts upwards for each queue.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(oneof = "Wanted", tags = "2, 3, 4")]
    pub wanted: Option<Wanted>,
}

/// What an order wants.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Wanted {
    #[prost(message, tag = "2")]
    Trace(TraceOrder),
    /// No more of the trace order of this name.
    #[prost(string, tag = "3")]
    Cancel(String),
    /// A GPU's counters left to others.
    #[prost(message, tag = "4")]
    Pause(Pause),
}

/// As [`wire::TraceOrder`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TraceOrder {
    #[prost(string, tag = "1")]
    pub token: String,
    /// These processes; all where empty.
    #[prost(uint32, repeated, tag = "2")]
    pub pids: Vec<u32>,
    /// Of this Slurm job only.
    #[prost(int64, optional, tag = "3")]
    pub job: Option<i64>,
    /// Whole iterations; 0 for a span of time.
    #[prost(uint32, tag = "4")]
    pub iterations: u32,
    /// From the next multiple of this.
    #[prost(uint32, tag = "5")]
    pub align: u32,
    /// Milliseconds of a span of time.
    #[prost(uint64, tag = "6")]
    pub length_ms: u64,
    /// Seconds the profiler runs before it.
    #[prost(uint32, tag = "7")]
    pub warmup_s: u32,
    /// When the span begins.
    #[prost(uint64, tag = "8")]
    pub start_unix_ms: u64,
    /// What beside names and times.
    #[prost(string, repeated, tag = "9")]
    pub with: Vec<String>,
    /// Larger traces are refused.
    #[prost(uint64, tag = "10")]
    pub size_max: u64,
    /// How long to wait for the start, and for progress.
    #[prost(uint64, tag = "11")]
    pub patience_ms: u64,
    /// No process is answered before.
    #[prost(uint64, optional, tag = "12")]
    pub not_before_unix_ms: Option<u64>,
}

/// As [`wire::Pause`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Pause {
    #[prost(uint32, tag = "1")]
    pub gpu: u32,
    /// For how long; 0 ends a pause.
    #[prost(uint64, tag = "2")]
    pub seconds: u64,
}

/// Where an order stands, as [`TraceState`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct OrderState {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The name of its traces; empty for other orders.
    #[prost(string, tag = "2")]
    pub token: String,
    /// Whether nothing more will happen.
    #[prost(bool, tag = "3")]
    pub is_over: bool,
    /// Why nothing was done.
    #[prost(string, tag = "4")]
    pub error: String,
    /// One row per process.
    #[prost(message, repeated, tag = "5")]
    pub processes: Vec<ProcessState>,
}

/// One process of an order.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ProcessState {
    #[prost(uint32, tag = "1")]
    pub pid: u32,
    #[prost(uint32, optional, tag = "2")]
    pub rank: Option<u32>,
    #[prost(string, tag = "3")]
    pub command: String,
    /// Where its request stands.
    #[prost(string, tag = "4")]
    pub state: String,
    /// Why there is no trace.
    #[prost(string, tag = "5")]
    pub reason: String,
    /// Its trace, which comes in parts.
    #[prost(message, optional, tag = "6")]
    pub file: Option<TraceFileBytes>,
}

/// As [`TraceFile`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TraceFileBytes {
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its bytes, compressed.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
    /// Its bytes as PyTorch wrote them.
    #[prost(uint64, tag = "3")]
    pub bytes_unpacked: u64,
    /// XXH3 of the compressed bytes, 16 hexadecimal digits.
    #[prost(string, tag = "4")]
    pub checksum: String,
}

/// A part of a trace; without bytes, a question how much the hub has. Answered by [`PartAck`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TracePart {
    /// [`VERSION`].
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
    /// Where in the file the bytes begin.
    #[prost(uint64, tag = "6")]
    pub offset: u64,
    /// The bytes.
    #[prost(bytes = "vec", tag = "7")]
    pub bytes: Vec<u8>,
}

/// How many bytes of a file the hub has, from its beginning on; the next part begins there.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct PartAck {
    /// Bytes.
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
    /// The state of traces.
    pub fn new(id: u64, state: &TraceState) -> Self {
        Self {
            id,
            token: state.token.clone(),
            is_over: state.is_over,
            error: String::new(),
            processes: state.rows.iter().map(ProcessState::from).collect(),
        }
    }

    /// An order that came to nothing, or that needed no time.
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
