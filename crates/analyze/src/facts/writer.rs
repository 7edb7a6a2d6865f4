//! Judges by the rows of a file which program wrote it: PyTorch's profiler or another program.
//! Conclusions for the quality of the trace are drawn in `quality`.

use trace::store::{EventKind, Trace};

/// Rows whose category has no known meaning, counted by category.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownRows {
    pub count: u64,
    /// Categories with their number of rows, largest number first; an empty name stands for rows
    /// without a category.
    pub categories: Vec<(String, u64)>,
}

/// Counts the rows whose category has no known meaning.
///
/// # Cost
/// The cost is linear in the rows of the trace.
pub fn unknown_rows(trace: &Trace) -> UnknownRows {
    let mut counts = vec![0u64; trace.categories.len()];
    trace.slices.category.iter().for_each(|category| counts[usize::from(*category)] += 1);
    let unknown = trace.categories.iter().zip(counts).filter(|(category, _)| !category.is_known());
    let mut categories: Vec<(String, u64)> = unknown
        .map(|(category, count)| (category.name.clone(), count))
        .filter(|(_, count)| *count > 0)
        .collect();
    categories.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    UnknownRows { count: categories.iter().map(|(_, count)| count).sum(), categories }
}

/// A mark in a file that only one program writes.
enum ProgramMark {
    /// A category that begins with this text. If commas join several categories, one of them is
    /// enough.
    Category(&'static str),
    /// A process whose name begins with this text.
    Process(&'static str),
    /// A key of the JSON object that also contains the list of events.
    Header(&'static str),
}

/// Programs that write Chrome's trace format, each with marks that no file of PyTorch contains.
///
/// # Source
/// The marks come from the source of each writer: `onnxruntime/core/common/profiler_common.h`
/// (event categories), `nsys2json.py` of ezyang/nsys2json, Chromium's `base/trace_event`,
/// TensorFlow's `timeline.py` and XLA's `xplane_to_trace_container.cc`, LLVM's `TimeProfiler.cpp`,
/// VizTracer's `report_builder.py`, Bazel's `JsonTraceFileWriter.java`, Ray's `state.py`, Node.js's
/// `trace_event` documentation.
const PROGRAMS: [(ProgramMark, &str); 20] = [
    (ProgramMark::Category("Session"), "ONNX Runtime"),
    (ProgramMark::Category("Node"), "ONNX Runtime"),
    (ProgramMark::Category("cuda_api"), "nsys2json (Nsight Systems)"),
    (ProgramMark::Category("nvtx"), "nsys2json (Nsight Systems)"),
    (ProgramMark::Category("nvtx-kernel"), "nsys2json (Nsight Systems)"),
    (ProgramMark::Header("viztracer_metadata"), "VizTracer"),
    (ProgramMark::Header("beginningOfTime"), "clang's -ftime-trace"),
    (ProgramMark::Category("node."), "Node.js"),
    (ProgramMark::Category("disabled-by-default-"), "Chrome"),
    (ProgramMark::Category("devtools."), "Chrome"),
    (ProgramMark::Category("toplevel"), "Chrome"),
    (ProgramMark::Category("blink"), "Chrome"),
    (ProgramMark::Category("v8"), "Chrome"),
    (ProgramMark::Category("__metadata"), "Chrome"),
    (ProgramMark::Category("build phase marker"), "Bazel"),
    (ProgramMark::Category("action processing"), "Bazel"),
    (ProgramMark::Process("/device:"), "TensorFlow or JAX"),
    (ProgramMark::Process("/host:"), "TensorFlow or JAX"),
    (ProgramMark::Category("ray::"), "Ray"),
    (ProgramMark::Category("hip_api"), "ROCm's rocprof"),
];

/// Returns the name of the program that wrote a file, if it was not PyTorch's profiler. Either most
/// rows have no known meaning, or some rows reveal another program and none is a host row that
/// PyTorch records. The result is `None` for files of PyTorch.
pub fn foreign(trace: &Trace) -> Option<&'static str> {
    let unknown = unknown_rows(trace);
    if unknown.count == 0 {
        return None;
    }
    let has_category = |text: &str| {
        let mut parts = unknown.categories.iter().flat_map(|(name, _)| name.split(','));
        parts.any(|part| part.trim().starts_with(text))
    };
    let has_process =
        |text: &str| trace.tracks.iter().any(|track| track.process_name.starts_with(text));
    let is_there = |mark: &ProgramMark| match mark {
        ProgramMark::Category(text) => has_category(text),
        ProgramMark::Process(text) => has_process(text),
        ProgramMark::Header(key) => trace.header.rest.contains_key(*key),
    };
    let program = PROGRAMS.iter().find(|(mark, _)| is_there(mark)).map(|(_, program)| *program);
    let is_host = |row: u32| {
        let kind = trace.kind(row);
        kind.is_call() || matches!(kind, EventKind::Operator | EventKind::Annotation)
    };
    let has =
        |is_kind: &dyn Fn(EventKind) -> bool| trace.rows().any(|row| is_kind(trace.kind(row)));
    let has_calls_and_work = || has(&|kind| kind.is_call()) && has(&|kind| kind.is_device_work());
    match program {
        // A mark of another program is enough only if no host row is of a kind that PyTorch writes,
        // because users may add rows of their own to PyTorch's traces.
        Some(program) if !trace.rows().any(is_host) => Some(program),
        _ if 2 * unknown.count > trace.slices.len() as u64 && !has_calls_and_work() => {
            Some(program.unwrap_or("an unknown program"))
        }
        _ => None,
    }
}
