//! What each collective must do, whatever carries it.

use comm::Communicator;
use schema::Rank;

/// Calls all six verbs with uneven and empty messages and compares with what arithmetic says.
pub fn check(run: impl Fn(fn(Communicator) -> ()) -> Vec<()>) {
    for verb in [all_to_all, all_gather, reduce_scatter, all_reduce, broadcast] {
        run(verb);
    }
}

/// Rank r sends `r + peer` copies of `10 r + peer` to each peer: rank 0 sends itself nothing.
fn all_to_all(mut end: Communicator) {
    let (me, size) = (end.rank().index(), end.world_size());
    let outgoing = (0..size).map(|peer| vec![10 * me + peer; me + peer]).collect();
    let received = end.all_to_all(outgoing).unwrap();
    let expected: Vec<_> = (0..size).map(|peer| vec![10 * peer + me; peer + me]).collect();
    assert_eq!(received, expected);
    end.barrier().unwrap();
}

fn all_gather(mut end: Communicator) {
    let me = end.rank().index();
    let gathered = end.all_gather(vec![me as f32; me]).unwrap();
    for (rank, part) in gathered.iter().enumerate() {
        assert_eq!(**part, vec![rank as f32; rank]);
    }
}

fn reduce_scatter(mut end: Communicator) {
    let (me, size) = (end.rank().index(), end.world_size());
    let parts = (0..size).map(|peer| vec![(me + 1) as f64; peer]).collect();
    let sum = end.reduce_scatter(parts).unwrap();
    assert_eq!(sum, vec![(size * (size + 1) / 2) as f64; me]);
}

/// The sum has the bytes of adding in rank order, on every rank.
fn all_reduce(mut end: Communicator) {
    let value = |rank: usize, i: usize| ((rank * 31 + i * 17) % 101) as f32 * 1e-3 + 1e4;
    for length in [0, 1, 5, 1000] {
        let mut values: Vec<f32> = (0..length).map(|i| value(end.rank().index(), i)).collect();
        end.all_reduce(&mut values).unwrap();
        for (i, got) in values.into_iter().enumerate() {
            let mut expected = value(0, i);
            (1..end.world_size()).for_each(|rank| expected += value(rank, i));
            assert_eq!(got.to_bits(), expected.to_bits());
        }
    }
}

fn broadcast(mut end: Communicator) {
    let root = Rank(end.world_size() as u32 - 1);
    let value = (end.rank() == root).then(|| vec![7u8, 8]);
    assert_eq!(end.broadcast(root, value).unwrap(), [7, 8]);
}
