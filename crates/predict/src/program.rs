//! A step without times: the actions of its threads in order, the device work that they launch, and
//! the dependencies between them. Times are stored in [`Costs`](crate::cost::Costs).

pub mod from_execution_trace;
pub mod from_trainer;

use analyze::collectives::CollectiveOperation;
use schema::CellType;
use serde::{Deserialize, Serialize};
use trace::store::{LaunchShape, StringId, Strings};

/// A step of all ranks without times. The program is built from a recording, from the operations of
/// the trainer, or from execution traces.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub names: Strings,
    pub ranks: Vec<Rank>,
    /// Collectives, each of which starts when all of its participants have arrived.
    pub collectives: Vec<Collective>,
}

/// One rank's part of a step: its threads, streams and device work.
#[derive(Clone, Debug, Default)]
pub struct Rank {
    pub rank: u32,
    /// Position of the recorded rank whose work this rank repeats, if an edit added it.
    pub copy_of: Option<usize>,
    /// Position of the thread that runs the step. The step ends when this thread ends.
    pub main: usize,
    /// Name of the step in a written trace.
    pub step: StringId,
    pub threads: Vec<Thread>,
    pub streams: Vec<Stream>,
    /// Device work of the rank. Within a stream, [`Work::behind`] gives the order.
    pub works: Vec<Work>,
}

/// A host thread with its actions in execution order.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    pub pid: i64,
    pub tid: i64,
    pub actions: Vec<Action>,
}

/// One action of a thread. Only `Host` and `Call` have costs; the other actions order events.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Begins an operator or an annotation on the thread.
    Begin(Mark),
    /// Ends the operator or annotation that began last and is still open.
    End,
    /// Host time of any kind, such as Python or work on tensors.
    Host(Segment),
    /// A call of the device's runtime API.
    Call(Call),
    /// A wait for device work that no recorded call explains.
    Wait(Vec<WorkId>),
    /// Releases the thread that awaits this signal.
    Signal(u32),
    /// Blocks the thread until another thread sends a signal.
    Await {
        signal: u32,
        /// Name of the thread's next work, which selects the hand-over time. The name is `None` if
        /// the thread starts with data that the other thread has already prepared.
        wakes: Option<StringId>,
    },
}

/// The begin of an operator or annotation on a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mark {
    pub name: StringId,
    pub kind: MarkKind,
    /// Factor on the host time inside an operator, its runtime calls included.
    pub scale: f64,
}

impl Mark {
    /// Creates a mark that leaves host times as they are.
    pub fn new(name: StringId, kind: MarkKind) -> Self {
        Self { name, kind, scale: 1.0 }
    }
}

/// The kind of row that a [`Mark`] becomes in a written trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    Operator,
    /// A range that only labels the operators inside it.
    Annotation,
}

/// The cause of host time: the overheads T1 to T5 of arXiv:2201.07821, with separate names where
/// the paper uses one name for two causes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, CellType,
)]
#[serde(rename_all = "snake_case")]
pub enum Overhead {
    /// T1: time between two operators of a thread.
    BetweenOps,
    /// T2: time from the start of an operator to its first runtime call.
    BeforeFirstLaunch,
    /// T3: time from the end of an operator's last runtime call to the end of the operator.
    AfterLastLaunch,
    /// T4: time inside a runtime call.
    RuntimeCall,
    /// T5: time between two runtime calls of an operator.
    BetweenLaunches,
    /// The whole time of an operator without runtime calls.
    HostOnly,
    /// The part of an operator's host time that is work on its tensors, which remains when the
    /// operator is fused into another one. This part is never sampled.
    HostWork,
}

/// Every kind of overhead that is sampled, in the order of tables.
pub const OVERHEADS: [Overhead; 6] = [
    Overhead::BetweenOps,
    Overhead::BeforeFirstLaunch,
    Overhead::AfterLastLaunch,
    Overhead::RuntimeCall,
    Overhead::BetweenLaunches,
    Overhead::HostOnly,
];

/// A stretch of host time. Segments with equal fields have the same samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    pub overhead: Overhead,
    /// Name of the operator. Between operators, it is the following operator; for calls, it is the
    /// name of the call.
    pub op: StringId,
    /// Tensor sizes of the operator. Between operators, it is the name of the preceding operator.
    pub detail: StringId,
}

