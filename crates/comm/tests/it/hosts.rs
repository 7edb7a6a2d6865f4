//! Tests how ranks are grouped by host, and how messages within and between hosts are told apart.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm::{
    Communicator, Counted, Delayed, DelayedLink, ElementType, Error, HostCommunicators, HostLinks,
    HostTraffic, InProcess, LinkTraffic, Verb, world,
};
use schema::{HostLayout, HostLayoutError, Rank};

use crate::on_ranks;

#[test]
fn threads_of_one_process_are_on_one_host() {
    for layout in on_ranks(world(3), |end| end.gather_host_layout().unwrap()) {
        assert_eq!(layout, HostLayout::with_ranks_per_host(3, 3).unwrap());
    }
}

#[test]
fn a_rank_has_a_communicator_within_and_one_between_hosts() {
    for hosts in [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]] {
        let layout = HostLayout::from_hosts(&hosts);
        on_ranks(world(4), |end| {
            let rank = end.rank();
            let mut levels = HostCommunicators::split(end, &layout).unwrap();
            let mut second = levels.duplicate();
            for levels in [&mut levels, &mut second] {
                let within = levels.within().all_gather(&[rank.0 as i32]).unwrap().concat();
                let between = levels.between().all_gather(&[rank.0 as i32]).unwrap().concat();
                let expected = |is_member: &dyn Fn(usize) -> bool| -> Vec<i32> {
                    (0..4).filter(|&r| is_member(r)).map(|r| r as i32).collect()
                };
                let rank_at = |r: usize| Rank(r as u32);
                let (host, place) = (layout.host(rank), layout.place(rank));
                assert_eq!(within, expected(&|r| layout.host(rank_at(r)) == host), "{hosts:?}");
                assert_eq!(between, expected(&|r| layout.place(rank_at(r)) == place), "{hosts:?}");
            }
        });
    }
}

#[test]
fn all_ranks_refuse_layouts_that_do_not_fit() {
    let unequal = HostLayout::from_hosts(&[0, 0, 1]);
    let results = on_ranks(world(3), |end| HostCommunicators::split(end, &unequal).err());
    let error = Error::Hosts(HostLayoutError::Unequal { host: 1, expected: 2, got: 1 });
    assert_eq!(results, vec![Some(error); 3]);

    let results = on_ranks(world(4), |end| {
        let hosts = if end.rank().0 == 2 { [0, 1, 0, 1] } else { [0, 0, 1, 1] };
        HostCommunicators::split(end, &HostLayout::from_hosts(&hosts)).err()
    });
    let (rank, expected, got) = (1, 0, 1);
    let error = Error::HostMismatch { here: 0, there: 2, rank, expected, got };
    assert_eq!(results, vec![Some(error); 4]);
}

/// Creates a rank's communicator over links that are ten times slower between hosts, and returns it
/// with the counter of the messages that the rank sends.
pub fn slow_between_hosts(end: InProcess, layout: &HostLayout) -> (Communicator, Arc<Counted>) {
    let within = DelayedLink { latency: Duration::from_micros(200), bandwidth: 200e6 };
    let between = DelayedLink { latency: Duration::from_millis(2), bandwidth: 20e6 };
    let links = HostLinks { within, between };
    let delayed = Delayed::by_host(Arc::new(end), links, layout);
    let counted = Arc::new(Counted::new(Arc::new(delayed), layout.clone()));
    (Communicator::over(Arc::clone(&counted) as _), counted)
}

#[test]
fn messages_between_hosts_are_slower_and_counted_separately() {
    let layout = HostLayout::with_ranks_per_host(4, 2).unwrap();
    let ranks: Vec<_> =
        InProcess::ends(4).into_iter().map(|end| slow_between_hosts(end, &layout)).collect();
    let (ends, counters): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
    let times = on_ranks(ends, |end| {
        let mut levels = HostCommunicators::split(end, &layout).unwrap();
        [0, 1].map(|level| {
            // Peers send only after they have received this rank's message of the barrier.
            let began = Instant::now();
            end.barrier().unwrap();
            let comm = if level == 0 { levels.within() } else { levels.between() };
            comm.all_to_all(&mut [vec![1u8; 1_000_000], vec![2u8; 1_000_000]]).unwrap();
            began.elapsed()
        })
    });
    // A megabyte takes 5 ms at 200 MB/s, and 50 ms and a latency of 2 ms at 20 MB/s.
    let fastest = |level: usize| times.iter().map(|levels| levels[level]).min().unwrap();
    let (within, between) = (fastest(0), fastest(1));
    assert!(within >= Duration::from_millis(5) && within < between, "{within:?}");
    assert!(between >= Duration::from_millis(52), "{between:?}");
    for counted in counters {
        let sent = LinkTraffic { messages: 1, bytes: 1_000_000 };
        let exchanged = |verb, element| verb == Verb::AllToAll && element == ElementType::U8;
        assert_eq!(counted.traffic(exchanged), HostTraffic { within: sent, between: sent });
        // Each of the two barriers is a message to the host's other rank, and to both of the other
        // host.
        let barriers = counted.traffic(|verb, _| verb == Verb::Barrier);
        assert_eq!((barriers.within.messages, barriers.between.messages), (2, 4));
        let all = counted.traffic(|_, _| true);
        assert!(all.within.bytes > sent.bytes && all.between.bytes > sent.bytes);
    }
}
