//! Makes the models of one kind from measured rows. The same rows give the same model, byte for
//! byte, with any number of threads.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use schema::HardwareSpec;

use super::Error;
use super::baseline::{Line, Point};
use super::bins::Bins;
use super::boosting::{self, Settings, Table};
use super::feature::{Features, MOST, roofline_ns};
use super::forest::Forest;
use super::interval::{self, Interval};
use super::launch_overhead::Floor;
use super::leave_out;
use super::measured::Measured;
use super::model::{DeviceModel, Floors, KernelModel, Learnt, Source, Unseen};
use super::split::{self, Part};
use super::state_drift::{Pace, Seen};
use super::work::Kind;

/// The most bytes of a model's file.
pub const MODEL_BYTES_MOST: usize = 300_000;
/// Fewest rows of one device that trees are grown on.
const ROWS_LEAST: usize = 200;
/// Of a device with fewer rows for intervals, those to learn from say too how far off trees are
/// that have not seen them: quantiles of few rows cover several per cent more or less than nine of
/// ten.
const CALIBRATION_FEW: usize = 500;
/// Parts that these are divided into; each is predicted by trees that learnt from the others.
const FOLDS: u64 = 5;

/// Of one device.
const OWN: Forested = Forested {
    base: Corrected::Line,
    settings: Settings { rounds: 450, leaves: 31, rate: 0.06, rows: 8, features: 0.8 },
};
/// Over all devices: fewer and broader leaves.
const BROAD: Settings = Settings { rounds: 120, leaves: 7, rate: 0.1, rows: 100, features: 0.3 };
/// Over all devices, for those of which a few rows are known, and a line by these.
pub(super) const POOLED: Forested = Forested { base: Corrected::Line, settings: BROAD };
/// Over all devices, for unmeasured ones.
pub(super) const UNSEEN: Forested = Forested { base: Corrected::Roofline, settings: BROAD };

/// What trees correct.
#[derive(Clone, Copy, Debug)]
enum Corrected {
    /// The line of each device.
    Line,
    /// The roofline: an unmeasured device has no line, and those of others mislead.
    Roofline,
}

impl Corrected {
    fn line(self, own: Line) -> Line {
        match self {
            Self::Line => own,
            Self::Roofline => Line::ROOFLINE,
        }
    }
}

/// How trees are grown, and on what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forested {
    base: Corrected,
    settings: Settings,
}

/// Which of the rows to learn from are learnt from.
#[derive(Clone, Copy, Debug)]
enum Learning {
    All,
    /// Those of all folds but one.
    Without(u64),
}

impl Learning {
    fn takes(self, row: &Measured) -> bool {
        match self {
            Self::All => true,
            Self::Without(fold) => fold_of(row) != fold,
        }
    }
}

fn fold_of(row: &Measured) -> u64 {
    split::hash(&row.work, 1) % FOLDS
}

/// The rows of one device, and what the host added to them.
pub(super) struct DeviceRows {
    pub device: &'static HardwareSpec,
    /// Its rows in the order they were given.
    pub rows: Vec<Measured>,
    /// By name of the operation.
    pub floors: BTreeMap<&'static str, Floor>,
    /// What measurements are made of.
    pub line: Line,
    /// By name of the operation, what its state added.
    paces: BTreeMap<&'static str, Pace>,
}

impl DeviceRows {
    /// Of rows of one kind on one device, in the order they were given.
    fn of(rows: Vec<Measured>) -> Self {
        let mut names: BTreeMap<&'static str, Vec<Measured>> = BTreeMap::new();
        for row in rows.iter().filter(|row| Part::of(&row.work) == Part::Train) {
            names.entry(row.work.name()).or_default().push(*row);
        }
        let floors: BTreeMap<&'static str, Floor> =
            names.iter().map(|(name, rows)| (*name, Floor::of(rows))).collect();
        let points: Vec<Point> = names
            .iter()
            .flat_map(|(name, rows)| rows.iter().map(|row| floors[name].point(row)))
            .collect();
        let line = Line::of(&points);
        let pace = |(name, rows): (&&'static str, &Vec<Measured>)| {
            let floor = &floors[name];
            let seen = |row: &Measured| Seen {
                place: row.place,
                size: size(row),
                off: (floor.latency_ns(row, line) / line.ns(roofline(row), floor.ns)).ln(),
            };
            // Of one size, rows that are alike can be told from others by it alone.
            let is_seen = |row: &&Measured| floor.shows(row) && row.work.sizes().len() == 1;
            (*name, Pace::of(rows.iter().filter(is_seen).map(seen).collect()))
        };
        let paces = names.iter().map(pace).collect();
        Self { device: rows[0].device, rows, floors, line, paces }
    }

    /// The floor of a row's operation.
    pub fn floor(&self, row: &Measured) -> Floor {
        self.floors.get(row.work.name()).cloned().unwrap_or_default()
    }

