//! Tests of the embedding operations against their oracles in f32 (bit for bit) and in f64, and
//! against finite differences. The tests run on every instruction set and with 1, 2 and 7
//! threads.

pub mod cuda;

use device::buffer::Array;
use device::ops::embedding_backward::{
    self, BackwardArguments, RowArguments, RowSums, Scratch, TileMut, TileOrigin, Updated,
    scalar::OracleTile,
};
use device::ops::embedding_forward::{self, TileView};
use device::ops::{Slot, SlotOutput};
use device::optimizer::UpdateRule;
use device::{Cpu, Error, Isa, Real, Weights};
use schema::random::CounterRng;
use schema::{DataType, JaggedTensor, Optimizer, OptimizerConfig, WeightDecayMode};

const DATA_TYPES: [DataType; 3] = [DataType::F32, DataType::F16, DataType::Bf16];
const OUTPUTS: [SlotOutput; 2] = [SlotOutput::Pooled, SlotOutput::Sequence];
const NAMES: [&str; 4] = ["cat_0", "cat_1", "cat_2", "cat_3"];

/// A test case: tables, a batch of ids for them, and the gradient of the output.
struct Case {
    /// Weights of the tables, which the table's data type represents exactly.
    tables: Vec<Vec<f32>>,
    data_types: Vec<DataType>,
    dims: Vec<usize>,
    rows: Vec<usize>,
    slots: Vec<Slot>,
    jagged: JaggedTensor,
    bag_scales: Option<Vec<f32>>,
    output: SlotOutput,
    gradient: Vec<f32>,
}

/// Parameters of a random case. `tiles` are (rows, dim), and `slots` are indices of tiles.
#[derive(Clone, Copy)]
struct Form<'a> {
    seed: u64,
    batch_size: usize,
    tiles: &'a [(usize, usize)],
    slots: &'a [usize],
    longest_bag: u64,
    /// Fraction of the ids that are 0, so that row 0 is looked up often.
    hot: f64,
    weighted: bool,
    scaled: bool,
    output: SlotOutput,
    /// Data types of the tiles, which are assigned in turn.
    data_types: &'a [DataType],
}

impl Form<'_> {
    fn case(&self) -> Case {
        let rng = CounterRng::new(self.seed, 0);
        let floats = |stream: u64, len: usize| -> Vec<f32> {
            (0..len as u64).map(|i| rng.child(stream).unit(i) as f32 - 0.5).collect()
        };
        let bags = self.slots.len() * self.batch_size;
        let length = |bag| rng.child(1).below(bag, self.longest_bag + 1) as usize;
        let lengths: Vec<usize> = (0..bags as u64).map(length).collect();
        let mut jagged = JaggedTensor::from_lengths(self.slots.len(), &lengths, Vec::new());
        (jagged.features, jagged.batch_size) = (self.slots.len(), self.batch_size);
        for (bag, &length) in lengths.iter().enumerate() {
            let rows = self.tiles[self.slots[bag / self.batch_size]].0 as u64;
            for _ in 0..length {
                let at = jagged.values.len() as u64;
                let hot = rng.child(2).unit(at) < self.hot;
                jagged.values.push(if hot { 0 } else { rng.child(3).below(at, rows) as i64 });
            }
        }
        jagged.weights = self.weighted.then(|| floats(4, jagged.values.len()));
        let mut width = 0;
        let slot = |&tile: &usize| {
            width += self.tiles[tile].1;
            Slot { tile, column: width - self.tiles[tile].1 }
        };
        let slots: Vec<Slot> = self.slots.iter().map(slot).collect();
        let data_types: Vec<_> =
            self.data_types.iter().copied().cycle().take(self.tiles.len()).collect();
        let table = |(tile, &(rows, dim)): (usize, &(usize, usize))| {
            let values = floats(10 + tile as u64, rows * dim);
            stored(data_types[tile], &values).view().to_f32()
        };
        let tables = self.tiles.iter().enumerate().map(table).collect();
        let of_key = |(key, &tile): (usize, &usize)| jagged.feature(key).len() * self.tiles[tile].1;
        let elements = match self.output {
            SlotOutput::Pooled => self.batch_size * width,
            SlotOutput::Columns(row) => self.batch_size * row,
            SlotOutput::Sequence => self.slots.iter().enumerate().map(of_key).sum(),
        };
        Case {
            tables,
            data_types,
            dims: self.tiles.iter().map(|tile| tile.1).collect(),
            rows: self.tiles.iter().map(|tile| tile.0).collect(),
            slots,
            bag_scales: self.scaled.then(|| floats(5, bags)),
            output: self.output,
            gradient: floats(6, elements),
            jagged,
        }
    }
}

