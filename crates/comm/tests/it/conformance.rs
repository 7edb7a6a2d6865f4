//! Checks the collectives of any transport against plain loops.
//!
//! Random sequences of collectives run on all ranks. Every rank draws the same sequence, so it can
//! compute the values of all others.

use std::fmt::Debug;
use std::time::Duration;

use comm::{CommElement, Communicator, StartedCollective, VectorParts};
use half::{bf16, f16};
use schema::Rank;
use schema::random::CounterRng;

/// Time limit, so that a hanging collective fails the test.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the sequences drawn from `seeds` on one rank.
pub fn check(end: &mut Communicator, seeds: std::ops::Range<u64>) {
    end.set_timeout(Some(TIMEOUT));
    for seed in seeds {
        let draw = &Draw::new(seed);
        end.set_step(seed);
        if draw.below(0, 4) == 0 {
            // Split the ranks into two groups. Each group numbers its ranks from 0.
            let group = (end.rank().0 + seed as u32) % 2;
            let mut half = end.split(group).unwrap();
            sequence(&mut half, draw);
        } else {
            sequence(end, draw);
        }
    }
    end.barrier().unwrap();
}

fn sequence(end: &mut Communicator, draw: &Draw) {
    for operation in 0..1 + draw.below(1, 6) {
        let draw = &draw.child(operation);
        match draw.below(0, 6) {
            0 => verb::<f32>(end, draw),
            1 => verb::<f16>(end, draw),
            2 => verb::<bf16>(end, draw),
            3 => verb::<i32>(end, draw),
            4 => verb::<i64>(end, draw),
            _ => verb::<u8>(end, draw),
        }
    }
}

fn verb<T: TestValue>(end: &mut Communicator, draw: &Draw) {
    match draw.below(1, 7) {
        0 => all_to_all::<T>(end, draw),
        1 => all_gather::<T>(end, draw),
        2 => reduce_scatter::<T>(end, draw),
        3 => all_reduce::<T>(end, draw),
        4 => broadcast::<T>(end, draw),
        5 => end.barrier().unwrap(),
        _ => several::<T>(end, draw),
    }
}

fn all_to_all<T: TestValue>(end: &mut Communicator, draw: &Draw) {
    let (me, size) = (end.rank().index(), end.world_size());
    let part = |from, to| draw.values::<T>((from, to), draw.len((from, to)));
    let mut parts: Vec<Vec<T>> = (0..size).map(|peer| part(me, peer)).collect();
    if draw.is_started() {
        parts = end.start_all_to_all(parts).unwrap().wait(end).unwrap();
    } else {
        end.all_to_all(&mut parts).unwrap();
    }
    let expected: Vec<_> = (0..size).map(|peer| part(peer, me)).collect();
    assert_same(&parts, &expected, "all_to_all");
}

fn all_gather<T: TestValue>(end: &mut Communicator, draw: &Draw) {
    let mine = |rank| draw.values::<T>((rank, 0), draw.len((rank, 0)));
    let own = mine(end.rank().index());
    let gathered = if draw.is_started() {
        end.start_all_gather(own).unwrap().wait(end).unwrap()
    } else {
        end.all_gather(&own).unwrap()
    };
    let expected: Vec<_> = (0..end.world_size()).map(mine).collect();
    assert_same(&gathered, &expected, "all_gather");
}

fn reduce_scatter<T: TestValue>(end: &mut Communicator, draw: &Draw) {
    let (me, size) = (end.rank().index(), end.world_size());
    let part = |from, to| draw.values::<T>((from, to), draw.len((0, to)));
    let mut parts: Vec<Vec<T>> = (0..size).map(|peer| part(me, peer)).collect();
    let sum = if draw.is_started() {
        end.start_reduce_scatter(parts).unwrap().wait(end).unwrap()
    } else {
        end.reduce_scatter(&mut parts).unwrap()
    };
    let expected = summed((0..size).map(|peer| part(peer, me)));
    assert_same(&[sum], &[expected], "reduce_scatter");
}

/// Checks that an all-reduce returns the bytes of a sum in rank order, on every rank.
fn all_reduce<T: TestValue>(end: &mut Communicator, draw: &Draw) {
    let values = |rank| draw.values::<T>((rank, 0), draw.len((0, 0)));
    let mut own = values(end.rank().index());
    match draw.below(4, 3) {
        0 => end.all_reduce(&mut own).unwrap(),
        1 => own = end.start_all_reduce(own).unwrap().wait(end).unwrap(),
        _ => {
            let mut parts = VectorParts::default();
            parts.reset(end, own.len());
            // Write the values in two pieces, to test a write that spans parts.
            let cut = own.len() * 2 / 5;
            parts.write(cut, &own[cut..]);
            parts.write(0, &own[..cut]);
            let parts = end.start_sum(parts).unwrap().wait(end).unwrap();
            parts.read(cut, &mut own[cut..]);
            parts.read(0, &mut own[..cut]);
        }
    }
    assert_same(&[own], &[summed((0..end.world_size()).map(values))], "all_reduce");
}

