//! Runs every operation of the backend on the emulated GPU and on the CPU. The results must agree
//! within f32 rounding, or in all bytes if both devices add in the same order.

use device::MatrixShape;
use device::backend::{
    Assemble, Backend, BatchIds, ColumnBackwardInput, ColumnBackwardWeight, ColumnForward,
    ColumnStart, Combine, CrossBackward, CrossForward, Cuda, DistributedIds, ExchangeLayout,
    Gather, GradientSum, InputGradient, InteractionBackward, InteractionForward, JoinShape,
    LinearBackwardInput, LinearBackwardWeight, LinearForward, LossArguments, Probabilities,
    StepScalars, TableValues, TileRoom, TileRows, TileValues, VectorUpdate, WeightPart,
    WeightShape,
};
use device::buffer::Array;
use device::cuda::{BlockOrder, Checks, Driver, Emulation, H100_SHARED_BYTES};
use device::ops::embedding_backward::{RowSums, TileOrigin};
use device::ops::exchange::{OwnedColumns, PooledColumns};
use device::ops::gemm::Activation;
use device::ops::interaction::cuda::Interaction;
use device::ops::jagged::{IdLayout, IdSlot};
use device::ops::{Slot, SlotOutput, interaction};
use device::optimizer::UpdateRule;
use device::{Cpu, Weights};
use schema::random::CounterRng;
use schema::{DataType, JaggedTensor, Loss, Optimizer, OptimizerConfig, Precision, TriangleOrder};

use crate::cuda::{emulation, floats, gpu, has_compiler, sanitizers};

/// The results that a device computed in one case, by name.
type Results = Vec<(String, Vec<f32>)>;

/// A device, its queue and scalars, and the results of one case.
struct Bench<'a, B: Backend> {
    device: &'a B,
    queue: B::Queue,
    scalars: B::Scalars,
    results: Results,
}

/// The sizes of a case (samples, and the columns of two matrices), its precision and its
/// optimizer.
#[derive(Clone, Copy, Debug)]
struct Case {
    b: usize,
    n: usize,
    k: usize,
    optimizer: Optimizer,
    precision: Precision,
}

impl<'a, B: Backend> Bench<'a, B> {
    fn new(device: &'a B, optimizer: Optimizer, samples: usize) -> Self {
        let (queue, mut scalars) = (device.queue().unwrap(), device.scalars().unwrap());
        let rule = |rate| UpdateRule::new(&OptimizerConfig::new(optimizer, rate), 1.0, 2);
        let numbers = StepScalars {
            dense: rule(0.1),
            sparse: rule(0.2),
            normaliser: samples as f64,
            rounding: CounterRng::new(5, 7),
        };
        device.begin(&queue, &numbers, &mut scalars).unwrap();
        Self { device, queue, scalars, results: Vec::new() }
    }

    fn matrix(&self, seed: u64, MatrixShape { rows, columns }: MatrixShape) -> B::Matrix {
        let mut matrix = self.device.matrix(Precision::F32, rows, columns).unwrap();
        let values = floats(seed, rows * columns);
        self.device
            .pack(&self.queue, &values, MatrixShape::new(rows, columns), &mut matrix)
            .unwrap();
        matrix
    }

    /// Returns the same matrix rounded to `precision`, as the products read it.
    fn factor(&self, seed: u64, shape: MatrixShape, precision: Precision) -> B::Matrix {
        let mut factor = self.device.matrix(precision, shape.rows, shape.columns).unwrap();
        let matrix = self.matrix(seed, shape);
        self.device.round(&self.queue, &matrix, shape, &mut factor).unwrap();
        factor
    }

    fn vector(&self, seed: u64, len: usize) -> B::Vector {
        let mut vector = self.device.vector(len).unwrap();
        self.device.write(&self.queue, &floats(seed, len), &mut vector, 0).unwrap();
        vector
    }

    fn keep(&mut self, name: &str, vector: &B::Vector, len: usize) {
        let mut room = Vec::new();
        let values = self.device.read(&self.queue, vector, len, &mut room).unwrap().to_vec();
        self.results.push((name.to_owned(), values));
    }

