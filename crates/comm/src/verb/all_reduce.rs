//! All-reduce: each rank sums one part of the vector and sends the sum to all others.
//!
//! Every rank sends about `2·n` values. A vector that is stored in parts from the start is not
//! copied.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use super::StartedCollective;
use crate::communicator::Communicator;
use crate::element::{CommElement, Load, Payload};
use crate::error::Error;
use crate::message::{MessageOperation, Phase, Verb};

/// A vector stored in one part per rank. An all-reduce makes rank r sum part r.
#[derive(Debug)]
pub struct VectorParts<T> {
    parts: Vec<SummedPart<T>>,
}

/// A part of the sum, which this rank computed or received from the rank that computed it.
#[derive(Debug)]
enum SummedPart<T> {
    Own(Vec<T>),
    /// The sum of another rank, which all ranks share for reading.
    Lent(Arc<Payload>),
}

impl<T> Default for VectorParts<T> {
    fn default() -> Self {
        Self { parts: Vec::new() }
    }
}

impl<T: CommElement> VectorParts<T> {
    /// Returns all buffers to the pool. Peers can reuse the buffers of their sums only after that.
    pub fn clear(&mut self, comm: &Communicator) {
        for part in self.parts.drain(..) {
            if let SummedPart::Own(values) = part {
                comm.pool().give(values);
            }
        }
    }

    /// Allocates `len` values from the pool. The content of the values is arbitrary until they are
    /// written.
    pub fn reset(&mut self, comm: &Communicator, len: usize) {
        self.clear(comm);
        let own_part = |rank| SummedPart::Own(comm.pool().take(comm.part(len, rank).len()));
        self.parts.extend((0..comm.world_size()).map(own_part));
    }

    /// Iterates over the values, part by part.
    pub fn slices(&self) -> impl Iterator<Item = &[T]> {
        self.parts.iter().map(|part| match part {
            SummedPart::Own(values) => &values[..],
            SummedPart::Lent(payload) => payload.values().unwrap_or_default(),
        })
    }

    /// Iterates over the writable values, part by part. Parts that are shared sums yield empty
    /// slices.
    pub fn slices_mut(&mut self) -> impl Iterator<Item = &mut [T]> {
        self.parts.iter_mut().map(|part| match part {
            SummedPart::Own(values) => &mut values[..],
            SummedPart::Lent(_) => &mut [],
        })
    }

    /// Copies `values` into the vector, starting at position `at`.
    pub fn write(&mut self, at: usize, mut values: &[T]) {
        let mut skipped = at;
        for slice in self.slices_mut() {
            let start = skipped.min(slice.len());
            skipped -= start;
            let (here, rest) = values.split_at(values.len().min(slice.len() - start));
            slice[start..start + here.len()].copy_from_slice(here);
            values = rest;
        }
    }

    /// Returns the `len` values that start at position `at`, if they are contiguous in one part.
    #[must_use]
    pub fn slice(&self, at: usize, len: usize) -> Option<&[T]> {
        let mut skipped = at;
        for slice in self.slices() {
            if skipped < slice.len() {
                return slice.get(skipped..skipped + len);
            }
            skipped -= slice.len();
        }
        None
    }

    /// Copies the vector's values to `values`, starting at position `at`.
    pub fn read(&self, at: usize, mut values: &mut [T]) {
        let mut skipped = at;
        for slice in self.slices() {
            let start = skipped.min(slice.len());
            skipped -= start;
            let (here, rest) = values.split_at_mut(values.len().min(slice.len() - start));
            here.copy_from_slice(&slice[start..start + here.len()]);
            values = rest;
        }
    }
}

impl Communicator {
    /// Starts an all-reduce like [`Self::start_all_reduce`], for a vector in parts allocated by
    /// [`VectorParts::reset`]. The parts are moved to the peers, and sums are shared with ranks of
    /// the same process.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::start_all_reduce`].
    pub fn start_sum<T: CommElement>(
        &mut self,
        mut parts: VectorParts<T>,
    ) -> Result<StartedCollective<VectorParts<T>>, Error> {
        let len = parts.slices().map(<[T]>::len).sum();
        let operation = self.begin(Verb::AllReduce, T::TYPE, Some(len))?;
        assert_eq!(parts.parts.len(), self.world_size(), "one part per rank");
        if self.is_native(T::TYPE) {
            // Empty messages announce the operation, so that a rank in another operation is
            // detected.
            for peer in self.peers() {
                self.send(peer, &operation, Phase::First, Vec::<T>::new())?;
            }
            let finish =
                |comm: &mut Self, operation: MessageOperation, mut parts: VectorParts<T>| {
                    comm.finish_native(&operation, &mut parts)?;
                    Ok(parts)
                };
            return Ok(StartedCollective { operation, buffers: parts, finish });
        }
        for peer in self.peers() {
            if let SummedPart::Own(values) = &mut parts.parts[peer] {
                self.send(peer, &operation, Phase::First, mem::take(values))?;
            }
        }
        let finish = |comm: &mut Self, operation: MessageOperation, mut parts: VectorParts<T>| {
            comm.finish_sum(&operation, &mut parts)?;
            Ok(parts)
        };
        Ok(StartedCollective { operation, buffers: parts, finish })
    }

