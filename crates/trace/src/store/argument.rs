//! Types of the arguments that only some slices have. Their keys in files are defined in
//! `format::kineto`.

use super::StringId;

/// The launch shape of a kernel, and what the profiler derived from it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LaunchShape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub registers: u32,
    pub shared_memory: u32,
    /// Blocks ÷ SMs; NaN if missing or not a number.
    pub blocks_per_sm: f32,
    /// Warps ÷ SMs; NaN if missing or not a number.
    pub warps_per_sm: f32,
    /// Theoretical occupancy in percent, 0..=100.
    pub occupancy_pct: f32,
}

/// The message of a collective and its process group. Unknown texts are empty, unknown numbers are
/// `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collective {
    pub name: StringId,
    /// Element type: `Float`, `BFloat16`, …
    pub dtype: StringId,
    /// Elements this rank sends.
    pub elements_in: Option<u64>,
    /// Elements this rank receives.
    pub elements_out: Option<u64>,
    /// Elements sent to each peer, as the file's text.
    pub splits_in: StringId,
    /// Elements received from each peer, as the file's text.
    pub splits_out: StringId,
    pub group_size: Option<u32>,
    pub group: StringId,
    pub group_description: StringId,
    /// The ranks as the file's text, which is truncated for large groups.
    pub group_ranks: StringId,
    /// Index in the group's sequence of collectives.
    pub sequence: Option<u64>,
}

/// A Python frame. Its parent is authoritative for nesting; its times are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonFrame {
    pub id: u64,
    pub parent: Option<u64>,
    pub module: Option<u64>,
}

/// A line of Python that called an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackLine {
    /// Such as `train.py(12): step`.
    pub line: StringId,
    /// The line without its number: `train.py: step`.
    pub function: StringId,
}

/// The object a `cuda_sync` slice waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncWait {
    pub stream: Option<i64>,
    /// `wait_on_cuda_event_record_corr_id`: the correlation of the `cudaEventRecord` call.
    pub record_correlation: Option<u64>,
    pub event: Option<u64>,
}
