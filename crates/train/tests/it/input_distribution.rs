//! Tests the exchange of ids on the emulated GPU. Two ranks receive the ids that they receive on
//! the CPU, and then train tables to the bytes of the CPU.

use std::sync::Arc;

use comm::Communicator;
use device::backend::{Cuda, DistributedIds, StepScalars, TileRoom, TileRows};
use device::buffer::Array;
use device::ops::jagged::LocalIds;
use device::optimizer::UpdateRule;
use device::{Backend, Cpu};
use schema::random::CounterRng;
use schema::stage::ActionPart;
use schema::{
    JaggedTensor, JobConfig, Optimizer, OptimizerConfig, Schedule, ShardingPlan, TableId,
};
use train::context::DeviceQueue;
use train::embedding::input_dist::{BatchUse, IdCommunicators, IdExchange};
use train::embedding::{EmbeddingCollection, SlotLayout};
use train::memory::CountingAllocator;
use train::parameter::TileState;
use train::profile::Profiler;
use train::{RankContext, initial};

use crate::ranks;

const BATCH: usize = 23;
const STEPS: u64 = 3;
const ROWS: [u64; 5] = [19, 41, 12, 30, 7];
/// The table of each feature. The first table has two, which are sequences.
const TABLES: [usize; 6] = [0, 0, 1, 2, 3, 4];
/// Width of the pooled vectors: two sequences of three vectors, and four pooled features.
const WIDTH: usize = (2 * 3 + 4) * 6;

