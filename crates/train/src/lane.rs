//! Lanes carry exchanges with other ranks beside the computation: an exchange is started, and
//! finished later, on a thread of its own where it has work to do meanwhile.
//!
//! What an exchange sends is described beside its stage; the order of stages is
//! [`schema::StepGraph`].

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use comm::{
    CommElement, Communicator, Flight, HostCommunicators, StartedByHost, StartedCollective,
    VectorParts,
};

use crate::Error;

/// Most exchanges that the thread of a lane has queued. For a further one, the compute thread waits
/// for the oldest.
const QUEUED_MAX: usize = 16;

/// Communicators with which a lane begins, for exchanges that are under way together.
const COMMUNICATORS: usize = 3;

/// The communicator that an exchange needs: that of all ranks, or those of the two levels of a job
/// over several hosts.
pub trait LaneCommunicator: Send + 'static {
    /// Creates another communicator of the same ranks. All ranks must call it at the same point of
    /// the program.
    #[must_use]
    fn duplicate(&self) -> Self;

    /// Returns the communicator that has the settings and the buffers.
    fn settings(&mut self) -> &mut Communicator;

    /// Copies tags and timeout from a communicator of any of the ranks.
    fn copy_settings(&mut self, other: &Communicator);

    /// Returns the interval in which the messages since the last call were under way.
    fn take_flight(&mut self) -> Option<Flight>;
}

impl LaneCommunicator for Communicator {
    fn duplicate(&self) -> Self {
        Self::duplicate(self)
    }

    fn settings(&mut self) -> &mut Communicator {
        self
    }

    fn copy_settings(&mut self, other: &Communicator) {
        Self::copy_settings(self, other);
    }

    fn take_flight(&mut self) -> Option<Flight> {
        Self::take_flight(self)
    }
}

impl LaneCommunicator for HostCommunicators {
    fn duplicate(&self) -> Self {
        Self::duplicate(self)
    }

    fn settings(&mut self) -> &mut Communicator {
        self.within()
    }

    fn copy_settings(&mut self, other: &Communicator) {
        Self::copy_settings(self, other);
    }

    fn take_flight(&mut self) -> Option<Flight> {
        Self::take_flight(self)
    }
}

/// An exchange with other ranks, together with its buffers.
pub trait Exchange: Send + 'static {
    type Comm: LaneCommunicator;

    /// Sends what this rank contributes. Runs on the compute thread and does not wait for peers.
    ///
    /// # Errors
    /// [`Error::Communication`].
    fn start(&mut self, comm: &mut Self::Comm) -> Result<(), Error>;

    /// Receives what the peers contribute. Runs on the thread of the lane, if it has one.
    ///
    /// # Errors
    /// [`Error::Communication`], and errors of this rank's contribution.
    fn finish(&mut self, comm: &mut Self::Comm) -> Result<(), Error>;
}

/// The exchanges of one kind, which are finished in the order in which they were started. Each has
/// a communicator of its own, so that starting one does not wait for the end of another. Without a
/// thread, the compute thread finishes them.
pub struct Lane<E: Exchange> {
    /// Never carries a message. Has the tags of later exchanges, and creates communicators.
    own: E::Comm,
    idle: VecDeque<E::Comm>,
    /// Exchanges of a lane without a thread.
    under_way: VecDeque<LaneJob<E>>,
    thread: Option<LaneThread<E>>,
    /// Exchanges that the thread has finished, and [`Lane::finish`] has not returned.
    done: VecDeque<LaneDone<E>>,
    /// Exchanges that were started and not finished.
    count: usize,
    last: Option<ExchangeWait>,
}

/// How long the compute thread waited for the end of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeWait {
    pub began: Instant,
    pub ended: Instant,
    /// The interval in which the messages were under way, which may begin long before the wait.
    pub flight: Option<Flight>,
}

impl ExchangeWait {
    /// Returns the length of the wait.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.ended - self.began
    }

    /// Joins two waits of one stage into one. The time between the two counts as waiting.
    #[must_use]
    pub fn both(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        let (Some(a), Some(b)) = (a, b) else { return a.or(b) };
        let flight = match (a.flight, b.flight) {
            (Some(a), Some(b)) => Some(a.join(b)),
            (a, b) => a.or(b),
        };
        Some(Self { began: a.began.min(b.began), ended: a.ended.max(b.ended), flight })
    }
}

