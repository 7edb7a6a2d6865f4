//! Compares predicted embedding lookups with recorded ones.

use kernel_model::formula_kernels::{SingleKind, SingleWork};
use kernel_model::rank_load::{RankLoad, RowRates, TileTerms};
use schema::Optimizer;
use schema::topology::hardware;

use crate::fixture;

/// Number of rows and pooling factor of each table, by rank, in the public 8-rank DLRM. This model
/// has a batch size of 16 and an embedding dimension of 16.
const RANKS: [[(u64, u64); 3]; 8] = [
    [(40_000_000, 3), (39_060, 2), (1_543, 1)],
    [(20_265, 6), (40_000_000, 7), (976, 1)],
    [(17_295, 1), (11_938, 5), (40_000_000, 12)],
    [(40_000_000, 100), (12_973, 3), (36, 1)],
    [(63, 1), (14, 9), (40_000_000, 27)],
    [(7_424, 2), (3_067_956, 3), (108, 1)],
    [(7_122, 1), (4, 1), (590_152, 10)],
    [(405_282, 8), (10, 1), (2_209, 6)],
];

/// Describes the lookup of each table of a rank.
fn lookups(rank: usize) -> Vec<SingleWork> {
    let lookup = |(rows, pooling)| {
        SingleWork::new(SingleKind::EmbeddingForward, &[16, 1, rows, 16, pooling]).expect("sizes")
    };
    RANKS[rank].into_iter().map(lookup).collect()
}

/// Fits a line through (longest bag, time), with relative errors as weights, and returns its value
/// at another longest bag.
fn line_at(lookups: &[(u64, f64)], longest: u64) -> f64 {
    let (mut w, mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for &(longest, ns) in lookups {
        let (weight, longest) = (1.0 / (ns * ns), longest as f64);
        w += weight;
        x += weight * longest;
        y += weight * ns;
        xx += weight * longest * longest;
        xy += weight * longest * ns;
    }
    let row_ns = (w * xy - x * y) / (w * xx - x * x);
    (y - row_ns * x) / w + row_ns * longest as f64
}

#[test]
fn a_lookup_is_predicted_from_those_of_other_ranks() {
    let Some(job) = fixture::job("dlrm8") else { return };
    let device = hardware("v100-sxm2").expect("a known device");
    let measured: Vec<f64> = job
        .traces
        .iter()
        .map(|trace| {
            let name = "void split_embedding_codegen_forward_unweighted_kernel";
            let row = trace.rows().find(|row| trace.name(*row).starts_with(name));
            let row = row.expect("one lookup in each rank");
            (trace.slices.end(row) - trace.slices.start(row)) as f64
        })
        .collect();
    assert_eq!(measured.len(), 8);
    let longest = |rank: usize| RANKS[rank].into_iter().map(|table| table.1).max().expect("tables");
    let known: Vec<(u64, f64)> = (0..8).map(|rank| (longest(rank), measured[rank])).collect();
    let mut by_bytes = 0.0f64;
    for (rank, ns) in measured.iter().enumerate() {
        let mut others = known.clone();
        others.remove(rank);
        let error = |predicted: f64| (predicted / ns - 1.0).abs();
        let own = error(line_at(&others, longest(rank)));
        assert!(own <= 0.10, "rank {rank}: {own}");
        let works = lookups(rank);
        let terms: Vec<TileTerms> =
            works.iter().map(|work| TileTerms::new(&work.tile(), Optimizer::Sgd, None)).collect();
        let forward = RankLoad::from_tiles(terms.iter(), RowRates::Gpu(device)).forward;
        assert!(error(forward.mean_ns) <= 0.15, "rank {rank}");
        let bytes = works.iter().map(SingleWork::bytes).sum::<f64>();
        by_bytes = by_bytes.max(error(1e9 * bytes / device.dram));
    }
    assert!(by_bytes > 0.9, "a formula of bytes alone: {by_bytes}");
}
