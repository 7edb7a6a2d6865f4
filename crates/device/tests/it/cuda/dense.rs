//! Tests that the results of the dense operations on the emulated device are bit-identical to
//! those of the oracles.

use device::cuda::Buffer;
use device::ops::activation::cuda::Activation;
use device::ops::activation::scalar::{relu_gradient, sigmoid};
use device::ops::cross::cuda::{Cross, DeviceBackward, DeviceForward};
use device::ops::dense_update::cuda::{DenseUpdate, DeviceParameter, scratch_bytes};
use device::ops::embedding_forward::cuda::NO_BAD_ID;
use device::ops::gemm::Activation as Following;
use device::ops::gemm::cuda::{
    Epilogue, Gemm, Join, LinearShape, Operand, ProductTarget, partial_bytes,
};
use device::ops::interaction::Shape;
use device::ops::interaction::cuda::Interaction;
use device::ops::loss::cuda::{DeviceLoss, LossBuffers};
use device::ops::{cross, dense_update, gemm, interaction, loss};
use device::optimizer::{UpdateRule, device_block};
use schema::random::CounterRng;
use schema::{Loss, Optimizer, OptimizerConfig, Precision, TriangleOrder, WeightDecayMode};

use super::{Bench, benches, floats, random_sizes, same};

pub fn check_gemm(bench: &Bench) {
    let kernels = Gemm::load(&bench.driver).unwrap();
    let mut shapes = vec![[1, 1, 1], [17, 5, 33], [32, 16, 16], [70, 19, 20], [130, 1, 3]];
    shapes.extend([[1, 64, 256], [9, 4, 128]]);
    shapes.extend(random_sizes([150, 70, 90]));
    for [b, n, k] in shapes {
        for precision in [Precision::F32, Precision::Bf16] {
            check_products((bench, &kernels), LinearShape { b, n, k }, precision);
        }
    }
    check_rounding(bench, &kernels);
}

/// Rounds values to a precision, and returns them with a matrix of them on the device.
fn held(bench: &Bench, mut values: Vec<f32>, precision: Precision) -> (Vec<f32>, Buffer) {
    if precision == Precision::F32 {
        let buffer = bench.put(&values);
        return (values, buffer);
    }
    let narrow: Vec<u16> = values.iter().map(|&v| half::bf16::from_f32(v).to_bits()).collect();
    values.iter_mut().for_each(|value| *value = nearest(*value));
    (values, bench.put(&narrow))
}

/// Reads the values of a matrix in this precision.
fn read(bench: &Bench, buffer: &Buffer, len: usize, precision: Precision) -> Vec<f32> {
    if precision == Precision::F32 {
        return bench.get(buffer, len);
    }
    let narrow: Vec<u16> = bench.get(buffer, len);
    narrow.into_iter().map(|bits| half::bf16::from_bits(bits).to_f32()).collect()
}

