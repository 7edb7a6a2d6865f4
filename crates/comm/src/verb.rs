//! The six collectives, over any transport. Each collective has a blocking form, and a form that is
//! started and waited for later.
//!
//! Reductions add in rank order, so the result has the same bytes on every transport and does not
//! depend on which rank arrives first.

use std::mem;
use std::sync::Arc;

use schema::Rank;

use crate::communicator::Communicator;
use crate::element::{CommElement, Load};
use crate::error::Error;
use crate::message::{MessageOperation, Phase, Verb};

mod all_reduce;
mod by_host;

pub use all_reduce::VectorParts;
pub use by_host::StartedByHost;

/// A collective that was started. The collective owns its buffers until [`StartedCollective::wait`]
/// returns them.
#[must_use = "peers wait until this collective completes; call `wait`"]
pub struct StartedCollective<B, R = B, C = Communicator> {
    operation: MessageOperation,
    buffers: B,
    finish: fn(&mut C, MessageOperation, B) -> Result<R, Error>,
}

/// The root of a broadcast and its values.
type Rooted<T> = (Rank, Vec<T>);

impl<B, R, C> StartedCollective<B, R, C> {
    /// Waits until the collective is complete. On every rank, collectives of a communicator must be
    /// waited for in the order in which they were started.
    ///
    /// # Errors
    /// Returns the same errors as the blocking form.
    /// # Panics
    /// Panics if a collective that was started before this one has not been waited for.
    pub fn wait(self, communicator: &mut C) -> Result<R, Error> {
        (self.finish)(communicator, self.operation, self.buffers)
    }
}

impl Communicator {
    /// Sends `parts[r]` to rank r and replaces it by the values that rank r sent to this rank.
    /// Lengths may differ.
    ///
    /// # Errors
    /// [`Error::PeerLeft`], [`Error::Mismatch`], [`Error::Timeout`] or [`Error::Transport`].
    pub fn all_to_all<T: CommElement>(&mut self, parts: &mut [Vec<T>]) -> Result<(), Error> {
        let operation = self.begin_all_to_all(parts)?;
        self.finish_all_to_all(operation, parts)
    }

    /// Starts [`Self::all_to_all`] and returns without waiting for the peers.
    ///
    /// # Errors
    /// Returns the same errors as the blocking form.
    pub fn start_all_to_all<T: CommElement>(
        &mut self,
        mut parts: Vec<Vec<T>>,
    ) -> Result<StartedCollective<Vec<Vec<T>>>, Error> {
        let operation = self.begin_all_to_all(&mut parts)?;
        Ok(StartedCollective {
            operation,
            buffers: parts,
            finish: |comm, operation, mut parts| {
                comm.finish_all_to_all(operation, &mut parts)?;
                Ok(parts)
            },
        })
    }

    fn begin_all_to_all<T: CommElement>(
        &mut self,
        parts: &mut [Vec<T>],
    ) -> Result<MessageOperation, Error> {
        assert_eq!(parts.len(), self.world_size(), "all_to_all: one part per rank");
        let operation = self.begin(Verb::AllToAll, T::TYPE, None)?;
        for peer in self.peers() {
            self.send(peer, &operation, Phase::First, mem::take(&mut parts[peer]))?;
        }
        Ok(operation)
    }

    fn finish_all_to_all<T: CommElement>(
        &mut self,
        operation: MessageOperation,
        parts: &mut [Vec<T>],
    ) -> Result<(), Error> {
        self.finish(&operation)?;
        for peer in self.peers() {
            parts[peer] = self.receive(peer, &operation, Phase::First)?;
        }
        Ok(())
    }

    /// Gathers the values `mine` of every rank, in rank order. Lengths may differ.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::all_to_all`].
    pub fn all_gather<T: CommElement>(&mut self, mine: &[T]) -> Result<Vec<Vec<T>>, Error> {
        let mut gathered = Vec::new();
        self.all_gather_into(mine, &mut gathered)?;
        Ok(gathered)
    }

    /// Gathers values like [`Self::all_gather`] and stores them in `gathered`, whose buffers are
    /// reused.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::all_gather`].
    pub fn all_gather_into<T: CommElement>(
        &mut self,
        mine: &[T],
        gathered: &mut Vec<Vec<T>>,
    ) -> Result<(), Error> {
        gathered.resize_with(self.world_size(), Vec::new);
        let own = &mut gathered[self.rank().index()];
        own.clear();
        own.extend_from_slice(mine);
        let operation = self.begin_all_gather(mine)?;
        self.finish_all_gather(operation, gathered)
    }

