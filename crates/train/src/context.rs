//! The resources of one rank: its device and queue, its communicators and its profiler.

use std::time::Duration;

use comm::{Communicator, HostCommunicators};
use device::Backend;
use schema::stage::{ActionPart, Overlap};
use schema::{Rank, Schedule, ShardingPlan, Stage};

use crate::Error;
use crate::embedding::input_dist::{IdCommunicators, IdExchange};
use crate::lane::{AllToAll, ExchangeWait, GradientSums, HostExchange, Lane};
use crate::profile::{Profiler, TimedAction};

/// The device, communicators and profiler of one rank, which are passed to every layer. Parameters
/// are not included, because the model owns them.
pub struct RankContext<B: Backend> {
    pub device: B,
    pub queue: B::Queue,
    pub comm: Streams<B>,
    /// Records operations while a trace is being taken.
    pub profiler: Profiler,
}

/// A device and its queue, the two arguments that reading or writing a buffer needs.
pub struct DeviceQueue<'a, B: Backend> {
    pub device: &'a B,
    pub queue: &'a B::Queue,
}

// Derived impls would require `B: Clone`, which devices do not implement.
impl<B: Backend> Clone for DeviceQueue<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for DeviceQueue<'_, B> {}

impl<B: Backend> RankContext<B> {
    /// Creates the context of the rank that `comm` belongs to.
    ///
    /// # Errors
    /// [`Error::Device`] if the device cannot create a queue.
    pub fn new(device: B, comm: Communicator, profiler: Profiler) -> Result<Self, Error> {
        let queue = device.queue()?;
        let moments = if profiler.records() { device.moments(&queue)? } else { None };
        let profiler = profiler.with_moments(moments);
        Ok(Self { device, queue, comm: comm.into(), profiler })
    }

    /// Creates the context of a job with a single rank.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::new`].
    pub fn alone(device: B, profiler: Profiler) -> Result<Self, Error> {
        Self::new(device, comm::world(1).swap_remove(0), profiler)
    }

    /// Records an action if it belongs to an exchange. Returns the time for which the compute
    /// thread waited for the end of the exchange.
    pub(crate) fn record_exchange(&mut self, action: &TimedAction) -> Duration {
        let wait = match action.part {
            // An evaluation may have left its wait.
            ActionPart::Start => None,
            ActionPart::Whole | ActionPart::Finish => self.comm.take_wait(action.stage),
        };
        self.profiler.record_exchange(action, wait.as_ref());
        wait.map_or(Duration::ZERO, |wait| wait.length())
    }

    /// Returns the device together with its queue, for calls that need both.
    pub fn device_queue(&self) -> DeviceQueue<'_, B> {
        DeviceQueue { device: &self.device, queue: &self.queue }
    }
}

/// One lane per logical stream, so that messages in flight on one stream never block those of
/// another.
pub struct Streams<B: Backend> {
    /// Commands of rank 0, and the replies to them.
    pub control: Communicator,
    /// Ids on their way to the ranks of this group that own their rows.
    pub input: Lane<IdExchange<B>>,
    /// Pooled vectors and their gradients, within this group.
    pub pooled: PooledLanes,
    /// Gradients of dense parameters.
    pub dense: Lane<GradientSums>,
    /// Gradients of the rows of replicated tables.
    pub replicas: Lane<GradientSums>,
    /// Losses and stop flags.
    pub losses: Lane<AllToAll<u8>>,
    /// Gradients or weights of tiles, summed over replica groups. Each group sends them from the
    /// rank that holds the tiles.
    pub groups: Lane<GradientSums>,
    place: Rank,
}

/// The lanes of pooled vectors and their gradients.
pub struct PooledLanes {
    /// Messages between any two ranks. Also carries terms of rows.
    pub by_rank: Lane<AllToAll<f32>>,
    /// Sums of hosts. Is `None` if no host adds up tiles under the plan.
    by_host: Option<Lane<HostExchange>>,
}

impl<B: Backend> From<Communicator> for Streams<B> {
    /// Creates the streams of ranks that form one replica group.
    fn from(control: Communicator) -> Self {
        Self {
            input: Lane::new(&IdCommunicators::single(control.duplicate())),
            pooled: PooledLanes { by_rank: Lane::new(&control), by_host: None },
            dense: Lane::new(&control),
            replicas: Lane::new(&control),
            losses: Lane::new(&control),
            groups: Lane::new(&control),
            place: control.rank(),
            control,
        }
    }
}

impl<B: Backend> Streams<B> {
    /// Replaces the lanes within a group and between groups by those of the plan's groups.
    fn divide_into_groups(&mut self, plan: &ShardingPlan) -> Result<(), Error> {
        let (rank, place) = (self.rank(), plan.place(self.rank()));
        let within = self.control.split(rank.0 / plan.group_size())?;
        let between = self.control.split(place.0)?;
        (self.pooled.by_rank, self.groups) = (Lane::new(&within), Lane::new(&between));
        self.input =
            Lane::new(&IdCommunicators::grouped(within, between, self.control.duplicate()));
        self.place = place;
        Ok(())
    }

