//! Maps the event categories of all PyTorch versions and vendors to kinds of events.

/// An event category as spelled in the file, with the kind of its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Category {
    /// The spelling in the file, such as `cuda_runtime`, or `Runtime` in files from 2021.
    pub name: String,
    pub kind: EventKind,
}

/// The kind of an event, which does not depend on the PyTorch version or the vendor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// An operator that ran on a host thread.
    Operator,
    /// A range on a host thread, named by the user or by a framework.
    Annotation,
    /// A call of the device's runtime library on a host thread.
    Runtime,
    /// A call of the device's driver on a host thread.
    Driver,
    Kernel,
    /// A memory copy from or to a device.
    Memcpy,
    Memset,
    /// The time on a device that the work launched within an annotation spans.
    DeviceAnnotation,
    /// A wait of the host or of a stream (`cuda_sync`).
    Sync,
    /// An event that was recorded on a stream (`cuda_event`).
    Event,
    Python,
    /// Overhead of the profiler itself.
    Overhead,
    /// The span of the whole recording (category `Trace`).
    Window,
    Other,
}

impl Category {
    /// Creates a category, and derives its kind from its name.
    ///
    /// # Source
    /// Kineto's activity types are listed in `libkineto/src/ActivityType.cpp`. PyTorch 1.8 used
    /// other spellings, which are accepted too.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), kind: EventKind::from_name(name) }
    }

    /// Whether the category is known: either its events have a kind, or it is a category of PyTorch
    /// whose events no analysis needs.
    pub fn is_known(&self) -> bool {
        self.kind != EventKind::Other || WITHOUT_KIND.contains(&self.name.as_str())
    }
}

/// Categories that PyTorch is known to write but that have no kind. The list includes "other",
/// which represents all categories beyond the 255th.
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

/// The category in which MTIA's command processor reports kernels, copies and waits together.
pub(super) const MTIA_EVENTS: &str = "mtia_ccp_events";

/// Names of events in the category [`MTIA_EVENTS`] that are not kernels, with their kinds.
pub(super) const MTIA_KINDS: [(&str, EventKind); 2] =
    [("dma_request", EventKind::Memcpy), ("event_wait", EventKind::Sync)];

/// Kinds of rows that have no category, by the name of their process.
///
/// # Source
/// `EventList.export_chrome_trace` in `torch/autograd/profiler_util.py` writes the process `CPU
/// functions` and one process per accelerator, such as `CUDA functions`. The other names are
/// processes in the file `trace_view.json` of torch_npu.
const KINDS_BY_PROCESS: [(&str, EventKind); 10] = [
    ("CPU functions", EventKind::Operator),
    ("CUDA functions", EventKind::Kernel),
    ("XPU functions", EventKind::Kernel),
    ("HPU functions", EventKind::Kernel),
    ("MTIA functions", EventKind::Kernel),
    ("PrivateUse1 functions", EventKind::Kernel),
    ("Ascend Hardware", EventKind::Kernel),
    ("CANN", EventKind::Runtime),
    // The processes "Overlap Analysis" and "Communication" show sums of the rows of other
    // processes. If the rows of both processes counted as device work, that work would count twice.
    ("Overlap Analysis", EventKind::DeviceAnnotation),
    ("Communication", EventKind::DeviceAnnotation),
];

impl EventKind {
    /// Derives the kind of a row without a category from the name of its process. The kind is
    /// [`EventKind::Other`] if the process is unknown.
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

    /// Whether the event occupies a stream, as kernels, copies and memory sets do.
    pub fn is_device_work(self) -> bool {
        matches!(self, Self::Kernel | Self::Memcpy | Self::Memset)
    }

    /// Whether the event is a runtime or driver call, which may launch device work.
    pub fn is_call(self) -> bool {
        matches!(self, Self::Runtime | Self::Driver)
    }
}
