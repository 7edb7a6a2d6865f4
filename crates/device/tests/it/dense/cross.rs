//! Tests of the element-wise part of a cross layer.

use device::Cpu;
use device::ops::cross::{self, Backward, Forward, scalar};
use device::ops::gemm::panels;

use super::{
    assert_close, bits, check_gradient, check_refused, packed, same_on_every_cpu, uniform,
    unpacked, weighted, widen,
};

const SHAPES: [(usize, usize); 7] =
    [(0, 5), (1, 1), (1, 3456), (2, 7), (300, 65), (129, 200), (70_000, 1)];

#[test]
fn forward_gives_the_bytes_of_the_oracle() {
    for (b, n) in SHAPES {
        let [x0, u, x] = [1, 2, 3].map(|seed| uniform(seed, b * n));
        let bias = uniform(4, n);
        let [x0_panels, u_panels, x_panels] = [&x0, &u, &x].map(|values| packed(values, b, n));
        let out = same_on_every_cpu(|cpu| {
            let mut out = vec![9.0; panels::len(b, n)];
            let (x0, u, x) = (&x0_panels, &u_panels, &x_panels);
            let arguments = Forward { x0, u, bias: &bias, x, out: &mut out };
            cross::forward(cpu, arguments).unwrap();
            unpacked(&out, b, n)
        });
        let mut oracle = vec![0.0; b * n];
        scalar::forward([&x0, &u, &x], &bias, &mut oracle);
        assert_eq!(bits(&out), bits(&oracle));
    }
}

#[test]
fn backward_follows_the_oracle() {
    for (b, n) in SHAPES {
        let [d_out, x0, u, before] = [1, 2, 3, 4].map(|seed| uniform(seed, b * n));
        let bias = uniform(5, n);
        let run = |cpu: &Cpu| {
            let [mut d_u, mut d_x] = [0, 1].map(|_| vec![9.0; panels::len(b, n)]);
            let (mut d_x0, mut d_bias) = (packed(&before, b, n), vec![9.0; n]);
            let arguments = Backward {
                d_out: &packed(&d_out, b, n),
                x0: &packed(&x0, b, n),
                u: &packed(&u, b, n),
                bias: &bias,
                d_u: &mut d_u,
                d_bias: &mut d_bias,
                d_x0: &mut d_x0,
                d_x: &mut d_x,
            };
            cross::backward(cpu, arguments).unwrap();
            let [d_u, d_x0, d_x] = [d_u, d_x0, d_x].map(|panels| unpacked(&panels, b, n));
            [d_u, d_x0, d_x, d_bias].concat()
        };
        let got = same_on_every_cpu(run);
        let [mut d_u, mut d_x] = [0, 1].map(|_| vec![0.0; b * n]);
        let mut d_x0 = before.clone();
        scalar::backward([&d_out, &x0, &u], &bias, [&mut d_u, &mut d_x0, &mut d_x]);
        let (elementwise, d_bias) = got.split_at(3 * b * n);
        assert_eq!(bits(elementwise), bits(&[d_u.clone(), d_x0, d_x].concat()));
        let mut sums = vec![0.0; n];
        for row in widen(&d_u).chunks_exact(n) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        assert_close(d_bias, &sums, 1e-5, (b as f64).sqrt());
    }
}

#[test]
fn gradients_match_differences() {
    let (b, n) = (3, 5);
    let [x0, u, x, weights] = [1, 2, 3, 4].map(|seed| widen(&uniform(seed, b * n)));
    let bias = widen(&uniform(5, n));
    let loss = |x0: &[f64], u: &[f64], x: &[f64], bias: &[f64]| {
        let mut out = vec![0.0; b * n];
        scalar::forward([x0, u, x], bias, &mut out);
        weighted(&out, &weights)
    };
    let [mut d_u, mut d_x0, mut d_x] = [0, 1, 2].map(|_| vec![0.0; b * n]);
    scalar::backward([&weights, &x0, &u], &bias, [&mut d_u, &mut d_x0, &mut d_x]);
    let d_bias: Vec<f64> = (0..n).map(|i| d_u.iter().skip(i).step_by(n).sum()).collect();
    check_gradient(&x0, &d_x0, |x0| loss(x0, &u, &x, &bias));
    check_gradient(&u, &d_u, |u| loss(&x0, u, &x, &bias));
    check_gradient(&x, &d_x, |x| loss(&x0, &u, x, &bias));
    check_gradient(&bias, &d_bias, |bias| loss(&x0, &u, &x, bias));
}

#[test]
fn wrong_lengths_are_refused_by_name() {
    let (full, short) = ([0.0; 64], [0.0; 63]);
    let arguments =
        Forward { x0: &full, u: &short, bias: &[0.0; 3], x: &full, out: &mut [0.0; 64] };
    check_refused(
        cross::forward(&Cpu::new(1), arguments),
        "cross forward: u [B, N]: expected 64, got 63",
    );
    let arguments =
        Forward { x0: &full, u: &full, bias: &[0.0; 33], x: &full, out: &mut [0.0; 64] };
    check_refused(
        cross::forward(&Cpu::new(1), Forward { x0: &short, ..arguments }),
        "cross forward: x0 [B, N] in panels, whole rows: expected 0, got 63",
    );
}
