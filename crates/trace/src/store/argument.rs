//! Defines the types of arguments that only some slices have, such as the launch shape of a kernel.
//! `format::kineto` defines the keys of these arguments in files.

use super::StringId;

/// The launch shape of a kernel, and the occupancy that the profiler derived from it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LaunchShape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub registers: u32,
    pub shared_memory: u32,
    /// The number of blocks divided by the number of SMs, or NaN if the file has no such number.
    pub blocks_per_sm: f32,
    /// The number of warps divided by the number of SMs, or NaN if the file has no such number.
    pub warps_per_sm: f32,
    /// Theoretical occupancy of an SM in percent, from 0 to 100.
    pub occupancy_pct: f32,
}

/// The message of a collective and its process group. A text is empty if the file does not state
/// it, and a number is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collective {
    pub name: StringId,
    /// Element type as PyTorch names it, such as `Float` or `BFloat16`.
    pub dtype: StringId,
    /// Number of elements that this rank sends.
    pub elements_in: Option<u64>,
    /// Number of elements that this rank receives.
    pub elements_out: Option<u64>,
    /// Numbers of elements sent to each peer, as the text that the file has.
    pub splits_in: StringId,
    /// Numbers of elements received from each peer, as the text that the file has.
    pub splits_out: StringId,
    pub group_size: Option<u32>,
    pub group: StringId,
    pub group_description: StringId,
    /// The ranks of the process group as the text in the file, which PyTorch truncates for large
    /// groups.
    pub group_ranks: StringId,
    /// Index of this collective in the sequence of collectives of its process group.
    pub sequence: Option<u64>,
}

/// A Python frame. The parent ids decide how frames nest, because the times of frames are not
/// reliable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonFrame {
    pub id: u64,
    pub parent: Option<u64>,
    pub module: Option<u64>,
}

/// A Python source line that called an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackLine {
    /// The line as PyTorch writes it, such as `train.py(12): step`.
    pub line: StringId,
    /// The source line without its line number, such as `train.py: step`.
    pub function: StringId,
}

/// The stream or event for which a `cuda_sync` slice waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncWait {
    pub stream: Option<i64>,
    /// Correlation id of the `cudaEventRecord` call, from the argument
    /// `wait_on_cuda_event_record_corr_id`.
    pub record_correlation: Option<u64>,
    pub event: Option<u64>,
}
