//! Kernels with what their launch says of them.

use trace::store::Kind;

use super::kernel::Kernel;
use super::rank::RankFacts;
use crate::classify::Class;

fn of(facts: &RankFacts<'_>) -> Vec<Kernel> {
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

impl RankFacts<'_> {
    /// Kernels in the window, by start.
    pub(crate) fn kernels(&self) -> &[Kernel] {
        self.kernels.get_or_init(|| of(self))
    }

    pub(crate) fn compute_kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels().iter().filter(|kernel| kernel.class == Class::Compute)
    }

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