    fn keep_matrix(
        &mut self,
        name: &str,
        matrix: &B::Matrix,
        MatrixShape { rows, columns }: MatrixShape,
    ) {
        let mut nothing = self.device.matrix(Precision::F32, rows, 0).unwrap();
        let mut vector = self.device.vector(rows * columns).unwrap();
        let shape = JoinShape { rows, left: 0, right: columns };
        self.device.split(&self.queue, matrix, shape, &mut nothing, &mut vector).unwrap();
        self.keep(name, &vector, rows * columns);
    }

    fn keep_weight(&mut self, name: &str, weight: &B::Weight, case: Case) {
        let Case { n, k, optimizer, .. } = case;
        let mut values = vec![0.0; n * k];
        let mut state = vec![0.0; n * optimizer.state_per_row(k)];
        let (device, queue) = (self.device, &self.queue);
        device.get_weight(queue, WeightPart::Values, weight, &mut values).unwrap();
        device.get_weight(queue, WeightPart::State, weight, &mut state).unwrap();
        assert!(device.is_finite(queue, weight).unwrap());
        self.results.push((format!("{name}, values"), values));
        self.results.push((format!("{name}, state"), state));
    }
}

/// Runs the three products, their epilogues, and the update of a weight. The update uses the
/// weight's own gradient, or a sum in one piece or in several pieces.
fn products<B: Backend>(bench: &mut Bench<'_, B>, case: Case) {
    let Case { b, n, k, precision, optimizer } = case;
    let (device, shape) = (bench.device, WeightShape { n, k, precision, optimizer });
    let mut weight = device.weight(shape).unwrap();
    device.set_weight(&bench.queue, WeightPart::Values, &floats(1, n * k), &mut weight).unwrap();
    let state: Vec<f32> =
        floats(2, n * optimizer.state_per_row(k)).iter().map(|value| value.abs()).collect();
    device.set_weight(&bench.queue, WeightPart::State, &state, &mut weight).unwrap();
    let (x, d_y) = (
        bench.factor(3, MatrixShape::new(b, k), precision),
        bench.factor(4, MatrixShape::new(b, n), precision),
    );
    let bias = bench.vector(5, n);
    let mut y = device.matrix(Precision::F32, b, n).unwrap();
    for activation in [Activation::None, Activation::Relu] {
        let bias = (activation == Activation::Relu).then_some(&bias);
        let (weight, y) = (&weight, &mut y);
        let arguments = LinearForward { x: &x, weight, bias, activation, y, samples: b };
        device.linear_forward(&bench.queue, arguments).unwrap();
        bench.keep_matrix(&format!("y, {activation:?}"), y, MatrixShape::new(b, n));
    }
    let output = bench.factor(6, MatrixShape::new(b, k), precision);
    for mode in 0..3 {
        let mut d_x = bench.matrix(7, MatrixShape::new(b, k));
        let gradient = match mode {
            0 => InputGradient::Write,
            1 => InputGradient::Accumulate,
            _ => InputGradient::BeforeRelu(&output),
        };
        // As between layers of a model, the gradient before a ReLU has the precision of the
        // products.
        let mut narrow = device.matrix(precision, b, k).unwrap();
        let to = if mode == 2 { &mut narrow } else { &mut d_x };
        let arguments =
            LinearBackwardInput { d_y: &d_y, weight: &weight, gradient, d_x: to, samples: b };
        device.linear_backward_input(&bench.queue, arguments).unwrap();
        if mode < 2 || precision == Precision::F32 {
            bench.keep_matrix(
                "d_x",
                if mode == 2 { &narrow } else { &d_x },
                MatrixShape::new(b, k),
            );
        }
    }
    let mut d_bias = device.vector(n).unwrap();
    let sum: Vec<f32> = floats(8, device.gradient_len(&weight));
    for mode in 0..4 {
        let fused = (mode == 0 && B::fuses(optimizer)).then_some(&bench.scalars);
        let (weight, d_bias) = (&mut weight, Some(&mut d_bias));
        let arguments = LinearBackwardWeight { x: &x, d_y: &d_y, weight, d_bias, samples: b };
        device.linear_backward_weight(&bench.queue, arguments, fused).unwrap();
        if fused.is_none() {
            // The layout of a gradient's sum depends on the device, so the test computes the sum
            // as twice this device's own gradient.
            let mut gradient = Vec::new();
            let mut take = |values: &[f32]| gradient = values.iter().map(|v| v * 2.0).collect();
            device.lend_gradient(&bench.queue, weight, &mut take).unwrap();
            assert_eq!(gradient.len(), sum.len());
            let copy = |to: &mut [f32]| to.copy_from_slice(&gradient);
            let sum = match mode {
                0 | 1 => None,
                2 => Some(GradientSum::Whole(&gradient)),
                _ => Some(GradientSum::Pieces(&copy)),
            };
            device.update_weight(&bench.queue, weight, sum, &bench.scalars).unwrap();
        }
        bench.keep_weight(&format!("weight after update {mode}"), weight, case);
    }
    bench.keep("d_bias", &d_bias, n);
    device.clear_gradient(&bench.queue, &mut weight).unwrap();
    device.update_weight(&bench.queue, &mut weight, None, &bench.scalars).unwrap();
    bench.keep_weight("weight after no gradient", &weight, case);
}

