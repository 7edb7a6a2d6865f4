//! Tests of the linear layer's three products and its bias gradient.

use device::MatrixShape;
use device::ops::activation::scalar::{relu, relu_gradient};
use device::ops::gemm::{
    self, Activation, InputGradient, LinearBackwardInput, LinearBackwardWeight, LinearForward,
    LinearWeight, Operand, OperandMut, TOLERANCE, column, panels, scalar,
};
use device::{Cpu, Isa};
use schema::Precision;

use super::{
    assert_close, below, check_gradient, check_refused, on_every_cpu, packed, same_on_every_cpu,
    uniform, unpacked, weighted, widen,
};

/// Returns sizes (B, N, K): edge cases, shapes of real layers at small B, sizes that need several
/// tiles in both directions, and random sizes.
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
        // This case has more samples than one block of the weight gradient.
        (33_000, 3, 5),
    ];
    let random = (0..20)
        .map(|seed| (below(seed, 200), 1 + below(seed + 100, 150), 1 + below(seed + 200, 150)));
    edges.into_iter().chain(random).collect()
}

/// Returns the scale of the error of a sum of `inner` products of values in −1..1, whose mean
/// magnitude is 1/4.
fn scale(inner: usize) -> f64 {
    inner as f64 / 4.0 + 1.0
}

#[test]
fn forward_follows_the_f64_oracle() {
    for (b, n, k) in shapes() {
        let (x, weight) = (uniform(1, b * k), uniform(2, n * k));
        let x_panels = packed(&x, b, k);
        let bias = uniform(3, n);
        let variants = [
            (None, Activation::None),
            (Some(&bias), Activation::None),
            (Some(&bias), Activation::Relu),
        ];
        for (bias, activation) in variants {
            let results = on_every_cpu(|cpu| {
                let mut y = vec![9.0; panels::len(b, n)];
                let arguments = LinearForward {
                    x: Operand::F32(&x_panels),
                    weight: &weight_of(cpu, &weight, n, k),
                    bias: bias.map(|bias| &bias[..]),
                    activation,
                    y: OperandMut::F32(&mut y),
                    b,
                };
                gemm::forward(cpu, arguments).unwrap();
                unpacked(&y, b, n)
            });
            let mut oracle = vec![0.0; b * n];
            let wide_bias = bias.map(|bias| widen(bias));
            let wide = [&widen(&x)[..], &widen(&weight)];
            scalar::forward(wide, wide_bias.as_deref(), &mut oracle, n, k);
            if activation == Activation::Relu {
                oracle.iter_mut().for_each(|y| *y = relu(*y));
            }
            for y in results {
                assert_close(&y, &oracle, TOLERANCE, scale(k));
            }
        }
    }
}

#[test]
fn backward_input_follows_the_f64_oracle() {
    for (b, n, k) in shapes() {
        let (d_y, weight, x) = (uniform(1, b * n), uniform(2, n * k), uniform(3, b * k));
        let (d_y_panels, x_panels) = (packed(&d_y, b, n), packed(&x, b, k));
        let run = |cpu: &Cpu, gradient: InputGradient<'_>| {
            let mut d_x = x_panels.clone();
            let weight = &weight_of(cpu, &weight, n, k);
            let (d_y, to) = (Operand::F32(&d_y_panels), OperandMut::F32(&mut d_x));
            let arguments = LinearBackwardInput { d_y, weight, gradient, d_x: to, b };
            gemm::backward_input(cpu, arguments).unwrap();
            unpacked(&d_x, b, k)
        };
        let mut written = vec![0.0; b * k];
        scalar::backward_input_accumulate([&widen(&d_y), &widen(&weight)], &mut written, n, k);
        let each = |f: fn(f64, f64) -> f64| -> Vec<f64> {
            written.iter().zip(&x).map(|(&d, &x)| f(f64::from(x), d)).collect()
        };
        let variants = [
            (InputGradient::Write, each(|_, d| d)),
            (InputGradient::Accumulate, each(|x, d| x + d)),
            (InputGradient::BeforeRelu(Operand::F32(&x_panels)), each(relu_gradient)),
        ];
        for (gradient, oracle) in variants {
            for d_x in on_every_cpu(|cpu| run(cpu, gradient)) {
                assert_close(&d_x, &oracle, TOLERANCE, scale(n));
            }
        }
    }
}

