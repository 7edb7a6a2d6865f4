//! Memory traffic of exchanges between ranks that share memory. In shared memory, the ranks
//! themselves copy, assemble and split the messages.

use schema::{Op, OpWork};

/// Sizes of the exchanges between the ranks of a step. The memory traffic of each exchange follows
/// from these sizes.
pub struct Exchanges {
    /// Share of each rank in the samples of the batch.
    shares: Vec<f64>,
    /// Number of pooled values that each rank's tiles produce for all samples.
    held: Vec<f64>,
    /// Number of pooled values that each rank's samples need from all tables.
    pooled: Vec<f64>,
}

const VALUE_BYTES: f64 = size_of::<f32>() as f64;

impl Exchanges {
    /// Collects the exchange sizes from the operations of all ranks.
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

    /// Returns the work of an operation. The bytes of an exchange are the bytes read and written in
    /// memory, which exceed the bytes sent.
    pub fn work(&self, rank: usize, op: &Op) -> OpWork {
        let share = self.shares[rank];
        let held = self.held[rank];
        // Number of values that all ranks together send for the samples of this rank.
        let arriving = share * self.held.iter().sum::<f64>();
        let values = match op {
            _ if self.shares.len() < 2 => return op.work(),
            // Values for other ranks are copied into messages. Values that arrive or stay are
            // summed into the pooled vectors.
            Op::OutputDist { .. } => 2.0 * (1.0 - share) * held + arriving + self.pooled[rank],
            // Columns are gathered into one message per rank. Columns that arrive are concatenated.
            Op::GradientDist { .. } => 2.0 * arriving + 2.0 * held,
            // Each rank reduces its part of the elements over all ranks, and reads the other parts
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
