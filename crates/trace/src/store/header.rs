//! Types for everything in a trace file outside its list of events.

use std::collections::BTreeMap;

use serde_json::Value;

/// Everything outside the list of events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceHeader {
    /// Start of the file's times in Unix nanoseconds; 0 in files with absolute times. It is already
    /// added to all times of the trace.
    pub base_time_ns: i64,
    /// Devices of the file, by ordinal.
    pub devices: Vec<DeviceProperties>,
    /// Is `None` if the file does not describe the job.
    pub distributed: Option<Distributed>,
    /// All other keys of the file, such as `schemaVersion`, `traceName`, `WARNING`.
    pub rest: BTreeMap<String, Value>,
}

impl TraceHeader {
    /// Returns the properties of a device. A device that is not listed is assumed to equal the
    /// listed ones, provided those are all equal. The reason is that a process which sees only some
    /// of a host's devices lists only those, with other ordinals than its rows.
    pub fn device(&self, id: i64) -> Option<&DeviceProperties> {
        let listed = self.devices.iter().find(|known| known.id == id);
        let is_alike = |known: &DeviceProperties| {
            self.devices
                .iter()
                .all(|other| DeviceProperties { id: known.id, ..other.clone() } == *known)
        };
        listed.or_else(|| self.devices.first().filter(|first| id >= 0 && is_alike(first)))
    }

    /// Whether the header lists the device itself.
    pub fn lists_device(&self, id: i64) -> bool {
        self.devices.iter().any(|known| known.id == id)
    }
}

/// A device of the host. Missing fields are 0 or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceProperties {
    pub id: i64,
    /// Such as `NVIDIA A100-SXM4-40GB`.
    pub name: String,
    pub memory_bytes: u64,
    /// Major and minor version.
    pub compute_capability: (u32, u32),
    pub sm_count: u32,
    pub threads_per_sm: u32,
    pub warp_size: u32,
}

/// The rank and the other ranks of the job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distributed {
    pub backend: String,
    pub rank: Option<u32>,
    pub world_size: Option<u32>,
    pub groups: Vec<ProcessGroup>,
}

/// A process group, named as PyTorch does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessGroup {
    pub name: String,
    pub description: String,
    /// Global ranks; empty if unknown.
    pub ranks: Vec<u32>,
}
