//! The command `rowmill data cache`, which simulates caches of table rows on the batches of
//! training.

use std::io::Write;

use data::{Dataset, Loader, LoaderOptions, Position, Shuffle};
use device::Pool;
use device::cache::{CurvePoint, MissCurve, WAYS};
use schema::{Batch, JobConfig, Share};
use serde::Serialize;
use train::run::{feature_plan, total_steps};

use super::cache_drawing::{self, DrawnCurve, DrawnPoint};
use crate::args::SimulateCache;
use setup::error::Error;
use setup::progress::{Meter, ProgressUnit};
use setup::{Session, config, output, render, rows};

/// Least number of rows of a cache, which is two sets.
const ROWS_MIN: usize = 2 * WAYS;

/// The result of `rowmill data cache`, in the form in which it is printed.
#[derive(Serialize)]
struct CacheCurves {
    policy: schema::CachePolicy,
    batch_size: usize,
    /// Number of batches whose misses are counted.
    batches: u64,
    /// Number of batches before them, which filled the caches.
    batches_before: u64,
    /// Sizes of the caches, as shares of the rows of a table.
    shares: Vec<f64>,
    tables: Vec<TableCurve>,
    /// Misses of all listed tables together, by share. Is `None` where a cache was too small for a
    /// batch, or none was simulated.
    miss_ratio_of_all: Vec<Option<f64>>,
    /// Tables that are too small for any of the sizes.
    small_tables: Vec<String>,
}

/// The misses of one table.
#[derive(Serialize)]
struct TableCurve {
    table: String,
    rows: u64,
    /// Mean number of ids and of distinct rows of a batch.
    ids_per_batch: f64,
    rows_per_batch: f64,
    points: Vec<SizePoint>,
}

/// The misses of a cache of one size.
#[derive(Serialize)]
struct SizePoint {
    share: f64,
    cache_rows: usize,
    /// Bytes of the cached weights, without optimizer state.
    cache_bytes: u64,
    /// Share of a batch's distinct rows that were not in the cache. Is `None` if the rows of a
    /// batch do not fit into the cache.
    miss_ratio: Option<f64>,
    missed: Option<u64>,
    evicted: Option<u64>,
    conflicts: Option<u64>,
}

/// The caches of one table, while batches are replayed.
struct SimulatedTable {
    /// Index of the table in the model.
    table: usize,
    /// The features that look up rows of the table.
    features: Vec<usize>,
    shares: Vec<f64>,
    curve: MissCurve,
    ids: Vec<i64>,
    id_count: u64,
}

/// Runs `rowmill data cache` and prints its result.
pub fn run(request: &SimulateCache, session: &Session) -> Result<(), Error> {
    let mut job = config::job(&request.config, &config::overrides(None, &request.set))?.config;
    let dataset = Dataset::open(&request.folder)?;
    if job.model.has_auto_tables() {
        rows::size_tables(session, &mut job, &dataset)?;
    }
    let mut shares: Vec<f64> = request.sizes.iter().map(|share| share.0).collect();
    shares.sort_by(f64::total_cmp);
    shares.dedup();
    let curves = simulate(&job, &dataset, &shares, request.policy.into(), session)?;
    if let Some(path) = &request.svg {
        let text = cache_drawing::draw(&drawn(&curves.tables));
        output::put(path, |file| {
            file.write_all(text.as_bytes()).map_err(Error::io(path, "write"))
        })?;
        session.console.say(format_args!("picture: {}", path.display()));
    }
    session.console.report(&curves, table)
}

/// Returns the points of all tables at which batches fit into the cache.
fn drawn(tables: &[TableCurve]) -> Vec<DrawnCurve<'_>> {
    let point =
        |point: &SizePoint| Some(DrawnPoint { share: point.share, miss_ratio: point.miss_ratio? });
    let curve = |table: &'_ TableCurve| table.points.iter().filter_map(point).collect();
    tables.iter().map(|table| DrawnCurve { table: &table.table, points: curve(table) }).collect()
}

/// Replays the batches of one epoch of training.
fn simulate(
    job: &JobConfig,
    dataset: &Dataset,
    shares: &[f64],
    policy: schema::CachePolicy,
    session: &Session,
) -> Result<CacheCurves, Error> {
    let (model, training) = (&job.model, &job.training);
    let features = model.features();
    let mut tables = Vec::new();
    let mut small_tables = Vec::new();
    for (table, config) in model.tables.iter().enumerate() {
        let size = |share: &f64| (share * config.rows as f64).round() as usize;
        let is_large = |share: &f64| size(share) >= ROWS_MIN;
        let shares: Vec<f64> = shares.iter().copied().filter(is_large).collect();
        if shares.is_empty() {
            small_tables.push(config.name.clone());
            continue;
        }
        let sizes: Vec<usize> = shares.iter().map(size).collect();
        let own = (0..features.len()).filter(|&feature| features[feature].table == table);
        let (features, curve) = (own.collect(), MissCurve::new(&sizes, policy));
        let (ids, id_count) = (Vec::new(), 0);
        tables.push(SimulatedTable { table, features, shares, curve, ids, id_count });
    }
    let one_epoch = schema::TrainingConfig { epochs: 1, ..training.clone() };
    let total = total_steps(&one_epoch, dataset.rows());
    let shuffle = Shuffle { seed: training.seed, buffer_rows: training.shuffle_rows };
    let options = LoaderOptions {
        batch_size: training.batch_size,
        shuffle: (training.shuffle_rows > 0).then_some(shuffle),
        drop_last: training.drop_last,
        rows: 0..dataset.rows(),
        start: Position::default(),
        epochs: Some(1),
        batches: Some(total).filter(|&batches| batches > 0),
    };
    let host = Pool::new(session.threads);
    let mut meter = Meter::start(session.console, "simulating", ProgressUnit::Rows, None);
    let (mut batches, mut samples) = (0, 0);
    for loaded in Loader::start(dataset, &feature_plan(model), options)? {
        let batch = loaded?.batch;
        for table in &mut tables {
            if batches == total / 2 {
                table.curve.count_from_here();
            }
            let length = model.tables[table.table].sequence_length;
            table.take(&host, &batch, length);
        }
        batches += 1;
        samples += batch.size as u64;
        meter.advance(samples, "");
    }
    meter.finish();
    let curve = |table: SimulatedTable| table.finish(job, batches);
    let tables: Vec<TableCurve> = tables.into_iter().map(curve).collect();
    Ok(CacheCurves {
        policy,
        batch_size: training.batch_size,
        batches: batches - total / 2,
        batches_before: total / 2,
        miss_ratio_of_all: shares.iter().map(|&share| miss_ratio_of_all(&tables, share)).collect(),
        shares: shares.to_vec(),
        tables,
        small_tables,
    })
}

