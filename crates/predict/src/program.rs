//! A step without times: the actions of its threads in order, the device work they launch, and who
//! waits for whom. Times are in [`Costs`](crate::cost::Costs).

pub mod from_execution_trace;
pub mod from_trainer;

use analyze::collectives::CollectiveOperation;
use schema::CellType;
use serde::{Deserialize, Serialize};
use trace::store::{LaunchShape, StringId, Strings};

/// A step of all ranks without times. It is built from a recording, from the trainer's operations
/// or from execution traces.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub names: Strings,
    pub ranks: Vec<Rank>,
    /// Collectives that their participants enter together.
    pub collectives: Vec<Collective>,
}

/// One rank's part of a step: threads, streams and device work.
#[derive(Clone, Debug, Default)]
pub struct Rank {
    pub rank: u32,
    /// Position of the recorded rank that this one repeats.
    pub copy_of: Option<usize>,
    /// Position of the thread that runs the step; the step ends with it.
    pub main: usize,
    /// Name of the step in a trace.
    pub step: StringId,
    pub threads: Vec<Thread>,
    pub streams: Vec<Stream>,
    /// Work of the devices, ordered within a stream by [`Work::behind`].
    pub works: Vec<Work>,
}

/// A host thread with its actions in order.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    pub pid: i64,
    pub tid: i64,
    pub actions: Vec<Action>,
}

/// One thing that a thread does. Costs belong to `Host` and `Call`; the others only order events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Begins an operator or an annotation.
    Begin(Mark),
    /// Ends the innermost open mark.
    End,
    /// Host time, whatever the host did.
    Host(Segment),
    /// A call of the device's runtime API.
    Call(Call),
    /// A wait for device work without a call that shows it.
    Wait(Vec<WorkId>),
    /// Releases the thread that awaits this signal.
    Signal(u32),
    /// Waits for a signal of another thread.
    Await {
        signal: u32,
        /// Next work of the thread, by which waking up is priced; `None` if it starts with data
        /// that the other thread prepared.
        wakes: Option<StringId>,
    },
}

/// The begin of an operator or annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub name: StringId,
    pub kind: MarkKind,
}

/// The kind of row that a [`Mark`] becomes in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    Operator,
    /// A range that only labels its content.
    Annotation,
}

/// Why the host takes time: the overheads T1 to T5 of arXiv:2201.07821, split where the paper uses
/// one name for two.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, CellType,
)]
#[serde(rename_all = "snake_case")]
pub enum Overhead {
    /// T1: between two operators of a thread.
    BetweenOps,
    /// T2: from the start of an operator to its first call.
    BeforeFirstLaunch,
    /// T3: from the end of an operator's last call to the operator's end.
    AfterLastLaunch,
    /// T4: inside a call.
    RuntimeCall,
    /// T5: between two calls of an operator.
    BetweenLaunches,
    /// The whole time of an operator without calls.
    HostOnly,
    /// The part of an operator's time that is work on its data, for operators fused into another
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

/// A stretch of host time, identified by what its samples are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    pub overhead: Overhead,
    /// The operator; between operators, the next one; for calls, the call's name.
    pub op: StringId,
    /// Tensor sizes of the operator; between operators, the preceding one.
    pub detail: StringId,
}

/// A call of the device's runtime API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Segment that prices the call; its operator is the call's name.
    pub cost: Segment,
    pub launches: Vec<WorkId>,
    /// Work that must end before the call returns.
    pub awaits: Vec<WorkId>,
    /// Work that must end before the device's queue accepts the launches.
    pub room: Option<WorkId>,
    pub returns: Returns,
}

/// When a call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Returns {
    /// After its own time.
    AtOnce,
    /// After the copy that it launched.
    AfterCopy,
    /// After the work that it awaits.
    AfterAwaited,
}

/// Index into [`Rank::works`].
pub type WorkId = u32;

/// A stream of a device, by device and stream number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stream {
    pub device: i32,
    pub number: i32,
}

/// A kernel, copy or memory set on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    pub name: StringId,
    pub kind: WorkKind,
    /// Index into [`Rank::streams`].
    pub stream: u32,
    /// Operator that launched it; empty if none did.
    pub op: StringId,
    /// Sizes that determine the time: tensor sizes, grid and block of a kernel, bytes of a copy.
    pub detail: StringId,
    pub shape: Option<LaunchShape>,
    /// Bytes of a copy or a set.
    pub bytes: Option<u64>,
    /// Work that precedes it on its stream.
    pub behind: Option<WorkId>,
    /// Work of other streams that must end before.
    pub after: Vec<WorkId>,
    /// Index of the collective that it takes part in.
    pub collective: Option<u32>,
    /// Parts whose costs add up to its cost; empty if it is priced as itself.
    pub parts: Vec<Part>,
    /// Factor on its cost.
    pub scale: f64,
    /// Whether this step launches it. Work that an earlier step launched runs at its recorded time.
    pub is_launched: bool,
}

/// A share of another program's work, identified by its samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    pub kind: WorkKind,
    pub name: StringId,
    /// See [`Work::detail`].
    pub detail: StringId,
    pub weight: f64,
}

/// The kind of device work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    Kernel,
    Copy,
    /// Memory that is set to a value.
    Set,
}

/// A collective of several ranks. The transfer starts when the last rank has arrived.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    pub operation: CollectiveOperation,
    /// Bytes of the larger side of the message, on the rank with the most.
    pub bytes: u64,
    /// Positions of ranks with their work.
    pub parts: Vec<(usize, WorkId)>,
}

impl Overhead {
    /// Returns the name in files and tables.
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
    /// Returns whether the action is host time between operators.
    pub fn is_gap(&self) -> bool {
        matches!(self, Self::Host(segment) if segment.overhead == Overhead::BetweenOps)
    }
}

impl Work {
    /// Returns the work as one part of a cost.
    pub fn as_part(&self) -> Part {
        Part { kind: self.kind, name: self.name, detail: self.detail, weight: 1.0 }
    }

    /// Returns the parts whose costs add up to the work's cost.
    pub fn cost_parts(&self) -> Vec<Part> {
        if self.parts.is_empty() { vec![self.as_part()] } else { self.parts.clone() }
    }
}

impl Program {
    /// Returns the text of an interned name.
    pub fn text(&self, name: StringId) -> &str {
        self.names.get(name)
    }
}
