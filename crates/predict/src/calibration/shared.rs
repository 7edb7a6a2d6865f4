//! Reduces a calibration to the overheads of its host, which other workloads on other devices
//! share. The reduced calibration is small enough to be shipped with rowmill.

use std::collections::BTreeMap;

use super::launches::{ApiCall, ByOperator, Launches, Variant};
use super::{Calibration, Key};
use crate::program::{Overhead, WorkKind};

/// A sample that is longer than this number of median runtime calls is left out. Such samples are
/// the creation of contexts, the loading of modules, searches for algorithms, the initialization of
/// weights and waits for data, which a steady step of another workload does not have.
const CALLS_MOST: i64 = 100;
/// Number of samples that remain of each operator and kind of overhead. They are the means of as
/// many equal parts of the sorted samples, so that their mean is that of all samples.
const SAMPLES_MOST: usize = 8;
/// Number of sizes that remain of each sequence of calls of an operator.
const SIZES_MOST: usize = 8;

impl Calibration {
    /// Returns the overheads of the host by operator, without sizes and without device work. The
    /// calls of each operator remain, with sizes where they depend on sizes.
    #[must_use]
    pub fn shared_overheads(&self) -> Self {
        let calls = self.overheads.iter().filter(|(key, _)| key.class == Overhead::RuntimeCall);
        let calls: Vec<i64> = calls.flat_map(|(_, samples)| samples).copied().collect();
        let limit = super::constants::median(&calls)
            .map_or(i64::MAX, |ns| CALLS_MOST.saturating_mul(ns.max(1)));
        let kept = |samples: &[i64]| samples.iter().copied().filter(|ns| *ns <= limit).collect();
        let mut overheads: BTreeMap<Key<Overhead>, Vec<i64>> = BTreeMap::new();
        for (key, samples) in &self.overheads {
            // The time before an operator belongs to the code between operators, not to the
            // operator.
            let name = match key.class {
                Overhead::BetweenOps => family(&key.name),
                _ => &key.name,
            };
            let key = Key { class: key.class, name: name.to_owned(), detail: String::new() };
            let kept: Vec<i64> = kept(samples);
            if !kept.is_empty() {
                overheads.entry(key).or_default().extend(kept);
            }
        }
        overheads.values_mut().for_each(reduce);
        let waits = self.waits.iter().filter_map(|(waiting, samples)| {
            let mut kept: Vec<i64> = kept(samples);
            reduce(&mut kept);
            (!kept.is_empty()).then(|| (waiting.clone(), kept))
        });
        let inner = self.launches.inner.iter();
        let inner = inner.map(|(name, by_sizes)| (name.clone(), reduce_operator(by_sizes)));
        Self {
            machine: self.machine.clone(),
            overheads,
            waits: waits.collect(),
            factors: self.factors.clone(),
            launches: Launches {
                seen: self.launches.seen.clone(),
                outer: ByOperator::new(),
                inner: inner.collect(),
            },
            event_ns: self.event_ns,
            events: self.events.clone(),
            ..Self::default()
        }
    }
}

/// Start of the names of autograd's engine.
pub const ENGINE: &str = "autograd::engine::evaluate_function";

/// Returns the family of operators before which the same kind of code runs: the engine of autograd,
/// or the language of the user's program.
pub fn family(name: &str) -> &'static str {
    if name.starts_with(ENGINE) { ENGINE } else { "" }
}

/// Replaces samples by the means of equal parts of them.
fn reduce(samples: &mut Vec<i64>) {
    samples.sort_unstable();
    if samples.len() > SAMPLES_MOST {
        let part = |at: usize| at * samples.len() / SAMPLES_MOST;
        let mean = |at: usize| {
            let part = &samples[part(at)..part(at + 1)];
            part.iter().sum::<i64>() / part.len() as i64
        };
        *samples = (0..SAMPLES_MOST).map(mean).collect();
    }
}

/// Sizes with the number of operators that had them.
type Counts<'a> = Vec<(&'a String, u64)>;

/// Keeps one example of each sequence of calls of an operator, and the most frequent sizes of each
/// sequence if there are several.
fn reduce_operator(by_sizes: &BTreeMap<String, Vec<Variant>>) -> BTreeMap<String, Vec<Variant>> {
    let mut sequences: Vec<(Vec<ApiCall>, Counts<'_>)> = Vec::new();
    for (sizes, variant) in
        by_sizes.iter().flat_map(|(sizes, all)| all.iter().map(move |one| (sizes, one)))
    {
        let calls = without_details(&variant.calls);
        match sequences.iter_mut().find(|(known, _)| *known == calls) {
            Some((_, all)) => all.push((sizes, variant.count)),
            None => sequences.push((calls, vec![(sizes, variant.count)])),
        }
    }
    let most = if sequences.len() > 1 { SIZES_MOST } else { 1 };
    let mut kept: BTreeMap<String, Vec<Variant>> = BTreeMap::new();
    for (calls, mut all) in sequences {
        let total: u64 = all.iter().map(|(_, count)| count).sum();
        all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        all.truncate(most);
        // The counts of sizes that are left out go to those that are kept.
        let share = total / all.len().max(1) as u64;
        for (sizes, count) in all {
            let variant = Variant { count: count.max(share), calls: calls.clone() };
            kept.entry(sizes.clone()).or_default().push(variant);
        }
    }
    kept
}

/// Removes the names and sizes of kernels, except of copies, whose names state their direction, and
/// of sorts, from whose names their number follows.
fn without_details(calls: &[ApiCall]) -> Vec<ApiCall> {
    let mut calls = calls.to_vec();
    for work in calls.iter_mut().flat_map(|call| &mut call.launches) {
        if !work.name.contains("RadixSort") && work.kind != WorkKind::Copy {
            work.name.clear();
        }
        work.details = [(String::new(), 1)].into();
        work.bytes = None;
        if let Some((_, bytes)) = &mut work.collective {
            *bytes = 0;
        }
    }
    calls
}
