//! Tests of the GPU kernels, which the emulator runs in four orders of threads against the scalar
//! oracles. Other tests check the emulator itself, NVRTC, and the driver's calls as far as they
//! work without a GPU.

/// Builds the source of a kernel with this body, for [`emulator::run`].
macro_rules! kernel {
    ($body:literal) => {
        concat!("struct A { u64 out; u32 n, pad; };\nKERNEL(mistake, A, 128) {\n", $body, "}\n")
    };
}

mod bandwidth;
pub mod dense;
mod emulator;
pub mod exchange;
pub mod jagged;
mod mutation;
mod nvrtc;
pub mod sanitizers;
mod stub;
mod stub_library;

use std::path::PathBuf;

use bytemuck::Pod;
use device::cuda::{BlockOrder, Buffer, Checks, Driver, Emulation, H100_SHARED_BYTES, Stream};
use schema::random::CounterRng;

/// A device to test, with functions that copy values to and from it.
pub struct Bench {
    pub driver: Driver,
    pub stream: Stream,
    pub name: String,
}

impl Bench {
    pub fn new(driver: Driver, name: &str) -> Self {
        let stream = driver.stream().unwrap();
        Self { driver, stream, name: name.to_owned() }
    }

    /// Allocates a device buffer with these values.
    pub fn put<T: Pod>(&self, values: &[T]) -> Buffer {
        let bytes = bytemuck::cast_slice(values);
        let buffer = self.driver.alloc(bytes.len()).unwrap();
        self.stream.upload(&buffer, 0, bytes).unwrap();
        buffer
    }

    /// Allocates a poisoned device buffer for `count` values.
    pub fn room<T: Pod>(&self, count: usize) -> Buffer {
        self.driver.alloc(count * size_of::<T>()).unwrap()
    }

    /// Reads the first `count` values of a buffer.
    pub fn get<T: Pod>(&self, buffer: &Buffer, count: usize) -> Vec<T> {
        let mut values = vec![T::zeroed(); count];
        self.stream.download(buffer, 0, bytemuck::cast_slice_mut(&mut values)).unwrap();
        values
    }
}

/// Returns the options of an emulator with an H100's shared memory.
pub fn emulation(order: BlockOrder, checks: Checks) -> Emulation {
    let compiler = testkit::compiler::cxx();
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let shared_limit = H100_SHARED_BYTES;
    Emulation { compiler, cache, order, checks, shared_limit, replaced: replaced() }
}

/// Returns the sources that replace embedded ones, from `ROWMILL_REPLACED` as NAME=FILE. The
/// rehearsal of bench/gpu uses this to show that the tests detect a wrong kernel.
fn replaced() -> Vec<(&'static str, String)> {
    let Ok(value) = std::env::var("ROWMILL_REPLACED") else { return Vec::new() };
    let (name, file) = value.split_once('=').unwrap();
    let source = device::backend::SOURCES.iter().find(|source| source.name == name).unwrap();
    vec![(source.name, std::fs::read_to_string(file).unwrap())]
}

/// What tests that need a GPU report as missing when they are skipped.
pub const GPU_NEED: &str = "a GPU: bench/gpu/run.sh on a machine that has one";

/// Returns whether kernels can be emulated.
pub fn has_compiler() -> bool {
    testkit::compiler::has_cxx("GPU kernels, emulated")
}

/// Returns the GPU of `ROWMILL_GPU`, if that is set, with the compiled kernels in
/// `ROWMILL_KERNELS`.
pub fn gpu() -> Option<Bench> {
    let ordinal = std::env::var("ROWMILL_GPU").ok()?.parse().unwrap();
    let driver = Driver::cuda(ordinal, stub_library::options_of_environment()).unwrap();
    Some(Bench::new(driver, "cuda"))
}

/// Returns one emulator for each order of threads, of which two check every access.
pub fn benches() -> Vec<Bench> {
    if let Some(bench) = gpu() {
        return vec![bench];
    }
    if !has_compiler() {
        return Vec::new();
    }
    if sanitizers::is_child() {
        return vec![
            sanitizers::bench(BlockOrder::Ascending),
            sanitizers::bench(BlockOrder::Descending),
        ];
    }
    let orders = [
        (BlockOrder::Ascending, Checks::Every),
        (BlockOrder::Descending, Checks::Every),
        (BlockOrder::Shuffled(1), Checks::Few),
        (BlockOrder::Shuffled(2), Checks::Few),
    ];
    let bench = |(order, checks)| {
        Bench::new(Driver::emulated(emulation(order, checks)), &format!("{order:?}, {checks:?}"))
    };
    orders.map(bench).into()
}

/// Draws random sizes from 1 to `most`, small ones as often as large ones. Draws two sets, or as
/// many as `ROWMILL_SHAPES` states, which `cargo xtask ci --full` sets.
pub fn random_sizes<const N: usize>(most: [usize; N]) -> Vec<[usize; N]> {
    let count = std::env::var("ROWMILL_SHAPES").map_or(2, |text| text.parse().unwrap());
    let size = |number: u64, i: usize| {
        let rng = CounterRng::new(number, i as u64);
        let digits = most[i].ilog2() + 1;
        let most = most[i].min((1 << (1 + rng.below(0, u64::from(digits)))) - 1);
        1 + rng.below(1, most as u64) as usize
    };
    (0..count).map(|number| std::array::from_fn(|i| size(number, i))).collect()
}

