//! Measures the memory bandwidth of the table operations on a GPU, for `bench/gpu/run.py`. The
//! daily tests run the same code on the emulator, with tables of a few rows.
//!
//! The bytes of an operation count each distinct row, all ids and offsets, and all pooled vectors
//! or their gradients, each read or written once. The time includes all kernels of the operation,
//! also the sort.

use std::time::Instant;

use device::cuda::{DriverError, EventPurpose};
use device::ops::embedding_backward::cuda::{
    DeviceGradient, EmbeddingBackward, Workspace, WorkspaceShape,
};
use device::ops::embedding_backward::{Factors, TileOrigin};
use device::ops::embedding_forward::cuda::{
    DeviceLookup, DeviceTile, EmbeddingForward, NO_BAD_ID, slot_bytes, tile_bytes,
};
use device::ops::{Slot, SlotOutput};
use device::optimizer::{UpdateRule, device_block};
use schema::distribution::IndexDistribution;
use schema::random::CounterRng;
use schema::{DataType, Optimizer, OptimizerConfig};

use super::{Bench, benches};

/// The shape of a measurement: T tables of equal size, and a batch that looks up L ids in each of
/// them.
#[derive(Clone, Copy, Debug)]
struct Shape {
    tables: usize,
    rows: usize,
    dim: usize,
    pooling: usize,
    samples: usize,
    exponent: Option<f64>,
    data_type: DataType,
}

/// Seconds and bytes of the lookup, and of the update.
#[derive(Clone, Copy, Debug)]
struct Measured {
    forward: (f64, usize),
    backward: (f64, usize),
}

/// Returns the mean seconds of `work` over `repeats` runs, after one run that is not measured.
fn seconds(
    bench: &Bench,
    repeats: u32,
    mut work: impl FnMut() -> Result<(), DriverError>,
) -> Result<f64, DriverError> {
    work()?;
    bench.stream.synchronize()?;
    let [begin, end] =
        [bench.driver.event(EventPurpose::Timing)?, bench.driver.event(EventPurpose::Timing)?];
    let started = Instant::now();
    bench.stream.record(&begin)?;
    (0..repeats).try_for_each(|_| work())?;
    bench.stream.record(&end)?;
    end.synchronize()?;
    let by_host = started.elapsed().as_secs_f64();
    let by_device = f64::from(begin.elapsed_ms(&end)?) / 1e3;
    // The emulator reports no device time, so the host's time is used for it.
    Ok(if by_device > 0.0 { by_device } else { by_host } / f64::from(repeats))
}

/// Returns the bytes per second of a copy within the device's memory, counting reads and writes.
fn copied(bench: &Bench, bytes: usize) -> Result<f64, DriverError> {
    let [from, to] = [bench.driver.alloc(bytes)?, bench.driver.alloc(bytes)?];
    let took = seconds(bench, 10, || bench.stream.copy(&from, &to, bytes))?;
    Ok(2.0 * bytes as f64 / took)
}

fn ids(shape: &Shape) -> Vec<i64> {
    let rng = CounterRng::new(1, 2);
    let count = (shape.tables * shape.samples * shape.pooling) as u64;
    let rows = shape.rows as u64;
    let uniform = IndexDistribution::Uniform;
    let law = shape.exponent.map_or(uniform, |exponent| IndexDistribution::Zipf { exponent });
    (0..count).map(|i| law.row_at(rng.unit(i), rows) as i64).collect()
}

/// Returns the number of distinct rows if each table has `per_table` ids.
fn distinct(ids: &[i64], per_table: usize) -> usize {
    let of_table = |ids: &[i64]| {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        ids.len()
    };
    ids.chunks(per_table).map(of_table).sum()
}

