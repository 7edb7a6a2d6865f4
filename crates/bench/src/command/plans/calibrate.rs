//! Measures what a rank's work costs on this machine while a second rank works beside it.

use std::hint::black_box;
use std::sync::{Barrier, Mutex};
use std::time::Instant;

use comm::{Communicator, DelayedLink, VectorParts};
use device::backend::DistributedIds;
use device::ops::jagged::{IdLayout, IdMessages, IdSlot};
use device::{Backend, Cpu};
use kernel_model::cpu::EqualTables;
use kernel_model::host_costs::{
    AMOUNTS, DISTRIBUTED, DistributedIds as Distributed, HostAmounts, HostCosts,
};
use kernel_model::rank_load::{TileTerms, host_amounts};
use schema::topology::Link;
use schema::{DataType, IndexDistribution, JaggedTensor, Op, Optimizer};

use crate::command::ranks::communicators;
use bench::batches::{self, Made};
use bench::sample::median;
use bench::steps::{BenchSteps, WARM_UP};
use bench::tables::BenchTables;
use setup::config;
use setup::error::{Error, RunError};

/// Tables, rows, columns, ids per bag and samples of the measured lookups.
const CASES: [[usize; 5]; 18] = [
    [26, 200_000, 8, 1, 2048],
    [26, 50_000, 16, 1, 2048],
    [30, 20_000, 4, 1, 2048],
    [16, 100_000, 8, 3, 2048],
    [1, 2_000, 16, 1, 1024],
    [1, 500_000, 64, 1, 1024],
    [26, 1_000, 16, 1, 1024],
    [26, 1_000, 8, 1, 2048],
    [40, 50_000, 16, 4, 1024],
    [20, 100, 16, 2, 2048],
    [8, 200_000, 64, 4, 1024],
    [4, 200_000, 32, 12, 1024],
    [2, 400_000, 64, 40, 1024],
    [1, 400_000, 64, 20, 512],
    [4, 20_000, 32, 10, 1024],
    [4, 10_000, 64, 30, 512],
    [2, 300_000, 16, 8, 2048],
    [3, 300_000, 32, 30, 1024],
];
/// Tiles of each rank, ids per bag and samples of a rank of the measured distributions of ids.
const DISTRIBUTIONS: [[usize; 3]; 5] =
    [[26, 1, 1024], [16, 1, 512], [4, 10, 512], [2, 30, 1024], [12, 3, 1024]];
/// Bytes of the measured messages.
const MESSAGES: [usize; 4] = [1 << 10, 1 << 15, 1 << 19, 1 << 22];
/// Measurements of each kind, of which the median counts.
const REPEATS: usize = 15;
/// Number of rows, and of values in each, of the sum over ranks whose time is measured.
const SUMMED_ROWS: usize = 40_000;
const SUMMED_DIM: usize = 16;
/// Samples of the steps whose dense layers are measured.
const SAMPLES: usize = 512;
/// Rows of half of a table whose ids are distributed.
const ROWS: u64 = 50_000;
/// Cache of a core, if the system does not name it.
const CACHE_BYTES: f64 = 1e6;

/// Measures the costs of two ranks of one thread each, with messages over `link`.
pub fn host_costs(link: Option<DelayedLink>) -> Result<HostCosts, Error> {
    let cache_bytes = cache_bytes();
    let [lookup, update] = row_costs(cache_bytes)?;
    let distribution = distribution_costs()?;
    let [flop_ns, byte_ns] = dense_costs()?;
    let [copy_ns] = on_two_threads(|_, both| Ok(time_copies(cache_bytes, both)))?;
    let row_ns = row_ns(&communicators(1, None), copy_ns);
    let link = measured_link(link)?;
    // Both ranks have one thread, and this machine is taken to have no core to spare.
    let lane_share = 1.0;
    Ok(HostCosts {
        flop_ns,
        byte_ns,
        copy_ns,
        row_ns,
        cache_bytes,
        lookup,
        update,
        distribution,
        lane_share,
        link,
    })
}