/// Runs the products of the layer with one output, and the update of a vector.
fn columns<B: Backend>(bench: &mut Bench<'_, B>, Case { b, k, optimizer, .. }: Case) {
    let (device, shape) = (bench.device, MatrixShape::new(b, k));
    let x = bench.matrix(1, shape);
    let (mut weight, bias, d_y) = (bench.vector(2, k), bench.vector(3, 1), bench.vector(4, b));
    let mut y = device.vector(b).unwrap();
    for start in [ColumnStart::Bias(&bias), ColumnStart::Output] {
        let arguments = ColumnForward { x: &x, weight: &weight, start, y: &mut y, shape };
        device.column_forward(&bench.queue, arguments).unwrap();
        bench.keep("logits", &y, b);
    }
    let (mut d_weight, mut d_bias) = (device.vector(k).unwrap(), device.vector(1).unwrap());
    let (to, d_bias_to) = (&mut d_weight, &mut d_bias);
    let arguments =
        ColumnBackwardWeight { x: &x, d_y: &d_y, d_weight: to, d_bias: Some(d_bias_to), shape };
    device.column_backward_weight(&bench.queue, arguments).unwrap();
    bench.keep("d_weight", &d_weight, k);
    bench.keep("d_bias", &d_bias, 1);
    for relu in [None, Some(&x)] {
        let mut d_x = device.matrix(Precision::F32, b, k).unwrap();
        let arguments =
            ColumnBackwardInput { d_y: &d_y, weight: &weight, relu, d_x: &mut d_x, shape };
        device.column_backward_input(&bench.queue, arguments).unwrap();
        bench.keep_matrix("d_x of logits", &d_x, shape);
    }
    let mut state = device.vector(optimizer.state_per_row(k)).unwrap();
    let sum = floats(9, k);
    let copy = |to: &mut [f32]| to.copy_from_slice(&sum);
    for sum in [None, Some(GradientSum::Whole(&sum)), Some(GradientSum::Pieces(&copy))] {
        let (values, gradient, state) = (&mut weight, &mut d_weight, &mut state);
        let arguments = VectorUpdate { values, gradient, state, dim: k };
        device.update_vector(&bench.queue, arguments, sum, &bench.scalars).unwrap();
        bench.keep("vector", &weight, k);
    }
    bench.keep("state of a vector", &state, optimizer.state_per_row(k));
    device.clear(&bench.queue, &mut weight, k / 2).unwrap();
    bench.keep("half cleared", &weight, k);
    let mut lent = Vec::new();
    let range = k / 3..k;
    let mut take = |values: &[f32]| lent.extend_from_slice(values);
    device.lend(&bench.queue, &weight, range, &mut take).unwrap();
    bench.results.push(("lent".to_owned(), lent));
    device.grow(&mut weight, k).unwrap();
    bench.keep("not grown", &weight, k);
    device.grow(&mut weight, 3 * k).unwrap();
    device.write(&bench.queue, &floats(1, k), &mut weight, 2 * k).unwrap();
}

