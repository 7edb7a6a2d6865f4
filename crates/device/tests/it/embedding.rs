//! The embedding operations: against their oracles in f32 (to the bit) and f64, against finite
//! differences, on every instruction set and with 1, 2 and 7 threads.

use device::ops::Slot;
use device::ops::embedding_backward::{self, Scratch, TileMut, Updated, scalar::Tile};
use device::ops::embedding_forward::{self, TileView};
use device::optimizer::Rule;
use device::{Cpu, Error, Isa, Real};
use schema::random::CounterRng;
use schema::{KeyedJaggedTensor, Optimizer, OptimizerConfig, WeightDecayMode};

/// Tables, a batch on them, and the gradient of its pooled matrix.
struct Case {
    tables: Vec<Vec<f32>>,
    dims: Vec<usize>,
    rows: Vec<usize>,
    slots: Vec<Slot>,
    jagged: KeyedJaggedTensor,
    bag_scales: Option<Vec<f32>>,
    gradient: Vec<f32>,
    width: usize,
}

/// What a random case looks like; `tiles` are (rows, dim), `slots` name tiles.
struct Form<'a> {
    seed: u64,
    batch_size: usize,
    tiles: &'a [(usize, usize)],
    slots: &'a [usize],
    longest_bag: u64,
    /// Share of ids that are row 0.
    hot: f64,
    weighted: bool,
    scaled: bool,
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
        let mut jagged = KeyedJaggedTensor::from_lengths(self.slots.len(), &lengths, Vec::new());
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
        let slots = self.slots.iter().map(slot).collect();
        let table =
            |(tile, &(rows, dim)): (usize, &(usize, usize))| floats(10 + tile as u64, rows * dim);
        Case {
            tables: self.tiles.iter().enumerate().map(table).collect(),
            dims: self.tiles.iter().map(|tile| tile.1).collect(),
            rows: self.tiles.iter().map(|tile| tile.0).collect(),
            slots,
            jagged,
            bag_scales: self.scaled.then(|| floats(5, bags)),
            gradient: floats(6, self.batch_size * width),
            width,
        }
    }
}

/// Many shapes: D of 1, odd, wide; bags empty and long; one sample and none; shared and tiny
/// tables.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for seed in 0..48 {
        let rng = CounterRng::new(seed, 9);
        let pick = |counter, from: &[usize]| from[rng.below(counter, from.len() as u64) as usize];
        let tile = |t: u64| {
            let rows = pick(2 * t, &[1, 3, 17, 300, 5000]);
            (
                rows,
                pick(2 * t + 1, &[1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 64, 96, 127, 200]),
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
            }
            .case(),
        );
    }
    // One row looked up thousands of times, so that its sum is made of parts; a wide dim off the
    // stack.
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
    };
    cases.push(form.case());
    cases.push(Form { weighted: false, scaled: false, hot: 1.0, ..form }.case());
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
    fn forward(&self, cpu: &Cpu) -> Result<Vec<f32>, Error> {
        let views: Vec<TileView<'_>> = (0..self.tables.len())
            .map(|t| TileView {
                weights: &self.tables[t],
                rows: self.rows[t],
                dim: self.dims[t],
                name: ["cat_0", "cat_1", "cat_2", "cat_3"][t],
            })
            .collect();
        let mut out = vec![f32::NAN; self.jagged.batch_size * self.width];
        let arguments = embedding_forward::Arguments {
            tiles: &views,
            slots: &self.slots,
            jagged: &self.jagged,
            bag_scales: self.bag_scales.as_deref(),
            out: &mut out,
        };
        embedding_forward::run(cpu, arguments).map(|()| out)
    }

    fn tiles(&self, kind: Optimizer) -> Vec<Tile<f32>> {
        (0..self.tables.len())
            .map(|t| Tile {
                weights: self.tables[t].clone(),
                state: vec![0.125; self.rows[t] * kind.state_per_row(self.dims[t])],
                dim: self.dims[t],
            })
            .collect()
    }

    fn backward(
        &self,
        cpu: &Cpu,
        rule: Rule,
        (tiles, scratch): (&mut [Tile<f32>], &mut Scratch),
    ) -> Result<Updated, Error> {
        let mut views: Vec<TileMut<'_>> = tiles
            .iter_mut()
            .enumerate()
            .map(|(t, tile)| TileMut {
                weights: &mut tile.weights,
                state: &mut tile.state,
                rows: self.rows[t],
                dim: tile.dim,
                name: ["cat_0", "cat_1", "cat_2", "cat_3"][t],
            })
            .collect();
        let arguments = embedding_backward::Arguments {
            tiles: &mut views,
            slots: &self.slots,
            jagged: &self.jagged,
            bag_scales: self.bag_scales.as_deref(),
            gradient: &self.gradient,
            rule,
        };
        embedding_backward::run(cpu, arguments, scratch)
    }

    /// Distinct rows and their elements, counted the obvious way.
    fn touched(&self) -> Updated {
        let mut rows = std::collections::BTreeSet::new();
        for (feature, slot) in self.slots.iter().enumerate() {
            for &id in &self.jagged.values[self.jagged.feature(feature)] {
                rows.insert((slot.tile, id));
            }
        }
        let unique_elements = rows.iter().map(|row| self.dims[row.0]).sum();
        Updated { unique_rows: rows.len(), unique_elements }
    }
}

