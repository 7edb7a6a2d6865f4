//! A set-associative cache of table rows: which rows of a large table are in memory, and in which
//! slots. The cache moves no values. [`RowCache::fetch`] lists the rows that its caller copies
//! between the slots and the storage of the whole table.
//!
//! A row is at one place at a time: in a way of its set, in a scratch slot, or only in storage. The
//! rows of batches in flight are locked, so their slots stay the same until the last of these
//! batches is released. The next batch can therefore be fetched before the rows of this batch are
//! updated, and both batches use the same slot for a row that they share.

use schema::{CachePolicy, random};

use super::scratch::ScratchSlots;
use super::set::{self, Aging, CacheSet, LostRow, RowAccess, SetFrequencies, WAYS};
use crate::cpu::Pool;

/// Number of sets that one thread searches at a time. It is the same for any number of threads.
const SETS_PER_CHUNK: usize = 256;

/// The number of slots of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Number of sets, each of [`WAYS`] slots.
    pub sets: usize,
    /// Number of slots for rows that their set does not take.
    pub scratch: usize,
}

impl CacheShape {
    /// Divides `rows` slots into sets and scratch slots. One slot of 16 is a scratch slot, and so
    /// is each slot that does not fill a set. There is at least one set.
    #[must_use]
    pub fn with_rows(rows: usize) -> Self {
        let sets = ((rows - rows / 16) / WAYS).max(1);
        Self { sets, scratch: rows.saturating_sub(sets * WAYS) }
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn slots(self) -> usize {
        self.sets * WAYS + self.scratch
    }

    /// Returns the bytes of the tags, counters and locks of a cache of this shape.
    #[must_use]
    pub fn bytes(self, policy: CachePolicy) -> usize {
        let frequencies = match policy {
            CachePolicy::Lru => 0,
            CachePolicy::Lfu => size_of::<SetFrequencies>(),
        };
        self.sets * (size_of::<CacheSet>() + frequencies) + ScratchSlots::bytes(self.scratch)
    }
}

/// A row and the slot that it takes or leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSlot {
    pub row: u64,
    pub slot: u32,
}

/// The slots of a batch's rows, and the values to copy before the batch uses them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowMoves {
    /// The slot of each requested row, in the order of the request.
    pub slots: Vec<u32>,
    /// Changed rows to write to storage. They are written before [`Self::loaded`] is read, because
    /// loaded rows take their slots.
    pub written_back: Vec<RowSlot>,
    /// Rows to read from storage into their slots.
    pub loaded: Vec<RowSlot>,
}

/// Counts of a cache since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Number of ids of all batches.
    pub requested: u64,
    /// Number of distinct rows, summed over batches.
    pub unique: u64,
    /// Number of these rows that were in a slot already.
    pub hit: u64,
    /// Number of these rows that were loaded.
    pub missed: u64,
    /// Number of missed rows that their set did not take, and that got a scratch slot.
    pub conflicts: u64,
    /// Number of rows that lost their slot.
    pub evicted: u64,
    /// Number of evicted rows that had changed.
    pub written_back: u64,
}

impl CacheCounts {
    /// Returns the share of distinct rows that were loaded, or 0 if there were none.
    #[must_use]
    pub fn miss_ratio(&self) -> f64 {
        self.missed as f64 / self.unique.max(1) as f64
    }
}

impl std::ops::Sub for CacheCounts {
    type Output = Self;

    /// Returns the counts since `before`.
    fn sub(self, before: Self) -> Self {
        Self {
            requested: self.requested - before.requested,
            unique: self.unique - before.unique,
            hit: self.hit - before.hit,
            missed: self.missed - before.missed,
            conflicts: self.conflicts - before.conflicts,
            evicted: self.evicted - before.evicted,
            written_back: self.written_back - before.written_back,
        }
    }
}

/// The batches in flight need more slots than the cache has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cache: expected room for all rows of the batches in flight, got {slots} slots for a batch of \
     {rows} distinct rows"
)]
pub struct CacheFull {
    pub slots: usize,
    /// Number of distinct rows of the batch that found no room.
    pub rows: usize,
}

