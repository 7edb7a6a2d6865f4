//! Compares estimated hit rates with a simulated cache, and checks that lookups take longer when
//! sizes grow.

use std::collections::{BTreeMap, BTreeSet};

use kernel_model::embedding::{HitCurve, Popularity};
use kernel_model::formula_kernels::{SingleKind, SingleWork};
use schema::distribution::ReuseHistogram;
use schema::random::CounterRng;
use schema::topology::hardware;

/// Simulates an LRU cache that is empty at first, and returns its share of hits.
fn simulated(ids: &[u64], cached: usize) -> f64 {
    let (mut last, mut order) = (BTreeMap::new(), BTreeSet::new());
    let mut hits = 0;
    for (now, id) in ids.iter().enumerate() {
        if let Some(before) = last.insert(*id, now) {
            if order.remove(&(before, *id)) {
                hits += 1;
            }
        } else if order.len() == cached
            && let Some((_, oldest)) = order.pop_first()
        {
            last.remove(&oldest);
        }
        order.insert((now, *id));
    }
    f64::from(hits) / ids.len() as f64
}

fn check(what: &str, popularity: &Popularity, ids: &[u64]) {
    let rows = ids.iter().collect::<BTreeSet<_>>().len();
    for share in [0.02, 0.1, 0.3, 0.7, 1.0] {
        let cached = ((rows as f64 * share) as usize).max(1);
        let expected = simulated(ids, cached);
        let found = HitCurve::new(popularity, ids.len() as f64).at(cached as f64);
        assert!((found - expected).abs() <= 0.03, "{what}, {cached} rows: {found}, not {expected}");
    }
}

#[test]
fn hit_rates_of_uniform_and_zipf_ids_match_a_simulated_cache() {
    const LOOKUPS: u64 = 30_000;
    let random = CounterRng::new(5, 0);
    for rows in [1_000, 20_000, 1_000_000] {
        let ids: Vec<u64> = (0..LOOKUPS).map(|at| random.below(at, rows)).collect();
        check("uniform", &Popularity::uniform(rows), &ids);
    }
    for (rows, exponent) in [(10_000, 0.6), (10_000, 1.0), (200_000, 1.05), (200_000, 1.3)] {
        let mut sums: Vec<f64> = Vec::with_capacity(rows);
        for rank in 1..=rows {
            let before = sums.last().copied().unwrap_or(0.0);
            sums.push(before + (rank as f64).powf(-exponent));
        }
        let all = sums.last().copied().unwrap_or(0.0);
        let id = |at| sums.partition_point(|sum| *sum < all * random.unit(at)) as u64;
        let ids: Vec<u64> = (0..LOOKUPS).map(id).collect();
        check("zipf", &Popularity::zipf(rows as u64, exponent), &ids);
    }
}

/// Shares of a batch's lookups by how often the batch uses their row: once, twice, 3 to 4, 5 to 8
/// times and so on. The shares come from dlrm_datasets (MIT license), for 856 and 788 production
/// tables.
const PRODUCTION: [[f64; 17]; 2] = [
    [
        0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052, 0.050, 0.049, 0.048, 0.048,
        0.043, 0.031, 0.023, 0.019,
    ],
    [
        0.027, 0.023, 0.040, 0.068, 0.105, 0.120, 0.099, 0.070, 0.059, 0.054, 0.040, 0.072, 0.064,
        0.047, 0.021, 0.017, 0.076,
    ],
];

#[test]
fn hit_rates_of_reuse_histograms_match_a_simulated_cache() {
    // The test creates ten tables of different sizes for each year. Tables with a higher number
    // reuse their rows more.
    for number in 0..20u64 {
        let (published, lookups) = (PRODUCTION[(number / 10) as usize], 10_000 + 2_000 * number);
        let tilt = 1.0 + 0.05 * (number % 10) as f64;
        let tilted: Vec<f64> =
            (0..17).map(|class| published[class] * tilt.powi(class as i32)).collect();
        let all: f64 = tilted.iter().sum();
        let (mut ids, mut row) = (Vec::new(), 0u64);
        let (mut use_shares, mut uses_per_row) = ([0.0; 17], [1.0; 17]);
        for class in 0..17 {
            let per_row = (1usize << class).div_ceil(2) + (1 << class) / 4;
            let rows = (lookups as f64 * tilted[class] / all / per_row as f64).round() as u64;
            for _ in 0..rows {
                row += 1;
                ids.extend(std::iter::repeat_n(row, per_row));
            }
            use_shares[class] = (rows * per_row as u64) as f64;
            uses_per_row[class] = per_row as f64;
        }
        let uses = ids.len() as u64;
        use_shares.iter_mut().for_each(|share| *share /= uses as f64);
        let random = CounterRng::new(number, 9);
        let mut order: Vec<usize> = (0..ids.len()).collect();
        order.sort_by_key(|at| random.bits(*at as u64));
        let ids: Vec<u64> = order.into_iter().map(|at| ids[at]).collect();
        let histogram = ReuseHistogram { uses, use_shares, uses_per_row };
        check(&format!("table {number}"), &Popularity::reuse(&histogram), &ids);
    }
}

#[test]
fn lookups_grow_with_everything_they_read() {
    let device = hardware("a100").expect("a known device");
    let ns = |sizes: [u64; 4]| {
        let [batch, rows, dim, pooling] = sizes;
        let sizes = [batch, 2, rows, dim, pooling];
        let work = SingleWork::new(SingleKind::EmbeddingForward, &sizes).expect("sizes");
        let mean_ns = work.price(device).mean_ns;
        assert!(mean_ns >= 1e9 * work.bytes() / device.dram, "{work}: below its roofline");
        mean_ns
    };
    let base = [2048, 1_000_000, 64, 10];
    for at in 0..4 {
        let mut more = base;
        for _ in 0..6 {
            let before = ns(more);
            more[at] *= 2;
            assert!(ns(more) >= before * (1.0 - 1e-9), "{more:?}");
        }
    }
}
