//! The kernels of a GPU, run by the emulator against the scalar oracles in four orders; the
//! emulator itself; NVRTC and the driver's calls where those can be had without a GPU.

/// A kernel with this body for [`emulator::run`].
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
mod sanitizers;
mod stub;
mod stub_library;

use std::path::PathBuf;

use bytemuck::Pod;
use device::cuda::{BlockOrder, Buffer, Checks, Driver, Emulation, H100_SHARED_BYTES, Stream};
use schema::random::CounterRng;

/// A device to run on, and copies to and from it.
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

    /// A buffer with these values.
    pub fn put<T: Pod>(&self, values: &[T]) -> Buffer {
        let bytes = bytemuck::cast_slice(values);
        let buffer = self.driver.alloc(bytes.len()).unwrap();
        self.stream.upload(&buffer, 0, bytes).unwrap();
        buffer
    }

    /// A buffer for so many values, poisoned.
    pub fn room<T: Pod>(&self, count: usize) -> Buffer {
        self.driver.alloc(count * size_of::<T>()).unwrap()
    }

    /// The first values of a buffer.
    pub fn get<T: Pod>(&self, buffer: &Buffer, count: usize) -> Vec<T> {
        let mut values = vec![T::zeroed(); count];
        self.stream.download(buffer, 0, bytemuck::cast_slice_mut(&mut values)).unwrap();
        values
    }
}

/// What the emulator compiles with.
pub fn emulation(order: BlockOrder, checks: Checks) -> Emulation {
    let compiler = std::env::var_os("CXX").map_or_else(|| "g++".into(), PathBuf::from);
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let shared_limit = H100_SHARED_BYTES;
    Emulation { compiler, cache, order, checks, shared_limit, replaced: Vec::new() }
}

/// Whether there is a C++ compiler; says so where there is none.
pub fn has_compiler() -> bool {
    let compiler = emulation(BlockOrder::Ascending, Checks::Few).compiler;
    let found = std::process::Command::new(&compiler).arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIPPED: {} is not there, a C++ compiler (CXX)", compiler.display());
    }
    found
}

/// The GPU of `ROWMILL_GPU`, where that is set; NVRTC in `ROWMILL_NVRTC` and compiled kernels in
/// `ROWMILL_KERNELS`.
fn gpu() -> Option<Bench> {
    let ordinal = std::env::var("ROWMILL_GPU").ok()?.parse().unwrap();
    let folder = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = folder("ROWMILL_KERNELS").unwrap_or_else(std::env::temp_dir);
    let driver = Driver::cuda(ordinal, folder("ROWMILL_NVRTC"), cache).unwrap();
    Some(Bench::new(driver, "cuda"))
}

/// The emulator in each order; every access is checked in two of them.
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

/// Random sizes from 1 to `most`, small ones as often as large ones: two such, or as many as
/// `ROWMILL_SHAPES` says, which `cargo xtask ci --full` sets.
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

/// Numbers around 0.
pub fn floats(seed: u64, count: usize) -> Vec<f32> {
    let rng = CounterRng::new(seed, 77);
    (0..count as u64).map(|i| rng.unit(i) as f32 - 0.5).collect()
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Whether two slices have the same bytes.
#[track_caller]
pub fn same(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let differs = bits(got).iter().zip(&bits(expected)).position(|(got, expected)| got != expected);
    if let Some(i) = differs {
        panic!("{what}[{i}]: expected {}, got {}", expected[i], got[i]);
    }
}
