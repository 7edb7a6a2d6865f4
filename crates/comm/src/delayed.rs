//! Wraps a transport in a simulated slower link with a latency and a bandwidth.
//!
//! Tests use the wrapper, and users can estimate on one machine how a network would affect a job.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::element::Pool;
use crate::message::{HEADER_BYTES, RankMessage};
use crate::transport::{Deadline, SharedTransport, Transport, TransportFailure};

/// The simulated link through which a rank's messages pass one after another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DelayedLink {
    /// Time from the last byte sent to the last byte received.
    pub latency: Duration,
    /// Bandwidth in bytes per second.
    pub bandwidth: f64,
}

/// One rank's end of a transport behind a [`DelayedLink`].
pub struct Delayed {
    inner: SharedTransport,
    link: DelayedLink,
    outgoing: Mutex<Outgoing>,
    forwarder: Option<JoinHandle<()>>,
}

/// The sending side of the link. Messages queue here until the simulated transfer is over.
struct Outgoing {
    /// Queue to the forwarding thread. The queue is `None` once the transport is dropped.
    queue: Option<Sender<Due>>,
    /// Time at which the link will have sent all queued messages.
    free: Instant,
}

/// A message with its receiver and the time at which the simulated transfer ends.
struct Due {
    at: Instant,
    to: usize,
    message: RankMessage,
}

impl Delayed {
    /// Wraps `inner` so that its messages are delayed according to `link`.
    #[must_use]
    pub fn new(inner: SharedTransport, link: DelayedLink) -> Self {
        let (queue, due) = channel();
        let through = Arc::clone(&inner);
        let forwarder = std::thread::spawn(move || forward(&*through, &due));
        let outgoing = Mutex::new(Outgoing { queue: Some(queue), free: Instant::now() });
        Self { inner, link, outgoing, forwarder: Some(forwarder) }
    }
}

/// Forwards messages when they are due, until the transport is dropped.
fn forward(through: &dyn Transport, due: &Receiver<Due>) {
    for Due { at, to, message } in due {
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        if through.send(to, message).is_err() {
            // The receiving rank is gone. Ranks that wait for it or for this rank get the same
            // error from the inner transport.
            return;
        }
    }
}

impl Transport for Delayed {
    fn name(&self) -> &'static str {
        "delayed"
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn host_name(&self) -> &str {
        self.inner.host_name()
    }

    fn send(&self, to: usize, message: RankMessage) -> Result<(), TransportFailure> {
        if to == self.rank() {
            return self.inner.send(to, message);
        }
        let bytes = HEADER_BYTES + message.payload.payload().bytes().len();
        let mut outgoing = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        let sending = Duration::from_secs_f64(bytes as f64 / self.link.bandwidth);
        outgoing.free = outgoing.free.max(Instant::now()) + sending;
        let due = Due { at: outgoing.free + self.link.latency, to, message };
        let queue = outgoing.queue.as_ref().ok_or(TransportFailure::Left)?;
        queue.send(due).map_err(|_| TransportFailure::Left)
    }

    fn receive(
        &self,
        from: usize,
        channel: u32,
        deadline: Deadline,
    ) -> Result<RankMessage, TransportFailure> {
        self.inner.receive(from, channel, deadline)
    }

    fn probe(
        &self,
        from: usize,
        channel: u32,
        deadline: Deadline,
    ) -> Result<bool, TransportFailure> {
        self.inner.probe(from, channel, deadline)
    }

    fn leave(&self) {
        self.inner.leave();
    }

    fn pool(&self) -> &Pool {
        self.inner.pool()
    }
}

impl Drop for Delayed {
    fn drop(&mut self) {
        // Closing the queue lets the forwarder deliver the queued messages before it ends.
        self.outgoing.get_mut().unwrap_or_else(PoisonError::into_inner).queue = None;
        if let Some(forwarder) = self.forwarder.take() {
            // The forwarder only sleeps and sends. If it panicked, there is nothing to clean up
            // here.
            let _ = forwarder.join();
        }
    }
}
