//! Tests that the results of both embedding operations on the emulated device are bit-identical
//! to those of the oracles.

use device::cuda::{Buffer, DriverError};
use device::ops::embedding_backward::Factors;
use device::ops::embedding_backward::cuda::{
    DeviceGradient, EmbeddingBackward, Workspace, WorkspaceShape,
};
use device::ops::embedding_forward::cuda::{
    DeviceLookup, DeviceTile, EmbeddingForward, NO_BAD_ID, slot_bytes, tile_bytes,
};
use device::optimizer::device_block;

use super::*;
use crate::cuda::{Bench, benches, random_sizes, same};

/// Returns cases with D of 1, 3, 4, 5, 64, 128, 256, and one D that fills shared memory. The
/// cases include empty bags, rows that thousands of ids refer to, one sample, and no sample. Ids
/// have 32 and 64 bits in turn.
fn device_cases() -> Vec<Case> {
    let form = Form {
        seed: 5,
        batch_size: 65,
        tiles: &[(300, 64), (17, 3), (5, 1), (90, 4)],
        slots: &[0, 1, 2, 3, 0],
        longest_bag: 5,
        hot: 0.3,
        weighted: false,
        scaled: false,
        output: SlotOutput::Pooled,
        data_types: &DATA_TYPES,
    };
    let wide = Form { tiles: &[(70, 256), (40, 128)], slots: &[1, 0], ..form };
    let heavy = Form {
        batch_size: 700,
        tiles: &[(3, 4), (66_000, 3)],
        slots: &[0, 1, 0],
        hot: 0.9,
        ..form
    };
    vec![
        form.case(),
        Form { weighted: true, data_types: &DATA_TYPES[1..], ..form }.case(),
        Form { scaled: true, output: SlotOutput::Sequence, ..form }.case(),
        Form { batch_size: 1, longest_bag: 12, weighted: true, scaled: true, ..wide }.case(),
        Form { batch_size: 9, output: SlotOutput::Sequence, ..wide }.case(),
        heavy.case(),
        Form { weighted: true, hot: 1.0, data_types: &DATA_TYPES[2..], ..heavy }.case(),
        Form { longest_bag: 0, batch_size: 3, ..form }.case(),
        Form { batch_size: 0, ..form }.case(),
        Form { tiles: &[(2, 3100)], slots: &[0], batch_size: 2, longest_bag: 3, ..form }.case(),
        Form { tiles: &[(90, 5)], slots: &[0], batch_size: 9, ..form }.case(),
    ]
}

/// Returns cases of random shapes with any D, bag size and batch size, including one sample.
fn random_cases() -> Vec<Case> {
    let case = |(number, [tiles, keys, batch_size]): (usize, [usize; 3])| {
        let rng = CounterRng::new(29, number as u64);
        let below = |counter, most: usize| rng.below(counter, most as u64) as usize;
        let tile = |t| (1 + below(2 * t, 120), [1, 3, 4, 64, 128, 256][below(2 * t + 1, 6)]);
        let tiles: Vec<_> = (0..tiles as u64).map(tile).collect();
        let slots: Vec<_> = (0..keys as u64).map(|key| below(50 + key, tiles.len())).collect();
        let form = Form {
            seed: number as u64,
            batch_size,
            tiles: &tiles,
            slots: &slots,
            longest_bag: [0, 2, 9][below(90, 3)],
            hot: [0.0, 0.5, 0.98][below(91, 3)],
            weighted: below(92, 2) == 0,
            scaled: below(93, 2) == 0,
            output: OUTPUTS[below(94, 2)],
            data_types: &DATA_TYPES[below(95, 3)..],
        };
        form.case()
    };
    random_sizes([4, 5, 90]).into_iter().enumerate().map(case).collect()
}

fn all_cases() -> impl Iterator<Item = (usize, Case)> {
    device_cases().into_iter().chain(random_cases()).enumerate()
}

/// A test case that was copied to a device.
struct OnDevice<'a> {
    case: &'a Case,
    bench: &'a Bench,
    weights: Vec<Buffer>,
    states: Vec<Buffer>,
    slots: Buffer,
    ids: Buffer,
    id_bytes: usize,
    offsets: Buffer,
    id_weights: Option<Buffer>,
    scales: Option<Buffer>,
    first_bad: Buffer,
}

