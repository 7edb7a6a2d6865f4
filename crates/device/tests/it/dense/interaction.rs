//! Tests of the dot interaction in both orders, with and without products of a vector with itself.

use device::Cpu;
use device::ops::gemm::panels;
use device::ops::interaction::{self, Backward, Forward, Shape, scalar};
use schema::TriangleOrder::{Lower, Upper};

use super::{
    assert_close, below, bits, check_gradient, check_refused, on_every_cpu, packed, uniform,
    unpacked, weighted, widen,
};

/// Returns edge shapes and random shapes, each in both orders, with and without products of a
/// vector with itself, and with and without a dense vector.
fn shapes() -> Vec<Shape> {
    let edges = [
        (0, 3, 4),
        (1, 0, 1),
        (1, 1, 1),
        (33, 2, 1),
        (2, 26, 16),
        (65, 7, 33),
        (3, 70, 5),
        (5, 9, 32),
        (3, 8, 64),
        (2, 9, 128),
    ];
    let random =
        (0..24).map(|seed| (below(seed, 80), below(seed + 100, 40), 1 + below(seed + 200, 70)));
    let variants = [(Lower, false), (Lower, true), (Upper, false), (Upper, true)];
    let shape = |(b, features, dim): (usize, usize, usize)| {
        let with =
            variants.map(|(order, itself)| Shape { b, features, dense: true, dim, order, itself });
        // Without a dense vector, there must be at least two pooled vectors.
        let alone = with.map(|shape| Shape { features: features.max(2), dense: false, ..shape });
        [with, alone].concat()
    };
    edges.into_iter().chain(random).flat_map(shape).collect()
}

fn inputs(shape: &Shape) -> [Vec<f32>; 3] {
    let widths = [shape.dense_width(), shape.pooled_width(), shape.width()];
    [0, 1, 2].map(|i| uniform(i as u64, shape.b * widths[i]))
}

#[test]
fn pairs_come_in_the_order_of_the_two_references() {
    let shape = Shape { b: 1, features: 2, dense: true, dim: 1, order: Lower, itself: false };
    let run = |shape: Shape| {
        let mut out = vec![0.0; panels::len(1, shape.width())];
        let dense = &packed(&[2.0], 1, 1);
        let arguments = Forward { shape, dense, pooled: &[3.0, 5.0], out: &mut out };
        interaction::forward(&Cpu::new(1), arguments).unwrap();
        unpacked(&out, 1, shape.width())
    };
    assert_eq!(run(shape), [2.0, 6.0, 10.0, 15.0]);
    assert_eq!(run(Shape { itself: true, ..shape }), [2.0, 4.0, 6.0, 9.0, 10.0, 15.0, 25.0]);
    let shape = Shape { order: Upper, ..shape };
    assert_eq!(run(shape), [2.0, 6.0, 10.0, 15.0]);
    assert_eq!(run(Shape { itself: true, ..shape }), [2.0, 4.0, 6.0, 10.0, 9.0, 15.0, 25.0]);
    let alone = Shape { features: 3, dense: false, ..shape };
    let mut out = vec![0.0; panels::len(1, alone.width())];
    let arguments = Forward { shape: alone, dense: &[], pooled: &[2.0, 3.0, 5.0], out: &mut out };
    interaction::forward(&Cpu::new(1), arguments).unwrap();
    assert_eq!(unpacked(&out, 1, alone.width()), [6.0, 10.0, 15.0], "the pairs alone");
    let four = Shape { features: 3, ..shape };
    let pairs: Vec<_> = four.pairs().collect();
    assert_eq!(pairs, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]);
    let pairs: Vec<_> = Shape { order: Lower, ..four }.pairs().collect();
    assert_eq!(pairs, [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]);
}

/// Checks the results, one per instruction set with the portable set first. All vector kernels
/// must agree.
fn vectors_agree(results: &[Vec<f32>]) {
    for pair in results[1..].windows(2) {
        assert!(bits(&pair[0]) == bits(&pair[1]), "the width of vectors changes the bytes");
    }
}