/// Checks the three products of a layer with factors of this precision, and the operations that
/// precede and follow them.
fn check_products((bench, kernels): (&Bench, &Gemm), shape: LinearShape, precision: Precision) {
    let LinearShape { b, n, k } = shape;
    let (x, on_x) = held(bench, floats(1, b * k), precision);
    let (weight, on_weight) = held(bench, floats(2, n * k), precision);
    let (d_y, on_d_y) = held(bench, floats(3, b * n), precision);
    let bias = floats(4, n);
    let near = |what: &str, got: &[f32], expected: &[f32]| near(kernels, what, got, expected);
    let operand = |matrix| Operand { matrix, precision };
    let rounded = |mut values: Vec<f32>, precision| {
        if precision == Precision::Bf16 {
            values.iter_mut().for_each(|value| *value = nearest(*value));
        }
        values
    };
    for (bias, epilogue, precision) in [
        (Some(&bias), Epilogue::Relu, Precision::F32),
        (Some(&bias), Epilogue::Plain, Precision::Bf16),
        (None, Epilogue::Plain, Precision::F32),
    ] {
        let mut expected = vec![0.0; b * n];
        let given = bias.map(Vec::as_slice);
        gemm::scalar::forward([&x, &weight], given, &mut expected, n, k);
        if matches!(epilogue, Epilogue::Relu) {
            expected.iter_mut().for_each(|y| *y = y.max(0.0));
        }
        let expected = rounded(expected, precision);
        let (_, y) = held(bench, floats(6, b * n), precision);
        let target = ProductTarget { to: Operand { matrix: &y, precision }, epilogue };
        let on_bias = bias.map(|bias| bench.put(bias));
        let factors = [&on_x, &on_weight].map(operand);
        kernels.forward(&bench.stream, shape, factors, on_bias.as_ref(), target).unwrap();
        near("y", &read(bench, &y, b * n, precision), &expected);
    }
    for (join, precision) in [
        (Join::Add, Precision::F32),
        (Join::Add, Precision::Bf16),
        (Join::Write, Precision::Bf16),
        (Join::Write, Precision::F32),
    ] {
        let (old, d_x) = held(bench, floats(5, b * k), precision);
        let mut expected = if join == Join::Add { old } else { vec![0.0; b * k] };
        gemm::scalar::backward_input_accumulate([&d_y, &weight], &mut expected, n, k);
        let expected = rounded(expected, precision);
        let masked = |expected: &[f32]| -> Vec<f32> {
            expected.iter().zip(&x).map(|(d_x, x)| relu_gradient(*x, *d_x)).collect()
        };
        let to = Operand { matrix: &d_x, precision };
        let epilogue = match join {
            Join::Add => Epilogue::Plain,
            Join::Write => Epilogue::BeforeRelu(operand(&on_x)),
        };
        let (factors, target) =
            ([&on_d_y, &on_weight].map(operand), ProductTarget { to, epilogue });
        kernels.backward_input(&bench.stream, shape, factors, target, join).unwrap();
        let got = read(bench, &d_x, b * k, precision);
        match join {
            Join::Write => near("d_x", &got, &masked(&expected)),
            Join::Add => {
                near("d_x", &got, &expected);
                // A mask alone must give the same result, as it is launched after a product of
                // cuBLASLt.
                kernels.mask(&bench.stream, [operand(&on_x), to], b * k).unwrap();
                near("d_x", &read(bench, &d_x, b * k, precision), &masked(&expected));
            }
        }
    }

    check_gradients((bench, kernels), shape, precision);
}

/// Checks the gradients of weight and bias of a layer.
fn check_gradients((bench, kernels): (&Bench, &Gemm), shape: LinearShape, precision: Precision) {
    let LinearShape { b, n, k } = shape;
    let (x, on_x) = held(bench, floats(1, b * k), precision);
    let (d_y, on_d_y) = held(bench, floats(3, b * n), precision);
    let operand = |matrix| Operand { matrix, precision };
    let mut expected = vec![0.0; n * k];
    gemm::scalar::backward_weight([&x, &d_y], &mut expected, n, k);
    let d_weight = bench.room::<f32>(n * k);
    let factors = [&on_d_y, &on_x].map(operand);
    kernels.backward_weight(&bench.stream, shape, factors, &d_weight).unwrap();
    near(kernels, "d_weight", &bench.get(&d_weight, n * k), &expected);

    // The expected sums have the CPU's order: sums of blocks of 64 rows, then the sum of the
    // blocks.
    let of_column = |column| {
        let rows: Vec<f32> = d_y.iter().skip(column).step_by(n).copied().collect();
        let add = |values: &[f32]| values.iter().fold(0.0f32, |sum, value| sum + value);
        add(&rows.chunks(64).map(add).collect::<Vec<_>>())
    };
    let expected: Vec<f32> = (0..n).map(of_column).collect();
    let sums = bench.room::<f32>(n);
    let partials = bench.driver.alloc(partial_bytes([b, n])).unwrap();
    let (d_y, sums_of) = (operand(&on_d_y), [&sums, &partials]);
    kernels.column_sums(&bench.stream, [b, n], d_y, sums_of).unwrap();
    same("sums", &bench.get(&sums, n), &expected);
}

