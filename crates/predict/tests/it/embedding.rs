//! Compares predicted embedding lookups with recorded ones.

use kernel_model::embedding::{Constants, TableLookup, V100, forward_ns, published_ns};
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

fn tables(rank: usize) -> Vec<TableLookup> {
    let table = |(rows, pooling)| TableLookup::uniform(16, rows, 16, pooling).expect("sizes");
    RANKS[rank].into_iter().map(table).collect()
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
    let lookups: Vec<(u64, f64)> = (0..8).map(|rank| (longest(rank), measured[rank])).collect();
    let mut published = 0.0f64;
    for (rank, ns) in measured.iter().enumerate() {
        let mut others = lookups.clone();
        others.remove(rank);
        let constants = Constants::fit(&others).expect("bags of several lengths");
        let error = |predicted: f64| (predicted / ns - 1.0).abs();
        let own = error(forward_ns(&tables(rank), device, constants));
        assert!(own <= 0.10, "rank {rank}: {own}");
        assert!(error(forward_ns(&tables(rank), device, V100)) <= 0.15, "rank {rank}");
        published = published.max(error(published_ns(&tables(rank), device)));
    }
    assert!(published > 0.9, "the paper's formula knows bytes alone: {published}");
}
