//! The CPU as a device: a thread pool whose idle threads park, and an instruction set. Every
//! operation takes both as an argument. This module does not depend on the operations.

mod disjoint;
mod isa;
mod migration;
mod pool;
mod system;
mod topology;
pub(crate) mod vector;

pub use disjoint::DisjointMut;
pub use isa::{Avx2, Avx512, Avx512Bf16, Bf16Products, Isa};
pub use pool::Pool;
pub use topology::Topology;

/// Threads and instruction set of one CPU device.
#[derive(Debug)]
pub struct Cpu {
    pub pool: Pool,
    /// The instruction set that the kernels use.
    pub isa: Isa,
}

impl Cpu {
    /// Creates a device of `threads` threads, the caller's included, with the widest instruction
    /// set of this machine.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self::with_isa(threads, Isa::detect())
    }

    /// Creates a device of `threads` threads with a chosen instruction set.
    #[must_use]
    pub fn with_isa(threads: usize, isa: Isa) -> Self {
        Self { pool: Pool::new(threads), isa }
    }

    /// Creates a device of `threads` threads with the scalar kernels, which run on any machine.
    #[must_use]
    pub fn portable(threads: usize) -> Self {
        Self::with_isa(threads, Isa::Portable)
    }
}
