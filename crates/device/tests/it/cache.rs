//! The cache of table rows against a plain table, and its miss ratios against stack distances.

use std::collections::{BTreeMap, VecDeque};
use std::process::Command;

use device::Pool;
use device::cache::{
    CacheCounts, CacheShape, CurvePoint, DistinctRows, MissCurve, RowAccess, RowCache, RowMoves,
    WAYS,
};
use schema::distribution::ReuseHistogram;
use schema::random::{CounterRng, mix};
use schema::{CachePolicy, IndexDistribution};

/// A table whose rows are numbers, held by a cache over storage, beside a copy in plain memory.
struct CachedTable {
    cache: RowCache,
    slots: Vec<u64>,
    /// Rows that were written back. Other rows have their initial value in storage.
    storage: BTreeMap<u64, u64>,
    plain: Vec<u64>,
    moves: RowMoves,
}

/// The rows of a batch and their slots, until the batch is released.
struct CachedBatch {
    rows: Vec<u64>,
    slots: Vec<u32>,
}

impl CachedTable {
    fn new(rows: u64, shape: CacheShape, policy: CachePolicy) -> Self {
        Self {
            cache: RowCache::new(shape, policy),
            slots: vec![0; shape.slots()],
            storage: BTreeMap::new(),
            plain: (0..rows).map(mix).collect(),
            moves: RowMoves::default(),
        }
    }

    fn fetch(&mut self, host: &Pool, rows: Vec<u64>) -> CachedBatch {
        self.try_fetch(host, rows).unwrap()
    }

    /// Returns `None` if the rows do not fit.
    fn try_fetch(&mut self, host: &Pool, rows: Vec<u64>) -> Option<CachedBatch> {
        self.cache.fetch(host, &rows, rows.len(), &mut self.moves).ok()?;
        for moved in &self.moves.written_back {
            self.storage.insert(moved.row, self.slots[moved.slot as usize]);
        }
        for moved in &self.moves.loaded {
            let stored = self.storage.get(&moved.row).copied();
            self.slots[moved.slot as usize] = stored.unwrap_or(mix(moved.row));
        }
        Some(CachedBatch { rows, slots: self.moves.slots.clone() })
    }

    /// Updates the rows of a batch, each from its present value, and releases the batch.
    fn update(&mut self, batch: &CachedBatch, step: u64) {
        for (&row, &slot) in batch.rows.iter().zip(&batch.slots) {
            let value = &mut self.slots[slot as usize];
            assert_eq!(*value, self.plain[row as usize], "row {row} in slot {slot}");
            *value = mix(*value ^ step);
            self.plain[row as usize] = *value;
        }
        self.cache.release(&batch.slots, RowAccess::Updated);
    }

    /// Reads a row like a checkpoint: from its slot if it has one, and else from storage.
    fn read(&self, row: u64) -> u64 {
        let stored = || self.storage.get(&row).copied().unwrap_or(mix(row));
        self.cache.slot(row).map_or_else(stored, |slot| self.slots[slot as usize])
    }

    fn check_all(&self) {
        for (row, &value) in (0..).zip(&self.plain) {
            assert_eq!(self.read(row), value, "row {row}");
        }
        let counts = self.cache.counts();
        assert_eq!(counts.unique, counts.hit + counts.missed);
        assert!(counts.written_back <= counts.evicted && counts.evicted <= counts.missed);
    }
}

/// Draws the distinct rows of a batch, of which low numbers are frequent.
fn draw_batch(rng: CounterRng, rows: u64, size_max: u64) -> Vec<u64> {
    let size = rng.below(0, size_max + 1);
    let row = |id| (rng.unit(id).powi(3) * rows as f64) as u64;
    let mut batch: Vec<u64> = (1..=size).map(row).collect();
    batch.sort_unstable();
    batch.dedup();
    batch
}

/// Runs `operations` lookups and updates of rows, with `ahead` batches fetched before the update of
/// the one before them.
fn check_operations(policy: CachePolicy, ahead: usize, operations: u64) -> CacheCounts {
    const ROWS: u64 = 900;
    const BATCH: u64 = 60;
    let host = Pool::new(2);
    // Two batches in flight always fit, but their rows exceed the ways of a set in most batches.
    let shape = CacheShape { sets: 3, scratch: 2 * BATCH as usize };
    let mut table = CachedTable::new(ROWS, shape, policy);
    let mut in_flight = VecDeque::new();
    let (mut step, mut done) = (0, 0);
    while done < operations {
        let rng = CounterRng::new(7, ahead as u64).child(step);
        let rows = draw_batch(rng, ROWS, BATCH);
        done += rows.len() as u64;
        in_flight.push_back(table.fetch(&host, rows));
        if in_flight.len() > ahead
            && let Some(batch) = in_flight.pop_front()
        {
            table.update(&batch, step);
        }
        step += 1;
        if step % 64 == 0 {
            table.check_all();
        }
    }
    in_flight.iter().for_each(|batch| table.update(batch, step));
    table.check_all();
    table.cache.counts()
}