impl<'a> OnDevice<'a> {
    fn new(case: &'a Case, bench: &'a Bench, tiles: &[OracleTile<f32>], id_bytes: usize) -> Self {
        let weights = case.stored(tiles.iter().map(|tile| tile.weights.clone()));
        let weights = weights.iter().map(|weights| bench.put(weights.view().bytes())).collect();
        let jagged = &case.jagged;
        let per_key: Vec<usize> =
            (0..jagged.features).map(|key| jagged.feature(key).len()).collect();
        let slots = slot_bytes(&case.slots, &case.dims, case.output, &per_key);
        let offsets: Vec<u64> = jagged.offsets.iter().map(|&offset| offset as u64).collect();
        let ids = if id_bytes == 8 {
            bench.put(&jagged.values)
        } else {
            bench.put(&jagged.values.iter().map(|&id| id as i32).collect::<Vec<_>>())
        };
        Self {
            case,
            bench,
            weights,
            states: tiles.iter().map(|tile| bench.put(&tile.state)).collect(),
            slots: bench.put(&slots),
            ids,
            id_bytes,
            offsets: bench.put(&offsets),
            id_weights: jagged.weights.as_ref().map(|weights| bench.put(weights)),
            scales: case.bag_scales.as_ref().map(|scales| bench.put(scales)),
            first_bad: bench.put(&[NO_BAD_ID]),
        }
    }

    fn tiles(&self) -> Buffer {
        let tile = |t: usize| DeviceTile {
            weights: &self.weights[t],
            state: Some(&self.states[t]),
            rows: self.case.rows[t],
            dim: self.case.dims[t],
            data_type: self.case.data_types[t],
            origin: Case::origin(t),
        };
        let tiles: Vec<_> = (0..self.weights.len()).map(tile).collect();
        self.bench.put(&tile_bytes(&tiles))
    }

    fn lookup<'b>(&'b self, tiles: &'b Buffer) -> DeviceLookup<'b> {
        DeviceLookup {
            tiles,
            slots: &self.slots,
            ids: &self.ids,
            id_bytes: self.id_bytes,
            offsets: &self.offsets,
            weights: self.id_weights.as_ref(),
            bag_scales: self.scales.as_ref(),
            features: self.case.jagged.features,
            batch_size: self.case.jagged.batch_size,
            widest: self.case.dims.iter().copied().max().unwrap_or(1),
        }
    }

    fn forward(&self) -> Result<Vec<f32>, DriverError> {
        let tiles = self.tiles();
        let len = self.case.gradient.len();
        let out = self.bench.room::<f32>(len);
        let kernel = EmbeddingForward::load(&self.bench.driver)?;
        kernel.launch(&self.bench.stream, &self.lookup(&tiles), [&out, &self.first_bad])?;
        Ok(self.bench.get(&out, len))
    }

    /// Updates the tables. Returns the number of distinct rows, the sum of their D and the bytes
    /// of their weights.
    fn backward(&self, rule: UpdateRule, spare: usize) -> Result<Vec<u64>, DriverError> {
        let (case, bench, tiles) = (self.case, self.bench, self.tiles());
        let factors = case.jagged.weights.is_some() || case.bag_scales.is_some();
        let shape = WorkspaceShape {
            capacity: case.jagged.values.len() + spare,
            rows: case.rows.iter().sum(),
            tiles: case.rows.len(),
            widest: case.dims.iter().copied().max().unwrap_or(1),
            gradient: case.gradient.len(),
            factors: if factors { Factors::Present } else { Factors::Absent },
        };
        let workspace = Workspace::new(&bench.driver, shape)?;
        let gradient = bench.put(&case.gradient);
        let (rule, stop) = (bench.put(&device_block::bytes(&rule, rounding())), bench.put(&[0u32]));
        let updated = bench.put(&[0u64; 3]);
        let gradient = DeviceGradient {
            gradient: &gradient,
            rule: &rule,
            first_bad: &self.first_bad,
            stop: &stop,
            updated: &updated,
        };
        let kernels = EmbeddingBackward::load(&bench.driver)?;
        kernels.launch(&bench.stream, &self.lookup(&tiles), &gradient, &workspace)?;
        Ok(bench.get(&updated, 3))
    }