fn broadcast<T: TestValue>(end: &mut Communicator, draw: &Draw) {
    let root = Rank(draw.below(2, end.world_size() as u64) as u32);
    let values = |rank| draw.values::<T>((rank, 0), draw.len((rank, 0)));
    let mut own = values(end.rank().index());
    if draw.is_started() {
        own = end.start_broadcast(root, own).unwrap().wait(end).unwrap();
    } else {
        end.broadcast(root, &mut own).unwrap();
    }
    assert_same(&[own], &[values(root.index())], "broadcast");
}

/// Checks that several all-reduces can be in flight at once. The all-reduces are waited for in the
/// order of their start.
fn several<T: TestValue>(end: &mut Communicator, draw: &Draw) {
    let values = |rank: usize, i: u64| {
        let draw = draw.child(10 + i);
        draw.values::<T>((rank, 0), draw.len((0, 0)))
    };
    let me = end.rank().index();
    let started: Vec<StartedCollective<Vec<T>>> =
        (0..3).map(|i| end.start_all_reduce(values(me, i)).unwrap()).collect();
    for (i, pending) in (0..).zip(started) {
        let got = pending.wait(end).unwrap();
        let expected = summed((0..end.world_size()).map(|rank| values(rank, i)));
        assert_same(&[got], &[expected], "several all_reduces");
    }
}

fn summed<T: TestValue>(mut parts: impl Iterator<Item = Vec<T>>) -> Vec<T> {
    let mut sum = parts.next().unwrap();
    for part in parts {
        for (sum, part) in sum.iter_mut().zip(part) {
            *sum = T::sum(*sum, part);
        }
    }
    sum
}

fn assert_same<T: TestValue>(got: &[Vec<T>], expected: &[Vec<T>], what: &str) {
    let lengths = |parts: &[Vec<T>]| parts.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lengths(got), lengths(expected), "{what}");
    for (got, expected) in got.iter().zip(expected) {
        let bytes = |values: &[T]| bytemuck::cast_slice::<T, u8>(values).to_vec();
        assert!(bytes(got) == bytes(expected), "{what} of {}", T::TYPE.name());
    }
}

/// Random numbers that are the same on every rank.
struct Draw(CounterRng);

impl Draw {
    fn new(seed: u64) -> Self {
        Self(CounterRng::new(11, seed))
    }

    fn child(&self, which: u64) -> Self {
        Self(self.0.child(100 + which))
    }

    fn below(&self, which: u64, bound: u64) -> u64 {
        self.0.child(1).below(which, bound)
    }

    fn is_started(&self) -> bool {
        self.below(3, 2) == 0
    }

    /// Draws a length that is zero, small or large, and sometimes more than a megabyte.
    fn len(&self, (a, b): (usize, usize)) -> usize {
        let rng = self.0.child(2).child((16 * a + b) as u64);
        match rng.below(0, 64) {
            0..16 => 0,
            16..40 => rng.below(1, 9) as usize,
            40..63 => rng.below(1, 3000) as usize,
            _ => 100_000 + rng.below(1, 200_000) as usize,
        }
    }

    fn values<T: TestValue>(&self, (a, b): (usize, usize), len: usize) -> Vec<T> {
        let rng = self.0.child(3).child((16 * a + b) as u64);
        let start = rng.below(0, 1 << 40);
        (0..len as u64)
            .map(|i| T::from_seed(start.wrapping_add(i.wrapping_mul(0x9e37_79b9))))
            .collect()
    }
}

/// An element type with test values. The sums of floats depend on the order of addition.
trait TestValue: CommElement + Debug {
    fn from_seed(seed: u64) -> Self;
    fn sum(a: Self, b: Self) -> Self;
}

impl TestValue for f32 {
    fn from_seed(seed: u64) -> Self {
        (seed % 10_007) as f32 * 1e-3 + 1e3 * (seed % 3) as f32
    }

    fn sum(a: Self, b: Self) -> Self {
        a + b
    }
}

impl TestValue for f16 {
    fn from_seed(seed: u64) -> Self {
        Self::from_f32((seed % 997) as f32 * 0.1)
    }

    fn sum(a: Self, b: Self) -> Self {
        Self::from_f32(a.to_f32() + b.to_f32())
    }
}

impl TestValue for bf16 {
    fn from_seed(seed: u64) -> Self {
        Self::from_f32((seed % 997) as f32 * 0.1)
    }

    fn sum(a: Self, b: Self) -> Self {
        Self::from_f32(a.to_f32() + b.to_f32())
    }
}

impl TestValue for i32 {
    fn from_seed(seed: u64) -> Self {
        seed as Self
    }

    fn sum(a: Self, b: Self) -> Self {
        a.wrapping_add(b)
    }
}

impl TestValue for i64 {
    fn from_seed(seed: u64) -> Self {
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) as Self
    }

    fn sum(a: Self, b: Self) -> Self {
        a.wrapping_add(b)
    }
}

impl TestValue for u8 {
    fn from_seed(seed: u64) -> Self {
        seed as Self
    }

    fn sum(a: Self, b: Self) -> Self {
        a.wrapping_add(b)
    }
}