fn measure(bench: &Bench, shape: &Shape, repeats: u32) -> Result<Measured, DriverError> {
    let Shape { tables, rows, dim, pooling, samples, data_type, .. } = *shape;
    let ids = ids(shape);
    let distinct = distinct(&ids, samples * pooling);
    let zeros = |bytes: usize| {
        let buffer = bench.driver.alloc(bytes)?;
        bench.stream.fill(&buffer, 0).map(|()| buffer)
    };
    let row_bytes = dim * data_type.bytes();
    let mut tiles = Vec::new();
    for _ in 0..tables {
        tiles.push([zeros(rows * row_bytes)?, zeros(rows * size_of::<f32>())?]);
    }
    let origin = TileOrigin::default();
    let mut views = Vec::new();
    for [weights, state] in &tiles {
        let state = Some(state);
        views.push(DeviceTile { weights, state, rows, dim, data_type, origin });
    }
    let on_tiles = bench.put(&tile_bytes(&views));
    let slots: Vec<Slot> = (0..tables).map(|t| Slot { tile: t, column: t * dim }).collect();
    let slots = bench.put(&slot_bytes(&slots, &vec![dim; tables], SlotOutput::Pooled, &[]));
    let offsets: Vec<u64> = (0..=tables * samples).map(|bag| (bag * pooling) as u64).collect();
    let (on_ids, on_offsets) = (bench.put(&ids), bench.put(&offsets));
    let lookup = DeviceLookup {
        tiles: &on_tiles,
        slots: &slots,
        ids: &on_ids,
        id_bytes: size_of::<i64>(),
        offsets: &on_offsets,
        weights: None,
        bag_scales: None,
        features: tables,
        batch_size: samples,
        widest: dim,
    };
    let pooled = samples * tables * dim;
    let (out, first_bad) = (zeros(pooled * size_of::<f32>())?, bench.put(&[NO_BAD_ID]));
    let forward = EmbeddingForward::load(&bench.driver)?;
    let run_forward = || forward.launch(&bench.stream, &lookup, [&out, &first_bad]);
    let forward_seconds = seconds(bench, repeats, run_forward)?;

    let rule = UpdateRule::new(&OptimizerConfig::new(Optimizer::RowwiseAdagrad, 0.01), 1.0, 0);
    let rule = bench.put(&device_block::bytes(&rule, CounterRng::new(1, 1)));
    let (stop, updated) = (bench.put(&[0u32]), bench.put(&[0u64; 3]));
    let gradient = DeviceGradient {
        gradient: &out,
        rule: &rule,
        first_bad: &first_bad,
        stop: &stop,
        updated: &updated,
    };
    let workspace_shape = WorkspaceShape {
        capacity: ids.len(),
        rows: tables * rows,
        tiles: tables,
        widest: dim,
        gradient: pooled,
        factors: Factors::Absent,
    };
    let workspace = Workspace::new(&bench.driver, workspace_shape)?;
    let backward = EmbeddingBackward::load(&bench.driver)?;
    let run_backward = || backward.launch(&bench.stream, &lookup, &gradient, &workspace);
    let backward_seconds = seconds(bench, repeats, run_backward)?;
    let rows_updated = bench.get::<u64>(&updated, 1)[0];
    assert_eq!(rows_updated, u64::from(repeats + 1) * distinct as u64, "{shape:?}");

    let moved = size_of_val(&ids[..]) + size_of_val(&offsets[..]) + pooled * size_of::<f32>();
    let states = 2 * size_of::<f32>();
    Ok(Measured {
        forward: (forward_seconds, distinct * row_bytes + moved),
        backward: (backward_seconds, distinct * (2 * row_bytes + states) + moved),
    })
}

/// Formats a result as one line of JSON.
fn line(shape: &Shape, measured: Result<Measured, DriverError>, copied: f64) -> String {
    let Shape { tables, rows, dim, pooling, samples, exponent, data_type } = *shape;
    let law = exponent.map_or("\"uniform\"".to_owned(), |exponent| format!("\"zipf {exponent}\""));
    let head = format!(
        "{{\"tables\":{tables},\"rows\":{rows},\"dim\":{dim},\"ids_per_bag\":{pooling},\
         \"batch_size\":{samples},\"law\":{law},\"bytes_per_value\":{}",
        data_type.bytes()
    );
    match measured {
        Err(error) => format!("{head},\"problem\":{:?}}}", error.to_string()),
        Ok(Measured { forward, backward }) => {
            let bandwidth = |(seconds, bytes): (f64, usize)| {
                let rate = bytes as f64 / seconds;
                format!(
                    "{{\"seconds\":{seconds:e},\"bytes\":{bytes},\"share\":{:.4}}}",
                    rate / copied
                )
            };
            format!(
                "{head},\"forward\":{},\"backward\":{}}}",
                bandwidth(forward),
                bandwidth(backward)
            )
        }
    }
}

