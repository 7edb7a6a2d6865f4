//! Typed arguments that some slices have. Names of the fields in files are in `format::kineto`.

use super::StringId;

/// Shape of a kernel's launch and what the profiler derived from it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LaunchShape {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    pub registers: u32,
    /// Bytes of shared memory per block.
    pub shared_memory: u32,
    /// Blocks ÷ SMs; NaN where the file has none or no number.
    pub blocks_per_sm: f32,
    /// Warps ÷ SMs; NaN where the file has none or no number.
    pub warps_per_sm: f32,
    /// Theoretical occupancy in percent, 0..=100.
    pub occupancy_pct: f32,
}

/// What a collective moves and among whom. Texts are empty, numbers `None` where unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collective {
    pub name: StringId,
    /// Type of an element: `Float`, `BFloat16`, …
    pub dtype: StringId,
    /// Elements this rank puts in.
    pub elements_in: Option<u64>,
    /// Elements this rank gets out.
    pub elements_out: Option<u64>,
    /// Elements to each peer, as the file's text.
    pub splits_in: StringId,
    /// Elements from each peer, as the file's text.
    pub splits_out: StringId,
    /// Ranks that take part.
    pub group_size: Option<u32>,
    /// Name of the process group.
    pub group: StringId,
    /// Description of the process group.
    pub group_description: StringId,
    /// The ranks, as the file's text; cut short for large groups.
    pub group_ranks: StringId,
    /// Place in the group's sequence of collectives.
    pub sequence: Option<u64>,
}

/// A frame of Python: parents are authoritative, not times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonFrame {
    pub id: u64,
    pub parent: Option<u64>,
    /// `Python module id`.
    pub module: Option<u64>,
}

/// A line of Python from which an operator was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackLine {
    /// Such as `train.py(12): step`.
    pub line: StringId,
    /// The same without the number of the line: `train.py: step`.
    pub function: StringId,
}

/// What a `cuda_sync` slice waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncWait {
    pub stream: Option<i64>,
    /// `wait_on_cuda_event_record_corr_id`: the correlation of the `cudaEventRecord` call.
    pub record_correlation: Option<u64>,
    pub event: Option<u64>,
}
