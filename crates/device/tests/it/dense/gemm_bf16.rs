//! Tests of the linear layer's products in bf16 against the f64 oracle on rounded factors. The
//! tests run on every instruction set, with and without the instruction for bf16 pairs.

use device::Isa;
use device::MatrixShape;
use device::cpu::Bf16Products;
use device::ops::activation::scalar::{relu, relu_gradient};
use device::ops::gemm::{
    self, Activation, InputGradient, LinearBackwardInput, LinearBackwardWeight, LinearForward,
    LinearWeight, Matrix, Operand, OperandMut, TOLERANCE, pairs, panels, scalar,
};
use device::{Cpu, Error};
use half::bf16;
use schema::Precision;

use super::{below, bits, check_refused, on_cpus, packed, uniform, unpacked};

/// Relative error of storing a result in bf16, which is half a unit in the last place.
const ROUNDING: f64 = 1.0 / 256.0;

/// Returns sizes (B, N, K): odd numbers in each position, edges of tiles and passes, and random
/// sizes.
fn shapes() -> Vec<(usize, usize, usize)> {
    let edges = [
        (0, 3, 4),
        (1, 1, 1),
        (1, 33, 31),
        (2, 1, 300),
        (129, 512, 13),
        (1501, 97, 367),
        (64, 512, 512),
        (1025, 257, 131),
        // This case has more samples than one block of the weight gradient.
        (66_001, 3, 5),
    ];
    let random = (0..12)
        .map(|seed| (below(seed, 200), 1 + below(seed + 100, 150), 1 + below(seed + 200, 150)));
    edges.into_iter().chain(random).collect()
}

/// Returns every instruction set with every method of multiplying bf16 that this machine
/// supports.
fn sets() -> Vec<Isa> {
    let ways = [Bf16Products::Widened, Bf16Products::Pairs];
    let all = |isa: Isa| ways.into_iter().filter_map(move |way| isa.with_bf16_products(way));
    Isa::all().into_iter().flat_map(all).collect()
}

fn nearest(values: &[f32]) -> Vec<f32> {
    values.iter().map(|&value| bf16::from_f32(value).to_f32()).collect()
}

fn widened(values: &[f32]) -> Vec<f64> {
    nearest(values).into_iter().map(f64::from).collect()
}

/// Packs the row-major `matrix` in bf16 pairs.
fn paired(cpu: &Cpu, matrix: &[f32], rows: usize, columns: usize) -> Matrix {
    let mut to = Matrix::new(Precision::Bf16, rows, columns);
    if let OperandMut::Bf16(to) = to.get_mut(rows, columns) {
        pairs::round(cpu, &packed(matrix, rows, columns), MatrixShape::new(rows, columns), to)
            .unwrap();
    }
    to
}

/// Reads the values of a matrix. Both layouts of bf16 pairs must agree and must be padded with
/// zeros.
fn read(matrix: &Matrix, rows: usize, columns: usize) -> Vec<f32> {
    let pairs = match matrix.get(rows, columns) {
        Operand::F32(values) => return unpacked(values, rows, columns),
        Operand::Bf16(pairs) => pairs,
    };
    let halves = |word: u32| [word << 16, word & 0xffff_0000].map(f32::from_bits);
    let across: Vec<f32> = pairs.across.iter().flat_map(|&word| halves(word)).collect();
    for (at, &word) in pairs.down.iter().enumerate() {
        let (row, column) = (at / 32, at % 32);
        let (panel, pair) = (row / rows.div_ceil(2), row % rows.div_ceil(2));
        for (place, value) in halves(word).into_iter().enumerate() {
            let row = 2 * pair + place;
            let expected =
                if row < rows { across[(panel * rows + row) * 32 + column] } else { 0.0 };
            assert!(value == expected || value.is_nan() && expected.is_nan(), "row {row}");
        }
    }
    unpacked(&across, rows, columns)
}

fn weight_of(cpu: &Cpu, weight: &[f32], n: usize, k: usize) -> LinearWeight {
    let mut packed = LinearWeight::new(MatrixShape::new(n, k), Precision::Bf16);
    packed.set(cpu, weight).unwrap();
    packed
}

