//! Tests exchanges over two levels against plain loops and against an all-to-all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm::{
    Communicator, Counted, ElementType, Error, HostCommunicators, HostTraffic, InProcess, Verb,
    world,
};
use schema::random::CounterRng;
use schema::{HostLayout, Rank};

use crate::hosts::slow_between_hosts;
use crate::on_ranks;

/// Hosts of the ranks: the sizes of jobs, hosts that take turns, and a mixed order.
fn layouts() -> Vec<HostLayout> {
    let of_sizes = [(1, 1), (3, 3), (3, 1), (4, 2), (8, 4), (8, 2)];
    let mut layouts: Vec<HostLayout> = of_sizes
        .map(|(ranks, per_host)| HostLayout::with_ranks_per_host(ranks, per_host).unwrap())
        .into();
    layouts.push(HostLayout::from_hosts(&[0, 1, 0, 1]));
    layouts.push(HostLayout::from_hosts(&[0, 1, 1, 2, 2, 0]));
    layouts
}

/// A random problem that is the same on every rank: the samples of ranks, the columns of hosts, and
/// the values that ranks send. Some ranks have no samples, and some hosts no columns.
struct Problem<'a> {
    rng: CounterRng,
    layout: &'a HostLayout,
}

impl Problem<'_> {
    fn samples(&self, rank: usize) -> usize {
        self.rng.child(1).below(rank as u64, 5) as usize
    }

    fn columns(&self, host: usize) -> usize {
        [0, 1, 7, 300][self.rng.child(2).below(host as u64, 4) as usize]
    }

    /// Values from rank `from` about the samples of one rank and the columns of one host.
    fn values(&self, from: usize, samples_of: usize, host: usize) -> Vec<f32> {
        let rng = self.rng.child(3).child((100 * from + samples_of) as u64);
        let len = self.samples(samples_of) * self.columns(host);
        let value = |i| rng.below(i, 10_007) as f32 * 1e-3 - 5.0 + 1e3 * rng.below(i, 3) as f32;
        (0..len as u64).map(value).collect()
    }

    /// Returns the pooled vectors that rank `from` sends, which are its partial sums for the
    /// samples of each rank.
    fn partial_sums(&self, from: usize) -> Vec<Vec<f32>> {
        let host = self.layout.hosts()[from];
        (0..self.layout.world_size()).map(|to| self.values(from, to, host)).collect()
    }

    /// Returns the gradients that rank `from` sends. Each host gets the gradients of the columns
    /// that it holds, for the samples of `from`.
    fn gradients(&self, from: usize) -> Vec<Vec<f32>> {
        (0..self.layout.host_count()).map(|host| self.values(from, from, host)).collect()
    }

    /// Returns the sums that rank `to` should receive, which a plain loop adds in rank order.
    fn sums(&self, to: usize) -> Vec<Vec<f32>> {
        let sum = |host: usize| {
            let ranks = self.layout.ranks_of(host).iter().map(|rank| rank.index());
            let parts: Vec<_> = ranks.map(|from| self.values(from, to, host)).collect();
            (0..parts[0].len())
                .map(|i| parts[1..].iter().fold(parts[0][i], |sum, part| sum + part[i]))
                .collect()
        };
        (0..self.layout.host_count()).map(sum).collect()
    }

    /// The gradients that the ranks of `host` receive.
    fn received_gradients(&self, host: usize) -> Vec<Vec<f32>> {
        (0..self.layout.world_size()).map(|from| self.values(from, from, host)).collect()
    }
}

fn assert_same(got: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
    let bits = |parts: &[Vec<f32>]| -> Vec<Vec<u32>> {
        parts.iter().map(|part| part.iter().map(|value| value.to_bits()).collect()).collect()
    };
    assert!(bits(got) == bits(expected), "{what}");
}

