//! The conformance suite of collectives; every transport passes it.
#![expect(clippy::unwrap_used, reason = "test code fails by panicking")]

mod conformance;

use comm::{Communicator, Error, world};

/// Runs `body` on every rank of a fresh in-process world and returns the results in rank order.
fn on_ranks<R: Send>(size: u32, body: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let body = &body;
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            world(size).into_iter().map(|end| scope.spawn(move || body(end))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn the_in_process_transport_conforms() {
    for size in [1, 2, 3, 7] {
        conformance::check(|body| on_ranks(size, body));
    }
}

#[test]
fn a_rank_that_leaves_ends_the_others_collective() {
    let results = on_ranks(3, |mut end| {
        if end.rank().0 == 1 {
            return Ok(());
        }
        end.barrier()
    });
    for rank in [0, 2] {
        // Whichever end is seen first: rank 1's, or a peer's that left because of it.
        assert!(matches!(results[rank], Err(Error::PeerLeft { verb: "barrier", .. })));
    }
}

#[test]
fn ranks_out_of_step_are_noticed() {
    let results = on_ranks(2, |mut end| match end.rank().0 {
        0 => end.barrier(),
        _ => end.all_gather(vec![1u8]).map(|_| ()),
    });
    assert!(matches!(&results[0], Err(Error::Mismatch { got, .. }) if got == "all_gather #1"));
}