#[test]
fn a_cached_table_equals_a_plain_one() {
    for policy in [CachePolicy::Lru, CachePolicy::Lfu] {
        for ahead in [0, 1] {
            let counts = check_operations(policy, ahead, 250_000);
            assert!(counts.hit > 0 && counts.evicted > 0 && counts.written_back > 0, "{counts:?}");
            assert!(counts.conflicts > 0 || policy == CachePolicy::Lru, "{counts:?}");
        }
    }
}

#[test]
fn every_number_of_threads_gives_the_same_moves() {
    let shape = CacheShape::with_rows(40_000);
    for policy in [CachePolicy::Lru, CachePolicy::Lfu] {
        let run = |threads| {
            let (host, mut cache) = (Pool::new(threads), RowCache::new(shape, policy));
            let mut moves = RowMoves::default();
            let step = |step| {
                let rows = draw_batch(CounterRng::new(3, step), 200_000, 8_000);
                cache.fetch(&host, &rows, rows.len(), &mut moves).unwrap();
                cache.release(&moves.slots, RowAccess::Updated);
                moves.clone()
            };
            (0..12).map(step).collect::<Vec<RowMoves>>()
        };
        assert!(run(1) == run(3), "{policy:?}");
    }
}

#[test]
fn a_batch_beyond_all_slots_is_an_error() {
    let host = Pool::new(1);
    let mut cache = RowCache::new(CacheShape { sets: 1, scratch: 3 }, CachePolicy::Lru);
    let mut moves = RowMoves::default();
    let slots = WAYS as u64 + 3;
    let all: Vec<u64> = (0..slots).collect();
    cache.fetch(&host, &all, all.len(), &mut moves).unwrap();
    let full = cache.fetch(&host, &[slots], 1, &mut moves).unwrap_err();
    assert_eq!((full.slots, full.rows), (all.len(), 1));
}

/// Fetches batches that often do not fit beside the batch in flight.
#[test]
fn a_refused_batch_leaves_the_cache_as_it_was() {
    const ROWS: u64 = 150;
    let host = Pool::new(2);
    for policy in [CachePolicy::Lru, CachePolicy::Lfu] {
        // A batch of at most 40 rows fits alone.
        let mut table = CachedTable::new(ROWS, CacheShape { sets: 1, scratch: 10 }, policy);
        let mut before = table.fetch(&host, Vec::new());
        let mut refused = 0;
        for step in 0..2_000 {
            let rows = draw_batch(CounterRng::new(9, step), ROWS, 40);
            let counts = table.cache.counts();
            let fetched = table.try_fetch(&host, rows.clone());
            if fetched.is_none() {
                refused += 1;
                assert_eq!(table.cache.counts(), counts);
                table.check_all();
            }
            table.update(&before, step);
            before = fetched.unwrap_or_else(|| table.fetch(&host, rows));
        }
        table.update(&before, 2_000);
        table.check_all();
        assert!(refused > 100 && refused < 1_900, "{policy:?}: {refused}");
    }
}

#[test]
fn distinct_rows_are_numbered_by_id() {
    let mut distinct = DistinctRows::default();
    for _ in 0..2 {
        distinct.clear();
        distinct.add(&[7, 2, 7]);
        distinct.add(&[5, 2]);
        distinct.find();
        assert_eq!(distinct.rows, [2, 5, 7]);
        assert_eq!(distinct.of_id, [2, 0, 2, 1, 0]);
    }
}

/// The miss ratio of a set-associative LRU cache that follows from the stack distances of a stream
/// in a cache of one set: a use hits if fewer than `ways` of the distinct rows since the last use
/// of its row fall into the row's set.
///
/// # Source
/// Smith, A comparative study of set associative memory mapping algorithms, 1978.
fn miss_ratio_by_stack_distance(uses: &[u64], sets: usize, ways: usize, from: usize) -> f64 {
    // A Fenwick tree counts the rows whose last use lies after a position.
    let mut tree = vec![0i64; uses.len() + 1];
    let add = |tree: &mut Vec<i64>, mut at: usize, by: i64| {
        while at < tree.len() {
            tree[at] += by;
            at += at & at.wrapping_neg();
        }
    };
    let mut last_use = BTreeMap::new();
    let (mut misses, mut live) = (0.0, 0i64);
    let mut hit_by_distance: BTreeMap<i64, f64> = BTreeMap::new();
    for (number, &row) in uses.iter().enumerate() {
        let at = number + 1;
        let mut hit = 0.0;
        if let Some(last) = last_use.insert(row, at) {
            let (mut before, mut position) = (0, last);
            while position > 0 {
                before += tree[position];
                position -= position & position.wrapping_neg();
            }
            let distance = live - before;
            hit = *hit_by_distance
                .entry(distance)
                .or_insert_with(|| hit_probability(distance, sets, ways));
            add(&mut tree, last, -1);
            live -= 1;
        }
        add(&mut tree, at, 1);
        live += 1;
        if number >= from {
            misses += 1.0 - hit;
        }
    }
    misses / (uses.len() - from) as f64
}

