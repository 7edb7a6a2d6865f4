//! What one rank computes with: its threads, its end of the communicator, its profiler.

use comm::Communicator;
use device::Cpu;

use crate::profile::Profiler;

/// Passed to every layer; owns no parameters.
pub struct RankContext {
    /// Threads and instruction set.
    pub cpu: Cpu,
    /// This rank's end.
    pub comm: Communicator,
    /// Records operations while a trace is being taken.
    pub profiler: Profiler,
}

impl RankContext {
    /// The only rank of a job.
    #[must_use]
    pub fn alone(cpu: Cpu, profiler: Profiler) -> Self {
        Self { cpu, comm: comm::world(1).swap_remove(0), profiler }
    }
}