/// Rounds values to a data type and returns them as weights.
fn stored(data_type: DataType, values: &[f32]) -> Weights {
    let mut weights = Weights::zeroed(data_type, values.len());
    weights.view_mut().fill_from(values);
    weights
}

/// Returns cases of many shapes: D of 1, odd and large; empty and long bags; one sample and no
/// sample; shared and tiny tables; every data type; pooled and sequence outputs.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for seed in 0..60 {
        let rng = CounterRng::new(seed, 9);
        let pick = |counter, from: &[usize]| from[rng.below(counter, from.len() as u64) as usize];
        let tile = |t: u64| {
            let rows = pick(2 * t, &[1, 3, 17, 300, 900]);
            (
                rows,
                pick(
                    2 * t + 1,
                    &[1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 64, 96, 127, 200, 2048],
                ),
            )
        };
        let tiles: Vec<_> = (0..1 + rng.below(100, 4)).map(tile).collect();
        let slot = |s: u64| rng.below(200 + s, tiles.len() as u64) as usize;
        let slots: Vec<_> = (0..1 + rng.below(101, 6)).map(slot).collect();
        cases.push(
            Form {
                seed,
                batch_size: pick(102, &[0, 1, 2, 5, 64, 65, 200]),
                tiles: &tiles,
                slots: &slots,
                longest_bag: pick(103, &[0, 1, 3, 12]) as u64,
                hot: [0.0, 0.0, 0.9][seed as usize % 3],
                weighted: seed % 2 == 0,
                scaled: seed % 4 < 2,
                output: if seed % 5 < 3 { SlotOutput::Pooled } else { SlotOutput::Sequence },
                data_types: &DATA_TYPES[seed as usize % 3..],
            }
            .case(),
        );
    }
    // One row is looked up thousands of times, so that its sum has several parts. One dimension
    // is too large for the buffers on the stack.
    let tiles = [(3, 37), (4000, 16), (50, 600)];
    let form = Form {
        seed: 77,
        batch_size: 900,
        tiles: &tiles,
        slots: &[0, 1, 0, 2],
        longest_bag: 8,
        hot: 0.6,
        weighted: true,
        scaled: true,
        output: SlotOutput::Pooled,
        data_types: &DATA_TYPES,
    };
    cases.push(form.case());
    let plain = Form { weighted: false, scaled: false, hot: 1.0, ..form };
    cases.push(plain.case());
    cases.push(Form { output: SlotOutput::Sequence, ..plain }.case());
    // These dimensions have their own instance of the code, and are tested in every data type.
    let tiles = [16, 32, 64, 128].map(|dim| (200, dim));
    for data_types in DATA_TYPES.chunks(1) {
        let usual = Form { tiles: &tiles, slots: &[0, 1, 2, 3], data_types, hot: 0.3, ..form };
        cases.push(usual.case());
        cases.push(Form { weighted: false, scaled: false, ..usual }.case());
    }
    cases
}

fn devices() -> Vec<Cpu> {
    let threads = [1, 2, 7];
    Isa::all().into_iter().flat_map(|isa| threads.map(|n| Cpu::with_isa(n, isa))).collect()
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn check_close(what: &str, got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got) - expected).abs();
        assert!(error <= tolerance * expected.abs().max(1.0), "{what}[{i}]: {got} vs {expected}");
    }
}