    /// Starts [`Self::all_gather`] and returns without waiting for the peers.
    ///
    /// # Errors
    /// Returns the same errors as the blocking form.
    pub fn start_all_gather<T: CommElement>(
        &mut self,
        mine: Vec<T>,
    ) -> Result<StartedCollective<Vec<T>, Vec<Vec<T>>>, Error> {
        let operation = self.begin_all_gather(&mine)?;
        Ok(StartedCollective {
            operation,
            buffers: mine,
            finish: |comm, operation, mine| {
                let mut gathered: Vec<_> = (0..comm.world_size()).map(|_| Vec::new()).collect();
                gathered[comm.rank().index()] = mine;
                comm.finish_all_gather(operation, &mut gathered)?;
                Ok(gathered)
            },
        })
    }

    fn begin_all_gather<T: CommElement>(&mut self, mine: &[T]) -> Result<MessageOperation, Error> {
        let operation = self.begin(Verb::AllGather, T::TYPE, None)?;
        for peer in self.peers() {
            self.send_copy(peer, &operation, Phase::First, mine)?;
        }
        Ok(operation)
    }

    fn finish_all_gather<T: CommElement>(
        &mut self,
        operation: MessageOperation,
        gathered: &mut [Vec<T>],
    ) -> Result<(), Error> {
        self.finish(&operation)?;
        for peer in self.peers() {
            let received = self.receive(peer, &operation, Phase::First)?;
            self.pool().give(mem::replace(&mut gathered[peer], received));
        }
        Ok(())
    }

    /// Sums over ranks, in rank order. This rank contributes `parts[r]` to the result of rank r.
    /// Empties `parts`.
    ///
    /// # Numerics
    /// Every addition is rounded to the element type. Integers wrap.
    /// # Errors
    /// [`Error::Mismatch`] if ranks disagree about the length, and the errors of
    /// [`Self::all_to_all`].
    pub fn reduce_scatter<T: CommElement>(
        &mut self,
        parts: &mut [Vec<T>],
    ) -> Result<Vec<T>, Error> {
        let operation = self.begin_reduce_scatter(parts)?;
        self.finish_reduce_scatter(operation, parts)
    }

    /// Starts [`Self::reduce_scatter`] and returns without waiting for the peers.
    ///
    /// # Errors
    /// Returns the same errors as the blocking form.
    pub fn start_reduce_scatter<T: CommElement>(
        &mut self,
        mut parts: Vec<Vec<T>>,
    ) -> Result<StartedCollective<Vec<Vec<T>>, Vec<T>>, Error> {
        let operation = self.begin_reduce_scatter(&mut parts)?;
        Ok(StartedCollective {
            operation,
            buffers: parts,
            finish: |comm, operation, mut parts| comm.finish_reduce_scatter(operation, &mut parts),
        })
    }

    fn begin_reduce_scatter<T: CommElement>(
        &mut self,
        parts: &mut [Vec<T>],
    ) -> Result<MessageOperation, Error> {
        assert_eq!(parts.len(), self.world_size(), "reduce_scatter: one part per rank");
        let own = parts[self.rank().index()].len();
        let operation = self.begin(Verb::ReduceScatter, T::TYPE, Some(own))?;
        for peer in self.peers() {
            let part = mem::take(&mut parts[peer]);
            // The receiving peer expects the length of its own part.
            let sent = MessageOperation { count: Some(part.len() as u64), ..operation };
            self.send(peer, &sent, Phase::First, part)?;
        }
        Ok(operation)
    }

    fn finish_reduce_scatter<T: CommElement>(
        &mut self,
        operation: MessageOperation,
        parts: &mut [Vec<T>],
    ) -> Result<Vec<T>, Error> {
        self.finish(&operation)?;
        let own = mem::take(&mut parts[self.rank().index()]);
        self.add_up(&operation, own)
    }

    /// Sums `own` and the values that all peers send in the first phase of `operation`, in rank
    /// order.
    fn add_up<T: CommElement>(
        &mut self,
        operation: &MessageOperation,
        own: Vec<T>,
    ) -> Result<Vec<T>, Error> {
        let (me, mut own) = (self.rank().index(), Some(own));
        let mut sum: Option<Vec<T>> = None;
        for rank in 0..self.world_size() {
            let addend = match own.take_if(|_| rank == me) {
                Some(own) => own,
                None => self.receive(rank, operation, Phase::First)?,
            };
            match &mut sum {
                None => sum = Some(addend),
                Some(sum) => {
                    self.check_len(rank, sum.len(), addend.len(), operation)?;
                    add(sum, &addend);
                    self.pool().give(addend);
                }
            }
        }
        Ok(sum.unwrap_or_default())
    }

