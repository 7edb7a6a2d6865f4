//! Measures the steps of a recording, and the drift of a machine between two measurements.

use std::path::PathBuf;

use predict::recording::Span;

use crate::Session;
use crate::error::Error;
use crate::recorded_steps::{Steps, open_recordings, whole_scopes};

/// The measured steps of one rank.
pub struct Measured {
    pub rank: u32,
    pub mean_ns: f64,
    /// Coefficient of variation of the step times, in percent.
    pub noise_pct: f64,
}

/// The difference between two measurements of one setting, with other measurements in between. A
/// large difference means that something else disturbed the machine, so the measurements in between
/// are doubtful.
#[derive(Clone, Copy, Debug)]
pub struct Drift {
    /// `after − before`, in percent of the mean of both.
    pub pct: f64,
}

impl Drift {
    /// Drift in percent above which the machine counts as disturbed.
    const PCT_MAX: f64 = 10.0;

    /// Compares two measurements of the same quantity.
    pub fn new(before: f64, after: f64) -> Self {
        let mean = f64::midpoint(before, after);
        Self { pct: 100.0 * (after - before) / mean.max(1e-9) }
    }

    /// Returns whether something else disturbed the machine between the two measurements.
    pub fn is_disturbed(self) -> bool {
        self.pct.abs() > Self::PCT_MAX
    }
}

/// Measures the recorded steps of every rank. Without paths, the list is empty.
pub fn measured(paths: &[PathBuf], session: &Session) -> Result<Vec<Measured>, Error> {
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let traces = open_recordings(paths, session)?;
    let scopes = whole_scopes(&traces);
    let steps = Steps::find(&scopes)?;
    let both = traces.iter().zip(&steps.spans);
    Ok(both.map(|(trace, spans)| Measured::from_spans(trace.rank, spans)).collect())
}

impl Measured {
    /// Computes the mean and the noise of the step times of a rank.
    pub fn from_spans(rank: u32, spans: &[Span]) -> Self {
        let lengths: Vec<f64> = spans.iter().map(|span| (span.end - span.start) as f64).collect();
        let count = lengths.len() as f64;
        let mean_ns = lengths.iter().sum::<f64>() / count;
        let square = lengths.iter().map(|ns| (ns - mean_ns).powi(2)).sum::<f64>();
        let noise_pct = 100.0 * (square / count).sqrt() / mean_ns.max(1.0);
        Self { rank, mean_ns, noise_pct }
    }
}