impl Case {
    fn stored(&self, tables: impl Iterator<Item = Vec<f32>>) -> Vec<Weights> {
        tables.zip(&self.data_types).map(|(values, &kind)| stored(kind, &values)).collect()
    }

    fn forward(&self, cpu: &Cpu) -> Result<Vec<f32>, Error> {
        let weights = self.stored(self.tables.iter().cloned());
        let views: Vec<TileView<'_>> = (0..self.tables.len())
            .map(|t| TileView {
                weights: weights[t].view(),
                rows: self.rows[t],
                dim: self.dims[t],
                name: NAMES[t],
            })
            .collect();
        let mut out = Array::zeroed(self.gradient.len());
        out.fill(f32::NAN);
        let arguments = embedding_forward::ForwardArguments {
            tiles: &views,
            slots: &self.slots,
            jagged: &self.jagged,
            bag_scales: self.bag_scales.as_deref(),
            output: self.output,
            out: &mut out,
        };
        embedding_forward::run(cpu, arguments).map(|()| out.to_vec())
    }

    /// Returns the output of the oracle for these `tables`.
    fn expected<R: Real>(&self, tables: &[Vec<R>], scales: Option<&[R]>) -> Vec<R> {
        let (dims, slots, jagged) = (&self.dims[..], &self.slots, &self.jagged);
        match self.output {
            SlotOutput::Pooled => {
                let mut out = vec![R::ZERO; self.gradient.len()];
                embedding_forward::scalar::run(tables, dims, slots, jagged, scales, &mut out);
                out
            }
            SlotOutput::Columns(_) | SlotOutput::Sequence => {
                embedding_forward::scalar::sequence(tables, dims, slots, jagged, scales)
            }
        }
    }

    /// Updates tiles with the oracle and returns the rows that it updated.
    fn updated_by_oracle(
        &self,
        tiles: &mut [OracleTile<f32>],
        rule: UpdateRule,
    ) -> Vec<(usize, usize)> {
        embedding_backward::scalar::run(
            tiles,
            &self.slots,
            &self.jagged,
            self.bag_scales.as_deref(),
            self.output,
            &self.gradient,
            rule,
        )
    }

    fn origin(tile: usize) -> TileOrigin {
        TileOrigin { table: tile as u32, row: 1000, column: 3 }
    }

    /// Rounds the rows that an oracle updated to the data types of the tables.
    fn round(&self, tiles: &mut [OracleTile<f32>], rows: &[(usize, usize)]) {
        for &(t, row) in rows {
            tiles[t].round_row(row, self.data_types[t], Self::origin(t), rounding());
        }
    }

    fn tiles(&self, kind: Optimizer) -> Vec<OracleTile<f32>> {
        (0..self.tables.len())
            .map(|t| OracleTile {
                weights: self.tables[t].clone(),
                state: vec![0.125; self.rows[t] * kind.state_per_row(self.dims[t])],
                dim: self.dims[t],
            })
            .collect()
    }

    fn backward(
        &self,
        cpu: &Cpu,
        rule: UpdateRule,
        tiles: &mut [OracleTile<f32>],
        scratch: &mut Scratch,
    ) -> Result<Updated, Error> {
        self.with_arguments(rule, tiles, |arguments| {
            embedding_backward::run(cpu, arguments, scratch)
        })
    }