/// A call of the device's runtime API, such as a launch or a synchronization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Segment that prices the call. The `op` of this segment is the name of the call.
    pub cost: Segment,
    pub launches: Vec<WorkId>,
    /// Device work that must end before the call returns.
    pub awaits: Vec<WorkId>,
    /// Device work that must end before the device's queue has room for the launches.
    pub room: Option<WorkId>,
    pub returns: Returns,
}

/// The event after which a runtime call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Returns {
    /// The call returns after its own host time, without waiting for the device.
    AtOnce,
    /// The call returns after the copy that it launched has ended.
    AfterCopy,
    /// The call returns after the device work that it awaits has ended.
    AfterAwaited,
}

/// Index of device work in [`Rank::works`].
pub type WorkId = u32;

/// A stream, identified by its device and its number on that device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stream {
    pub device: i32,
    pub number: i32,
}

/// Device work: a kernel, a copy or a memory set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    pub name: StringId,
    pub kind: WorkKind,
    /// Index of the work's stream in [`Rank::streams`].
    pub stream: u32,
    /// Name of the operator that launched the work, or empty if it was launched outside operators.
    pub op: StringId,
    /// Sizes that determine the duration: tensor sizes, grid and block of a kernel, or bytes of a
    /// copy.
    pub detail: StringId,
    pub shape: Option<LaunchShape>,
    /// Bytes that a copy or a memory set writes.
    pub bytes: Option<u64>,
    /// The work that precedes it on its stream, and must end before it starts.
    pub behind: Option<WorkId>,
    /// Works of other streams that must end before this work starts.
    pub after: Vec<WorkId>,
    /// Index of the collective in which the work takes part.
    pub collective: Option<u32>,
    /// Parts whose costs add up to the cost of the work. The list is empty if the work has its own
    /// price.
    pub parts: Vec<Part>,
    /// Factor on the cost of the work.
    pub scale: f64,
    /// Whether this step launches the work. Work that an earlier step launched runs at its recorded
    /// time.
    pub is_launched: bool,
    /// Time for which the work waits after all that it is known to wait for, such as for work on
    /// the device that was not recorded. Edits do not change this time.
    pub held_ns: i64,
    /// For work that an earlier step launched: the work of this step that does the same.
    pub repeated: Option<Repeated>,
}

/// The work that repeats one of an earlier step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeated {
    pub by: WorkId,
    /// Number of steps between the two works, at least 1.
    pub steps: u32,
}

/// A weighted share of the cost of a work, identified by the key of its samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    pub kind: WorkKind,
    pub name: StringId,
    /// Sizes that determine the duration, as in [`Work::detail`].
    pub detail: StringId,
    pub weight: f64,
}

/// The kind of device work, which determines its launch latency.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    #[default]
    Kernel,
    Copy,
    /// A memory set, which writes one value to a region of device memory.
    Set,
}

/// A collective in which several ranks take part. The transfer of a collective starts when the last
/// rank has arrived.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    pub operation: CollectiveOperation,
    /// Bytes of the larger of the sent and received messages, on the rank with the most bytes.
    pub bytes: u64,
    /// Participants: the position of each rank with its work.
    pub parts: Vec<(usize, WorkId)>,
}

impl Overhead {
    /// Returns the name of the overhead in files and tables.
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
    /// Returns whether the action is host time between two operators.
    pub fn is_gap(&self) -> bool {
        matches!(self, Self::Host(segment) if segment.overhead == Overhead::BetweenOps)
    }
}

impl Work {
    /// Returns the work itself as a part of a cost, with weight 1.
    pub fn as_part(&self) -> Part {
        Part { kind: self.kind, name: self.name, detail: self.detail, weight: 1.0 }
    }

    /// Returns the parts whose costs add up to the cost of the work.
    pub fn cost_parts(&self) -> Vec<Part> {
        if self.parts.is_empty() { vec![self.as_part()] } else { self.parts.clone() }
    }
}

impl Program {
    /// Returns the text of an interned name.
    pub fn text(&self, name: StringId) -> &str {
        self.names.get(name)
    }

    /// Adds a collective, and marks the works that take part in it.
    pub(crate) fn add_collective(&mut self, collective: Collective) {
        let number = self.collectives.len() as u32;
        for (rank, work) in &collective.parts {
            self.ranks[*rank].works[*work as usize].collective = Some(number);
        }
        self.collectives.push(collective);
    }
}