#[test]
fn backward_weight_follows_the_f64_oracle() {
    for (b, n, k) in shapes() {
        let (x, d_y) = (uniform(1, b * k), uniform(2, b * n));
        let (x_panels, d_y_panels) = (packed(&x, b, k), packed(&d_y, b, n));
        let results = on_every_cpu(|cpu| {
            let (mut d_weight, mut d_bias) = (vec![9.0; panels::len(n, k)], vec![9.0; n]);
            let arguments = LinearBackwardWeight {
                x: Operand::F32(&x_panels),
                d_y: Operand::F32(&d_y_panels),
                d_weight: &mut d_weight,
                d_bias: Some(&mut d_bias),
                b,
                k,
                n,
            };
            gemm::backward_weight(cpu, arguments).unwrap();
            [unpacked(&d_weight, n, k), d_bias].concat()
        });
        let (mut d_weight, mut d_bias) = (vec![0.0; n * k], vec![0.0; n]);
        let (x, d_y) = (widen(&x), widen(&d_y));
        scalar::backward_weight([&x, &d_y], &mut d_weight, n, k);
        scalar::backward_bias(&d_y, &mut d_bias);
        for result in results {
            assert_close(&result[..n * k], &d_weight, TOLERANCE, scale(b));
            assert_close(&result[n * k..], &d_bias, TOLERANCE, scale(b));
        }
    }
}

#[test]
fn small_products_are_right_in_every_corner() {
    // The values are integers, so that every order of summation gives the same result.
    let values = |seed: u64, len: usize| -> Vec<f32> {
        (0..len).map(|i| below(seed + 7 * i as u64, 9) as f32 - 4.0).collect()
    };
    for b in [1, 2, 3, 5, 7, 8, 9, 15, 65] {
        for n in [1, 2, 15, 16, 17, 31, 32, 33, 65] {
            for k in [1, 2, 7, 8, 17, 31, 32, 33, 64, 70, 96, 97] {
                let [x, weight, d_y] =
                    [(1, b * k), (2, n * k), (3, b * n)].map(|(s, l)| values(s, l));
                let [mut y, mut d_x, mut d_w] = [b * n, b * k, n * k].map(|len| vec![0.0f32; len]);
                scalar::forward([&x, &weight], None, &mut y, n, k);
                scalar::backward_input_accumulate([&d_y, &weight], &mut d_x, n, k);
                scalar::backward_weight([&x, &d_y], &mut d_w, n, k);
                for isa in Isa::all() {
                    let cpu = &Cpu::with_isa(1, isa);
                    assert_eq!(
                        products(cpu, [&x, &weight, &d_y], (b, n, k)),
                        [&y[..], &d_x, &d_w].concat()
                    );
                }
            }
        }
    }
}

/// Returns Y, dX and dW, one after the other.
fn products(
    cpu: &Cpu,
    [x, weight, d_y]: [&[f32]; 3],
    (b, n, k): (usize, usize, usize),
) -> Vec<f32> {
    let (x, d_y, weight) = (&packed(x, b, k), &packed(d_y, b, n), &weight_of(cpu, weight, n, k));
    let (x, d_y) = (Operand::F32(x), Operand::F32(d_y));
    let [mut y, mut d_x] = [n, k].map(|columns| vec![9.0; panels::len(b, columns)]);
    let mut d_weight = vec![9.0; panels::len(n, k)];
    let activation = Activation::None;
    let to = OperandMut::F32(&mut y);
    let forward = LinearForward { x, weight, bias: None, activation, y: to, b };
    gemm::forward(cpu, forward).unwrap();
    let gradient = InputGradient::Write;
    let to = OperandMut::F32(&mut d_x);
    let backward = LinearBackwardInput { d_y, weight, gradient, d_x: to, b };
    gemm::backward_input(cpu, backward).unwrap();
    let backward = LinearBackwardWeight { x, d_y, d_weight: &mut d_weight, d_bias: None, b, k, n };
    gemm::backward_weight(cpu, backward).unwrap();
    [unpacked(&y, b, n), unpacked(&d_x, b, k), unpacked(&d_weight, n, k)].concat()
}