/// Checks that the bytes agree. cuBLASLt adds in another order, so its results may differ in the
/// last bits of f32 or bf16.
fn near(kernels: &Gemm, what: &str, got: &[f32], expected: &[f32]) {
    if kernels.library_version().is_none() {
        return same(what, got, expected);
    }
    let most = expected.iter().fold(1.0f32, |most, value| most.max(value.abs()));
    let apart = got.iter().zip(expected).map(|(got, expected)| (got - expected).abs());
    let worst = apart.fold(0.0, f32::max);
    assert!(worst <= 0.01 * most, "{what}: {worst} of {most}");
}

fn nearest(value: f32) -> f32 {
    half::bf16::from_f32(value).to_f32()
}

fn check_rounding(bench: &Bench, kernels: &Gemm) {
    // The bits include ties, the largest numbers, infinities, and NaN with and without its quiet
    // bit.
    let bits = [0, 0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0x7f7f_ffff, 0xff80_0000, 0x7f80_0001];
    let mut values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
    values.extend(floats(7, 290));
    let (from, to) = (bench.put(&values), bench.room::<u16>(values.len()));
    kernels.round(&bench.stream, [&from, &to], values.len()).unwrap();
    let expected: Vec<f32> = values.iter().map(|&value| nearest(value)).collect();
    same("rounded", &read(bench, &to, values.len(), Precision::Bf16), &expected);
}

pub fn check_interaction(bench: &Bench) {
    let kernels = Interaction::load(&bench.driver).unwrap();
    let mut shapes = vec![(5, 1, 1, true), (1, 3, 3, true), (5, 26, 4, true), (5, 7, 64, false)];
    shapes.extend([(1, 5, 128, true), (2, 3, 256, false)]);
    let random = random_sizes([6, 20, 100]).into_iter();
    shapes.extend(random.map(|[b, features, dim]| (b, features, dim, dim % 2 == 0)));
    for (b, features, dim, dense) in shapes {
        for order in [TriangleOrder::Lower, TriangleOrder::Upper] {
            for itself in [false, true] {
                let shape = Shape { b, features, dense, dim, order, itself };
                let [dense_len, pooled_len, out_len] =
                    [shape.dense_width(), shape.pooled_width(), shape.width()].map(|w| w * shape.b);
                let (x, pooled) = (floats(1, dense_len), floats(2, pooled_len));
                let d_out = floats(3, out_len);
                let on_x = dense.then(|| bench.put(&x));
                let (on_pooled, out) = (bench.put(&pooled), bench.room::<f32>(out_len));
                kernels.forward(&bench.stream, &shape, on_x.as_ref(), &on_pooled, &out).unwrap();
                let mut expected = vec![0.0; out_len];
                interaction::scalar::forward(&shape, &x, &pooled, &mut expected);
                same("out", &bench.get(&out, out_len), &expected);

                let on_d_out = bench.put(&d_out);
                let d_x = dense.then(|| bench.room::<f32>(dense_len));
                let d_pooled = bench.room::<f32>(pooled_len);
                let (dense, d_dense) = (on_x.as_ref(), d_x.as_ref());
                kernels
                    .backward(
                        &bench.stream,
                        &shape,
                        dense,
                        &on_pooled,
                        &on_d_out,
                        d_dense,
                        &d_pooled,
                    )
                    .unwrap();
                let (mut dense_gradient, mut gradient) =
                    (vec![0.0; dense_len], vec![0.0; pooled_len]);
                let outputs = [&mut dense_gradient[..], &mut gradient[..]];
                interaction::scalar::backward(&shape, [&x, &pooled, &d_out], outputs);
                if let Some(d_x) = &d_x {
                    same("d_dense", &bench.get(d_x, dense_len), &dense_gradient);
                }
                same("d_pooled", &bench.get(&d_pooled, pooled_len), &gradient);
            }
        }
    }
}

