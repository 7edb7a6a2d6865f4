//! Datagrams as bytes: a header of 40 bytes (size, kind), then a payload. Little-endian.
//!
//! What arrives was written by another program and may be anything: every field is checked against
//! the length. Knows nothing of sockets.

/// Bytes before the payload.
pub const HEADER: usize = 40;
/// Most process ids of a poll: the asking process and its ancestors.
const PIDS_MAX: usize = 64;
/// The bit of a poll that says the activity profiler is free.
const ACTIVITIES: i32 = 2;

/// What a process says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessMessage {
    /// It exists. Older PyTorch only.
    Register {
        /// The device it uses.
        device: i32,
        /// Its process id, as it sees it.
        pid: i32,
        /// Its Slurm job, 0 for none.
        job: i64,
    },
    /// Is a trace wanted?
    Poll {
        /// Which profilers are free: bit 1 that of activities; 0 while a trace is made.
        free: i32,
        /// Its Slurm job, 0 for none.
        job: i64,
        /// Its process id as it sees it, then its ancestors'.
        pids: Vec<i32>,
    },
}

/// Why bytes are no message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Not even a header.
    #[error("datagram: expected a header of {HEADER} bytes, got {got}")]
    Short {
        /// Bytes there are.
        got: usize,
    },
    /// The header states another size.
    #[error("datagram: its header says {said} bytes of payload, got {got}")]
    Size {
        /// As the header says.
        said: u64,
        /// Bytes there are.
        got: usize,
    },
    /// Neither `ctxt` nor `req`.
    #[error("datagram: expected kind ctxt or req, got {kind:?}")]
    Kind {
        /// As the header says.
        kind: String,
    },
    /// A payload of the wrong size for its kind.
    #[error("{kind} message: expected {expected} bytes of payload, got {got}")]
    Payload {
        kind: &'static str,
        /// As the fields say.
        expected: usize,
        /// Bytes there are.
        got: usize,
    },
    /// A count of process ids that makes no sense.
    #[error("req message: expected 1 to {PIDS_MAX} process ids, got {got}")]
    Pids {
        /// As the message says.
        got: i32,
    },
}

impl ProcessMessage {
    /// Reads a datagram.
    ///
    /// # Errors
    /// Any field that does not fit its place; nothing of such a message is believed.
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let short = MessageError::Short { got: bytes.len() };
        let Some((header, payload)) = bytes.split_at_checked(HEADER) else { return Err(short) };
        let said = header.first_chunk().map_or(0, |size| u64::from_le_bytes(*size));
        if said != payload.len() as u64 {
            return Err(MessageError::Size { said, got: payload.len() });
        }
        let name = &header[8..];
        let name = &name[..name.iter().position(|&byte| byte == 0).unwrap_or(name.len())];
        match name {
            b"ctxt" => register(payload),
            b"req" => poll(payload),
            _ => Err(MessageError::Kind { kind: name.escape_ascii().to_string() }),
        }
    }

    /// The message as its sender writes it.
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

/// Whether the profiler of activities is free, by a poll's mask.
pub fn is_free(mask: i32) -> bool {
    mask & ACTIVITIES != 0
}

/// The answer to a poll: the text of a configuration, or nothing.
pub fn poll_answer(config: &str) -> Vec<u8> {
    datagram(b"req", config.as_bytes())
}

/// The answer to a registration: how many processes share its job and device.
pub fn register_answer(count: i32) -> Vec<u8> {
    datagram(b"ctxt", &count.to_le_bytes())
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

/// The caller has checked the length.
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
    use super::{MessageError, ProcessMessage, is_free, poll_answer, register_answer};

    fn a_poll() -> ProcessMessage {
        ProcessMessage::Poll { free: 2, job: 7, pids: vec![4242, 4200, 17, 9, 5, 2] }
    }

    #[test]
    fn a_poll_of_six_processes_has_the_measured_eighty_bytes() {
        let bytes = a_poll().to_bytes();
        assert_eq!(bytes.len(), 80);
        assert_eq!(bytes[..12], [0x28, 0, 0, 0, 0, 0, 0, 0, b'r', b'e', b'q', 0]);
        assert_eq!(bytes[40..56], [2, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ProcessMessage::parse(&bytes).unwrap(), a_poll());
    }

    #[test]
    fn answers_have_the_measured_bytes() {
        let nothing = poll_answer("");
        assert_eq!((nothing.len(), &nothing[..12]), (40, &b"\0\0\0\0\0\0\0\0req\0"[..]));
        let some = poll_answer("A=1\n");
        assert_eq!((some[0], &some[40..]), (4, &b"A=1\n"[..]));
        assert_eq!(register_answer(2)[40..], [2, 0, 0, 0]);
        let register = ProcessMessage::Register { device: -1, pid: 3, job: 1 << 40 };
        assert_eq!(ProcessMessage::parse(&register.to_bytes()).unwrap(), register);
    }

    #[test]
    fn the_mask_says_whether_the_profiler_is_free() {
        assert!(is_free(2) && is_free(3) && !is_free(0) && !is_free(1));
    }

    #[test]
    fn every_cut_and_every_lie_is_an_error() {
        let whole = a_poll().to_bytes();
        for length in 0..whole.len() {
            assert!(ProcessMessage::parse(&whole[..length]).is_err(), "{length}");
        }
        let with = |at: usize, bytes: &[u8]| {
            let mut changed = whole.clone();
            changed[at..at + bytes.len()].copy_from_slice(bytes);
            ProcessMessage::parse(&changed).unwrap_err()
        };
        assert_eq!(with(0, &[41]), MessageError::Size { said: 41, got: 40 });
        assert_eq!(with(0, &[0xFF; 8]), MessageError::Size { said: u64::MAX, got: 40 });
        assert_eq!(with(8, b"rex"), MessageError::Kind { kind: "rex".into() });
        assert!(matches!(with(8, &[0xFF; 32]), MessageError::Kind { .. }));
        assert_eq!(with(44, &[5]), MessageError::Payload { kind: "req", expected: 36, got: 40 });
        assert_eq!(with(44, &(-1_i32).to_le_bytes()), MessageError::Pids { got: -1 });
        assert_eq!(with(44, &i32::MAX.to_le_bytes()), MessageError::Pids { got: i32::MAX });
        assert_eq!(with(44, &[0]), MessageError::Pids { got: 0 });
    }

    #[test]
    fn a_byte_changed_anywhere_never_panics() {
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
