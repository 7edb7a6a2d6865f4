//! Encodes and decodes datagrams. A datagram is a header of 40 bytes with size and kind, followed
//! by a payload in little-endian byte order.
//!
//! Datagrams come from other programs and are untrusted, so every field is checked against the
//! length.

/// Size in bytes of the header that precedes the payload.
pub const HEADER: usize = 40;
/// The mask in a poll of a process whose activity profiler is free.
pub const FREE: i32 = ACTIVITIES;
/// Maximum number of process ids in a poll, which lists the polling process and its ancestors.
const PIDS_MAX: usize = 64;
/// The bit in a poll that means the activity profiler is free.
const ACTIVITIES: i32 = 2;

/// A message that a process sends to the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessMessage {
    /// Registers a process at its start. Only older PyTorch versions send this message.
    Register {
        device: i32,
        /// Process id in the process's own namespace.
        pid: i32,
        /// Slurm job id; 0 if unknown.
        job: i64,
    },
    /// Asks the daemon whether a trace of this process is requested.
    Poll {
        /// Mask of free profilers. Bit 1 is the activity profiler; the mask is 0 while a trace is
        /// recorded.
        free: i32,
        /// Slurm job id; 0 if unknown.
        job: i64,
        /// Ids of the process and of its ancestors, in this order, in the process's own namespace.
        pids: Vec<i32>,
    },
}

/// The reason why a datagram is not a valid message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The datagram is shorter than a header.
    #[error("datagram: expected a header of {HEADER} bytes, got {got}")]
    Short { got: usize },
    /// The payload size in the header differs from the actual payload.
    #[error("datagram: its header says {stated} bytes of payload, got {got}")]
    Size {
        /// Payload size that the header states.
        stated: u64,
        got: usize,
    },
    /// The kind of the message is neither `ctxt` nor `req`.
    #[error("datagram: expected kind ctxt or req, got {kind:?}")]
    Kind { kind: String },
    /// The payload has the wrong size for its kind.
    #[error("{kind} message: expected {expected} bytes of payload, got {got}")]
    Payload {
        kind: &'static str,
        /// Payload size that the kind and the fields require.
        expected: usize,
        got: usize,
    },
    /// The count of process ids is out of range.
    #[error("req message: expected 1 to {PIDS_MAX} process ids, got {got}")]
    Pids { got: i32 },
}

impl ProcessMessage {
    /// Parses a datagram.
    ///
    /// # Errors
    /// Fails if any field is invalid, so no part of an invalid message is used.
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let short = MessageError::Short { got: bytes.len() };
        let Some((header, payload)) = bytes.split_at_checked(HEADER) else { return Err(short) };
        let stated = header.first_chunk().map_or(0, |size| u64::from_le_bytes(*size));
        if stated != payload.len() as u64 {
            return Err(MessageError::Size { stated, got: payload.len() });
        }
        let name = &header[8..];
        // The kind is a C string in a field of 32 bytes. The bytes after its zero have no meaning.
        let name = &name[..name.iter().position(|&byte| byte == 0).unwrap_or(name.len())];
        match name {
            b"ctxt" => register(payload),
            b"req" => poll(payload),
            _ => Err(MessageError::Kind { kind: name.escape_ascii().to_string() }),
        }
    }

    /// Encodes the message in the same way as its sender.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Register { device, pid, job } => {
                let mut payload = Vec::with_capacity(16);
                payload.extend_from_slice(&device.to_le_bytes());
                payload.extend_from_slice(&pid.to_le_bytes());
                payload.extend_from_slice(&job.to_le_bytes());
                datagram(b"ctxt", &payload)
            }
            Self::Poll { free, job, pids } => {
                let count = i32::try_from(pids.len()).unwrap_or(i32::MAX);
                let mut payload = Vec::with_capacity(16 + 4 * pids.len());
                payload.extend_from_slice(&free.to_le_bytes());
                payload.extend_from_slice(&count.to_le_bytes());
                payload.extend_from_slice(&job.to_le_bytes());
                payload.extend(pids.iter().flat_map(|pid| pid.to_le_bytes()));
                datagram(b"req", &payload)
            }
        }
    }
}

/// Whether the mask in a poll marks the activity profiler as free.
pub fn is_free(mask: i32) -> bool {
    mask & ACTIVITIES != 0
}

/// Encodes the answer to a poll, which is the text of a request, or empty if no trace is requested.
pub fn poll_answer(config: &str) -> Vec<u8> {
    datagram(b"req", config.as_bytes())
}

/// Encodes the answer to a registration, which is the number of processes with the same job and
/// device.
pub fn register_answer(count: i32) -> Vec<u8> {
    datagram(b"ctxt", &count.to_le_bytes())
}

/// Decodes the answer to a poll. Returns `None` if the datagram is not such an answer.
pub fn parse_poll_answer(bytes: &[u8]) -> Option<&str> {
    let (header, payload) = bytes.split_at_checked(HEADER)?;
    let stated = header.first_chunk().map(|size| u64::from_le_bytes(*size))?;
    let is_answer = header[8..].starts_with(b"req\0") && stated == payload.len() as u64;
    std::str::from_utf8(payload).ok().filter(|_| is_answer)
}