    /// Returns the place of this rank in its replica group.
    #[must_use]
    pub fn place(&self) -> Rank {
        self.place
    }

    /// Returns the position of this rank among all ranks of the job.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.control.rank()
    }

    /// Returns the number of ranks of the job.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.control.world_size()
    }

    /// Tags every later exchange of a step with this number, so that ranks at different steps are
    /// detected. Commands may come a step ahead, and name their step themselves.
    pub fn set_step(&mut self, step: u64) {
        self.all().skip(1).for_each(|stream| stream.set_step(step));
    }

    /// Tags every later message with the hash of the job, so that ranks of different jobs are
    /// detected.
    pub fn set_plan(&mut self, plan: u64) {
        self.all().for_each(|stream| stream.set_plan(plan));
    }

    /// Sets how long to wait for a message. `None` waits without limit.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.all().for_each(|stream| stream.set_timeout(timeout));
    }

    /// Creates the lanes that a plan needs, and the threads of a schedule for this job. All ranks
    /// must call it at the same point of the program, before their first step.
    ///
    /// # Errors
    /// [`Error::Communication`], and [`Error::Thread`] if the operating system refuses a thread.
    pub fn open_lanes(&mut self, schedule: Schedule, plan: &ShardingPlan) -> Result<(), Error> {
        if !plan.groups().is_single() {
            self.divide_into_groups(plan)?;
        }
        if plan.hosts_that_reduce().iter().any(Option::is_some) {
            let mut group = self.pooled.by_rank.settings().duplicate();
            let hosts = HostCommunicators::split(&mut group, plan.hosts())?;
            let by_host = self.pooled.by_host.insert(Lane::new(&hosts));
            // An exchange between ranks is complete when the messages of all peers have arrived.
            // Ranks of a host add and pass on what they receive, which takes a thread.
            if schedule.has(Overlap::Pooled) || schedule.has(Overlap::Gradient) {
                by_host.spawn("host lane")?;
            }
        }
        if schedule.has(Overlap::Input) {
            self.input.spawn("input lane")?;
        }
        if schedule.has(Overlap::AllReduce) {
            self.dense.spawn("all-reduce lane")?;
        }
        if schedule.has(Overlap::Gradient) && !plan.replicas().is_empty() {
            self.replicas.spawn("replica lane")?;
        }
        if schedule.has(Overlap::Gradient) && plan.groups().sums_gradients() {
            self.groups.spawn("group lane")?;
        }
        Ok(())
    }

    /// Returns the wait for the exchange of `stage` that was finished last, once.
    fn take_wait(&mut self, stage: Stage) -> Option<ExchangeWait> {
        if stage == Stage::GroupExchange {
            return self.groups.take_wait();
        }
        match stage.overlap()? {
            Overlap::Input => self.input.take_wait(),
            Overlap::Pooled => self.pooled.take_wait(),
            Overlap::Gradient => {
                let (pooled, replicas) = (self.pooled.take_wait(), self.replicas.take_wait());
                ExchangeWait::both(pooled, replicas)
            }
            Overlap::AllReduce => self.dense.take_wait(),
            Overlap::Control => self.losses.take_wait(),
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Communicator> {
        let Self { control, input, pooled, dense, replicas, losses, groups, .. } = self;
        let PooledLanes { by_rank, by_host } = pooled;
        let [dense, replicas, groups] = [dense, replicas, groups].map(Lane::settings);
        [control, input.settings(), by_rank.settings(), dense, replicas, losses.settings(), groups]
            .into_iter()
            .chain(by_host.as_mut().map(Lane::settings))
    }
}

impl PooledLanes {
    /// Returns the lane of the sums of hosts.
    ///
    /// # Panics
    /// Panics if no host adds up tiles under the plan of [`Streams::open_lanes`].
    pub fn by_host(&mut self) -> &mut Lane<HostExchange> {
        let lane = self.by_host.as_mut();
        lane.unwrap_or_else(|| unreachable!("the lanes are opened for the plan of the model"))
    }

    /// Takes a buffer of `len` values from the pool. The content of the buffer is arbitrary.
    #[must_use]
    pub fn buffer(&mut self, len: usize) -> Vec<f32> {
        if len == 0 { Vec::new() } else { self.by_rank.settings().buffer(len) }
    }

    fn take_wait(&mut self) -> Option<ExchangeWait> {
        let by_host = self.by_host.as_mut().and_then(Lane::take_wait);
        ExchangeWait::both(self.by_rank.take_wait(), by_host)
    }
}