pub fn check_cross(bench: &Bench) {
    let kernels = Cross::load(&bench.driver).unwrap();
    let random = random_sizes([120, 260]);
    for [rows, columns] in [[1, 1], [13, 37], [100, 3]].into_iter().chain(random) {
        let len = rows * columns;
        let [x0, u, x, d_out, old] = [1, 2, 3, 4, 5].map(|seed| floats(seed, len));
        let bias = floats(6, columns);
        let [on_x0, on_u, on_x, on_d_out] = [&x0, &u, &x, &d_out].map(|values| bench.put(values));
        let (on_bias, out) = (bench.put(&bias), bench.room::<f32>(len));
        let forward = DeviceForward { x0: &on_x0, u: &on_u, bias: &on_bias, x: &on_x, out: &out };
        kernels.forward(&bench.stream, [rows, columns], forward).unwrap();
        let mut expected = vec![0.0; len];
        cross::scalar::forward([&x0, &u, &x], &bias, &mut expected);
        same("out", &bench.get(&out, len), &expected);

        let (d_u, d_x0, d_x) = (bench.room::<f32>(len), bench.put(&old), bench.room::<f32>(len));
        let backward = DeviceBackward {
            x0: &on_x0,
            u: &on_u,
            bias: &on_bias,
            d_out: &on_d_out,
            d_u: &d_u,
            d_x0: &d_x0,
            d_x: &d_x,
        };
        kernels.backward(&bench.stream, [rows, columns], backward).unwrap();
        let (mut u_gradient, mut x0_gradient, mut x_gradient) =
            (vec![0.0; len], old.clone(), vec![0.0; len]);
        let outputs = [&mut u_gradient[..], &mut x0_gradient[..], &mut x_gradient[..]];
        cross::scalar::backward([&d_out, &x0, &u], &bias, outputs);
        for (name, got, expected) in
            [("d_u", &d_u, &u_gradient), ("d_x0", &d_x0, &x0_gradient), ("d_x", &d_x, &x_gradient)]
        {
            same(name, &bench.get(got, len), expected);
        }
    }
}

pub fn check_activation(bench: &Bench) {
    let kernels = Activation::load(&bench.driver).unwrap();
    let len = 300;
    let mut y = floats(1, len);
    (y[0], y[1], y[2]) = (0.0, -0.0, f32::NAN);
    let d_y = floats(2, len);
    let (on_y, on_d_y) = (bench.put(&y), bench.put(&d_y));
    kernels.relu_backward(&bench.stream, [&on_y, &on_d_y], len).unwrap();
    let expected: Vec<f32> = y.iter().zip(&d_y).map(|(&y, &d_y)| relu_gradient(y, d_y)).collect();
    same("d_y", &bench.get(&on_d_y, len), &expected);

    let logits: Vec<f32> = floats(3, len).iter().map(|value| value * 400.0).collect();
    let (on_logits, out) = (bench.put(&logits), bench.room::<f32>(len));
    kernels.sigmoid(&bench.stream, [&on_logits, &out], len).unwrap();
    let expected: Vec<f32> = logits.iter().map(|&logit| sigmoid(f64::from(logit)) as f32).collect();
    bench.math_tolerance(1.0).same("probabilities", &bench.get(&out, len), &expected);
    let mut logits = vec![0.5; 270];
    (logits[1], logits[9], logits[269]) = (f32::INFINITY, f32::NAN, f32::NEG_INFINITY);
    let (on_logits, out) = (bench.put(&logits), bench.put(&vec![0.25f32; 270]));
    kernels.unbounded_has_none(&bench.stream, [&on_logits, &out], 270).unwrap();
    let got: Vec<f32> = bench.get(&out, 270);
    let is_right = |(p, z): (&f32, &f32)| if z.is_finite() { *p == 0.25 } else { p.is_nan() };
    assert!(got.iter().zip(&logits).all(is_right), "{}", bench.name);

    let bias = floats(4, 50);
    let on_bias = bench.put(&bias);
    for activation in [Following::None, Following::Relu] {
        let on_y = bench.put(&d_y);
        kernels.bias(&bench.stream, [&on_y, &on_bias], activation, [6, 50]).unwrap();
        let expected = |(i, y): (usize, &f32)| {
            let sum = y + bias[i % 50];
            if activation == Following::Relu && sum < 0.0 { 0.0 } else { sum }
        };
        let expected: Vec<f32> = d_y.iter().enumerate().map(expected).collect();
        same("y + bias", &bench.get(&on_y, len), &expected);
    }
}