/// An exchange under way.
struct LaneJob<E: Exchange> {
    comm: E::Comm,
    exchange: E,
}

/// An exchange that the thread has finished, with the outcome.
type LaneDone<E> = (LaneJob<E>, Result<(), Error>);

/// The thread that finishes the exchanges of a lane.
struct LaneThread<E: Exchange> {
    /// Is `None` once the lane is dropped.
    jobs: Option<SyncSender<LaneJob<E>>>,
    done: Receiver<LaneDone<E>>,
    handle: Option<JoinHandle<()>>,
}

impl<E: Exchange> Lane<E> {
    /// Creates a lane without a thread. All ranks must create their lanes in the same order.
    #[must_use]
    pub fn new(comm: &E::Comm) -> Self {
        Self {
            own: comm.duplicate(),
            // Taken in turn, so that ranks agree although one finishes an exchange earlier.
            idle: (0..COMMUNICATORS).map(|_| comm.duplicate()).collect(),
            under_way: VecDeque::new(),
            thread: None,
            done: VecDeque::new(),
            count: 0,
            last: None,
        }
    }

    /// Finishes later exchanges on a thread named `name`.
    ///
    /// # Errors
    /// [`Error::Thread`] if the operating system refuses.
    pub fn spawn(&mut self, name: &str) -> Result<(), Error> {
        let (jobs, started) = sync_channel::<LaneJob<E>>(QUEUED_MAX);
        let (finished, done) = sync_channel(QUEUED_MAX);
        let work = move || {
            for mut job in started {
                let result = job.exchange.finish(&mut job.comm);
                if finished.send((job, result)).is_err() {
                    return;
                }
            }
        };
        let handle = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        let handle = Some(handle.map_err(|source| Error::Thread { source })?);
        self.thread = Some(LaneThread { jobs: Some(jobs), done, handle });
        Ok(())
    }

    /// A communicator for settings and buffers. It must not carry messages.
    pub fn settings(&mut self) -> &mut Communicator {
        self.own.settings()
    }

    /// Returns a buffer of a message to the pool.
    pub fn keep<T: CommElement>(&mut self, buffer: Vec<T>) {
        self.settings().keep(buffer);
    }

    /// The number of exchanges under way.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    fn take_comm(&mut self) -> E::Comm {
        // Only lanes whose exchanges all ranks finish at the same points of the program grow.
        let mut comm = self.idle.pop_front().unwrap_or_else(|| self.own.duplicate());
        comm.copy_settings(self.own.settings());
        comm
    }

    /// Starts an exchange.
    ///
    /// # Errors
    /// As [`Exchange::start`].
    pub fn start(&mut self, mut exchange: E) -> Result<(), Error> {
        let mut comm = self.take_comm();
        exchange.start(&mut comm)?;
        let job = LaneJob { comm, exchange };
        match &mut self.thread {
            None => self.under_way.push_back(job),
            Some(thread) => {
                if self.count - self.done.len() == QUEUED_MAX {
                    self.done.push_back(thread.wait());
                }
                // If the thread has panicked, `wait` passes the panic on.
                let _ = thread.jobs.as_ref().map(|jobs| jobs.send(job).is_ok());
            }
        }
        self.count += 1;
        Ok(())
    }

    /// Waits for the end of the exchange that was started first.
    ///
    /// # Errors
    /// As [`Exchange::finish`].
    /// # Panics
    /// If no exchange is under way, or the thread panicked.
    pub fn finish(&mut self) -> Result<E, Error> {
        assert!(self.count > 0, "an exchange is under way");
        self.count -= 1;
        let began = Instant::now();
        let finish = |mut job: LaneJob<E>| {
            let result = job.exchange.finish(&mut job.comm);
            (job, result)
        };
        let done = self.done.pop_front().or_else(|| self.under_way.pop_front().map(finish));
        let done = done.or_else(|| self.thread.as_mut().map(LaneThread::wait));
        let (mut job, result) = done.unwrap_or_else(|| unreachable!("the lane has counted it"));
        self.end_wait(began, &mut job.comm);
        self.idle.push_back(job.comm);
        result.map(|()| job.exchange)
    }

    /// Carries out an exchange on the compute thread, beside those under way.
    ///
    /// # Errors
    /// Those of `exchange`.
    pub fn run_with(
        &mut self,
        exchange: impl FnOnce(&mut E::Comm) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut comm = self.take_comm();
        let began = Instant::now();
        exchange(&mut comm)?;
        self.end_wait(began, &mut comm);
        self.idle.push_back(comm);
        Ok(())
    }

    fn end_wait(&mut self, began: Instant, comm: &mut E::Comm) {
        self.last = Some(ExchangeWait { began, ended: Instant::now(), flight: comm.take_flight() });
    }

    /// Returns the wait for the exchange that was finished last, once.
    pub fn take_wait(&mut self) -> Option<ExchangeWait> {
        self.last.take()
    }
}