/// Two sequences and four pooled tables, of which two average their bags.
fn config(optimizer: Optimizer) -> JobConfig {
    let table = |number: usize, pooling: &str| {
        let rows = ROWS[number];
        format!(
            r#"{{ name = "t{number}", rows = {rows}, dim = 6, features = ["f{number}"], {pooling} }},"#
        )
    };
    let text = format!(
        r#"
[model]
name = "ids"
dense_features = 0
bottom = []
top = [1]
interaction = {{ kind = "cat" }}
loss = "bce_with_logits"
tables = [
    {{ name = "t0", rows = 19, dim = 6, pooling = "none", sequence_length = 3, features = ["f0", "g0"] }},
    {} {} {} {}
]
[optimizer]
sparse = {{ kind = "sgd", learning_rate = 0.1 }}
dense = {{ kind = "sgd", learning_rate = 0.1 }}
[training]
batch_size = {BATCH}
[data]
format = "csv"
label = {{ column = "y" }}
categorical = [{{ column = "f0" }}, {{ column = "g0" }}, {{ column = "f1" }}, {{ column = "f2" }}, {{ column = "f3" }}, {{ column = "f4" }}]
"#,
        table(1, r#"pooling = "sum""#),
        table(2, r#"pooling = "mean""#),
        table(3, r#"pooling = "mean""#),
        table(4, r#"pooling = "mean""#),
    );
    let mut config = JobConfig::parse(&text, &[]).unwrap();
    config.optimizer.sparse = OptimizerConfig::new(optimizer, 0.1);
    config
}

/// Splits two tables by rows and two by columns over two ranks, and replicates the last one.
fn plan(config: &JobConfig) -> ShardingPlan {
    let tables = &config.model.tables;
    let by_rows = ShardingPlan::row_wise(tables, 2);
    let by_columns = ShardingPlan::column_wise(tables, 2);
    let rows = by_rows.tiles().iter().filter(|tile| tile.table.0 < 2);
    let columns = by_columns.tiles().iter().filter(|tile| [2, 3].contains(&tile.table.0));
    let tiles = rows.chain(columns).cloned().collect();
    ShardingPlan::with_replicas(2, tiles, &[TableId(4)], tables).unwrap()
}

/// Creates a rank's share of a batch with weighted ids. The second rank has no samples in the last
/// step.
fn share(step: u64, rank: usize) -> JaggedTensor {
    let samples = if rank == 0 { BATCH } else { 11 * (STEPS - 1 - step) as usize };
    let rng = CounterRng::new(12, step).child(rank as u64);
    let bags = TABLES.len() * samples;
    let lengths: Vec<usize> = (0..bags as u64).map(|bag| rng.below(bag, 6) as usize).collect();
    let tables = (0..bags).flat_map(|bag| std::iter::repeat_n(TABLES[bag / samples], lengths[bag]));
    let ids = (0..).zip(tables).map(|(i, table)| rng.child(1).below(i, ROWS[table]) as i64);
    let ids: Vec<i64> = ids.collect();
    let weights = (0..ids.len() as u64).map(|i| rng.child(2).unit(i) as f32).collect();
    let jagged = JaggedTensor::from_lengths(TABLES.len(), &lengths, ids);
    JaggedTensor { weights: Some(weights), batch_size: samples, ..jagged }
}

fn on_two_ranks<T: Send>(run: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let run = &run;
        let ranks: Vec<_> =
            comm::world(2).into_iter().map(|comm| scope.spawn(move || run(comm))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The ids that a rank receives for its tiles, those that it looks up in the replicated table, and
/// the rows of that table that any rank looks up.
type ReceivedIds = (LocalIds, LocalIds, Vec<u64>);

/// Exchanges the ids of all steps in the same buffers.
fn received<B: Backend>(open: &(impl Fn() -> B + Sync)) -> Vec<Vec<ReceivedIds>> {
    let config = config(Optimizer::Sgd);
    let layout = Arc::new(SlotLayout::new(&config.model, &plan(&config)));
    on_two_ranks(|comm| {
        let (device, rank) = (open(), comm.rank());
        let mut comm = IdCommunicators::single(comm);
        let room = &mut CountingAllocator::new(&device);
        let mut exchange = IdExchange::new(room, Arc::clone(&layout), rank, &[]);
        let step = |step| {
            let first_sample = rank.index() * BATCH;
            let sparse = share(step, rank.index());
            exchange.run(&mut comm, &sparse, first_sample, BatchUse::Training).unwrap();
            let [tiled, own] = [&exchange.tiled, &exchange.own]
                .map(|ids| ids.read(&mut LocalIds::default()).unwrap().clone());
            (tiled, own, exchange.touched.rows.clone())
        };
        (0..STEPS).map(step).collect()
    })
}

#[test]
fn ranks_on_the_emulated_gpu_receive_the_bytes_of_the_cpu() {
    let Some(driver) = ranks::emulated() else { return };
    let on_cpu = received(&|| Cpu::new(1));
    let (tiled, own, touched) = &on_cpu[1][0];
    assert!(tiled.jagged.values.len() > 100 && own.jagged.values.len() > 20 && touched.len() > 3);
    assert!(tiled.scales.is_some() && own.scales.is_some());
    let before = driver.emulated_launches();
    assert!(received(&|| Cuda::new(driver.clone(), 1).unwrap()) == on_cpu);
    if !driver.is_emulated() {
        return;
    }
    let launches = driver.emulated_launches();
    let launched = |name| launches[name] - before.get(name).copied().unwrap_or(0);
    // Both ranks split and join the ids of every step, and select those of the replicated table.
    // The second rank has no samples in the last step.
    let (exchanges, without_samples) = (2 * STEPS, 1);
    for name in ["split_lengths", "split_ids"] {
        assert_eq!(launched(name), 2 * (exchanges - without_samples), "{name}: {launches:?}");
    }
    for name in ["join_lengths", "join_ids"] {
        assert_eq!(launched(name), exchanges, "{name}: {launches:?}");
    }
}

/// The bits of the pooled vectors of each step, and of the weights and states of the tiles after
/// the last one.
type TrainedTables = (Vec<Vec<u32>>, Vec<(Vec<u32>, Vec<u32>)>);

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Trains the tables on gradients that depend only on the sample, so that no product of matrices
/// is involved.
fn trained<B: Backend>(optimizer: Optimizer, open: &(impl Fn() -> B + Sync)) -> Vec<TrainedTables> {
    let config = config(optimizer);
    let plan = plan(&config);
    on_two_ranks(|comm| {
        let (rank, host) = (comm.rank(), Cpu::new(1));
        let context = &mut RankContext::new(open(), comm, Profiler::off()).unwrap();
        context.comm.open_lanes(Schedule::SERIAL, &plan).unwrap();
        let tile = |tile: &schema::Tile| TileState {
            weight: initial::tile_weights(&host.pool, &config.model, tile),
            state: Array::zeroed(tile.row_count() * optimizer.state_per_row(tile.dim())),
            tile: tile.clone(),
        };
        let tiles = plan.held_by(rank).map(tile).collect();
        let mut room = CountingAllocator::new(&context.device);
        let mut embedding = EmbeddingCollection::new(&mut room, &config, &plan, rank, tiles);
        room.finish().unwrap();
        let looked_up = (0..STEPS).map(|step| run_step(context, &mut embedding, &config, step));
        let looked_up = looked_up.collect();
        let mut room = TileRoom::default();
        let tiles = (0..embedding.held_tiles().len()).map(|number| {
            let rows = 0..embedding.held_tiles()[number].row_count();
            let rows = TileRows { tile: number, rows };
            let view = embedding.tile(context.device_queue(), rows, &mut room).unwrap();
            (bits(&view.weight.to_f32()), bits(view.state))
        });
        (looked_up, tiles.collect())
    })
}

/// Carries out the stages of a step that belong to the tables. Returns the pooled vectors.
fn run_step<B: Backend>(
    context: &mut RankContext<B>,
    embedding: &mut EmbeddingCollection<B>,
    config: &JobConfig,
    step: u64,
) -> Vec<u32> {
    let rank = context.comm.rank().index();
    let sparse = share(step, rank);
    let (samples, cells) = (sparse.batch_size, sparse.batch_size * WIDTH);
    let rng = CounterRng::new(13, step).child(rank as u64);
    let gradient: Vec<f32> = (0..cells as u64).map(|cell| rng.normal(cell) as f32).collect();
    let RankContext { device, queue, .. } = context;
    let mut scalars = device.scalars().unwrap();
    let [mut pooled, mut d_pooled] = [(); 2].map(|()| device.vector(cells).unwrap());
    device.write(queue, &gradient, &mut d_pooled, 0).unwrap();
    let rule = UpdateRule::new(&config.optimizer.sparse, 1.0, step);
    let rounding = initial::rounding(config.model.seed, step);
    let numbers = StepScalars { dense: rule, sparse: rule, normaliser: 1.0, rounding };
    device.begin(queue, &numbers, &mut scalars).unwrap();
    let (first_sample, part) = (rank * BATCH, ActionPart::Whole);
    embedding.distribute(context, &sparse, first_sample, BatchUse::Training).unwrap();
    embedding.copy(context.device_queue(), &sparse).unwrap();
    embedding.look_up(context, &sparse, &mut pooled, &mut scalars).unwrap();
    embedding.exchange_vectors(context, part, &mut pooled, samples).unwrap();
    embedding.exchange_gradients(context, part, &sparse, 2 * BATCH, &d_pooled, &scalars).unwrap();
    embedding.exchange_terms(context, &scalars).unwrap();
    embedding.update(context, &sparse, &d_pooled, &mut scalars).unwrap();
    let (DeviceQueue { device, queue }, mut room) = (context.device_queue(), Vec::new());
    bits(device.read(queue, &pooled, cells, &mut room).unwrap())
}

/// Lookups, exchanges and updates of rows have the CPU's bytes for the same gradients (decision
/// 0047).
#[test]
fn tables_trained_on_the_emulated_gpu_have_the_bytes_of_the_cpu() {
    let Some(driver) = ranks::emulated() else { return };
    for optimizer in Optimizer::ALL {
        let on_cpu = trained(optimizer, &|| Cpu::new(2));
        let on_device = trained(optimizer, &|| Cuda::new(driver.clone(), 1).unwrap());
        for (rank, (on_device, on_cpu)) in on_device.iter().zip(&on_cpu).enumerate() {
            assert!(on_device.0 == on_cpu.0, "vectors, {optimizer:?}, rank {rank}");
            assert!(on_device.1 == on_cpu.1, "tables, {optimizer:?}, rank {rank}");
        }
    }
}
