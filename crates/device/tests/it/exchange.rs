//! Tests of the local halves of an exchange of pooled vectors against plain loops, for any number
//! of threads.

use device::Cpu;
use device::ops::exchange::{GivenMatrices, OwnedColumns, PooledColumns, assemble, gather};
use schema::random::CounterRng;

fn values(stream: u64, len: usize) -> Vec<f32> {
    let rng = CounterRng::new(3, stream);
    (0..len as u64).map(|i| rng.normal(i) as f32).collect()
}

/// Columns 0..4 are sums of two ranks' partial sums, and columns 4..7 come from one rank.
const SOURCES: [PooledColumns; 3] = [
    PooledColumns { rank: 1, from: 2, to: 0, len: 4, first: true },
    PooledColumns { rank: 0, from: 0, to: 0, len: 4, first: false },
    PooledColumns { rank: 0, from: 4, to: 4, len: 3, first: true },
];

#[test]
fn parts_are_added_in_the_order_of_their_sources() {
    for samples in [0, 1, 63, 64, 200] {
        let (own, other) = (values(1, samples * 7), values(2, samples * 6));
        let others = [Vec::new(), other.clone()];
        let given = GivenMatrices { own: (0, &own), others: &others, widths: &[7, 6] };
        let mut expected = Vec::new();
        for sample in 0..samples {
            let (own, other) = (&own[sample * 7..][..7], &other[sample * 6..][..6]);
            expected.extend((0..4).map(|column| other[column + 2] + own[column]));
            expected.extend_from_slice(&own[4..]);
        }
        for threads in [1, 2, 7] {
            let mut pooled = vec![f32::NAN; samples * 7];
            assemble(&Cpu::new(threads), &SOURCES, given, 7, &mut pooled).unwrap();
            assert_eq!(pooled, expected, "{samples} samples, {threads} threads");
        }
    }
}

#[test]
fn a_rank_gets_its_columns_of_a_gradient() {
    let columns =
        [OwnedColumns { from: 5, to: 0, len: 2 }, OwnedColumns { from: 1, to: 2, len: 3 }];
    let gradient = values(4, 130 * 8);
    for threads in [1, 2, 7] {
        let mut to = vec![f32::NAN; 130 * 5];
        gather(&Cpu::new(threads), &columns, &gradient, 8, &mut to, 5).unwrap();
        for (row, from) in to.chunks_exact(5).zip(gradient.chunks_exact(8)) {
            assert_eq!(row, [from[5], from[6], from[1], from[2], from[3]]);
        }
    }
}

#[test]
fn a_matrix_of_another_length_is_refused() {
    let (own, others) = (values(1, 14), [Vec::new(), values(2, 11)]);
    let given = GivenMatrices { own: (0, &own), others: &others, widths: &[7, 6] };
    let mut pooled = [0.0; 14];
    let refused = assemble(&Cpu::new(1), &SOURCES, given, 7, &mut pooled).unwrap_err();
    let text = "assemble: matrix of a rank [B, width]: expected 12, got 11";
    assert_eq!(refused.to_string(), text);
    let refused = gather(&Cpu::new(1), &[], &own, 7, &mut [0.0; 5], 2).unwrap_err();
    assert_eq!(refused.to_string(), "gather: to [B, width]: expected 4, got 5");
}
