//! One rank's handle of a communicator, which sends and receives messages and matches them to
//! operations.
//!
//! The collectives are in `verb.rs`. This file does not depend on how messages are transported.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use schema::Rank;

use crate::element::{CommElement, ElementType, Load, Payload, Pool};
use crate::error::Error;
use crate::message::{MessageHeader, MessageOperation, Phase, RankMessage, Verb};
use crate::transport::{Deadline, SharedTransport, TransportFailure};

/// The interval in which messages of collectives were under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flight {
    /// Time at which this rank sent its first message.
    pub sent: Instant,
    /// Time at which the last message of a peer arrived, whenever it was received.
    pub arrived: Instant,
}

impl Flight {
    /// Returns the shortest interval that contains both.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        let (sent, arrived) = (self.sent.min(other.sent), self.arrived.max(other.arrived));
        Self { sent, arrived }
    }
}

/// One rank's handle of a communicator, on which all ranks call the same collectives in the same
/// order.
///
/// Each logical stream of a job has its own communicator, so that collectives started on one stream
/// do not wait for those of another.
pub struct Communicator {
    transport: SharedTransport,
    /// The ranks of the transport that take part, in rank order.
    members: Arc<[usize]>,
    /// Position of this rank among the members.
    position: usize,
    channel: u32,
    /// The next unused channel number, shared by all communicators of this rank.
    next_channel: Arc<AtomicU32>,
    begun: u64,
    finished: u64,
    step: u64,
    plan: u64,
    timeout: Option<Duration>,
    /// Whether the transport computes sums of `f32`.
    native: bool,
    /// Messages of operations that a peer began before this rank finished the previous one, by
    /// peer.
    early: Vec<VecDeque<RankMessage>>,
    /// Time of the first send and of the last arrival since the last [`Self::take_flight`].
    first_sent: Option<Instant>,
    last_arrived: Option<Instant>,
    /// The first error of a collective. Ranks may be out of step after it, so every later call
    /// fails.
    failed: Option<Error>,
}

impl Communicator {
    /// Creates the communicator of all ranks of a transport.
    #[must_use]
    pub fn over(transport: SharedTransport) -> Self {
        let (position, size) = (transport.rank(), transport.world_size());
        let next_channel = Arc::new(AtomicU32::new(1));
        Self::new(transport, (0..size).collect(), position, 0, next_channel)
    }

    fn new(
        transport: SharedTransport,
        members: Arc<[usize]>,
        position: usize,
        channel: u32,
        next_channel: Arc<AtomicU32>,
    ) -> Self {
        let early = members.iter().map(|_| VecDeque::new()).collect();
        let (begun, finished, step, plan) = (0, 0, 0, 0);
        let (timeout, native, failed) = (None, false, None);
        Self {
            transport,
            members,
            position,
            channel,
            next_channel,
            begun,
            finished,
            step,
            plan,
            timeout,
            native,
            early,
            first_sent: None,
            last_arrived: None,
            failed,
        }
    }

    /// Returns the position of this rank among the members of the communicator.
    #[must_use]
    pub fn rank(&self) -> Rank {
        Rank(self.position as u32)
    }

