//! How a GPU and its events are used. Reads no environment variable by itself.

use std::ffi::OsString;
use std::path::PathBuf;

use super::libraries::{LibraryRoots, LibrarySearch};

/// How a GPU is used.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Where NVRTC and cuBLASLt are looked for.
    pub libraries: LibrarySearch,
    /// Folder of compiled kernels; made where it is missing.
    pub cache: PathBuf,
    /// Whether the host waits for each kernel and copy, so that an error of the device names the
    /// one that caused it. Slow.
    pub synchronous: bool,
}

impl CudaOptions {
    /// What the environment of a process asks for; `variable` looks up one variable.
    #[must_use]
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>, cache: PathBuf) -> Self {
        let synchronous =
            variable("ROWMILL_CUDA_SYNC").is_some_and(|value| !value.is_empty() && value != "0");
        let libraries = LibrarySearch::new(&LibraryRoots::from_variables(variable));
        Self { libraries, cache, synchronous }
    }
}

/// The purpose of an event, which decides whether the device records a time for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventPurpose {
    /// Streams and the host wait for it. Cheaper, because the device records no time.
    Order,
    /// The time between two such events is measured.
    Timing,
}