/// The probability that fewer than `ways` of `distance` rows fall into one of `sets` sets.
fn hit_probability(distance: i64, sets: usize, ways: usize) -> f64 {
    let (n, p) = (distance as f64, 1.0 / sets as f64);
    if sets == 1 {
        return f64::from(u8::from(distance < ways as i64));
    }
    let mut term = n * (-p).ln_1p();
    let mut sum = 0.0;
    for k in 0..ways.min(distance as usize + 1) {
        sum += term.exp();
        term += ((n - k as f64) / (k as f64 + 1.0)).ln() + (p / (1.0 - p)).ln();
    }
    sum
}

/// Returns the largest number of percentage points by which the simulated miss ratios of caches of
/// some sizes differ from those of stack distances.
fn points_from_stack_distance(rank: impl Fn(u64) -> u64, uses: u64) -> f64 {
    let host = Pool::new(1);
    let rows: Vec<u64> = (0..uses).map(rank).collect();
    let warm = rows.len() / 2;
    let mut curve = MissCurve::new(&[1_088, 4_352, 17_408], CachePolicy::Lru);
    for (number, &row) in rows.iter().enumerate() {
        if number == warm {
            curve.count_from_here();
        }
        curve.take(&host, &[row as i64]);
    }
    let difference = |point: CurvePoint| {
        let sets = CacheShape::with_rows(point.rows).sets;
        let expected = miss_ratio_by_stack_distance(&rows, sets, WAYS, warm);
        100.0 * (point.miss_ratio.unwrap() - expected).abs()
    };
    curve.points().into_iter().map(difference).fold(0.0, f64::max)
}

#[test]
fn lru_misses_are_those_of_stack_distances_on_zipf_ids() {
    let law = IndexDistribution::Zipf { exponent: 1.05 };
    let rng = CounterRng::new(11, 1);
    let rank = |number| law.rank_at(rng.unit(number), 1 << 20);
    let points = points_from_stack_distance(rank, 120_000);
    assert!(points < 0.5, "{points} points");
}

#[test]
fn lru_misses_are_those_of_stack_distances_on_measured_reuse() {
    for (file, section) in [
        ("embedding_bag_2021_locality_stats.txt.gz", "fbgemm_t856_bs65536_0.pt"),
        ("embedding_bag_2021_locality_stats.txt.gz", "fbgemm_t856_bs65536_7.pt"),
        ("embedding_bag_2022_locality_stats.txt.gz", "fbgemm_t788_bs131072_0.pt"),
        ("embedding_bag_2022_locality_stats.txt.gz", "fbgemm_t788_bs131072_7.pt"),
    ] {
        let Some(path) = testkit::fixture::path(&format!("dlrm_datasets/{file}")) else { return };
        if !testkit::has_program("gzip", "measured reuse in caches") {
            return;
        }
        let output = Command::new("gzip").arg("-dc").arg(path).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let rows = ReuseHistogram::parse(&text, Some(section)).unwrap().on(1 << 15);
        let rng = CounterRng::new(5, 1);
        let points = points_from_stack_distance(|number| rows.rank(number, rng), 120_000);
        assert!(points < 0.5, "{section}: {points} points");
    }
}

#[test]
fn lfu_misses_are_close_to_those_of_the_most_frequent_rows() {
    const ROWS: u64 = 1 << 16;
    let law = IndexDistribution::Zipf { exponent: 1.05 };
    let rng = CounterRng::new(11, 2);
    let host = Pool::new(1);
    let sizes = [1_088, 4_352];
    let [mut lru, mut lfu] =
        [CachePolicy::Lru, CachePolicy::Lfu].map(|policy| MissCurve::new(&sizes, policy));
    let ids: Vec<i64> =
        (0..160_000).map(|number| law.rank_at(rng.unit(number), ROWS) as i64).collect();
    let counted = &ids[ids.len() / 2..];
    for (number, id) in ids.iter().enumerate() {
        if number == ids.len() - counted.len() {
            lru.count_from_here();
            lfu.count_from_here();
        }
        lru.take(&host, &[*id]);
        lfu.take(&host, &[*id]);
    }
    for (lru, lfu) in lru.points().into_iter().zip(lfu.points()) {
        let kept = lfu.rows as i64;
        // A cache that always holds the most frequent rows misses all others.
        let missed = counted.iter().filter(|&&id| id >= kept).count();
        let least = missed as f64 / counted.len() as f64;
        let (lru, lfu) = (lru.miss_ratio.unwrap(), lfu.miss_ratio.unwrap());
        assert!(least - 0.005 < lfu && lfu < lru, "{kept} rows: {least}, LFU {lfu}, LRU {lru}");
        assert!(lfu - least < 0.5 * (lru - least), "{kept} rows: {least}, LFU {lfu}, LRU {lru}");
    }
}