/// Checks that `got` is within the tolerance of sums of `inner` products that are stored in
/// `precision`.
fn check(got: &[f32], oracle: &[f64], inner: usize, precision: Precision) {
    assert_eq!(got.len(), oracle.len());
    let stored = if precision == Precision::Bf16 { ROUNDING } else { 0.0 };
    for (i, (&got, &expected)) in got.iter().zip(oracle).enumerate() {
        let error = (f64::from(got) - expected).abs();
        let sum = TOLERANCE * expected.abs().max(inner as f64 / 4.0 + 1.0);
        let bound = sum + stored * expected.abs();
        assert!(error <= bound, "element {i}: expected {expected}, got {got}, bound {bound:e}");
    }
}

#[test]
fn widened_products_are_those_of_f32_to_the_last_bit() {
    for (b, n, k) in [(7, 33, 70), (129, 512, 13), (200, 97, 367)] {
        let (x, weight) = (uniform(1, b * k), uniform(2, n * k));
        for isa in Isa::all().into_iter().filter(|isa| *isa != Isa::Portable) {
            let cpu = &Cpu::with_isa(2, isa.with_bf16_products(Bf16Products::Widened).unwrap());
            let forward = |precision: Precision| {
                let mut packed_weight = LinearWeight::new(MatrixShape::new(n, k), precision);
                packed_weight.set(cpu, &nearest(&weight)).unwrap();
                let paired = paired(cpu, &x, b, k);
                let single = packed(&nearest(&x), b, k);
                let x = match precision {
                    Precision::F32 => Operand::F32(&single),
                    Precision::Bf16 => paired.get(b, k),
                };
                let mut y = Matrix::new(Precision::F32, b, n);
                let (weight, to) = (&packed_weight, y.get_mut(b, n));
                let (bias, activation) = (None, Activation::None);
                gemm::forward(cpu, LinearForward { x, weight, bias, activation, y: to, b })
                    .unwrap();
                bits(&read(&y, b, n))
            };
            assert_eq!(forward(Precision::Bf16), forward(Precision::F32), "{isa:?}: {b} {n} {k}");
        }
    }
}

#[test]
fn forward_follows_the_f64_oracle_of_rounded_factors() {
    for (b, n, k) in shapes() {
        let (x, weight, bias) = (uniform(1, b * k), uniform(2, n * k), uniform(3, n));
        for (bias, activation, to) in [
            (None, Activation::None, Precision::F32),
            (Some(&bias), Activation::None, Precision::Bf16),
            (Some(&bias), Activation::Relu, Precision::Bf16),
            (Some(&bias), Activation::Relu, Precision::F32),
        ] {
            let results = on_cpus(&sets(), |cpu| {
                let (x, mut y) = (paired(cpu, &x, b, k), Matrix::new(to, b, n));
                let weight = &weight_of(cpu, &weight, n, k);
                let (x, bias, to) = (x.get(b, k), bias.map(|bias| &bias[..]), y.get_mut(b, n));
                let arguments = LinearForward { x, weight, bias, activation, y: to, b };
                gemm::forward(cpu, arguments).unwrap();
                read(&y, b, n)
            });
            let mut oracle = vec![0.0; b * n];
            let wide_bias = bias.map(|bias| super::widen(bias));
            let wide = [&widened(&x)[..], &widened(&weight)];
            scalar::forward(wide, wide_bias.as_deref(), &mut oracle, n, k);
            if activation == Activation::Relu {
                oracle.iter_mut().for_each(|y| *y = relu(*y));
            }
            results.iter().for_each(|y| check(y, &oracle, k, to));
        }
    }
}

#[test]
fn backward_input_follows_the_f64_oracle_of_rounded_factors() {
    for (b, n, k) in shapes() {
        let (d_y, weight, x) = (uniform(1, b * n), uniform(2, n * k), uniform(3, b * k));
        let mut written = vec![0.0; b * k];
        scalar::backward_input_accumulate([&widened(&d_y), &widened(&weight)], &mut written, n, k);
        for (to, mask) in [
            (Precision::F32, Precision::Bf16),
            (Precision::Bf16, Precision::Bf16),
            (Precision::Bf16, Precision::F32),
        ] {
            let wide = |precision| match precision {
                Precision::F32 => super::widen(&x),
                Precision::Bf16 => widened(&x),
            };
            let each = |x: Vec<f64>, f: fn(f64, f64) -> f64| -> Vec<f64> {
                written.iter().zip(x).map(|(&d, x)| f(x, d)).collect()
            };
            let oracles =
                [written.clone(), each(wide(to), |x, d| x + d), each(wide(mask), relu_gradient)];
            for (variant, oracle) in oracles.iter().enumerate() {
                let results = on_cpus(&sets(), |cpu| {
                    let in_precision = |precision| match precision {
                        Precision::Bf16 => paired(cpu, &x, b, k),
                        Precision::F32 => {
                            let mut matrix = Matrix::new(Precision::F32, b, k);
                            if let OperandMut::F32(to) = matrix.get_mut(b, k) {
                                to.copy_from_slice(&packed(&x, b, k));
                            }
                            matrix
                        }
                    };
                    let (d_y, x, mut d_x) =
                        (paired(cpu, &d_y, b, n), in_precision(mask), in_precision(to));
                    let gradient = match variant {
                        0 => InputGradient::Write,
                        1 => InputGradient::Accumulate,
                        _ => InputGradient::BeforeRelu(x.get(b, k)),
                    };
                    let weight = &weight_of(cpu, &weight, n, k);
                    let (d_y, to) = (d_y.get(b, n), d_x.get_mut(b, k));
                    let arguments = LinearBackwardInput { d_y, weight, gradient, d_x: to, b };
                    gemm::backward_input(cpu, arguments).unwrap();
                    read(&d_x, b, k)
                });
                results.iter().for_each(|d_x| check(d_x, oracle, n, to));
            }
        }
    }
}

