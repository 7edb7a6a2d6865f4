//! The memory tab of the page: copies and their bandwidth, memory over time, peaks, and allocations
//! by operator.

use analyze::JobFacts;
use analyze::bandwidth::{self, Bandwidth};
use analyze::memory::{self, AllocatorRow, MemoryPeak, MemoryPoint};
use serde::Serialize;

use crate::clock::Zero;

/// Maximum number of points of a curve, about as many as a screen has columns.
const POINTS: usize = 1000;
/// Maximum number of listed operators per device.
const OPERATORS: usize = 20;

/// Copies and memory allocations of a job, by rank.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MemoryPart {
    /// Copies, sorted by rank and time.
    pub copies: Vec<Bandwidth>,
    /// Peaks of allocated memory, by rank and device.
    pub peaks: Vec<MemoryPeak>,
    /// Operators with the most allocations, by rank and device.
    pub operators: Vec<AllocatorRow>,
    /// Curves, one for each rank and device with allocations.
    pub curves: Vec<Curve>,
}

/// Memory of a device over time, reduced to a number of points that can be drawn.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    pub rank: u32,
    /// Index of the device, or −1 for the host.
    pub device: i32,
    /// Each point is a time on the page's clock, allocated bytes and reserved bytes. Each period is
    /// represented by its point with the most allocated bytes.
    pub points: Vec<(i64, i64, i64)>,
}

pub(crate) fn build_part(job: &JobFacts<'_>, zero: &Zero) -> MemoryPart {
    let mut part = MemoryPart::default();
    for rank in &job.ranks {
        part.copies.extend(bandwidth::measure_bandwidth(rank.scope));
        let trace = rank.scope.trace;
        part.peaks.extend(rank.memory_peaks().iter().cloned());
        let operators = memory::sum_by_operator(trace, rank.tree());
        for of_device in operators.chunk_by(|a, b| a.device == b.device) {
            part.operators.extend(of_device.iter().take(OPERATORS).cloned());
        }
        for of_device in memory::list_points(trace).chunk_by(|a, b| a.device == b.device) {
            part.curves.extend(curve(of_device, zero));
        }
    }
    part
}

fn curve(points: &[MemoryPoint], zero: &Zero) -> Option<Curve> {
    let first = points.first()?;
    let highest = |some: &[MemoryPoint]| {
        let most = some.iter().rev().max_by_key(|point| point.allocated_bytes)?;
        let at_ns = zero.at(most.rank, most.time_ns);
        Some((at_ns, most.allocated_bytes, most.reserved_bytes))
    };
    let each = points.len().div_ceil(POINTS).max(1);
    let points = points.chunks(each).filter_map(highest).collect();
    Some(Curve { rank: first.rank, device: first.device, points })
}
