//! Maps categories to kinds of events, for every era and vendor.

/// A category as the file spells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Category {
    /// The spelling, such as `cuda_runtime` or, in 2021, `Runtime`.
    pub name: String,
    pub kind: EventKind,
}

/// What an event is, whatever its era and vendor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// An operator on a thread.
    Operator,
    /// A range named by the user or the framework, on a thread.
    Annotation,
    /// A call of the device's runtime, on a thread.
    Runtime,
    /// A call of the device's driver, on a thread.
    Driver,
    /// Work of a device.
    Kernel,
    /// A copy by or to a device.
    Memcpy,
    /// Memory set by a device.
    Memset,
    /// The span of an annotation's work on a device.
    DeviceAnnotation,
    /// A wait of the host or a stream, as the profiler saw it (`cuda_sync`).
    Sync,
    /// A recorded event of a stream (`cuda_event`).
    Event,
    /// A frame of Python.
    Python,
    /// The profiler's own work.
    Overhead,
    /// The span of the whole recording (`Trace`).
    Window,
    Other,
}

impl Category {
    /// The category of a spelling.
    ///
    /// # Source
    /// Kineto's activity types, `libkineto/src/ActivityType.cpp`; the spellings of PyTorch 1.8.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), kind: EventKind::from_name(name) }
    }

    /// Whether the category has a meaning: it has a kind, or it is one of PyTorch's that no
    /// analysis needs.
    pub fn is_known(&self) -> bool {
        self.kind != EventKind::Other || WITHOUT_KIND.contains(&self.name.as_str())
    }
}

/// Categories of PyTorch's profiler that no analysis needs, and the one that stands for those
/// beyond the 255th.
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

/// Where MTIA's command processor reports what its streams do: work, copies and waits alike.
pub(super) const MTIA_EVENTS: &str = "mtia_ccp_events";

/// Those of [`MTIA_EVENTS`] that are no kernels, by name.
pub(super) const MTIA_KINDS: [(&str, EventKind); 2] =
    [("dma_request", EventKind::Memcpy), ("event_wait", EventKind::Sync)];

/// Kinds of rows without a category, by the name of the process they stand in.
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
    // Sums of what other processes show.
    ("Overlap Analysis", EventKind::DeviceAnnotation),
    ("Communication", EventKind::DeviceAnnotation),
];

impl EventKind {
    /// The kind of a row without a category; [`EventKind::Other`] where its process tells nothing.
    pub(super) fn from_process(track: &super::Track) -> Self {
        let names = [track.process_name.as_str(), track.pid.text().unwrap_or_default()];
        let known = KINDS_BY_PROCESS.iter().find(|(process, _)| names.contains(process));
        known.map_or(Self::Other, |(_, kind)| *kind)
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

    /// Kernels, copies and sets: what keeps a stream busy.
    pub fn is_device_work(self) -> bool {
        matches!(self, Self::Kernel | Self::Memcpy | Self::Memset)
    }

    /// Runtime and driver calls: what may launch device work.
    pub fn is_call(self) -> bool {
        matches!(self, Self::Runtime | Self::Driver)
    }
}