fn weight_of(cpu: &Cpu, weight: &[f32], n: usize, k: usize) -> LinearWeight {
    let mut packed = LinearWeight::new(MatrixShape::new(n, k), Precision::F32);
    packed.set(cpu, weight).unwrap();
    packed
}

#[test]
fn relu_and_its_gradient_propagate_nan() {
    let x = packed(&[f32::NAN, -1.0], 2, 1);
    for isa in Isa::all() {
        let cpu = &Cpu::with_isa(1, isa);
        let weight = &weight_of(cpu, &[1.0], 1, 1);
        let mut y = vec![9.0; panels::len(2, 1)];
        let (bias, activation) = (Some(&[0.5][..]), Activation::Relu);
        let (x, to) = (Operand::F32(&x), OperandMut::F32(&mut y));
        let forward = LinearForward { x, weight, bias, activation, y: to, b: 2 };
        gemm::forward(cpu, forward).unwrap();
        assert!(y[0].is_nan() && y[32] == 0.0, "{isa:?}: {} {}", y[0], y[32]);
        let (d_y, gradient) = (packed(&[3.0, 4.0], 2, 1), InputGradient::BeforeRelu(x));
        let (d_y, d_x) = (Operand::F32(&d_y), OperandMut::F32(&mut y));
        let backward = LinearBackwardInput { d_y, weight, gradient, d_x, b: 2 };
        gemm::backward_input(cpu, backward).unwrap();
        assert_eq!([y[0], y[32]], [3.0, 0.0], "{isa:?}");
    }
}

#[test]
fn a_layer_of_one_output_follows_the_f64_oracle() {
    for (b, k) in [(0, 3), (1, 1), (7, 300), (200, 31), (513, 64), (2048, 257)] {
        let (x, weight, d_y) = (uniform(1, b * k), uniform(2, k), uniform(3, b));
        let (x_panels, wide) = (packed(&x, b, k), [&x, &weight, &d_y].map(|v| widen(v)));
        let got = same_on_every_cpu(|cpu| {
            let (mut y, mut d_x) = (vec![9.0; b], vec![9.0; x_panels.len()]);
            let mut d_weight = vec![9.0; k];
            column::forward(cpu, &x_panels, &weight, Some(0.25), &mut y).unwrap();
            column::backward_input(cpu, &d_y, &weight, Some(&x_panels), &mut d_x).unwrap();
            let d_bias = column::backward_weight(cpu, &x_panels, &d_y, &mut d_weight).unwrap();
            [y, unpacked(&d_x, b, k), d_weight, vec![d_bias]].concat()
        });
        let [mut y, mut d_x] = [b, b * k].map(|len| vec![0.0; len]);
        let (mut d_weight, mut d_bias) = (vec![0.0; k], vec![0.0]);
        scalar::forward([&wide[0], &wide[1]], Some(&[0.25]), &mut y, 1, k);
        scalar::backward_input_accumulate([&wide[2], &wide[1]], &mut d_x, 1, k);
        d_x.iter_mut().zip(&wide[0]).for_each(|(d, &x)| *d = relu_gradient(x, *d));
        scalar::backward_weight([&wide[0], &wide[2]], &mut d_weight, 1, k);
        scalar::backward_bias(&wide[2], &mut d_bias);
        assert_close(&got, &[y, d_x, d_weight, d_bias].concat(), TOLERANCE, scale(b.max(k)));
    }
}

