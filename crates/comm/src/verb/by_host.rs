//! Exchanges over two levels: sums within a host, and their transfer between hosts.

use std::mem;

use super::StartedCollective;
use crate::element::CommElement;
use crate::error::Error;
use crate::host::HostCommunicators;
use crate::message::{MessageOperation, Phase, Verb};

/// An exchange over two levels that was started.
pub type StartedByHost<T> = StartedCollective<Vec<Vec<T>>, Vec<Vec<T>>, HostCommunicators>;

impl HostCommunicators {
    /// Sums over the ranks of each host, and sends each rank its sums of all hosts. On entry,
    /// `parts[r]` is this rank's contribution to the sum of its host for rank r. On return,
    /// `parts[h]` is the sum of host h for this rank.
    ///
    /// Each rank first adds up the parts of its host for the ranks that have its own place. It then
    /// sends each of these ranks its sum. Lengths may differ from rank to rank, but all ranks of a
    /// host contribute equally many values to a sum.
    ///
    /// # Cost
    /// There are H hosts of L ranks, and W = H·L ranks. A host has the rows of some columns, and
    /// their pooled vectors for the samples of one rank take b bytes. Each rank sends:
    ///
    /// | exchange | within its host | between hosts |
    /// |---|---|---|
    /// | all-to-all, rows over all ranks | (L−1)·H·b | (W−L)·H·b |
    /// | all-to-all, rows over the ranks of one host | (L−1)·b | (W−L)·b |
    /// | over two levels | (L−1)·H·b | (H−1)·b |
    ///
    /// The share of the first exchange that the third sends between hosts is therefore 1/W. Within
    /// its host a rank sends H·(L−1) messages, and between hosts H−1.
    /// # Numerics
    /// The parts of a host are added in rank order. Every addition is rounded to the element type,
    /// and integers wrap. The bytes are those of an all-to-all whose receivers add in rank order.
    /// # Errors
    /// [`Error::Length`] or [`Error::Mismatch`] if ranks of a host disagree about a length, and the
    /// errors of [`crate::Communicator::all_to_all`].
    /// # Panics
    /// Panics if there is not one part per rank, or if [`Self::gather_by_host`] is under way on
    /// these communicators.
    pub fn reduce_by_host<T: CommElement>(&mut self, parts: &mut Vec<Vec<T>>) -> Result<(), Error> {
        let operation = self.begin_reduce_by_host(parts)?;
        self.finish_reduce_by_host(operation, parts)
    }

    /// Starts [`Self::reduce_by_host`] and returns without waiting for other ranks. Parts are added
    /// up, and sums sent to other hosts, only while the caller waits for the result. To do this
    /// beside a computation, wait on another thread.
    ///
    /// # Errors
    /// Returns the same errors as the blocking form.
    pub fn start_reduce_by_host<T: CommElement>(
        &mut self,
        mut parts: Vec<Vec<T>>,
    ) -> Result<StartedByHost<T>, Error> {
        let operation = self.begin_reduce_by_host(&mut parts)?;
        Ok(StartedCollective {
            operation,
            buffers: parts,
            finish: |hosts, operation, mut parts| {
                hosts.finish_reduce_by_host(operation, &mut parts)?;
                Ok(parts)
            },
        })
    }

    fn begin_reduce_by_host<T: CommElement>(
        &mut self,
        parts: &mut [Vec<T>],
    ) -> Result<MessageOperation, Error> {
        let Self { layout, within, .. } = self;
        assert_eq!(parts.len(), layout.world_size(), "reduce_by_host: one part per rank");
        let count = |parts: &[Vec<T>], place: usize| {
            let ranks = (0..layout.host_count()).map(|host| layout.ranks_of(host)[place]);
            ranks.map(|rank| parts[rank.index()].len()).sum()
        };
        let own = count(parts, within.rank().index());
        let operation = within.begin(Verb::ReduceScatter, T::TYPE, Some(own))?;
        for peer in within.peers() {
            // The receiving peer expects the length of its own parts.
            let count = Some(count(parts, peer) as u64);
            let sent = MessageOperation { count, ..operation };
            for host in 0..layout.host_count() {
                let part = mem::take(&mut parts[layout.ranks_of(host)[peer].index()]);
                within.send(peer, &sent, Phase::First, part)?;
            }
        }
        Ok(operation)
    }

