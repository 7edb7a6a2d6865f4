//! The tracks of a timeline: threads of processes, and streams of devices.

/// An index in [`Trace::tracks`](super::Trace::tracks).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrackId(pub u32);

/// A process or thread id as written in the file. Kineto writes texts for its own rows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrackKey {
    /// An id of the operating system, a device ordinal, or a stream.
    Number(i64),
    /// Such as `Spans`, `Traces` or `stream 7`.
    Text(String),
}

/// A thread or a stream, identified by its process and thread ids in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    /// The process, or the device ordinal for device rows.
    pub pid: TrackKey,
    /// The thread, or the stream for device rows.
    pub tid: TrackKey,
    /// From `process_name`; empty if unknown.
    pub process_name: String,
    /// From `process_labels`, such as `GPU 0`; empty if unknown.
    pub process_label: String,
    /// From `thread_name`; empty if unknown.
    pub thread_name: String,
}

impl TrackKey {
    /// Returns the number, if the key is one.
    pub fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) => None,
        }
    }

    /// Returns the text, if the key is one.
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
    /// Creates a track without names.
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