pub fn check_loss(bench: &Bench) {
    let kernels = DeviceLoss::load(&bench.driver).unwrap();
    // The long case has more chunks of 512 samples than the summing block has threads. One order
    // of threads suffices for it.
    let is_long = bench.name.starts_with("Descending") || bench.name == "mutant";
    let many = if is_long { 66_000 } else { 1100 };
    let random = random_sizes([2000]).into_iter().map(|[samples]| (Loss::Mse, samples));
    let cases = [(Loss::BceWithLogits, 1), (Loss::Mse, 700), (Loss::BceWithLogits, many)];
    for (kind, samples) in cases.into_iter().chain(random) {
        let mut logits: Vec<f32> = floats(1, samples).iter().map(|value| value * 90.0).collect();
        let labels: Vec<f32> = floats(2, samples).iter().map(|value| value + 0.5).collect();
        for (broken, bad_id) in [(false, false), (false, true), (true, true)] {
            if broken {
                logits[samples / 2] = f32::NAN;
            }
            let [on_logits, on_labels] = [&logits, &labels].map(|values| bench.put(values));
            let [gradient, probabilities] = [(); 2].map(|()| bench.room::<f32>(samples));
            let (losses, sum) = (bench.room::<f64>(samples), bench.room::<f64>(1));
            let (stop, normaliser) = (bench.put(&[0u32]), bench.put(&[samples as f64 * 2.0]));
            let first_bad = bench.put(&[if bad_id { 3 } else { NO_BAD_ID }]);
            let buffers = LossBuffers {
                logits: &on_logits,
                labels: &on_labels,
                gradient: &gradient,
                probabilities: &probabilities,
                losses: &losses,
                sum: &sum,
                stop: &stop,
                normaliser: &normaliser,
                first_bad: &first_bad,
            };
            kernels.launch(&bench.stream, kind, samples, &buffers).unwrap();
            assert_eq!(
                bench.get::<u32>(&stop, 1),
                [u32::from(broken) + 2 * u32::from(bad_id)],
                "{}",
                bench.name
            );
            if broken {
                continue;
            }
            let sample_loss =
                |i: usize| loss::scalar::sample(kind, f64::from(logits[i]), f64::from(labels[i]));
            let scale = |i| (sample_loss(i).gradient / (samples as f64 * 2.0)) as f32;
            let expected: Vec<f32> = (0..samples).map(scale).collect();
            let tolerance = bench.math_tolerance(samples as f32 * 2.0);
            tolerance.same("gradient", &bench.get(&gradient, samples), &expected);
            let expected: Vec<f32> =
                (0..samples).map(|i| sample_loss(i).probability as f32).collect();
            let got = bench.get(&probabilities, samples);
            bench.math_tolerance(1.0).same("probabilities", &got, &expected);
            let each: Vec<f64> = (0..samples).map(|i| sample_loss(i).loss).collect();
            let add = |values: &[f64]| values.iter().fold(0.0, |sum, value| sum + value);
            let expected = add(&each.chunks(512).map(add).collect::<Vec<_>>());
            let what = format!("sum, {}", bench.name);
            tolerance.same_sum(&what, bench.get::<f64>(&sum, 1)[0], expected);
        }
    }
}

pub fn check_update(bench: &Bench) {
    let kernels = DenseUpdate::load(&bench.driver).unwrap();
    let mut shapes = vec![(1, 1), (5, 3), (9, 64), (3, 200)];
    // These parameters have more elements than one block of LAMB's sums, or several rows.
    shapes.extend([(130, 128), (2, 256), (7, 4)]);
    shapes.extend(random_sizes([40, 260]).into_iter().map(|[rows, dim]| (rows, dim)));
    for kind in Optimizer::ALL {
        for &(rows, dim) in &shapes {
            for stopped in [false, true] {
                check_parameter((bench, &kernels), kind, (rows, dim), stopped);
            }
        }
    }
}

