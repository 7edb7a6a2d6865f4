//! A mutation fuzzer for parsers of untrusted input, which the tests of `fleet` and `agent` share.
//! Accepted inputs are kept and mutated again, so that later inputs reach deeper code.

use std::time::{Duration, Instant};

/// Number of inputs per parser, unless a duration is given.
const INPUTS: u64 = 20_000;
/// Maximum number of accepted inputs that are kept for further mutation.
const POOL: usize = 2_000;
/// Maximum length of an input in bytes.
const LENGTH: usize = 64 << 10;
/// Values at which the handling of lengths and numbers often fails.
const EDGES: [u64; 9] = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF_FFFF, 0x8000_0000, u64::MAX / 2, u64::MAX];

/// Runs `accepts` on mutations of `corpus` in search of panics: on 20,000 of them, or for
/// `ROWMILL_FUZZ_S` seconds. `accepts` returns whether the parser accepted the input.
pub fn fuzz_parser(name: &str, corpus: &[&[u8]], accepts: impl Fn(&[u8]) -> bool) {
    let seconds = std::env::var("ROWMILL_FUZZ_S").ok().and_then(|text| text.parse().ok());
    let limit = seconds.map(Duration::from_secs);
    let mut pool: Vec<Vec<u8>> = corpus.iter().map(|bytes| bytes.to_vec()).collect();
    for bytes in &pool {
        assert!(accepts(bytes), "{name}: an input of the corpus is refused");
    }
    // The seed is fixed, so that the inputs of a failure can be generated again.
    let mut random = Xorshift(0x9E37_79B9_7F4A_7C15);
    let (began, mut made, mut accepted) = (Instant::now(), 0_u64, 0_u64);
    loop {
        let is_over = match limit {
            // Reading the clock for every input would slow down the fuzzer.
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
                // The inputs of the corpus stay in the pool, because repeated mutations lose their
                // structure.
                let at = corpus.len() + random.below(POOL - corpus.len());
                pool[at] = input;
            }
        }
    }
    println!("{name}: {made} inputs, {accepted} accepted, {:.1} s", began.elapsed().as_secs_f64());
}

/// A xorshift generator. This generator is separate from `testkit::Random`, so that changes there
/// do not change the inputs of the fuzzer.
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
