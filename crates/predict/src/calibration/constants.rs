//! Derives the constants of launches and waits from samples.

use std::collections::BTreeMap;

use analyze::distribution;

use super::{Calibration, Waiting, mean};
use crate::cost::{Constants, Transfer};

/// Derives start and wait constants from the samples of a calibration.
///
/// Returns and hand-overs are means. Latencies and gaps are medians, because some works waited for
/// something that the recording does not show, and a mean would add that wait to all other works.
pub fn derive_constants(calibration: &Calibration) -> Constants {
    let samples = |waiting: &Waiting| calibration.waits.get(waiting).map_or(&[][..], Vec::as_slice);
    let usual = |waiting: Waiting| median(samples(&waiting)).unwrap_or_default();
    let average = |waiting: &Waiting| rounded(mean(samples(waiting)).unwrap_or_default());
    let launch_ns = usual(Waiting::Launch);
    let hand_over = calibration.waits.keys().filter_map(|waiting| match waiting {
        Waiting::HandOver(name) => Some((name.clone(), average(waiting))),
        _ => None,
    });
    Constants {
        launch_ns,
        copy_launch_ns: median(samples(&Waiting::CopyLaunch)).unwrap_or(launch_ns),
        queue_gap_ns: usual(Waiting::QueueGap),
        event_wait_ns: usual(Waiting::EventWait),
        sync_return_ns: average(&Waiting::SyncReturn),
        copy_return_ns: average(&Waiting::CopyReturn),
        hand_over_ns: hand_over.collect(),
        transfer: transfers(calibration),
    }
}

fn transfers(calibration: &Calibration) -> BTreeMap<String, Transfer> {
    let mut points: BTreeMap<String, Vec<(u64, f64)>> = BTreeMap::new();
    for ((operation, bytes), samples) in &calibration.transfers {
        let of_operation = points.entry(operation.clone()).or_default();
        of_operation.extend(samples.iter().map(|ns| (*bytes, *ns as f64)));
    }
    points.into_iter().map(|(operation, points)| (operation, transfer(&points))).collect()
}

/// Fits a line through message sizes and transfer times by least squares. Returns the mean time,
/// independent of size, if all messages have one size or larger messages took no longer.
pub fn transfer(points: &[(u64, f64)]) -> Transfer {
    let count = points.len().max(1) as f64;
    let bytes = points.iter().map(|point| point.0 as f64).sum::<f64>() / count;
    let ns = points.iter().map(|point| point.1).sum::<f64>() / count;
    let spread = |point: &(u64, f64)| point.0 as f64 - bytes;
    let square: f64 = points.iter().map(|point| spread(point) * spread(point)).sum();
    let common: f64 = points.iter().map(|point| spread(point) * (point.1 - ns)).sum();
    let per_byte_ns = if square > 0.0 { (common / square).max(0.0) } else { 0.0 };
    Transfer { fixed_ns: ns - per_byte_ns * bytes, per_byte_ns }
}

/// Returns the median of the samples; `None` if there are none.
pub fn median(samples: &[i64]) -> Option<i64> {
    distribution::integer_median(&mut samples.to_vec())
}

fn rounded(value: f64) -> i64 {
    value.round() as i64
}
