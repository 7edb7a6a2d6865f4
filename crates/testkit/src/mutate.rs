//! A mutation fuzzer for parsers of untrusted input, shared by the tests of `fleet` and `agent`.
//! Accepted inputs are kept and mutated further, so that later inputs reach deeper code.

use std::time::{Duration, Instant};

/// Default number of inputs per target.
const INPUTS: u64 = 20_000;
/// Limit of the accepted inputs that are kept.
const POOL: usize = 2_000;
/// Limit of an input's length in bytes.
const LENGTH: usize = 64 << 10;
/// Values at which lengths and numbers often fail.
const EDGES: [u64; 9] = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF_FFFF, 0x8000_0000, u64::MAX / 2, u64::MAX];

/// Runs `accepts` on mutations of `corpus`: 20,000, or for `ROWMILL_FUZZ_S` seconds. `accepts`
/// returns whether the input was accepted. The goal is to find panics.
pub fn fuzz_parser(name: &str, corpus: &[&[u8]], accepts: impl Fn(&[u8]) -> bool) {
    let seconds = std::env::var("ROWMILL_FUZZ_S").ok().and_then(|text| text.parse().ok());
    let limit = seconds.map(Duration::from_secs);
    let mut pool: Vec<Vec<u8>> = corpus.iter().map(|bytes| bytes.to_vec()).collect();
    for bytes in &pool {
        assert!(accepts(bytes), "{name}: an input of the corpus is refused");
    }
    let mut random = Xorshift(0x9E37_79B9_7F4A_7C15);
    let (began, mut made, mut accepted) = (Instant::now(), 0_u64, 0_u64);
    loop {
        let is_over = match limit {
            Some(limit) => made.is_multiple_of(1_024) && began.elapsed() >= limit,
            None => made == INPUTS,
        };
        if is_over {
            break;
        }
        let mut input = pool[random.below(pool.len())].clone();
        for _ in 0..=random.below(4) {
            let other = &pool[random.below(pool.len())];
            mutate(&mut input, other, &mut random);
        }
        input.truncate(LENGTH);
        made += 1;
        if accepts(&input) {
            accepted += 1;
            if pool.len() < POOL {
                pool.push(input);
            } else {
                let at = corpus.len() + random.below(POOL - corpus.len());
                pool[at] = input;
            }
        }
    }
    println!("{name}: {made} inputs, {accepted} accepted, {:.1} s", began.elapsed().as_secs_f64());
}

/// A xorshift generator. It differs from `testkit::Random` so that the inputs of the fuzzer stay as
/// they are.
struct Xorshift(u64);

impl Xorshift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() >> 1).unwrap_or(0) % bound.max(1)
    }
}

fn mutate(input: &mut Vec<u8>, other: &[u8], random: &mut Xorshift) {
    let at = random.below(input.len() + 1);
    let length = random.below(16) + 1;
    let end = (at + length).min(input.len());
    match random.below(7) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 if at < input.len() => input[at] = random.next().to_le_bytes()[0],
        2 => drop(input.drain(at..end)),
        3 => {
            let part = input[at..end].to_vec();
            drop(input.splice(at..at, part));
        }
        4 => {
            let from = random.below(other.len() + 1);
            let part = other[from..(from + 4 * length).min(other.len())].to_vec();
            drop(input.splice(at..end, part));
        }
        5 => {
            let edge = EDGES[random.below(EDGES.len())];
            let bytes = edge.to_le_bytes();
            let width = [1, 2, 4, 8][random.below(4)];
            drop(input.splice(at..(at + width).min(input.len()), bytes[..width].to_vec()));
        }
        _ => {
            let edge = EDGES[random.below(EDGES.len())];
            drop(input.splice(at..at, edge.to_string().into_bytes()));
        }
    }
}
