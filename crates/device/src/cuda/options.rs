//! Options of a GPU: whether it runs synchronously, and where kernels and libraries are found.
//! The caller passes the environment variables.

use std::ffi::OsString;
use std::path::PathBuf;

use super::libraries::{LibraryRoots, LibrarySearch};

/// The options with which a GPU is opened.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    pub libraries: LibrarySearch,
    /// Folder of compiled kernels, which is created if it is missing.
    pub cache: PathBuf,
    /// Whether the host waits for each kernel and copy, so that an error names the operation that
    /// caused it. This mode is slow, because the host and the device do not overlap.
    pub synchronous: bool,
}

impl CudaOptions {
    /// Reads the options from environment variables; `variable` looks up one variable.
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
    /// The event orders streams or wakes the host. Such an event is cheaper, because the device
    /// records no time.
    Order,
    /// The event records a time, so that the time between two events can be measured.
    Timing,
}
