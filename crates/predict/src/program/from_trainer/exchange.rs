//! Memory traffic of exchanges between ranks that share memory, where the ranks themselves copy,
//! assemble and split messages.

use schema::{Op, OpWork};

/// Sizes of the exchanges between the ranks of a step, from which the memory traffic of each
/// follows.
pub struct Exchanges {
    /// Share of each rank in the samples.
    shares: Vec<f64>,
    /// Pooled values of each rank's tiles for all samples.
    held: Vec<f64>,
    /// Pooled values of each rank's samples for all tables.
    pooled: Vec<f64>,
}

const VALUE_BYTES: f64 = size_of::<f32>() as f64;

impl Exchanges {
    /// Collects the sizes from the operations of all ranks.
    pub fn from_ops(ranks: &[Vec<Op>]) -> Self {
        let sum = |ops: &[Op], of: fn(&Op) -> usize| ops.iter().map(of).sum::<usize>() as f64;
        let samples = |op: &Op| match op {
            Op::Loss { batch_size } => *batch_size,
            _ => 0,
        };
        let held = |op: &Op| match op {
            Op::OutputDist { elements } => *elements,
            _ => 0,
        };
        let pooled = |op: &Op| match op {
            Op::GradientDist { elements } => *elements,
            _ => 0,
        };
        let own: Vec<f64> = ranks.iter().map(|ops| sum(ops, samples)).collect();
        let all = own.iter().sum::<f64>().max(1.0);
        let shares = own.into_iter().map(|own| own / all).collect();
        let sums_by_rank = |of| ranks.iter().map(|ops| sum(ops, of)).collect();
        Self { shares, held: sums_by_rank(held), pooled: sums_by_rank(pooled) }
    }

    /// Returns the work of an operation. For exchanges the bytes are those read and written, which
    /// exceed those sent.
    pub fn work(&self, rank: usize, op: &Op) -> OpWork {
        let share = self.shares[rank];
        let held = self.held[rank];
        // Values that all ranks send for the samples of this rank.
        let arriving = share * self.held.iter().sum::<f64>();
        let values = match op {
            _ if self.shares.len() < 2 => return op.work(),
            // Values for other ranks are copied into messages. Values that arrive or stay are
            // summed into the pooled vectors.
            Op::OutputDist { .. } => 2.0 * (1.0 - share) * held + arriving + self.pooled[rank],
            // Columns are gathered into a message per rank. Columns that arrive are concatenated.
            Op::GradientDist { .. } => 2.0 * arriving + 2.0 * held,
            // Each rank reduces its part of the elements of all ranks, and reads the other parts
            // from shared memory.
            Op::AllReduce { elements } => {
                let elements = *elements as f64;
                elements + elements / self.shares.len() as f64
            }
            _ => return op.work(),
        };
        OpWork { flops: op.work().flops, bytes: (VALUE_BYTES * values).round() as u64 }
    }
}
