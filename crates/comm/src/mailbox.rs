//! Stores messages that have arrived at a rank but have not been received yet.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::message::RankMessage;
use crate::transport::{Deadline, TransportFailure};

/// Number of immediate retries of a waiting rank. 100 retries take some microseconds, about as long
/// as the exchange of a small message.
const LOOKS: usize = 100;
/// Number of further retries, each after yielding the core, before the rank parks. With as many
/// cores as ranks, waking a parked thread costs more than the wait.
const YIELDS: usize = 100;

/// The messages that have arrived at a rank, by sender.
pub struct Mailbox {
    inner: Mutex<Inner>,
    arrived: Condvar,
}

/// The state behind the mailbox's lock.
struct Inner {
    from: Vec<Arrivals>,
    /// The reason why no more messages can arrive from any rank.
    broken: Option<String>,
    /// Number of receiving threads that are parked.
    parked: usize,
}

/// Messages of one sender that were not received yet. `left` is set when the sender has shut down.
#[derive(Default)]
struct Arrivals {
    messages: VecDeque<RankMessage>,
    left: bool,
}

impl Mailbox {
    /// Creates an empty mailbox for messages of `size` ranks.
    pub fn new(size: usize) -> Self {
        let from = (0..size).map(|_| Arrivals::default()).collect();
        let inner = Mutex::new(Inner { from, broken: None, parked: 0 });
        Self { inner, arrived: Condvar::new() }
    }

    /// Delivers a message of rank `from`.
    pub fn put(&self, from: usize, mut message: RankMessage) {
        // A waiting thread may wake up later, so the time is taken here.
        message.arrived = Some(Instant::now());
        let mut inner = self.lock();
        inner.from[from].messages.push_back(message);
        self.wake(inner);
    }

    /// Marks that no more messages come from rank `from`.
    pub fn close(&self, from: usize) {
        let mut inner = self.lock();
        inner.from[from].left = true;
        self.wake(inner);
    }

    /// Marks that no more messages come from any rank.
    pub fn fail(&self, why: String) {
        let mut inner = self.lock();
        inner.broken.get_or_insert(why);
        self.wake(inner);
    }

    /// Takes the first message of `channel` from rank `from`, waiting until `deadline`.
    pub fn take(
        &self,
        from: usize,
        channel: u32,
        deadline: Deadline,
    ) -> Result<RankMessage, TransportFailure> {
        self.wait(deadline, |inner| inner.from[from].take(channel), from)
    }

    /// Waits until a message of `channel` from rank `from` has arrived or `deadline` passes.
    /// Returns whether a message has arrived.
    pub fn look(
        &self,
        from: usize,
        channel: u32,
        deadline: Deadline,
    ) -> Result<bool, TransportFailure> {
        let found = |inner: &mut Inner| inner.from[from].find(channel);
        match self.wait(deadline, found, from) {
            Ok(_) => Ok(true),
            Err(TransportFailure::Late) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    fn wait<R>(
        &self,
        deadline: Deadline,
        mut find: impl FnMut(&mut Inner) -> Option<R>,
        from: usize,
    ) -> Result<R, TransportFailure> {
        for look in 0..LOOKS + YIELDS {
            if let Some(found) = find(&mut self.lock()) {
                return Ok(found);
            }
            if look < LOOKS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let mut inner = self.lock();
        loop {
            if let Some(found) = find(&mut inner) {
                return Ok(found);
            }
            if let Some(why) = &inner.broken {
                return Err(TransportFailure::Broken(why.clone()));
            }
            if inner.from[from].left {
                return Err(TransportFailure::Left);
            }
            inner.parked += 1;
            inner = match deadline {
                Deadline::Never => self.arrived.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Deadline::At(at) => {
                    let left = at.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        inner.parked -= 1;
                        return Err(TransportFailure::Late);
                    }
                    let waited = self.arrived.wait_timeout(inner, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            inner.parked -= 1;
        }
    }

    fn wake(&self, inner: MutexGuard<'_, Inner>) {
        let parked = inner.parked > 0;
        drop(inner);
        if parked {
            self.arrived.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arrivals {
    fn find(&self, channel: u32) -> Option<usize> {
        self.messages.iter().position(|message| message.header.channel == channel)
    }

    fn take(&mut self, channel: u32) -> Option<RankMessage> {
        self.find(channel).and_then(|at| self.messages.remove(at))
    }
}