/// Runs the element-wise operations between layers.
fn elementwise<B: Backend>(bench: &mut Bench<'_, B>, Case { b, n, k, .. }: Case) {
    let (device, shape) = (bench.device, MatrixShape::new(b, k));
    let [x0, u, x, d_out] = [1, 2, 3, 4].map(|seed| bench.matrix(seed, shape));
    let bias = bench.vector(5, k);
    let mut out = device.matrix(Precision::F32, b, k).unwrap();
    let (bias, to) = (&bias, &mut out);
    let arguments = CrossForward { x0: &x0, u: &u, bias, x: &x, out: to, shape };
    device.cross_forward(&bench.queue, arguments).unwrap();
    bench.keep_matrix("cross", &out, shape);
    let mut gradients = [6, 7, 8].map(|seed| bench.matrix(seed, shape));
    let mut d_bias = device.vector(k).unwrap();
    let [d_u, d_x0, d_x] = gradients.each_mut();
    let arguments = CrossBackward {
        d_out: &d_out,
        x0: &x0,
        u: &u,
        bias,
        d_u,
        d_bias: &mut d_bias,
        d_x0,
        d_x,
        shape,
    };
    device.cross_backward(&bench.queue, arguments).unwrap();
    for (name, gradient) in ["d_u", "d_x0", "d_x"].iter().zip(&gradients) {
        bench.keep_matrix(name, gradient, shape);
    }
    bench.keep("d_bias of a cross layer", &d_bias, k);
    device.relu_backward(&bench.queue, &x, shape, &mut out).unwrap();
    bench.keep_matrix("before a ReLU", &out, shape);
    for combine in [Combine::Add(&u), Combine::Copy(&x0), Combine::Clear] {
        device.combine(&bench.queue, combine, shape, &mut out).unwrap();
        bench.keep_matrix("combined", &out, shape);
    }
    let (joined, right) = (JoinShape { rows: b, left: k, right: n }, bench.vector(9, b * n));
    let mut whole = device.matrix(Precision::F32, b, k + n).unwrap();
    device.join(&bench.queue, &x, &right, joined, &mut whole).unwrap();
    bench.keep_matrix("joined", &whole, MatrixShape::new(b, k + n));
    let mut part = device.vector(b * n).unwrap();
    device.split(&bench.queue, &whole, joined, &mut out, &mut part).unwrap();
    bench.keep_matrix("left", &out, shape);
    bench.keep("right", &part, b * n);
}

fn interactions<B: Backend>(bench: &mut Bench<'_, B>, Case { b, n, k, .. }: Case) {
    let (device, features) = (bench.device, n.min(6));
    for (dense, order, itself) in
        [(true, TriangleOrder::Lower, false), (false, TriangleOrder::Upper, true)]
    {
        let shape = interaction::Shape { b, features, dense, dim: k, order, itself };
        let wide = shape.dense_width();
        let (dense, pooled) =
            (bench.matrix(1, MatrixShape::new(b, wide)), bench.vector(2, b * features * k));
        let mut out = device.matrix(Precision::F32, b, shape.width()).unwrap();
        let (dense, pooled, to) = (&dense, &pooled, &mut out);
        let arguments = InteractionForward { shape, dense, pooled, out: to };
        device.interaction_forward(&bench.queue, arguments).unwrap();
        bench.keep_matrix("interaction", &out, MatrixShape::new(b, shape.width()));
        let mut d_dense = device.matrix(Precision::F32, b, wide).unwrap();
        let mut d_pooled = device.vector(b * features * k).unwrap();
        let (d_out, gradients) = (&out, (&mut d_dense, &mut d_pooled));
        let arguments = InteractionBackward {
            shape,
            dense,
            pooled,
            d_out,
            d_dense: gradients.0,
            d_pooled: gradients.1,
        };
        device.interaction_backward(&bench.queue, arguments).unwrap();
        bench.keep_matrix("d_dense", &d_dense, MatrixShape::new(b, wide));
        bench.keep("d_pooled", &d_pooled, b * features * k);
    }
}

