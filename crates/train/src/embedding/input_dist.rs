//! Sends ids to the ranks that own their rows: checks ids, has the device split them by tile,
//! exchanges them, and has the device join the received ones.
//!
//! Whole tables take this rank's own ids, and ranks only exchange which of their rows are used.
//!
//! The exchange takes up to four rounds of all-to-all: lengths, ids, and where needed scales and
//! weights. Counts follow from the lengths, so no round of sizes comes first. Ids beyond the length
//! of a sequence are checked like the others, but not sent. This file does not depend on weights or
//! optimizers.

use std::sync::Arc;

use comm::{Communicator, Flight};
use device::Backend;
use device::backend::DistributedIds;
use device::ops::jagged::{IdLayout, IdMessages, LocalIds};
use schema::{JaggedTensor, Rank};

use super::layout::{Slot, SlotLayout};
use super::touched_rows::TouchedRows;
use crate::Error;
use crate::lane::{Exchange, LaneCommunicator};
use crate::memory::CountingAllocator;
use crate::share::RankBatch;

/// The purpose for which a batch is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchUse {
    /// Rows that the batch looks up are updated.
    Training,
    Evaluation,
}

/// The communicators of an exchange of ids.
pub struct IdCommunicators {
    /// Connects the ranks of one replica group. Ids are sent only among them.
    within: Communicator,
    /// Is `None` if all ranks form one group.
    groups: Option<IdGroups>,
}

/// The communicators over which ranks of several groups exchange the rows that they look up.
struct IdGroups {
    /// Connects the ranks that hold the same tiles, one of each group.
    between: Communicator,
    /// Connects all ranks of the job, which all hold the replicated tables.
    all: Communicator,
}

impl IdCommunicators {
    /// Creates the communicators of ranks that form one group.
    #[must_use]
    pub fn single(within: Communicator) -> Self {
        Self { within, groups: None }
    }

    /// Creates communicators from those of the ranks within a group, of the ranks with the same
    /// place in all groups, and of all ranks.
    #[must_use]
    pub fn grouped(within: Communicator, between: Communicator, all: Communicator) -> Self {
        Self { within, groups: Some(IdGroups { between, all }) }
    }

    /// Returns the communicator of all ranks.
    fn all(&mut self) -> &mut Communicator {
        self.groups.as_mut().map_or(&mut self.within, |groups| &mut groups.all)
    }
}

impl LaneCommunicator for IdCommunicators {
    fn duplicate(&self) -> Self {
        match &self.groups {
            None => Self::single(self.within.duplicate()),
            Some(IdGroups { between, all }) => {
                Self::grouped(self.within.duplicate(), between.duplicate(), all.duplicate())
            }
        }
    }

    fn settings(&mut self) -> &mut Communicator {
        &mut self.within
    }

    fn copy_settings(&mut self, other: &Communicator) {
        self.within.copy_settings(other);
        if let Some(IdGroups { between, all }) = &mut self.groups {
            [between, all].into_iter().for_each(|comm| comm.copy_settings(other));
        }
    }

    fn take_flight(&mut self) -> Option<Flight> {
        let groups = self.groups.as_mut();
        let others = groups.map(|groups| [groups.between.take_flight(), groups.all.take_flight()]);
        let others = others.into_iter().flatten();
        others.chain([self.within.take_flight()]).flatten().reduce(Flight::join)
    }
}

/// The exchange of a batch's ids, with its buffers. A later step reuses the buffers.
pub struct IdExchange<B: Backend> {
    /// The batch to distribute, until that is done.
    pub batch: Option<RankBatch>,
    layout: Arc<SlotLayout>,
    /// The ids for the tiles that this rank owns, of all ranks' samples.
    pub tiled: B::Ids,
    /// The ids of this rank's samples for whole tables.
    pub own: B::Ids,
    /// The rows of replicated tables that the batch of all ranks looks up.
    pub touched: TouchedRows,
    /// The rows of this rank's tiles that the batch of all groups looks up. Empty unless groups
    /// sum gradients.
    pub touched_in_groups: TouchedRows,
    messages: IdMessages,
    /// A copy of the ids for tiles, if the host cannot read them in place and needs them.
    host_ids: LocalIds,
}

impl<B: Backend> Exchange for IdExchange<B> {
    type Comm = IdCommunicators;

    // The thread of the lane also splits the ids by owner, which takes longer than sending them.
    fn start(&mut self, _: &mut IdCommunicators) -> Result<(), Error> {
        Ok(())
    }

    fn finish(&mut self, comm: &mut IdCommunicators) -> Result<(), Error> {
        let Some(RankBatch { batch, first_sample }) = self.batch.take() else { return Ok(()) };
        self.run(comm, &batch.sparse, first_sample, BatchUse::Training)
    }
}

