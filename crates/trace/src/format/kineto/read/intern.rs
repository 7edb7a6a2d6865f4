//! Interns byte strings in the parser's hot loop, and numbers them in order of first appearance.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map with a hash function that is fast on short keys. The order of the entries is arbitrary, so
/// the map is never iterated.
pub type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<Fold>>;

/// A hash function that folds sixteen bytes at a time by multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fold(u64);

const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND: u64 = 0xd6e8_feb8_6659_fd93;

#[inline(always)]
fn mix(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    product as u64 ^ (product >> 64) as u64
}

impl Hasher for Fold {
    #[inline(always)]
    fn write(&mut self, bytes: &[u8]) {
        let (chunks, rest) = bytes.as_chunks::<16>();
        let mut state = self.0;
        for chunk in chunks {
            let both = u128::from_le_bytes(*chunk);
            state = mix(both as u64 ^ FIRST ^ state, (both >> 64) as u64 ^ SECOND);
        }
        let mut last = [0; 16];
        last[..rest.len()].copy_from_slice(rest);
        let both = u128::from_le_bytes(last);
        self.0 = mix(both as u64 ^ FIRST ^ state, (both >> 64) as u64 ^ SECOND ^ rest.len() as u64);
    }

    #[inline(always)]
    fn write_u64(&mut self, value: u64) {
        self.0 = mix(self.0 ^ value ^ FIRST, SECOND);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn write_i64(&mut self, value: i64) {
        self.write_u64(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Numbers keys in order of first appearance, and tracks which part of the text uses which number.
#[derive(Debug)]
pub struct Numbers<K> {
    index: FastMap<K, u32>,
    /// The last part that used each number.
    used: Vec<u32>,
}

/// The number of a part of the text that uses keys. Parts are numbered consecutively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User(pub u32);

/// The number of a key, and whether this part of the text uses the key for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InternedNumber {
    Again(u32),
    First(u32),
    New(u32),
}

impl<K: std::hash::Hash + Eq> Numbers<K> {
    /// Creates a table without any keys.
    pub fn new() -> Self {
        Self { index: FastMap::default(), used: Vec::new() }
    }

    /// Looks up the number of a key, and notes that the part uses it.
    #[inline(always)]
    pub fn find<Q>(&mut self, key: &Q, user: User) -> Option<InternedNumber>
    where
        K: std::borrow::Borrow<Q>,
        Q: std::hash::Hash + Eq + ?Sized,
    {
        self.index.get(key).copied().map(|number| self.touch(number, user))
    }

    /// Notes that the part uses a known number.
    #[inline(always)]
    pub fn touch(&mut self, number: u32, user: User) -> InternedNumber {
        let used = &mut self.used[number as usize];
        if *used == user.0 {
            return InternedNumber::Again(number);
        }
        *used = user.0;
        InternedNumber::First(number)
    }

    /// Assigns the next number to a new key.
    pub fn add(&mut self, key: K, user: User) -> InternedNumber {
        let number = self.used.len() as u32;
        self.index.insert(key, number);
        self.used.push(user.0);
        InternedNumber::New(number)
    }
}