    /// Updates tiles in two halves, as where ranks exchange something between them.
    fn backward_in_halves(
        &self,
        cpu: &Cpu,
        rule: UpdateRule,
        tiles: &mut [OracleTile<f32>],
        has_terms: bool,
    ) -> Result<Updated, Error> {
        self.with_arguments(rule, tiles, |arguments| {
            let (mut sums, mut terms) = (RowSums::default(), Vec::new());
            let scratch = &mut Scratch::default();
            let BackwardArguments { tiles, rounding, .. } = arguments;
            let summed = BackwardArguments { tiles: &mut *tiles, ..arguments };
            embedding_backward::sum_rows(cpu, summed, scratch, &mut sums)?;
            if has_terms {
                let rows = RowArguments { tiles: &mut *tiles, sums: &sums, rule, rounding };
                embedding_backward::row_terms(cpu, rows, scratch, &mut terms)?;
            }
            let rows = RowArguments { tiles, sums: &sums, rule, rounding };
            embedding_backward::apply_rows(cpu, rows, scratch, has_terms.then_some(&terms))
        })
    }

    fn with_arguments<T>(
        &self,
        rule: UpdateRule,
        tiles: &mut [OracleTile<f32>],
        run: impl FnOnce(BackwardArguments<'_, '_>) -> T,
    ) -> T {
        let mut weights = self.stored(tiles.iter().map(|tile| tile.weights.clone()));
        let mut views: Vec<TileMut<'_>> = (0..)
            .zip(tiles.iter_mut().zip(&mut weights))
            .map(|(t, (tile, weights))| TileMut {
                weights: weights.view_mut(),
                state: &mut tile.state,
                rows: self.rows[t],
                dim: tile.dim,
                name: NAMES[t],
                origin: Self::origin(t),
            })
            .collect();
        let result = run(BackwardArguments {
            tiles: &mut views,
            slots: &self.slots,
            jagged: &self.jagged,
            bag_scales: self.bag_scales.as_deref(),
            output: self.output,
            gradient: &self.gradient,
            rule,
            rounding: rounding(),
        });
        for (tile, weights) in tiles.iter_mut().zip(&weights) {
            tile.weights = weights.view().to_f32();
        }
        result
    }

    /// Counts the distinct rows, their elements and their bytes by a simple method.
    fn touched(&self) -> Updated {
        let mut rows = std::collections::BTreeSet::new();
        for (feature, slot) in self.slots.iter().enumerate() {
            for &id in &self.jagged.values[self.jagged.feature(feature)] {
                rows.insert((slot.tile, id));
            }
        }
        let unique_elements = rows.iter().map(|row| self.dims[row.0]).sum();
        let bytes = |row: &(usize, i64)| self.dims[row.0] * self.data_types[row.0].bytes();
        let unique_bytes = rows.iter().map(bytes).sum();
        Updated { unique_rows: rows.len(), unique_elements, unique_bytes }
    }
}

/// Returns the rule of `kind` at the second step, with L2 decay.
fn rule<R: Real>(kind: Optimizer) -> UpdateRule<R> {
    let base = OptimizerConfig::new(kind, 0.05);
    let weight_decay_mode = WeightDecayMode::L2;
    let config = OptimizerConfig { weight_decay: 0.01, weight_decay_mode, ..base };
    UpdateRule::new(&config, 1.0, 1)
}

fn rounding() -> CounterRng {
    CounterRng::new(21, 4).child(17)
}

#[test]
fn forward_equals_the_oracle_to_the_bit_on_every_isa_and_thread_count() {
    let devices = devices();
    for (number, case) in cases().iter().enumerate() {
        let scales = case.bag_scales.as_deref();
        let expected = case.expected(&case.tables, scales);
        let wide: Vec<Vec<f64>> = case.tables.iter().map(|table| widen(table)).collect();
        let exact = case.expected(&wide, scales.map(widen).as_deref());
        check_close("output", &expected, &exact, 1e-5);
        for cpu in &devices {
            let got = case.forward(cpu).unwrap();
            assert!(bits(&got) == bits(&expected), "case {number}, {cpu:?}");
        }
    }
}

