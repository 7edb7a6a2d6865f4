//! What one rank computes with: its threads, its ends of the communicators, its profiler.

use std::time::Duration;

use comm::Communicator;
use device::Backend;
use schema::Rank;

use crate::Error;
use crate::profile::Profiler;

/// Passed to every layer; owns no parameters.
pub struct RankContext<B: Backend> {
    pub device: B,
    /// In which order it does.
    pub queue: B::Queue,
    pub comm: Streams,
    /// Records operations while a trace is being taken.
    pub profiler: Profiler,
}

/// A device and the queue in which it works.
pub type On<'a, B> = (&'a B, &'a <B as Backend>::Queue);

impl<B: Backend> RankContext<B> {
    /// The rank at `comm`.
    ///
    /// # Errors
    /// [`Error::Device`] where the device has no queue.
    pub fn new(device: B, comm: Communicator, profiler: Profiler) -> Result<Self, Error> {
        let queue = device.queue()?;
        let moments = if profiler.records() { device.moments(&queue)? } else { None };
        let profiler = profiler.with_moments(moments);
        Ok(Self { device, queue, comm: comm.into(), profiler })
    }

    /// The only rank of a job.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn alone(device: B, profiler: Profiler) -> Result<Self, Error> {
        Self::new(device, comm::world(1).swap_remove(0), profiler)
    }

    /// The device and its queue.
    pub fn on(&self) -> On<'_, B> {
        (&self.device, &self.queue)
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
