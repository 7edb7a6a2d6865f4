//! The devices for which TorchRec plans, with its default memory sizes and bandwidths.

use super::sharding::{ComputeKernel, ShardingType};

const GIB: u64 = 1 << 30;

/// Converts GiB/s to bytes per millisecond, in TorchRec's order of operations.
const fn gib_per_second(value: f64) -> f64 {
    value * 1024.0 * 1024.0 * 1024.0 / 1000.0
}

/// The kind of device that holds the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedDevice {
    Gpu,
    Cpu,
}

impl PlannedDevice {
    /// Returns the name in plan files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "cuda",
            Self::Cpu => "cpu",
        }
    }

    /// Whether TorchRec shards pooled tables in this way on the device.
    #[must_use]
    pub fn allows(self, sharding: ShardingType) -> bool {
        use ShardingType::{GridShard, RowWise, TableRowWise};
        self == Self::Gpu || !matches!(sharding, RowWise | TableRowWise | GridShard)
    }
}

/// Devices and their bandwidths, in bytes per millisecond.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TorchrecTopology {
    pub device: PlannedDevice,
    pub ranks: u32,
    /// A divisor of `ranks`.
    pub ranks_per_host: u32,
    /// Memory of each rank for tables: that of its GPU, or its share of the host's memory.
    pub memory_bytes: u64,
    /// Bandwidth of that memory.
    pub memory_bandwidth: f64,
    pub bandwidth_within_hosts: f64,
    pub bandwidth_between_hosts: f64,
}

impl TorchrecTopology {
    /// Creates a topology with TorchRec's defaults: 32 GiB of GPU memory at 897 GiB/s or 128 GiB of
    /// host memory at 51 GiB/s, 600 GiB/s within and 12.5 GiB/s between hosts.
    #[must_use]
    pub fn with_defaults(device: PlannedDevice, ranks: u32, ranks_per_host: u32) -> Self {
        let (memory_bytes, memory_bandwidth) = match device {
            PlannedDevice::Gpu => (32 * GIB, gib_per_second(897.0)),
            PlannedDevice::Cpu => (128 * GIB, gib_per_second(51.0)),
        };
        Self {
            device,
            ranks,
            ranks_per_host,
            memory_bytes,
            memory_bandwidth,
            bandwidth_within_hosts: gib_per_second(600.0),
            bandwidth_between_hosts: gib_per_second(12.5),
        }
    }

    /// Returns the number of hosts.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        (self.ranks / self.ranks_per_host.max(1)).max(1)
    }

    /// Returns the bandwidth at which a kernel moves bytes.
    #[must_use]
    pub fn kernel_bandwidth(&self, kernel: ComputeKernel) -> f64 {
        match kernel {
            ComputeKernel::Dense => 0.5 * self.memory_bandwidth,
            ComputeKernel::Fused => self.memory_bandwidth,
        }
    }

    /// Returns the bandwidth of an exchange among all ranks.
    #[must_use]
    pub fn bandwidth_of_all(&self) -> f64 {
        if self.ranks <= self.ranks_per_host {
            self.bandwidth_within_hosts
        } else {
            self.bandwidth_between_hosts
        }
    }

    /// Returns the bandwidth of an all-reduce, to which each rank of a host adds its network card.
    #[must_use]
    pub fn bandwidth_of_all_reduce(&self) -> f64 {
        self.bandwidth_between_hosts * f64::from(self.ranks_per_host)
    }
}
