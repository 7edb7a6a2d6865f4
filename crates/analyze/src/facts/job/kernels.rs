//! Collects the kernels of the analyzed window with their owners and launch shapes.

use trace::store::EventKind;

use super::kernel::WindowKernel;
use super::rank::RankFacts;
use crate::facts::classify::WorkClass;

fn kernels(facts: &RankFacts<'_>) -> Vec<WindowKernel> {
    let trace = facts.scope.trace;
    let rows = facts.scope.device_rows.iter().enumerate();
    rows.filter(|(_, row)| trace.kind(**row) == EventKind::Kernel)
        .map(|(place, row)| WindowKernel {
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
    /// Returns the kernels of the analyzed window, sorted by start.
    pub(crate) fn kernels(&self) -> &[WindowKernel] {
        self.kernels.get_or_init(|| kernels(self))
    }

    pub(crate) fn compute_kernels(&self) -> impl Iterator<Item = &WindowKernel> {
        self.kernels().iter().filter(|kernel| kernel.class == WorkClass::Compute)
    }

    /// Returns the name of the operator that owns a kernel, or an empty string.
    pub(crate) fn owner_name(&self, kernel: &WindowKernel) -> &str {
        kernel.owner.map_or("", |owner| self.name(owner))
    }

    /// Returns the total duration of all compute kernels.
    pub(crate) fn compute_ns(&self) -> i64 {
        self.compute_kernels().map(|kernel| kernel.duration).sum()
    }

    /// Returns the properties of a device that the header of the trace contains.
    pub(crate) fn device_info(&self, device: i32) -> Option<&trace::store::DeviceProperties> {
        self.scope.trace.header.device(i64::from(device))
    }
}
