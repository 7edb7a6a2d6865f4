//! Options of the emulator: its compiler, the order of threads, and its checks.

use std::path::PathBuf;

/// Bytes of shared memory that a block of an H100 may have: its opt-in limit.
pub const H100_SHARED_BYTES: usize = 227 << 10;

/// The options with which the emulator compiles and runs kernels.
#[derive(Clone, Debug)]
pub struct Emulation {
    /// The C++ compiler, such as `g++`.
    pub compiler: PathBuf,
    /// Folder of compiled kernels; created if it is missing.
    pub cache: PathBuf,
    /// Order in which blocks and threads run.
    pub order: BlockOrder,
    /// How strictly accesses are checked.
    pub checks: Checks,
    /// Bytes of shared memory available to a block, declared and dynamic together.
    pub shared_limit: usize,
    /// Sources that replace the embedded ones of the same name, or `prelude`. Mutation tests use
    /// them.
    pub replaced: Vec<(&'static str, String)>,
}

/// Order in which blocks and threads run. Some orders hide a missing barrier, so tests use several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOrder {
    /// 0, 1, 2, …
    Ascending,
    /// …, 2, 1, 0.
    Descending,
    /// Random order from this seed.
    Shuffled(u16),
}

/// How strictly the accesses of a kernel are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// Checks every load and store against the bounds of buffers and for races. About 30 times
    /// slower.
    Every,
    /// Checks only barriers, lane masks and red zones.
    Few,
    /// As [`Checks::Few`], with the compiler's AddressSanitizer and UndefinedBehaviorSanitizer,
    /// which end the process at an error. Their library must be preloaded (LD_PRELOAD).
    Sanitizers,
}
