//! Ranks as threads of one process: messages move through channels, nothing is serialised.
//!
//! This transport is the reference for every other one: it is deterministic and needs no network.

use std::any::Any;
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use schema::Rank;

use crate::Error;

/// A message and the collective it belongs to, so that ranks out of step are noticed.
struct Message {
    verb: &'static str,
    sequence: u64,
    body: Box<dyn Any + Send>,
}

/// One rank's end of a communicator. All ranks call the same collectives in the same order.
pub struct Communicator {
    rank: Rank,
    sequence: u64,
    to: Vec<Sender<Message>>,
    from: Vec<Receiver<Message>>,
}

/// A communicator over `size` ranks: one end per rank, in rank order.
#[must_use]
pub fn world(size: u32) -> Vec<Communicator> {
    let size = size as usize;
    let mut senders: Vec<Vec<Sender<Message>>> = (0..size).map(|_| Vec::new()).collect();
    let mut receivers: Vec<Vec<Receiver<Message>>> = (0..size).map(|_| Vec::new()).collect();
    for from in &mut senders {
        for to in &mut receivers {
            let (sender, receiver) = channel();
            from.push(sender);
            to.push(receiver);
        }
    }
    let ends = senders.into_iter().zip(receivers);
    (0..)
        .zip(ends)
        .map(|(rank, (to, from))| Communicator { rank: Rank(rank), sequence: 0, to, from })
        .collect()
}

impl Communicator {
    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Number of ranks.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.to.len()
    }

    /// Sends `outgoing[r]` to rank r; returns what each rank sent here, in rank order.
    ///
    /// # Errors
    /// [`Error::PeerLeft`], [`Error::Mismatch`].
    pub fn all_to_all<T: Send + 'static>(
        &mut self,
        outgoing: Vec<Vec<T>>,
    ) -> Result<Vec<Vec<T>>, Error> {
        self.exchange("all_to_all", outgoing)
    }

    /// Every rank's `mine`, in rank order.
    ///
    /// # Errors
    /// [`Error::PeerLeft`], [`Error::Mismatch`].
    pub fn all_gather<T: Send + Sync + 'static>(
        &mut self,
        mine: Vec<T>,
    ) -> Result<Vec<Arc<Vec<T>>>, Error> {
        let mine = Arc::new(mine);
        self.exchange("all_gather", vec![mine; self.world_size()])
    }

    /// Sum over ranks, in rank order; `parts[r]` is this rank's addend to what rank r receives.
    ///
    /// # Errors
    /// [`Error::Length`] where ranks disagree about the length, and as [`Self::all_to_all`].
    pub fn reduce_scatter<T: Copy + AddAssign + Send + 'static>(
        &mut self,
        parts: Vec<Vec<T>>,
    ) -> Result<Vec<T>, Error> {
        let mut received = self.exchange("reduce_scatter", parts)?.into_iter();
        let mut sum = received.next().unwrap_or_default();
        for (rank, part) in (1..).zip(received) {
            add("reduce_scatter", rank, &mut sum, &part)?;
        }
        Ok(sum)
    }

    /// Replaces `values` by their sum over ranks, the same bytes everywhere.
    ///
    /// Each rank reduces one part and all gather the parts: `2·n` values move per rank.
    ///
    /// # Errors
    /// [`Error::Length`] where ranks disagree about the length, and as [`Self::all_to_all`].
    pub fn all_reduce<T: Copy + AddAssign + Send + Sync + 'static>(
        &mut self,
        values: &mut [T],
    ) -> Result<(), Error> {
        let size = self.world_size();
        if size == 1 {
            return Ok(());
        }
        let cut = |part: usize| values.len() * part / size;
        let parts = (0..size).map(|part| values[cut(part)..cut(part + 1)].to_vec()).collect();
        let sum = self.reduce_scatter(parts)?;
        let gathered = self.all_gather(sum)?;
        let mut rest = values;
        for (rank, part) in (0..).zip(gathered) {
            if part.len() > rest.len() {
                let (expected, got) = (rest.len(), part.len());
                return Err(Error::Length { verb: "all_reduce", rank, expected, got });
            }
            let (head, tail) = rest.split_at_mut(part.len());
            head.copy_from_slice(&part);
            rest = tail;
        }
        Ok(())
    }

    /// The value of rank `root` on every rank; the others pass `None`.
    ///
    /// # Errors
    /// [`Error::PeerLeft`], [`Error::Mismatch`].
    pub fn broadcast<T: Clone + Send + 'static>(
        &mut self,
        root: Rank,
        value: Option<T>,
    ) -> Result<T, Error> {
        self.sequence += 1;
        if let Some(value) = value {
            for peer in (0..self.world_size()).filter(|&peer| peer != root.index()) {
                self.send("broadcast", peer, value.clone())?;
            }
            return Ok(value);
        }
        self.receive("broadcast", root.index())
    }

    /// Returns once every rank has arrived.
    ///
    /// # Errors
    /// [`Error::PeerLeft`], [`Error::Mismatch`].
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.exchange("barrier", vec![(); self.world_size()]).map(|_| ())
    }

    fn exchange<T: Send + 'static>(
        &mut self,
        verb: &'static str,
        outgoing: Vec<T>,
    ) -> Result<Vec<T>, Error> {
        assert_eq!(outgoing.len(), self.world_size(), "{verb}: one message per rank");
        if self.world_size() == 1 {
            return Ok(outgoing);
        }
        self.sequence += 1;
        for (peer, message) in outgoing.into_iter().enumerate() {
            self.send(verb, peer, message)?;
        }
        (0..self.world_size()).map(|peer| self.receive(verb, peer)).collect()
    }

    fn send<T: Send + 'static>(
        &self,
        verb: &'static str,
        peer: usize,
        message: T,
    ) -> Result<(), Error> {
        let message = Message { verb, sequence: self.sequence, body: Box::new(message) };
        let sent = self.to[peer].send(message);
        sent.map_err(|_| Error::PeerLeft { rank: peer as u32, verb })
    }

    fn receive<T: Send + 'static>(&self, verb: &'static str, peer: usize) -> Result<T, Error> {
        let rank = peer as u32;
        let message = self.from[peer].recv().map_err(|_| Error::PeerLeft { rank, verb })?;
        let mismatch = || Error::Mismatch {
            rank,
            expected: format!("{verb} #{}", self.sequence),
            got: format!("{} #{}", message.verb, message.sequence),
        };
        if (message.verb, message.sequence) != (verb, self.sequence) {
            return Err(mismatch());
        }
        match message.body.downcast::<T>() {
            Ok(body) => Ok(*body),
            Err(_) => Err(Error::Mismatch {
                rank,
                expected: format!("{verb} #{} of {}", self.sequence, std::any::type_name::<T>()),
                got: "another element type".to_owned(),
            }),
        }
    }
}

fn add<T: Copy + AddAssign>(
    verb: &'static str,
    rank: u32,
    sum: &mut [T],
    part: &[T],
) -> Result<(), Error> {
    if sum.len() != part.len() {
        return Err(Error::Length { verb, rank, expected: sum.len(), got: part.len() });
    }
    for (sum, &part) in sum.iter_mut().zip(part) {
        *sum += part;
    }
    Ok(())
}
