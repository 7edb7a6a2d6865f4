//! One set of a cache: its ways, the choice of the row that it evicts, and how often its rows were
//! used. It knows neither other sets nor scratch slots.

use schema::random;

/// Number of ways of a set, which is the associativity of FBGEMM's cache.
pub const WAYS: usize = 32;

/// Marks a way without a row. No table has this row, because its number of rows is 64 bits long.
const NO_ROW: u64 = u64::MAX;

/// Number of counters of a set, which one byte addresses.
const COUNTERS: usize = 256;
/// Number of counters of a row. Its frequency is the least of them (count–min sketch).
const PROBES: usize = 4;
/// Number of uses after which all counters of a set are halved, so that old uses count less
/// (TinyLFU, arXiv:1512.00727).
const USES_BEFORE_HALVING: u32 = 32 * WAYS as u32;
/// Number of bits of a frequency's rank that hold the number of the last batch.
const AGE_BITS: u32 = 32;

/// What a batch did with the rows that it locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowAccess {
    Read,
    /// The values in the slots have changed, so they are written back when they lose their slots.
    Updated,
}

/// A row that lost its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LostRow {
    pub row: u64,
    /// Whether the row has changed since it was loaded.
    pub is_changed: bool,
    /// The rank that the row had. Scratch slots have no ranks.
    pub rank: u64,
}

/// The rows in the ways of a set.
#[derive(Clone, Debug)]
pub(super) struct CacheSet {
    rows: [u64; WAYS],
    /// The unlocked row of the lowest rank is evicted first.
    ranks: [u64; WAYS],
    /// Number of batches in flight that use each way.
    locks: [u8; WAYS],
    /// Bit `way` is set if the row has changed since it was loaded.
    changed: u32,
}

impl CacheSet {
    pub const EMPTY: Self =
        Self { rows: [NO_ROW; WAYS], ranks: [0; WAYS], locks: [0; WAYS], changed: 0 };

    /// Returns the way of a row, if the set has it.
    pub fn find(&self, row: u64) -> Option<usize> {
        // Comparing all ways without branches costs less than an early exit.
        let mask = |mask, (way, &other)| mask | u32::from(other == row) << way;
        let mask = self.rows.iter().enumerate().fold(0u32, mask);
        (mask != 0).then_some(mask.trailing_zeros() as usize)
    }

    /// Locks a way for one more batch, and gives its row a new rank.
    pub fn lock(&mut self, way: usize, rank: u64) {
        self.locks[way] += 1;
        self.ranks[way] = rank;
    }

    /// Puts a row into an empty way, or in place of the unlocked row of the lowest rank if that is
    /// at most `rank_max`, and locks it. Returns the way and the row that lost it. Returns `None`
    /// if the set does not take the row.
    pub fn insert(
        &mut self,
        row: u64,
        rank: u64,
        rank_max: u64,
    ) -> Option<(usize, Option<LostRow>)> {
        let unlocked = (0..WAYS).filter(|&way| self.locks[way] == 0);
        // Empty ways have rank 0, and ranks of rows are above 0.
        let way = unlocked.min_by_key(|&way| self.ranks[way])?;
        if self.ranks[way] > rank_max {
            return None;
        }
        let is_changed = self.changed >> way & 1 == 1;
        let lost = LostRow { row: self.rows[way], is_changed, rank: self.ranks[way] };
        self.changed &= !(1 << way);
        self.rows[way] = row;
        self.ranks[way] = rank;
        self.locks[way] = 1;
        Some((way, (lost.row != NO_ROW).then_some(lost)))
    }

    /// Unlocks a way for one batch.
    pub fn release(&mut self, way: usize, access: RowAccess) {
        assert!(self.locks[way] > 0, "a batch releases slots that it has locked");
        self.locks[way] -= 1;
        self.changed |= u32::from(access == RowAccess::Updated) << way;
    }

    /// Empties and unlocks a way.
    pub fn clear(&mut self, way: usize) {
        (self.rows[way], self.ranks[way], self.locks[way]) = (NO_ROW, 0, 0);
    }

    /// Puts a row back into the empty way that it had lost.
    pub fn put_back(&mut self, way: usize, lost: LostRow) {
        (self.rows[way], self.ranks[way]) = (lost.row, lost.rank);
        self.changed |= u32::from(lost.is_changed) << way;
    }

    /// Halves the frequencies in the ranks of all ways.
    pub fn halve_frequencies(&mut self) {
        for rank in &mut self.ranks {
            let (frequency, age) = (*rank >> AGE_BITS, *rank & ((1 << AGE_BITS) - 1));
            *rank = ((frequency / 2) << AGE_BITS) | age;
        }
    }
}

/// Returns the rank of a row by frequency. Among equally frequent rows, the row whose last batch
/// was earlier ranks lower.
pub(super) fn frequency_rank(frequency: u8, batch: u64) -> u64 {
    u64::from(frequency) << AGE_BITS | batch & ((1 << AGE_BITS) - 1)
}

/// Approximate numbers of recent batches that used the rows of a set, including rows that are not
/// in the cache. Counts may be too high, but never too low between two halvings.
#[derive(Clone, Debug)]
pub(super) struct SetFrequencies {
    counters: [u8; COUNTERS],
    uses: u32,
}

/// Whether the counters of a set were just halved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aging {
    Kept,
    Halved,
}

impl SetFrequencies {
    pub const NONE: Self = Self { counters: [0; COUNTERS], uses: 0 };

    /// Counts one use of each row.
    pub fn add(&mut self, rows: impl Iterator<Item = u64>) -> Aging {
        for row in rows {
            let places = places(row);
            let least = places.map(|at| self.counters[at]).into_iter().min().unwrap_or(0);
            // Only the least counters grow, which keeps those shared with other rows lower.
            for at in places {
                if self.counters[at] == least {
                    self.counters[at] = least.saturating_add(1);
                }
            }
            self.uses += 1;
        }
        if self.uses < USES_BEFORE_HALVING {
            return Aging::Kept;
        }
        self.counters.iter_mut().for_each(|counter| *counter /= 2);
        self.uses /= 2;
        Aging::Halved
    }

    /// Returns the frequency of a row.
    pub fn get(&self, row: u64) -> u8 {
        places(row).map(|at| self.counters[at]).into_iter().min().unwrap_or(0)
    }
}

/// Returns the counters of a row.
fn places(row: u64) -> [usize; PROBES] {
    let bytes = random::mix(!row).to_le_bytes();
    std::array::from_fn(|probe| usize::from(bytes[probe]))
}
