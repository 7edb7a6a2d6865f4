//! Options of the emulator: its compiler, the order of threads, and its checks.

use std::path::PathBuf;

/// Bytes of shared memory that a block of an H100 may have: its opt-in limit.
pub const H100_SHARED_BYTES: usize = 227 << 10;

/// The options with which the emulator compiles and runs kernels.
#[derive(Clone, Debug)]
pub struct Emulation {
    /// The C++ compiler, such as `g++`.
    pub compiler: PathBuf,
    /// Folder of compiled kernels; made where it is missing.
    pub cache: PathBuf,
    /// In which order blocks and threads run.
    pub order: BlockOrder,
    /// Whether each access is checked.
    pub checks: Checks,
    /// Bytes of shared memory that a block may have, declared and dynamic.
    pub shared_limit: usize,
    /// Sources used in place of the embedded ones of the same name, or of `prelude`; they test the
    /// tests.
    pub replaced: Vec<(&'static str, String)>,
}

/// In which order blocks and threads run. A missing barrier is not seen in every one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOrder {
    /// 0, 1, 2, …
    Ascending,
    /// …, 2, 1, 0.
    Descending,
    /// Random order, from this seed.
    Shuffled(u16),
}

/// Whether each access of a kernel is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// Every load and store is held against the buffers and against races; some 30 times slower.
    Every,
    /// Barriers, masks and red zones alone.
    Few,
    /// As [`Checks::Few`], and the compiler's own AddressSanitizer and UndefinedBehaviorSanitizer,
    /// which end the process. Their library must have been loaded before the program (LD_PRELOAD).
    Sanitizers,
}
