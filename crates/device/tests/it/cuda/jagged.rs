//! Tests of exclusive sums and of the operations on bags, on the emulated device.

use device::ops::jagged::cuda::{Bags, Bucketise, Jagged, Lengths, Regroup, RegroupMode};
use device::ops::jagged::scalar;
use device::ops::prefix_sum::cuda::{PrefixSum, ScanArguments, SumWidth, scratch_bytes};
use device::ops::prefix_sum::scalar::exclusive;
use schema::JaggedTensor;
use schema::random::CounterRng;

use super::{Bench, benches, floats, random_sizes, same};

pub fn check_prefix_sum(bench: &Bench) {
    let kernels = PrefixSum::load(&bench.driver).unwrap();
    let random = random_sizes([9000]).into_iter().map(|[count]| count);
    let counts = [1usize, 2, 31, 33, 1024, 1025, 5000, 1024 * 1024 + 5];
    for count in counts.into_iter().chain(random) {
        // The largest case needs a second pass of the single block that sums the blocks. The case
        // is slow, so only one order of threads runs it.
        let has_time = bench.name.starts_with("Shuffled(1)") || bench.name == "mutant";
        if count > 10_000 && !has_time {
            continue;
        }
        let rng = CounterRng::new(count as u64, 3);
        let values: Vec<u32> = (0..count as u64).map(|i| rng.below(i, 1000) as u32).collect();
        let (expected, sum) = exclusive(&values);
        for sums in [SumWidth::U32, SumWidth::U64] {
            let (input, total) = (bench.put(&values), bench.room::<u64>(1));
            let out = bench.room::<u64>(count);
            let scratch = bench.driver.alloc(scratch_bytes(count)).unwrap();
            let (values, address) = (&input, total.address());
            let out = if sums == SumWidth::U32 { values } else { &out };
            let scan =
                ScanArguments { values, out, scratch: &scratch, total: address, count, sums };
            kernels.launch(&bench.stream, &scan).unwrap();
            let (got, got_sum): (Vec<u64>, u64) = match sums {
                SumWidth::U64 => (bench.get(out, count), bench.get::<u64>(&total, 1)[0]),
                SumWidth::U32 => {
                    let got = bench.get::<u32>(out, count).into_iter().map(u64::from).collect();
                    (got, u64::from(bench.get::<u32>(&total, 1)[0]))
                }
            };
            assert!(got == expected && got_sum == sum, "{count} numbers, {}", bench.name);
        }
    }
}

fn batch(features: usize, samples: usize, weighted: bool) -> JaggedTensor {
    let rng = CounterRng::new(9, 1);
    let bags = features * samples;
    let lengths: Vec<usize> = (0..bags as u64).map(|bag| rng.below(bag, 5) as usize).collect();
    let ids: Vec<i64> = (0..lengths.iter().sum::<usize>() as u64)
        .map(|i| rng.child(2).below(i, 97) as i64)
        .collect();
    let weights = weighted.then(|| floats(4, ids.len()));
    JaggedTensor { weights, ..JaggedTensor::from_lengths(features, &lengths, ids) }
}

/// A batch of bags on the device, in buffers that are large enough for its ids.
struct Stored {
    offsets: device::cuda::Buffer,
    ids: device::cuda::Buffer,
    weights: Option<device::cuda::Buffer>,
}

impl Stored {
    fn put(bench: &Bench, jagged: &JaggedTensor) -> Self {
        let offsets: Vec<u64> = jagged.offsets.iter().map(|&offset| offset as u64).collect();
        Self {
            offsets: bench.put(&offsets),
            ids: bench.put(&jagged.values),
            weights: jagged.weights.as_ref().map(|weights| bench.put(weights)),
        }
    }

    fn room(bench: &Bench, (bags, ids): (usize, usize), weighted: bool) -> Self {
        Self {
            offsets: bench.room::<u64>(bags + 1),
            ids: bench.room::<u64>(ids),
            weights: weighted.then(|| bench.room::<f32>(ids)),
        }
    }

