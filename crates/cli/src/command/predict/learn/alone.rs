//! Measures lookups and row updates without a model around them, as `rowmill-bench embedding` does.
//! Every round builds the tables anew, fills the caches with other batches first, and uses
//! different ids in each batch.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use device::Cpu;
use device::limits::RowSet;
use kernel_model::cpu::{EqualTables, TablesRound};

use ::bench::batches::{self, Made};
use ::bench::sample::{BenchSample, Conditions, Judge, Sampling, Watch, median};
use ::bench::tables::BenchTables;
use setup::error::Error;

/// The conditions under which steps and calls are accepted, which are the same as in
/// `rowmill-bench`.
pub const SAMPLING: Sampling =
    Sampling { repeats: 1, clock_share_min: 0.9, clock_ghz_min: None, foreign_cpu_max: 0.1 };

/// Bytes that the warm-up batches move together, so that they replace the content of the caches.
const WARM_BYTES: f64 = 64e6;
/// Largest number of warm-up batches before the counted ones.
const WARM_UP_MOST: usize = 12;
/// Estimated rate in GB/s at which the bytes of a batch are read and written.
const GB_PER_S: f64 = 4.0;
/// Nanoseconds that all counted calls should take together.
const MEASURED_NS: f64 = 40e6;
/// Smallest and largest number of counted batches.
const BATCHES: [usize; 2] = [4, 9];
/// Largest number of attempts at a round. A round is repeated if most of its calls were disturbed.
const TRIES: usize = 2;

/// The CPU that is measured, with the conditions of all measurements made on it.
pub struct MeasuredCpu {
    pub cpu: Cpu,
    /// Table rows on which the read bandwidth is measured.
    pub rows: RowSet,
    pub threads: usize,
    /// Conditions of all measurements. The clock frequency of each is compared with the highest
    /// one.
    pub conditions: Vec<Conditions>,
}

impl MeasuredCpu {
    /// Measures the bandwidth at which all threads read memory, in GB/s.
    pub fn stream(&self) -> f64 {
        self.rows.stream_gb_per_s(&self.cpu)
    }
}

/// Number of warm-up batches, and number of batches that are counted.
struct Calls {
    warm_up: usize,
    counted: usize,
}

impl Calls {
    fn for_tables(tables: &EqualTables) -> Self {
        let ids = (tables.count * tables.batch_size * tables.pooling) as f64;
        let bytes = ids * (tables.dim * tables.data_type.bytes() + size_of::<u64>()) as f64;
        let counted = (MEASURED_NS / (4.0 * bytes / GB_PER_S)) as usize;
        Self {
            warm_up: ((WARM_BYTES / bytes).ceil() as usize).min(WARM_UP_MOST),
            counted: counted.clamp(BATCHES[0], BATCHES[1]),
        }
    }
}

/// Measures lookups in `tables` and the updates of their rows. Returns `None` if Ctrl-C ends it
/// before any call was counted.
pub fn measure_round(
    bench: &mut MeasuredCpu,
    tables: &EqualTables,
    stop: &AtomicBool,
) -> Result<Option<TablesRound>, Error> {
    let calls = Calls::for_tables(tables);
    let made = Made {
        rows: vec![tables.rows; tables.count],
        lengths: vec![tables.pooling; tables.count],
        dense_features: 0,
        batch_size: tables.batch_size,
        distributions: vec![tables.ids; tables.count],
    };
    let batches = batches::make_some(&bench.cpu.pool, &made, calls.warm_up + calls.counted);
    let mut built = BenchTables::new(&bench.cpu, tables);
    let mut taken = Vec::new();
    let mut rates = vec![bench.stream()];
    let mut attempt = 0;
    let judge = loop {
        attempt += 1;
        let MeasuredCpu { cpu, conditions, .. } = bench;
        for (number, batch) in batches.iter().enumerate() {
            let forward = timed(cpu, |cpu| built.forward(cpu, &batch.sparse).map(|_| ()))?;
            let backward = timed(cpu, |cpu| built.backward(cpu, &batch.sparse).map(|_| ()))?;
            if number >= calls.warm_up {
                conditions.extend([forward.conditions, backward.conditions]);
                taken.push([forward, backward]);
            }
            if stop.load(Ordering::SeqCst) {
                break;
            }
        }
        rates.push(bench.stream());
        let judge = Judge::new(&SAMPLING, bench.conditions.iter());
        let is_good = |pass: usize| {
            let good = taken.iter().filter(|pair| judge.accepts(&pair[pass].conditions)).count();
            2 * good >= calls.counted
        };
        if (is_good(0) && is_good(1)) || attempt == TRIES || stop.load(Ordering::SeqCst) {
            break judge;
        }
    };
    if taken.is_empty() {
        return Ok(None);
    }
    let usual = |pass: usize| {
        let of_pass: Vec<BenchSample<f64>> = taken.iter().map(|pair| pair[pass]).collect();
        let kept = judge.kept(&of_pass);
        let ns: Vec<f64> = kept.values().copied().collect();
        let count = if kept.is_trusted { ns.len() as u32 } else { 0 };
        // If most calls were disturbed, the shortest call is the best estimate of an undisturbed
        // one.
        let least = ns.iter().copied().fold(f64::INFINITY, f64::min);
        (if kept.is_trusted { median(ns) } else { least }.max(1.0), count)
    };
    let (forward, backward) = (usual(0), usual(1));
    Ok(Some(TablesRound {
        calls: [forward.1.min(backward.1), taken.len() as u32],
        stream_gb_per_s: rates.into_iter().fold(0.0, f64::max),
        forward_ns: forward.0,
        backward_ns: backward.0,
    }))
}

/// Times a call. The threads are woken before it, because they are awake during a training step,
/// and waking them takes as long as a short lookup.
fn timed(
    cpu: &Cpu,
    call: impl FnOnce(&Cpu) -> Result<(), Error>,
) -> Result<BenchSample<f64>, Error> {
    let watch = Watch::start(&cpu.pool);
    cpu.pool.run(cpu.pool.threads(), |_| ());
    let begun = Instant::now();
    call(cpu)?;
    let ns = begun.elapsed().as_nanos() as f64;
    Ok(watch.sample(&cpu.pool, |_| ns))
}
