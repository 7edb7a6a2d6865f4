//! Prices a single exchange between all ranks of a topology.

use kernel_model::Estimate;
use kernel_model::rank_load::RankLoad;
use schema::Topology;

use super::exchange::Peers;

/// The kind of an exchange between all ranks of a topology that is priced on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankExchange {
    /// Every rank sends each other rank an equal part of its bytes.
    AllToAll,
    /// The values of all ranks are summed, and every rank receives the sums.
    AllReduce,
}

impl RankExchange {
    /// All kinds of exchange, in the order of declaration.
    pub const ALL: [Self; 2] = [Self::AllToAll, Self::AllReduce];

    /// Returns the name that users type to select the exchange.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AllToAll => "all_to_all",
            Self::AllReduce => "all_reduce",
        }
    }

    /// Finds the exchange with the given name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|collective| collective.name() == name)
    }

    /// Predicts the exchange for a number of bytes per rank. Returns `None` if the topology has
    /// only one rank.
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