#[test]
fn forward_follows_the_oracles() {
    for shape in shapes() {
        let [dense, pooled, _] = inputs(&shape);
        let results = on_every_cpu(|cpu| {
            let mut out = vec![9.0; panels::len(shape.b, shape.width())];
            let dense = &packed(&dense, shape.b, shape.dense_width());
            let arguments = Forward { shape, dense, pooled: &pooled, out: &mut out };
            interaction::forward(cpu, arguments).unwrap();
            unpacked(&out, shape.b, shape.width())
        });
        vectors_agree(&results);
        let mut oracle = vec![0.0; results[0].len()];
        scalar::forward(&shape, &dense, &pooled, &mut oracle);
        assert_eq!(bits(&results[0]), bits(&oracle), "{shape:?}");
        let mut oracle = vec![0.0; results[0].len()];
        scalar::forward(&shape, &widen(&dense), &widen(&pooled), &mut oracle);
        for result in &results {
            assert_close(result, &oracle, 2e-6, shape.dim as f64);
        }
    }
}

#[test]
fn backward_follows_the_f64_oracle() {
    for shape in shapes() {
        let [dense, pooled, d_out] = inputs(&shape);
        let results = on_every_cpu(|cpu| {
            let dense = &packed(&dense, shape.b, shape.dense_width());
            let (mut d_dense, mut d_pooled) = (vec![9.0; dense.len()], vec![9.0; pooled.len()]);
            let arguments = Backward {
                shape,
                dense,
                pooled: &pooled,
                d_out: &packed(&d_out, shape.b, shape.width()),
                d_dense: &mut d_dense,
                d_pooled: &mut d_pooled,
            };
            interaction::backward(cpu, arguments).unwrap();
            [unpacked(&d_dense, shape.b, shape.dense_width()), d_pooled].concat()
        });
        let (mut d_dense, mut d_pooled) = (vec![0.0; dense.len()], vec![0.0; pooled.len()]);
        let wide = [&dense, &pooled, &d_out].map(|values| widen(values));
        let wide = [&wide[0][..], &wide[1], &wide[2]];
        scalar::backward(&shape, wide, [&mut d_dense, &mut d_pooled]);
        vectors_agree(&results);
        let oracle = [d_dense, d_pooled].concat();
        for result in &results {
            assert_close(result, &oracle, 2e-6, shape.vectors() as f64);
        }
    }
}

#[test]
fn gradients_match_differences() {
    for (order, itself) in [(Lower, false), (Lower, true), (Upper, false), (Upper, true)] {
        let shape = Shape { b: 2, features: 3, dense: true, dim: 3, order, itself };
        let [dense, pooled, weights] = inputs(&shape).map(|values| widen(&values));
        let loss = |dense: &[f64], pooled: &[f64]| {
            let mut out = vec![0.0; shape.b * shape.width()];
            scalar::forward(&shape, dense, pooled, &mut out);
            weighted(&out, &weights)
        };
        let (mut d_dense, mut d_pooled) = (vec![0.0; dense.len()], vec![0.0; pooled.len()]);
        scalar::backward(&shape, [&dense, &pooled, &weights], [&mut d_dense, &mut d_pooled]);
        check_gradient(&dense, &d_dense, |dense| loss(dense, &pooled));
        check_gradient(&pooled, &d_pooled, |pooled| loss(&dense, pooled));
    }
}

#[test]
fn wrong_lengths_are_refused_by_name() {
    let shape = Shape { b: 2, features: 2, dense: true, dim: 3, order: Lower, itself: false };
    let check = |pooled: usize, out: usize, text: &str| {
        let (dense, pooled, out) = (&[0.0; 64], &vec![0.0; pooled], &mut vec![0.0; out]);
        let arguments = Forward { shape, dense, pooled, out };
        check_refused(interaction::forward(&Cpu::new(1), arguments), text);
    };
    check(11, 64, "interaction forward: pooled [B, F·D]: expected 12, got 11");
    check(12, 65, "interaction forward: out [B, D + pairs] in panels: expected 64, got 65");
}
