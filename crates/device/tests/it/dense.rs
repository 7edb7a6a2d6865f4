//! Tests of the dense operations. The tests compare the operations with their oracles, their
//! gradients with finite differences, and every number of threads with one thread.

mod activation;
mod cross;
mod dense_update;
mod gemm;
mod gemm_bf16;
mod interaction;
mod loss;

use device::MatrixShape;
use device::ops::gemm::panels;
use device::{Cpu, Error, Isa};
use schema::random::CounterRng;

/// Returns `len` uniform random values in `−1..1`.
fn uniform(seed: u64, len: usize) -> Vec<f32> {
    let rng = CounterRng::new(seed, 77);
    (0..len as u64).map(|i| (rng.unit(i) * 2.0 - 1.0) as f32).collect()
}

/// Draws an integer below `bound`, which is used for the sizes of a shape.
fn below(seed: u64, bound: usize) -> usize {
    CounterRng::new(seed, 78).below(0, bound as u64) as usize
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// Packs the row-major `matrix` `[rows, columns]` in panels.
fn packed(matrix: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut packed = vec![9.0; panels::len(rows, columns)];
    panels::pack(&Cpu::new(1), matrix, MatrixShape::new(rows, columns), &mut packed).unwrap();
    packed
}

/// Unpacks a matrix and checks that its padding is zero.
fn unpacked(panels: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut matrix = vec![9.0; rows * columns];
    panels::unpack(&Cpu::new(1), panels, MatrixShape::new(rows, columns), &mut matrix).unwrap();
    // Zeros of either sign in the padding do not change a sum, but other values would.
    let padded = packed(&matrix, rows, columns);
    assert!(padded.iter().zip(panels).all(|(a, b)| a == b || a.is_nan()), "padding");
    matrix
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs `op` on every instruction set with 1, 2 and 7 threads. The bytes must agree within one
/// set. Returns one result per set, with the portable set first.
fn on_every_cpu(op: impl Fn(&Cpu) -> Vec<f32>) -> Vec<Vec<f32>> {
    on_cpus(&Isa::all(), op)
}

/// Runs `op` like [`on_every_cpu`], but only on these instruction sets.
fn on_cpus(sets: &[Isa], op: impl Fn(&Cpu) -> Vec<f32>) -> Vec<Vec<f32>> {
    let on = |isa: Isa| {
        let [one, two, seven] = [1, 2, 7].map(|threads| op(&Cpu::with_isa(threads, isa)));
        assert!(bits(&one) == bits(&two), "{isa:?}: 2 threads differ from 1");
        assert!(bits(&one) == bits(&seven), "{isa:?}: 7 threads differ from 1");
        one
    };
    sets.iter().map(|&isa| on(isa)).collect()
}

/// Runs `op` like [`on_every_cpu`], and checks that every instruction set gives the same bytes.
fn same_on_every_cpu(op: impl Fn(&Cpu) -> Vec<f32>) -> Vec<f32> {
    let mut results = on_every_cpu(op);
    let first = results.remove(0);
    for result in results {
        assert!(bits(&first) == bits(&result), "the instruction set changes the bytes");
    }
    first
}

/// Checks that `|got − expected| ≤ tolerance · max(scale, |expected|)` holds for every element.
fn assert_close(got: &[f32], expected: &[f64], tolerance: f64, scale: f64) {
    assert_eq!(got.len(), expected.len());
    for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got) - expected).abs();
        let bound = tolerance * expected.abs().max(scale);
        assert!(error <= bound, "element {i}: expected {expected}, got {got}, bound {bound:e}");
    }
}

/// Checks that `gradient` agrees with central differences of `loss` at `point`, to a relative
/// 1e-6.
fn check_gradient(point: &[f64], gradient: &[f64], loss: impl Fn(&[f64]) -> f64) {
    assert_eq!(point.len(), gradient.len());
    let h = 1e-5;
    let mut moved = point.to_vec();
    for i in 0..point.len() {
        let mut at = |x: f64| {
            moved[i] = x;
            loss(&moved)
        };
        let expected = (at(point[i] + h) - at(point[i] - h)) / (2.0 * h);
        moved[i] = point[i];
        let error = (expected - gradient[i]).abs();
        let bound = 1e-6 * expected.abs().max(1.0);
        assert!(error <= bound, "element {i}: difference {expected}, gradient {}", gradient[i]);
    }
}

/// Returns `Σ values · weights`, which serves as a scalar loss of a whole output.
fn weighted(values: &[f64], weights: &[f64]) -> f64 {
    values.iter().zip(weights).map(|(&value, &weight)| value * weight).sum()
}

fn check_refused(result: Result<(), Error>, text: &str) {
    assert_eq!(result.unwrap_err().to_string(), text);
}