/// Runs `measure` on two threads at once, and returns the mean of their results.
fn on_two_threads<const N: usize>(
    measure: impl Fn(usize, &Barrier) -> Result<[f64; N], Error> + Sync,
) -> Result<[f64; N], Error> {
    let both = Barrier::new(2);
    let results = std::thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| {
            let (measure, both) = (&measure, &both);
            scope.spawn(move || measure(rank, both))
        });
        ranks.map(|rank| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let [first, second] = results;
    let (first, second) = (first?, second?);
    Ok(std::array::from_fn(|at| (first[at] + second[at]) / 2.0))
}

fn row_costs(cache_bytes: f64) -> Result<[HostAmounts; 2], Error> {
    let mut measured: [Vec<(HostAmounts, f64)>; 2] = Default::default();
    for case in CASES {
        let [count, rows, dim, pooling, batch_size] = case;
        let shape = EqualTables {
            count,
            rows: rows as u64,
            dim,
            pooling,
            batch_size,
            data_type: DataType::F32,
            optimizer: Optimizer::Sgd,
            ids: IndexDistribution::Uniform,
        };
        let times = on_two_threads(|_, both| time_tables(&shape, cache_bytes, both))?;
        let terms = |tile| TileTerms::new(tile, Optimizer::Sgd, None);
        let terms: Vec<TileTerms> = shape.tiles().iter().map(terms).collect();
        let amounts = host_amounts(terms.iter(), cache_bytes);
        for (at, pass) in measured.iter_mut().enumerate() {
            pass.push((amounts[at], times[at]));
        }
    }
    let [lookup, update] = measured.map(|pass| HostCosts::fit(AMOUNTS, &pass).map_err(kernels));
    Ok([lookup?, update?])
}

fn kernels(source: kernel_model::Error) -> Error {
    RunError::Measurement { said: source.to_string() }.into()
}

/// Returns the nanoseconds per row of writing gradients into a vector of a sum over ranks, without
/// those of the copied bytes.
fn row_ns(comms: &[Communicator], copy_ns: f64) -> f64 {
    let Some(comm) = comms.first() else { return 0.0 };
    let (row, mut vector) = ([1f32; SUMMED_DIM], VectorParts::<f32>::default());
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        vector.reset(comm, SUMMED_ROWS * SUMMED_DIM);
        let began = Instant::now();
        (0..SUMMED_ROWS).for_each(|at| vector.write(at * SUMMED_DIM, black_box(&row)));
        times.push(1e9 * began.elapsed().as_secs_f64() / SUMMED_ROWS as f64);
    }
    (median(times) - 2.0 * copy_ns * size_of_val(&row) as f64).max(0.0)
}

/// Returns the nanoseconds of lookups and of row updates. In a step, dense layers run between both
/// and take the rows out of the cache.
fn time_tables(shape: &EqualTables, cache_bytes: f64, both: &Barrier) -> Result<[f64; 2], Error> {
    let cpu = Cpu::open(1).map_err(train::Error::from)?;
    let mut tables = BenchTables::new(&cpu, shape);
    let made = Made {
        rows: vec![shape.rows; shape.count],
        lengths: vec![shape.pooling; shape.count],
        dense_features: 0,
        batch_size: shape.batch_size,
        distributions: vec![shape.ids; shape.count],
    };
    let jagged: Vec<JaggedTensor> =
        (0..REPEATS as u64 + 1).map(|number| batches::make_one(&made, number).sparse).collect();
    let mut times: [Vec<f64>; 2] = Default::default();
    let mut dense = vec![0u64; 2 * cache_bytes as usize / size_of::<u64>()];
    let mut run_dense = || black_box(&mut dense).iter_mut().for_each(|value| *value += 1);
    both.wait();
    for batch in &jagged {
        run_dense();
        let began = Instant::now();
        black_box(tables.forward(&cpu, batch)?);
        times[0].push(1e9 * began.elapsed().as_secs_f64());
        run_dense();
        let began = Instant::now();
        black_box(tables.backward(&cpu, batch)?);
        times[1].push(1e9 * began.elapsed().as_secs_f64());
    }
    both.wait();
    // The first call touches new memory.
    Ok(times.map(|times| median(times[1..].to_vec())))
}

