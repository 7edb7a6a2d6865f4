//! One exchange between all ranks of a topology, priced on its own.

use kernel_model::Estimate;
use kernel_model::rank_load::RankLoad;
use schema::Topology;

use super::exchange::Peers;

/// An exchange between all ranks of a topology, priced on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankExchange {
    /// Every rank sends each other rank an equal part of its bytes.
    AllToAll,
    /// Sums the bytes of all ranks.
    AllReduce,
}

impl RankExchange {
    /// Every exchange, in declaration order.
    pub const ALL: [Self; 2] = [Self::AllToAll, Self::AllReduce];

    /// Returns the name that users type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AllToAll => "all_to_all",
            Self::AllReduce => "all_reduce",
        }
    }

    /// Finds the exchange with a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|collective| collective.name() == name)
    }

    /// Predicts the exchange for a number of bytes per rank; `None` for a single rank.
    #[must_use]
    pub fn price(self, bytes: u64, topology: &Topology) -> Option<Estimate> {
        let ranks = topology.ranks() as usize;
        let peers = Peers::new(topology, vec![1; ranks]);
        let of_sample = bytes as f64 / ranks as f64;
        (ranks > 1).then(|| match self {
            Self::AllToAll => peers.to_samples(&vec![RankLoad::default(); ranks], |_| of_sample),
            Self::AllReduce => peers.sum(bytes as f64),
        })
    }
}