/// Sends all partial sums by an all-to-all, and adds those of each host in rank order.
fn reduce_flat(
    end: &mut Communicator,
    mut parts: Vec<Vec<f32>>,
    layout: &HostLayout,
) -> Vec<Vec<f32>> {
    end.all_to_all(&mut parts).unwrap();
    let sum = |host| {
        let mut ranks = layout.ranks_of(host).iter().map(|rank| &parts[rank.index()]);
        let mut sum = ranks.next().unwrap().clone();
        for part in ranks {
            sum.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
        }
        sum
    };
    (0..layout.host_count()).map(sum).collect()
}

/// Checks exchanges over two levels on one rank, for random problems drawn from `seeds`.
pub fn check(end: &mut Communicator, layout: &HostLayout, seeds: std::ops::Range<u64>) {
    let mut hosts = HostCommunicators::split(end, layout).unwrap();
    let rank = end.rank().index();
    let own_host = layout.hosts()[rank];
    for seed in seeds {
        let problem = Problem { rng: CounterRng::new(45, seed), layout };
        let what = format!("seed {seed}, hosts {:?}", layout.hosts());
        let mut sums = problem.partial_sums(rank);
        hosts.reduce_by_host(&mut sums).unwrap();
        assert_same(&sums, &problem.sums(rank), &what);
        let flat = reduce_flat(end, problem.partial_sums(rank), layout);
        assert_same(&sums, &flat, &what);
        let mut gradients = problem.gradients(rank);
        hosts.gather_by_host(&mut gradients).unwrap();
        assert_same(&gradients, &problem.received_gradients(own_host), &what);
    }
}

#[test]
fn two_levels_give_the_bytes_of_plain_loops_and_of_an_all_to_all() {
    for layout in &layouts() {
        on_ranks(world(layout.world_size() as u32), |end| {
            end.set_timeout(Some(Duration::from_secs(60)));
            check(end, layout, 0..40);
        });
    }
}

#[test]
fn several_exchanges_of_two_levels_are_under_way_together() {
    let layout = &HostLayout::with_ranks_per_host(4, 2).unwrap();
    on_ranks(world(4), |end| {
        let mut forward = HostCommunicators::split(end, layout).unwrap();
        let mut backward = forward.duplicate();
        let rank = end.rank().index();
        let problems = [0, 1, 2].map(|seed| Problem { rng: CounterRng::new(46, seed), layout });
        let started = problems.each_ref().map(|problem| {
            let sums = forward.start_reduce_by_host(problem.partial_sums(rank)).unwrap();
            let gradients = backward.start_gather_by_host(problem.gradients(rank)).unwrap();
            (sums, gradients)
        });
        end.barrier().unwrap();
        for (problem, (sums, gradients)) in problems.iter().zip(started) {
            let expected = problem.received_gradients(layout.hosts()[rank]);
            assert_same(&gradients.wait(&mut backward).unwrap(), &expected, "gradients");
            let expected = problem.sums(rank);
            assert_same(&sums.wait(&mut forward).unwrap(), &expected, "sums");
        }
    });
}

#[test]
fn ranks_of_a_host_that_disagree_about_a_length_are_named() {
    let layout = &HostLayout::with_ranks_per_host(4, 2).unwrap();
    let results = on_ranks(world(4), |end| {
        end.set_timeout(Some(Duration::from_secs(20)));
        let mut hosts = HostCommunicators::split(end, layout).unwrap();
        let mut parts = vec![vec![1f32; 5]; 4];
        if end.rank() == Rank(3) {
            // The number of values for rank 2 is right, but not how they are distributed.
            (parts[0], parts[2]) = (vec![1.0; 4], vec![1.0; 6]);
        }
        hosts.reduce_by_host(&mut parts).err()
    });
    let error = Error::Length { verb: "reduce_scatter", rank: 3, expected: 5, got: 4 };
    assert_eq!(results[2], Some(error));
    assert!(matches!(results[0], Some(Error::PeerLeft { rank: 2, .. })), "{:?}", results[0]);
}

