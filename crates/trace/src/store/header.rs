//! Defines the types for the keys of a trace file outside its list of events.

use std::collections::BTreeMap;

use serde_json::Value;

/// The keys of a trace file outside its list of events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceHeader {
    /// Unix time in nanoseconds to which the times in the file are relative, or 0 if they are
    /// absolute. The base time is already added to all times of the trace.
    pub base_time_ns: i64,
    /// The devices that the file lists, by ordinal.
    pub devices: Vec<DeviceProperties>,
    /// The distributed job, or `None` if the file does not describe one.
    pub distributed: Option<Distributed>,
    /// All other keys of the file, such as `schemaVersion`, `traceName` and `WARNING`.
    pub rest: BTreeMap<String, Value>,
}

impl TraceHeader {
    /// Returns the properties of a device. An unlisted device is assumed to equal the listed ones
    /// if all listed ones are equal. The reason is that a process which sees only some of a host's
    /// devices lists only these, with other ordinals than in its rows.
    pub fn device(&self, id: i64) -> Option<&DeviceProperties> {
        let listed = self.devices.iter().find(|known| known.id == id);
        // Ids always differ, so they are made equal before devices are compared.
        let is_alike = |known: &DeviceProperties| {
            self.devices
                .iter()
                .all(|other| DeviceProperties { id: known.id, ..other.clone() } == *known)
        };
        listed.or_else(|| self.devices.first().filter(|first| id >= 0 && is_alike(first)))
    }

    /// Whether the header lists the device with this id, so that its properties are not assumed.
    pub fn lists_device(&self, id: i64) -> bool {
        self.devices.iter().any(|known| known.id == id)
    }
}

/// The properties of a device of the host. Numbers that the file does not state are 0, and texts
/// are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceProperties {
    pub id: i64,
    /// Name of the model, such as `NVIDIA A100-SXM4-40GB`.
    pub name: String,
    pub memory_bytes: u64,
    /// Major and minor version of the CUDA compute capability.
    pub compute_capability: (u32, u32),
    pub sm_count: u32,
    pub threads_per_sm: u32,
    pub warp_size: u32,
}

/// Describes the distributed job of a rank: its backend, its size and its process groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distributed {
    pub backend: String,
    pub rank: Option<u32>,
    pub world_size: Option<u32>,
    pub groups: Vec<ProcessGroup>,
}

/// A process group with the name that PyTorch gave it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessGroup {
    pub name: String,
    pub description: String,
    /// Global ranks of the members, or an empty list if the file does not state them.
    pub ranks: Vec<u32>,
}