#[test]
fn an_output_larger_than_the_caches_is_the_same_to_the_bit() {
    // The forms have tables whose rows are whole cache lines, and tables whose rows are not.
    let forms = [[(500, 64), (90, 16), (40, 208)], [(500, 64), (90, 20), (40, 208)]];
    for (tiles, output) in forms.iter().flat_map(|tiles| OUTPUTS.map(|output| (tiles, output))) {
        let form = Form {
            seed: 7,
            batch_size: 1000,
            tiles,
            slots: &[0, 1, 2],
            longest_bag: 3,
            hot: 0.0,
            weighted: false,
            scaled: true,
            output,
            data_types: &DATA_TYPES,
        };
        let case = form.case();
        assert!(case.gradient.len() > 1 << 18);
        let expected = bits(&case.expected(&case.tables, case.bag_scales.as_deref()));
        for cpu in &devices() {
            assert!(bits(&case.forward(cpu).unwrap()) == expected, "{tiles:?}, {cpu:?}");
        }
    }
}

#[test]
fn backward_equals_the_oracle_to_the_bit_on_every_isa_and_thread_count() {
    let devices = devices();
    // All cases share one scratch, so that leftovers of an earlier, larger batch would be
    // detected.
    let mut scratch = Scratch::default();
    for (number, case) in cases().iter().enumerate() {
        for kind in Optimizer::ALL {
            let (mut expected, rule) = (case.tiles(kind), rule(kind));
            let rows = case.updated_by_oracle(&mut expected, rule);
            case.round(&mut expected, &rows);
            for cpu in &devices {
                let mut got = case.tiles(kind);
                let updated = case.backward(cpu, rule, &mut got, &mut scratch).unwrap();
                assert_eq!(updated, case.touched(), "case {number}, {kind:?}, {cpu:?}");
                for (got, expected) in got.iter().zip(&expected) {
                    let same = bits(&got.weights) == bits(&expected.weights)
                        && bits(&got.state) == bits(&expected.state);
                    assert!(same, "case {number}, {kind:?}, {cpu:?}");
                }
            }
        }
    }
}

#[test]
fn an_update_in_two_halves_gives_the_bytes_of_the_fused_one() {
    let devices = devices();
    for (number, case) in cases().iter().enumerate() {
        for kind in Optimizer::ALL {
            let (mut expected, rule) = (case.tiles(kind), rule(kind));
            let scratch = &mut Scratch::default();
            case.backward(&devices[0], rule, &mut expected, scratch).unwrap();
            let cpu = &devices[number % devices.len()];
            for has_terms in [false, true] {
                let mut got = case.tiles(kind);
                let updated = case.backward_in_halves(cpu, rule, &mut got, has_terms).unwrap();
                assert_eq!(updated, case.touched(), "case {number}, {kind:?}, {cpu:?}");
                let bits = |tiles: &[OracleTile<f32>]| -> Vec<_> {
                    tiles.iter().map(|tile| (bits(&tile.weights), bits(&tile.state))).collect()
                };
                assert!(bits(&got) == bits(&expected), "case {number}, {kind:?}, {cpu:?}");
            }
        }
    }
}

/// Two slots write into rows that have other columns between theirs.
#[test]
fn columns_of_other_calls_are_neither_written_nor_read() {
    let form = Form {
        seed: 5,
        batch_size: 70,
        tiles: &[(40, 16), (30, 3)],
        slots: &[0, 1],
        longest_bag: 3,
        hot: 0.2,
        weighted: true,
        scaled: true,
        output: SlotOutput::Pooled,
        data_types: &DATA_TYPES[..1],
    };
    let (cpu, rule) = (Cpu::new(2), rule(Optimizer::Adagrad));
    let pooled = form.case();
    let mut columns = form.case();
    (columns.slots[0].column, columns.slots[1].column) = (2, 20);
    columns.output = SlotOutput::Columns(25);
    columns.gradient = vec![f32::NAN; 70 * 25];
    for sample in 0..70 {
        let from = &pooled.gradient[sample * 19..];
        let to = &mut columns.gradient[sample * 25..];
        to[2..18].copy_from_slice(&from[..16]);
        to[20..23].copy_from_slice(&from[16..19]);
    }
    let (expected, got) = (pooled.forward(&cpu).unwrap(), columns.forward(&cpu).unwrap());
    for (expected, got) in expected.chunks(19).zip(got.chunks(25)) {
        assert!(got[2..18] == expected[..16] && got[20..23] == expected[16..]);
        assert_eq!(got.iter().filter(|value| value.is_nan()).count(), 6);
    }
    let [mut expected, mut got] = [pooled.tiles(rule.kind), columns.tiles(rule.kind)];
    let scratch = &mut Scratch::default();
    pooled.backward(&cpu, rule, &mut expected, scratch).unwrap();
    columns.backward(&cpu, rule, &mut got, scratch).unwrap();
    assert!(expected == got);
    columns.output = SlotOutput::Columns(22);
    assert!(columns.forward(&cpu).unwrap_err().to_string().contains("columns of all slots"));
}

