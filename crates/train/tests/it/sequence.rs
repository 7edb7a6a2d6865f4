//! Tests tables without pooling, apart from the rest of a model.
//!
//! Lookups must return the rows themselves, and the same bytes for any number of threads and ranks,
//! in every data type.

use device::backend::{StepScalars, TileRoom, TileRows};
use device::buffer::Array;
use device::optimizer::UpdateRule;
use device::{Backend, Cpu};
use schema::random::CounterRng;
use schema::stage::ActionPart;
use schema::{DataType, JaggedTensor, JobConfig, Optimizer, OptimizerConfig, Rank, ShardingPlan};
use train::context::DeviceQueue;
use train::embedding::EmbeddingCollection;
use train::embedding::input_dist::BatchUse;
use train::initial;
use train::memory::CountingAllocator;
use train::profile::Profiler;
use train::{Model, RankContext};

use crate::ranks;

const BATCH: usize = 21;
const LENGTH: usize = 3;
const DIM: usize = 6;
const STEPS: u64 = 3;
/// Width of the output, ΣD, for two sequences of one table and one pooled vector.
const WIDTH: usize = (2 * LENGTH + 1) * DIM;

fn config(data_type: &str) -> JobConfig {
    let text = format!(
        r#"
[model]
name = "sequence"
dense_features = 0
bottom = []
top = [1]
interaction = {{ kind = "cat" }}
loss = "bce_with_logits"
tables = [
    {{ name = "items", rows = 19, dim = {DIM}, pooling = "none", sequence_length = {LENGTH}, data_type = "{data_type}", features = ["seen", "bought"] }},
    {{ name = "place", rows = 5, dim = {DIM}, data_type = "{data_type}" }},
]
[optimizer]
sparse = {{ kind = "sgd", learning_rate = 0.1 }}
dense = {{ kind = "sgd", learning_rate = 0.1 }}
[training]
batch_size = {BATCH}
[data]
format = "csv"
label = {{ column = "y" }}
categorical = [{{ column = "seen" }}, {{ column = "bought" }}, {{ column = "place" }}]
"#
    );
    JobConfig::parse(&text, &[]).unwrap()
}

/// Creates bags of up to 5 ids, of which [`LENGTH`] are looked up. Bags of the pooled table have at
/// most one id, so that no partial sums are rounded.
fn ids(step: u64) -> JaggedTensor {
    let rng = CounterRng::new(12, step);
    let most = |bag| if bag < 2 * BATCH as u64 { 6 } else { 2 };
    let lengths: Vec<usize> =
        (0..3 * BATCH as u64).map(|bag| rng.below(bag, most(bag)) as usize).collect();
    let rows = (0..3 * BATCH).flat_map(|bag| {
        let rows = if bag < 2 * BATCH { 19 } else { 5 };
        std::iter::repeat_n(rows, lengths[bag])
    });
    let values = (0..).zip(rows).map(|(i, rows)| rng.child(1).below(i, rows) as i64).collect();
    JaggedTensor::from_lengths(3, &lengths, values)
}

fn with(config: &JobConfig, optimizer: Optimizer) -> JobConfig {
    let mut config = config.clone();
    config.optimizer.sparse = OptimizerConfig::new(optimizer, 0.1);
    config
}