/// Ids that two ranks distribute to tiles with whole tables, or with half of the rows of each.
#[derive(Clone, Copy, Debug)]
struct DistributionCase {
    /// Tiles of each rank.
    tiles: usize,
    /// Parts into which the rows of a table are divided: 1 or 2.
    parts: usize,
    pooling: usize,
    /// Samples of each rank.
    samples: usize,
}

impl DistributionCase {
    fn tables(self) -> usize {
        2 * self.tiles / self.parts
    }

    fn slot(self, rank: usize, tile: usize) -> IdSlot {
        let first = if self.parts == 1 { 0 } else { rank as u64 * ROWS };
        let rows = 2 * ROWS / self.parts as u64;
        IdSlot {
            feature: if self.parts == 1 { rank * self.tiles + tile } else { tile },
            position: None,
            rows: first as i64..(first + rows) as i64,
            all_rows: self.parts == 1,
            mean: false,
        }
    }

    /// Returns the ids of both ranks' samples for the tiles of one of them.
    fn distributed(self) -> Distributed {
        let bags = (2 * self.tiles * self.samples) as f64;
        let ids = bags * self.pooling as f64;
        match self.parts {
            1 => Distributed { bags, ids, tested_ids: 0.0 },
            parts => Distributed { bags, ids: ids / parts as f64, tested_ids: ids },
        }
    }
}

/// Measures how long a rank splits its ids by the tiles of both ranks, and joins those for its own.
fn distribution_costs() -> Result<[f64; DISTRIBUTED.len()], Error> {
    let mut measured = Vec::new();
    for [tiles, pooling, samples] in DISTRIBUTIONS {
        for parts in [1, 2] {
            let case = DistributionCase { tiles, parts, pooling, samples };
            let [ns] = on_two_threads(|_, both| time_ids(case, both))?;
            measured.push((case.distributed().amounts(), ns));
        }
    }
    HostCosts::fit(DISTRIBUTED, &measured).map_err(kernels)
}

/// Returns the nanoseconds in which a rank splits and joins ids.
fn time_ids(case: DistributionCase, both: &Barrier) -> Result<[f64; 1], Error> {
    let tables = case.tables();
    let made = Made {
        rows: vec![2 * ROWS; tables],
        lengths: vec![case.pooling; tables],
        dense_features: 0,
        batch_size: case.samples,
        distributions: vec![IndexDistribution::Uniform; tables],
    };
    let slots = |rank: usize| (0..case.tiles).map(|tile| case.slot(rank, tile)).collect();
    let cpu = Cpu::open(1).map_err(train::Error::from)?;
    let layout = IdLayout { slots: vec![slots(0), slots(1)], own: 0, has_scales: false };
    let mut ids = cpu.ids(layout).map_err(train::Error::from)?;
    let mut messages = IdMessages::default();
    let mut times = Vec::new();
    both.wait();
    for number in 0..REPEATS as u64 + 1 {
        let sparse = batches::make_one(&made, number).sparse;
        let began = Instant::now();
        ids.split(&sparse, &mut messages).map_err(train::Error::from)?;
        let split = began.elapsed();
        // The other rank sends as much as this one sends itself.
        messages.lengths[1] = messages.lengths[0].clone();
        messages.values[1] = messages.values[0].clone();
        let began = Instant::now();
        ids.join(&mut messages).map_err(train::Error::from)?;
        times.push(1e9 * (split + began.elapsed()).as_secs_f64());
    }
    both.wait();
    Ok([median(times[1..].to_vec())])
}