#[test]
fn backward_stays_near_the_oracle_in_f64() {
    let cpu = Cpu::new(2);
    for case in &cases() {
        for kind in Optimizer::ALL {
            let mut exact: Vec<OracleTile<f64>> = case
                .tiles(kind)
                .iter()
                .map(|t| OracleTile {
                    weights: widen(&t.weights),
                    state: widen(&t.state),
                    dim: t.dim,
                })
                .collect();
            let (gradient, scales) = (widen(&case.gradient), case.bag_scales.as_deref().map(widen));
            embedding_backward::scalar::run(
                &mut exact,
                &case.slots,
                &case.jagged,
                scales.as_deref(),
                case.output,
                &gradient,
                rule(kind),
            );
            let mut got = case.tiles(kind);
            case.backward(&cpu, rule(kind), &mut got, &mut Scratch::default()).unwrap();
            for ((got, exact), data_type) in got.iter().zip(&exact).zip(&case.data_types) {
                // Rounding changes a weight by less than one unit in its last place. The most
                // frequent row sums about 2,000 gradients in f32 before the sum is squared.
                let unit = [0.0, 2f64.powi(-10), 2f64.powi(-7)][*data_type as usize];
                check_close("weights", &got.weights, &exact.weights, 1e-4 + unit);
                check_close("state", &got.state, &exact.state, 1e-3);
            }
        }
    }
}

impl Case {
    /// Updates one tile of the only table. The tile has the rows to which `keep` assigns a local
    /// number, and the columns from `column` on.
    fn update_tile(
        &self,
        (weights, rows): (&mut Weights, usize),
        keep: &dyn Fn(i64) -> Option<i64>,
        column: usize,
    ) {
        let dim = weights.len() / rows;
        let (mut lengths, mut values) = (Vec::new(), Vec::new());
        for sample in 0..self.jagged.batch_size {
            let ids = &self.jagged.values[self.jagged.bag(0, sample)];
            let before = values.len();
            values.extend(ids.iter().filter_map(|&id| keep(id)));
            lengths.push(values.len() - before);
        }
        let jagged = JaggedTensor::from_lengths(1, &lengths, values);
        let columns = |row: &[f32]| row[column..column + dim].to_vec();
        let gradient: Vec<f32> = self.gradient.chunks(self.dims[0]).flat_map(columns).collect();
        let first = (0..).find(|&id| keep(id).is_some()).unwrap();
        let mut tiles = [TileMut {
            weights: weights.view_mut(),
            state: &mut vec![0.0; rows * dim],
            rows,
            dim,
            name: "t",
            origin: TileOrigin { table: 4, row: first as u64, column: column as u32 },
        }];
        let arguments = embedding_backward::BackwardArguments {
            tiles: &mut tiles,
            slots: &[Slot { tile: 0, column: 0 }],
            jagged: &jagged,
            bag_scales: None,
            output: SlotOutput::Pooled,
            gradient: &gradient,
            rule: rule(Optimizer::Adagrad),
            rounding: rounding(),
        };
        embedding_backward::run(&Cpu::new(2), arguments, &mut Scratch::default()).unwrap();
    }
}