impl SimulatedTable {
    /// Looks up the ids of a batch. Ids beyond the length of a sequence are not looked up.
    fn take(&mut self, host: &Pool, batch: &Batch, sequence_length: Option<usize>) {
        let sparse = &batch.sparse;
        self.ids.clear();
        for &feature in &self.features {
            let Some(length) = sequence_length else {
                self.ids.extend_from_slice(&sparse.values[sparse.feature(feature)]);
                continue;
            };
            for sample in 0..sparse.batch_size {
                let bag = &sparse.values[sparse.bag(feature, sample)];
                self.ids.extend_from_slice(&bag[..bag.len().min(length)]);
            }
        }
        self.id_count += self.ids.len() as u64;
        self.curve.take(host, &self.ids);
    }

    fn finish(self, job: &JobConfig, batches: u64) -> TableCurve {
        let config = &job.model.tables[self.table];
        let row_bytes = (config.dim * config.data_type.bytes()) as u64;
        let points = self.curve.points();
        let unique = points.iter().filter_map(|point| Some(point.counts?.unique)).max();
        let counted = (batches - batches / 2).max(1) as f64;
        let point = |(&share, point): (&f64, CurvePoint)| SizePoint {
            share,
            cache_rows: point.rows,
            cache_bytes: point.rows as u64 * row_bytes,
            miss_ratio: point.miss_ratio,
            missed: point.counts.map(|counts| counts.missed),
            evicted: point.counts.map(|counts| counts.evicted),
            conflicts: point.counts.map(|counts| counts.conflicts),
        };
        TableCurve {
            table: config.name.clone(),
            rows: config.rows,
            ids_per_batch: self.id_count as f64 / batches.max(1) as f64,
            rows_per_batch: unique.unwrap_or(0) as f64 / counted,
            points: self.shares.iter().zip(points).map(point).collect(),
        }
    }
}

/// Returns the share of the distinct rows of all tables that were missed in caches of one share.
fn miss_ratio_of_all(tables: &[TableCurve], share: f64) -> Option<f64> {
    let (mut missed, mut unique) = (0.0, 0.0);
    for table in tables {
        let Some(point) = table.points.iter().find(|point| point.share == share) else { continue };
        missed += point.miss_ratio? * table.rows_per_batch;
        unique += table.rows_per_batch;
    }
    (unique > 0.0).then(|| missed / unique)
}

fn table(curves: &CacheCurves) -> String {
    let percent = |ratio: f64| format!("{:.2} %", 100.0 * ratio);
    let mut header = vec!["table".to_owned(), "rows".to_owned(), "rows per batch".to_owned()];
    header.extend(curves.shares.iter().map(|&share| Share(share).to_string()));
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let row = |table: &TableCurve| {
        let mut row = vec![
            table.table.clone(),
            render::count(table.rows),
            render::count(table.rows_per_batch.round() as u64),
        ];
        row.extend(curves.shares.iter().map(|&share| {
            let point = table.points.iter().find(|point| point.share == share);
            match point.map(|point| point.miss_ratio) {
                Some(Some(ratio)) => percent(ratio),
                Some(None) => "too small".to_owned(),
                None => "-".to_owned(),
            }
        }));
        row
    };
    let mut lines: Vec<Vec<String>> = curves.tables.iter().map(row).collect();
    let mut all = vec!["all".to_owned(), String::new(), String::new()];
    let ratios = curves.miss_ratio_of_all.iter();
    all.extend(ratios.map(|ratio| ratio.map_or("-".to_owned(), percent)));
    lines.push(all);
    let mut about = vec![
        ("batches counted", render::count(curves.batches)),
        ("batches before them", render::count(curves.batches_before)),
        ("samples per batch", render::count(curves.batch_size as u64)),
    ];
    if !curves.small_tables.is_empty() {
        about.push(("tables left out", render::count(curves.small_tables.len() as u64)));
    }
    format!(
        "{}\n\nmiss ratio by the share of a table's rows in the cache\n{}",
        render::facts(&about),
        render::grid(&header, &lines)
    )
}
