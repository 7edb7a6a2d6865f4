//! Groups measured rows by device and fits the launch overhead and state drift that they contain.

use std::collections::BTreeMap;

use schema::HardwareSpec;

use super::baseline::{Baseline, BaselinePoint, DeviceBaseline};
use super::feature::{Features, roofline_ns};
use super::launch_overhead::{LaunchOverhead, LaunchOverheads};
use super::measured::Measured;
use super::roofline_slack::slack;
use super::split::Part;
use super::state_drift::{DriftSample, StateDrift};
use super::work::Kind;

/// Measured rows of one device and one kind, with the launch overhead, baseline and state drift
/// that were fitted to its training rows.
pub struct DeviceRows {
    pub device: &'static HardwareSpec,
    pub rows: Vec<Measured>,
    /// Launch overhead by name of the operation.
    pub floors: BTreeMap<&'static str, LaunchOverhead>,
    pub line: Baseline,
    /// State drift by name of the operation.
    drifts: BTreeMap<&'static str, StateDrift>,
}

impl DeviceRows {
    /// Fits overhead, baseline and drift to the training rows of one device.
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
                log_residual: (floor.latency_ns(row) / line.ns(roofline(row), floor.ns)).ln(),
            };
            // Fit drift only for kinds with a single size, because only their roofline time
            // identifies similar rows.
            let is_seen = |row: &&Measured| floor.shows(row) && row.work.sizes().len() == 1;
            (*name, StateDrift::fit(rows.iter().filter(is_seen).map(seen).collect()))
        };
        let drifts = names.iter().map(drift).collect();
        Self { device: rows[0].device, rows, floors, line, drifts }
    }

    /// Returns the launch overhead of the operation that a row measures.
    pub fn floor(&self, row: &Measured) -> LaunchOverhead {
        self.floors.get(row.work.name()).copied().unwrap_or_default()
    }

    /// Returns the launch overhead of a row's operation in nanoseconds.
    pub fn floor_ns(&self, row: &Measured) -> f64 {
        self.floors.get(row.work.name()).map_or(0.0, |floor| floor.ns)
    }

    /// Returns the latency that models are trained to predict: the measurement without drift of the
    /// host or of the device's state.
    pub fn latency_ns(&self, row: &Measured) -> f64 {
        let name = row.work.name();
        let Some(floor) = self.floors.get(name) else { return row.latency_ns };
        let drift = self.drifts.get(name).filter(|_| floor.shows(row));
        let more = drift.map_or(0.0, |drift| drift.at(row.place, size(row)));
        floor.latency_ns(row) / more.exp()
    }

    /// Returns whether prediction errors include this row. The latency of the row must exceed the
    /// launch overhead, and the overhead must not be known to hide its kernel.
    pub fn is_above_floor(&self, row: &Measured) -> bool {
        let floor = self.floors.get(row.work.name());
        self.latency_ns(row) > self.floor_ns(row) && !floor.is_some_and(|floor| floor.hides(row))
    }

    /// Iterates over the rows that belong to one part of the split.
    pub fn part(&self, part: Part) -> impl Iterator<Item = &Measured> + Clone {
        self.rows.iter().filter(move |row| Part::for_work(&row.work) == part)
    }

    /// Computes the features of a row and the residual that a forest is trained to predict for it.
    pub fn example(&self, row: &Measured) -> (Features, f32) {
        let baseline = DeviceBaseline { overhead_ns: self.floor_ns(row), line: self.line };
        Features::example(row, self.latency_ns(row), baseline)
    }

    /// Computes how far the device's long training kernels are from the roofline.
    pub fn slack(&self) -> f64 {
        slack(self.part(Part::Train).map(|row| (row, self.latency_ns(row))))
    }

    /// Returns only the launch overheads, in the form that a model stores.
    pub fn floors_ns(&self) -> LaunchOverheads {
        LaunchOverheads::new(self.floors.iter().map(|(name, floor)| ((*name).to_owned(), floor.ns)))
    }
}

/// Groups the rows of a kind by device and fits each device's overhead, baseline and drift.
pub fn by_device(kind: Kind, rows: &[Measured]) -> Vec<DeviceRows> {
    let mut devices: BTreeMap<&str, Vec<Measured>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.work.kind() == kind) {
        devices.entry(&*row.device.key).or_default().push(*row);
    }
    devices.into_values().map(DeviceRows::new).collect()
}

/// Returns the usual launch overheads of several devices, in the form that a model stores.
pub fn usual_floors(devices: &[&DeviceRows]) -> LaunchOverheads {
    let floors: Vec<LaunchOverheads> = devices.iter().map(|device| device.floors_ns()).collect();
    LaunchOverheads::median_of(floors.iter())
}

fn roofline(row: &Measured) -> f64 {
    roofline_ns(&row.work, row.device)
}

/// Returns the logarithm of the roofline time. State drift compares rows that are close in this
/// coordinate.
fn size(row: &Measured) -> f64 {
    roofline(row).ln()
}