#[test]
fn the_cut_of_a_table_into_tiles_changes_no_byte() {
    // The test compares one slot on a whole table with the same ids on four tiles of that table:
    // two halves of its columns times two halves of its rows.
    let (rows, dim, half) = (30, 20, 10);
    for data_type in DATA_TYPES {
        let form = Form {
            seed: 1,
            batch_size: 40,
            tiles: &[(rows, dim)],
            slots: &[0],
            longest_bag: 4,
            hot: 0.2,
            weighted: false,
            scaled: false,
            output: SlotOutput::Pooled,
            data_types: &[data_type],
        };
        let case = form.case();
        let whole = stored(data_type, &case.tables[0]);
        let mut expected = whole.clone();
        case.update_tile((&mut expected, rows), &Some, 0);
        let expected = expected.view().to_f32();
        let before = whole.view().to_f32();
        assert!(expected != before);
        for (lower, first) in [(true, 0), (false, 15)] {
            let keep = |id: i64| ((id < 15) == lower).then_some(id - first as i64);
            for column in [0, half] {
                let cell = |row: usize, column: usize| row * dim + column;
                // The tile also has rows beyond its end in the table, but no id refers to them.
                let source = |row: usize| (row + first) % rows;
                let values: Vec<f32> = (0..rows)
                    .flat_map(|row| (0..half).map(move |d| (source(row), column + d)))
                    .map(|(row, column)| before[cell(row, column)])
                    .collect();
                let mut tile = stored(data_type, &values);
                case.update_tile((&mut tile, rows), &keep, column);
                let got = tile.view().to_f32();
                for row in 0..15 {
                    let start = cell(row + first, column);
                    let same = bits(&got[row * half..][..half]) == bits(&expected[start..][..half]);
                    assert!(same, "{data_type:?}, row {row} from {first}, column {column}");
                }
            }
        }
    }
}

/// Computes the loss `Σ gradient · output` in f64.
fn loss(case: &Case, tables: &[Vec<f64>]) -> f64 {
    let scales = case.bag_scales.as_deref().map(widen);
    let out = case.expected(tables, scales.as_deref());
    out.iter().zip(&case.gradient).map(|(&out, &gradient)| out * f64::from(gradient)).sum()
}

#[test]
fn the_gradient_is_the_finite_difference_of_the_lookup() {
    let form = Form {
        seed: 5,
        batch_size: 6,
        tiles: &[(4, 3), (9, 5)],
        slots: &[0, 1, 0],
        longest_bag: 4,
        hot: 0.2,
        weighted: true,
        scaled: true,
        output: SlotOutput::Pooled,
        data_types: &DATA_TYPES[..1],
    };
    for output in [SlotOutput::Pooled, SlotOutput::Sequence] {
        check_gradient(&Form { output, ..form }.case());
    }
}

fn check_gradient(case: &Case) {
    // If all weights are 0, one step of SGD with rate 1 changes them to the negative gradient.
    let mut tiles = case.tiles(Optimizer::Sgd);
    tiles.iter_mut().for_each(|tile| tile.weights.fill(0.0));
    let rule = UpdateRule::new(&OptimizerConfig::new(Optimizer::Sgd, 1.0), 1.0, 0);
    case.backward(&Cpu::new(1), rule, &mut tiles, &mut Scratch::default()).unwrap();
    let mut tables: Vec<Vec<f64>> = case.tables.iter().map(|table| widen(table)).collect();
    let step = 1e-3;
    let mut largest: f64 = 0.0;
    for (t, tile) in tiles.iter().enumerate() {
        for (i, weight) in tile.weights.iter().enumerate() {
            let at = tables[t][i];
            tables[t][i] = at + step;
            let above = loss(case, &tables);
            tables[t][i] = at - step;
            let difference = (above - loss(case, &tables)) / (2.0 * step);
            tables[t][i] = at;
            let gradient = -f64::from(*weight);
            assert!((gradient - difference).abs() < 1e-6, "table {t}, weight {i}");
            largest = largest.max(difference.abs());
        }
    }
    assert!(largest > 0.01, "the case has no gradient to speak of: {largest}");
}