    /// The same in nanoseconds.
    pub fn floor_ns(&self, row: &Measured) -> f64 {
        self.floors.get(row.work.name()).map_or(0.0, |floor| floor.ns)
    }

    /// What is to be predicted: the measurement without what the host, and the device's state,
    /// added to this row more than to others.
    pub fn latency_ns(&self, row: &Measured) -> f64 {
        let name = row.work.name();
        let Some(floor) = self.floors.get(name) else { return row.latency_ns };
        let pace = self.paces.get(name).filter(|_| floor.shows(row));
        let more = pace.map_or(0.0, |pace| pace.at(row.place, size(row)));
        floor.latency_ns(row, self.line) / more.exp()
    }

    /// Whether errors are of a row: its sizes do not say that the host hides its kernel, and it
    /// took longer than the floor. A hidden kernel is at the floor; that its call took a little
    /// longer or shorter is the host's.
    pub fn is_above_floor(&self, row: &Measured) -> bool {
        let floor = self.floors.get(row.work.name());
        self.latency_ns(row) > self.floor_ns(row) && !floor.is_some_and(|floor| floor.hides(row))
    }

    /// The rows of one part.
    pub fn part(&self, part: Part) -> impl Iterator<Item = &Measured> + Clone {
        self.rows.iter().filter(move |row| Part::of(&row.work) == part)
    }

    /// Features and target of a row.
    fn example(&self, row: &Measured, line: Line) -> (Features, f32) {
        let floor = self.floor_ns(row);
        let base = line.ns(roofline_ns(&row.work, row.device), floor);
        let features = Features::of(&row.work, row.device, (floor, line));
        (features, (self.latency_ns(row) / base).ln() as f32)
    }

    /// The floors alone.
    pub fn floors_ns(&self) -> Floors {
        Floors::new(self.floors.iter().map(|(name, floor)| ((*name).to_owned(), floor.ns)))
    }
}

/// The rows of a kind by device, with floors found on what models may learn from.
pub(super) fn by_device(kind: Kind, rows: &[Measured]) -> Vec<DeviceRows> {
    let mut devices: BTreeMap<&str, Vec<Measured>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.work.kind() == kind) {
        devices.entry(&*row.device.key).or_default().push(*row);
    }
    devices.into_values().map(DeviceRows::of).collect()
}

fn roofline(row: &Measured) -> f64 {
    roofline_ns(&row.work, row.device)
}

/// By which rows are alike.
fn size(row: &Measured) -> f64 {
    roofline(row).ln()
}

/// Learns a kind from rows of any devices; rows of other kinds are left out.
///
/// # Errors
/// [`Error::TooFew`] for a device with fewer than 200 rows to learn from.
pub fn train(
    kind: Kind,
    rows: &[Measured],
    sources: Vec<Source>,
    threads: usize,
) -> Result<KernelModel, Error> {
    let devices = by_device(kind, rows);
    let learnt = |device: &DeviceRows| device.part(Part::Train).count();
    let fewest = devices.iter().map(learnt).min().unwrap_or(0);
    if fewest < ROWS_LEAST {
        let (kind, expected) = (kind.name(), ROWS_LEAST);
        return Err(Error::TooFew { kind, expected, got: fewest });
    }
    let all: Vec<&DeviceRows> = devices.iter().collect();
    let bins = bins(&all);
    let calibrating = |device: &DeviceRows| device.part(Part::Calibrate).count();
    let fewest = devices.iter().map(calibrating).min().unwrap_or(0);
    let folds = if fewest < CALIBRATION_FEW { FOLDS as usize } else { 0 };
    // The longest first, so that no thread ends long after the others. Of each device the trees of
    // all rows, then those without a fold.
    let grown = in_parallel(threads, 2 + devices.len() * (1 + folds), |job| match job {
        0 => forest(&all, &bins, POOLED),
        1 => forest(&all, &bins, UNSEEN),
        _ => {
            let (at, fold) = ((job - 2) / (1 + folds), (job - 2) % (1 + folds));
            let without = fold.checked_sub(1).map(|fold| Learning::Without(fold as u64));
            grow(&all[at..=at], &bins, OWN, without.unwrap_or(Learning::All))
        }
    });
    let mut grown = grown.into_iter();
    let pooled = grown.next().unwrap_or_default();
    let unseen_forest = grown.next().unwrap_or_default();
    let unseen = leave_out::interval(&all, threads);
    let of = |device| of_device(device, &bins, grown.by_ref().take(1 + folds).collect());
    let devices: Vec<DeviceModel> = devices.iter().map(of).collect();
    let (least, most) = ranges(kind, rows);
    let unseen = Unseen { forest: unseen_forest, interval: unseen };
    Ok(KernelModel { kind, sources, least, most, bins, pooled, unseen, devices })
}

/// The bins of the features of all rows to learn from.
pub(super) fn bins(devices: &[&DeviceRows]) -> Bins {
    let examples: Vec<Features> =
        examples(devices, Corrected::Line, Learning::All).map(|(features, _)| features).collect();
    Bins::of(&examples.iter().map(Features::values).collect::<Vec<_>>())
}