/// The rows that are in memory, and their slots.
///
/// # Source
/// Sets of 32 ways and the two policies follow the software cache of FBGEMM (Neo,
/// arXiv:2104.05158), which updates rows that no set takes in slower memory. Here they get scratch
/// slots, so the kernels see one array of slots.
#[derive(Clone, Debug)]
pub struct RowCache {
    policy: CachePolicy,
    sets: Vec<CacheSet>,
    /// How often rows of each set were used recently. Empty under [`CachePolicy::Lru`].
    frequencies: Vec<SetFrequencies>,
    scratch: ScratchSlots,
    /// Number of fetched batches, which is the age of the rows of the last one.
    batches: u64,
    counts: CacheCounts,
    /// Requests of the batch in the order of their sets, and the rows that lose their slots to
    /// them. Kept to reuse their memory.
    requests: Vec<SetRequest>,
    evicted: Vec<Evicted>,
}

/// A requested row of a set.
#[derive(Clone, Copy, Debug)]
struct SetRequest {
    set: u32,
    /// Position of the row in the request.
    position: u32,
    row: u64,
    slot: u32,
    outcome: FetchOutcome,
}

/// How a request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FetchOutcome {
    Hit,
    Loaded,
    /// The row is not in its set, and the set did not take it.
    Refused,
}

/// The sets that one thread searches, the requests for them, and the rows that they lose.
struct SetChunk<'a> {
    first_set: usize,
    sets: &'a mut [CacheSet],
    frequencies: &'a mut [SetFrequencies],
    requests: &'a mut [SetRequest],
    evicted: Vec<Evicted>,
}

/// A row that lost its slot.
#[derive(Clone, Copy, Debug)]
struct Evicted {
    lost: LostRow,
    slot: u32,
}

impl RowCache {
    /// Creates an empty cache.
    ///
    /// # Panics
    /// Panics if the cache has more slots than 32 bits can count.
    #[must_use]
    pub fn new(shape: CacheShape, policy: CachePolicy) -> Self {
        let CacheShape { sets, scratch } = shape;
        assert!(u32::try_from(shape.slots()).is_ok(), "a slot is numbered by 32 bits");
        let frequencies = if policy == CachePolicy::Lfu { sets } else { 0 };
        Self {
            policy,
            sets: vec![CacheSet::EMPTY; sets],
            frequencies: vec![SetFrequencies::NONE; frequencies],
            scratch: ScratchSlots::new(sets * WAYS, scratch),
            batches: 0,
            counts: CacheCounts::default(),
            requests: Vec::new(),
            evicted: Vec::new(),
        }
    }

    /// Returns the counts since the cache was created.
    #[must_use]
    pub fn counts(&self) -> CacheCounts {
        self.counts
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.sets.len() * WAYS + self.scratch.len()
    }

    /// Finds or makes a slot for each of a batch's distinct `rows`, and locks it until the batch is
    /// released. `requested` is the number of ids of the batch, which is only counted.
    ///
    /// # Cost
    /// Sorts the rows by set, and reads the tags of each set that has a row. The threads of `host`
    /// share the sets, and any number of threads chooses the same slots.
    /// # Errors
    /// [`CacheFull`] if a row finds no slot, because batches in flight have locked all slots that
    /// could take it. The cache is then unchanged, and the batch can be fetched again when another
    /// batch has been released.
    pub fn fetch(
        &mut self,
        host: &Pool,
        rows: &[u64],
        requested: usize,
        moves: &mut RowMoves,
    ) -> Result<(), CacheFull> {
        let full = CacheFull { slots: self.slots(), rows: rows.len() };
        self.batches += 1;
        self.sort_by_set(rows);
        self.search_sets(host);
        let Some(conflicts) = self.place_refused() else {
            self.undo();
            return Err(full);
        };
        moves.slots.clear();
        moves.slots.resize(rows.len(), 0);
        moves.written_back.clear();
        moves.loaded.clear();
        let changed = self.evicted.iter().filter(|evicted| evicted.lost.is_changed);
        moves
            .written_back
            .extend(changed.map(|&Evicted { lost, slot }| RowSlot { row: lost.row, slot }));
        for &SetRequest { position, row, slot, outcome, .. } in &self.requests {
            moves.slots[position as usize] = slot;
            if outcome == FetchOutcome::Loaded {
                moves.loaded.push(RowSlot { row, slot });
            }
        }
        let counts = &mut self.counts;
        counts.requested += requested as u64;
        counts.unique += rows.len() as u64;
        counts.missed += moves.loaded.len() as u64;
        counts.hit += (rows.len() - moves.loaded.len()) as u64;
        counts.conflicts += conflicts;
        counts.evicted += self.evicted.len() as u64;
        counts.written_back += moves.written_back.len() as u64;
        Ok(())
    }

