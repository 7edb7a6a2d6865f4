//! Generates batches in memory: ids from a known distribution, in bags of equal length per feature.
//! No files are read.

use device::Pool;
use schema::distribution::row_of;
use schema::random::CounterRng;
use schema::{Batch, IndexDistribution, JaggedTensor};

/// Number of distinct samples, which are used in turn. The rows that they look up do not fit in the
/// caches.
const SAMPLES: usize = 65_536;
/// Smallest number of distinct batches, whatever their size.
const BATCHES_MIN: usize = 4;
/// Share of generated samples whose label is a click.
const CLICK_RATE: f64 = 0.25;
const SEED: u64 = 1;

/// The properties of generated batches, from which their content is drawn.
#[derive(Clone, Debug)]
pub struct Made {
    /// Number of rows of each feature's table.
    pub rows: Vec<u64>,
    /// Number of ids per bag of each feature.
    pub lengths: Vec<usize>,
    /// Number of dense features of each sample.
    pub dense_features: usize,
    /// Number of samples per batch.
    pub batch_size: usize,
    /// Distribution of the ids of each feature.
    pub distributions: Vec<IndexDistribution>,
}

/// Generates the number of batches that hold 65,536 samples together, but at least four.
pub fn make(pool: &Pool, made: &Made) -> Vec<Batch> {
    make_some(pool, made, distinct_batches(made.batch_size))
}

/// Generates the batches with numbers from 0 to `count − 1`.
pub fn make_some(pool: &Pool, made: &Made, count: usize) -> Vec<Batch> {
    let mut batches = vec![Batch::default(); count];
    pool.run_slices(&mut batches, 1, |number, batch| batch[0] = make_one(made, number as u64));
    batches
}

/// Returns the number of batches that [`make`] generates.
pub fn distinct_batches(batch_size: usize) -> usize {
    (SAMPLES / batch_size).max(BATCHES_MIN)
}

/// Generates the batch with the given number. Equal numbers give equal batches.
pub fn make_one(made: &Made, number: u64) -> Batch {
    let rng = CounterRng::new(SEED, number);
    let clicks = units(rng.child(2), made.batch_size);
    let label = |unit| if f64::from(unit) < CLICK_RATE { 1.0 } else { 0.0 };
    Batch {
        size: made.batch_size,
        dense: units(rng.child(0), made.batch_size * made.dense_features),
        sparse: bags(rng.child(1), made, number),
        labels: clicks.into_iter().map(label).collect(),
    }
}

fn units(rng: CounterRng, count: usize) -> Vec<f32> {
    (0..count as u64).map(|counter| rng.unit(counter) as f32).collect()
}

fn bags(rng: CounterRng, made: &Made, number: u64) -> JaggedTensor {
    let ids = made.batch_size * made.lengths.iter().sum::<usize>();
    let mut values = Vec::with_capacity(ids);
    for (feature, (&rows, &length)) in made.rows.iter().zip(&made.lengths).enumerate() {
        let count = (made.batch_size * length) as u64;
        let distribution = made.distributions[feature];
        if let IndexDistribution::Reuse(histogram) = distribution {
            // All batches draw from one sequence of ids, so that each window of the sequence has
            // the measured reuse.
            let (reused, rng) = (histogram.on(rows), CounterRng::new(SEED, feature as u64));
            // Batch `number` takes the next `count` ids of the sequence, on whichever thread it is
            // generated.
            let uses = number * count..(number + 1) * count;
            values.extend(uses.map(|at| row_of(reused.rank(at, rng), rows) as i64));
            continue;
        }
        let rng = rng.child(feature as u64);
        let id = |counter| distribution.row_at(rng.unit(counter), rows) as i64;
        values.extend((0..count).map(id));
    }
    let per_sample = |&length: &usize| std::iter::repeat_n(length, made.batch_size);
    let lengths: Vec<usize> = made.lengths.iter().flat_map(per_sample).collect();
    JaggedTensor::from_lengths(made.rows.len(), &lengths, values)
}

#[cfg(test)]
mod tests {
    use super::{Made, make};
    use schema::IndexDistribution;
    use schema::distribution::ReuseHistogram;

    #[test]
    fn batches_differ_and_do_not_depend_on_the_threads() {
        let made = Made {
            rows: vec![10, 3],
            lengths: vec![2, 1],
            dense_features: 2,
            batch_size: 30_000,
            distributions: vec![IndexDistribution::Zipf { exponent: 1.05 }; 2],
        };
        let batches = make(&device::Pool::new(3), &made);
        assert_eq!(batches, make(&device::Pool::new(1), &made));
        assert!(batches.len() == 4 && batches[0] != batches[1]);
        let sparse = &batches[0].sparse;
        assert!(sparse.check().is_ok() && sparse.values.len() == 3 * 30_000);
        assert!(sparse.values[sparse.feature(1)].iter().all(|id| (0..3).contains(id)));
    }

    #[test]
    fn ids_of_a_histogram_repeat_as_often_as_it_says() {
        // Half of the uses go to rows that are used twice, and half to rows that are used once.
        let mut shares = [0.0; 17];
        (shares[0], shares[1]) = (0.5, 0.5);
        let mut uses_per_row = [1.0; 17];
        uses_per_row[1] = 2.0;
        let histogram = ReuseHistogram { uses: 4000, use_shares: shares, uses_per_row };
        let made = Made {
            rows: vec![1_000_000],
            lengths: vec![2],
            dense_features: 0,
            batch_size: 2000,
            distributions: vec![IndexDistribution::Reuse(histogram)],
        };
        for batch in &make(&device::Pool::new(2), &made)[..3] {
            let mut ids = batch.sparse.values.clone();
            ids.sort_unstable();
            let uses: Vec<usize> = ids.chunk_by(|a, b| a == b).map(<[i64]>::len).collect();
            let rows_used = |count: usize| uses.iter().filter(|&&uses| uses == count).count();
            assert_eq!((rows_used(1), rows_used(2), uses.len()), (2000, 1000, 3000));
        }
    }
}