fn losses<B: Backend>(bench: &mut Bench<'_, B>, Case { b, .. }: Case) {
    let device = bench.device;
    for kind in [Loss::Mse, Loss::BceWithLogits] {
        let logits = bench.vector(1, b);
        let labels: Vec<f32> = floats(2, b).iter().map(|v| f32::from(*v > 0.0)).collect();
        let mut gradient = device.vector(b).unwrap();
        let mut probabilities = device.vector(b).unwrap();
        let arguments = LossArguments {
            kind,
            logits: &logits,
            labels: &labels,
            gradient: &mut gradient,
            probabilities: &mut probabilities,
        };
        device.loss(&bench.queue, arguments, &mut bench.scalars).unwrap();
        bench.keep("d_logits", &gradient, b);
        bench.keep("probabilities", &probabilities, b);
        let form = Probabilities::Missing;
        device.probabilities(&bench.queue, &logits, b, form, &mut gradient).unwrap();
        bench.keep("sigmoids", &gradient, b);
    }
    let end = device.end(&bench.queue, &mut bench.scalars).unwrap();
    let outcome = device.outcome(&mut bench.scalars, end).unwrap();
    bench.results.push(("loss".to_owned(), vec![outcome.loss as f32]));
}

const ROWS: [usize; 3] = [9, 40, 3];
const DIMS: [usize; 3] = [4, 8, 1];
const TYPES: [DataType; 3] = [DataType::F32, DataType::Bf16, DataType::F16];
/// Slots of the four keys, of which the first two share the first table.
const SLOTS: [Slot; 4] = [
    Slot { tile: 0, column: 0 },
    Slot { tile: 0, column: 4 },
    Slot { tile: 1, column: 8 },
    Slot { tile: 2, column: 16 },
];
const WIDTH: usize = 17;

fn pooled(tiles: Vec<TileValues>, slots: &[Slot]) -> TableValues {
    TableValues { tiles, slots: slots.to_vec(), output: SlotOutput::Pooled }
}

fn batch(samples: usize, seed: u64, weighted: bool) -> JaggedTensor {
    let rng = CounterRng::new(seed, 1);
    let lengths: Vec<usize> =
        (0..4 * samples as u64).map(|bag| rng.below(bag, 4) as usize).collect();
    let mut values = Vec::new();
    for (bag, &length) in lengths.iter().enumerate() {
        let rows = ROWS[SLOTS[bag / samples].tile] as u64;
        values.extend((0..length as u64).map(|i| rng.child(bag as u64).below(i, rows) as i64));
    }
    let weights = weighted.then(|| floats(seed, values.len()));
    JaggedTensor { weights, ..JaggedTensor::from_lengths(4, &lengths, values) }
}

fn tile(t: usize, optimizer: Optimizer) -> TileValues {
    let (rows, dim) = (ROWS[t], DIMS[t]);
    let mut weights = Weights::zeroed(TYPES[t], rows * dim);
    weights.view_mut().fill_from(&floats(t as u64, rows * dim));
    let state = Array::zeroed(rows * optimizer.state_per_row(dim));
    let origin = TileOrigin { table: t as u32, row: 7, column: 2 };
    TileValues { weights, state, rows, dim, name: format!("t{t}"), origin }
}