/// A forest on the rows to learn from.
pub(super) fn forest(devices: &[&DeviceRows], bins: &Bins, how: Forested) -> Forest {
    grow(devices, bins, how, Learning::All)
}

fn grow(devices: &[&DeviceRows], bins: &Bins, how: Forested, learning: Learning) -> Forest {
    let features = bins.ends().len();
    let mut table = Table { features, bins: Vec::new(), targets: Vec::new() };
    let mut placed = [0; MOST];
    for (features_of, target) in examples(devices, how.base, learning) {
        bins.place(features_of.values(), &mut placed);
        table.bins.extend_from_slice(&placed[..features]);
        table.targets.push(target);
    }
    boosting::forest(&table, how.settings, features as u64)
}

fn examples(
    devices: &[&DeviceRows],
    base: Corrected,
    learning: Learning,
) -> impl Iterator<Item = (Features, f32)> {
    let of_device = move |device: &&DeviceRows| {
        let line = base.line(device.line);
        let rows = device.part(Part::Train).filter(|row| learning.takes(row));
        rows.map(|row| device.example(row, line)).collect::<Vec<_>>()
    };
    devices.iter().flat_map(of_device)
}

/// The model of a device by its trees; `forests` are those of all rows, then those without a fold,
/// if any.
fn of_device(device: &DeviceRows, bins: &Bins, mut forests: Vec<Forest>) -> DeviceModel {
    let forest = if forests.is_empty() { Forest::default() } else { forests.remove(0) };
    let mut model = DeviceModel {
        device: device.device.key.clone().into_owned(),
        rows: device.part(Part::Train).count(),
        floors: device.floors_ns(),
        timed: device.rows.first().map(|row| row.timed).unwrap_or_default(),
        line: device.line,
        slack: slack(device.part(Part::Train).map(|row| (row, device.latency_ns(row)))),
        learnt: Learnt::Own(forest),
        interval: Interval::flat(0.0, 0.0),
    };
    let off = |model: &DeviceModel, row: &Measured| {
        let found = model.latency(bins, None, (&row.work, row.device));
        (found.above_floor, (device.latency_ns(row) / found.ns).ln())
    };
    let calibration = |model: &DeviceModel| -> Vec<(f32, f64)> {
        device.part(Part::Calibrate).map(|row| off(model, row)).collect()
    };
    let without = |forest| DeviceModel { learnt: Learnt::Own(forest), ..model.clone() };
    let folds: Vec<DeviceModel> = forests.into_iter().map(without).collect();
    let mut offs = calibration(&model);
    // Trees that lack a fold are farther off than those of all rows. By how much is known on
    // calibration rows, which none of them has seen.
    let nearer = interval::ratio(&offs, &folds.iter().flat_map(calibration).collect::<Vec<_>>());
    for (fold, lacking) in (0..).zip(&folds) {
        let unseen = device.part(Part::Train).filter(|row| fold_of(row) == fold);
        let found = unseen.map(|row| off(lacking, row));
        offs.extend(found.map(|(above_floor, off)| (above_floor, nearer * off)));
    }
    model.interval = Interval::of(offs);
    model
}

/// How far kernels stay behind the roofline where it is far above any floor: the median.
pub(super) fn slack<'a>(rows: impl Iterator<Item = (&'a Measured, f64)>) -> f64 {
    let mut ratios: Vec<(f64, f64)> = rows
        .map(|(row, latency)| (latency, latency / roofline_ns(&row.work, row.device)))
        .collect();
    // Of the longer half, where floors count for least.
    ratios.sort_by(|a, b| b.0.total_cmp(&a.0));
    ratios.truncate(ratios.len().div_ceil(2));
    let mut ratios: Vec<f64> = ratios.into_iter().map(|(_, ratio)| ratio).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or(1.0)
}

/// The least and the most of each size, over the rows to learn from.
fn ranges(kind: Kind, rows: &[Measured]) -> (Vec<u64>, Vec<u64>) {
    let count = kind.sizes().len();
    let (mut least, mut most) = (vec![u64::MAX; count], vec![0; count]);
    let learnt = rows.iter().filter(|row| row.work.kind() == kind);
    for row in learnt.filter(|row| Part::of(&row.work) == Part::Train) {
        for (at, &size) in row.work.sizes().iter().enumerate() {
            least[at] = size.min(least[at]);
            most[at] = size.max(most[at]);
        }
    }
    (least, most)
}

/// What `run` gives for each of `0..jobs`, in their order.
pub(super) fn in_parallel<R: Send>(
    threads: usize,
    jobs: usize,
    run: impl Fn(usize) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::new());
    let work = || {
        loop {
            let job = next.fetch_add(1, Ordering::Relaxed);
            if job >= jobs {
                return;
            }
            let result = run(job);
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((job, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, jobs.max(1)) {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(job, _)| *job);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests;