    /// Gives evicted rows their slots back, and unlocks the slots of the batch.
    fn undo(&mut self) {
        let ways = self.sets.len() * WAYS;
        for at in 0..self.requests.len() {
            let SetRequest { slot, outcome, .. } = self.requests[at];
            match (outcome, slot as usize) {
                (FetchOutcome::Refused, _) => {}
                (FetchOutcome::Hit, _) => self.release(&[slot], RowAccess::Read),
                (FetchOutcome::Loaded, way) if way < ways => {
                    self.sets[way / WAYS].clear(way % WAYS);
                }
                (FetchOutcome::Loaded, _) => self.scratch.clear(slot),
            }
        }
        for &Evicted { lost, slot } in &self.evicted {
            match slot as usize {
                way if way < ways => self.sets[way / WAYS].put_back(way % WAYS, lost),
                _ => self.scratch.put_back(slot, lost),
            }
        }
    }

    /// Lists the requested rows in the order of their sets, and of the request within a set.
    fn sort_by_set(&mut self, rows: &[u64]) {
        let sets = self.sets.len();
        let request = |(position, &row): (usize, &u64)| SetRequest {
            set: set_of(row, sets) as u32,
            position: position as u32,
            row,
            slot: 0,
            outcome: FetchOutcome::Refused,
        };
        self.requests.clear();
        self.requests.extend(rows.iter().enumerate().map(request));
        self.requests.sort_unstable_by_key(|request| (request.set, request.position));
    }

    /// Finds rows in their sets and in scratch slots, and inserts missing rows into their sets.
    fn search_sets(&mut self, host: &Pool) {
        let (policy, now, scratch) = (self.policy, self.batches, &self.scratch);
        let mut chunks = Vec::with_capacity(self.sets.len().div_ceil(SETS_PER_CHUNK));
        let (mut requests, mut frequencies) = (&mut self.requests[..], &mut self.frequencies[..]);
        for (chunk, sets) in self.sets.chunks_mut(SETS_PER_CHUNK).enumerate() {
            let (first_set, end) = (chunk * SETS_PER_CHUNK, chunk * SETS_PER_CHUNK + sets.len());
            let count = requests.partition_point(|request| (request.set as usize) < end);
            let (own, others) = requests.split_at_mut(count);
            requests = others;
            let counted = frequencies.len().min(sets.len());
            let (counts, rest) = frequencies.split_at_mut(counted);
            frequencies = rest;
            let evicted = Vec::new();
            if !own.is_empty() {
                let (requests, frequencies) = (own, counts);
                chunks.push(SetChunk { first_set, sets, frequencies, requests, evicted });
            }
        }
        host.run_slices(&mut chunks, 1, |_, chunks| {
            chunks.iter_mut().for_each(|chunk| chunk.run(policy, now, scratch));
        });
        self.evicted.clear();
        self.evicted.extend(chunks.into_iter().flat_map(|chunk| chunk.evicted));
    }