/// Runs lookups and updates over batches with various numbers of ids, including no ids, with and
/// without weights. Updates run in one operation, and in halves.
fn tables<B: Backend>(bench: &mut Bench<'_, B>, Case { b, optimizer, .. }: Case) {
    let device = bench.device;
    let tiles = (0..3).map(|t| tile(t, optimizer)).collect();
    let mut tables = device.tables(pooled(tiles, &SLOTS)).unwrap();
    let mut out = device.vector(b * WIDTH).unwrap();
    let mean = |feature| IdSlot {
        feature,
        position: None,
        rows: 0..ROWS[SLOTS[feature].tile] as i64,
        all_rows: true,
        mean: true,
    };
    let slots = vec![(0..SLOTS.len()).map(mean).collect()];
    let (mut sent, mut selected) =
        (B::Ids::default(), device.ids(IdLayout { slots, own: 0, has_scales: true }).unwrap());
    for (seed, weighted, scaled) in [(1, false, false), (2, true, true), (3, false, false)] {
        let mut jagged = batch(b, seed, weighted);
        if seed == 3 {
            jagged = JaggedTensor::from_lengths(4, &vec![0; 4 * b], Vec::new());
            // Other buffers of ids, with less capacity than the buffers of the update.
            sent = B::Ids::default();
        }
        if scaled {
            device.release_ids(&bench.queue, &selected).unwrap();
            selected.select(&jagged).unwrap();
            device.acquire_ids(&bench.queue, &selected).unwrap();
        } else {
            device.send_ids(&bench.queue, &jagged, &mut sent).unwrap();
        }
        let ids = || match scaled {
            true => BatchIds { unchanged: None, ids: &selected },
            false => BatchIds { unchanged: Some(&jagged), ids: &sent },
        };
        let scalars = &mut bench.scalars;
        device.lookup(&bench.queue, &mut tables, ids(), &mut out, scalars).unwrap();
        bench.keep("pooled", &out, b * WIDTH);
        let gradient = bench.vector(4, b * WIDTH);
        let scalars = &mut bench.scalars;
        device.update_rows(&bench.queue, &mut tables, ids(), &gradient, scalars).unwrap();
        keep_tiles(bench, &tables);
        let (mut sums, mut terms) = (RowSums::default(), Vec::new());
        let (queue, scalars) = (&bench.queue, &mut bench.scalars);
        device.sum_rows(queue, &mut tables, ids(), &gradient, scalars, &mut sums).unwrap();
        device.row_terms(queue, &mut tables, &sums, scalars, &mut terms).unwrap();
        let rows = sums.rows.iter().map(|&row| row as f32).collect();
        // The terms of rows of which the tiles hold a half.
        let whole: Vec<f32> = terms.iter().map(|term| 2.0 * term).collect();
        device.apply_rows(queue, &mut tables, &sums, Some(&whole), scalars).unwrap();
        for (name, values) in [("rows", rows), ("sums", sums.sums.clone()), ("terms", terms)] {
            bench.results.push((name.to_owned(), values));
        }
        keep_tiles(bench, &tables);
        device.apply_rows(&bench.queue, &mut tables, &sums, None, &mut bench.scalars).unwrap();
        keep_tiles(bench, &tables);
    }
}

fn keep_tiles<B: Backend>(bench: &mut Bench<'_, B>, tables: &B::Tables) {
    for (t, &rows) in ROWS.iter().enumerate() {
        let mut room = TileRoom::default();
        let rows = TileRows { tile: t, rows: 1..rows };
        let (weights, state) = bench.device.tile(&bench.queue, tables, rows, &mut room).unwrap();
        bench.results.push((format!("tile {t}"), weights.to_f32()));
        bench.results.push((format!("state {t}"), state.to_vec()));
    }
}

/// Reports the updated rows of an update.
fn updated<B: Backend>(bench: &mut Bench<'_, B>, Case { b, optimizer, .. }: Case) {
    let device = bench.device;
    let tiles = (0..3).map(|t| tile(t, optimizer)).collect();
    let mut tables = device.tables(pooled(tiles, &SLOTS)).unwrap();
    let (mut on_device, jagged) = (B::Ids::default(), batch(b, 1, false));
    device.send_ids(&bench.queue, &jagged, &mut on_device).unwrap();
    let ids = || BatchIds { unchanged: Some(&jagged), ids: &on_device };
    let gradient = bench.vector(4, b * WIDTH);
    let scalars = &mut bench.scalars;
    device.update_rows(&bench.queue, &mut tables, ids(), &gradient, scalars).unwrap();
    let end = device.end(&bench.queue, &mut bench.scalars).unwrap();
    let outcome = device.outcome(&mut bench.scalars, end).unwrap();
    let counts = outcome.updated;
    let counts = [counts.unique_rows, counts.unique_elements, counts.unique_bytes];
    bench.results.push(("updated".to_owned(), counts.map(|count| count as f32).to_vec()));
    assert_eq!(outcome.bad_id, None);
}