/// The second step of `kind`, with decay.
fn rule<R: Real>(kind: Optimizer) -> Rule<R> {
    let base = OptimizerConfig::new(kind, 0.05);
    let weight_decay_mode = WeightDecayMode::L2;
    let config = OptimizerConfig { weight_decay: 0.01, weight_decay_mode, ..base };
    Rule::new(&config, 1.0, 1)
}

#[test]
fn forward_equals_the_oracle_to_the_bit_on_every_isa_and_thread_count() {
    let devices = devices();
    for (number, case) in cases().iter().enumerate() {
        let mut expected = vec![0.0f32; case.gradient.len()];
        let scales = case.bag_scales.as_deref();
        let tables = (&case.tables[..], &case.dims[..]);
        embedding_forward::scalar::run(tables, &case.slots, &case.jagged, scales, &mut expected);
        let wide: Vec<Vec<f64>> = case.tables.iter().map(|table| widen(table)).collect();
        let wide_scales = scales.map(widen);
        let mut exact = vec![0.0f64; case.gradient.len()];
        let (tables, scales) = ((&wide[..], &case.dims[..]), wide_scales.as_deref());
        embedding_forward::scalar::run(tables, &case.slots, &case.jagged, scales, &mut exact);
        check_close("pooled", &expected, &exact, 1e-5);
        for cpu in &devices {
            let got = case.forward(cpu).unwrap();
            assert!(bits(&got) == bits(&expected), "case {number}, {cpu:?}");
        }
    }
}

