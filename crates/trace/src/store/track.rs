//! The lines of a timeline: threads of processes, streams of devices.

/// A place in [`Trace::tracks`](super::Trace::tracks).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrackId(pub u32);

/// A process or thread id as the file has it. Kineto writes texts for its own rows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrackKey {
    /// An operating system's id, a device's ordinal, a stream.
    Number(i64),
    /// `Spans`, `Traces`, `stream 7`.
    Text(String),
}

/// A thread or a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    /// Process, or device ordinal on device rows.
    pub pid: TrackKey,
    /// Thread, or stream on device rows.
    pub tid: TrackKey,
    /// From `process_name`; empty if unknown.
    pub process_name: String,
    /// From `process_labels`, such as `GPU 0`; empty if unknown.
    pub process_label: String,
    /// From `thread_name`; empty if unknown.
    pub thread_name: String,
}

impl TrackKey {
    /// The number, if it is one.
    pub fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) => None,
        }
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Number(_) => None,
            Self::Text(text) => Some(text),
        }
    }
}

impl std::fmt::Display for TrackKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Track {
    /// A track nothing else is known of.
    pub fn new(pid: TrackKey, tid: TrackKey) -> Self {
        Self {
            pid,
            tid,
            process_name: String::new(),
            process_label: String::new(),
            thread_name: String::new(),
        }
    }
}