fn register(payload: &[u8]) -> Result<ProcessMessage, MessageError> {
    if payload.len() != 16 {
        return Err(MessageError::Payload { kind: "ctxt", expected: 16, got: payload.len() });
    }
    Ok(ProcessMessage::Register {
        device: i32_at(payload, 0),
        pid: i32_at(payload, 4),
        job: i64_at(payload, 8),
    })
}

fn poll(payload: &[u8]) -> Result<ProcessMessage, MessageError> {
    let wrong = |expected| MessageError::Payload { kind: "req", expected, got: payload.len() };
    if payload.len() < 16 {
        return Err(wrong(16));
    }
    let got = i32_at(payload, 4);
    let count = usize::try_from(got).ok().filter(|count| (1..=PIDS_MAX).contains(count));
    let count = count.ok_or(MessageError::Pids { got })?;
    if payload.len() != 16 + 4 * count {
        return Err(wrong(16 + 4 * count));
    }
    let pids = (0..count).map(|at| i32_at(payload, 16 + 4 * at)).collect();
    Ok(ProcessMessage::Poll { free: i32_at(payload, 0), job: i64_at(payload, 8), pids })
}

/// Reads an integer at an offset. The caller has checked the length of `bytes`.
fn i32_at(bytes: &[u8], at: usize) -> i32 {
    bytes[at..].first_chunk().map_or(0, |field| i32::from_le_bytes(*field))
}

fn i64_at(bytes: &[u8], at: usize) -> i64 {
    bytes[at..].first_chunk().map_or(0, |field| i64::from_le_bytes(*field))
}

fn datagram(kind: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes[..8].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes[8..8 + kind.len()].copy_from_slice(kind);
    bytes.extend_from_slice(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::{
        MessageError, ProcessMessage, is_free, parse_poll_answer, poll_answer, register_answer,
    };

    fn a_poll() -> ProcessMessage {
        ProcessMessage::Poll { free: 2, job: 7, pids: vec![4242, 4200, 17, 9, 5, 2] }
    }

    #[test]
    fn poll_of_six_processes_has_80_bytes() {
        let bytes = a_poll().to_bytes();
        assert_eq!(bytes.len(), 80);
        assert_eq!(bytes[..12], [0x28, 0, 0, 0, 0, 0, 0, 0, b'r', b'e', b'q', 0]);
        assert_eq!(bytes[40..56], [2, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ProcessMessage::parse(&bytes).unwrap(), a_poll());
    }

    #[test]
    fn answers_match_the_measured_bytes() {
        let nothing = poll_answer("");
        assert_eq!((nothing.len(), &nothing[..12]), (40, &b"\0\0\0\0\0\0\0\0req\0"[..]));
        let some = poll_answer("A=1\n");
        assert_eq!((some[0], &some[40..]), (4, &b"A=1\n"[..]));
        assert_eq!(
            (parse_poll_answer(&some), parse_poll_answer(&nothing)),
            (Some("A=1\n"), Some(""))
        );
        assert_eq!(
            (parse_poll_answer(&some[..42]), parse_poll_answer(&register_answer(2))),
            (None, None)
        );
        assert_eq!(register_answer(2)[40..], [2, 0, 0, 0]);
        let register = ProcessMessage::Register { device: -1, pid: 3, job: 1 << 40 };
        assert_eq!(ProcessMessage::parse(&register.to_bytes()).unwrap(), register);
    }

    #[test]
    fn mask_tells_whether_the_profiler_is_free() {
        assert!(is_free(2) && is_free(3) && !is_free(0) && !is_free(1));
    }

    #[test]
    fn truncated_and_inconsistent_messages_are_errors() {
        let whole = a_poll().to_bytes();
        for length in 0..whole.len() {
            assert!(ProcessMessage::parse(&whole[..length]).is_err(), "{length}");
        }
        let with = |at: usize, bytes: &[u8]| {
            let mut changed = whole.clone();
            changed[at..at + bytes.len()].copy_from_slice(bytes);
            ProcessMessage::parse(&changed).unwrap_err()
        };
        assert_eq!(with(0, &[41]), MessageError::Size { stated: 41, got: 40 });
        assert_eq!(with(0, &[0xFF; 8]), MessageError::Size { stated: u64::MAX, got: 40 });
        assert_eq!(with(8, b"rex"), MessageError::Kind { kind: "rex".into() });
        assert!(matches!(with(8, &[0xFF; 32]), MessageError::Kind { .. }));
        assert_eq!(with(44, &[5]), MessageError::Payload { kind: "req", expected: 36, got: 40 });
        assert_eq!(with(44, &(-1_i32).to_le_bytes()), MessageError::Pids { got: -1 });
        assert_eq!(with(44, &i32::MAX.to_le_bytes()), MessageError::Pids { got: i32::MAX });
        assert_eq!(with(44, &[0]), MessageError::Pids { got: 0 });
    }

    #[test]
    fn corrupted_bytes_never_panic() {
        let whole = a_poll().to_bytes();
        for at in 0..whole.len() {
            for value in [0, 1, 0x7F, 0x80, 0xFF] {
                let mut changed = whole.clone();
                changed[at] = value;
                let _ = ProcessMessage::parse(&changed);
            }
        }
    }
}
