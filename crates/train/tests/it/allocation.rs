//! Counts the allocations of a training step after warm-up, on the threads of the ranks.

use device::backend::StepScalars;
use device::buffer::Counting;
use device::ops::embedding_backward::{self, RowArguments, RowSums, TileOrigin};
use device::ops::{Slot, SlotOutput, embedding_forward};
use device::optimizer::UpdateRule;
use device::{Backend, Cpu, buffer::Array};
use schema::random::CounterRng;
use schema::stage::ActionPart;
use schema::{
    JaggedTensor, ModelConfig, Optimizer, OptimizerConfig, Rank, RowScope, Schedule, ShardingPlan,
    TableConfig,
};
use train::RankContext;
use train::embedding::EmbeddingCollection;
use train::embedding::input_dist::BatchUse;
use train::memory::CountingAllocator;
use train::parameter::TileState;
use train::profile::Profiler;

use crate::rank_steps::partly_by_host;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SAMPLES: usize = 40;
/// Buffers of messages move between ranks, and grow until all that move are large enough.
const WARM_UP: u64 = 40;
const STEPS: u64 = 8;

fn model() -> ModelConfig {
    let mut model = crate::run::config().model;
    // A batch with enough ids for a sort of several chunks would only make the test slower.
    model.tables.iter_mut().for_each(|table| table.rows *= 20);
    model
}

fn tiles(model: &ModelConfig, plan: &ShardingPlan, rank: Rank, kind: Optimizer) -> Vec<TileState> {
    let cpu = Cpu::new(1);
    let state_of = |tile: &schema::Tile| TileState {
        weight: train::initial::tile_weights(&cpu.pool, model, tile),
        state: Array::zeroed(tile.row_count() * kind.state_per_row(tile.dim())),
        tile: tile.clone(),
    };
    plan.held_by(rank).map(state_of).collect()
}

/// Creates bags of up to four ids.
fn bags(model: &ModelConfig, rank: Rank) -> JaggedTensor {
    let (features, rng) = (model.features(), CounterRng::new(5, u64::from(rank.0)));
    let mut sparse = JaggedTensor::empty(features.len(), SAMPLES);
    (sparse.offsets, sparse.values) = (vec![0], Vec::new());
    for (number, feature) in features.iter().enumerate() {
        for sample in 0..SAMPLES {
            let bag = rng.child((number * SAMPLES + sample) as u64);
            let ids =
                (0..bag.below(0, 5)).map(|i| bag.below(1 + i, model.tables[feature.table].rows));
            sparse.values.extend(ids.map(|id| id as i64));
            sparse.offsets.push(sparse.values.len());
        }
    }
    sparse
}

/// The operations of an update.
#[derive(Clone, Copy, PartialEq)]
enum UpdateForm {
    Fused,
    /// Sums by row, and the update of rows.
    Halves,
    /// Also the terms of rows.
    Terms,
}

