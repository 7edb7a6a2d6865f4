//! Defines the tracks of a timeline: threads of processes, and streams of devices.

/// The index of a track in [`Trace::tracks`](super::Trace::tracks).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrackId(pub u32);

/// A process or thread id as written in the file, which is usually a number. Kineto writes texts
/// for its own rows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrackKey {
    /// An id of the operating system, a device ordinal, or a stream number.
    Number(i64),
    /// A text, such as `Spans`, `Traces` or `stream 7`.
    Text(String),
}

/// A thread or a stream, identified by its process id and thread id in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    /// The process id, or the device ordinal for device rows.
    pub pid: TrackKey,
    /// The thread id, or the stream number for device rows.
    pub tid: TrackKey,
    /// Name from the metadata event `process_name`, or an empty string if the file has none.
    pub process_name: String,
    /// Label from the metadata event `process_labels`, such as `GPU 0`, or an empty string if the
    /// file has none.
    pub process_label: String,
    /// Name from the metadata event `thread_name`, or an empty string if the file has none.
    pub thread_name: String,
}

impl TrackKey {
    /// Returns the number, or `None` if the key is a text.
    pub fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) => None,
        }
    }

    /// Returns the text, or `None` if the key is a number.
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