    /// Returns the number of members of the communicator.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.members.len()
    }

    /// Returns the name of the transport.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.transport.name()
    }

    pub(crate) fn host_name(&self) -> &str {
        self.transport.host_name()
    }

    /// Tags every later operation with this step of the run. Operations at different steps do not
    /// match.
    pub fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Tags every later operation with this hash of configuration, data and plan. Operations of
    /// different jobs do not match.
    pub fn set_plan(&mut self, plan: u64) {
        self.plan = plan;
    }

    /// Copies tags, timeout and the use of the transport's sums from a communicator of the same
    /// ranks.
    pub fn copy_settings(&mut self, other: &Self) {
        (self.step, self.plan) = (other.step, other.plan);
        (self.timeout, self.native) = (other.timeout, other.native);
    }

    /// Ends all waiting on this rank, on every communicator of its transport, and tells peers that
    /// this rank sends no more. A rank that has failed calls it while other threads of it wait.
    pub fn leave(&self) {
        self.transport.leave();
    }

    /// Returns the interval in which the messages since the last call were under way, or `None` if
    /// none was sent or none arrived.
    pub fn take_flight(&mut self) -> Option<Flight> {
        let (sent, arrived) = (self.first_sent.take(), self.last_arrived.take());
        let (sent, arrived) = sent.zip(arrived)?;
        // Peers may have sent their messages before this rank did.
        Some(Flight { sent, arrived: arrived.max(sent) })
    }

    /// Returns how long to wait for a peer's message, or `None` if there is no limit.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Sets how long to wait for a peer's message. `None` waits without limit.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Makes the transport compute later sums of `f32`. Returns false if the transport cannot sum,
    /// or if this communicator does not have all ranks. Ranks still check that they are in the same
    /// operation.
    pub fn set_native(&mut self, native: bool) -> bool {
        let is_whole = self.members.len() == self.transport.world_size();
        self.native = native && is_whole && self.transport.sums();
        self.native
    }

    /// Returns whether the transport sums values of type `element`.
    pub(crate) fn is_native(&self, element: ElementType) -> bool {
        self.native && element == ElementType::F32 && self.members.len() > 1
    }

    /// Lets the transport compute the sum of `values`.
    pub(crate) fn native_sum(
        &mut self,
        operation: &MessageOperation,
        values: Vec<f32>,
    ) -> Result<Vec<f32>, Error> {
        let summed = self.transport.sum(values, Deadline::after(self.timeout));
        self.last_arrived = Some(Instant::now());
        // The rank that caused a delay is unknown here, because all ranks have announced the
        // operation.
        let peer = usize::from(self.position == 0);
        summed.map_err(|failure| self.fail(self.explain(failure, peer, operation)))
    }

    /// Creates another communicator of the same ranks. All ranks must call it at the same point of
    /// the program.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let channel = self.next_channel.fetch_add(1, Ordering::Relaxed);
        self.with_members(Arc::clone(&self.members), self.position, channel)
    }

    /// Creates the communicator of the ranks that pass the same `group`, in rank order.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::all_gather`].
    pub fn split(&mut self, group: u32) -> Result<Self, Error> {
        let next = self.next_channel.load(Ordering::Relaxed);
        let groups = self.all_gather(&[i64::from(group), i64::from(next)])?;
        // Groups are disjoint, so all of them can use the same channel number.
        let channel = groups.iter().map(|reply| reply[1]).max().unwrap_or(0) as u32;
        self.next_channel.store(channel + 1, Ordering::Relaxed);
        let is_in_group = |&position: &usize| groups[position][0] == i64::from(group);
        let positions: Vec<usize> = (0..groups.len()).filter(is_in_group).collect();
        let members = positions.iter().map(|&position| self.members[position]).collect();
        let position = positions.iter().position(|&position| position == self.position);
        Ok(self.with_members(members, position.unwrap_or(0), channel))
    }

    fn with_members(&self, members: Arc<[usize]>, position: usize, channel: u32) -> Self {
        let next_channel = Arc::clone(&self.next_channel);
        let mut made =
            Self::new(Arc::clone(&self.transport), members, position, channel, next_channel);
        (made.step, made.plan, made.timeout) = (self.step, self.plan, self.timeout);
        made
    }

    /// Returns the positions of all other ranks, in rank order.
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.position;
        (0..self.members.len()).filter(move |&peer| peer != own)
    }

    /// Returns the rank of a peer in the transport, for messages.
    pub(crate) fn world_rank(&self, peer: usize) -> u32 {
        self.members[peer] as u32
    }

    pub(crate) fn pool(&self) -> &Pool {
        self.transport.pool()
    }

    /// Takes a buffer of `len` values from the pool. The content of the buffer is arbitrary.
    #[must_use]
    pub fn buffer<T: CommElement>(&self, len: usize) -> Vec<T> {
        self.pool().take(len)
    }

    /// Returns a buffer to the pool for later messages.
    pub fn keep<T: CommElement>(&self, buffer: Vec<T>) {
        self.pool().give(buffer);
    }

    /// Begins an operation by numbering it and creating the description for the headers of its
    /// messages.
    pub(crate) fn begin(
        &mut self,
        verb: Verb,
        element: ElementType,
        count: Option<usize>,
    ) -> Result<MessageOperation, Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.begun += 1;
        let (sequence, step, plan) = (self.begun, self.step, self.plan);
        let count = count.map(|count| count as u64);
        Ok(MessageOperation { verb, sequence, step, plan, element, count })
    }

    /// Marks that the receives of an operation follow. Operations finish in the order in which they
    /// were begun.
    ///
    /// # Panics
    /// Panics if an operation that was begun before this one has not been waited for.
    pub(crate) fn finish(&mut self, operation: &MessageOperation) -> Result<(), Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let (expected, got) = (self.finished + 1, operation.sequence);
        assert_eq!(expected, got, "operations of a communicator are waited for in their order");
        self.finished = got;
        Ok(())
    }

    pub(crate) fn send<T: CommElement>(
        &mut self,
        peer: usize,
        operation: &MessageOperation,
        phase: Phase,
        values: Vec<T>,
    ) -> Result<(), Error> {
        let len = values.len();
        self.send_load(peer, operation, phase, Load::Owned(Payload::from(values)), len)
    }

    /// Sends a payload of `len` values to a peer.
    pub(crate) fn send_load(
        &mut self,
        peer: usize,
        operation: &MessageOperation,
        phase: Phase,
        payload: Load,
        len: usize,
    ) -> Result<(), Error> {
        let len = len as u64;
        let header = MessageHeader { channel: self.channel, operation: *operation, phase, len };
        self.first_sent.get_or_insert_with(Instant::now);
        let message = RankMessage::new(header, payload);
        let sent = self.transport.send(self.members[peer], message);
        sent.map_err(|failure| self.fail(self.explain(failure, peer, operation)))
    }

    /// Receives the values that `peer` sends in this phase of `operation`.
    pub(crate) fn receive<T: CommElement>(
        &mut self,
        peer: usize,
        operation: &MessageOperation,
        phase: Phase,
    ) -> Result<Vec<T>, Error> {
        let received = self.receive_load(peer, operation, phase)?.into_payload(self.pool());
        received.into_values().map_err(|payload| self.wrong_payload(operation, &payload))
    }

    /// Receives values like [`Self::receive`], but may leave them in the sender's buffer.
    pub(crate) fn receive_load(
        &mut self,
        peer: usize,
        operation: &MessageOperation,
        phase: Phase,
    ) -> Result<Load, Error> {
        let received = self.matching(peer, operation, phase);
        received.map(|message| message.payload).map_err(|error| self.fail(error))
    }

    /// Creates the error for a payload of the wrong type. The header was checked before, so the
    /// transport must have mixed up messages.
    pub(crate) fn wrong_payload(
        &mut self,
        operation: &MessageOperation,
        payload: &Payload,
    ) -> Error {
        self.fail(Error::Transport {
            transport: self.transport.name(),
            problem: format!("{operation} has a payload of type {}", payload.element().name()),
        })
    }

    fn matching(
        &mut self,
        peer: usize,
        operation: &MessageOperation,
        phase: Phase,
    ) -> Result<RankMessage, Error> {
        let wanted = |header: &MessageHeader| (header.operation.sequence, header.phase);
        let own = (operation.sequence, phase);
        let at = self.early[peer].iter().position(|early| wanted(&early.header) == own);
        let message = match at.and_then(|at| self.early[peer].remove(at)) {
            Some(message) => message,
            None => loop {
                let deadline = Deadline::after(self.timeout);
                let received = self.transport.receive(self.members[peer], self.channel, deadline);
                let message = received.map_err(|failure| self.explain(failure, peer, operation))?;
                let got = wanted(&message.header);
                // A peer that has sent its second phase may already have begun the next operation.
                if phase == Phase::First || got <= own {
                    break message;
                }
                self.early[peer].push_back(message);
            },
        };
        if message.header.operation != *operation || message.header.phase != phase {
            return Err(self.mismatch(peer, operation, &message.header));
        }
        self.last_arrived = self.last_arrived.max(message.arrived);
        Ok(message)
    }

    /// Creates the error for a peer that is in a different operation.
    fn mismatch(&self, peer: usize, operation: &MessageOperation, got: &MessageHeader) -> Error {
        Error::Mismatch {
            here: self.members[self.position] as u32,
            expected: operation.to_string(),
            there: self.members[peer] as u32,
            got: got.operation.to_string(),
        }
    }

    fn explain(
        &self,
        failure: TransportFailure,
        peer: usize,
        operation: &MessageOperation,
    ) -> Error {
        let rank = self.members[peer] as u32;
        match failure {
            TransportFailure::Left => Error::PeerLeft { rank, verb: operation.verb.name() },
            TransportFailure::Late => Error::Timeout {
                here: self.members[self.position] as u32,
                rank,
                operation: operation.to_string(),
                waited: self.timeout.unwrap_or_default(),
            },
            TransportFailure::Broken(problem) => {
                Error::Transport { transport: self.transport.name(), problem }
            }
        }
    }

    /// Records an error, after which every later call fails with it.
    pub(crate) fn fail(&mut self, error: Error) -> Error {
        self.failed.get_or_insert(error).clone()
    }
}
