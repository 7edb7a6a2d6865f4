//! Kernels with what their launch says of them.

use trace::store::{Kind, LaunchShape};

use super::Facts;
use crate::antipattern::hardware::{self, Maker};
use crate::classify::Class;

/// A kernel in the window.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Kernel {
    pub row: u32,
    pub class: Class,
    pub duration: i64,
    /// The operator or annotation it belongs to.
    pub owner: Option<u32>,
    pub shape: Option<LaunchShape>,
    pub device: i32,
}

pub(super) fn of(facts: &Facts<'_>) -> Vec<Kernel> {
    let trace = facts.scope.trace;
    let rows = facts.scope.device_rows.iter().enumerate();
    rows.filter(|(_, row)| trace.kind(**row) == Kind::Kernel)
        .map(|(place, row)| Kernel {
            row: *row,
            class: facts.scope.classes[place],
            duration: facts.duration(*row),
            owner: facts.attribution.owner(place),
            shape: trace.slices.launch_shape.get(*row).copied(),
            device: trace.device(*row),
        })
        .collect()
}

impl Kernel {
    /// Blocks per multiprocessor, if known.
    pub fn blocks_per_sm(&self) -> Option<f64> {
        let blocks = self.shape.map(|shape| f64::from(shape.blocks_per_sm))?;
        blocks.is_finite().then_some(blocks)
    }

    pub fn threads_per_block(&self) -> u64 {
        self.shape.map_or(0, |shape| shape.block.iter().map(|n| u64::from(*n)).product())
    }

    pub fn blocks(&self) -> u64 {
        self.shape.map_or(0, |shape| shape.grid.iter().map(|n| u64::from(*n)).product())
    }
}

impl Facts<'_> {
    /// The name of the operator a kernel belongs to; empty if unknown.
    pub fn owner_name(&self, kernel: &Kernel) -> &str {
        kernel.owner.map_or("", |owner| self.name(owner))
    }

    /// Durations of all compute kernels.
    pub fn compute_ns(&self) -> i64 {
        self.compute_kernels().map(|kernel| kernel.duration).sum()
    }

    /// Who made a device: by its name, else by the versions in the header, else by the calls.
    pub fn maker(&self, device: i32) -> Maker {
        let header = &self.scope.trace.header.rest;
        let has = |keys: &[&str]| keys.iter().any(|key| header.contains_key(*key));
        let calls = |vendor: &str| {
            let is_launch = |text: &str| text.starts_with(vendor) && text.contains("Launch");
            self.scope.trace.strings.iter().any(is_launch)
        };
        let named = self.device_info(device).and_then(|known| hardware::maker(&known.name));
        named.unwrap_or_else(|| {
            if has(&["hip_runtime_version", "roctracer_version"]) || calls("hip") {
                Maker::Amd
            } else if has(&["cuda_runtime_version", "cupti_version"]) || calls("cu") {
                Maker::Nvidia
            } else {
                Maker::Other
            }
        })
    }

    /// What the header knows of a device.
    pub fn device_info(&self, device: i32) -> Option<&trace::store::Device> {
        self.scope.trace.header.devices.iter().find(|known| known.id == i64::from(device))
    }
}
