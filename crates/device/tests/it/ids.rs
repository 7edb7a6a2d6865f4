//! Exchanges ids between three ranks on the CPU and on the emulated GPU. Both must split and join
//! them to the bytes of the oracle.

use device::Cpu;
use device::backend::{Backend, DistributedIds};
use device::ops::jagged::{IdLayout, IdMessages, IdSlot, LocalIds, scalar};
use schema::JaggedTensor;
use schema::random::CounterRng;

use crate::backend::cuda::devices;
use crate::cuda::floats;

/// Number of rows of every table.
const ROWS: i64 = 97;
const FEATURES: usize = 4;
/// Numbers of samples of the ranks. One rank has none.
pub const SAMPLES: [usize; 3] = [37, 0, 300];

fn slot(feature: usize, rows: std::ops::Range<i64>) -> IdSlot {
    let all_rows = rows == (0..ROWS);
    IdSlot { feature, position: None, rows, all_rows, mean: feature == 3 }
}

/// Creates the slots of a row-wise table, a column-wise one, a row-wise sequence of three ids, and
/// a grid of means. The last rank has no slots if `is_short`.
pub fn layout(own: usize, has_scales: bool, is_short: bool) -> IdLayout {
    let mut slots = vec![Vec::new(); SAMPLES.len()];
    let last = if is_short { 1 } else { 2 };
    for (rank, rows) in [(0, 0..30), (1, 30..31), (last, 31..97)] {
        slots[rank].push(slot(0, rows));
    }
    for rank in [0, last] {
        slots[rank].push(slot(1, 0..ROWS));
    }
    for (rank, rows) in [(1, 0..60), (last, 60..ROWS)] {
        let positions = (0..3).map(|at| IdSlot { position: Some(at), ..slot(2, rows.clone()) });
        slots[rank].extend(positions);
    }
    slots[0].push(IdSlot { position: Some(1), ..slot(2, 0..ROWS) });
    for (rank, rows) in [(0, 0..50), (1, 0..50), (1, 50..ROWS), (last, 50..ROWS)] {
        slots[rank].push(IdSlot { mean: has_scales, ..slot(3, rows) });
    }
    IdLayout { slots, own, has_scales }
}

/// Creates a rank's batch, with bags of up to five ids.
pub fn batch(rank: usize, samples: usize, is_weighted: bool) -> JaggedTensor {
    let rng = CounterRng::new(9, rank as u64);
    let bags = FEATURES * samples;
    let lengths: Vec<usize> = (0..bags as u64).map(|bag| rng.below(bag, 6) as usize).collect();
    let count = lengths.iter().sum::<usize>();
    let ids = (0..count as u64).map(|i| rng.child(2).below(i, ROWS as u64) as i64).collect();
    let weights = is_weighted.then(|| floats(4 + rank as u64, count));
    JaggedTensor { weights, ..JaggedTensor::from_lengths(FEATURES, &lengths, ids) }
}

/// The exchange of one batch between all ranks on devices of one kind.
struct Exchanged {
    /// Messages of every rank to every rank.
    sent: Vec<IdMessages>,
    joined: Vec<LocalIds>,
    /// Numbers of samples of each rank, and of ids of each slot, on every rank.
    counts: Vec<(Vec<usize>, Vec<usize>)>,
}

/// Exchanges batches. Every rank keeps its buffers from one batch to the next.
fn exchange<B: Backend>(
    device: &B,
    layouts: [IdLayout; 3],
    batches: &[[JaggedTensor; 3]],
) -> Vec<Exchanged> {
    let mut ranks = layouts.map(|layout| device.ids(layout).unwrap());
    let queue = device.queue().unwrap();
    let mut exchanged = Vec::new();
    for batch in batches {
        let mut messages = [(); 3].map(|()| IdMessages::default());
        for ((ids, batch), messages) in ranks.iter_mut().zip(batch).zip(&mut messages) {
            ids.split(batch, messages).unwrap();
        }
        let sent = messages.to_vec();
        for receiver in 0..3 {
            for sender in 0..receiver {
                let [to, from] = messages.get_disjoint_mut([receiver, sender]).unwrap();
                std::mem::swap(&mut to.lengths[sender], &mut from.lengths[receiver]);
                std::mem::swap(&mut to.samples[sender], &mut from.samples[receiver]);
                std::mem::swap(&mut to.values[sender], &mut from.values[receiver]);
                std::mem::swap(&mut to.weights[sender], &mut from.weights[receiver]);
                std::mem::swap(&mut to.scales[sender], &mut from.scales[receiver]);
            }
        }
        let (mut joined, mut counts) = (Vec::new(), Vec::new());
        for (ids, messages) in ranks.iter_mut().zip(&mut messages) {
            device.release_ids(&queue, ids).unwrap();
            ids.join(messages).unwrap();
            device.acquire_ids(&queue, ids).unwrap();
            joined.push(ids.read(&mut LocalIds::default()).unwrap().clone());
            counts.push((ids.counts().batch_sizes.clone(), ids.counts().ids_per_slot.clone()));
        }
        exchanged.push(Exchanged { sent, joined, counts });
    }
    exchanged
}