#[test]
fn a_rank_that_leaves_ends_the_exchange_of_all_hosts() {
    let layout = &HostLayout::with_ranks_per_host(4, 2).unwrap();
    let results = on_ranks(world(4), |end| {
        end.set_timeout(Some(Duration::from_secs(20)));
        let mut hosts = HostCommunicators::split(end, layout).unwrap();
        if end.rank() == Rank(3) {
            return None;
        }
        Some(hosts.gather_by_host(&mut vec![vec![1f32; 9]; 2]))
    });
    // Rank 0 waits for rank 2, which ends because rank 3 has left.
    for (rank, left) in [(0, [1, 2]), (1, [0, 3]), (2, [0, 3])] {
        let Some(Err(Error::PeerLeft { rank: peer, .. })) = results[rank] else {
            panic!("rank {rank}: {:?}", results[rank]);
        };
        assert!(left.contains(&peer), "rank {rank}: {peer}");
    }
}

/// Payload bytes per rank and time of one forward and one backward exchange.
struct Measured {
    traffic: HostTraffic,
    time: Duration,
}

/// Measures an exchange on 2 × 2 ranks over a transport that is ten times slower between hosts.
fn measure(exchange: impl Fn(&mut Communicator, &mut HostCommunicators) + Sync) -> Measured {
    let layout = &HostLayout::with_ranks_per_host(4, 2).unwrap();
    let ranks: Vec<_> =
        InProcess::ends(4).into_iter().map(|end| slow_between_hosts(end, layout)).collect();
    let (ends, counters): (Vec<Communicator>, Vec<Arc<Counted>>) = ranks.into_iter().unzip();
    let times = on_ranks(ends, |end| {
        let mut hosts = HostCommunicators::split(end, layout).unwrap();
        let time = |_| {
            end.barrier().unwrap();
            let began = Instant::now();
            exchange(end, &mut hosts);
            end.barrier().unwrap();
            began.elapsed()
        };
        (0..REPEATS).map(time).min().unwrap()
    });
    let is_vectors = |verb, element| verb != Verb::Barrier && element == ElementType::F32;
    let traffic = counters[0].traffic(is_vectors);
    Measured { traffic, time: times.into_iter().max().unwrap() }
}

const REPEATS: u64 = 5;

/// Table-row-wise plans send at most 0.3 of the bytes between hosts that row-wise plans send.
#[test]
fn issue_45_two_levels_send_a_quarter_of_the_bytes_between_hosts() {
    // Each host has 64 columns, and each rank has 256 samples.
    const COLUMNS: usize = 64;
    const SAMPLES: usize = 256;
    let flat = measure(|end, _| {
        // The rows of all 128 columns are split over all ranks.
        for _ in ["forward", "backward"] {
            end.all_to_all(&mut vec![vec![1f32; SAMPLES * 2 * COLUMNS]; 4]).unwrap();
        }
    });
    let two_levels = measure(|_, hosts| {
        hosts.reduce_by_host(&mut vec![vec![1f32; SAMPLES * COLUMNS]; 4]).unwrap();
        hosts.gather_by_host(&mut vec![vec![1f32; SAMPLES * COLUMNS]; 2]).unwrap();
    });
    let b = (SAMPLES * COLUMNS * size_of::<f32>()) as u64;
    // The formulas of `HostCommunicators::reduce_by_host` for H = L = 2, in both directions.
    let bytes = |measured: &Measured| {
        let HostTraffic { within, between } = measured.traffic;
        (within.bytes / REPEATS, between.bytes / REPEATS)
    };
    assert_eq!(bytes(&flat), (2 * 2 * b, 2 * 4 * b));
    assert_eq!(bytes(&two_levels), (2 * 2 * b, 2 * b));
    let share = two_levels.traffic.between.bytes as f64 / flat.traffic.between.bytes as f64;
    assert!(share <= 0.3, "{share}");
    assert!(two_levels.time < flat.time, "{:?}, flat {:?}", two_levels.time, flat.time);
}
