//! Labels of nodes, and the evidence for the dependencies between them.

use schema::CellType;
use serde::Serialize;
use trace::store::TrackId;

use crate::facts::scope::Scope;
use crate::graph::node::NodeKind;

/// Category of time on a critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum PathCategory {
    /// An operator on a thread, outside calls.
    HostOperator,
    /// A call of the device's runtime or driver.
    RuntimeCall,
    /// The end of a call that waited for a device: from the end of the work to the return.
    SynchronizationReturn,
    /// A thread in a recorded frame of Python, outside operators and calls.
    PythonFrame,
    /// A thread between recorded rows; mostly Python if no frames were recorded.
    UntracedHost,
    DataLoading,
    /// Time from the end of a launch to the start of its work, on a stream with no earlier work.
    LaunchDelay,
    Compute,
    /// A device copies or sets memory.
    Memory,
    /// Communication, if only one rank was seen: transfer and waiting cannot be separated.
    Communication,
    /// Communication after the last rank arrived.
    CommunicationTransfer,
    /// Communication before the last rank arrived.
    CommunicationWait,
    /// A device between two pieces of work of a stream, or before work launched unseen.
    DeviceGap,
}

/// All categories, in the order of reports.
pub const CATEGORIES: [PathCategory; 13] = [
    PathCategory::HostOperator,
    PathCategory::RuntimeCall,
    PathCategory::SynchronizationReturn,
    PathCategory::PythonFrame,
    PathCategory::UntracedHost,
    PathCategory::DataLoading,
    PathCategory::LaunchDelay,
    PathCategory::Compute,
    PathCategory::Memory,
    PathCategory::Communication,
    PathCategory::CommunicationTransfer,
    PathCategory::CommunicationWait,
    PathCategory::DeviceGap,
];

/// The party that spends the time of a category: host, device or other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Party {
    Host,
    /// The devices, including delays before their work starts.
    Device,
    /// The other ranks that are waited for.
    Peers,
}

/// The label of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeOrigin {
    /// Index of the rank among the scopes.
    pub scope: u32,
    /// Row of the trace; `None` for markers and meeting points.
    pub row: Option<u32>,
    /// Thread or stream; `None` for markers and meeting points.
    pub track: Option<TrackId>,
    /// What its time is spent on.
    pub category: PathCategory,
}

/// A stretch of a thread in which only an annotation was open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLabel {
    /// Absolute time in nanoseconds.
    pub start: i64,
    /// Absolute time in nanoseconds.
    pub end: i64,
    pub row: u32,
}

/// Number of waits that the profiler recorded, and of those that were inferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WaitEvidence {
    /// Device work with its launch in the window.
    pub launches: u64,
    /// Device work that was launched before the window or unseen.
    pub orphans: u64,
    /// Device work that began before its launch: the clocks of host and device disagree.
    pub early: u64,
    /// Waits of the host for a device that the profiler recorded (`cuda_sync`).
    pub host_waits_recorded: u64,
    /// Waits of the host that were inferred from the names and times of calls.
    pub host_waits_inferred: u64,
    /// Launches that waited for a full queue, by their times.
    pub queue_waits: u64,
    /// Launches that the depth of such a queue limits, whether they waited or not.
    pub queue_limited: u64,
    /// Waits of a stream for another one that the profiler recorded.
    pub stream_waits_recorded: u64,
    /// Waits of a stream that were inferred from the order of calls.
    pub stream_waits_inferred: u64,
    /// Threads that waited for another thread, by their gaps.
    pub hand_offs: u64,
    /// Collectives in which all ranks met.
    pub rendezvous: u64,
}

impl PathCategory {
    /// Returns the name of the category in tables and arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::HostOperator => "host_operator",
            Self::RuntimeCall => "runtime_call",
            Self::SynchronizationReturn => "synchronization_return",
            Self::PythonFrame => "python_frame",
            Self::UntracedHost => "untraced_host",
            Self::DataLoading => "data_loading",
            Self::LaunchDelay => "launch_delay",
            Self::Compute => "compute",
            Self::Memory => "memory",
            Self::Communication => "communication",
            Self::CommunicationTransfer => "communication_transfer",
            Self::CommunicationWait => "communication_wait",
            Self::DeviceGap => "device_gap",
        }
    }

    /// Returns the party that spends the time of this category.
    pub fn party(self) -> Party {
        match self {
            Self::CommunicationWait => Party::Peers,
            Self::LaunchDelay | Self::DeviceGap => Party::Device,
            _ if self.is_of_device() => Party::Device,
            _ => Party::Host,
        }
    }

    /// Returns whether devices spend the time of this category.
    pub fn is_of_device(self) -> bool {
        matches!(
            self,
            Self::Compute
                | Self::Memory
                | Self::Communication
                | Self::CommunicationTransfer
                | Self::CommunicationWait
        )
    }
}

/// A rank, by its place among the scopes.
pub(super) type PlacedRank<'a, 'b> = (u32, &'a Scope<'b>);

/// Returns the node kind of a call that does or does not launch work.
pub(super) fn call_kind(launches: bool) -> NodeKind {
    if launches { NodeKind::Launch } else { NodeKind::HostWork }
}