/// Returns the ids that a rank looks up according to the oracle.
fn expected(layout: &IdLayout, batches: &[JaggedTensor; 3]) -> LocalIds {
    let slots = &layout.slots[layout.own];
    let sent: Vec<_> = batches.iter().map(|batch| scalar::split(slots, batch)).collect();
    let joined = scalar::join(&sent);
    LocalIds { scales: joined.scales.filter(|_| layout.has_scales), ..joined }
}

fn check(is_weighted: bool, has_scales: bool, is_short: bool) {
    let layouts = || [0, 1, 2].map(|own| layout(own, has_scales, is_short));
    // The second batch is larger than the first, and the last has no ids.
    let batches = [SAMPLES.map(|samples| samples / 5), SAMPLES, [0; 3]];
    let batches =
        batches.map(|samples| [0, 1, 2].map(|rank| batch(rank, samples[rank], is_weighted)));
    let on_cpu = exchange(&Cpu::new(1), layouts(), &batches);
    for (batch, exchanged) in batches.iter().zip(&on_cpu) {
        for (rank, layout) in layouts().iter().enumerate() {
            let expected = expected(layout, batch);
            assert_eq!(exchanged.joined[rank], expected, "rank {rank}");
            let (batch_sizes, ids) = &exchanged.counts[rank];
            assert!(batch_sizes.iter().copied().eq(batch.iter().map(|batch| batch.batch_size)));
            let jagged = &expected.jagged;
            assert!(
                ids.iter().copied().eq((0..jagged.features).map(|key| jagged.feature(key).len()))
            );
        }
    }
    for device in devices() {
        let before = device.driver().emulated_launches();
        for (on_device, on_cpu) in exchange(&device, layouts(), &batches).iter().zip(&on_cpu) {
            assert_eq!(on_device.joined, on_cpu.joined);
            assert_eq!(on_device.counts, on_cpu.counts);
            for (rank, (sent, expected)) in on_device.sent.iter().zip(&on_cpu.sent).enumerate() {
                let mut expected = expected.clone();
                // The ids that a rank keeps do not leave the device.
                expected.values[rank].clear();
                expected.weights[rank].clear();
                assert_eq!(sent, &expected, "rank {rank}");
            }
        }
        if !device.driver().is_emulated() {
            continue;
        }
        let after = device.driver().emulated_launches();
        let launches = |name| after[name] - before.get(name).copied().unwrap_or(0);
        // Nothing is launched for a batch without samples, or for a rank without slots.
        assert_eq!(launches("split_ids"), 4, "{after:?}");
        assert_eq!(launches("join_lengths"), if is_short { 4 } else { 6 }, "{after:?}");
    }
}

#[test]
fn exchanged_ids_have_the_bytes_of_the_oracle() {
    for is_weighted in [false, true] {
        check(is_weighted, false, false);
        check(is_weighted, true, true);
    }
}

/// A rank that looks up its own samples selects their ids without messages.
#[test]
fn selected_ids_have_the_bytes_of_the_oracle() {
    let slots = [0, 2, 3].map(|feature| slot(feature, 0..ROWS)).to_vec();
    let sequence = (0..3).map(|at| IdSlot { position: Some(at), ..slot(2, 0..ROWS) });
    let slots = slots.into_iter().chain(sequence).collect();
    let layout = IdLayout { slots: vec![slots], own: 0, has_scales: true };
    fn select<B: Backend>(device: &B, layout: &IdLayout) {
        let mut ids = device.ids(layout.clone()).unwrap();
        for (samples, is_weighted) in [(3, true), (70, false), (0, true), (41, true)] {
            let batch = batch(1, samples, is_weighted);
            ids.select(&batch).unwrap();
            let (jagged, scales) = scalar::split(&layout.slots[0], &batch);
            let expected = LocalIds { jagged, scales: Some(scales) };
            assert_eq!(*ids.read(&mut LocalIds::default()).unwrap(), expected);
            let sizes = (0..6).map(|key| expected.jagged.feature(key).len());
            assert!(ids.counts().ids_per_slot.iter().copied().eq(sizes));
            assert_eq!(ids.counts().batch_sizes, [samples]);
        }
    }
    select(&Cpu::new(1), &layout);
    devices().iter().for_each(|device| select(device, &layout));
}

#[test]
fn a_message_of_another_size_is_refused() {
    let Some(device) = devices().pop() else { return };
    let mut ids = device.ids(layout(0, false, false)).unwrap();
    let mut messages = IdMessages::default();
    ids.split(&batch(0, 5, false), &mut messages).unwrap();
    messages.lengths[1] = vec![1, 0, 0, 0];
    messages.samples[1] = 1;
    messages.lengths[2].clear();
    messages.samples[2] = 0;
    messages.values[1] = vec![1, 2];
    let refused = ids.join(&mut messages).unwrap_err().to_string();
    assert_eq!(refused, "join ids: ids of a rank: expected 1, got 2");
}