/// Counts the allocations of the forward and backward kernels alone, for these slots and tiles.
fn kernel_allocations(
    states: &mut [TileState],
    slots: &[Slot],
    rule: UpdateRule,
    form: UpdateForm,
) -> u64 {
    let cpu = Cpu::new(1);
    let jagged = JaggedTensor::empty(slots.len(), SAMPLES);
    let width: usize = slots.iter().map(|slot| states[slot.tile].tile.dim()).sum();
    let mut out = vec![0.0; SAMPLES * width];
    let mut scratch = embedding_backward::Scratch::default();
    let (mut sums, mut terms) = (RowSums::default(), Vec::new());
    let mut counted = 0;
    for _ in 0..3 {
        let tiles: Vec<_> = states
            .iter()
            .map(|state| embedding_forward::TileView {
                weights: state.weight.view(),
                rows: state.tile.row_count(),
                dim: state.tile.dim(),
                name: "t",
            })
            .collect();
        let before = Counting::allocations();
        let (output, out_of) = (SlotOutput::Pooled, &mut out[..]);
        let arguments = embedding_forward::ForwardArguments {
            tiles: &tiles,
            slots,
            jagged: &jagged,
            bag_scales: None,
            output,
            out: out_of,
        };
        embedding_forward::run(&cpu, arguments).unwrap();
        counted = Counting::allocations() - before;
        let mut tiles: Vec<_> = states
            .iter_mut()
            .map(|state| {
                let (rows, dim) = (state.tile.row_count(), state.tile.dim());
                let TileState { weight, state, .. } = state;
                let origin = TileOrigin { table: 0, row: 0, column: 0 };
                let weights = weight.view_mut();
                embedding_backward::TileMut { weights, state, rows, dim, name: "t", origin }
            })
            .collect();
        let before = Counting::allocations();
        let arguments = embedding_backward::BackwardArguments {
            tiles: &mut tiles,
            slots,
            jagged: &jagged,
            bag_scales: None,
            output,
            gradient: &out,
            rule,
            rounding: CounterRng::new(1, 1),
        };
        let rounding = arguments.rounding;
        if form == UpdateForm::Fused {
            embedding_backward::run(&cpu, arguments, &mut scratch).unwrap();
        } else {
            embedding_backward::sum_rows(&cpu, arguments, &mut scratch, &mut sums).unwrap();
            if form == UpdateForm::Terms {
                let rows = RowArguments { tiles: &mut tiles, sums: &sums, rule, rounding };
                embedding_backward::row_terms(&cpu, rows, &mut scratch, &mut terms).unwrap();
            }
            let rows = RowArguments { tiles: &mut tiles, sums: &sums, rule, rounding };
            embedding_backward::apply_rows(&cpu, rows, &mut scratch, None).unwrap();
        }
        counted += Counting::allocations() - before;
    }
    counted
}

/// Returns the slots of a rank in the order in which the collection unrolls them.
fn slots(model: &ModelConfig, states: &[TileState]) -> Vec<Slot> {
    let (mut slots, mut column) = (Vec::new(), 0);
    for feature in model.features() {
        for (tile, state) in states.iter().enumerate() {
            if state.tile.table.index() == feature.table {
                slots.push(Slot { tile, column });
                column += state.tile.dim();
            }
        }
    }
    slots
}

/// Returns the allocations of a warmed-up step of one rank, and the allocations of its kernels.
fn rank(plan: &ShardingPlan, comm: comm::Communicator) -> (u64, u64) {
    let (model, kind) = (model(), Optimizer::RowwiseAdagrad);
    let place = comm.rank();
    let rule = UpdateRule::new(&OptimizerConfig::new(kind, 0.1), 1.0, 1);
    let mut states = tiles(&model, plan, place, kind);
    let of_rank = slots(&model, &states);
    let config = crate::ranks::job(model.clone(), (kind, kind), 0.1, SAMPLES);
    let form = if RowScope::exchanges_terms(&config.optimizer, plan) {
        UpdateForm::Terms
    } else if comm.world_size() > 1 && !plan.replicas().is_empty() {
        UpdateForm::Halves
    } else {
        UpdateForm::Fused
    };
    let kernels = kernel_allocations(&mut states, &of_rank, rule, form);
    let mut context = RankContext::new(Cpu::new(1), comm, Profiler::off()).unwrap();
    context.comm.open_lanes(Schedule::SERIAL, plan).unwrap();
    let cpu = Cpu::new(1);
    let mut embedding =
        EmbeddingCollection::new(&mut CountingAllocator::new(&cpu), &config, plan, place, states);
    let mut scalars = cpu.scalars().unwrap();
    let sparse = bags(&model, place);
    let mut pooled = Array::zeroed(SAMPLES * model.pooled_width());
    let first_sample = place.index() * SAMPLES;
    let mut before = 0;
    for step in 0..WARM_UP + STEPS {
        // Buffers grow during the first steps, so only later steps are counted.
        if step == WARM_UP {
            before = Counting::allocations();
        }
        let (part, out) = (ActionPart::Whole, &mut pooled);
        let training = BatchUse::Training;
        embedding.distribute(&mut context, &sparse, first_sample, training).unwrap();
        embedding.copy(context.device_queue(), &sparse).unwrap();
        embedding.look_up(&mut context, &sparse, out, &mut scalars).unwrap();
        embedding.exchange_vectors(&mut context, part, out, SAMPLES).unwrap();
        let rounding = train::initial::rounding(model.seed, step);
        let numbers = StepScalars { dense: rule, sparse: rule, normaliser: 1.0, rounding };
        cpu.begin(&(), &numbers, &mut scalars).unwrap();
        embedding
            .exchange_gradients(&mut context, part, &sparse, sparse.batch_size, &pooled, &scalars)
            .unwrap();
        embedding.exchange_terms(&mut context, &scalars).unwrap();
        embedding.update(&mut context, &sparse, &pooled, &mut scalars).unwrap();
    }
    (Counting::allocations() - before, STEPS * kernels)
}

