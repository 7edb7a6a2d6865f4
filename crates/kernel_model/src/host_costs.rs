//! Measured costs of one rank that trains on a CPU: of its computation, and of its messages to
//! other ranks.
//!
//! A rank of a CPU has few threads and no kernels that wait for a launch, so its times are sums of
//! amounts of work. `rowmill-bench plans` measures the costs on this machine.

use schema::topology::Link;
use schema::{Op, OpWork};

use crate::Error;
use crate::cpu::{CpuWork, fit_units};
use crate::estimate::Estimate;
use crate::exchanges::RankExchange;

/// Lowest and highest factor for sums of measured costs.
const INTERVAL: (f64, f64) = (0.7, 1.4);

/// Amounts of work of which the time of lookups, and that of row updates, is a sum.
pub const AMOUNTS: [&str; 5] = ["tiles", "bags", "ids", "memory_bytes", "cache_bytes"];

/// The amounts of a rank's lookups or row updates, in the order of [`AMOUNTS`].
pub type HostAmounts = [f64; AMOUNTS.len()];

/// Costs of a rank's work on a CPU, in nanoseconds. They hold while the other ranks of the machine
/// work, too.
#[derive(Clone, Debug, PartialEq)]
pub struct HostCosts {
    /// Time per FLOP of matrix products.
    pub flop_ns: f64,
    /// Time per byte that an element-wise operation reads or writes.
    pub byte_ns: f64,
    /// Time per byte that a copy between vectors and messages reads or writes.
    pub copy_ns: f64,
    /// Time per row to put its gradient into a sum over ranks, besides the copied bytes. One thread
    /// does this row by row.
    pub row_ns: f64,
    /// Bytes of embedding rows that the caches of a rank hold.
    pub cache_bytes: f64,
    /// Time per unit of each amount of lookups.
    pub lookup: HostAmounts,
    /// Time per unit of each amount of row updates.
    pub update: HostAmounts,
    /// Time per unit of each amount of a distribution of ids, in the order of [`DISTRIBUTED`].
    pub distribution: [f64; DISTRIBUTED.len()],
    /// Share of the time of a thread beside the computation by which it slows the computation down.
    /// It is 0 on a machine with cores to spare, and otherwise 1 ÷ the threads of a rank.
    pub lane_share: f64,
    /// Time of an exchange between two ranks as a function of the bytes that each sends.
    pub link: Link,
}

/// Factors for the costs of each stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostRatios {
    pub lookup: f64,
    pub update: f64,
    pub dense: f64,
    pub exchange: f64,
}

/// Amounts of work of which the time of a distribution of ids is a sum.
pub const DISTRIBUTED: [&str; 3] = ["bags", "ids", "tested_ids"];

/// The ids that ranks send to the tiles of one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DistributedIds {
    pub bags: f64,
    pub ids: f64,
    /// Number of ids that are compared with the rows of a tile, because it has a part of them.
    pub tested_ids: f64,
}

impl DistributedIds {
    /// Returns the amounts in the order of [`DISTRIBUTED`].
    #[must_use]
    pub fn amounts(&self) -> [f64; DISTRIBUTED.len()] {
        [self.bags, self.ids, self.tested_ids]
    }
}

impl HostCosts {
    /// Returns the costs of a rank with so many threads on a server's CPU. They are a guess: those
    /// that `rowmill-bench plans` measured for one thread of an Intel Xeon (Sapphire Rapids),
    /// divided by the threads, and a link through memory.
    #[must_use]
    pub fn typical(threads: usize, has_spare_cores: bool) -> Self {
        let share = 1.0 / threads.max(1) as f64;
        let shared = |costs: HostAmounts| costs.map(|ns| ns * share);
        Self {
            flop_ns: 0.013 * share,
            byte_ns: 0.13 * share,
            copy_ns: 0.04 * share,
            row_ns: 70.0,
            cache_bytes: 2e6,
            lookup: shared([0.0, 5.7, 1.0, 0.058, 0.0]),
            update: shared([0.0, 11.0, 17.0, 0.05, 0.0]),
            distribution: [2.7, 0.64, 5.3],
            lane_share: if has_spare_cores { 0.0 } else { share },
            link: Link::memory(),
        }
    }

    /// Multiplies the costs of each stage by a ratio.
    #[must_use]
    pub fn scaled(&self, ratios: &HostRatios) -> Self {
        let HostRatios { lookup, update, dense, exchange } = *ratios;
        Self {
            flop_ns: self.flop_ns * dense,
            byte_ns: self.byte_ns * dense,
            copy_ns: self.copy_ns * exchange,
            row_ns: self.row_ns * update,
            lookup: self.lookup.map(|ns| ns * lookup),
            update: self.update.map(|ns| ns * update),
            distribution: self.distribution.map(|ns| ns * lookup),
            link: self.link.scaled(exchange),
            ..*self
        }
    }