    /// Lets the transport compute the sum, after checking that all ranks are in the same operation.
    fn finish_native<T: CommElement>(
        &mut self,
        operation: &MessageOperation,
        parts: &mut VectorParts<T>,
    ) -> Result<(), Error> {
        self.finish(operation)?;
        for peer in self.peers() {
            self.receive::<T>(peer, operation, Phase::First)?;
        }
        let mut whole: Vec<f32> = self.pool().take(operation.count.unwrap_or(0) as usize);
        let mut at = 0;
        for slice in parts.slices() {
            let slice: &[f32] = bytemuck::cast_slice(slice);
            whole[at..at + slice.len()].copy_from_slice(slice);
            at += slice.len();
        }
        let sums = self.native_sum(operation, whole)?;
        parts.write(0, bytemuck::cast_slice(&sums));
        self.pool().give(sums);
        Ok(())
    }

    fn finish_sum<T: CommElement>(
        &mut self,
        operation: &MessageOperation,
        parts: &mut VectorParts<T>,
    ) -> Result<(), Error> {
        self.finish(operation)?;
        let own = self.rank().index();
        let SummedPart::Own(mine) = &mut parts.parts[own] else { return Ok(()) };
        let sum = self.add_up(operation, mem::take(mine))?;
        if self.world_size() == 1 {
            parts.parts[own] = SummedPart::Own(sum);
            return Ok(());
        }
        let (len, lent) = (sum.len(), self.pool().lend(sum));
        for peer in self.peers() {
            let load = Load::Shared(Arc::clone(&lent));
            self.send_load(peer, operation, Phase::Second, load, len)?;
        }
        parts.parts[own] = SummedPart::Lent(lent);
        let total = operation.count.unwrap_or(0) as usize;
        for peer in self.peers() {
            let part = match self.receive_load(peer, operation, Phase::Second)? {
                Load::Owned(payload) => SummedPart::Own(
                    payload
                        .into_values()
                        .map_err(|payload| self.wrong_payload(operation, &payload))?,
                ),
                Load::Shared(payload) => SummedPart::Lent(payload),
            };
            let len = match &part {
                SummedPart::Own(values) => values.len(),
                SummedPart::Lent(payload) => payload.values::<T>().map_or(0, <[T]>::len),
            };
            self.check_len(peer, self.part(total, peer).len(), len, operation)?;
            parts.parts[peer] = part;
        }
        Ok(())
    }

    /// Replaces `values` by their sum over ranks, which has the same bytes on all ranks.
    ///
    /// # Numerics
    /// Additions are rounded as in [`Self::reduce_scatter`].
    /// # Errors
    /// [`Error::Mismatch`] if ranks disagree about the length, and the errors of
    /// [`Self::all_to_all`].
    pub fn all_reduce<T: CommElement>(&mut self, values: &mut [T]) -> Result<(), Error> {
        let operation = self.begin_all_reduce(values)?;
        self.finish_all_reduce(operation, values)
    }

    /// Starts [`Self::all_reduce`] and returns without waiting for the peers.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::all_reduce`].
    pub fn start_all_reduce<T: CommElement>(
        &mut self,
        values: Vec<T>,
    ) -> Result<StartedCollective<Vec<T>>, Error> {
        let operation = self.begin_all_reduce(&values)?;
        Ok(StartedCollective {
            operation,
            buffers: values,
            finish: |comm, operation, mut values| {
                comm.finish_all_reduce(operation, &mut values)?;
                Ok(values)
            },
        })
    }

    fn begin_all_reduce<T: CommElement>(
        &mut self,
        values: &[T],
    ) -> Result<MessageOperation, Error> {
        let operation = self.begin(Verb::AllReduce, T::TYPE, Some(values.len()))?;
        for peer in self.peers() {
            let part = self.part(values.len(), peer);
            self.send_copy(peer, &operation, Phase::First, &values[part])?;
        }
        Ok(operation)
    }

    fn finish_all_reduce<T: CommElement>(
        &mut self,
        operation: MessageOperation,
        values: &mut [T],
    ) -> Result<(), Error> {
        self.finish(&operation)?;
        let (len, own) = (values.len(), self.rank().index());
        let part = self.part(len, own);
        let mut mine = self.pool().take(part.len());
        mine.copy_from_slice(&values[part.clone()]);
        let sum = self.add_up(&operation, mine)?;
        for peer in self.peers() {
            self.send_copy(peer, &operation, Phase::Second, &sum)?;
        }
        values[part].copy_from_slice(&sum);
        self.pool().give(sum);
        for peer in self.peers() {
            let received: Vec<T> = self.receive(peer, &operation, Phase::Second)?;
            let part = &mut values[self.part(len, peer)];
            self.check_len(peer, part.len(), received.len(), &operation)?;
            part.copy_from_slice(&received);
            self.pool().give(received);
        }
        Ok(())
    }

    /// Returns the range of a vector of `len` values that the rank at `position` sums.
    fn part(&self, len: usize, position: usize) -> Range<usize> {
        let cut = |part: usize| len * part / self.world_size();
        cut(position)..cut(position + 1)
    }
}