fn exchanges<B: Backend>(bench: &mut Bench<'_, B>, Case { b, .. }: Case) {
    let device = bench.device;
    let source = |rank, from, to, len, first| PooledColumns { rank, from, to, len, first };
    let layout = ExchangeLayout {
        sources: vec![
            source(1, 0, 0, 3, true),
            source(0, 0, 3, 2, true),
            source(1, 3, 3, 2, false),
        ],
        columns: vec![
            vec![OwnedColumns { from: 3, to: 0, len: 2 }],
            vec![OwnedColumns { from: 0, to: 0, len: 3 }, OwnedColumns { from: 3, to: 3, len: 2 }],
        ],
        widths: vec![2, 5],
        row: 5,
    };
    let mut exchange = device.exchange(layout).unwrap();
    let (local, mut pooled) = (bench.vector(1, 2 * b * 2), device.vector(b * 5).unwrap());
    let parts = [Vec::new(), floats(2, b * 5)];
    let arguments = Assemble { own: (0, 2 * b), local: &local, parts: &parts, samples: b };
    device.assemble(&bench.queue, &mut exchange, arguments, &mut pooled).unwrap();
    bench.keep("assembled", &pooled, b * 5);
    for (rank, width) in [2, 5].into_iter().enumerate() {
        let mut to = vec![0.0; b * width];
        let arguments = Gather { rank, from: &pooled, samples: b };
        device.gather(&bench.queue, &mut exchange, arguments, &mut to).unwrap();
        bench.results.push(("gathered".to_owned(), to));
    }
}

fn run<B: Backend>(device: &B, case: Case) -> Results {
    let mut bench = Bench::new(device, case.optimizer, case.b);
    products(&mut bench, case);
    columns(&mut bench, case);
    elementwise(&mut bench, case);
    interactions(&mut bench, case);
    losses(&mut bench, case);
    tables(&mut bench, case);
    exchanges(&mut bench, case);
    let mut bench = Bench { results: bench.results, ..Bench::new(device, case.optimizer, case.b) };
    updated(&mut bench, case);
    bench.results
}

/// Returns the GPU of `ROWMILL_GPU`, or emulated GPUs if it is not set. Under the sanitizers the
/// list is empty, because they use their own emulator.
pub fn devices() -> Vec<Cuda> {
    if let Some(bench) = gpu() {
        return vec![Cuda::new(bench.driver, 1).unwrap()];
    }
    if sanitizers::is_child() || !has_compiler() {
        return Vec::new();
    }
    let cuda = |order, checks| Cuda::new(Driver::emulated(emulation(order, checks)), 1).unwrap();
    vec![cuda(BlockOrder::Ascending, Checks::Every), cuda(BlockOrder::Shuffled(3), Checks::Few)]
}

#[test]
fn every_operation_on_the_device_is_that_of_the_cpu() {
    let devices = devices();
    if devices.is_empty() {
        return;
    }
    let rng = CounterRng::new(29, 1);
    for (number, optimizer) in Optimizer::ALL.into_iter().enumerate() {
        let below = |i: u64, most| 1 + rng.child(number as u64).below(i, most) as usize;
        let (b, n, k) = (below(0, 150), below(1, 40), below(2, 70));
        for precision in [Precision::F32, Precision::Bf16] {
            let case = Case { b, n, k, optimizer, precision };
            let expected = run(&Cpu::new(1), case);
            let got = run(&devices[number % devices.len()], case);
            assert_eq!(got.len(), expected.len());
            for ((name, got), (_, expected)) in got.iter().zip(&expected) {
                same(&format!("{name}, {case:?}"), got, expected);
            }
        }
    }
}

/// On an H100, the vectors of 100 tables of 128 columns fit in the shared memory of a block, and
/// those of 460 tables do not. A device without the opt-in limit must reject both.
#[test]
fn an_interaction_beyond_shared_memory_is_refused_before_the_first_step() {
    let check = |shared_limit, features| {
        let emulation = Emulation { shared_limit, ..emulation(BlockOrder::Ascending, Checks::Few) };
        let order = TriangleOrder::Lower;
        let shape =
            interaction::Shape { b: 0, features, dense: true, dim: 128, order, itself: false };
        Interaction::check(&Driver::emulated(emulation), &shape).map_err(|error| error.to_string())
    };
    assert_eq!(check(H100_SHARED_BYTES, 100), Ok(()));
    let what = "bytes of shared memory of a block, at most";
    assert_eq!(
        check(H100_SHARED_BYTES, 460).unwrap_err(),
        format!("dot interaction of 461 vectors x 128: {what}: expected 232448, got 237876")
    );
    assert_eq!(
        check(48 << 10, 100).unwrap_err(),
        format!("dot interaction of 101 vectors x 128: {what}: expected 49152, got 52116")
    );
}