#[test]
fn an_id_out_of_range_is_named_and_nothing_changes() {
    let form = Form {
        seed: 3,
        batch_size: 300,
        tiles: &[(40, 8), (70, 4)],
        slots: &[1, 0, 1],
        longest_bag: 5,
        hot: 0.0,
        weighted: false,
        scaled: false,
        output: SlotOutput::Pooled,
        data_types: &DATA_TYPES,
    };
    for (id, feature, sample) in [(40, 1, 250), (-1, 2, 7), (i64::MIN, 0, 0), (70, 0, 299)] {
        let mut case = form.case();
        // The bag may be empty, so the next non-empty bag is used.
        let bag = (feature * 300 + sample..)
            .find(|bag| !case.jagged.bag(bag / 300, bag % 300).is_empty());
        let bag = bag.unwrap();
        let position = case.jagged.offsets[bag];
        case.jagged.values[position] = id;
        // A later bad id must not be reported instead of the first bad id.
        *case.jagged.values.last_mut().unwrap() = 1000;
        let tile = case.slots[bag / 300].tile;
        let expected = Error::RowOutOfRange {
            table: NAMES[tile].to_owned(),
            sample: bag % 300,
            feature: bag / 300,
            id,
            rows: case.rows[tile],
        };
        for cpu in devices() {
            assert_eq!(case.forward(&cpu).unwrap_err(), expected, "{cpu:?}");
            for kind in Optimizer::ALL {
                let mut tiles = case.tiles(kind);
                let scratch = &mut Scratch::default();
                let error = case.backward(&cpu, rule(kind), &mut tiles, scratch).unwrap_err();
                assert_eq!(error, expected, "{cpu:?}");
                assert!(tiles == case.tiles(kind), "a weight or state changed");
            }
        }
    }
}

#[test]
fn the_message_names_table_sample_and_id() {
    let error = Error::RowOutOfRange {
        table: "cat_07".to_owned(),
        sample: 12,
        feature: 3,
        id: 105,
        rows: 100,
    };
    expect_test::expect![[
        r#"id out of range: table "cat_07", sample 12, feature 3: expected 0..100, got 105"#
    ]]
    .assert_eq(&error.to_string());
}

#[test]
fn wrong_shapes_are_refused_with_both_numbers() {
    let form = Form {
        seed: 8,
        batch_size: 4,
        tiles: &[(5, 2), (6, 3)],
        slots: &[0, 1],
        longest_bag: 2,
        hot: 0.0,
        weighted: false,
        scaled: true,
        output: SlotOutput::Pooled,
        data_types: &DATA_TYPES[..1],
    };
    let cpu = Cpu::new(1);
    let refused = |spoil: fn(&mut Case)| {
        let mut case = form.case();
        spoil(&mut case);
        case.forward(&cpu).unwrap_err().to_string()
    };
    let texts = [
        refused(|case| _ = case.tables[1].pop()),
        refused(|case| _ = case.slots.pop()),
        refused(|case| case.slots[1].column = 1),
        refused(|case| case.slots[1].tile = 2),
        refused(|case| _ = case.bag_scales.as_mut().unwrap().pop()),
        refused(|case| case.gradient.extend([0.0; 4])),
        refused(|case| case.jagged.values.push(0)),
    ];
    expect_test::expect![[r#"
        embedding_forward: weights [rows, D]: expected 18, got 17
        embedding_forward: slots: one per key: expected 2, got 1
        embedding_forward: first column of a slot, in column order: expected 2, got 1
        embedding_forward: tile index of a slot, below: expected 2, got 2
        embedding_forward: bag_scales [F·B]: expected 8, got 7
        embedding_forward: out: expected 20, got 24
        embedding_forward: offsets: expected to run from 0 to 11, got 0 to 10"#]]
    .assert_eq(&texts.join("\n"));
}