    fn bags(&self) -> Bags<'_> {
        Bags { offsets: &self.offsets, ids: &self.ids, weights: self.weights.as_ref() }
    }

    #[track_caller]
    fn same(&self, bench: &Bench, expected: &JaggedTensor) {
        let offsets: Vec<u64> = expected.offsets.iter().map(|&offset| offset as u64).collect();
        assert_eq!(bench.get::<u64>(&self.offsets, offsets.len()), offsets, "{}", bench.name);
        let ids = bench.get::<i64>(&self.ids, expected.values.len());
        assert_eq!(ids, expected.values, "{}", bench.name);
        if let (Some(buffer), Some(weights)) = (&self.weights, &expected.weights) {
            same("weights", &bench.get(buffer, weights.len()), weights);
        }
    }
}

pub fn check_jagged(bench: &Bench) {
    let kernels = Jagged::load(&bench.driver).unwrap();
    let random = random_sizes([6, 90]).into_iter();
    let random = random.map(|[features, samples]| (features, samples, samples % 2 == 0));
    let cases = [(3, 100, true), (1, 1, false), (5, 60, false)];
    for (features, samples, weighted) in cases.into_iter().chain(random) {
        let jagged = batch(features, samples, weighted);
        let (bags, nnz) = (features * samples, jagged.values.len());
        let from = Stored::put(bench, &jagged);
        let scratch = bench.driver.alloc(scratch_bytes(4 * bags)).unwrap();
        let lengths = bench.room::<u32>(4 * bags);
        let lengths = Lengths { lengths: &lengths, scratch: &scratch };

        // The permutation takes every second bag in reverse order, and one of them twice.
        let mut sources: Vec<u32> = (0..bags as u32).rev().step_by(2).collect();
        sources.push(0);
        let permuted = scalar::permute(&jagged, &sources);
        let to = Stored::room(bench, (sources.len(), permuted.values.len()), weighted);
        let (order, sides) = (bench.put(&sources), [from.bags(), to.bags()]);
        kernels.permute(&bench.stream, &order, sources.len(), sides, lengths).unwrap();
        to.same(bench, &permuted);

        let (shards, blocks) = (4, vec![25u64; features]);
        let (bucketised, expected) = scalar::bucketise(&jagged, &blocks, shards);
        let to = Stored::room(bench, (shards * bags, nnz), weighted);
        let (blocks, positions) = (bench.put(&blocks), bench.room::<u32>(nnz));
        let arguments = Bucketise {
            blocks: &blocks,
            positions: &positions,
            features,
            batch_size: samples,
            shards,
        };
        kernels.bucketise(&bench.stream, arguments, [from.bags(), to.bags()], lengths).unwrap();
        to.same(bench, &bucketised);
        assert_eq!(bench.get::<u32>(&positions, nnz), expected, "{}", bench.name);
    }
    check_regroup(bench, &kernels);
}

fn check_regroup(bench: &Bench, kernels: &Jagged) {
    let (rows, from_width, to_width) = (37, 9, 20);
    let (from, to) = (floats(1, rows * from_width), floats(2, rows * to_width));
    for mode in [RegroupMode::Copy, RegroupMode::Add] {
        let [source, target] = [&from, &to].map(|values| bench.put(values));
        let regroup = Regroup { rows, columns: 7, from: [from_width, 2], to: [to_width, 11], mode };
        kernels.regroup(&bench.stream, regroup, [&source, &target]).unwrap();
        let mut expected = to.clone();
        for row in 0..rows {
            for column in 0..7 {
                let value = from[row * from_width + 2 + column];
                let place = &mut expected[row * to_width + 11 + column];
                *place = if mode == RegroupMode::Add { *place + value } else { value };
            }
        }
        same("columns", &bench.get(&target, to.len()), &expected);
    }
}

#[test]
fn exclusive_sums_on_the_device_are_exact() {
    benches().iter().for_each(check_prefix_sum);
}

#[test]
fn bags_on_the_device_go_where_the_oracle_puts_them() {
    benches().iter().for_each(check_jagged);
}
