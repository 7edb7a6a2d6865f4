//! The measured rows of one device, with the launch overhead and the state drift that they contain.

use std::collections::BTreeMap;

use schema::HardwareSpec;

use super::baseline::{Baseline, BaselinePoint, DeviceBaseline};
use super::feature::{Features, roofline_ns};
use super::launch_overhead::LaunchOverhead;
use super::measured::Measured;
use super::model::LaunchOverheads;
use super::split::Part;
use super::state_drift::{DriftSample, StateDrift};
use super::work::Kind;

/// The rows of one device, and what the host added to them.
pub struct DeviceRows {
    pub device: &'static HardwareSpec,
    /// Its rows in the order they were given.
    pub rows: Vec<Measured>,
    /// By name of the operation.
    pub floors: BTreeMap<&'static str, LaunchOverhead>,
    /// What measurements are made of.
    pub line: Baseline,
    /// By name of the operation, what its state added.
    drifts: BTreeMap<&'static str, StateDrift>,
}

impl DeviceRows {
    /// Of rows of one kind on one device, in the order they were given.
    fn new(rows: Vec<Measured>) -> Self {
        let mut names: BTreeMap<&'static str, Vec<Measured>> = BTreeMap::new();
        for row in rows.iter().filter(|row| Part::for_work(&row.work) == Part::Train) {
            names.entry(row.work.name()).or_default().push(*row);
        }
        let floors: BTreeMap<&'static str, LaunchOverhead> =
            names.iter().map(|(name, rows)| (*name, LaunchOverhead::fit(rows))).collect();
        let points: Vec<BaselinePoint> = names
            .iter()
            .flat_map(|(name, rows)| rows.iter().map(|row| floors[name].point(row)))
            .collect();
        let line = Baseline::fit(&points);
        let drift = |(name, rows): (&&'static str, &Vec<Measured>)| {
            let floor = &floors[name];
            let seen = |row: &Measured| DriftSample {
                place: row.place,
                size: size(row),
                log_residual: (floor.latency_ns(row, line) / line.ns(roofline(row), floor.ns)).ln(),
            };
            // Of one size, rows that are alike can be told from others by it alone.
            let is_seen = |row: &&Measured| floor.shows(row) && row.work.sizes().len() == 1;
            (*name, StateDrift::fit(rows.iter().filter(is_seen).map(seen).collect()))
        };
        let drifts = names.iter().map(drift).collect();
        Self { device: rows[0].device, rows, floors, line, drifts }
    }

    /// The floor of a row's operation.
    pub fn floor(&self, row: &Measured) -> LaunchOverhead {
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
        let drift = self.drifts.get(name).filter(|_| floor.shows(row));
        let more = drift.map_or(0.0, |drift| drift.at(row.place, size(row)));
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
        self.rows.iter().filter(move |row| Part::for_work(&row.work) == part)
    }

    /// Features and target of a row.
    pub fn example(&self, row: &Measured, line: Baseline) -> (Features, f32) {
        let floor = self.floor_ns(row);
        let base = line.ns(roofline_ns(&row.work, row.device), floor);
        let features =
            Features::compute(&row.work, row.device, DeviceBaseline { overhead_ns: floor, line });
        (features, (self.latency_ns(row) / base).ln() as f32)
    }

    /// The floors alone.
    pub fn floors_ns(&self) -> LaunchOverheads {
        LaunchOverheads::new(self.floors.iter().map(|(name, floor)| ((*name).to_owned(), floor.ns)))
    }
}

/// The rows of a kind by device, with floors found on what models may learn from.
pub fn by_device(kind: Kind, rows: &[Measured]) -> Vec<DeviceRows> {
    let mut devices: BTreeMap<&str, Vec<Measured>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.work.kind() == kind) {
        devices.entry(&*row.device.key).or_default().push(*row);
    }
    devices.into_values().map(DeviceRows::new).collect()
}

fn roofline(row: &Measured) -> f64 {
    roofline_ns(&row.work, row.device)
}

/// By which rows are alike.
fn size(row: &Measured) -> f64 {
    roofline(row).ln()
}
