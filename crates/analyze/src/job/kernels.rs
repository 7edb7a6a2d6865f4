//! Kernels with what their launch says of them.

use trace::store::{Kind, LaunchShape};

use super::RankFacts;
use crate::classify::Class;

/// A kernel in the window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    pub row: u32,
    pub class: Class,
    pub duration: i64,
    /// The operator or annotation it belongs to.
    pub owner: Option<u32>,
    pub shape: Option<LaunchShape>,
    pub device: i32,
}

pub(super) fn of(facts: &RankFacts<'_>) -> Vec<Kernel> {
    let trace = facts.scope.trace;
    let rows = facts.scope.device_rows.iter().enumerate();
    rows.filter(|(_, row)| trace.kind(**row) == Kind::Kernel)
        .map(|(place, row)| Kernel {
            row: *row,
            class: facts.scope.classes[place],
            duration: facts.duration(*row),
            owner: facts.attribution().owner(place),
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

impl RankFacts<'_> {
    /// The name of the operator a kernel belongs to; empty if unknown.
    pub(crate) fn owner_name(&self, kernel: &Kernel) -> &str {
        kernel.owner.map_or("", |owner| self.name(owner))
    }

    /// Durations of all compute kernels.
    pub(crate) fn compute_ns(&self) -> i64 {
        self.compute_kernels().map(|kernel| kernel.duration).sum()
    }

    /// What the header knows of a device.
    pub(crate) fn device_info(&self, device: i32) -> Option<&trace::store::Device> {
        self.scope.trace.header.devices.iter().find(|known| known.id == i64::from(device))
    }
}