impl<E: Exchange> LaneThread<E> {
    fn wait(&mut self) -> LaneDone<E> {
        self.done.recv().unwrap_or_else(|_| {
            self.jobs = None;
            match self.handle.take().map(JoinHandle::join) {
                Some(Err(panic)) => std::panic::resume_unwind(panic),
                _ => unreachable!("the thread of a lane ends with the lane"),
            }
        })
    }
}

impl<E: Exchange> Drop for Lane<E> {
    fn drop(&mut self) {
        let Some(LaneThread { jobs, done, handle }) = self.thread.take() else { return };
        if self.count > self.done.len() {
            // After an error, peers may never send what the thread waits for.
            self.own.settings().leave();
        }
        drop((jobs, done));
        if let Some(handle) = handle {
            // A panic of the thread comes second to the error for which the lane is dropped.
            let _ = handle.join();
        }
    }
}

/// Sends a part to each rank and receives one from each.
pub struct AllToAll<T> {
    /// `parts[r]` goes to rank r, and is then what rank r sent. This rank's own part stays.
    pub parts: Vec<Vec<T>>,
    started: Option<StartedCollective<Vec<Vec<T>>>>,
}

impl<T> Default for AllToAll<T> {
    fn default() -> Self {
        Self { parts: Vec::new(), started: None }
    }
}

impl<T: CommElement> Exchange for AllToAll<T> {
    type Comm = Communicator;

    fn start(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        self.started = Some(comm.start_all_to_all(std::mem::take(&mut self.parts))?);
        Ok(())
    }

    fn finish(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        if let Some(started) = self.started.take() {
            self.parts = started.wait(comm)?;
        }
        Ok(())
    }
}

/// An exchange over two levels, which sends less between hosts than within one.
#[derive(Default)]
pub struct HostExchange {
    pub direction: HostDirection,
    /// See [`HostDirection`].
    pub parts: Vec<Vec<f32>>,
    started: Option<StartedByHost<f32>>,
}

/// Whether an exchange over two levels leads from tiles to samples or back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostDirection {
    /// `parts[r]` is this rank's contribution to the sum of its host for rank r, and then
    /// `parts[h]` is the sum of host h for this rank.
    #[default]
    Reduce,
    /// `parts[h]` goes to all ranks of host h, and then `parts[r]` is what rank r sent.
    Gather,
}

impl Exchange for HostExchange {
    type Comm = HostCommunicators;

    fn start(&mut self, comm: &mut HostCommunicators) -> Result<(), Error> {
        let parts = std::mem::take(&mut self.parts);
        self.started = Some(match self.direction {
            HostDirection::Reduce => comm.start_reduce_by_host(parts)?,
            HostDirection::Gather => comm.start_gather_by_host(parts)?,
        });
        Ok(())
    }

    fn finish(&mut self, comm: &mut HostCommunicators) -> Result<(), Error> {
        if let Some(started) = self.started.take() {
            self.parts = started.wait(comm)?;
        }
        Ok(())
    }
}

/// Sums the gradients of a bucket over ranks.
#[derive(Default)]
pub struct GradientSums {
    pub sums: VectorParts<f32>,
    started: Option<StartedCollective<VectorParts<f32>>>,
}

impl Exchange for GradientSums {
    type Comm = Communicator;

    fn start(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        self.started = Some(comm.start_sum(std::mem::take(&mut self.sums))?);
        Ok(())
    }

    fn finish(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        if let Some(started) = self.started.take() {
            self.sums = started.wait(comm)?;
        }
        Ok(())
    }
}
