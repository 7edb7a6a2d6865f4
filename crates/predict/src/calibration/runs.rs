//! Run-to-run variation of one configuration. Clocks, page placement and other processes make a
//! whole run faster or slower. The variation is known only if a configuration was recorded more
//! than once.

use std::collections::BTreeMap;

use super::{Calibration, Key};
use crate::program::WorkKind;

/// Device time per step of one recording, by sample key.
type Times<'a> = BTreeMap<&'a Key<WorkKind>, f64>;

/// Smallest shared part of the device time at which two recordings belong to one configuration. The
/// minimum is below 1 because work that depends on the rows of a batch differs from run to run.
const SHARED_MIN: f64 = 0.8;

/// Computes the device time of each recording relative to the mean of its configuration.
/// Configurations that were recorded only once are left out.
///
/// The factors are widened by `√((n + 1) / (n − 1))`, because they predict the next run. The
/// widening corrects two effects. Few recordings lie closer to their own mean than to the mean of
/// all runs, by `√(n / (n − 1))`. The price, which is the mean of the recordings, is uncertain as
/// well, by `√(1 + 1 / n)`.
pub fn factors(calibration: &Calibration) -> Vec<f64> {
    let times = times(calibration);
    let mut groups: Vec<Vec<&Times<'_>>> = Vec::new();
    for one in times.iter().filter(|one| !one.is_empty()) {
        match groups.iter_mut().find(|group| is_same(group[0], one)) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups.iter().filter(|group| group.len() > 1).flat_map(|group| group_factors(group)).collect()
}

fn times(calibration: &Calibration) -> Vec<Times<'_>> {
    let recordings = &calibration.recordings;
    let mut times: Vec<Times<'_>> = recordings.iter().map(|_| Times::new()).collect();
    for (key, samples) in &calibration.works {
        for one in samples.by_recording(recordings) {
            let Some(steps) = recordings.get(one.recording) else { continue };
            let per_step = one.count as f64 / f64::from((*steps).max(1));
            times[one.recording].insert(key, one.centre_ns * per_step);
        }
    }
    times
}

fn is_same(a: &Times<'_>, b: &Times<'_>) -> bool {
    let shared = |of: &Times<'_>, with: &Times<'_>| {
        let total: f64 = of.values().sum();
        let both: f64 =
            of.iter().filter(|(key, _)| with.contains_key(*key)).map(|(_, ns)| ns).sum();
        both >= SHARED_MIN * total
    };
    shared(a, b) && shared(b, a)
}

fn group_factors(group: &[&Times<'_>]) -> Vec<f64> {
    let is_shared = |key: &Key<WorkKind>| group.iter().all(|one| one.contains_key(key));
    let total = |one: &&Times<'_>| -> f64 {
        one.iter().filter(|(key, _)| is_shared(key)).map(|(_, ns)| ns).sum()
    };
    let totals: Vec<f64> = group.iter().map(total).collect();
    let count = totals.len() as f64;
    let mean = totals.iter().sum::<f64>() / count;
    if mean <= 0.0 {
        return Vec::new();
    }
    let widened = ((count + 1.0) / (count - 1.0)).sqrt();
    totals.iter().map(|ns| 1.0 + (ns / mean - 1.0) * widened).collect()
}
