//! Lists the keys of events and of their arguments that are kept. The parser skips all other keys.

/// The action of the scanner after a key of an event or of its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStep {
    Phase,
    Category,
    Name,
    Process,
    Thread,
    Time,
    Duration,
    /// The value is the `id` of a flow.
    Id,
    Arguments,
    Keep(Argument),
    Skip,
    /// The value of `args` is not an object, so the scanner skips it. The layout does not remember
    /// the text before such a value, because the same text precedes regular arguments.
    SkipOnce,
    /// The text is the closing bracket of the arguments or of the event.
    End,
}

/// The arguments of events that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Argument {
    Correlation,
    ExternalId,
    ExternalIdOf2021,
    Stream,
    Device,
    Bytes,
    Registers,
    SharedMemory,
    Sequence,
    ForwardThread,
    RecordFunction,
    EventIndex,
    PythonId,
    PythonParent,
    PythonModule,
    SyncStream,
    SyncCorrelation,
    SyncEvent,
    GraphNode,
    ElementsIn,
    ElementsOut,
    GroupSize,
    CollectiveSequence,
    Address,
    AllocationBytes,
    TotalAllocated,
    TotalReserved,
    DeviceType,
    DeviceId,
    Bandwidth,
    BlocksPerSm,
    WarpsPerSm,
    Occupancy,
    Grid,
    Block,
    Finished,
    SyncKind,
    CollectiveName,
    DataType,
    SplitsIn,
    SplitsOut,
    Group,
    GroupDescription,
    GroupRanks,
    CallStack,
    Name,
    Labels,
}

/// Number of arguments that are kept.
pub const ARGUMENTS: usize = Argument::Labels as usize + 1;

/// The expected type of an argument's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueForm {
    /// An integer, or a text that contains one.
    Integer,
    /// A number, or a text that contains one.
    Float,
    Triple,
    Text,
    /// `true`, `false`, or any value of an argument of which only the presence matters.
    Flag,
}

impl Argument {
    /// Returns the expected type of the argument's value.
    #[inline(always)]
    pub fn form(self) -> ValueForm {
        match self {
            Self::Bandwidth | Self::BlocksPerSm | Self::WarpsPerSm | Self::Occupancy => {
                ValueForm::Float
            }
            Self::Grid | Self::Block => ValueForm::Triple,
            Self::Finished | Self::SyncKind => ValueForm::Flag,
            _ if self as u8 >= Self::CollectiveName as u8 => ValueForm::Text,
            _ => ValueForm::Integer,
        }
    }
}

/// Maps a key of an event to the scanner's action.
pub fn event_step(key: &[u8]) -> KeyStep {
    match key {
        b"ph" => KeyStep::Phase,
        b"cat" => KeyStep::Category,
        b"name" => KeyStep::Name,
        b"pid" => KeyStep::Process,
        b"tid" => KeyStep::Thread,
        b"ts" => KeyStep::Time,
        b"dur" => KeyStep::Duration,
        b"id" => KeyStep::Id,
        b"args" => KeyStep::Arguments,
        _ => KeyStep::Skip,
    }
}

/// Whether a key belongs to events, because the reader keeps it or the Chrome format defines it.
pub fn is_event_key(key: &[u8]) -> bool {
    event_step(key) != KeyStep::Skip || matches!(key, b"bp" | b"s" | b"tts" | b"tdur" | b"cname")
}

/// Whether Kineto or the Chrome format write this key beside the list of events.
pub fn is_header_key(key: &[u8]) -> bool {
    matches!(
        key,
        b"schemaVersion"
            | b"deviceProperties"
            | b"distributedInfo"
            | b"traceName"
            | b"displayTimeUnit"
            | b"baseTimeNanoseconds"
            | b"INFO"
            | b"WARNING"
            | b"ERROR"
            | b"metadata"
            | b"otherData"
            | b"stackFrames"
            | b"samples"
            | b"systemTraceEvents"
            | b"controllerTraceDataKey"
            | b"record_shapes"
            | b"with_stack"
            | b"with_flops"
            | b"with_modules"
            | b"profile_memory"
    )
}

/// Maps a key of the arguments to the scanner's action.
pub fn argument_step(key: &[u8]) -> KeyStep {
    let argument = match key {
        b"correlation" => Argument::Correlation,
        b"External id" => Argument::ExternalId,
        b"external id" => Argument::ExternalIdOf2021,
        b"stream" => Argument::Stream,
        b"device" => Argument::Device,
        b"bytes" => Argument::Bytes,
        b"registers per thread" => Argument::Registers,
        b"shared memory" => Argument::SharedMemory,
        b"Sequence number" => Argument::Sequence,
        b"Fwd thread id" => Argument::ForwardThread,
        b"Record function id" => Argument::RecordFunction,
        b"Ev Idx" => Argument::EventIndex,
        b"Python id" => Argument::PythonId,
        b"Python parent id" => Argument::PythonParent,
        b"Python module id" => Argument::PythonModule,
        b"wait_on_stream" => Argument::SyncStream,
        b"wait_on_cuda_event_record_corr_id" => Argument::SyncCorrelation,
        b"wait_on_cuda_event_id" => Argument::SyncEvent,
        b"graph node id" => Argument::GraphNode,
        b"In msg nelems" => Argument::ElementsIn,
        b"Out msg nelems" => Argument::ElementsOut,
        b"Group size" => Argument::GroupSize,
        b"Seq" => Argument::CollectiveSequence,
        b"Addr" => Argument::Address,
        b"Bytes" => Argument::AllocationBytes,
        b"Total Allocated" => Argument::TotalAllocated,
        b"Total Reserved" => Argument::TotalReserved,
        b"Device Type" => Argument::DeviceType,
        b"Device Id" => Argument::DeviceId,
        b"memory bandwidth (GB/s)" => Argument::Bandwidth,
        b"blocks per SM" => Argument::BlocksPerSm,
        b"warps per SM" => Argument::WarpsPerSm,
        b"est. achieved occupancy %" => Argument::Occupancy,
        b"grid" => Argument::Grid,
        b"block" => Argument::Block,
        b"finished" => Argument::Finished,
        b"cuda_sync_kind" => Argument::SyncKind,
        b"Collective name" => Argument::CollectiveName,
        b"dtype" => Argument::DataType,
        b"In split size" => Argument::SplitsIn,
        b"Out split size" => Argument::SplitsOut,
        b"Process Group Name" => Argument::Group,
        b"Process Group Description" => Argument::GroupDescription,
        b"Process Group Ranks" => Argument::GroupRanks,
        b"Call stack" => Argument::CallStack,
        b"name" => Argument::Name,
        b"labels" => Argument::Labels,
        _ => return KeyStep::Skip,
    };
    KeyStep::Keep(argument)
}
