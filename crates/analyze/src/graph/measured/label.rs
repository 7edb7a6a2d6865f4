//! Defines labels of graph nodes, and the evidence for the dependencies between them.

use schema::CellType;
use serde::Serialize;
use trace::store::TrackId;

use crate::facts::scope::Scope;
use crate::graph::node::NodeKind;

/// Category of the time on a critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum PathCategory {
    /// A thread runs an operator, outside runtime and driver calls.
    HostOperator,
    /// A thread is in a call of the device's runtime or driver.
    RuntimeCall,
    /// The end of a call that waited for a device, from the end of the awaited work to the return
    /// of the call.
    SynchronizationReturn,
    /// A thread is in a recorded frame of Python, outside operators and calls.
    PythonFrame,
    /// A thread is between recorded rows. If no frames were recorded, most of this time is Python.
    UntracedHost,
    DataLoading,
    /// Time from the end of a launch to the start of its work, on a stream without earlier work.
    LaunchDelay,
    Compute,
    /// A device runs a copy or a memset.
    Memory,
    /// Communication of a job of which only one rank was seen, so that transfer and waiting cannot
    /// be separated.
    Communication,
    /// Communication after the last rank has arrived.
    CommunicationTransfer,
    /// Communication before the last rank has arrived.
    CommunicationWait,
    /// A stream is between two pieces of work, or before work whose launch was not recorded.
    DeviceGap,
}

/// All categories in the order in which reports list them.
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

/// The party that spends the time of a category: the host, the devices or other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Party {
    Host,
    /// The devices, including the delays before their work starts.
    Device,
    /// Other ranks that are waited for.
    Peers,
}

/// The rank, row, track and category from which a node was made.
///
/// A long trace has millions of nodes, so the row and its track are kept without the word that an
/// `Option` would add to each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeOrigin {
    /// Index of the rank among the scopes.
    pub scope: u32,
    /// `u32::MAX` for markers and for meetings of ranks.
    row: u32,
    /// Meaningless without a row.
    track: TrackId,
    /// The activity on which the time of the node is spent.
    pub category: PathCategory,
}

impl NodeOrigin {
    /// Creates the origin of a node that represents time of a row on its thread or stream.
    pub fn at_row(scope: u32, row: u32, track: TrackId, category: PathCategory) -> Self {
        Self { scope, row, track, category }
    }

    /// Creates the origin of a marker or of a meeting of ranks.
    pub fn without_row(scope: u32, category: PathCategory) -> Self {
        Self { scope, row: u32::MAX, track: TrackId(u32::MAX), category }
    }

    /// Returns the same origin with another category.
    pub fn with_category(self, category: PathCategory) -> Self {
        Self { category, ..self }
    }

    /// Returns the row of the trace; `None` for markers and for meetings of ranks.
    pub fn row(&self) -> Option<u32> {
        (self.row != u32::MAX).then_some(self.row)
    }

    /// Returns the thread or stream; `None` for markers and for meetings of ranks.
    pub fn track(&self) -> Option<TrackId> {
        self.row().map(|_| self.track)
    }
}

/// A stretch of a thread in which only an annotation was open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLabel {
    /// Start of the stretch, in absolute nanoseconds.
    pub start: i64,
    /// End of the stretch, in absolute nanoseconds.
    pub end: i64,
    pub row: u32,
}

/// Number of waits that the profiler recorded, and number of waits that were inferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WaitEvidence {
    /// Number of pieces of device work whose launch lies in the window.
    pub launches: u64,
    /// Number of pieces of device work that were launched before the window or whose launch was not
    /// recorded.
    pub orphans: u64,
    /// Number of pieces of device work that began before their launch, because the clocks of host
    /// and device disagree.
    pub early: u64,
    /// Waits of the host for a device that the profiler recorded as `cuda_sync` rows.
    pub host_waits_recorded: u64,
    /// Waits of the host that were inferred from the names and times of calls.
    pub host_waits_inferred: u64,
    /// Launches that waited for a full queue, as their times show.
    pub queue_waits: u64,
    /// Launches whose start depends on the length of such a queue, whether they waited or not.
    pub queue_limited: u64,
    /// Waits of a stream for another one that the profiler recorded.
    pub stream_waits_recorded: u64,
    /// Waits of a stream that were inferred from the order of calls.
    pub stream_waits_inferred: u64,
    /// Waits of a thread for another thread, inferred from its pauses.
    pub hand_offs: u64,
    /// Collectives in which all participating ranks met.
    pub rendezvous: u64,
}

impl PathCategory {
    /// Returns the name of the category as tables and what-if questions use it.
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

    /// Returns whether the time of this category is spent by devices.
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

/// A scope with the index of its rank among the scopes.
pub(super) type PlacedRank<'a, 'b> = (u32, &'a Scope<'b>);

/// Returns the node kind of a call, depending on whether the call launches work.
pub(super) fn call_kind(launches: bool) -> NodeKind {
    if launches { NodeKind::Launch } else { NodeKind::HostWork }
}
