//! Tests of exclusive sums, of splitting and joining ids, and of copies of columns, on the emulated
//! device.

use device::cuda::Buffer;
use device::ops::jagged::cuda::{
    Bags, Jagged, Join, Lengths, Regroup, RegroupMode, Split, slot_bytes,
};
use device::ops::jagged::{IdLayout, IdSlot, LocalIds, scalar};
use device::ops::prefix_sum::cuda::{PrefixSum, ScanArguments, SumWidth, scratch_bytes};
use device::ops::prefix_sum::scalar::exclusive;
use schema::JaggedTensor;
use schema::random::CounterRng;

use super::{Bench, benches, floats, random_sizes, same};
use crate::ids;

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

/// Bags on the device, in buffers that are just large enough.
struct Stored {
    offsets: Buffer,
    ids: Buffer,
    weights: Option<Buffer>,
    scales: Option<Buffer>,
    capacity: usize,
    lengths: Buffer,
    scratch: Buffer,
}

impl Stored {
    /// Stores the ids of messages, one after the other, as they arrive: lengths instead of offsets.
    fn arrived(bench: &Bench, sent: &[(JaggedTensor, Vec<f32>)], has_scales: bool) -> Self {
        let lengths: Vec<u32> = sent.iter().flat_map(|(jagged, _)| lengths(jagged)).collect();
        let ids: Vec<i64> = sent.iter().flat_map(|(jagged, _)| jagged.values.clone()).collect();
        let weights: Vec<f32> = sent
            .iter()
            .flat_map(|(jagged, _)| jagged.weights.clone().unwrap_or_default())
            .collect();
        let scales: Vec<f32> = sent.iter().flat_map(|(_, scales)| scales.clone()).collect();
        let is_weighted = sent.iter().any(|(jagged, _)| jagged.weights.is_some());
        Self {
            ids: bench.put(&ids),
            weights: is_weighted.then(|| bench.put(&weights)),
            scales: has_scales.then(|| bench.put(&scales)),
            lengths: bench.put(&lengths),
            ..Self::room(bench, lengths.len(), 0, [false; 2])
        }
    }

    /// Stores a batch.
    fn put(bench: &Bench, jagged: &JaggedTensor) -> Self {
        let offsets: Vec<u64> = jagged.offsets.iter().map(|&offset| offset as u64).collect();
        Self {
            offsets: bench.put(&offsets),
            ids: bench.put(&jagged.values),
            weights: jagged.weights.as_ref().map(|weights| bench.put(weights)),
            ..Self::room(bench, 0, 0, [false; 2])
        }
    }

    fn room(bench: &Bench, bags: usize, capacity: usize, [weighted, scaled]: [bool; 2]) -> Self {
        Self {
            offsets: bench.room::<u64>(bags + 1),
            ids: bench.room::<u64>(capacity),
            weights: weighted.then(|| bench.room::<f32>(capacity)),
            scales: scaled.then(|| bench.room::<f32>(bags)),
            capacity,
            lengths: bench.room::<u32>(bags),
            scratch: bench.driver.alloc(scratch_bytes(bags)).unwrap(),
        }
    }

    fn bags(&self) -> Bags<'_> {
        let Self { offsets, ids, weights, scales, capacity, .. } = self;
        let (weights, scales) = (weights.as_ref(), scales.as_ref());
        Bags { offsets, ids, weights, scales, capacity: *capacity }
    }

    fn lengths(&self) -> Lengths<'_> {
        Lengths { lengths: &self.lengths, scratch: &self.scratch }
    }

    #[track_caller]
    fn same(&self, bench: &Bench, expected: &JaggedTensor, scales: &[f32]) {
        let offsets: Vec<u64> = expected.offsets.iter().map(|&offset| offset as u64).collect();
        assert_eq!(bench.get::<u64>(&self.offsets, offsets.len()), offsets, "{}", bench.name);
        assert_eq!(bench.get::<u32>(&self.lengths, offsets.len() - 1), lengths(expected));
        let ids = bench.get::<i64>(&self.ids, expected.values.len());
        assert_eq!(ids, expected.values, "{}", bench.name);
        if let (Some(buffer), Some(weights)) = (&self.weights, &expected.weights) {
            same("weights", &bench.get(buffer, weights.len()), weights);
        }
        if let Some(buffer) = &self.scales {
            same("scales", &bench.get(buffer, scales.len()), scales);
        }
    }
}

fn lengths(jagged: &JaggedTensor) -> Vec<u32> {
    jagged.offsets.windows(2).map(|bag| (bag[1] - bag[0]) as u32).collect()
}

pub fn check_jagged(bench: &Bench) {
    let kernels = Jagged::load(&bench.driver).unwrap();
    let random = random_sizes([90, 9]).into_iter();
    let random = random.map(|[samples, other]| ([samples, other, 0], samples % 2 == 0));
    let cases = [(ids::SAMPLES, true), ([1, 1, 1], false), ([0, 0, 2], true)];
    for (samples, is_weighted) in cases.into_iter().chain(random) {
        let batches = [0, 1, 2].map(|rank| ids::batch(rank, samples[rank], is_weighted));
        let layout = ids::layout(0, is_weighted, false);
        for batch in batches.iter().filter(|batch| batch.batch_size > 0) {
            check_split(bench, &kernels, &layout, batch);
        }
        for slots in &layout.slots {
            check_join(bench, &kernels, slots, layout.has_scales, &batches);
        }
    }
    check_regroup(bench, &kernels);
}

fn check_split(bench: &Bench, kernels: &Jagged, layout: &IdLayout, batch: &JaggedTensor) {
    let all: Vec<IdSlot> = layout.slots.iter().flatten().cloned().collect();
    let (expected, scales) = scalar::split(&all, batch);
    let from = Stored::put(bench, batch);
    let (bags, has) = (expected.offsets.len() - 1, [batch.weights.is_some(), layout.has_scales]);
    let to = Stored::room(bench, bags, expected.values.len(), has);
    let slots = bench.put(&slot_bytes(&all));
    let split = Split { slots: &slots, slot_count: all.len(), batch_size: batch.batch_size };
    kernels.split(&bench.stream, split, [from.bags(), to.bags()], to.lengths()).unwrap();
    to.same(bench, &expected, &scales);
}

fn check_join(
    bench: &Bench,
    kernels: &Jagged,
    slots: &[IdSlot],
    has_scales: bool,
    batches: &[JaggedTensor; 3],
) {
    let sent: Vec<_> = batches.iter().map(|batch| scalar::split(slots, batch)).collect();
    let LocalIds { jagged: expected, scales } = scalar::join(&sent);
    let from = Stored::arrived(bench, &sent, has_scales);
    let (bags, count) = (expected.offsets.len() - 1, expected.values.len());
    // The buffers have room for more ids than arrived, as in training.
    let to = Stored::room(bench, bags, count + 70, [expected.weights.is_some(), has_scales]);
    let mut bases = vec![0u32];
    bases.extend(batches.iter().scan(0, |base, batch| {
        *base += batch.batch_size as u32;
        Some(*base)
    }));
    let bases = bench.put(&bases);
    let samples = batches.iter().map(|batch| batch.batch_size).sum();
    let join = Join { bases: &bases, ranks: batches.len(), slots: slots.len(), samples };
    let (sides, lengths) = ([from.bags(), to.bags()], [from.lengths(), to.lengths()]);
    kernels.join(&bench.stream, join, sides, lengths).unwrap();
    to.same(bench, &expected, &scales.unwrap());
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
fn ids_on_the_device_go_where_the_oracle_puts_them() {
    benches().iter().for_each(check_jagged);
}