#[test]
fn backward_equals_the_oracle_to_the_bit_on_every_isa_and_thread_count() {
    let devices = devices();
    // One scratch for all: what an earlier, larger batch left in it must not matter.
    let mut scratch = Scratch::default();
    for (number, case) in cases().iter().enumerate() {
        for kind in Optimizer::ALL {
            let (mut expected, rule) = (case.tiles(kind), rule(kind));
            let (slots, scales) = ((&case.slots[..], &case.jagged), case.bag_scales.as_deref());
            embedding_backward::scalar::run(&mut expected, slots, scales, &case.gradient, rule);
            for cpu in &devices {
                let mut got = case.tiles(kind);
                let updated = case.backward(cpu, rule, (&mut got, &mut scratch)).unwrap();
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
fn backward_stays_near_the_oracle_in_f64() {
    let cpu = Cpu::new(2);
    for case in &cases() {
        for kind in Optimizer::ALL {
            let mut exact: Vec<Tile<f64>> = case
                .tiles(kind)
                .iter()
                .map(|t| Tile { weights: widen(&t.weights), state: widen(&t.state), dim: t.dim })
                .collect();
            let (slots, scales) = ((&case.slots[..], &case.jagged), case.bag_scales.as_deref());
            let (gradient, scales) = (widen(&case.gradient), scales.map(widen));
            let scales = scales.as_deref();
            embedding_backward::scalar::run(&mut exact, slots, scales, &gradient, rule(kind));
            let mut got = case.tiles(kind);
            case.backward(&cpu, rule(kind), (&mut got, &mut Scratch::default())).unwrap();
            for (got, exact) in got.iter().zip(&exact) {
                // The hottest row sums some 2,000 gradients in f32 before it squares them.
                check_close("weights", &got.weights, &exact.weights, 1e-4);
                check_close("state", &got.state, &exact.state, 1e-3);
            }
        }
    }
}

/// The loss `Σ gradient · pooled`, in f64.
fn loss(case: &Case, tables: &[Vec<f64>]) -> f64 {
    let scales = case.bag_scales.as_deref().map(widen);
    let mut out = vec![0.0; case.gradient.len()];
    let (tables, scales) = ((tables, &case.dims[..]), scales.as_deref());
    embedding_forward::scalar::run(tables, &case.slots, &case.jagged, scales, &mut out);
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
    };
    let case = form.case();
    // On zero weights, one step of SGD at rate 1 leaves minus the gradient.
    let mut tiles = case.tiles(Optimizer::Sgd);
    tiles.iter_mut().for_each(|tile| tile.weights.fill(0.0));
    let rule = Rule::new(&OptimizerConfig::new(Optimizer::Sgd, 1.0), 1.0, 0);
    case.backward(&Cpu::new(1), rule, (&mut tiles, &mut Scratch::default())).unwrap();
    let mut tables: Vec<Vec<f64>> = case.tables.iter().map(|table| widen(table)).collect();
    let step = 1e-3;
    let mut largest: f64 = 0.0;
    for (t, tile) in tiles.iter().enumerate() {
        for (i, weight) in tile.weights.iter().enumerate() {
            let at = tables[t][i];
            tables[t][i] = at + step;
            let above = loss(&case, &tables);
            tables[t][i] = at - step;
            let difference = (above - loss(&case, &tables)) / (2.0 * step);
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
    };
    for (id, feature, sample) in [(40, 1, 250), (-1, 2, 7), (i64::MIN, 0, 0), (70, 0, 299)] {
        let mut case = form.case();
        // A bag may be empty: take the next that is not.
        let bag = (feature * 300 + sample..)
            .find(|bag| !case.jagged.bag(bag / 300, bag % 300).is_empty());
        let bag = bag.unwrap();
        let position = case.jagged.offsets[bag];
        case.jagged.values[position] = id;
        // A later bad id must not be the one reported.
        *case.jagged.values.last_mut().unwrap() = 1000;
        let tile = case.slots[bag / 300].tile;
        let expected = Error::RowOutOfRange {
            table: ["cat_0", "cat_1"][tile].to_owned(),
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
                let error = case.backward(&cpu, rule(kind), (&mut tiles, scratch)).unwrap_err();
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
        refused(|case| case.width = 6),
        refused(|case| case.jagged.values.push(0)),
    ];
    expect_test::expect![[r#"
        embedding_forward: weights [rows, D]: expected 18, got 17
        embedding_forward: slots: one per key: expected 2, got 1
        embedding_forward: first column of a slot, in column order: expected 2, got 1
        embedding_forward: tile index of a slot, below: expected 2, got 2
        embedding_forward: bag_scales [F·B]: expected 8, got 7
        embedding_forward: out [B, Σ D]: expected 20, got 24
        embedding_forward: offsets: expected to run from 0 to 11, got 0 to 10"#]]
    .assert_eq(&texts.join("\n"));
}
