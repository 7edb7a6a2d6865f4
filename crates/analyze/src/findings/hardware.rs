//! Lists figures from vendors' data sheets: the peak rates, vendors and matrix units of known
//! devices.

use trace::store::DeviceProperties;

use super::product::DataType;

/// Peak bandwidth of a device's memory and of its links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Peak {
    /// Bandwidth of the device's memory, in GB/s.
    pub memory_gb_per_s: f64,
    /// Bandwidth of the device's link to its peers in a node, in one direction, in GB/s.
    pub link_gb_per_s: f64,
}

/// Each entry is a part of a device name, its memory bandwidth and its link bandwidth. The first
/// entry that occurs in the name decides.
///
/// # Source
/// The figures come from data sheets of NVIDIA and AMD. The link is NVLink or Infinity Fabric in
/// one direction, or PCIe for a device that has neither.
const DEVICES: [(&str, f64, f64); 24] = [
    ("GB200", 8000.0, 900.0),
    ("GH200", 4000.0, 450.0),
    ("B200", 8000.0, 900.0),
    ("H200", 4800.0, 450.0),
    ("H100 PCIe", 2039.0, 300.0),
    ("H100", 3350.0, 450.0),
    ("H800", 3350.0, 200.0),
    ("H20", 4000.0, 450.0),
    ("A100-SXM4-80GB", 2039.0, 300.0),
    ("A100-PCIE-80GB", 1935.0, 25.0),
    ("A100-PCIE", 1555.0, 25.0),
    ("A100", 1555.0, 300.0),
    ("A800", 2039.0, 200.0),
    ("V100", 900.0, 150.0),
    ("P100", 732.0, 80.0),
    ("L40", 864.0, 25.0),
    ("L4", 300.0, 25.0),
    ("A10", 600.0, 25.0),
    ("T4", 320.0, 12.0),
    ("RTX 4090", 1008.0, 25.0),
    ("RTX 3090", 936.0, 25.0),
    ("MI300X", 5300.0, 448.0),
    ("MI250", 1638.0, 200.0),
    ("MI210", 1638.0, 150.0),
];

/// Returns the peak bandwidths of a device of this name, if known.
pub(super) fn peak(name: &str) -> Option<Peak> {
    let device = DEVICES.iter().find(|(part, ..)| name.contains(part))?;
    Some(Peak { memory_gb_per_s: device.1, link_gb_per_s: device.2 })
}

/// Vendor of a device, which decides the matrix units that the device can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maker {
    Nvidia,
    Amd,
    /// A vendor whose matrix units are unknown.
    Other,
}

/// Parts of device names with their vendors; the first part that occurs in a name decides. A
/// compute capability alone does not identify the vendor, because AMD's gfx90a and gfx942 report
/// 9.0 and 9.4, and NVIDIA's Hopper reports 9.0.
const MAKERS: [(&str, Maker); 22] = [
    ("AMD", Maker::Amd),
    ("Instinct", Maker::Amd),
    ("Radeon", Maker::Amd),
    ("gfx", Maker::Amd),
    ("MI300", Maker::Amd),
    ("MI250", Maker::Amd),
    ("NVIDIA", Maker::Nvidia),
    ("Tesla", Maker::Nvidia),
    ("GeForce", Maker::Nvidia),
    ("Quadro", Maker::Nvidia),
    ("TITAN", Maker::Nvidia),
    ("RTX", Maker::Nvidia),
    ("A100", Maker::Nvidia),
    ("A800", Maker::Nvidia),
    ("H100", Maker::Nvidia),
    ("H800", Maker::Nvidia),
    ("H20", Maker::Nvidia),
    ("B200", Maker::Nvidia),
    ("V100", Maker::Nvidia),
    ("ARTEMIS", Maker::Other),
    ("Gaudi", Maker::Other),
    ("Intel", Maker::Other),
];

/// Returns the vendor of a device, if the name of the device reveals it.
pub(super) fn maker(name: &str) -> Option<Maker> {
    MAKERS.iter().find(|(part, _)| name.contains(part)).map(|(_, maker)| *maker)
}

/// Returns whether a device has matrix units for a data type. Float32 counts if the library may
/// round its values to TF32.
///
/// # Source
/// The table comes from NVIDIA's tuning guides (7.0: float16; 8.0: TF32, bfloat16, float64; 8.6,
/// 8.9 and 12.0 without float64) and AMD's instruction-set guides of MI100 to MI300 and of RDNA 3.
pub(super) fn has_matrix_units(maker: Maker, device: &DeviceProperties, of: DataType) -> bool {
    let capability = device.compute_capability;
    match (maker, of) {
        (Maker::Nvidia, DataType::Float64) => [(8, 0), (9, 0), (10, 0)].contains(&capability),
        (Maker::Nvidia, DataType::Float32 | DataType::BFloat16) => capability >= (8, 0),
        (Maker::Nvidia, DataType::Small) => capability >= (7, 2),
        (Maker::Nvidia, DataType::Float16) => capability >= (7, 0),
        // AMD's Vega also reports capability 9.0 but has no matrix units. Vega has at most 64
        // compute units, whereas MI100 has 120.
        (Maker::Amd, _) if capability.0 == 9 => capability >= (9, 4) || device.sm_count > 64,
        (Maker::Amd, DataType::Float16 | DataType::BFloat16) => capability >= (11, 0),
        (Maker::Amd | Maker::Other, _) => false,
    }
}

#[cfg(test)]
mod tests;