/// Checks that two results agree within the error that another order of f32 sums may cause.
fn same(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let most = expected.iter().fold(1.0f32, |most, value| most.max(value.abs()));
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let close = (got - expected).abs() <= 2e-5 * most;
        assert!(close || got.is_nan() && expected.is_nan(), "{what}[{i}]: {expected}, got {got}");
    }
}

#[test]
fn an_error_stops_this_step_and_later_ones() {
    if !has_compiler() {
        return;
    }
    let emulation = emulation(BlockOrder::Descending, Checks::Every);
    let device = Cuda::new(Driver::emulated(emulation), 1).unwrap();
    let optimizer = Optimizer::Sgd;
    let mut bench = Bench::new(&device, optimizer, 5);
    let mut tables = device.tables(pooled(vec![tile(0, optimizer)], &SLOTS[..1])).unwrap();
    let mut on_device = Default::default();
    let mut out = device.vector(20).unwrap();
    for (step, ids) in [[0, 1, 9, 2, -1], [0, 1, 2, 3, 4]].into_iter().enumerate() {
        let jagged = JaggedTensor::from_lengths(1, &[1; 5], ids.to_vec());
        let numbers = StepScalars {
            dense: UpdateRule::new(&OptimizerConfig::new(optimizer, 0.1), 1.0, 0),
            sparse: UpdateRule::new(&OptimizerConfig::new(optimizer, 0.1), 1.0, 0),
            normaliser: 5.0,
            rounding: CounterRng::new(1, 1),
        };
        device.begin(&bench.queue, &numbers, &mut bench.scalars).unwrap();
        device.send_ids(&bench.queue, &jagged, &mut on_device).unwrap();
        let ids = || BatchIds { unchanged: Some(&jagged), ids: &on_device };
        let scalars = &mut bench.scalars;
        device.lookup(&bench.queue, &mut tables, ids(), &mut out, scalars).unwrap();
        let logits = bench.vector(1, 5);
        let [mut gradient, mut probabilities] = [(); 2].map(|()| device.vector(5).unwrap());
        let arguments = LossArguments {
            kind: Loss::Mse,
            logits: &logits,
            labels: &[0.0; 5],
            gradient: &mut gradient,
            probabilities: &mut probabilities,
        };
        device.loss(&bench.queue, arguments, &mut bench.scalars).unwrap();
        let mut values = bench.vector(3, 5);
        let (mut state, before) = (device.vector(0).unwrap(), floats(3, 5));
        let (to, gradient) = (&mut values, &mut gradient);
        let arguments = VectorUpdate { values: to, gradient, state: &mut state, dim: 5 };
        device.update_vector(&bench.queue, arguments, None, &bench.scalars).unwrap();
        bench.keep("values", &values, 5);
        assert_eq!(bench.results.pop().unwrap().1, before, "step {step}");
        let gradient = bench.vector(2, 20);
        let scalars = &mut bench.scalars;
        device.update_rows(&bench.queue, &mut tables, ids(), &gradient, scalars).unwrap();
        let end = device.end(&bench.queue, &mut bench.scalars).unwrap();
        let outcome = device.outcome(&mut bench.scalars, end).unwrap();
        assert_eq!(outcome.bad_id, (step == 0).then_some(2));
        assert_eq!(outcome.updated, Default::default());
        let mut room = TileRoom::default();
        let rows = TileRows { tile: 0, rows: 0..9 };
        let (weights, _) = device.tile(&bench.queue, &tables, rows, &mut room).unwrap();
        assert_eq!(weights.to_f32(), floats(0, 36));
    }
}
