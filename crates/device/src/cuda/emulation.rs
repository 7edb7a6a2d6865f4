//! Options of the emulator: its compiler, the order of threads, and its checks.

use std::path::PathBuf;

/// Bytes of shared memory that a block may use on an H100 after it has requested them.
pub const H100_SHARED_BYTES: usize = 227 << 10;

/// The options with which the emulator compiles and runs kernels.
#[derive(Clone, Debug)]
pub struct Emulation {
    /// The C++ compiler that compiles the kernels, such as `g++`.
    pub compiler: PathBuf,
    /// Folder of compiled kernels, which is created if it is missing.
    pub cache: PathBuf,
    /// Order in which blocks and their threads run.
    pub order: BlockOrder,
    /// Strictness of the checks of a kernel's accesses.
    pub checks: Checks,
    /// Bytes of shared memory available to a block, declared and dynamic together.
    pub shared_limit: usize,
    /// Sources that replace the embedded source of the same name, or the `prelude`. Mutation
    /// tests use such replacements.
    pub replaced: Vec<(&'static str, String)>,
}

/// Order in which blocks and threads run. Some orders hide a missing barrier, so tests use
/// several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOrder {
    /// Ascending order: 0, 1, 2, …
    Ascending,
    /// Descending order: …, 2, 1, 0.
    Descending,
    /// Random order, generated from this seed.
    Shuffled(u16),
}

/// The strictness with which the emulator checks the accesses of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// Checks the bounds and races of every load and store, which makes kernels about 30 times
    /// slower.
    Every,
    /// Checks only barriers, lane masks and red zones, not every load and store.
    Few,
    /// Checks like [`Checks::Few`], and also runs the compiler's AddressSanitizer and
    /// UndefinedBehaviorSanitizer, which end the process at an error. The library of the
    /// sanitizers must be preloaded (LD_PRELOAD).
    Sanitizers,
}
