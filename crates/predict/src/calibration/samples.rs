//! Samples of device work, each with the recorded step in which it was taken, and the central time
//! of such samples.

use analyze::distribution;
use serde::{Deserialize, Serialize};

/// Time samples of one kind of device work, each with the step in which it was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkSamples {
    ns: Vec<i64>,
    /// Step of each sample, in ascending order.
    steps: Vec<u32>,
}

/// Central time of the samples of one recording.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordingCentre {
    pub recording: usize,
    /// Median over steps of the mean within each step.
    pub centre_ns: f64,
    pub count: usize,
}

impl WorkSamples {
    /// Returns whether each sample has a step, and the steps are in ascending order.
    pub fn is_valid(&self) -> bool {
        self.ns.len() == self.steps.len() && self.steps.is_sorted()
    }

    /// Adds a sample to the given step, or to the latest step if the given step is earlier.
    pub fn push(&mut self, step: u32, ns: i64) {
        self.steps.push(step.max(self.steps.last().copied().unwrap_or_default()));
        self.ns.push(ns);
    }

    /// Appends samples of a later recording, whose steps are numbered from `offset`.
    pub fn append_later(&mut self, later: &Self, offset: u32) {
        later.steps.iter().zip(&later.ns).for_each(|(step, ns)| self.push(step + offset, *ns));
    }

    /// Returns the durations of all samples in nanoseconds.
    pub fn ns(&self) -> &[i64] {
        &self.ns
    }

    /// Returns the step of each sample, in the order of the samples.
    pub fn steps(&self) -> &[u32] {
        &self.steps
    }

    /// Returns the time of the work in an undisturbed step. The time is the mean over recordings of
    /// the median over steps, or `None` if there are no samples.
    pub fn centre(&self, recordings: &[u32]) -> Option<f64> {
        centre(&[self], recordings)
    }

    /// Returns the central time of each recording. `recordings` holds the number of steps of each
    /// recording.
    pub fn by_recording(&self, recordings: &[u32]) -> Vec<RecordingCentre> {
        by_recording(&[self], recordings)
    }
}

impl AsRef<[i64]> for WorkSamples {
    fn as_ref(&self) -> &[i64] {
        &self.ns
    }
}

/// Converts durations to samples as if each were taken in a step of its own.
impl From<Vec<i64>> for WorkSamples {
    fn from(ns: Vec<i64>) -> Self {
        let steps = (0u32..).zip(&ns).map(|(step, _)| step).collect();
        Self { ns, steps }
    }
}

/// Returns the central time of several sets of samples together, computed as by
/// [`WorkSamples::centre`].
pub fn centre(all: &[&WorkSamples], recordings: &[u32]) -> Option<f64> {
    let found = by_recording(all, recordings);
    let sum: f64 = found.iter().map(|one| one.centre_ns).sum();
    (!found.is_empty()).then(|| sum / found.len() as f64)
}

/// Takes the mean within each step and the median over steps. Other processes slow down single
/// steps, and a mean over steps would add that delay to every prediction. Within a step the mean is
/// right, because works of one name and size differ only by warm or cold caches.
fn by_recording(all: &[&WorkSamples], recordings: &[u32]) -> Vec<RecordingCentre> {
    let mut every: Vec<(u32, i64)> = Vec::with_capacity(all.iter().map(|one| one.ns.len()).sum());
    for one in all {
        every.extend(one.steps.iter().copied().zip(one.ns.iter().copied()));
    }
    if all.len() > 1 {
        every.sort_by_key(|(step, _)| *step);
    }
    let mut found: Vec<RecordingCentre> = Vec::new();
    let mut means: Vec<f64> = Vec::new();
    let (mut recording, mut end) = (0, recordings.first().map_or(u32::MAX, |steps| *steps));
    for samples in every.chunk_by(|a, b| a.0 == b.0) {
        while samples[0].0 >= end {
            end = match recordings.get(recording + 1) {
                Some(steps) => end.saturating_add(*steps),
                None => u32::MAX,
            };
            recording += 1;
        }
        if found.last().is_none_or(|last| last.recording != recording) {
            close(&mut found, &mut means);
            found.push(RecordingCentre { recording, centre_ns: 0.0, count: 0 });
        }
        let sum: i64 = samples.iter().map(|(_, ns)| ns).sum();
        means.push(sum as f64 / samples.len() as f64);
        if let Some(last) = found.last_mut() {
            last.count += samples.len();
        }
    }
    close(&mut found, &mut means);
    found
}

/// Stores the median of the steps' means as the central time of the current recording.
fn close(found: &mut [RecordingCentre], means: &mut Vec<f64>) {
    if let Some(last) = found.last_mut() {
        last.centre_ns = distribution::median(means).unwrap_or_default();
        means.clear();
    }
}

/// Returns the mean of the samples, or `None` if there are none.
pub fn mean(samples: &[i64]) -> Option<f64> {
    let sum: i64 = samples.iter().sum();
    (!samples.is_empty()).then(|| sum as f64 / samples.len() as f64)
}
