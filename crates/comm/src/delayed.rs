//! Wraps a transport in simulated slower links, each with a latency and a bandwidth.
//!
//! Tests use the wrapper, and users can estimate on one machine how a network would affect a job.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use schema::HostLayout;

use crate::element::Pool;
use crate::message::{HEADER_BYTES, RankMessage};
use crate::pass_to_inner;
use crate::transport::{Deadline, SharedTransport, Transport, TransportFailure};

/// The simulated link through which a rank's messages pass one after another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DelayedLink {
    /// Time from the last byte sent to the last byte received.
    pub latency: Duration,
    /// Bandwidth in bytes per second.
    pub bandwidth: f64,
}

/// One rank's end of a transport behind simulated links.
pub struct Delayed {
    inner: SharedTransport,
    links: Vec<OutgoingLink>,
    /// Index of the link to each rank.
    link_to: Vec<usize>,
}

/// The sending side of a link. Messages queue here until the simulated transfer is over.
struct OutgoingLink {
    link: DelayedLink,
    outgoing: Mutex<Outgoing>,
    forwarder: Option<JoinHandle<()>>,
}

/// The state of a link that senders change.
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

/// The links of a rank to the ranks of its own host, and to those of other hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostLinks {
    pub within: DelayedLink,
    pub between: DelayedLink,
}

impl Delayed {
    /// Wraps `inner` so that its messages are delayed according to `link`.
    #[must_use]
    pub fn new(inner: SharedTransport, link: DelayedLink) -> Self {
        let link_to = vec![0; inner.world_size()];
        Self::over(inner, &[link], link_to)
    }

    /// Wraps `inner` so that messages take one link to ranks of the same host and another one to
    /// ranks of other hosts. Neither link delays messages of the other.
    ///
    /// # Panics
    /// Panics if the layout has another number of ranks than the transport.
    #[must_use]
    pub fn by_host(inner: SharedTransport, links: HostLinks, layout: &HostLayout) -> Self {
        assert_eq!(layout.world_size(), inner.world_size(), "the layout has all ranks");
        let own = layout.hosts()[inner.rank()];
        let link_to = layout.hosts().iter().map(|&host| usize::from(host != own)).collect();
        Self::over(inner, &[links.within, links.between], link_to)
    }

    fn over(inner: SharedTransport, links: &[DelayedLink], link_to: Vec<usize>) -> Self {
        let links = links.iter().map(|&link| OutgoingLink::new(&inner, link)).collect();
        Self { inner, links, link_to }
    }
}

impl OutgoingLink {
    fn new(inner: &SharedTransport, link: DelayedLink) -> Self {
        let (queue, due) = channel();
        let through = Arc::clone(inner);
        let forwarder = std::thread::spawn(move || forward(&*through, &due));
        let outgoing = Mutex::new(Outgoing { queue: Some(queue), free: Instant::now() });
        Self { link, outgoing, forwarder: Some(forwarder) }
    }

    fn send(&self, to: usize, message: RankMessage) -> Result<(), TransportFailure> {
        let bytes = HEADER_BYTES + message.payload.payload().bytes().len();
        let mut outgoing = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        let sending = Duration::from_secs_f64(bytes as f64 / self.link.bandwidth);
        outgoing.free = outgoing.free.max(Instant::now()) + sending;
        let due = Due { at: outgoing.free + self.link.latency, to, message };
        let queue = outgoing.queue.as_ref().ok_or(TransportFailure::Left)?;
        queue.send(due).map_err(|_| TransportFailure::Left)
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

    pass_to_inner!();

    fn send(&self, to: usize, message: RankMessage) -> Result<(), TransportFailure> {
        if to == self.rank() {
            return self.inner.send(to, message);
        }
        self.links[self.link_to[to]].send(to, message)
    }
}

impl Drop for OutgoingLink {
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