const TINY: Shape = Shape {
    tables: 2,
    rows: 50,
    dim: 4,
    pooling: 3,
    samples: 5,
    exponent: None,
    data_type: DataType::F32,
};

#[test]
fn bytes_are_those_that_must_move() {
    for bench in benches().iter().take(1) {
        for (exponent, data_type) in [(None, DataType::F32), (Some(1.15), DataType::F16)] {
            let shape = Shape { exponent, data_type, ..TINY };
            let measured = measure(bench, &shape, 2).unwrap();
            let distinct = distinct(&ids(&shape), 15);
            let (row, moved) = (4 * data_type.bytes(), 30 * 8 + 11 * 8 + 5 * 2 * 4 * 4);
            assert_eq!(measured.forward.1, distinct * row + moved);
            assert_eq!(measured.backward.1, distinct * (2 * row + 8) + moved);
            let text = line(&shape, Ok(measured), copied(bench, 1 << 12).unwrap());
            assert!(text.contains("\"batch_size\":5,\"law\":\"") && text.ends_with("}}"), "{text}");
        }
    }
}

/// Returns the measurements that `ROWMILL_BANDWIDTH` selects: the bytes of a copy, the repeats of
/// each operation, and the shapes. `tiny` is for the emulator, `one` for a profiler that runs
/// each kernel several times, `quick` takes a few seconds, and `all` has 48 shapes.
fn plan(name: &str) -> (usize, u32, Vec<Shape>) {
    let base = Shape { tables: 26, rows: 1_000_000, dim: 128, pooling: 20, samples: 2048, ..TINY };
    let zipf = Some(1.15);
    match name {
        "tiny" => (1 << 12, 20, vec![TINY]),
        "one" => (1 << 30, 1, vec![Shape { rows: 100_000, ..base }]),
        "quick" => {
            let half = Shape { data_type: DataType::F16, ..base };
            (1 << 30, 20, vec![base, Shape { exponent: zipf, ..base }, half])
        }
        "all" => (1 << 30, 20, all(base, [None, zipf])),
        _ => panic!("ROWMILL_BANDWIDTH: expected tiny, one, quick or all, got {name:?}"),
    }
}

/// Returns a shape for every combination of rows, D, ids per bag, distribution and format.
fn all(base: Shape, laws: [Option<f64>; 2]) -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (rows, dim) in
        [1_000_000, 10_000_000].into_iter().flat_map(|e| [64, 128, 256].map(|d| (e, d)))
    {
        for (pooling, exponent) in [20, 100].into_iter().flat_map(|l| laws.map(|law| (l, law))) {
            for data_type in [DataType::F32, DataType::F16] {
                shapes.push(Shape { rows, dim, pooling, exponent, data_type, ..base });
            }
        }
    }
    shapes
}

/// Prints one line of JSON for a copy, and one line for each shape.
#[test]
fn bandwidths() {
    let Ok(name) = std::env::var("ROWMILL_BANDWIDTH") else {
        testkit::skip("bandwidth of GPU kernels", super::GPU_NEED);
        return;
    };
    let (copied_bytes, repeats, shapes) = plan(&name);
    let bench = &benches()[0];
    let copied = copied(bench, copied_bytes).unwrap();
    println!("{{\"device\":{:?},\"copied_bytes_per_second\":{copied:e}}}", bench.driver.name());
    for shape in shapes {
        println!("{}", line(&shape, measure(bench, &shape, repeats), copied));
    }
}