    /// Gives scratch slots to rows that their sets refused. Without a free scratch slot, a row
    /// takes the place of any unlocked row of its set. Returns the number of rows in scratch slots,
    /// or `None` if a row finds no place.
    fn place_refused(&mut self) -> Option<u64> {
        let mut conflicts = 0;
        // Rows that are in scratch slots are locked first, so that no other row takes their slots.
        for request in &mut self.requests {
            if request.outcome == FetchOutcome::Hit && self.scratch.contains_slot(request.slot) {
                self.scratch.lock(request.slot);
            }
        }
        for request in &mut self.requests {
            if request.outcome != FetchOutcome::Refused {
                continue;
            }
            let lost = if let Some((slot, lost)) = self.scratch.insert(request.row) {
                conflicts += 1;
                request.slot = slot;
                lost
            } else {
                let number = request.set as usize;
                let rank = rank(self.frequencies.get(number), request.row, self.batches);
                let (way, lost) = self.sets[number].insert(request.row, rank, u64::MAX)?;
                request.slot = slot_of(number, way);
                lost
            };
            request.outcome = FetchOutcome::Loaded;
            self.evicted.extend(lost.map(|lost| Evicted { lost, slot: request.slot }));
        }
        Some(conflicts)
    }

    /// Unlocks the slots of a batch.
    ///
    /// # Panics
    /// Panics if a slot is not locked.
    pub fn release(&mut self, slots: &[u32], access: RowAccess) {
        let ways = self.sets.len() * WAYS;
        for &slot in slots {
            match slot as usize {
                way if way < ways => self.sets[way / WAYS].release(way % WAYS, access),
                _ => self.scratch.release(slot, access),
            }
        }
    }

    /// Returns the slot of a row, if the row is in memory.
    #[must_use]
    pub fn slot(&self, row: u64) -> Option<u32> {
        if let Some(slot) = self.scratch.find(row) {
            return Some(slot);
        }
        let number = set_of(row, self.sets.len());
        let way = self.sets.get(number)?.find(row)?;
        Some(slot_of(number, way))
    }
}

impl SetChunk<'_> {
    /// Serves the requests of the sets, one set after the other.
    fn run(&mut self, policy: CachePolicy, now: u64, scratch: &ScratchSlots) {
        let same_set = |a: &SetRequest, b: &SetRequest| a.set == b.set;
        for requests in self.requests.chunk_by_mut(same_set) {
            let number = requests[0].set as usize;
            let set = &mut self.sets[number - self.first_set];
            let frequencies = self.frequencies.get_mut(number - self.first_set);
            let frequencies = frequencies.map(|frequencies| {
                if frequencies.add(requests.iter().map(|request| request.row)) == Aging::Halved {
                    set.halve_frequencies();
                }
                &*frequencies
            });
            let rank = |row| rank(frequencies, row, now);
            // All rows that are present are locked before any row is evicted.
            for request in &mut *requests {
                if let Some(way) = set.find(request.row) {
                    set.lock(way, rank(request.row));
                    request.slot = slot_of(number, way);
                    request.outcome = FetchOutcome::Hit;
                } else if let Some(slot) = scratch.find(request.row) {
                    request.slot = slot;
                    request.outcome = FetchOutcome::Hit;
                }
            }
            if policy == CachePolicy::Lfu {
                // The most frequent rows come first, because later rows may find no way.
                let key =
                    |request: &SetRequest| (std::cmp::Reverse(rank(request.row)), request.position);
                requests.sort_unstable_by_key(key);
            }
            for request in requests {
                if request.outcome == FetchOutcome::Hit {
                    continue;
                }
                let rank = rank(request.row);
                let Some((way, lost)) = set.insert(request.row, rank, rank) else { continue };
                request.slot = slot_of(number, way);
                request.outcome = FetchOutcome::Loaded;
                self.evicted.extend(lost.map(|lost| Evicted { lost, slot: request.slot }));
            }
        }
    }
}

/// Returns the rank of a row that batch `now` uses. A set evicts the row of the lowest rank.
fn rank(frequencies: Option<&SetFrequencies>, row: u64, now: u64) -> u64 {
    frequencies.map_or(now, |frequencies| set::frequency_rank(frequencies.get(row), now))
}

/// Returns the set of a row. Rows are spread by a hash, because neighboring ids may be equally
/// frequent.
fn set_of(row: u64, sets: usize) -> usize {
    let hash = random::mix(row.wrapping_add(0x9e37_79b9_7f4a_7c15));
    ((u128::from(hash) * sets as u128) >> 64) as usize
}

fn slot_of(set: usize, way: usize) -> u32 {
    (set * WAYS + way) as u32
}