/// Trains the tables on gradients that depend only on the sample. Returns the output of each step,
/// and the tables in f32.
fn trained(
    config: &JobConfig,
    plan: &ShardingPlan,
    optimizer: Optimizer,
    threads: usize,
) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let ranks = plan.world_size() as usize;
    let config = &with(config, optimizer);
    let run = |comm: comm::Communicator| {
        let rank = comm.rank().index();
        let cpu = &Cpu::new(1);
        let context = &mut RankContext::new(Cpu::new(threads), comm, Profiler::off()).unwrap();
        context.comm.open_lanes(schema::Schedule::SERIAL, plan).unwrap();
        let own = Rank(rank as u32);
        let model = Model::initial(context.device_queue(), config, plan, own, BATCH).unwrap();
        let tiles = ranks::tiles_of(&model);
        let mut embedding =
            EmbeddingCollection::new(&mut CountingAllocator::new(cpu), config, plan, own, tiles);
        let mut scalars = cpu.scalars().unwrap();
        let samples = BATCH * rank / ranks..BATCH * (rank + 1) / ranks;
        let mut looked_up = Vec::new();
        for step in 0..STEPS {
            let own = ids(step).slice(samples.clone());
            let mut pooled = Array::zeroed(samples.len() * WIDTH);
            // NaN reveals positions that the lookup does not write.
            pooled.fill(f32::NAN);
            let (first, part, out) = (samples.start, ActionPart::Whole, &mut pooled);
            embedding.distribute(context, &own, first, BatchUse::Training).unwrap();
            embedding.copy(context.device_queue(), &own).unwrap();
            embedding.look_up(context, &own, out, &mut scalars).unwrap();
            embedding.exchange_vectors(context, part, out, samples.len()).unwrap();
            let rng = CounterRng::new(13, step);
            let cells = (samples.start * WIDTH..samples.end * WIDTH).map(|i| i as u64);
            let gradient: Vec<f32> = cells.map(|cell| rng.normal(cell) as f32).collect();
            let gradient = Array::from(&gradient[..]);
            let sparse = UpdateRule::new(&config.optimizer.sparse, 1.0, step);
            let rounding = initial::rounding(config.model.seed, step);
            let numbers = StepScalars { dense: sparse, sparse, normaliser: 1.0, rounding };
            cpu.begin(&(), &numbers, &mut scalars).unwrap();
            embedding
                .exchange_gradients(context, part, &own, own.batch_size, &gradient, &scalars)
                .unwrap();
            embedding.exchange_terms(context, &scalars).unwrap();
            embedding.update(context, &own, &gradient, &mut scalars).unwrap();
            looked_up.push(pooled.to_vec());
        }
        let mut room = TileRoom::default();
        let mut tiles = Vec::new();
        for (number, tile) in embedding.tiles().iter().enumerate() {
            let rows = TileRows { tile: number, rows: 0..tile.row_count() };
            let view = embedding.tile(context.device_queue(), rows, &mut room).unwrap();
            tiles.push((view.tile, view.weight.to_f32()));
        }
        (looked_up, tiles)
    };
    let all: Vec<_> = std::thread::scope(|scope| {
        let ends = comm::world(plan.world_size()).into_iter();
        let ranks: Vec<_> = ends.map(|end| scope.spawn(|| run(end))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let of_step = |step: usize| all.iter().flat_map(|(steps, _)| steps[step].clone()).collect();
    let looked_up = (0..STEPS as usize).map(of_step).collect();
    let mut tables = vec![vec![f32::NAN; 19 * DIM], vec![f32::NAN; 5 * DIM]];
    for (tile, weight) in all.iter().flat_map(|(_, tiles)| tiles) {
        for (row, values) in tile.rows.clone().zip(weight.chunks_exact(tile.dim())) {
            let start = row as usize * DIM + tile.columns.start;
            tables[tile.table.index()][start..start + tile.dim()].copy_from_slice(values);
        }
    }
    (looked_up, tables)
}

#[test]
fn sequence_vectors_are_the_first_rows_padded_with_zeros() {
    for data_type in ["f32", "f16", "bf16"] {
        let config = config(data_type);
        let plan = ShardingPlan::table_wise(&config.model.tables, 1);
        let model = Model::initial(
            DeviceQueue { device: &Cpu::new(1), queue: &() },
            &config,
            &plan,
            Rank(0),
            1,
        )
        .unwrap();
        let items = ranks::tiles_of(&model)[0].weight.view().to_f32();
        let (looked_up, _) = trained(&config, &plan, Optimizer::Sgd, 1);
        let ids = ids(0);
        let (mut rows, mut zeros) = (0, 0);
        for (sample, vectors) in looked_up[0].chunks_exact(WIDTH).enumerate() {
            for (place, vector) in vectors.chunks_exact(DIM).take(2 * LENGTH).enumerate() {
                let bag = &ids.values[ids.bag(place / LENGTH, sample)];
                let expected = match bag.get(place % LENGTH) {
                    Some(&id) => items[id as usize * DIM..][..DIM].to_vec(),
                    None => vec![0.0; DIM],
                };
                assert_eq!(vector, expected, "{data_type}, sample {sample}, place {place}");
                *if place % LENGTH < bag.len() { &mut rows } else { &mut zeros } += 1;
            }
        }
        assert!(rows > 50 && zeros > 20, "{rows} rows, {zeros} zeros");
    }
}

#[test]
fn results_do_not_depend_on_threads_or_ranks() {
    let makes = [ShardingPlan::table_wise, ShardingPlan::row_wise, ShardingPlan::column_wise];
    for data_type in ["f32", "f16", "bf16"] {
        let config = config(data_type);
        assert_eq!(config.model.tables[0].data_type == DataType::F32, data_type == "f32");
        for optimizer in Optimizer::ALL {
            // A row norm is computed over the columns of a tile, so splitting columns changes it.
            let by_row = optimizer.looks_at_rows();
            let whole = ShardingPlan::table_wise(&config.model.tables, 1);
            let alone = trained(&config, &whole, optimizer, 1);
            for make in &makes[..if by_row { 2 } else { 3 }] {
                for (ranks, threads) in [(1, 2), (1, 7), (2, 1), (3, 2)] {
                    let plan = make(&config.model.tables, ranks);
                    assert!(
                        trained(&config, &plan, optimizer, threads) == alone,
                        "{data_type}, {optimizer:?}, {ranks} ranks, {threads} threads, {plan:?}"
                    );
                }
            }
        }
    }
}
