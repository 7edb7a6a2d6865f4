//! What one rank computes with: its threads, its ends of the communicators, its profiler.

use std::time::Duration;

use comm::Communicator;
use device::Cpu;
use schema::Rank;

use crate::profile::Profiler;

/// Passed to every layer; owns no parameters.
pub struct RankContext {
    /// Threads and instruction set.
    pub cpu: Cpu,
    /// This rank's ends.
    pub comm: Streams,
    /// Records operations while a trace is being taken.
    pub profiler: Profiler,
}

impl RankContext {
    /// The only rank of a job.
    #[must_use]
    pub fn alone(cpu: Cpu, profiler: Profiler) -> Self {
        Self { cpu, comm: comm::world(1).swap_remove(0).into(), profiler }
    }
}

/// A communicator per logical stream, so that what is under way on one never waits for another.
pub struct Streams {
    /// Commands and what comes of them.
    pub control: Communicator,
    /// Ids to the owners of their rows.
    pub input: Communicator,
    /// Pooled vectors and their gradients.
    pub pooled: Communicator,
    /// Gradients of dense parameters.
    pub dense: Communicator,
}

impl From<Communicator> for Streams {
    fn from(control: Communicator) -> Self {
        let (input, pooled) = (control.duplicate(), control.duplicate());
        Self { input, pooled, dense: control.duplicate(), control }
    }
}

impl Streams {
    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.control.rank()
    }

    /// Number of ranks.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.control.world_size()
    }

    /// Every message from now on belongs to this step.
    pub fn set_step(&mut self, step: u64) {
        self.all().into_iter().for_each(|stream| stream.set_step(step));
    }

    /// Every message from now on belongs to the job of this hash.
    pub fn set_plan(&mut self, plan: u64) {
        self.all().into_iter().for_each(|stream| stream.set_plan(plan));
    }

    /// Waits at most so long for a message; for ever without.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.all().into_iter().for_each(|stream| stream.set_timeout(timeout));
    }

    fn all(&mut self) -> [&mut Communicator; 4] {
        [&mut self.control, &mut self.input, &mut self.pooled, &mut self.dense]
    }
}
