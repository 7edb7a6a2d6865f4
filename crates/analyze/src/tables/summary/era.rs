//! Identifies the version of the profiler that wrote a trace, from the form of the file.

use serde::Serialize;
use trace::store::Trace;

/// The form of trace files, which depends on the profiler that wrote them. The variants are sorted
/// by age, oldest form first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Era {
    Unknown,
    /// PyTorch 1.8 to 1.10, with categories such as `Operator` and `Kernel` and times in whole
    /// microseconds.
    Kineto2021,
    /// PyTorch 1.11 to 2.2, with times in whole microseconds since 1970.
    KinetoMicroseconds,
    /// PyTorch 2.3, with times in nanoseconds since 1970.
    KinetoNanoseconds,
    /// PyTorch 2.4 and later, with times in nanoseconds since a base time.
    KinetoBaseTime,
    /// `EventList.export_chrome_trace` of PyTorch's autograd profiler, which writes no categories.
    Autograd,
    Ascend,
    /// A training run of rowmill's own trainer.
    Rowmill,
    Foreign,
}

impl Era {
    /// Returns the era of the first trace that contains events.
    pub(super) fn new<'a>(traces: impl IntoIterator<Item = &'a Trace>) -> Self {
        let filled = traces.into_iter().find(|trace| !trace.slices.is_empty());
        filled.map_or(Self::Unknown, Self::from_trace)
    }

    fn from_trace(trace: &Trace) -> Self {
        let is_old = |name: &str| matches!(name, "Operator" | "Kernel" | "Runtime");
        // Traces of rowmill's own trainer have the form of Kineto's, so they must be recognized
        // first.
        if trace.tracks.iter().any(|track| track.process_name == "rowmill") {
            return Self::Rowmill;
        }
        if crate::facts::writer::foreign(trace).is_some() {
            return Self::Foreign;
        }
        let has_process = |name: &str| {
            trace
                .tracks
                .iter()
                .any(|track| track.process_name == name || track.pid.text() == Some(name))
        };
        if has_process("CPU functions") {
            return Self::Autograd;
        }
        if has_process("Ascend Hardware") || has_process("CANN") {
            return Self::Ascend;
        }
        if trace.categories.iter().any(|category| is_old(&category.name)) {
            return Self::Kineto2021;
        }
        if trace.header.base_time_ns != 0 {
            return Self::KinetoBaseTime;
        }
        // Kineto wrote whole microseconds before PyTorch 2.3, so any finer time shows a newer
        // version.
        let mut times = trace.slices.start.iter().chain(&trace.slices.duration);
        if times.any(|time| time % 1000 != 0) {
            return Self::KinetoNanoseconds;
        }
        Self::KinetoMicroseconds
    }
}
