//! One rank's part of a measured collective. The rank writes the send buffer, runs the collective,
//! and reads every byte that arrived. A trainer does the same, so the measured time includes the
//! cache misses.

use std::hint::black_box;

use comm::{Communicator, Error, VectorParts, Verb};
use schema::Rank;

/// The buffers of a rank for one collective of one size. All exchanges reuse them.
pub struct BenchExchange {
    verb: Verb,
    /// Number of elements in each rank's part of the buffer.
    parts: Vec<usize>,
    own: Vec<f32>,
    split: Vec<Vec<f32>>,
    summed: VectorParts<f32>,
    /// Counts the exchanges, so that each exchange sends different values.
    turn: u16,
}

impl BenchExchange {
    /// Allocates the buffers of a rank, for a message of `bytes` per rank.
    pub fn new(verb: Verb, bytes: usize, comm: &Communicator) -> Self {
        let (len, size) = (bytes / size_of::<f32>(), comm.world_size());
        let cut = |rank: usize| len * rank / size;
        let parts: Vec<usize> = (0..size).map(|rank| cut(rank + 1) - cut(rank)).collect();
        let own = match verb {
            Verb::AllGather => parts[comm.rank().index()],
            Verb::Broadcast => len,
            Verb::AllReduce | Verb::AllToAll | Verb::ReduceScatter | Verb::Barrier => 0,
        };
        let (split, summed) = (vec![Vec::new(); size], VectorParts::default());
        Self { verb, split, summed, parts, own: vec![0.0; own], turn: 0 }
    }

    /// Runs one exchange. The rank writes the send buffer, takes part in the collective, and reads
    /// the result.
    pub fn exchange(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        self.turn = self.turn.wrapping_add(1);
        let value = f32::from(self.turn);
        match self.verb {
            Verb::Barrier => comm.barrier()?,
            Verb::AllToAll => {
                for (part, &len) in self.split.iter_mut().zip(&self.parts) {
                    write(part, len, value);
                }
                comm.all_to_all(&mut self.split)?;
                self.split.iter().for_each(|part| read(part));
            }
            Verb::AllGather => {
                self.own.fill(value);
                comm.all_gather_into(&self.own, &mut self.split)?;
                self.split.iter().for_each(|part| read(part));
            }
            Verb::AllReduce => {
                let mut summed = std::mem::take(&mut self.summed);
                summed.reset(comm, self.parts.iter().sum());
                summed.slices_mut().for_each(|part| part.fill(value));
                self.summed = comm.start_sum(summed)?.wait(comm)?;
                self.summed.slices().for_each(read);
                self.summed.clear(comm);
            }
            Verb::ReduceScatter => {
                for (part, &len) in self.split.iter_mut().zip(&self.parts) {
                    *part = comm.buffer(len);
                    part.fill(value);
                }
                let sum = comm.reduce_scatter(&mut self.split)?;
                read(&sum);
                comm.keep(sum);
            }
            Verb::Broadcast => {
                if comm.rank() == Rank(0) {
                    self.own.fill(value);
                }
                comm.broadcast(Rank(0), &mut self.own)?;
                read(&self.own);
            }
        }
        Ok(())
    }
}

/// The bytes that a rank must send, relative to its buffer. The factors are those with which
/// nccl-tests computes the bus bandwidth.
pub fn sent_share(verb: Verb, ranks: u32) -> f64 {
    let others = f64::from(ranks.saturating_sub(1)) / f64::from(ranks.max(1));
    match verb {
        Verb::AllReduce => 2.0 * others,
        Verb::AllGather | Verb::ReduceScatter | Verb::AllToAll => others,
        Verb::Broadcast => 1.0,
        Verb::Barrier => 0.0,
    }
}

fn write(part: &mut Vec<f32>, len: usize, value: f32) {
    part.resize(len, 0.0);
    part.fill(value);
}

fn read(values: &[f32]) {
    black_box(values.iter().fold(0u32, |sum, value| sum.wrapping_add(value.to_bits())));
}
