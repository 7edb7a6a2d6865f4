//! Lists the protobuf field numbers of the messages that rowmill writes.
//!
//! # Source
//! Perfetto, `protos/perfetto/trace/perfetto_trace.proto`.

pub mod trace {
    pub const PACKET: u32 = 1;
}

pub mod packet {
    pub const CLOCK_SNAPSHOT: u32 = 6;
    pub const TIMESTAMP: u32 = 8;
    pub const SEQUENCE_ID: u32 = 10;
    pub const TRACK_EVENT: u32 = 11;
    pub const INTERNED_DATA: u32 = 12;
    pub const SEQUENCE_FLAGS: u32 = 13;
    pub const TRACK_DESCRIPTOR: u32 = 60;
    /// A field of rowmill for data that Perfetto has no field for. Protobuf readers skip fields
    /// that they do not know.
    pub const OWN: u32 = 50_001;
}

/// Fields in the message [`packet::OWN`].
pub mod own {
    /// Version of rowmill's own fields. Only the first packet of a file has this field, and the
    /// field marks the file as written by rowmill.
    pub const VERSION: u32 = 1;
    pub const PART_COUNT: u32 = 2;
    pub const MOVED: u32 = 3;
    pub const PART: u32 = 4;
    pub const TRACK: u32 = 5;
    /// Row numbers of a part's slices in writing order, packed. Each number is stored as the
    /// difference to the previous number.
    pub const ORDER: u32 = 6;
    pub const COUNTER: u32 = 7;
    /// The current value of the field [`VERSION`].
    pub const CURRENT: u64 = 1;
}

/// Fields in the message [`own::PART`].
pub mod part {
    pub const RANK: u32 = 1;
    /// Nanoseconds that were subtracted from the rank's times.
    pub const AHEAD: u32 = 2;
    /// The ordinal in the file that was assigned to the rank's device 0.
    pub const FIRST_DEVICE: u32 = 3;
    /// Kineto's header as a JSON text.
    pub const HEADER: u32 = 4;
    pub const ARROWS: u32 = 5;
    pub const SLICE_COUNT: u32 = 6;
    pub const FLOW_COUNT: u32 = 7;
    pub const COUNTER_COUNT: u32 = 8;
    pub const INSTANT_COUNT: u32 = 9;
    pub const ALLOCATION_COUNT: u32 = 10;
    /// Number of events for each Chrome event phase, as a JSON text.
    pub const PHASES: u32 = 11;
}

/// Fields in the message [`part::ARROWS`]. A category applies to all arrows from the given id on.
pub mod arrows {
    pub const FIRST: u32 = 1;
    pub const CATEGORY: u32 = 2;
}

/// Fields in the message [`own::TRACK`].
pub mod line {
    pub const UUID: u32 = 1;
    /// Index among the tracks of the part. Lanes of one track have the same index.
    pub const PLACE: u32 = 2;
    pub const PID: u32 = 3;
    pub const PID_TEXT: u32 = 4;
    pub const TID: u32 = 5;
    pub const TID_TEXT: u32 = 6;
    pub const PROCESS_NAME: u32 = 7;
    pub const PROCESS_LABEL: u32 = 8;
    pub const THREAD_NAME: u32 = 9;
}

/// Fields in the message [`own::COUNTER`].
pub mod sampled {
    pub const UUID: u32 = 1;
    pub const PLACE: u32 = 2;
    pub const NAME: u32 = 3;
    pub const SERIES: u32 = 4;
}

pub mod flag {
    /// The texts interned so far are discarded.
    pub const CLEARED: u64 = 1;
    /// The packet refers to interned texts.
    pub const NEEDS_INTERNED: u64 = 2;
}

pub mod snapshot {
    pub const CLOCKS: u32 = 1;
    pub const CLOCK_ID: u32 = 1;
    pub const CLOCK_TIMESTAMP: u32 = 2;
    pub const REALTIME: u64 = 1;
    /// The clock of timestamps that do not name a clock.
    pub const BOOTTIME: u64 = 6;
}

pub mod track {
    pub const UUID: u32 = 1;
    pub const NAME: u32 = 2;
    pub const PROCESS: u32 = 3;
    pub const THREAD: u32 = 4;
    pub const PARENT: u32 = 5;
    pub const COUNTER: u32 = 8;
    pub const CHILD_ORDERING: u32 = 11;
    pub const ORDER: u32 = 12;
    pub const MERGE: u32 = 15;
    pub const PROCESS_ORDERING: u32 = 19;
    pub const THREAD_ORDERING: u32 = 20;
    /// Child tracks are sorted by their field `ORDER`.
    pub const EXPLICIT: u64 = 3;
    /// Processes and threads are sorted by their field `ORDER`.
    pub const BY_ORDER: u64 = 1;
    /// Tracks with equal names stay separate.
    pub const NEVER_MERGE: u64 = 2;
}

pub mod process {
    pub const PID: u32 = 1;
    pub const NAME: u32 = 6;
    pub const LABELS: u32 = 8;
}

pub mod thread {
    pub const PID: u32 = 1;
    pub const TID: u32 = 2;
    pub const NAME: u32 = 5;
}

pub mod counter {
    pub const UNIT_NAME: u32 = 6;
}

pub mod event {
    pub const CATEGORY_IID: u32 = 3;
    pub const ANNOTATION: u32 = 4;
    pub const TYPE: u32 = 9;
    pub const NAME_IID: u32 = 10;
    pub const TRACK: u32 = 11;
    pub const NAME: u32 = 23;
    pub const COUNTER_VALUE: u32 = 44;
    pub const FLOW: u32 = 47;
    pub const FLOW_END: u32 = 48;
    pub const BEGIN: u64 = 1;
    pub const END: u64 = 2;
    pub const INSTANT: u64 = 3;
    pub const COUNTER: u64 = 4;
}

pub mod annotation {
    pub const NAME_IID: u32 = 1;
    pub const BOOL: u32 = 2;
    pub const UNSIGNED: u32 = 3;
    pub const SIGNED: u32 = 4;
    pub const DOUBLE: u32 = 5;
    pub const STRING: u32 = 6;
    pub const JSON: u32 = 9;
    pub const ITEMS: u32 = 12;
}

pub mod interned {
    pub const CATEGORY: u32 = 1;
    pub const EVENT_NAME: u32 = 2;
    pub const ANNOTATION_NAME: u32 = 3;
    pub const IID: u32 = 1;
    pub const NAME: u32 = 2;
}
