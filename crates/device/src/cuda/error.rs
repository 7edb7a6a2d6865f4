//! Errors of a device, real or emulated.

use std::fmt;
use std::path::PathBuf;

use super::libraries::RejectedLibrary;

/// An error of a call to a device, real or emulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The driver of the GPU is not installed on this machine.
    #[error("no GPU driver: none of {names} can be opened")]
    NoDriver { names: &'static str },
    /// The library is installed, but its version lacks a function that rowmill needs.
    #[error("{library} has no function {function}: its version is too old or too new")]
    NoFunction { library: &'static str, function: String },
    /// TF32 was requested for a device that does not support it. Only GPUs support TF32.
    #[error("only cuda and cuda:N multiply in TF32")]
    NoTf32,
    /// No device has this index.
    #[error("device cuda:{ordinal}: the driver offers {count} devices")]
    NoDevice { ordinal: usize, count: usize },
    /// A call into the driver failed.
    #[error("{}{call}: {problem} (code {code}){}", operation_suffix(operation.as_deref()),
            later_hint(operation.as_deref(), *code))]
    Call {
        call: &'static str,
        /// Name of the kernel or copy that failed, if known.
        operation: Option<String>,
        code: u32,
        problem: String,
    },
    /// The device has too little free memory.
    #[error("device memory: expected at most {free} free of {total} bytes, got {bytes}")]
    OutOfMemory {
        bytes: usize,
        free: usize,
        /// Total memory of the device in bytes.
        total: usize,
    },
    /// A library is not installed, or no installed version is usable.
    #[error("{library} {}", no_library(rejected, *folders))]
    NoLibrary {
        library: &'static str,
        /// Files that were tried but could not be used.
        rejected: Vec<RejectedLibrary>,
        /// Number of folders that were searched besides the linker's.
        folders: usize,
    },
    /// A kernel's source does not compile.
    #[error("{source_name} does not compile for {target}:\n{log}")]
    Compile {
        source_name: String,
        /// The target architecture, or the compiler if the kernel is emulated.
        target: String,
        log: String,
    },
    /// A file of the kernel cache cannot be read, trusted or written.
    #[error("{path}: {problem}", path = path.display())]
    Cache {
        path: PathBuf,
        /// Message of the operating system or of a failed check.
        problem: String,
    },
    /// A module has no kernel of this name.
    #[error("{source_name} has no kernel {kernel:?}")]
    NoKernel { source_name: String, kernel: String },
    /// A launch or copy exceeds its buffers or the limits of the device.
    #[error("{of}: {what}: expected {expected}, got {got}")]
    Extent {
        /// Name of the kernel or copy that exceeds the limit.
        of: String,
        what: &'static str,
        expected: usize,
        got: usize,
    },
    /// A kernel made an invalid access or call. Only the emulator reports this.
    #[error("{0}")]
    Fault(Box<Fault>),
}

/// An error of a kernel that the emulator detected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kernel: String,
    /// File and line of the access or call, as far as known.
    pub place: SourceLine,
    /// Index of the block in its grid.
    pub block: u32,
    /// Index of the thread in its block.
    pub thread: u32,
    pub kind: FaultKind,
}

/// A line of a source file, for the messages of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// Name of the source file.
    pub file: String,
    /// Line number, or 0 if it is unknown.
    pub line: u32,
}