fn check_parameter(
    (bench, kernels): (&Bench, &DenseUpdate),
    kind: Optimizer,
    (rows, dim): (usize, usize),
    stopped: bool,
) {
    let base = OptimizerConfig::new(kind, 0.05);
    let weight_decay_mode = WeightDecayMode::L2;
    let config = OptimizerConfig { weight_decay: 0.01, weight_decay_mode, ..base };
    let rule: UpdateRule = UpdateRule::new(&config, 1.0, 1);
    let elements = rows * dim;
    let (mut weights, gradient) = (floats(1, elements), floats(2, elements));
    let mut state = vec![0.125f32; rows * kind.state_per_row(dim)];
    let block = device_block::bytes(&rule, CounterRng::new(1, 1));
    assert_eq!(block.len(), device_block::BYTES);
    let on_weights = bench.put(&weights);
    let (on_gradient, on_rule) = (bench.put(&gradient), bench.put(&block));
    let on_state = bench.put(&state);
    let (stop, scratch) = (bench.put(&[u32::from(stopped)]), scratch_bytes(elements));
    let scratch = bench.driver.alloc(scratch).unwrap();
    let parameter = DeviceParameter {
        kind,
        rule: &on_rule,
        weights: &on_weights,
        gradient: &on_gradient,
        state: Some(&on_state),
        stop: &stop,
        elements,
        dim,
        scratch: Some(&scratch),
    };
    kernels.launch(&bench.stream, &parameter).unwrap();
    if !stopped {
        dense_update::scalar::update(&rule, [&mut weights, &mut state], &gradient, dim);
    }
    let what = format!("{kind:?} [{rows}, {dim}], stopped: {stopped}, {}", bench.name);
    same(&format!("weights, {what}"), &bench.get(&on_weights, elements), &weights);
    same(&format!("state, {what}"), &bench.get(&on_state, state.len()), &state);
}

#[test]
fn products_on_the_device_have_the_bytes_of_the_oracle() {
    benches().iter().for_each(check_gemm);
}

/// Checks on a GPU with cuBLASLt that its products are close to the oracle's. NVIDIA does not
/// document whether its ReLU keeps a NaN, as the oracle does, or turns it into 0. The test prints
/// which of the two happened.
#[test]
fn products_of_the_library_on_the_device_are_near_the_oracle() {
    for bench in &benches() {
        let kernels = Gemm::load(&bench.driver).unwrap().with_library(&bench.driver).unwrap();
        if kernels.library_version().is_none() {
            testkit::skip("products of cuBLASLt", super::GPU_NEED);
            return;
        }
        kernels.prepare(&bench.stream).unwrap();
        for [b, n, k] in [[128, 64, 256], [2048, 128, 64], [64, 1, 13]] {
            for precision in [Precision::F32, Precision::Bf16] {
                check_products((bench, &kernels), LinearShape { b, n, k }, precision);
            }
        }
        let shape = LinearShape { b: 16, n: 16, k: 16 };
        let (x, weight) = (bench.put(&[f32::NAN; 256]), bench.put(&[1.0f32; 256]));
        let y = bench.room::<f32>(256);
        let target = ProductTarget { epilogue: Epilogue::Relu, ..ProductTarget::plain(&y) };
        let factors = [&x, &weight].map(Operand::f32);
        kernels.forward(&bench.stream, shape, factors, None, target).unwrap();
        let got = bench.get::<f32>(&y, 256);
        let is_kept = got[0].is_nan();
        let is_right = |value: &f32| if is_kept { value.is_nan() } else { *value == 0.0 };
        assert!(got.iter().all(is_right), "{}: {got:?}", bench.name);
        println!("the ReLU of cuBLASLt {} NaN", if is_kept { "keeps" } else { "removes" });
    }
}

#[test]
fn interactions_on_the_device_have_the_bytes_of_the_oracle() {
    benches().iter().for_each(check_interaction);
}

#[test]
fn cross_layers_on_the_device_have_the_bytes_of_the_oracle() {
    benches().iter().for_each(check_cross);
}

#[test]
fn activations_on_the_device_have_the_bytes_of_the_oracle() {
    benches().iter().for_each(check_activation);
}

#[test]
fn losses_on_the_device_have_the_bytes_of_the_oracle() {
    benches().iter().for_each(check_loss);
}

#[test]
fn dense_updates_on_the_device_have_the_bytes_of_the_oracle() {
    benches().iter().for_each(check_update);
}
