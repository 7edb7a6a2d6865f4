//! Keeps the ids, process ids and devices of different ranks apart by prefixing them with the rank.

use crate::store::{Trace, TrackKey};

/// Largest integer that all JSON readers represent exactly.
const EXACT: u64 = 1 << 53;

/// The objects that an id links. Ids of different kinds are independent of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdKind {
    /// Links runtime calls to device work.
    Correlation,
    External,
    /// Links events to nodes of execution traces.
    RecordFunction,
    /// The profiler's own event numbers.
    EventIndex,
    /// Links forward operators to backward operators.
    Sequence,
    /// Links Python frames to their parents and modules.
    Python,
    Flow,
    /// Links waits to the device events for which they wait.
    DeviceEvent,
    /// Identifies nodes of a replayed device graph.
    GraphNode,
}

const KINDS: usize = 9;

/// The mapping that keeps the ids of one rank apart from the ids of the other ranks.
#[derive(Clone, Debug)]
pub struct Namespace {
    rank: u64,
    ids: [Numbering; KINDS],
    /// A power of ten above all process ids, or `None` if the ids are too large for a prefix.
    pids: Option<u64>,
    devices: i64,
}

/// The method that keeps ids of one kind apart.
#[derive(Clone, Debug)]
enum Numbering {
    Prefix(u64),
    /// Ids that are too large for a prefix are replaced by their index among the rank's sorted ids,
    /// plus `first`.
    Place {
        sorted: Vec<u64>,
        first: u64,
    },
}

/// Computes the namespaces for the traces of one job.
pub fn assign(traces: &[&Trace]) -> Vec<Namespace> {
    let ranks = 1 + traces.iter().map(|trace| u64::from(trace.rank)).max().unwrap_or(0);
    let largest = largest_ids(traces);
    // All kinds of ids get the same unit, so that the rank's prefix looks the same in all of them.
    let fitting = largest.iter().filter_map(|id| power_of_ten(*id, ranks)).max();
    let pids = power_of_ten(largest_pid(traces), ranks);
    let devices = 1 + traces.iter().map(|trace| largest_device(trace)).max().unwrap_or(0);
    let mut next = [1; KINDS];
    traces
        .iter()
        .map(|trace| {
            let rank = u64::from(trace.rank);
            let ids = std::array::from_fn(|kind| match fitting {
                Some(unit) if power_of_ten(largest[kind], ranks).is_some() => {
                    Numbering::Prefix(rank * unit)
                }
                _ => places(trace, kind, &mut next[kind]),
            });
            Namespace { rank, ids, pids, devices }
        })
        .collect()
}

impl Namespace {
    /// Maps an id of this rank to an id of the merged trace. The id 0 means "missing" and stays 0.
    pub fn id(&self, kind: IdKind, id: u64) -> u64 {
        // The id 0 means that there is no id, so it must not be prefixed.
        if id == 0 {
            return 0;
        }
        match &self.ids[kind as usize] {
            Numbering::Prefix(prefix) => prefix.saturating_add(id),
            Numbering::Place { sorted, first } => match sorted.binary_search(&id) {
                Ok(place) => first + place as u64,
                Err(_) => id,
            },
        }
    }

    /// Maps a process id to one that is unique in the merged trace. The new id is a number if the
    /// ranks' ids are small enough for a prefix, else a text with the rank.
    pub fn pid(&self, pid: &TrackKey) -> TrackKey {
        match (pid, self.pids) {
            (TrackKey::Number(pid), Some(unit)) => {
                let prefix = (self.rank * unit) as i64;
                // Negative ids, such as −1 for the profiler's own work, count down from the largest
                // id of the rank's range.
                let within = if *pid < 0 { unit as i64 + pid } else { *pid };
                TrackKey::Number(prefix + within)
            }
            _ => TrackKey::Text(format!("rank {} · {pid}", self.rank)),
        }
    }

    /// Maps a device ordinal to one that is unique in the merged trace. Negative ordinals mean the
    /// host and do not change.
    pub fn device(&self, device: i64) -> i64 {
        if device < 0 { device } else { self.rank as i64 * self.devices + device }
    }
}

/// Returns the smallest power of ten above `largest`. Returns `None` if prefixed ids of all ranks
/// would exceed the integers that are exact in JSON.
fn power_of_ten(largest: u64, ranks: u64) -> Option<u64> {
    let mut unit: u64 = 10;
    while unit <= largest {
        unit = unit.checked_mul(10)?;
    }
    // Many JSON readers store numbers as f64, which is exact only up to 2^53.
    unit.checked_mul(ranks).filter(|end| *end <= EXACT).map(|_| unit)
}

fn largest_ids(traces: &[&Trace]) -> [u64; KINDS] {
    let mut largest = [0; KINDS];
    for trace in traces {
        each_id(trace, &mut |kind, id| {
            let largest_id = &mut largest[kind as usize];
            *largest_id = id.max(*largest_id);
        });
    }
    largest
}

fn largest_pid(traces: &[&Trace]) -> u64 {
    let numbers = || {
        let tracks = traces.iter().flat_map(|trace| &trace.tracks);
        tracks.filter_map(|track| track.pid.number())
    };
    let above = numbers().max().unwrap_or(0).max(0).unsigned_abs();
    // Negative ids are mapped to the top of the rank's range, so the range must be large enough for
    // both.
    let below = numbers().min().unwrap_or(0).min(0).unsigned_abs();
    above.saturating_add(below)
}

fn largest_device(trace: &Trace) -> i64 {
    let slices = trace.rows().filter_map(|row| trace.slices.device(row)).max().unwrap_or(0);
    let allocations = trace.allocations.iter().map(|allocation| allocation.device).max();
    let devices = trace.header.devices.iter().map(|device| device.id).max().unwrap_or(0);
    i64::from(slices.max(allocations.unwrap_or(0))).max(devices)
}

fn places(trace: &Trace, kind: usize, next: &mut u64) -> Numbering {
    let mut sorted = Vec::new();
    each_id(trace, &mut |found, id| {
        if found as usize == kind {
            sorted.push(id);
        }
    });
    sorted.sort_unstable();
    sorted.dedup();
    let first = *next;
    *next += sorted.len() as u64;
    Numbering::Place { sorted, first }
}

fn each_id(trace: &Trace, found: &mut impl FnMut(IdKind, u64)) {
    let slices = &trace.slices;
    for row in trace.rows() {
        slices.correlation(row).into_iter().for_each(|id| found(IdKind::Correlation, id));
        slices.external_id(row).into_iter().for_each(|id| found(IdKind::External, id));
    }
    for flow in &trace.flows {
        found(IdKind::Flow, flow.id);
    }
    slices.record_function.iter().for_each(|(_, id)| found(IdKind::RecordFunction, *id));
    slices.event_index.iter().for_each(|(_, id)| found(IdKind::EventIndex, *id));
    slices.graph_node.iter().for_each(|(_, id)| found(IdKind::GraphNode, *id));
    let sequences = slices.sequence.iter().filter_map(|(_, id)| u64::try_from(*id).ok());
    sequences.for_each(|id| found(IdKind::Sequence, id));
    for (_, frame) in slices.python.iter() {
        let ids = [Some(frame.id), frame.parent, frame.module];
        ids.into_iter().flatten().for_each(|id| found(IdKind::Python, id));
    }
    for (_, wait) in slices.sync.iter() {
        wait.record_correlation.into_iter().for_each(|id| found(IdKind::Correlation, id));
        wait.event.into_iter().for_each(|id| found(IdKind::DeviceEvent, id));
    }
}
