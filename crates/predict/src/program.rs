//! A step without times: what its threads do in which order, what they launch, and who waits for
//! whom. Knows no durations ([`Costs`](crate::cost::Costs) do) and no trace.

pub mod from_execution_trace;
pub mod from_trainer;

use analyze::collectives::CollectiveOperation;
use serde::{Deserialize, Serialize};
use trace::store::{LaunchShape, StringId, Strings};

/// A step of all ranks.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub names: Strings,
    pub ranks: Vec<Rank>,
    /// What all participants begin together.
    pub collectives: Vec<Collective>,
}

/// A rank's part of the step.
#[derive(Clone, Debug, Default)]
pub struct Rank {
    pub rank: u32,
    /// The place of the recorded rank that it repeats; `None` of a recorded one.
    pub copy_of: Option<usize>,
    /// Place of the thread that runs the step; the step ends when it does.
    pub main: usize,
    /// What the step is called in a trace.
    pub step: StringId,
    /// Threads of the host.
    pub threads: Vec<Thread>,
    /// Streams of the devices.
    pub streams: Vec<Stream>,
    /// Work of the devices. Their order within a stream is that of [`Work::behind`].
    pub works: Vec<Work>,
}

/// A thread and what it does, in order.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    pub pid: i64,
    pub tid: i64,
    pub actions: Vec<Action>,
}

/// Something a thread does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// An operator or an annotation begins.
    Begin(Mark),
    /// The innermost open one ends.
    End,
    /// The host works, or does what nobody recorded.
    Host(Segment),
    /// A call of the device's runtime.
    Call(Call),
    /// The thread waits for device work although no call says so.
    Wait(Vec<WorkId>),
    /// Another thread may go on: see [`Action::Await`].
    Signal(u32),
    /// The thread waits for a signal.
    Await {
        signal: u32,
        /// What it goes on with, by which waking up is priced; `None` where it begins with what
        /// the other thread prepared.
        wakes: Option<StringId>,
    },
}

/// What begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub name: StringId,
    pub kind: MarkKind,
}

/// What kind of row a [`Mark`] becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    Operator,
    /// A range that only names what is inside.
    Annotation,
}

/// Why the host takes time: the overheads T1 to T5 of arXiv:2201.07821, told apart where it mixes
/// two under one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overhead {
    /// T1: between two operators of a thread.
    BetweenOps,
    /// T2: from the start of an operator to its first call.
    BeforeFirstLaunch,
    /// T3: from the end of an operator's last call to its own.
    AfterLastLaunch,
    /// T4: in a call.
    RuntimeCall,
    /// T5: between two calls of an operator.
    BetweenLaunches,
    /// All of an operator without calls.
    HostOnly,
    /// The part that is work on its data, without its start: for an operator fused into another
    /// one. Never sampled.
    HostWork,
}

/// Every kind of overhead that is sampled, in order.
pub const OVERHEADS: [Overhead; 6] = [
    Overhead::BetweenOps,
    Overhead::BeforeFirstLaunch,
    Overhead::AfterLastLaunch,
    Overhead::RuntimeCall,
    Overhead::BetweenLaunches,
    Overhead::HostOnly,
];

/// A stretch of a thread, by what it is a sample of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    /// Why it takes time.
    pub overhead: Overhead,
    /// The operator; between operators, what comes next; of a call, its name.
    pub op: StringId,
    /// The sizes of the operator's tensors; between operators, what came before.
    pub detail: StringId,
}

/// A call of the device's runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What it costs; its name is the segment's operator.
    pub cost: Segment,
    /// What it puts on streams.
    pub launches: Vec<WorkId>,
    /// What must have ended before it returns.
    pub awaits: Vec<WorkId>,
    /// What must have ended before the device's queue takes what it launches.
    pub room: Option<WorkId>,
    pub returns: Returns,
}

/// When a call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Returns {
    /// After its own time.
    AtOnce,
    /// After the copy it launched.
    AfterCopy,
    /// After what it awaits.
    AfterAwaited,
}

/// Work of a rank's devices: its place in [`Rank::works`].
pub type WorkId = u32;

/// A stream of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stream {
    pub device: i32,
    pub number: i32,
}

/// A piece of device work.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    pub name: StringId,
    /// Kernel, copy or set.
    pub kind: WorkKind,
    /// Place among the streams.
    pub stream: u32,
    /// The operator that launched it; empty if none did.
    pub op: StringId,
    /// What decides how long it takes: the operator's sizes, grid and block of a kernel, bytes of a
    /// copy.
    pub detail: StringId,
    pub shape: Option<LaunchShape>,
    /// Bytes of a copy or a set.
    pub bytes: Option<u64>,
    /// The work of its stream that must have ended before.
    pub behind: Option<WorkId>,
    /// Work of other streams that must have ended before.
    pub after: Vec<WorkId>,
    /// The collective it takes part in.
    pub collective: Option<u32>,
    /// What it costs: the sum of these; nothing in it: as itself.
    pub parts: Vec<Part>,
    /// By how much that is multiplied.
    pub scale: f64,
    /// Whether the step launches it. What an earlier step launched runs when it was recorded to.
    pub is_launched: bool,
}

/// A work of another program, by what its samples are found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Kernel, copy or set.
    pub kind: WorkKind,
    pub name: StringId,
    /// See [`Work::detail`].
    pub detail: StringId,
    /// What share of it.
    pub weight: f64,
}

/// What kind of row a [`Work`] becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    Kernel,
    Copy,
    /// Memory that is set.
    Set,
}

/// A collective in which ranks meet: nobody's transfer begins before the last one has come.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    pub operation: CollectiveOperation,
    /// Bytes of the larger side of the message, of the rank with the most.
    pub bytes: u64,
    /// Places of ranks, and their work.
    pub parts: Vec<(usize, WorkId)>,
}

impl Overhead {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::BetweenOps => "between_ops",
            Self::BeforeFirstLaunch => "before_first_launch",
            Self::AfterLastLaunch => "after_last_launch",
            Self::RuntimeCall => "runtime_call",
            Self::BetweenLaunches => "between_launches",
            Self::HostOnly => "host_only",
            Self::HostWork => "host_work",
        }
    }
}

impl Action {
    /// Whether it is time of the host between operators.
    pub fn is_gap(&self) -> bool {
        matches!(self, Self::Host(segment) if segment.overhead == Overhead::BetweenOps)
    }
}

impl Work {
    /// As a part of what another one costs.
    pub fn as_part(&self) -> Part {
        Part { kind: self.kind, name: self.name, detail: self.detail, weight: 1.0 }
    }

    /// What it costs the sum of.
    pub fn cost_parts(&self) -> Vec<Part> {
        if self.parts.is_empty() { vec![self.as_part()] } else { self.parts.clone() }
    }
}

impl Program {
    /// The text of a name.
    pub fn text(&self, name: StringId) -> &str {
        self.names.get(name)
    }
}
