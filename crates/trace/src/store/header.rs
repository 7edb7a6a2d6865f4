//! Everything a trace file says outside its list of events.

use std::collections::BTreeMap;

use serde_json::Value;

/// Everything outside the list of events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceHeader {
    /// What the file's times count from, unix nanoseconds: 0 in files with absolute times. Already
    /// added to all times of the trace.
    pub base_time_ns: i64,
    /// The devices, by ordinal.
    pub devices: Vec<DeviceProperties>,
    /// The job's ranks, if the file names them.
    pub distributed: Option<Distributed>,
    /// Every other key of the file, such as `schemaVersion`, `traceName`, `WARNING`.
    pub rest: BTreeMap<String, Value>,
}

impl TraceHeader {
    /// The properties of a device. A device that the header does not list is taken to be like those
    /// that it lists, if these are all alike: a process that sees only some of a host's devices
    /// lists only those, under other ordinals than its rows have.
    pub fn device(&self, id: i64) -> Option<&DeviceProperties> {
        let listed = self.devices.iter().find(|known| known.id == id);
        let is_alike = |known: &DeviceProperties| {
            self.devices
                .iter()
                .all(|other| DeviceProperties { id: known.id, ..other.clone() } == *known)
        };
        listed.or_else(|| self.devices.first().filter(|first| id >= 0 && is_alike(first)))
    }

    /// Whether the header lists a device itself.
    pub fn lists_device(&self, id: i64) -> bool {
        self.devices.iter().any(|known| known.id == id)
    }
}

/// A device of the host; 0 or empty where the file has no such field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceProperties {
    pub id: i64,
    /// Such as `NVIDIA A100-SXM4-40GB`.
    pub name: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    pub sm_count: u32,
    /// Threads of a multiprocessor.
    pub threads_per_sm: u32,
    /// Threads of a warp.
    pub warp_size: u32,
}

/// The job's ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distributed {
    pub backend: String,
    pub rank: Option<u32>,
    pub world_size: Option<u32>,
    pub groups: Vec<ProcessGroup>,
}

/// A process group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessGroup {
    pub name: String,
    pub description: String,
    /// Its members; empty if unknown.
    pub ranks: Vec<u32>,
}
