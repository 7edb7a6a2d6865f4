//! Runs the conformance suite on every transport, and tests what happens when ranks are out of step
//! or leave.
#![expect(clippy::unwrap_used, reason = "test code fails by panicking")]

mod by_host;
mod conformance;
mod hosts;
mod launcher;
mod message;
mod mpi;

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm::{
    CommElement, Communicator, Deadline, Delayed, DelayedLink, Error, InProcess, SharedTransport,
    world,
};
use schema::Rank;

/// Runs `body` on every rank and returns the results in rank order.
fn on_ranks<R: Send>(
    ends: Vec<Communicator>,
    body: impl Fn(&mut Communicator) -> R + Sync,
) -> Vec<R> {
    let body = &body;
    std::thread::scope(|scope| {
        let run = |mut end| scope.spawn(move || body(&mut end));
        let ranks: Vec<_> = ends.into_iter().map(run).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn delayed(size: u32, link: DelayedLink) -> Vec<Communicator> {
    let end = |end| Communicator::over(Arc::new(Delayed::new(Arc::new(end), link)));
    InProcess::ends(size).into_iter().map(end).collect()
}

#[test]
fn issue_28_a_thousand_random_sequences_equal_plain_loops() {
    for (size, seeds) in [(1, 0..50), (2, 50..400), (3, 400..700), (4, 700..900), (7, 900..1000)] {
        on_ranks(world(size), |end| conformance::check(end, seeds.clone()));
    }
}

#[test]
fn a_delayed_transport_gives_the_same_results_later() {
    let link = DelayedLink { latency: Duration::from_micros(200), bandwidth: 1e9 };
    on_ranks(delayed(3, link), |end| conformance::check(end, 1000..1010));
    let link = DelayedLink { latency: Duration::from_millis(30), bandwidth: 1e6 };
    let began = Instant::now();
    // Each rank sends half of the 60,000 bytes twice, which takes two transfers of 30 ms and two
    // latencies.
    on_ranks(delayed(2, link), |end| end.all_reduce(&mut vec![0u8; 60_000])).into_iter().for_each(
        |result| {
            result.unwrap();
        },
    );
    assert!(began.elapsed() >= Duration::from_millis(120), "{:?}", began.elapsed());
}

#[test]
fn a_message_is_stamped_when_it_arrives_not_when_it_is_received() {
    let link = DelayedLink { latency: Duration::from_millis(10), bandwidth: 1e9 };
    let late = Duration::from_millis(400);
    on_ranks(delayed(2, link), |end| {
        let began = Instant::now();
        let started = end.start_all_to_all(vec![vec![1u8]; 2]).unwrap();
        std::thread::sleep(late);
        started.wait(end).unwrap();
        let flight = end.take_flight().unwrap();
        let (sent, length) = (flight.sent - began, flight.arrived - flight.sent);
        assert!(sent < late / 2 && length < late / 2, "{sent:?} {length:?}");
        assert!(length >= link.latency / 2, "{length:?}");
        assert_eq!(end.take_flight(), None);
    });
}

#[test]
fn in_process_buffers_are_moved_not_copied() {
    let sent = on_ranks(world(2), |end| {
        let mut parts: Vec<Vec<f32>> = (0..2).map(|_| vec![1.0; 100]).collect();
        let addresses: Vec<usize> = parts.iter().map(|part| part.as_ptr() as usize).collect();
        end.all_to_all(&mut parts).unwrap();
        (addresses, parts.iter().map(|part| part.as_ptr() as usize).collect::<Vec<_>>())
    });
    assert_eq!(sent[0].0[1], sent[1].1[0]);
    assert_eq!(sent[1].0[0], sent[0].1[1]);
}

#[test]
fn a_rank_that_leaves_fails_the_collective_of_its_peers() {
    let results = on_ranks(world(3), |end| {
        if end.rank().0 == 1 {
            // The rank leaves when its communicator is dropped at the end of this closure.
            let own = world(1).remove(0);
            drop(std::mem::replace(end, own));
            return Ok(());
        }
        end.barrier()
    });
    for rank in [0, 2] {
        assert!(matches!(results[rank], Err(Error::PeerLeft { verb: "barrier", rank: 1 })));
    }
}

#[test]
fn a_hanging_rank_times_out_at_the_deadline() {
    let results = on_ranks(world(2), |end| {
        if end.rank().0 == 1 {
            std::thread::sleep(Duration::from_millis(400));
            return Ok(());
        }
        end.set_timeout(Some(Duration::from_millis(50)));
        end.set_step(7);
        let first = end.all_gather(&[1u8]);
        // Every later call must fail with the same error.
        assert_eq!(end.barrier(), first.clone().map(|_| ()));
        first.map(|_| ())
    });
    let text = results[0].as_ref().unwrap_err().to_string();
    assert!(text.contains("rank 0 waited") && text.contains("rank 1"), "{text}");
    assert!(text.contains("all_gather #1 of u8 in step 7"), "{text}");
}

#[test]
fn a_probe_detects_a_message_without_receiving_it() {
    let ends: Vec<SharedTransport> =
        InProcess::ends(2).into_iter().map(|end| Arc::new(end) as SharedTransport).collect();
    let soon = || Deadline::after(Some(Duration::from_millis(20)));
    assert_eq!(ends[1].probe(0, 0, soon()), Ok(false));
    let mut own = Communicator::over(Arc::clone(&ends[0]));
    let started = own.start_barrier().unwrap();
    assert_eq!(ends[1].probe(0, 0, soon()), Ok(true));
    assert_eq!(ends[1].probe(0, 1, soon()), Ok(false));
    let mut peer = Communicator::over(Arc::clone(&ends[1]));
    peer.barrier().unwrap();
    started.wait(&mut own).unwrap();
}

/// Runs `body` on two ranks that disagree, and checks the first error that is not a peer's leaving.
fn disagreement(body: impl Fn(&mut Communicator) -> Result<(), Error> + Sync, expected: [&str; 2]) {
    let results = on_ranks(world(2), |end| {
        end.set_timeout(Some(Duration::from_secs(20)));
        body(end)
    });
    let errors: Vec<&Error> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    let mismatch = errors.iter().find_map(|error| match error {
        Error::Mismatch { here, expected, there, got } if here == &0 => {
            Some((*here, expected, *there, got))
        }
        Error::Mismatch { here, expected, there, got } => Some((*there, got, *here, expected)),
        _ => None,
    });
    let (zero, of_zero, one, of_one) = mismatch.unwrap();
    assert_eq!((zero, one), (0, 1));
    assert!(of_zero.contains(expected[0]) && of_one.contains(expected[1]), "{of_zero}; {of_one}");
    let named = errors.iter().find(|error| matches!(error, Error::Mismatch { .. }));
    let text = named.unwrap().to_string();
    assert!(text.contains("rank 0") && text.contains("rank 1"), "{text}");
}

fn as_rank<T: CommElement>(end: &mut Communicator, values: [&[T]; 2]) -> Result<(), Error> {
    let mut own = values[end.rank().index()].to_vec();
    end.all_reduce(&mut own)
}

#[test]
fn ranks_in_different_collectives_are_named() {
    let barrier_or = |end: &mut Communicator, other: fn(&mut Communicator) -> Result<(), Error>| {
        if end.rank().0 == 0 { end.barrier() } else { other(end) }
    };
    disagreement(
        |end| barrier_or(end, |end| end.all_gather(&[1u8]).map(|_| ())),
        ["barrier #1 of 0 u8", "all_gather #1 of u8"],
    );
    disagreement(
        |end| barrier_or(end, |end| end.broadcast(Rank(0), &mut vec![1u8])),
        ["barrier #1 of 0 u8", "broadcast #1 of u8"],
    );
    // In this case rank 1 skips a collective that rank 0 calls.
    disagreement(
        |end| {
            if end.rank().0 == 0 {
                end.all_reduce(&mut [1f32])?;
            }
            end.barrier()
        },
        ["all_reduce #1 of 1 f32", "barrier #1 of 0 u8"],
    );
}

#[test]
fn a_mismatch_of_type_length_step_or_plan_is_named() {
    disagreement(
        |end| {
            if end.rank().0 == 0 {
                as_rank(end, [&[1f32], &[]])
            } else {
                as_rank(end, [&[], &[1i32]])
            }
        },
        ["1 f32", "1 i32"],
    );
    disagreement(|end| as_rank(end, [&[1f32; 4], &[1f32; 5]]), ["of 4 f32", "of 5 f32"]);
    disagreement(
        |end| {
            end.reduce_scatter(&mut [vec![1i64; 3], vec![1i64; 3 + end.rank().index()]]).map(drop)
        },
        ["of 3 i64", "of 4 i64"],
    );
    disagreement(
        |end| {
            end.set_step(5 + u64::from(end.rank().0));
            end.barrier()
        },
        ["in step 5", "in step 6"],
    );
    disagreement(
        |end| {
            end.set_plan(0xa0 + u64::from(end.rank().0));
            end.barrier()
        },
        ["plan 00000000000000a0", "plan 00000000000000a1"],
    );
}

#[test]
fn streams_do_not_block_each_other() {
    on_ranks(world(2), |end| {
        let mut other = end.duplicate();
        let sum = end.start_all_reduce(vec![1i32; 10]).unwrap();
        // Wait in another order than that in which the collectives were started.
        other.barrier().unwrap();
        assert_eq!(other.all_gather(&[2u8]).unwrap(), [[2], [2]]);
        assert_eq!(sum.wait(end).unwrap(), [2; 10]);
    });
}
