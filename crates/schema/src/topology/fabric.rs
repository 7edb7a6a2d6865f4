//! The links between the devices of one host, and ready-made hosts.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::HardwareSpec;

/// Links between the devices of one host. Bandwidths are those of data sheets, in bytes per
/// nanosecond for each device and direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostFabric {
    pub name: Cow<'static, str>,
    /// Bandwidth at which a device sends to its neighbor in a ring.
    #[serde(rename = "ring_gb_per_s")]
    pub ring: f64,
    /// Bandwidth at which a device sends equal parts to all others. It is below that of a ring if
    /// messages between some devices take links of others.
    #[serde(rename = "all_to_all_gb_per_s")]
    pub all_to_all: f64,
}

impl HostFabric {
    /// Returns the links of a device by its data sheet.
    #[must_use]
    pub fn for_device(device: &HardwareSpec) -> Self {
        let (name, gb_per_s) = match &*device.key {
            "v100-sxm2" | "v100-sxm3" => ("NVLink", 150.0),
            "a100-sxm4" | "a100-sxm4-80gb" => ("NVLink", 300.0),
            "h100" | "h200" => ("NVLink", 450.0),
            "mi250" => ("Infinity Fabric", 150.0),
            "mi300x" => ("Infinity Fabric", 448.0),
            "a100" | "a100-80gb" | "l4" => ("PCIe", 31.5),
            _ => ("PCIe", 15.75),
        };
        Self { name: Cow::Borrowed(name), ring: gb_per_s, all_to_all: gb_per_s }
    }
}

/// A ready-made host: its devices, their links, and its network cards.
#[derive(Clone, Debug, PartialEq)]
pub struct HostModel {
    pub key: &'static str,
    /// Key of the device in [`super::HARDWARE`].
    pub device: &'static str,
    pub devices: u32,
    pub fabric: HostFabric,
    /// Number of network cards for exchanges between hosts.
    pub nics: u32,
    pub nic_gbit_per_s: f64,
    pub source: &'static str,
}

const fn fabric(name: &'static str, ring: f64, all_to_all: f64) -> HostFabric {
    HostFabric { name: Cow::Borrowed(name), ring, all_to_all }
}

/// All ready-made hosts, oldest first.
pub static HOSTS: [HostModel; 5] = [
    // Each device has six links of 25 GB/s, of which two pairs are double. Three of its seven peers
    // are two hops away. In an all-to-all, 16 messages of s bytes cross between the two halves of
    // four devices, whose six links carry 150 GB/s. So a device sends its 7 s at 7 · 150 ÷ 16 GB/s.
    HostModel {
        key: "dgx-1",
        device: "v100-sxm2",
        devices: 8,
        fabric: fabric("NVLink cube mesh", 150.0, 65.6),
        nics: 4,
        nic_gbit_per_s: 100.0,
        source: "DGX-1 with V100, system architecture (NVIDIA WP-08437): hybrid cube mesh",
    },
    HostModel {
        key: "dgx-2",
        device: "v100-sxm3",
        devices: 16,
        fabric: fabric("NVSwitch", 150.0, 150.0),
        nics: 8,
        nic_gbit_per_s: 100.0,
        source: "DGX-2 data sheet: 16 devices, six NVLinks each, to NVSwitch",
    },
    HostModel {
        key: "zionex",
        device: "a100-sxm4",
        devices: 8,
        fabric: fabric("NVSwitch", 300.0, 300.0),
        nics: 8,
        nic_gbit_per_s: 200.0,
        source: "arXiv:2104.05158, Section 3: one RoCE card of 200 Gbit/s per device",
    },
    HostModel {
        key: "dgx-a100",
        device: "a100-sxm4-80gb",
        devices: 8,
        fabric: fabric("NVSwitch", 300.0, 300.0),
        nics: 8,
        nic_gbit_per_s: 200.0,
        source: "DGX A100 data sheet: eight compute cards of 200 Gbit/s",
    },
    HostModel {
        key: "dgx-h100",
        device: "h100",
        devices: 8,
        fabric: fabric("NVSwitch", 450.0, 450.0),
        nics: 8,
        nic_gbit_per_s: 400.0,
        source: "DGX H100 data sheet: eight compute cards of 400 Gbit/s",
    },
];
