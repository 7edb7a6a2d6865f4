//! Prices a single exchange between all ranks of a topology.

use kernel_model::Estimate;
use kernel_model::exchanges::RankExchange;
use schema::Topology;

use super::exchange::Peers;

/// Predicts an exchange for a number of bytes per rank. Returns `None` if the topology has only one
/// rank, and for a gather or scatter over several hosts, which no step contains.
#[must_use]
pub fn price_exchange(exchange: RankExchange, bytes: u64, topology: &Topology) -> Option<Estimate> {
    let ranks = topology.ranks() as usize;
    let peers = Peers::new(topology, None, vec![1; ranks]);
    let (bytes, of_sample) = (bytes as f64, bytes as f64 / ranks as f64);
    match exchange {
        _ if ranks < 2 => None,
        RankExchange::AllToAll => Some(peers.to_samples(|_| of_sample)),
        RankExchange::AllReduce => Some(peers.sum(bytes)),
        RankExchange::AllGather | RankExchange::ReduceScatter if topology.hosts > 1 => None,
        _ => Some(exchange.price_within_host(ranks, bytes, &topology.device, &topology.within)),
    }
}