/// Returns the nanoseconds per byte read or written of copies between buffers that no cache holds.
fn time_copies(cache_bytes: f64, both: &Barrier) -> [f64; 1] {
    let from = vec![1u64; cache_bytes as usize / size_of::<u64>()];
    let mut to = vec![0u64; from.len()];
    let mut others = from.clone();
    let mut times = Vec::new();
    both.wait();
    for _ in 0..REPEATS {
        black_box(&mut others).iter_mut().for_each(|value| *value += 1);
        let began = Instant::now();
        black_box(&mut to).copy_from_slice(black_box(&from));
        let bytes = 2 * size_of_val(&from[..]);
        times.push(1e9 * began.elapsed().as_secs_f64() / bytes as f64);
    }
    both.wait();
    [median(times)]
}

/// Returns the nanoseconds per FLOP of products and per byte of other dense operations.
fn dense_costs() -> Result<[f64; 2], Error> {
    let set = [("model.rows_cap", "10000"), ("training.batch_size", &SAMPLES.to_string())]
        .map(|(key, value)| (key.to_owned(), value.to_owned()));
    let job = config::job("dlrm-criteo-kaggle", &set)?;
    on_two_threads(|_, both| {
        let cpu = Cpu::open(1).map_err(train::Error::from)?;
        let mut steps = BenchSteps::new(&job.config, 1, WARM_UP + REPEATS, cpu)?;
        steps.train(WARM_UP)?;
        both.wait();
        let mut costs: [Vec<f64>; 2] = Default::default();
        for _ in 0..REPEATS {
            let step = steps.record_step()?.value;
            let (mut ns, mut amounts) = ([0.0; 2], [0.0; 2]);
            for span in &step.spans {
                let at = match span.op {
                    Op::Gemm { .. } | Op::Interaction { .. } => 0,
                    Op::EmbeddingForward { .. } | Op::EmbeddingBackward { .. } => continue,
                    _ => 1,
                };
                let work = span.op.work();
                ns[at] += (span.end.0 as f64) - (span.start.0 as f64);
                amounts[at] += if at == 0 { work.flops } else { work.bytes } as f64;
            }
            for (at, costs) in costs.iter_mut().enumerate() {
                costs.push(ns[at] / amounts[at].max(1.0));
            }
        }
        both.wait();
        Ok(costs.map(median))
    })
}

/// Measures exchanges between two ranks over a link, as [`communicators`] describes it.
fn measured_link(link: Option<DelayedLink>) -> Result<Link, Error> {
    let ends: Vec<_> =
        communicators(2, link).into_iter().map(|end| Mutex::new(Some(end))).collect();
    let times = on_two_threads(|rank, _| {
        let end = ends[rank].lock().ok().and_then(|mut end| end.take());
        let Some(mut comm) = end else { return Ok([f64::NAN; MESSAGES.len()]) };
        let mut times = [0.0; MESSAGES.len()];
        for (bytes, time) in MESSAGES.into_iter().zip(&mut times) {
            let mut all = Vec::new();
            for _ in 0..=REPEATS {
                let mut parts = vec![vec![0f32; bytes / 4]; 2];
                let began = Instant::now();
                comm.all_to_all(&mut parts).map_err(train::Error::from)?;
                all.push(1e9 * began.elapsed().as_secs_f64());
            }
            *time = median(all);
        }
        Ok(times)
    })?;
    let points: Vec<(f64, f64)> =
        MESSAGES.into_iter().zip(times).map(|(bytes, ns)| (bytes as f64, ns)).collect();
    Link::new(&points, "measured between the ranks")
        .map_err(|source| RunError::Measurement { said: source.to_string() }.into())
}

/// Returns the bytes of the private cache of a core.
fn cache_bytes() -> f64 {
    let path = "/sys/devices/system/cpu/cpu0/cache/index2/size";
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let kibibytes = text.trim().strip_suffix('K').and_then(|digits| digits.parse::<f64>().ok());
    kibibytes.map_or(CACHE_BYTES, |kibibytes| 1024.0 * kibibytes)
}