/// Returns random f32 values around zero, drawn from a seed.
pub fn floats(seed: u64, count: usize) -> Vec<f32> {
    let rng = CounterRng::new(seed, 77);
    (0..count as u64).map(|i| rng.unit(i) as f32 - 0.5).collect()
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Checks that two slices have the same bytes.
#[track_caller]
pub fn same(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let differs = bits(got).iter().zip(&bits(expected)).position(|(got, expected)| got != expected);
    if let Some(i) = differs {
        panic!("{what}[{i}]: expected {}, got {}", expected[i], got[i]);
    }
}

/// The differences from the oracle's result that a test permits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Largest difference in units in the last place of f32.
    ulps: u32,
    /// Largest absolute error of results that are differences of nearly equal numbers, which have
    /// few accurate digits.
    absolute: f32,
    /// Largest relative difference of a sum in f64.
    relative: f64,
}

impl Bench {
    /// Returns the tolerance of results that depend on `exp` and `log1p` in f64, divided by
    /// `normaliser`.
    ///
    /// The emulator and the oracle call the same functions of the host, so their bytes agree. A
    /// GPU has its own functions. NVIDIA documents an error of at most 1 ulp for each of them
    /// (CUDA C++ Programming Guide, accuracy of double-precision functions), and so does glibc.
    /// The results of both may be 1 ulp from the true value, on different sides. With the
    /// division that follows, the error stays below 8 ulps of f64, which is 2⁻⁵⁰ for a number up
    /// to 1. Such an error changes the nearest f32 by at most one unit in its last place. `p − y`
    /// and `1 − p` lose leading digits, so for them the absolute error of 2⁻⁵⁰ remains. In a sum
    /// of 1,100 samples in chunks of 512, each value is rounded at most 515 times, which is a
    /// relative error of 515 · 2⁻⁵³ < 10⁻¹³. A GPU rounds square roots and divisions in the same
    /// way as the host, so other kernels need no tolerance.
    pub fn math_tolerance(&self, normaliser: f32) -> Tolerance {
        if self.name == "cuda" {
            Tolerance { ulps: 1, absolute: 2.0f32.powi(-50) / normaliser, relative: 1e-13 }
        } else {
            Tolerance { ulps: 0, absolute: 0.0, relative: 0.0 }
        }
    }
}

impl Tolerance {
    fn allows(self, got: f32, expected: f32) -> bool {
        // The closure maps floats to integers in the same order, so that neighboring floats
        // differ by one.
        let place = |value: f32| {
            let bits = i64::from(value.to_bits() & 0x7fff_ffff);
            if value.is_sign_negative() { -bits } else { bits }
        };
        let apart = (place(got) - place(expected)).unsigned_abs();
        let is_near = apart <= u64::from(self.ulps) || (got - expected).abs() <= self.absolute;
        got.to_bits() == expected.to_bits() || (self.ulps > 0 && is_near)
    }

    /// Checks that two slices agree within the tolerance.
    #[track_caller]
    pub fn same(self, what: &str, got: &[f32], expected: &[f32]) {
        assert_eq!(got.len(), expected.len(), "{what}");
        for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
            assert!(self.allows(got, expected), "{what}[{i}]: expected {expected}, got {got}");
        }
    }

    /// Checks that two sums agree within the tolerance.
    #[track_caller]
    pub fn same_sum(self, what: &str, got: f64, expected: f64) {
        let apart = (got - expected).abs();
        let is_near = got.to_bits() == expected.to_bits() || apart < self.relative * expected.abs();
        assert!(is_near, "{what}: expected {expected}, got {got}");
    }
}

#[test]
fn only_a_gpu_has_a_tolerance_and_it_ends_after_one_ulp() {
    let next = |value: f32, ulps| f32::from_bits(value.to_bits() + ulps);
    let exact = Tolerance { ulps: 0, absolute: 0.0, relative: 0.0 };
    let of_gpu = Tolerance { ulps: 1, absolute: 1e-20, relative: 1e-13 };
    assert!(exact.allows(0.1, 0.1) && !exact.allows(next(0.1, 1), 0.1));
    assert!(!exact.allows(0.0, -0.0) && of_gpu.allows(0.0, -0.0));
    assert!(of_gpu.allows(next(0.1, 1), 0.1) && !of_gpu.allows(next(0.1, 2), 0.1));
    assert!(of_gpu.allows(9e-21, 0.0) && !of_gpu.allows(2e-20, 0.0));
    assert!(!of_gpu.allows(f32::NAN, 1.0));
    if has_compiler() {
        let emulated = Driver::emulated(emulation(BlockOrder::Ascending, Checks::Few));
        let tolerance = |name: &str| Bench::new(emulated.clone(), name).math_tolerance(1.0);
        assert_eq!(tolerance("Ascending"), exact);
        assert_eq!(tolerance("cuda").ulps, 1);
    }
}