impl<B: Backend> IdExchange<B> {
    /// Creates an exchange with empty buffers. `place` is the position of this rank in its group.
    /// `tile_rows` is the number of rows of each tile of this rank whose gradients replica groups
    /// sum.
    #[must_use]
    pub fn new(
        room: &mut CountingAllocator<'_, B>,
        layout: Arc<SlotLayout>,
        place: Rank,
        tile_rows: &[u64],
    ) -> Self {
        let id_slots = |slots: &Vec<Slot>| slots.iter().map(Slot::id_slot).collect();
        let (mut tiled, mut own) = (B::Ids::default(), B::Ids::default());
        if layout.has_tiles() {
            let slots = layout.slots.iter().map(id_slots).collect();
            tiled = room.ids(IdLayout { slots, own: place.index(), has_scales: layout.any_mean });
        }
        if layout.has_own_ids() {
            let slots = vec![id_slots(&layout.local)];
            own = room.ids(IdLayout { slots, own: 0, has_scales: layout.any_local_mean });
        }
        Self {
            batch: None,
            tiled,
            own,
            touched: TouchedRows::new(&layout.replica_rows),
            touched_in_groups: TouchedRows::new(tile_rows),
            messages: IdMessages::default(),
            host_ids: LocalIds::default(),
            layout,
        }
    }

    /// Sends the ids of `sparse` to the owners of their rows, and writes the ids that this rank
    /// owns to [`Self::tiled`]. Ids for whole tables go to [`Self::own`], unless they are used
    /// unchanged. For a training step, ranks also exchange the rows of replicated tables that they
    /// look up, and groups those of their tiles. `sparse` has this rank's samples, which begin at
    /// `first_sample` of the global batch.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`] names table, feature, sample and id before anything is sent.
    /// [`Error::Communication`] if a peer left. [`Error::Device`] if the device failed.
    pub fn run(
        &mut self,
        comm: &mut IdCommunicators,
        sparse: &JaggedTensor,
        first_sample: usize,
        batch_use: BatchUse,
    ) -> Result<(), Error> {
        // The batch is in host memory. Checking it there finds the first invalid id before any
        // device has to be waited for.
        check_ids(&self.layout, sparse, first_sample)?;
        if self.layout.has_tiles() {
            self.tiled.split(sparse, &mut self.messages)?;
            send(&mut comm.within, &mut self.messages, self.layout.any_mean)?;
            self.tiled.join(&mut self.messages)?;
            let sums_tiles = batch_use == BatchUse::Training && self.touched_in_groups.has_tables();
            if let Some(IdGroups { between, .. }) = comm.groups.as_mut().filter(|_| sums_tiles) {
                let slots = &self.layout.slots[comm.within.rank().index()];
                let ids = self.tiled.read(&mut self.host_ids)?;
                self.touched_in_groups.mark_distributed(slots, &ids.jagged);
                self.touched_in_groups.exchange(between)?;
            }
        }
        if self.layout.has_own_ids() {
            self.own.select(sparse)?;
        }
        if batch_use == BatchUse::Training && !self.layout.replica_rows.is_empty() {
            self.touched.mark_batch(&self.layout.local, sparse);
            return self.touched.exchange(comm.all());
        }
        Ok(())
    }
}

/// Exchanges the ids with all ranks. The number of samples is sent behind the lengths, because a
/// rank without slots adds up vectors of its host for these samples too.
fn send(comm: &mut Communicator, messages: &mut IdMessages, has_scales: bool) -> Result<(), Error> {
    let IdMessages { lengths, samples, .. } = messages;
    lengths.iter_mut().zip(&*samples).for_each(|(lengths, &samples)| lengths.push(samples as i32));
    comm.all_to_all(lengths)?;
    for (lengths, samples) in lengths.iter_mut().zip(samples) {
        *samples = lengths.pop().map_or(0, |samples| samples as usize);
    }
    comm.all_to_all(&mut messages.values)?;
    if has_scales {
        comm.all_to_all(&mut messages.scales)?;
    }
    if messages.has_weights {
        comm.all_to_all(&mut messages.weights)?;
    }
    Ok(())
}

/// Checks that every id of `sparse` is a row of its table.
///
/// # Errors
/// [`Error::RowOutOfRange`] names table, feature, sample and id.
pub fn check_ids(
    layout: &SlotLayout,
    sparse: &JaggedTensor,
    first_sample: usize,
) -> Result<(), Error> {
    for (feature, table) in layout.features.iter().enumerate() {
        let ids = sparse.feature(feature);
        // Negative ids become huge as `u64` and fail the same comparison.
        let Some(at) = sparse.values[ids.clone()].iter().position(|&id| id as u64 >= table.rows)
        else {
            continue;
        };
        let at = ids.start + at;
        let ends = &sparse.offsets[feature * sparse.batch_size + 1..];
        let sample = ends.partition_point(|&end| end <= at);
        return Err(Error::RowOutOfRange {
            table: table.table.clone(),
            feature,
            sample: first_sample + sample,
            id: sparse.values[at],
            rows: table.rows,
        });
    }
    Ok(())
}
