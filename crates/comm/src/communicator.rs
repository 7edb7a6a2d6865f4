//! One rank's end of a communicator: what is sent and received on it, matched and checked.
//!
//! `verb.rs` has the collectives. Knows nothing of how messages are carried.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use schema::Rank;

use crate::element::{CommElement, ElementType, Load, Payload, Pool};
use crate::error::Error;
use crate::message::{MessageHeader, MessageOperation, Phase, RankMessage, Verb};
use crate::transport::{Deadline, SharedTransport, TransportFailure};

/// One rank's end of a communicator: all its ranks call the same collectives in the same order.
///
/// Each logical stream of a job has one of its own, so that what is started on one need not wait
/// for the other.
pub struct Communicator {
    transport: SharedTransport,
    /// The ranks of the transport that take part, in rank order.
    members: Arc<[usize]>,
    /// This one's position among them.
    position: usize,
    channel: u32,
    /// The first channel that no communicator of this rank has.
    next_channel: Arc<AtomicU32>,
    begun: u64,
    finished: u64,
    step: u64,
    plan: u64,
    timeout: Option<Duration>,
    /// Whether the transport adds up, where it can.
    native: bool,
    /// Messages of operations begun by a peer before this rank finished the one before, by peer.
    early: Vec<VecDeque<RankMessage>>,
    /// After an error nothing is in step any more.
    failed: Option<Error>,
}

impl Communicator {
    /// The communicator of all ranks of a transport.
    #[must_use]
    pub fn over(transport: SharedTransport) -> Self {
        let (position, size) = (transport.rank(), transport.world_size());
        let next_channel = Arc::new(AtomicU32::new(1));
        Self::new(transport, (0..size).collect(), (position, 0), next_channel)
    }

