//! Predicts collectives on a topology. Each collective takes as long as on its busiest rank, on the
//! links within a host and between hosts.

use schema::Topology;

use kernel_model::Estimate;
use kernel_model::rank_load::RankLoad;

/// Lowest and highest factor on message times, because links may differ between machines.
const INTERVAL: (f64, f64) = (0.5, 2.0);

/// The ranks of a collective, their samples, and the topology that connects them.
#[derive(Clone, Debug)]
pub struct Peers {
    topology: Topology,
    samples: Vec<usize>,
    /// Number of samples on each host.
    of_host: Vec<usize>,
    batch: usize,
}

/// Bytes that a rank moves within its host and between hosts.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    within: f64,
    between: f64,
}

impl Peers {
    /// Creates peers from the number of samples of each rank. Consecutive ranks share a host.
    pub fn new(topology: &Topology, samples: Vec<usize>) -> Self {
        let per_host = topology.ranks_per_host.max(1) as usize;
        let of_host = samples.chunks(per_host).map(|host| host.iter().sum()).collect();
        let batch = samples.iter().sum();
        Self { topology: topology.clone(), samples, of_host, batch }
    }

    fn host(&self, rank: usize) -> usize {
        rank / self.topology.ranks_per_host.max(1) as usize
    }

    /// Predicts an all-to-all. Each rank sends every other rank its bytes per sample for that
    /// rank's samples.
    pub fn to_samples(&self, loads: &[RankLoad], bytes: impl Fn(&RankLoad) -> f64) -> Estimate {
        if self.samples.len() < 2 {
            return Estimate::default();
        }
        let all: f64 = loads.iter().map(&bytes).sum();
        let per_host = self.topology.ranks_per_host.max(1) as usize;
        let mut most = Moved::default();
        for (host, of_host) in loads.chunks(per_host).enumerate() {
            let here: f64 = of_host.iter().map(&bytes).sum();
            for (at, load) in of_host.iter().enumerate() {
                let samples = self.samples[host * per_host + at] as f64;
                let own = bytes(load);
                let host_samples = self.of_host[host] as f64;
                let sent = own * (host_samples - samples);
                let got = (here - own) * samples;
                most.within = most.within.max(sent.max(got));
                let sent = own * (self.batch as f64 - host_samples);
                let got = (all - here) * samples;
                most.between = most.between.max(sent.max(got));
            }
        }
        self.time(most)
    }

    /// Predicts an all-reduce that sums within each host first and then between hosts.
    pub fn sum(&self, bytes: f64) -> Estimate {
        let ranks = self.samples.len();
        if ranks < 2 {
            return Estimate::default();
        }
        let hosts = self.host(ranks - 1) + 1;
        let here = ranks.min(self.topology.ranks_per_host.max(1) as usize) as f64;
        let ring = |ranks: f64| 2.0 * (ranks - 1.0) / ranks;
        let within = if here > 1.0 { bytes * ring(here) } else { 0.0 };
        let between = if hosts > 1 { bytes / here * ring(hosts as f64) } else { 0.0 };
        let mut ns = 0.0;
        if within > 0.0 {
            ns += self.topology.within.ns(within);
        }
        if between > 0.0 {
            ns += self.topology.between.ns(between);
        }
        Estimate::within(ns, INTERVAL)
    }

    fn time(&self, moved: Moved) -> Estimate {
        let is_one_host = self.of_host.len() < 2;
        let within = self.topology.within.ns(moved.within);
        let between = if is_one_host { 0.0 } else { self.topology.between.ns(moved.between) };
        Estimate::within(within.max(between), INTERVAL)
    }
}
