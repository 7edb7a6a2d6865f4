//! Predicts exchanges between ranks on a topology. Each exchange takes as long as on its busiest
//! rank, on the links within a host and between hosts.

use schema::Topology;

use kernel_model::Estimate;
use kernel_model::exchanges::RankExchange;
use kernel_model::host_costs::HostCosts;

/// Lowest and highest factor on messages between hosts, because networks differ.
const INTERVAL: (f64, f64) = (0.5, 2.0);

/// The ranks of an exchange, their samples, and the topology that connects them.
#[derive(Clone, Debug)]
pub struct Peers {
    topology: Topology,
    /// Costs of a CPU, whose link replaces those of devices within a host.
    host: Option<HostCosts>,
    samples: Vec<usize>,
    /// Number of samples on each host.
    of_host: Vec<usize>,
    batch: usize,
}

/// Bytes that a rank moves within its host and between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moved {
    pub within: f64,
    pub between: f64,
}

impl Moved {
    /// Returns the larger of both numbers of bytes, on each kind of link.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { within: self.within.max(other.within), between: self.between.max(other.between) }
    }
}

impl Peers {
    /// Creates peers from the number of samples of each rank. Consecutive ranks share a host.
    pub fn new(topology: &Topology, host: Option<&HostCosts>, samples: Vec<usize>) -> Self {
        let per_host = topology.ranks_per_host.max(1) as usize;
        let of_host = samples.chunks(per_host).map(|host| host.iter().sum()).collect();
        let batch = samples.iter().sum();
        Self { topology: topology.clone(), host: host.cloned(), samples, of_host, batch }
    }

    /// Returns the number of ranks that take part.
    pub fn ranks(&self) -> usize {
        self.samples.len()
    }

    /// Returns the host of a rank.
    pub fn host(&self, rank: usize) -> usize {
        rank / self.per_host()
    }

    fn per_host(&self) -> usize {
        self.topology.ranks_per_host.max(1) as usize
    }

    /// Returns the number of ranks that exchange messages within a host.
    fn ranks_here(&self) -> usize {
        self.samples.len().min(self.per_host())
    }

    /// Returns the time for which a message travels without keeping the link busy. Collectives of
    /// GPUs follow each other on a stream, and keep it busy all the time.
    pub fn latency(&self) -> Estimate {
        match &self.host {
            Some(host) if self.samples.len() > 1 => host.latency(),
            _ => Estimate::default(),
        }
    }

    /// Predicts an exchange of `bytes` per rank within a host.
    fn within(&self, exchange: RankExchange, bytes: f64) -> Estimate {
        if let Some(host) = &self.host {
            return host.price_exchange(exchange, self.ranks_here(), bytes);
        }
        let Topology { device, within, .. } = &self.topology;
        exchange.price_within_host(self.ranks_here(), bytes, device, within)
    }

    /// Predicts a message of `bytes` per rank between hosts.
    fn between(&self, bytes: f64) -> Estimate {
        if self.of_host.len() < 2 || bytes <= 0.0 {
            return Estimate::default();
        }
        Estimate::within(self.topology.between.ns(bytes), INTERVAL)
    }

    /// Predicts an all-to-all. Each rank sends every other rank its bytes per sample for that
    /// rank's samples. Messages within hosts and between hosts use different links.
    pub fn to_samples(&self, bytes: impl Fn(usize) -> f64) -> Estimate {
        if self.samples.len() < 2 {
            return Estimate::default();
        }
        let all: f64 = (0..self.samples.len()).map(&bytes).sum();
        let mut most = Moved::default();
        for (host, host_samples) in self.of_host.iter().enumerate() {
            let first = host * self.per_host();
            let ranks = first..(first + self.per_host()).min(self.samples.len());
            let here: f64 = ranks.clone().map(&bytes).sum();
            for rank in ranks {
                let (own, samples) = (bytes(rank), self.samples[rank] as f64);
                let host_samples = *host_samples as f64;
                let sent = Moved {
                    within: own * (host_samples - samples),
                    between: own * (self.batch as f64 - host_samples),
                };
                let received =
                    Moved { within: (here - own) * samples, between: (all - here) * samples };
                most = most.max(sent).max(received);
            }
        }
        self.between_pairs(most)
    }

    /// Predicts messages between pairs of ranks. `most` are the bytes of the rank that moves most.
    pub fn between_pairs(&self, most: Moved) -> Estimate {
        // A collective counts the bytes that a rank keeps, too.
        let here = self.ranks_here() as f64;
        let bytes = most.within * here / (here - 1.0).max(1.0);
        self.within(RankExchange::AllToAll, bytes).max(self.between(most.between))
    }

    /// Predicts the exchange over two levels of values that a host adds up: a reduce-scatter within
    /// hosts, then messages between hosts of sums alone. `bytes` returns those per sample of a
    /// rank. Gradients take the same way back, with an all-gather within hosts.
    pub fn reduced_by_host(&self, bytes: impl Fn(usize) -> f64, within: RankExchange) -> Estimate {
        let most = (0..self.samples.len()).map(bytes).fold(0.0, f64::max);
        let per_host = self.of_host.iter().copied().min().unwrap_or(0);
        let others = (self.batch - per_host.min(self.batch)) as f64 / self.ranks_here() as f64;
        self.within(within, most * self.batch as f64).plus(self.between(most * others))
    }

    /// Predicts an all-reduce. With several hosts, the values of a host are summed first and each
    /// rank sums its part over hosts.
    pub fn sum(&self, bytes: f64) -> Estimate {
        let ranks = self.samples.len();
        if ranks < 2 {
            return Estimate::default();
        }
        let hosts = self.host(ranks - 1) + 1;
        if hosts < 2 {
            return self.within(RankExchange::AllReduce, bytes);
        }
        let (here, hosts) = (self.ranks_here() as f64, hosts as f64);
        let between = bytes / here * 2.0 * (hosts - 1.0) / hosts;
        self.within(RankExchange::ReduceScatter, bytes)
            .plus(self.between(between))
            .plus(self.within(RankExchange::AllGather, bytes))
    }
}