#[test]
fn gradients_match_differences() {
    let (b, n, k) = (3, 4, 5);
    let [x, weight, bias, weights] =
        [(1, b * k), (2, n * k), (3, n), (4, b * n)].map(|(seed, len)| widen(&uniform(seed, len)));
    let loss = |x: &[f64], weight: &[f64], bias: &[f64]| {
        let mut y = vec![0.0; b * n];
        scalar::forward([x, weight], Some(bias), &mut y, n, k);
        weighted(&y, &weights)
    };
    let [mut d_x, mut d_weight, mut d_bias] = [b * k, n * k, n].map(|len| vec![0.0; len]);
    scalar::backward_input_accumulate([&weights, &weight], &mut d_x, n, k);
    scalar::backward_weight([&x, &weights], &mut d_weight, n, k);
    scalar::backward_bias(&weights, &mut d_bias);
    check_gradient(&x, &d_x, |x| loss(x, &weight, &bias));
    check_gradient(&weight, &d_weight, |weight| loss(&x, weight, &bias));
    check_gradient(&bias, &d_bias, |bias| loss(&x, &weight, bias));
}

#[test]
fn wrong_lengths_are_refused_by_name() {
    let (b, k, n) = (2, 3, 4);
    let cpu = &Cpu::new(1);
    let weight = &mut LinearWeight::new(MatrixShape::new(n, k), Precision::F32);
    check_refused(
        weight.set(cpu, &[0.0; 13]),
        "panels pack: matrix [rows, columns]: expected 12, got 13",
    );
    let check = |x: usize, bias: usize, text: &str| {
        let [x, bias] = [x, bias].map(|len| vec![0.0; len]);
        let (y, activation) = (&mut [0.0; 64], Activation::None);
        let (x, y) = (Operand::F32(&x), OperandMut::F32(y));
        let arguments = LinearForward { x, weight, bias: Some(&bias), activation, y, b };
        check_refused(gemm::forward(cpu, arguments), text);
    };
    check(6, 4, "gemm forward: x [B, K] in panels: expected 64, got 6");
    check(64, 3, "gemm forward: bias [N]: expected 4, got 3");
    let (d_weight, d_bias) = (&mut [0.0; 128], Some(&mut [0.0; 5][..]));
    let (x, d_y) = (Operand::F32(&[0.0; 64]), Operand::F32(&[0.0; 64]));
    let arguments = LinearBackwardWeight { x, d_y, d_weight, d_bias, b, k, n };
    check_refused(
        gemm::backward_weight(cpu, arguments),
        "gemm backward_weight: d_bias [N]: expected 4, got 5",
    );
    let refused = column::forward(cpu, &[0.0; 63], &[0.0; 3], Some(0.0), &mut [0.0; 2]);
    check_refused(refused, "column forward: x [B, K] in panels: expected 64, got 63");
}

#[test]
fn joined_rows_are_split_again() {
    for (rows, left, right) in [(0, 3, 4), (3, 1, 1), (65, 32, 7), (129, 40, 33)] {
        let (a, b) = (uniform(1, rows * left), uniform(2, rows * right));
        let whole = same_on_every_cpu(|cpu| {
            let mut whole = vec![9.0; panels::len(rows, left + right)];
            let (columns, left_part) = ((left, right), packed(&a, rows, left));
            panels::join(cpu, &left_part, &b, rows, columns.0, columns.1, &mut whole).unwrap();
            let (mut c, mut d) = (vec![9.0; panels::len(rows, left)], vec![9.0; b.len()]);
            panels::split(cpu, &whole, rows, columns.0, columns.1, &mut c, &mut d).unwrap();
            assert_eq!((unpacked(&c, rows, left), d), (a.clone(), b.clone()));
            unpacked(&whole, rows, left + right)
        });
        for (row, whole) in whole.chunks_exact(left + right).enumerate() {
            assert_eq!(whole[..left], a[row * left..][..left]);
            assert_eq!(whole[left..], b[row * right..][..right]);
        }
    }
}
