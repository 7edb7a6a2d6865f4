//! The linear layer's three products and its bias gradient.

use device::Cpu;
use device::ops::gemm::{
    self, LinearBackwardInput, LinearBackwardWeight, LinearForward, TOLERANCE, scalar,
};

use super::{
    assert_close, below, check_gradient, check_refused, on_every_cpu, uniform, weighted, widen,
};

/// (B, N, K): edges, the shapes of real layers at small B, sizes that split into several tiles in
/// both directions, and random ones.
fn shapes() -> Vec<(usize, usize, usize)> {
    let edges = [
        (0, 3, 4),
        (1, 1, 1),
        (1, 512, 13),
        (2048, 1, 256),
        (7, 1, 300),
        (1, 300, 700),
        (5, 2, 1),
        (129, 512, 13),
        (1500, 97, 367),
        (600, 300, 479),
        (64, 1024, 1024),
        (1025, 257, 130),
    ];
    let random = (0..20)
        .map(|seed| (below(seed, 200), 1 + below(seed + 100, 150), 1 + below(seed + 200, 150)));
    edges.into_iter().chain(random).collect()
}

/// Error bound of a sum of `inner` products of values in −1..1, whose magnitudes average 1/4.
fn scale(inner: usize) -> f64 {
    inner as f64 / 4.0 + 1.0
}

#[test]
fn forward_follows_the_f64_oracle() {
    for (b, n, k) in shapes() {
        let (x, weight) = (uniform(1, b * k), uniform(2, n * k));
        for bias in [None, Some(uniform(3, n))] {
            let bias = bias.as_deref();
            let results = on_every_cpu(|cpu| {
                let mut y = vec![9.0; b * n];
                let arguments = LinearForward { x: &x, weight: &weight, bias, y: &mut y, b, k, n };
                gemm::forward(cpu, arguments).unwrap();
                y
            });
            let mut oracle = vec![0.0; b * n];
            let wide_bias = bias.map(widen);
            let wide = [&widen(&x)[..], &widen(&weight)];
            scalar::forward(wide, wide_bias.as_deref(), &mut oracle, (n, k));
            for y in results {
                assert_close(&y, &oracle, TOLERANCE, scale(k));
            }
        }
    }
}

#[test]
fn backward_input_follows_the_f64_oracle() {
    for (b, n, k) in shapes() {
        let (d_y, weight, before) = (uniform(1, b * n), uniform(2, n * k), uniform(3, b * k));
        let run = |cpu: &Cpu, accumulate: bool| {
            let mut d_x = before.clone();
            let arguments =
                LinearBackwardInput { d_y: &d_y, weight: &weight, d_x: &mut d_x, b, k, n };
            if accumulate {
                gemm::backward_input_accumulate(cpu, arguments).unwrap();
            } else {
                gemm::backward_input(cpu, arguments).unwrap();
            }
            d_x
        };
        for (accumulate, mut oracle) in [(false, vec![0.0; b * k]), (true, widen(&before))] {
            let wide = [&widen(&d_y)[..], &widen(&weight)];
            scalar::backward_input_accumulate(wide, &mut oracle, (n, k));
            for d_x in on_every_cpu(|cpu| run(cpu, accumulate)) {
                assert_close(&d_x, &oracle, TOLERANCE, scale(n));
            }
        }
    }
}

#[test]
fn backward_weight_follows_the_f64_oracle() {
    for (b, n, k) in shapes() {
        let (x, d_y) = (uniform(1, b * k), uniform(2, b * n));
        let results = on_every_cpu(|cpu| {
            let (mut d_weight, mut d_bias) = (vec![9.0; n * k], vec![9.0; n]);
            let arguments = LinearBackwardWeight {
                x: &x,
                d_y: &d_y,
                d_weight: &mut d_weight,
                d_bias: Some(&mut d_bias),
                b,
                k,
                n,
            };
            gemm::backward_weight(cpu, arguments).unwrap();
            [d_weight, d_bias].concat()
        });
        let (mut d_weight, mut d_bias) = (vec![0.0; n * k], vec![0.0; n]);
        let (x, d_y) = (widen(&x), widen(&d_y));
        scalar::backward_weight([&x, &d_y], &mut d_weight, (n, k));
        scalar::backward_bias(&d_y, &mut d_bias);
        for result in results {
            assert_close(&result[..n * k], &d_weight, TOLERANCE, scale(b));
            assert_close(&result[n * k..], &d_bias, TOLERANCE, scale(b));
        }
    }
}

#[test]
fn gradients_match_differences() {
    let (b, n, k) = (3, 4, 5);
    let [x, weight, bias, weights] =
        [(1, b * k), (2, n * k), (3, n), (4, b * n)].map(|(seed, len)| widen(&uniform(seed, len)));
    let loss = |x: &[f64], weight: &[f64], bias: &[f64]| {
        let mut y = vec![0.0; b * n];
        scalar::forward([x, weight], Some(bias), &mut y, (n, k));
        weighted(&y, &weights)
    };
    let [mut d_x, mut d_weight, mut d_bias] = [b * k, n * k, n].map(|len| vec![0.0; len]);
    scalar::backward_input_accumulate([&weights, &weight], &mut d_x, (n, k));
    scalar::backward_weight([&x, &weights], &mut d_weight, (n, k));
    scalar::backward_bias(&weights, &mut d_bias);
    check_gradient(&x, &d_x, |x| loss(x, &weight, &bias));
    check_gradient(&weight, &d_weight, |weight| loss(&x, weight, &bias));
    check_gradient(&bias, &d_bias, |bias| loss(&x, &weight, bias));
}

#[test]
fn wrong_lengths_are_refused_by_name() {
    let (b, k, n) = (2, 3, 4);
    let check = |x: usize, weight: usize, bias: usize, text: &str| {
        let [x, weight, bias] = [x, weight, bias].map(|len| vec![0.0; len]);
        let y = &mut [0.0; 8];
        let arguments = LinearForward { x: &x, weight: &weight, bias: Some(&bias), y, b, k, n };
        check_refused(gemm::forward(&Cpu::new(1), arguments), text);
    };
    check(5, 12, 4, "gemm forward: x [B, K]: expected 6, got 5");
    check(6, 13, 4, "gemm forward: weight [N, K]: expected 12, got 13");
    check(6, 12, 3, "gemm forward: bias [N]: expected 4, got 3");
    let (d_weight, d_bias) = (&mut [0.0; 12], Some(&mut [0.0; 5][..]));
    let (x, d_y) = (&[0.0; 6], &[0.0; 8]);
    let arguments = LinearBackwardWeight { x, d_y, d_weight, d_bias, b, k, n };
    check_refused(
        gemm::backward_weight(&Cpu::new(1), arguments),
        "gemm backward_weight: d_bias [N]: expected 4, got 5",
    );
}
