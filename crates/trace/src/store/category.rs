//! Maps categories of all PyTorch versions and vendors to kinds of events.

/// A category as spelled in the file, with its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Category {
    /// Such as `cuda_runtime` or, in 2021, `Runtime`.
    pub name: String,
    pub kind: EventKind,
}

/// The kind of an event, independent of PyTorch's version and of the vendor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// An operator on a thread.
    Operator,
    /// A range named by the user or a framework, on a thread.
    Annotation,
    /// A call of the device's runtime, on a thread.
    Runtime,
    /// A call of the device's driver, on a thread.
    Driver,
    Kernel,
    /// A copy from or to a device.
    Memcpy,
    Memset,
    /// The time an annotation's work spans on a device.
    DeviceAnnotation,
    /// A wait of the host or of a stream (`cuda_sync`).
    Sync,
    /// A recorded event of a stream (`cuda_event`).
    Event,
    Python,
    /// Overhead of the profiler itself.
    Overhead,
    /// The span of the whole recording (`Trace`).
    Window,
    Other,
}

impl Category {
    /// Creates a category and determines its kind.
    ///
    /// # Source
    /// Kineto's activity types, `libkineto/src/ActivityType.cpp`; the spellings of PyTorch 1.8.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), kind: EventKind::from_name(name) }
    }

    /// Whether the category is known: it has a kind, or it is one of PyTorch's that no analysis
    /// needs.
    pub fn is_known(&self) -> bool {
        self.kind != EventKind::Other || WITHOUT_KIND.contains(&self.name.as_str())
    }
}

/// Known categories without a kind. They include "other", which represents all categories beyond
/// the 255th.
///
/// # Source
/// Kineto's activity types, `libkineto/src/ActivityType.cpp`.
const WITHOUT_KIND: [&str; 8] = [
    "cuda_profiler_range",
    "external_correlation",
    "collective_comm",
    "mtia_insight",
    "gpu_pm_counter",
    "cpu_instant_event",
    "hpu_meta",
    "other",
];

/// The category in which MTIA's command processor reports kernels, copies and waits alike.
pub(super) const MTIA_EVENTS: &str = "mtia_ccp_events";

/// Names in [`MTIA_EVENTS`] that are not kernels.
pub(super) const MTIA_KINDS: [(&str, EventKind); 2] =
    [("dma_request", EventKind::Memcpy), ("event_wait", EventKind::Sync)];

/// Kinds of rows without a category, by the name of their process.
///
/// # Source
/// `EventList.export_chrome_trace` of `torch/autograd/profiler_util.py` writes `CPU functions` and,
/// per accelerator, `CUDA functions`; torch_npu's `trace_view.json` has the other processes.
const KINDS_BY_PROCESS: [(&str, EventKind); 10] = [
    ("CPU functions", EventKind::Operator),
    ("CUDA functions", EventKind::Kernel),
    ("XPU functions", EventKind::Kernel),
    ("HPU functions", EventKind::Kernel),
    ("MTIA functions", EventKind::Kernel),
    ("PrivateUse1 functions", EventKind::Kernel),
    ("Ascend Hardware", EventKind::Kernel),
    ("CANN", EventKind::Runtime),
    // Sums of what other processes show, so not counted as work.
    ("Overlap Analysis", EventKind::DeviceAnnotation),
    ("Communication", EventKind::DeviceAnnotation),
];

impl EventKind {
    /// Derives the kind of a row without a category; [`EventKind::Other`] if its process is
    /// unknown.
    pub(super) fn from_process(track: &super::Track) -> Self {
        let names = [track.process_name.as_str(), track.pid.text().unwrap_or_default()];
        let kind_by_process = KINDS_BY_PROCESS.iter().find(|(process, _)| names.contains(process));
        kind_by_process.map_or(Self::Other, |(_, kind)| *kind)
    }

    fn from_name(category: &str) -> Self {
        match category {
            "cpu_op" | "Operator" => Self::Operator,
            "user_annotation" => Self::Annotation,
            "cuda_runtime"
            | "Runtime"
            | "xpu_runtime"
            | "mtia_runtime"
            | "glow_runtime"
            | "privateuse1_runtime" => Self::Runtime,
            "cuda_driver" | "xpu_driver" | "privateuse1_driver" => Self::Driver,
            "kernel" | "Kernel" | MTIA_EVENTS | "hpu_op" => Self::Kernel,
            "gpu_memcpy" | "Memcpy" => Self::Memcpy,
            "gpu_memset" | "Memset" => Self::Memset,
            "gpu_user_annotation" => Self::DeviceAnnotation,
            "cuda_sync" | "xpu_sync" => Self::Sync,
            "cuda_event" => Self::Event,
            "python_function" => Self::Python,
            "overhead" => Self::Overhead,
            "Trace" => Self::Window,
            _ => Self::Other,
        }
    }

    /// Whether the event occupies a stream: kernels, copies and memory sets.
    pub fn is_device_work(self) -> bool {
        matches!(self, Self::Kernel | Self::Memcpy | Self::Memset)
    }

    /// Whether the event is a runtime or driver call, which may launch device work.
    pub fn is_call(self) -> bool {
        matches!(self, Self::Runtime | Self::Driver)
    }
}