#[test]
fn backward_weight_follows_the_f64_oracle_of_rounded_factors() {
    for (b, n, k) in shapes() {
        let (x, d_y) = (uniform(1, b * k), uniform(2, b * n));
        let results = on_cpus(&sets(), |cpu| {
            let (x, d_y) = (paired(cpu, &x, b, k), paired(cpu, &d_y, b, n));
            let (mut d_weight, mut d_bias) = (vec![9.0; panels::len(n, k)], vec![9.0; n]);
            let arguments = LinearBackwardWeight {
                x: x.get(b, k),
                d_y: d_y.get(b, n),
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
        let (x, d_y) = (widened(&x), widened(&d_y));
        scalar::backward_weight([&x, &d_y], &mut d_weight, n, k);
        scalar::backward_bias(&d_y, &mut d_bias);
        for result in results {
            check(&result[..n * k], &d_weight, b, Precision::F32);
            check(&result[n * k..], &d_bias, b, Precision::F32);
        }
    }
}

#[test]
fn small_products_are_right_in_every_corner() {
    // The values are integers that bf16 represents, so that every order of summation gives the
    // same result.
    let values = |seed: u64, len: usize| -> Vec<f32> {
        (0..len).map(|i| below(seed + 7 * i as u64, 9) as f32 - 4.0).collect()
    };
    for b in [1, 2, 3, 7, 8, 9, 65] {
        for n in [1, 2, 17, 31, 32, 33] {
            for k in [1, 2, 7, 31, 32, 33, 64, 65] {
                let [x, weight, d_y] =
                    [(1, b * k), (2, n * k), (3, b * n)].map(|(s, l)| values(s, l));
                let [mut y, mut d_x, mut d_w] = [b * n, b * k, n * k].map(|len| vec![0.0f32; len]);
                scalar::forward([&x, &weight], None, &mut y, n, k);
                scalar::backward_input_accumulate([&d_y, &weight], &mut d_x, n, k);
                scalar::backward_weight([&x, &d_y], &mut d_w, n, k);
                let expected = [&nearest(&y)[..], &nearest(&d_x), &d_w].concat();
                for isa in sets() {
                    let cpu = &Cpu::with_isa(1, isa);
                    assert_eq!(products(cpu, [&x, &weight, &d_y], (b, n, k)), expected);
                }
            }
        }
    }
}

/// Returns Y and dX in bf16, and then dW.
fn products(
    cpu: &Cpu,
    [x, weight, d_y]: [&[f32]; 3],
    (b, n, k): (usize, usize, usize),
) -> Vec<f32> {
    let (x, d_y) = (&paired(cpu, x, b, k), &paired(cpu, d_y, b, n));
    let (x, d_y, weight) = (x.get(b, k), d_y.get(b, n), &weight_of(cpu, weight, n, k));
    let [mut y, mut d_x] = [n, k].map(|columns| Matrix::new(Precision::Bf16, b, columns));
    let mut d_weight = vec![9.0; panels::len(n, k)];
    let (activation, to) = (Activation::None, y.get_mut(b, n));
    let forward = LinearForward { x, weight, bias: None, activation, y: to, b };
    gemm::forward(cpu, forward).unwrap();
    let (gradient, to) = (InputGradient::Write, d_x.get_mut(b, k));
    let backward = LinearBackwardInput { d_y, weight, gradient, d_x: to, b };
    gemm::backward_input(cpu, backward).unwrap();
    let backward = LinearBackwardWeight { x, d_y, d_weight: &mut d_weight, d_bias: None, b, k, n };
    gemm::backward_weight(cpu, backward).unwrap();
    [read(&y, b, n), read(&d_x, b, k), unpacked(&d_weight, n, k)].concat()
}

#[test]
fn values_are_rounded_to_the_nearest_and_ties_to_even() {
    let one = 1.0f32.to_bits();
    let mut values: Vec<f32> = (0..6).map(|i| f32::from_bits(one + i * 0x4000)).collect();
    values.extend([0x7fff, 0x8001, 0x1_7fff, 0x1_8001].map(|bits| f32::from_bits(one + bits)));
    values.extend([0.0, -0.0, f32::MAX, f32::INFINITY, f32::NAN, f32::from_bits(0xff80_0001)]);
    values.extend(values.clone().iter().map(|value| -value));
    values.extend(uniform(5, 3 * 47 - values.len()));
    let expected: Vec<u32> =
        values.iter().map(|&value| u32::from(bf16::from_f32(value).to_bits()) << 16).collect();
    for isa in sets() {
        for threads in [1, 7] {
            let cpu = &Cpu::with_isa(threads, isa);
            assert_eq!(bits(&read(&paired(cpu, &values, 3, 47), 3, 47)), expected, "{isa:?}");
        }
    }
}

#[test]
fn relu_and_its_gradient_propagate_nan() {
    for isa in sets() {
        let cpu = &Cpu::with_isa(1, isa);
        let x = paired(cpu, &[f32::NAN, -1.0], 2, 1);
        let weight = &weight_of(cpu, &[1.0], 1, 1);
        let mut y = Matrix::new(Precision::Bf16, 2, 1);
        let (x, bias, activation) = (x.get(2, 1), Some(&[0.5][..]), Activation::Relu);
        let to = y.get_mut(2, 1);
        let forward = LinearForward { x, weight, bias, activation, y: to, b: 2 };
        gemm::forward(cpu, forward).unwrap();
        // A NaN spreads into the padding, so only the column of the layer is compared.
        let column = |y: &Matrix| match y.get(2, 1) {
            Operand::Bf16(pairs) => [0, 16].map(|at| f32::from_bits(pairs.across[at] << 16)),
            Operand::F32(_) => [0.0; 2],
        };
        let got = column(&y);
        assert!(got[0].is_nan() && got[1] == 0.0, "{isa:?}: {got:?}");
        let d_y = paired(cpu, &[3.0, 4.0], 2, 1);
        let (d_y, gradient, to) = (d_y.get(2, 1), InputGradient::BeforeRelu(x), y.get_mut(2, 1));
        let backward = LinearBackwardInput { d_y, weight, gradient, d_x: to, b: 2 };
        gemm::backward_input(cpu, backward).unwrap();
        assert_eq!(column(&y), [3.0, 0.0], "{isa:?}");
    }
}

#[test]
fn factors_of_two_precisions_are_refused() {
    let cpu = &Cpu::new(1);
    let (b, n, k) = (2, 3, 4);
    let (x, d_y) = (packed(&uniform(1, b * k), b, k), paired(cpu, &uniform(2, b * n), b, n));
    let weight = &weight_of(cpu, &uniform(3, n * k), n, k);
    let mut y = Matrix::new(Precision::F32, b, n);
    let (activation, to) = (Activation::None, y.get_mut(b, n));
    let forward = LinearForward { x: Operand::F32(&x), weight, bias: None, activation, y: to, b };
    check_refused(gemm::forward(cpu, forward), "gemm forward: x: expected bf16, got f32");
    let backward = LinearBackwardWeight {
        x: Operand::F32(&x),
        d_y: d_y.get(b, n),
        d_weight: &mut vec![0.0; panels::len(n, k)],
        d_bias: None,
        b,
        k,
        n,
    };
    let refused: Result<(), Error> = gemm::backward_weight(cpu, backward);
    check_refused(refused, "gemm backward_weight: d_y: expected f32, got bf16");
    let short = &vec![0.0; panels::len(b, k) - 1];
    let mut to = Matrix::new(Precision::Bf16, b, k);
    if let OperandMut::Bf16(to) = to.get_mut(b, k) {
        let refused = pairs::round(cpu, short, MatrixShape::new(b, k), to);
        check_refused(refused, "pairs round: matrix in panels: expected 64, got 63");
    }
}