    /// Fits the cost of each amount to measured times in nanoseconds.
    ///
    /// # Errors
    /// [`Error::TooFew`] for fewer measurements than amounts.
    pub fn fit<const N: usize>(
        names: [&'static str; N],
        measured: &[([f64; N], f64)],
    ) -> Result<[f64; N], Error> {
        if measured.len() < N {
            let (expected, got) = (N, measured.len());
            return Err(Error::TooFew { kind: "embedding", expected, got });
        }
        let work = |(amounts, _): &([f64; N], f64)| CpuWork {
            kind: String::new(),
            amounts: names.into_iter().zip(*amounts).collect(),
            sizes: Vec::new(),
        };
        let works: Vec<CpuWork> = measured.iter().map(work).collect();
        let times = measured.iter().map(|one| one.1);
        let units = fit_units(&works.iter().zip(times).collect::<Vec<_>>());
        Ok(std::array::from_fn(|at| units[at]))
    }

    /// Predicts lookups or row updates from their amounts and from the cost of each amount.
    #[must_use]
    pub fn price_rows(amounts: &HostAmounts, costs: &HostAmounts) -> Estimate {
        let ns = amounts.iter().zip(costs).map(|(amount, cost)| amount * cost).sum();
        Estimate::within(ns, INTERVAL)
    }

    /// Predicts by how much the thread that distributes ids slows a rank's computation down. `ids`
    /// are those for the tiles of the rank, and stand for those that it sends, too.
    #[must_use]
    pub fn price_distribution(&self, ids: &DistributedIds) -> Estimate {
        let ns: f64 =
            ids.amounts().iter().zip(&self.distribution).map(|(amount, cost)| amount * cost).sum();
        Estimate::within(self.lane_share * ns, INTERVAL)
    }

    /// Returns the time for which a message travels without keeping the link busy.
    #[must_use]
    pub fn latency(&self) -> Estimate {
        Estimate::within(self.link.alpha_ns(), INTERVAL)
    }

    /// Predicts a dense operation of a rank.
    #[must_use]
    pub fn price_op(&self, op: &Op) -> Estimate {
        let OpWork { flops, bytes } = op.work();
        let ns = match op {
            Op::Gemm { .. } | Op::Interaction { .. } => self.flop_ns * flops as f64,
            _ => self.byte_ns * bytes as f64,
        };
        Estimate::within(ns, INTERVAL)
    }

    /// Predicts an operation that reads and writes `bytes` bytes.
    #[must_use]
    pub fn price_bytes(&self, bytes: f64) -> Estimate {
        Estimate::within(self.byte_ns * bytes, INTERVAL)
    }

    /// Predicts a copy that reads and writes `bytes` bytes in all.
    #[must_use]
    pub fn price_copy(&self, bytes: f64) -> Estimate {
        Estimate::within(self.copy_ns * bytes, INTERVAL)
    }

    /// Predicts how long a rank puts the gradients of `rows` rows into a sum over ranks, besides
    /// the copied bytes.
    #[must_use]
    pub fn price_summed_rows(&self, rows: f64) -> Estimate {
        Estimate::within(self.row_ns * rows, INTERVAL)
    }

    /// Predicts an exchange in which each rank has `bytes` bytes, as [`RankExchange`] counts them.
    /// A sum over ranks takes two turns.
    #[must_use]
    pub fn price_exchange(&self, exchange: RankExchange, ranks: usize, bytes: f64) -> Estimate {
        if ranks < 2 || bytes <= 0.0 {
            return Estimate::default();
        }
        let turns = if exchange == RankExchange::AllReduce { 2.0 } else { 1.0 };
        let sent = bytes * (ranks - 1) as f64 / ranks as f64;
        Estimate::within(turns * self.link.ns(sent), INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use schema::topology::Link;

    use super::{AMOUNTS, HostCosts};
    use crate::exchanges::RankExchange;

    #[test]
    fn costs_are_found_again() {
        let costs = [900.0, 4.0, 7.0, 0.2, 0.05];
        let case = |number: usize| {
            let amounts = std::array::from_fn(|at| {
                let scale = [1.0, 1e3, 1e4, 1e6, 1e6][at];
                scale * (1.0 + ((number * (at + 3) + at) % 7) as f64)
            });
            (amounts, HostCosts::price_rows(&amounts, &costs).mean_ns)
        };
        let measured: Vec<_> = (0..20).map(case).collect();
        let fitted = HostCosts::fit(AMOUNTS, &measured).unwrap();
        for (amounts, ns) in &measured {
            let predicted = HostCosts::price_rows(amounts, &fitted).mean_ns;
            assert!((predicted / ns - 1.0).abs() < 0.05, "{predicted} {ns}");
        }
        assert!(HostCosts::fit(AMOUNTS, &measured[..AMOUNTS.len() - 1]).is_err());
    }

    #[test]
    fn a_sum_takes_two_turns_of_the_link() {
        let link = Link::new(&[(1e3, 1e6), (1e6, 2e6)], "made").unwrap();
        let (lookup, update) = ([0.0; 5], [0.0; 5]);
        let costs = HostCosts {
            flop_ns: 0.0,
            byte_ns: 0.0,
            copy_ns: 0.0,
            row_ns: 0.0,
            cache_bytes: 0.0,
            lookup,
            update,
            distribution: [0.0; 3],
            lane_share: 1.0,
            link,
        };
        let ns = |exchange| costs.price_exchange(exchange, 2, 2e6).mean_ns;
        assert_eq!(ns(RankExchange::AllToAll), 2e6);
        assert_eq!(ns(RankExchange::AllReduce), 4e6);
        assert_eq!(costs.price_exchange(RankExchange::AllToAll, 1, 2e6).mean_ns, 0.0);
    }
}