/// The kinds of error that the emulator detects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A load or store outside all buffers, shared memory and the thread's own memory.
    Outside {
        access: &'static str,
        bytes: u64,
        /// Distance in bytes from the end of the nearest buffer before the address, and the size of
        /// that buffer.
        after: Option<(u64, u64)>,
    },
    /// A load or store at a misaligned address.
    Misaligned {
        access: &'static str,
        /// Alignment in bytes that the access requires.
        bytes: u64,
    },
    /// Two accesses to one address without a barrier between them, at least one of them a store.
    Race {
        /// Kind of the later access, `load` or `store`.
        access: &'static str,
        other: SourceLine,
        /// Block of the earlier access, or `None` if several blocks made it.
        block: Option<u32>,
        /// Thread of the earlier access, or `None` if several threads made it.
        thread: Option<u32>,
    },
    /// A barrier that another thread of the block did not reach.
    Barrier {
        /// Index of the thread that did not reach the barrier.
        missing: u32,
        /// Line of the barrier at which the missing thread waits, or 0 if the thread has ended.
        at: u32,
    },
    /// A lane that is named in the mask of a shuffle or ballot, but did not arrive.
    LaneMissing {
        mask: u32,
        /// Index of the thread that did not arrive.
        missing: u32,
        /// Line at which the missing thread waits, or 0 if the thread has ended.
        at: u32,
    },
    /// A lane calls a warp function with a mask that excludes the lane, or reads from an excluded
    /// lane.
    LaneNotNamed {
        /// Number of the excluded lane.
        lane: u32,
    },
    /// A store before or after a buffer, detected after the launch.
    RedZone {
        /// Size of the buffer in bytes.
        bytes: u64,
    },
    /// The thread exceeded its own stack.
    Stack,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}, unknown line", self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, place, block, thread, kind } = self;
        write!(f, "kernel {kernel}, {place}, block {block}, thread {thread}: {kind}")
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits = |at: u32| match at {
            0 => "it has ended".to_owned(),
            line => format!("it waits in line {line}"),
        };
        match self {
            Self::Outside { access, bytes, after: Some((past, len)) } => {
                write!(
                    f,
                    "{access} of {bytes} bytes {past} bytes past the end of a buffer of {len}"
                )
            }
            Self::Outside { access, bytes, after: None } => {
                write!(f, "{access} of {bytes} bytes outside every buffer")
            }
            Self::Misaligned { access, bytes } => {
                write!(f, "{access} at an address that is not a multiple of {bytes}")
            }
            Self::Race { access, other, block, thread } => {
                let number =
                    |n: &Option<u32>| n.map_or_else(|| "several".to_owned(), |n| n.to_string());
                let (block, thread) = (number(block), number(thread));
                write!(f, "{access} races with {other} of block {block}, thread {thread}")
            }
            Self::Barrier { missing, at } => {
                write!(f, "barrier that thread {missing} does not reach: {}", waits(*at))
            }
            Self::LaneMissing { mask, missing, at } => {
                let waits = waits(*at);
                write!(f, "mask {mask:#010x} names thread {missing}, which did not arrive: {waits}")
            }
            Self::LaneNotNamed { lane } => write!(f, "lane {lane} is not named in the mask"),
            Self::RedZone { bytes } => {
                write!(f, "store before or after a buffer of {bytes} bytes")
            }
            Self::Stack => f.write_str("the thread exceeded its own stack"),
        }
    }
}

/// Result codes that the driver returns from every call after a kernel or copy has failed. The
/// codes mean illegal address, time limit, assertion, stack, instruction, alignment, address
/// space, program counter, and failure of a launch (`cuda.h`).
const STICKY: [u32; 9] = [700, 702, 710, 714, 715, 716, 717, 718, 719];

impl DriverError {
    /// Adds the name of the operation that made the call. A sticky result may come from earlier
    /// work of the device, so the name is added to it only if the device was idle before.
    pub(super) fn in_operation(mut self, name: String, device_was_idle: bool) -> Self {
        if let Self::Call { operation, code, .. } = &mut self
            && (device_was_idle || !STICKY.contains(code))
        {
            *operation = Some(name);
        }
        self
    }
}

fn operation_suffix(operation: Option<&str>) -> String {
    operation.map(|operation| format!("{operation}: ")).unwrap_or_default()
}

fn later_hint(operation: Option<&str>, code: u32) -> &'static str {
    if operation.is_none() && STICKY.contains(&code) {
        "; an earlier kernel or copy failed: set ROWMILL_CUDA_SYNC=1 to learn which"
    } else {
        ""
    }
}

fn no_library(rejected: &[RejectedLibrary], folders: usize) -> String {
    if rejected.is_empty() {
        return format!("was found neither by the linker nor in {folders} other folders");
    }
    let rejected: Vec<String> = rejected.iter().map(ToString::to_string).collect();
    let rejected = rejected.join("; ");
    format!("cannot be used: {rejected}; nothing else found by the linker and in {folders} folders")
}

/// Returns an error if a library lacks one of `functions`.
pub(super) fn complete(
    library: &'static str,
    functions: &[&str],
    has: impl Fn(&str) -> bool,
) -> Result<(), DriverError> {
    match functions.iter().find(|name| !has(name)) {
        None => Ok(()),
        Some(name) => Err(DriverError::NoFunction { library, function: (*name).to_owned() }),
    }
}