#[test]
fn issue_28_a_steady_embedding_step_allocates_only_in_its_kernels() {
    type Make = fn(&[TableConfig], u32) -> ShardingPlan;
    let makes: [(&str, Make); 6] = [
        ("table", ShardingPlan::table_wise),
        ("row", ShardingPlan::row_wise),
        ("column", ShardingPlan::column_wise),
        ("mixed", ShardingPlan::mixed),
        ("replicated", ShardingPlan::replicate),
        ("partly by host", partly_by_host),
    ];
    for ranks in [1, 2, 4] {
        for (name, make) in makes {
            if (ranks == 4) != (name == "partly by host") {
                continue;
            }
            let plan = &make(&model().tables, ranks);
            let counted: Vec<(u64, u64)> = std::thread::scope(|scope| {
                let ends = comm::world(ranks).into_iter();
                let run: Vec<_> = ends.map(|end| scope.spawn(|| rank(plan, end))).collect();
                run.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            for (all, kernels) in counted {
                // A rank that gets ahead of the others needs one more buffer for a message, once.
                let once = kernels..kernels + u64::from(ranks);
                assert!(once.contains(&all), "{ranks} ranks, {name}: {all} instead of {kernels}");
            }
        }
    }
}

/// Number of values that each rank sends.
const VALUES: usize = 5000;

fn every_verb(end: &mut comm::Communicator, buffers: &mut Buffers) {
    let Buffers { parts, gathered, sums, values } = buffers;
    for part in parts.iter_mut() {
        part.resize(VALUES, 1.0);
    }
    end.all_to_all(parts).unwrap();
    end.all_gather_into(values, gathered).unwrap();
    end.all_reduce(values).unwrap();
    end.broadcast(Rank(0), values).unwrap();
    end.barrier().unwrap();
    sums.reset(end, VALUES);
    sums.write(0, values);
    let started = end.start_sum(std::mem::take(sums)).unwrap();
    *sums = started.wait(end).unwrap();
    sums.read(0, values);
    sums.clear(end);
    for part in parts.iter_mut() {
        part.fill(1.0);
    }
    let sum = end.reduce_scatter(parts).unwrap();
    end.keep(sum);
    for part in parts.iter_mut() {
        *part = end.buffer(VALUES);
    }
}

#[derive(Default)]
struct Buffers {
    parts: Vec<Vec<f32>>,
    gathered: Vec<Vec<f32>>,
    sums: comm::VectorParts<f32>,
    values: Vec<f32>,
}

#[test]
fn issue_28_steady_collectives_allocate_nothing() {
    for ranks in [1, 2, 3] {
        let counted: Vec<u64> = std::thread::scope(|scope| {
            let run = |mut end: comm::Communicator| {
                scope.spawn(move || {
                    let mut buffers = Buffers { values: vec![1.0; VALUES], ..Buffers::default() };
                    buffers.parts.resize_with(end.world_size(), Vec::new);
                    (0..40).for_each(|_| every_verb(&mut end, &mut buffers));
                    let before = Counting::allocations();
                    (0..10).for_each(|_| every_verb(&mut end, &mut buffers));
                    Counting::allocations() - before
                })
            };
            let started: Vec<_> = comm::world(ranks).into_iter().map(run).collect();
            started.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(counted, vec![0; ranks as usize]);
    }
}
