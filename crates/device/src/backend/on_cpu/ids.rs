//! The ids of a batch in host memory. The calling thread splits and joins them.

use schema::JaggedTensor;

use crate::backend::{BatchIds, DistributedIds};
use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::jagged::{self, IdCounts, IdLayout, IdMessages, LocalIds};

/// The ids of a batch for the tiles of a rank, with the slots of all ranks.
#[derive(Debug, Default)]
pub struct CpuIds {
    layout: IdLayout,
    local: LocalIds,
    counts: IdCounts,
    /// Buffers of ids that this rank looks up itself.
    selected: IdMessages,
}

impl CpuIds {
    pub(super) fn new(layout: IdLayout) -> Self {
        Self { layout, ..Self::default() }
    }
}

impl DistributedIds for CpuIds {
    fn split(&mut self, sparse: &JaggedTensor, messages: &mut IdMessages) -> Result<(), Error> {
        jagged::split(&self.layout, sparse, messages);
        Ok(())
    }

    fn join(&mut self, messages: &mut IdMessages) -> Result<(), Error> {
        jagged::join(&self.layout, messages, &mut self.local, &mut self.counts);
        Ok(())
    }

    fn select(&mut self, sparse: &JaggedTensor) -> Result<(), Error> {
        let Self { layout, local, counts, selected } = self;
        jagged::split(layout, sparse, selected);
        jagged::join(layout, selected, local, counts);
        Ok(())
    }

    fn counts(&self) -> &IdCounts {
        &self.counts
    }

    fn read<'a>(&'a self, _: &'a mut LocalIds) -> Result<&'a LocalIds, Error> {
        Ok(&self.local)
    }

    fn host_ids(&mut self) -> Option<&mut LocalIds> {
        Some(&mut self.local)
    }
}

impl<'a> BatchIds<'a, Cpu> {
    /// Returns the ids in host memory, and the scales of their bags.
    pub(super) fn parts(self) -> (&'a JaggedTensor, Option<&'a [f32]>) {
        let LocalIds { jagged, scales } = &self.ids.local;
        self.unchanged.map_or((jagged, scales.as_deref()), |unchanged| (unchanged, None))
    }
}