    fn new(
        transport: SharedTransport,
        members: Arc<[usize]>,
        (position, channel): (usize, u32),
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
            failed,
        }
    }

    /// This rank within the communicator.
    #[must_use]
    pub fn rank(&self) -> Rank {
        Rank(self.position as u32)
    }

    /// Number of ranks.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.members.len()
    }

    /// The name of what carries its messages.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.transport.name()
    }

    /// Every operation from now on belongs to this step of the run.
    pub fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Every operation from now on belongs to a job with this hash of configuration, data and plan.
    pub fn set_plan(&mut self, plan: u64) {
        self.plan = plan;
    }

    /// How long a peer's message is waited for.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Waits at most so long for a peer's message; for ever without.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Whether sums of `f32` in parts are left to the transport from now on, after the same check
    /// of the operation as ever: false where it has none. One communicator of all ranks may do so.
    pub fn set_native(&mut self, native: bool) -> bool {
        let is_whole = self.members.len() == self.transport.world_size();
        self.native = native && is_whole && self.transport.sums();
        self.native
    }

    /// Whether the transport adds up what is of type `element`.
    pub(crate) fn is_native(&self, element: ElementType) -> bool {
        self.native && element == ElementType::F32 && self.members.len() > 1
    }

    /// The sum of `values`, by the transport.
    pub(crate) fn native_sum(
        &mut self,
        operation: &MessageOperation,
        values: Vec<f32>,
    ) -> Result<Vec<f32>, Error> {
        let summed = self.transport.sum(values, Deadline::after(self.timeout));
        // Nobody knows who kept it waiting: all have checked in before.
        let peer = usize::from(self.position == 0);
        summed.map_err(|failure| self.fail(self.explain(failure, peer, operation)))
    }

    /// Another communicator of the same ranks. All of them must make it at the same point.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let channel = self.next_channel.fetch_add(1, Ordering::Relaxed);
        self.with_members(Arc::clone(&self.members), (self.position, channel))
    }

    /// The communicator of the ranks that give the same `group`, in rank order.
    ///
    /// # Errors
    /// Those of [`Self::all_gather`].
    pub fn split(&mut self, group: u32) -> Result<Self, Error> {
        let next = self.next_channel.load(Ordering::Relaxed);
        let groups = self.all_gather(&[i64::from(group), i64::from(next)])?;
        // Groups have no member in common, so that all of them may have the same channel.
        let channel = groups.iter().map(|said| said[1]).max().unwrap_or(0) as u32;
        self.next_channel.store(channel + 1, Ordering::Relaxed);
        let of_group = |&position: &usize| groups[position][0] == i64::from(group);
        let positions: Vec<usize> = (0..groups.len()).filter(of_group).collect();
        let members = positions.iter().map(|&position| self.members[position]).collect();
        let position = positions.iter().position(|&position| position == self.position);
        Ok(self.with_members(members, (position.unwrap_or(0), channel)))
    }

    fn with_members(&self, members: Arc<[usize]>, place: (usize, u32)) -> Self {
        let next_channel = Arc::clone(&self.next_channel);
        let mut made = Self::new(Arc::clone(&self.transport), members, place, next_channel);
        (made.step, made.plan, made.timeout) = (self.step, self.plan, self.timeout);
        made
    }

    /// The positions of all other ranks, in rank order.
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.position;
        (0..self.members.len()).filter(move |&peer| peer != own)
    }

    pub(crate) fn pool(&self) -> &Pool {
        self.transport.pool()
    }

    /// A buffer of `len` values left over from earlier messages, or zeros.
    #[must_use]
    pub fn buffer<T: CommElement>(&self, len: usize) -> Vec<T> {
        self.pool().take(len)
    }

    /// Keeps a buffer for messages to come.
    pub fn keep<T: CommElement>(&self, buffer: Vec<T>) {
        self.pool().give(buffer);
    }

    /// Begins an operation.
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

    /// The last receive of an operation follows.
    ///
    /// # Panics
    /// If one that was begun before has not been waited for.
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
        (operation, phase): (&MessageOperation, Phase),
        values: Vec<T>,
    ) -> Result<(), Error> {
        let len = values.len();
        self.send_load(peer, (operation, phase), (Load::Owned(Payload::from(values)), len))
    }

    /// Sends so many values.
    pub(crate) fn send_load(
        &mut self,
        peer: usize,
        (operation, phase): (&MessageOperation, Phase),
        (payload, len): (Load, usize),
    ) -> Result<(), Error> {
        let len = len as u64;
        let header = MessageHeader { channel: self.channel, operation: *operation, phase, len };
        let message = RankMessage { header, payload };
        let sent = self.transport.send(self.members[peer], message);
        sent.map_err(|failure| self.fail(self.explain(failure, peer, operation)))
    }

    /// What `peer` sends in this part of `operation`.
    pub(crate) fn receive<T: CommElement>(
        &mut self,
        peer: usize,
        (operation, phase): (&MessageOperation, Phase),
    ) -> Result<Vec<T>, Error> {
        let received = self.receive_load(peer, (operation, phase))?.into_payload(self.pool());
        received.into_values().map_err(|payload| self.wrong_payload(operation, &payload))
    }

    /// As [`Self::receive`], where the values may stay the sender's.
    pub(crate) fn receive_load(
        &mut self,
        peer: usize,
        of: (&MessageOperation, Phase),
    ) -> Result<Load, Error> {
        let received = self.matching(peer, of);
        received.map(|message| message.payload).map_err(|error| self.fail(error))
    }

    /// The header was checked: what carries the message took one for the other.
    pub(crate) fn wrong_payload(
        &mut self,
        operation: &MessageOperation,
        payload: &Payload,
    ) -> Error {
        self.fail(Error::Transport {
            transport: self.transport.name(),
            problem: format!("{operation} came with a payload of {}", payload.element().name()),
        })
    }

    fn matching(
        &mut self,
        peer: usize,
        (operation, phase): (&MessageOperation, Phase),
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
                // A peer that has sent its second part may have begun what comes next.
                if phase == Phase::First || got <= own {
                    break message;
                }
                self.early[peer].push_back(message);
            },
        };
        if message.header.operation != *operation || message.header.phase != phase {
            return Err(self.mismatch(peer, operation, &message.header));
        }
        Ok(message)
    }

    /// This rank and `peer` are in different operations.
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

    /// Remembers that this end is out of step.
    pub(crate) fn fail(&mut self, error: Error) -> Error {
        self.failed.get_or_insert(error).clone()
    }
}
