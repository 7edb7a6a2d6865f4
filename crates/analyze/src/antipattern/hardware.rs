//! What known devices can do at most: data, from the vendors' sheets. Knows no trace.

/// A device's limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Peak {
    /// Memory of the device, GB/s.
    pub memory_gb_per_s: f64,
    /// To its peers in a node, one direction, GB/s.
    pub link_gb_per_s: f64,
}

/// Parts of names, memory and link; the first that occurs decides.
///
/// # Source
/// Data sheets of NVIDIA and AMD; NVLink and Infinity Fabric in one direction, PCIe where there is
/// neither.
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

/// The limits of a device of this name, if known.
pub(super) fn peak(name: &str) -> Option<Peak> {
    let known = DEVICES.iter().find(|(part, ..)| name.contains(part))?;
    Some(Peak { memory_gb_per_s: known.1, link_gb_per_s: known.2 })
}