    /// Reads the weights and the state of all tables from the device.
    fn read(&self, tiles: &[OracleTile<f32>]) -> Vec<OracleTile<f32>> {
        let read = |(t, tile): (usize, &OracleTile<f32>)| {
            let mut weights = Weights::zeroed(self.case.data_types[t], tile.weights.len());
            let bytes = weights.view_mut().into_bytes();
            self.bench.stream.download(&self.weights[t], 0, bytes).unwrap();
            let state = self.bench.get(&self.states[t], tile.state.len());
            OracleTile { weights: weights.view().to_f32(), state, dim: tile.dim }
        };
        tiles.iter().enumerate().map(read).collect()
    }
}

pub fn check_forward(bench: &Bench) {
    for (number, case) in &all_cases().collect::<Vec<_>>() {
        let expected = case.expected(&case.tables, case.bag_scales.as_deref());
        let id_bytes = [8, 4][number % 2];
        let tiles = case.tiles(Optimizer::Sgd);
        let got = OnDevice::new(case, bench, &tiles, id_bytes).forward().unwrap();
        same(&format!("output of case {number}, {}", bench.name), &got, &expected);
    }
}

pub fn check_backward(bench: &Bench, kinds: &[Optimizer]) {
    for (number, case) in &all_cases().collect::<Vec<_>>() {
        for &kind in kinds {
            let what = format!("case {number}, {kind:?}, {}", bench.name);
            let (mut expected, rule) = (case.tiles(kind), rule(kind));
            let device = OnDevice::new(case, bench, &expected, [4, 8][number % 2]);
            let rows = case.updated_by_oracle(&mut expected, rule);
            case.round(&mut expected, &rows);
            let updated = device.backward(rule, [0, 1, 3000][number % 3]).unwrap();
            let elements = rows.iter().map(|&(t, _)| case.dims[t] as u64);
            let bytes =
                |&(t, _): &(usize, usize)| (case.dims[t] * case.data_types[t].bytes()) as u64;
            let bytes = rows.iter().map(bytes).sum();
            assert_eq!(updated, [rows.len() as u64, elements.sum(), bytes], "{what}");
            for (t, (got, expected)) in device.read(&expected).iter().zip(&expected).enumerate() {
                same(&format!("weights of tile {t}, {what}"), &got.weights, &expected.weights);
                same(&format!("state of tile {t}, {what}"), &got.state, &expected.state);
            }
        }
    }
}

/// Checks that both passes report the position of an out-of-range id, and that nothing is
/// updated.
pub fn check_bad_ids(bench: &Bench) {
    let mut case = device_cases().swap_remove(0);
    for (position, id) in [(30, -1), (77, i64::from(u32::MAX)), (100, 1 << 40), (5, 300)] {
        case.jagged.values[position] = id;
        let tiles = case.tiles(Optimizer::Adagrad);
        let device = OnDevice::new(&case, bench, &tiles, 8);
        device.forward().unwrap();
        let first = bench.get::<u64>(&device.first_bad, 1)[0];
        assert_eq!(first, if position == 5 { 5 } else { 30 }, "{}", bench.name);
        let device = OnDevice::new(&case, bench, &tiles, 8);
        assert_eq!(device.backward(rule(Optimizer::Adagrad), 0).unwrap(), [0; 3]);
        assert_eq!(bench.get::<u64>(&device.first_bad, 1)[0], first, "{}", bench.name);
        for (got, expected) in device.read(&tiles).iter().zip(&tiles) {
            same("weights", &got.weights, &expected.weights);
            same("state", &got.state, &expected.state);
        }
    }
}

#[test]
fn forward_on_the_device_has_the_bytes_of_the_oracle() {
    benches().iter().for_each(check_forward);
}

#[test]
fn backward_on_the_device_has_the_bytes_of_the_oracle() {
    for bench in &benches() {
        check_backward(bench, &Optimizer::ALL);
    }
}

#[test]
fn an_id_that_is_no_row_stops_the_update_on_the_device() {
    benches().iter().for_each(check_bad_ids);
}