    fn finish_reduce_by_host<T: CommElement>(
        &mut self,
        operation: MessageOperation,
        parts: &mut Vec<Vec<T>>,
    ) -> Result<(), Error> {
        let Self { layout, within, between, positions, .. } = self;
        within.finish(&operation)?;
        let (place, own_host) = (within.rank().index(), layout.host(self.rank));
        let exchange = between.begin(Verb::AllToAll, T::TYPE, None)?;
        for host in 0..layout.host_count() {
            let part = mem::take(&mut parts[layout.ranks_of(host)[place].index()]);
            let sum = within.add_up(&operation, part)?;
            if host == own_host {
                // Hosts are numbered by their first ranks, so no rank of this host or a later one
                // has a smaller number than the host. Parts of later hosts are not overwritten.
                parts[host] = sum;
            } else {
                between.send(positions[host], &exchange, Phase::First, sum)?;
            }
        }
        parts.truncate(layout.host_count());
        between.finish(&exchange)?;
        for host in (0..layout.host_count()).filter(|&host| host != own_host) {
            parts[host] = between.receive(positions[host], &exchange, Phase::First)?;
        }
        Ok(())
    }

    /// Sends values to all ranks of a host, for every host. On entry, `parts[h]` is sent to the
    /// ranks of host h. On return, `parts[r]` is what rank r sent to the ranks of this host.
    ///
    /// This is the reverse of [`Self::reduce_by_host`], and each rank sends the same numbers of
    /// bytes. Values travel to the rank that has the sender's place on the other host, which passes
    /// them on to the ranks of its host. Lengths may differ.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Communicator::all_to_all`].
    /// # Panics
    /// Panics if there is not one part per host, or if [`Self::reduce_by_host`] is under way on
    /// these communicators.
    pub fn gather_by_host<T: CommElement>(&mut self, parts: &mut Vec<Vec<T>>) -> Result<(), Error> {
        let operation = self.begin_gather_by_host(parts)?;
        self.finish_gather_by_host(operation, parts)
    }

    /// Starts [`Self::gather_by_host`] and returns without waiting for other ranks. Values are
    /// passed on within the host only while the caller waits for the result. To do this beside a
    /// computation, wait on another thread.
    ///
    /// # Errors
    /// Returns the same errors as the blocking form.
    pub fn start_gather_by_host<T: CommElement>(
        &mut self,
        mut parts: Vec<Vec<T>>,
    ) -> Result<StartedByHost<T>, Error> {
        let operation = self.begin_gather_by_host(&mut parts)?;
        Ok(StartedCollective {
            operation,
            buffers: parts,
            finish: |hosts, operation, mut parts| {
                hosts.finish_gather_by_host(operation, &mut parts)?;
                Ok(parts)
            },
        })
    }

    fn begin_gather_by_host<T: CommElement>(
        &mut self,
        parts: &mut [Vec<T>],
    ) -> Result<MessageOperation, Error> {
        let Self { layout, between, positions, .. } = self;
        assert_eq!(parts.len(), layout.host_count(), "gather_by_host: one part per host");
        let own_host = layout.host(self.rank);
        let exchange = between.begin(Verb::AllToAll, T::TYPE, None)?;
        for host in (0..layout.host_count()).filter(|&host| host != own_host) {
            let part = mem::take(&mut parts[host]);
            between.send(positions[host], &exchange, Phase::First, part)?;
        }
        Ok(exchange)
    }

    fn finish_gather_by_host<T: CommElement>(
        &mut self,
        exchange: MessageOperation,
        parts: &mut Vec<Vec<T>>,
    ) -> Result<(), Error> {
        let Self { layout, within, between, positions, .. } = self;
        between.finish(&exchange)?;
        let (place, own_host) = (within.rank().index(), layout.host(self.rank));
        let mut own = mem::take(&mut parts[own_host]);
        parts.resize_with(layout.world_size(), Vec::new);
        let operation = within.begin(Verb::AllGather, T::TYPE, None)?;
        for host in 0..layout.host_count() {
            let part = if host == own_host {
                mem::take(&mut own)
            } else {
                between.receive(positions[host], &exchange, Phase::First)?
            };
            for peer in within.peers() {
                within.send_copy(peer, &operation, Phase::First, &part)?;
            }
            parts[layout.ranks_of(host)[place].index()] = part;
        }
        within.finish(&operation)?;
        for peer in within.peers() {
            for host in 0..layout.host_count() {
                let received = within.receive(peer, &operation, Phase::First)?;
                parts[layout.ranks_of(host)[peer].index()] = received;
            }
        }
        Ok(())
    }
}