    /// Replaces `values` by the values of rank `root`, which must be the same rank on all ranks.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::all_to_all`].
    pub fn broadcast<T: CommElement>(
        &mut self,
        root: Rank,
        values: &mut Vec<T>,
    ) -> Result<(), Error> {
        let operation = self.begin_broadcast(root, values)?;
        self.finish_broadcast(operation, root, values)
    }

    /// Starts [`Self::broadcast`] and returns without waiting for the root.
    ///
    /// # Errors
    /// Returns the same errors as the blocking form.
    pub fn start_broadcast<T: CommElement>(
        &mut self,
        root: Rank,
        values: Vec<T>,
    ) -> Result<StartedCollective<Rooted<T>, Vec<T>>, Error> {
        let operation = self.begin_broadcast(root, &values)?;
        Ok(StartedCollective {
            operation,
            buffers: (root, values),
            finish: |comm, operation, (root, mut values)| {
                comm.finish_broadcast(operation, root, &mut values)?;
                Ok(values)
            },
        })
    }

    fn begin_broadcast<T: CommElement>(
        &mut self,
        root: Rank,
        values: &[T],
    ) -> Result<MessageOperation, Error> {
        let operation = self.begin(Verb::Broadcast, T::TYPE, None)?;
        if root == self.rank() {
            // Send one shared copy to all peers. The shared copy returns to the pool when all peers
            // have read it.
            let mut copy = self.pool().take(values.len());
            copy.copy_from_slice(values);
            let lent = self.pool().lend(copy);
            for peer in self.peers() {
                let load = Load::Shared(Arc::clone(&lent));
                self.send_load(peer, &operation, Phase::First, load, values.len())?;
            }
        }
        Ok(operation)
    }

    fn finish_broadcast<T: CommElement>(
        &mut self,
        operation: MessageOperation,
        root: Rank,
        values: &mut Vec<T>,
    ) -> Result<(), Error> {
        self.finish(&operation)?;
        if root != self.rank() {
            let load = self.receive_load(root.index(), &operation, Phase::First)?;
            let Some(received) = load.payload().values() else {
                return Err(self.wrong_payload(&operation, load.payload()));
            };
            values.clear();
            values.extend_from_slice(received);
            self.pool().give_load(load);
        }
        Ok(())
    }

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::all_to_all`].
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.start_barrier()?.wait(self)
    }

    /// Starts [`Self::barrier`] and returns without waiting for the peers.
    ///
    /// # Errors
    /// Returns the same errors as the blocking form.
    pub fn start_barrier(&mut self) -> Result<StartedCollective<()>, Error> {
        let operation = self.begin(Verb::Barrier, u8::TYPE, Some(0))?;
        for peer in self.peers() {
            self.send(peer, &operation, Phase::First, Vec::<u8>::new())?;
        }
        Ok(StartedCollective {
            operation,
            buffers: (),
            finish: |comm, operation, ()| {
                comm.finish(&operation)?;
                for peer in comm.peers() {
                    comm.receive::<u8>(peer, &operation, Phase::First)?;
                }
                Ok(())
            },
        })
    }

    fn send_copy<T: CommElement>(
        &mut self,
        peer: usize,
        operation: &MessageOperation,
        phase: Phase,
        values: &[T],
    ) -> Result<(), Error> {
        let mut copy = self.pool().take(values.len());
        copy.copy_from_slice(values);
        self.send(peer, operation, phase, copy)
    }

    /// Compares the length of a payload with the length that this rank expects, because the count
    /// in the header only states what the sender intended.
    fn check_len(
        &mut self,
        peer: usize,
        expected: usize,
        got: usize,
        operation: &MessageOperation,
    ) -> Result<(), Error> {
        if expected == got {
            return Ok(());
        }
        let (verb, rank) = (operation.verb.name(), self.world_rank(peer));
        Err(self.fail(Error::Length { verb, rank, expected, got }))
    }
}

fn add<T: CommElement>(sum: &mut [T], part: &[T]) {
    for (sum, &part) in sum.iter_mut().zip(part) {
        *sum = sum.plus(part);
    }
}
